//! Tests what the agent reports of OOM kills, on the real API.

use std::collections::BTreeMap;

use lab::agent::{Setup, Site};
use lab::bed;
use lab::controller::{self, Controller};
use lab::eventually;
use serde_json::json;

use super::{SOON, cluster};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_was_oom_killed_is_explained_before_its_pod_ends() {
    let site = Site::start(&cluster(), Setup { pods: 2, ..Setup::default() }).await;
    site.oom_kill("work-000").await;
    let see = async || {
        let status = site.pod("work-000").await.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        conditions.into_iter().find(|condition| condition.type_ == "epilogue.dev/OOMKilled")
    };
    let event_of = eventually("the pod is explained", SOON, see, Option::is_some).await;
    let event_of = event_of.expect("it must be there");
    assert_eq!(
        (event_of.status.as_str(), event_of.reason.as_deref()),
        ("True", Some("ContainerLimit"))
    );
    let message = event_of.message.unwrap_or_default();
    assert!(message.contains("at its memory limit of 64Mi"), "{message}");
    let see = async || site.metric("oom_conditions_total{race=\"won\"}").await;
    eventually("the race is counted", SOON, see, |won| *won == Some(1.0)).await;
    // The other container ends with the node; the OOM killer did not kill it.
    site.shut_down().await;
    site.released().await;
    site.until("all have ended", |ends| ends.ended == 2).await;
    let status = site.pod("work-001").await.status.unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    assert!(conditions.iter().all(|condition| condition.type_ != "epilogue.dev/OOMKilled"));
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_oom_kill_is_a_disruption_where_the_administrator_configures_it() {
    for (argument, disrupts) in [("--node-oom=disrupt", true), ("--node-oom=tell", false)] {
        let arguments = vec![argument.to_owned()];
        let setup = Setup { pods: 1, arguments, ..Setup::default() };
        let site = Site::start(&cluster(), setup).await;
        site.oom_kill_by_node("work-000").await;
        let won = "oom_conditions_total{race=\"won\"}";
        site.until_metric(won, 1.0).await;
        let status = site.pod("work-000").await.status.unwrap_or_default();
        let conditions = status.conditions.into_iter().flatten();
        let reasons: BTreeMap<_, _> =
            conditions.map(|it| (it.type_, it.reason.unwrap_or_default())).collect();
        assert_eq!(reasons["epilogue.dev/OOMKilled"], "NodeOutOfMemory", "{argument}");
        assert_eq!(reasons.contains_key("DisruptionTarget"), disrupts, "{argument}: {reasons:?}");
        site.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_fails_at_once_by_the_rule_for_a_container_at_its_limit() {
    // The kernel kills; the kubelet reports the end only seconds later.
    let site = Site::start(&cluster(), Setup { pods: 0, ..Setup::default() }).await;
    let dir = cluster().files(site.namespace());
    let setup = controller::Setup::debug(&dir).namespace(site.namespace());
    let mut controller = Controller::start(&cluster(), &setup).await.expect("our controller");
    let rule = |kind: &str, action: &str| json!({"action": action, "onPodConditions": [{"type": kind, "status": "True"}]});
    let rules = [rule("DisruptionTarget", "Ignore"), rule("epilogue.dev/OOMKilled", "FailJob")];
    let script = "fail exit=137 reason=OOMKilled after=5s";
    let job = bed::job("learning")
        .spec("backoffLimit", 6)
        .spec("podFailurePolicy", json!({"rules": rules}))
        .script(script);
    site.create_job(job).await;
    let name = site.only_pod_of("learning").await;
    site.until_phase(&name, "Running").await;
    site.oom_kill(&name).await;
    let see = async || bed::conditions(&site.job("learning").await);
    let failed =
        |conditions: &Vec<String>| conditions.iter().any(|it| it.starts_with("Failed=True"));
    let what = format!("the Job fails (log: {})", controller.log().display());
    let conditions = eventually(&what, SOON, see, failed).await;
    let failed = conditions.iter().find(|it| it.starts_with("Failed=True")).expect("must be set");
    assert!(failed.starts_with("Failed=True PodFailurePolicy: "), "{failed}");
    assert!(failed.contains("epilogue.dev/OOMKilled"), "{failed}");
    assert_eq!(site.only_pod_of("learning").await, name, "nothing was tried again");
    // The condition was there before the phase, at which the Job's rule is evaluated once.
    let states = site.record.states(&name).await;
    let event_of =
        states.iter().position(|it| it.conditions.contains_key("epilogue.dev/OOMKilled"));
    let ended = states.iter().position(|it| it.phase == "Failed");
    assert!(event_of.is_some() && event_of < ended, "{states:?}");
    controller.check().expect("our controller runs to the end");
    controller.stop().await;
    site.stop().await;
}
