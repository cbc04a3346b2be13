//! Tests the options that a Job sets by annotation.

use jiff::SignedDuration;
use serde_json::json;

use super::builders::{JobBuilder, PodBuilder, ago, api, check, job, pod, sync, sync_with, uid};
use crate::checks::fake_api::FakeApi;
use crate::job::Step;
use crate::view::Phase;

fn annotated(job: JobBuilder, pairs: &[(&str, &str)]) -> JobBuilder {
    let all: serde_json::Map<String, serde_json::Value> =
        pairs.iter().map(|(name, value)| (format!("epilogue.dev/{name}"), json!(value))).collect();
    job.meta("annotations", all)
}

fn ignoring() -> JobBuilder {
    let rule = json!({"action": "Ignore", "onPodConditions": [
        {"type": "DisruptionTarget", "status": "True"}]});
    job().spec("podFailurePolicy", json!({"rules": [rule]})).spec("backoffLimit", 0)
}

fn disrupted(name: &str) -> PodBuilder {
    pod(name, "Failed").condition("DisruptionTarget").ended(143, 5)
}

#[test]
fn ignored_failures_fail_the_job_beyond_the_disruption_limit() {
    for (limit, failures, fails) in
        [("0", 1, true), ("1", 1, false), ("1", 2, true), ("2", 2, false)]
    {
        let pods = (0..failures).map(|number| disrupted(&format!("d-{number}"))).collect();
        let effects = sync(&mut api(annotated(ignoring(), &[("disruption-limit", limit)]), pods));
        let failed = effects.conditions.contains(&"Failed/DisruptionLimitExceeded".to_owned());
        assert_eq!(failed, fails, "limit {limit}, {failures} failures: {:?}", effects.conditions);
        assert_eq!(effects.failed, 0, "an ignored failure is in no counter");
    }
}

#[test]
fn disruptions_are_counted_once_over_pods_and_restarts() {
    let job = annotated(ignoring(), &[("disruption-limit", "1")]);
    let mut api = api(job, vec![disrupted("d-1")]);
    let first = sync(&mut api);
    assert!(
        first.conditions.contains(&"epilogue.dev/DisruptionsIgnored/PodFailurePolicy".to_owned())
    );
    api.pods.remove(&uid("d-1"));
    api.memory = crate::job::Memory::default();
    let replacement = api.pods.keys().next().expect("a replacement").clone();
    api.touch(&replacement, |pod| {
        pod.phase = Phase::Failed;
        let condition =
            crate::view::Condition { kind: "DisruptionTarget".into(), status: "True".into() };
        pod.conditions = vec![condition].into();
    });
    let second = sync(&mut api);
    assert!(second.conditions.contains(&"Failed/DisruptionLimitExceeded".to_owned()));
}

/// A message that named 40,000 of them would be more than the API stores.
#[test]
fn many_disruptions_at_once_are_counted_a_few_at_a_time_and_each_once() {
    let job = annotated(ignoring(), &[("disruption-limit", "9999")]);
    let all = (0..12).map(|number| disrupted(&format!("d-{number}"))).collect();
    let mut api = api(job, all);
    api.settings.max_uncounted_pods = 5;
    let said = |api: &FakeApi| {
        let condition = api.job.true_condition("epilogue.dev/DisruptionsIgnored");
        condition.and_then(|it| it.message.clone()).unwrap_or_default()
    };
    for (round, (count, patches)) in [(5, 5), (10, 5), (12, 2)].into_iter().enumerate() {
        let effects = sync(&mut api);
        let message = said(&api);
        assert!(message.starts_with(&format!("{count} pod failures")), "{round}: {message}");
        assert!(message.split(": ").nth(1).is_some_and(|pods| pods.split(' ').count() <= 5));
        assert_eq!(effects.patches, patches, "{round}");
    }
    assert_eq!(sync(&mut api).patches, 0);
}

#[test]
fn a_pod_that_kept_its_finalizer_is_not_counted_as_a_second_disruption() {
    let job = annotated(ignoring(), &[("disruption-limit", "1")]);
    let mut api = api(job, vec![disrupted("d-1")]);
    sync_with(&mut api, &|step, _| {
        matches!(step, Step::RemoveFinalizer(_)).then(super::builders::outage)
    });
    let again = sync(&mut api);
    assert!(!again.conditions.iter().any(|each| each.starts_with("Failed")), "{again:?}");
}

#[test]
fn backoff_is_the_jobs_own_where_it_says_so() {
    let failed = || vec![pod("f", "Failed").ended(1, 0)];
    let waits =
        |pairs: &[(&str, &str)]| sync(&mut api(annotated(job(), pairs), failed())).requeue_seconds;
    assert_eq!(waits(&[]), Some(10));
    assert_eq!(waits(&[("backoff-base", "3s")]), Some(3));
    assert_eq!(waits(&[("backoff-max", "2s")]), Some(2), "the base gives way to a lower maximum");
    assert_eq!(waits(&[("backoff-base", "20m")]), Some(1200), "the maximum gives way to the base");
    assert_eq!(waits(&[("backoff-base", "0s")]), Some(1), "no Job goes without");
    assert_eq!(waits(&[("backoff-max", "1ms")]), Some(1));
}

#[test]
fn an_option_that_cannot_be_read_is_left_out_and_reported_once() {
    let job = annotated(job(), &[("backoff-base", "soon"), ("disruption-limit", "-1")]);
    let mut api = api(job, vec![]);
    let effects = sync(&mut api);
    assert_eq!(effects.created.len(), 1, "the Job runs on");
    let reported: Vec<_> =
        effects.events().into_iter().filter(|it| it.starts_with("Invalid")).collect();
    assert_eq!(
        reported,
        ["InvalidAnnotation: epilogue.dev/disruption-limit: \"-1\" is left out; give a number \
             from 0, such as 3; epilogue.dev/backoff-base: \"soon\" is left out; give a duration, \
             such as 500ms, 30s or 10m"]
    );
    assert!(sync(&mut api).events().is_empty());
}

#[test]
fn an_option_below_its_floor_is_raised_and_reported_once() {
    let job = annotated(job(), &[("backoff-base", "0s"), ("pending-timeout", "1ms")]);
    let mut api = api(job, vec![]);
    api.settings.min_job_pod_failure_backoff = SignedDuration::from_secs(3);
    let effects = sync(&mut api);
    assert_eq!(
        effects.events().into_iter().filter(|it| it.starts_with("Invalid")).collect::<Vec<_>>(),
        ["InvalidAnnotation: epilogue.dev/backoff-base: \"0s\" is raised to 3s; give at least \
             3s; epilogue.dev/pending-timeout: \"1ms\" is raised to 1s; give at least 1s"]
    );
    assert!(sync(&mut api).events().is_empty());
}

/// Pods that never start, a policy that ignores that, and no time between them.
#[test]
fn a_job_that_asks_for_no_brake_has_one() {
    let created = |floor: SignedDuration| {
        let rule = json!({"action": "Ignore", "onPodConditions": [
            {"type": "epilogue.dev/PendingTimeout", "status": "True"},
            {"type": "DisruptionTarget", "status": "True"}]});
        let job = job().size(50, 50).spec("podFailurePolicy", json!({"rules": [rule]}));
        let options = [("backoff-base", "0s"), ("backoff-max", "10m"), ("pending-timeout", "1ms")];
        let mut api = api(annotated(job, &options), vec![]);
        api.settings.min_job_pod_failure_backoff = floor;
        let mut created = 0;
        for _ in 0..40 {
            created += sync_with(&mut api, &|_, _| None).created.len();
            api.now += SignedDuration::from_millis(500);
        }
        created
    };
    let (braked, free) = (created(SignedDuration::from_secs(1)), created(SignedDuration::ZERO));
    assert!(braked <= 100, "{braked} pods in 20 s");
    assert!(free > 300, "{free} pods: without the floor nothing brakes this Job");
}

#[test]
fn a_pod_that_does_not_start_is_given_up_in_time() {
    let young = pod("young", "Pending").with(|pod| {
        pod["metadata"]["creationTimestamp"] = ago(10).to_string().into();
    });
    let job = || annotated(job().size(2, 2), &[("pending-timeout", "60s")]);
    let mut waiting = api(job(), vec![young.clone(), pod("r", "Running")]);
    // The checks are left out: the number of pods at the end depends on when pods time out.
    let calm = |api: &mut FakeApi| sync_with(api, &|_, _| None);
    assert_eq!(calm(&mut waiting).requeue_seconds, Some(50));
    let mut late = api(job(), vec![young, pod("old", "Pending").on_node()]);
    let effects = calm(&mut late);
    let given_up = effects.trace.steps.iter().filter_map(|(step, _)| match step {
        Step::FailPending(pod) => Some(&*pod.name),
        _ => None,
    });
    assert_eq!(given_up.collect::<Vec<_>>(), ["old"]);
    assert_eq!(effects.events()[0], "PendingTimeout: Pod old did not start in time: NotStarted");
    assert!(late.pods[&uid("old")].has_condition("epilogue.dev/PendingTimeout"));
}

/// A check in which no pod ever starts would wait for the end of such a Job for ever.
#[test]
fn a_plan_of_a_job_whose_pods_do_not_start_in_time_comes_to_rest() {
    let rule = json!({"action": "Ignore", "onPodConditions": [
        {"type": "epilogue.dev/PendingTimeout", "status": "True"}]});
    let policy = json!({"rules": [rule]});
    let job =
        || annotated(job().spec("podFailurePolicy", policy.clone()), &[("pending-timeout", "1s")]);
    for late in [pod("late", "Pending"), pod("late", "Pending").on_node()] {
        check(&api(job(), vec![late]));
    }
}

#[test]
fn a_pod_that_is_given_up_without_a_node_fails_and_one_with_a_node_is_left_to_its_kubelet() {
    let patch = |builder: PodBuilder| {
        crate::job::fail_pending_patch(&builder.build(), super::builders::now())
    };
    let without = patch(pod("a", "Pending"));
    assert_eq!(without["status"]["phase"], "Failed");
    assert_eq!(without["status"]["conditions"][0]["reason"], "Unschedulable");
    assert_eq!(without["metadata"]["resourceVersion"], "5");
    let with = patch(pod("a", "Pending").on_node());
    assert!(with["status"].get("phase").is_none(), "{with}");
}

#[test]
fn a_replacement_stays_away_from_the_nodes_of_its_disrupted_predecessors() {
    let on = |name: &str, node: &str, seconds: i64| {
        disrupted(name).ended(143, seconds).with(|pod| pod["spec"]["nodeName"] = node.into())
    };
    let pods = || vec![on("a", "n1", 50), on("b", "n2", 5), on("c", "n1", 60)];
    let avoided = |pairs: &[(&str, &str)]| {
        let effects = sync(&mut api(annotated(ignoring(), pairs), pods()));
        effects.created[0].avoid.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(avoided(&[("avoid-failed-nodes", "true")]), ["n2", "n1"], "the latest first");
    assert!(avoided(&[]).is_empty());
    let draft = crate::job::PodDraft { avoid: vec!["n1".into()], ..Default::default() };
    let body = crate::job::pod_body(&job().build(), &draft);
    let body: serde_json::Value =
        serde_json::from_str(body.json().expect("must be JSON")).expect("must be JSON");
    let terms = &body["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(terms[0]["preference"]["matchFields"][0]["values"], json!(["n1"]));
}
