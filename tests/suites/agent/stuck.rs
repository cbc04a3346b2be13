//! Tests deleted pods that no kubelet terminates, on the real API.

use std::collections::BTreeMap;

use doubles::cri::{Call, CriDouble, Fault, Script};
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use lab::agent::{Kubelet, Setup, Site};
use lab::eventually;
use serde_json::{Value, json};

use super::{SOON, cluster};

const STARTING: &str = "waiting=ContainerCreating";
const RUNNING: &str = "hang";

async fn site(kubelet: Kubelet, arguments: &[&str]) -> (Site, CriDouble) {
    let mode = if kubelet == Kubelet::Lives { "replace" } else { "substitute" };
    let own = ["--stuck-after=1s"].iter().chain(arguments);
    let arguments = own.map(|&argument| argument.to_owned()).collect();
    let setup = Setup { pods: 0, kubelet, runtime: true, mode, arguments, ..Setup::default() };
    let site = Site::start(&cluster(), setup).await;
    let cri = CriDouble::start(site.root());
    (site, cri)
}

/// Creates a pod whose start hangs, or that runs, as the API shows it; returns its UID.
async fn pod(site: &Site, name: &str, script: &str, change: &Value) -> String {
    let uid = site.create(name, script, change).await;
    let is_there = |pod: &Pod| {
        let status = pod.status.as_ref();
        let known = status.is_some_and(|status| status.container_statuses.is_some());
        let phase = status.and_then(|status| status.phase.as_deref());
        known && phase == Some(if script == RUNNING { "Running" } else { "Pending" })
    };
    site.until_pod(name, "taken up by its kubelet", is_there).await;
    uid
}

/// The kubelet stops working, and the pods are deleted.
async fn abandon(site: &Site, pods: &[&str]) {
    site.silence_kubelet().await;
    for name in pods {
        site.delete(name, 1).await;
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn conditions(pod: &Pod) -> BTreeMap<String, PodCondition> {
    let status = pod.status.clone().unwrap_or_default();
    let conditions = status.conditions.into_iter().flatten();
    conditions.map(|condition| (condition.type_.clone(), condition)).collect()
}

/// Checks the phase and the false readiness; the deleter states the cause. ([AP24], [PT1])
fn is_failed_for_its_deleter(pod: &Pod) {
    let status = pod.status.clone().unwrap_or_default();
    assert_eq!((phase(pod), status.reason, status.message), ("Failed", None, None));
    assert!(pod.metadata.deletion_timestamp.is_some());
    let conditions = conditions(pod);
    assert!(!conditions.contains_key("DisruptionTarget"), "{conditions:?}");
    for kind in ["Ready", "ContainersReady"] {
        let condition = &conditions[kind];
        assert_eq!(condition.status, "False", "{condition:?}");
        assert_eq!(condition.reason.as_deref(), Some("PodFailed"), "{condition:?}");
    }
}

fn stops(cri: &CriDouble, uid: &str) -> usize {
    let is_one = |call| matches!(call, Call::StopPodSandbox | Call::StopContainer);
    cri.seen().iter().filter(|seen| seen.uid == uid && is_one(seen.call)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_never_began_becomes_failed_once_its_kubelet_is_dead() {
    // The kubelet is dead; phase alone, and the object stays. ([PT7], [PT1], [PT4])
    let (site, _cri) = site(Kubelet::Dead, &[]).await;
    pod(&site, "never", STARTING, &json!({})).await;
    pod(&site, "tainted", STARTING, &json!({})).await;
    let cause = json!({"type": "DisruptionTarget", "status": "True",
        "reason": "DeletionByTaintManager", "message": "Taint manager: deleting due to NoExecute"});
    site.change_status("tainted", &json!({"conditions": [cause]})).await;
    abandon(&site, &["never", "tainted"]).await;
    let ended = site.until_phase("never", "Failed").await;
    is_failed_for_its_deleter(&ended);
    let event_of = site.event_of("never", "PodFailedByAgent").await;
    let message = event_of.message.unwrap_or_default();
    assert!(message.contains("its kubelet is dead"), "{message}");
    assert!(message.contains("the runtime does not know it"), "{message}");
    // The deleter's own condition stays.
    let tainted = site.until_phase("tainted", "Failed").await;
    let disruption = conditions(&tainted).remove("DisruptionTarget").expect("must be set");
    assert_eq!(disruption.status, "True");
    assert_eq!(disruption.reason.as_deref(), Some("DeletionByTaintManager"));
    site.until_metric("stuck_pods_failed_total", 2.0).await;
    // The kubelet removes the object, which goes with its last finalizer.
    site.revive_kubelet().await;
    let is_removed = |pod: &Pod| pod.metadata.deletion_grace_period_seconds == Some(0);
    site.until_pod("never", "removed by its kubelet", is_removed).await;
    site.release("never").await;
    site.until_gone("never").await;
    let states = site.record.states("never").await;
    let first = states.iter().position(|state| state.phase == "Failed").expect("must be there");
    assert!(states[first..].iter().all(|state| state.phase == "Failed"), "{states:?}");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_in_which_nothing_runs_is_stopped_before_its_pod_becomes_failed() {
    // A hanging start, and one that exited, under a dead kubelet. Another has a volume that a
    // terminal phase would free. ([PT7], [PT11])
    let (site, cri) = site(Kubelet::Dead, &[]).await;
    let pulling = pod(&site, "pulling", STARTING, &json!({})).await;
    let exited = pod(&site, "exited", RUNNING, &json!({})).await;
    let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}});
    let volume = json!({"spec": {"volumes": [claim]}});
    let keeps = pod(&site, "keeps", RUNNING, &volume).await;
    cri.pod(&pulling).start().await;
    for uid in [&exited, &keeps] {
        cri.pod(uid).container("main", Script::Exits(1)).start().await;
    }
    abandon(&site, &["pulling", "exited", "keeps"]).await;
    site.event_of("keeps", "PodStuckTerminating").await;
    for (name, uid, words) in [
        ("pulling", pulling, "it has a sandbox and never had a container"),
        ("exited", exited, "all its containers have exited"),
    ] {
        let ended = site.until_phase(name, "Failed").await;
        assert_eq!(stops(&cri, &uid), 1, "{name}: {:?}", cri.seen());
        is_failed_for_its_deleter(&ended);
        let message = site.event_of(name, "PodFailedByAgent").await.message.unwrap_or_default();
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(phase(&site.pod("keeps").await), "Running");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_is_not_failed_while_a_container_of_it_runs() {
    // A container runs; or only the kubelet may report the end; or the runtime does not answer.
    // ([PT12], [AP4], [PT10])
    let (site, cri) = site(Kubelet::Dead, &[]).await;
    let runs = pod(&site, "runs", RUNNING, &json!({})).await;
    let succeeded = pod(&site, "succeeded", RUNNING, &json!({})).await;
    cri.pod(&runs).container("main", Script::Obedient).start().await;
    cri.pod(&succeeded).container("main", Script::Exits(0)).start().await;
    let unseen = pod(&site, "unseen", RUNNING, &json!({})).await;
    cri.fault(Call::ListPodSandbox, &unseen, Fault::Refuse(tonic::Code::Unavailable));
    abandon(&site, &["runs", "succeeded", "unseen"]).await;
    site.event_of("unseen", "PodStuckTerminating").await;
    for (name, words) in [("runs", "has not exited"), ("succeeded", "exited with 0")] {
        let message = site.event_of(name, "PodStuckTerminating").await.message.unwrap_or_default();
        assert!(message.contains(words), "{message}");
        assert_eq!(phase(&site.pod(name).await), "Running");
    }
    assert_eq!((stops(&cri, &runs), cri.running()), (0, 1));
    // The agent checks it repeatedly, so it finds the end as soon as it comes.
    cri.kill(&runs, "main");
    is_failed_for_its_deleter(&site.until_phase("runs", "Failed").await);
    for name in ["succeeded", "unseen"] {
        assert_eq!(phase(&site.pod(name).await), "Running");
    }
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_of_a_kubelet_that_hangs_becomes_failed_later() {
    // The kubelet hangs. ([PT8])
    let (site, _cri) = site(Kubelet::Hangs, &[]).await;
    pod(&site, "never", STARTING, &json!({})).await;
    abandon(&site, &["never"]).await;
    is_failed_for_its_deleter(&site.until_phase("never", "Failed").await);
    let message = site.event_of("never", "PodFailedByAgent").await.message.unwrap_or_default();
    assert!(message.contains("its kubelet hangs"), "{message}");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_hangs_is_left_to_a_kubelet_that_lives() {
    // The operator has not requested more. ([PT13])
    let (site, cri) = site(Kubelet::Lives, &[]).await;
    let pulling = pod(&site, "pulling", STARTING, &json!({})).await;
    cri.pod(&pulling).start().await;
    abandon(&site, &["pulling"]).await;
    let message = site.event_of("pulling", "PodStuckTerminating").await.message.unwrap_or_default();
    assert!(message.contains("--hanging-starts=fail"), "{message}");
    assert_eq!(phase(&site.pod("pulling").await), "Pending");
    assert_eq!(stops(&cri, &pulling), 0);
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_hangs_is_failed_alongside_its_kubelet_three_times_at_most() {
    // The kubelet reverts the phase each time. ([PT13], [API16])
    let (site, cri) = site(Kubelet::Lives, &["--hanging-starts=fail"]).await;
    let pulling = pod(&site, "pulling", STARTING, &json!({})).await;
    cri.pod(&pulling).start().await;
    let foreign = json!({"metadata": {"finalizers": ["example.com/other"]}});
    pod(&site, "foreign", STARTING, &foreign).await;
    abandon(&site, &["pulling", "foreign"]).await;
    // Its kubelet still has it as Pending, and writes that each time.
    let see = async || {
        let now = site.pod("pulling").await;
        if phase(&now) == "Failed" {
            is_failed_for_its_deleter(&now);
            // The lever makes a kubelet adopt the phase at once.
            let annotations = now.metadata.annotations.unwrap_or_default();
            assert!(annotations.contains_key("epilogue.dev/terminated-at"), "{annotations:?}");
            site.change_status("pulling", &json!({"phase": "Pending"})).await;
        }
        let event_of = site.events("pulling", "PodStuckTerminating").await;
        (site.record.states("pulling").await, event_of)
    };
    let (states, event_of) =
        eventually("it is given up", SOON, see, |(_, event_of)| !event_of.is_empty()).await;
    let message = event_of[0].message.clone().unwrap_or_default();
    assert!(message.contains("was taken back each time"), "{message}");
    let phases = states.iter().map(|state| state.phase == "Failed").collect::<Vec<_>>();
    let writes = phases.windows(2).filter(|two| two[1] && !two[0]).count();
    // The agent does not count a write whose answer is lost.
    assert!(writes >= 3, "{states:?}");
    site.until_metric("stuck_pods_failed_total", 3.0).await;
    assert_eq!((phase(&site.pod("pulling").await), stops(&cri, &pulling)), ("Pending", 1));
    // No Job waits for it.
    let message = site.event_of("foreign", "PodStuckTerminating").await.message.unwrap_or_default();
    assert!(message.contains("no Job waits for it"), "{message}");
    assert_eq!(phase(&site.pod("foreign").await), "Pending");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_only_observes_reports_which_pods_it_would_fail() {
    let (site, cri) = site(Kubelet::Dead, &["--stuck-pods=observe"]).await;
    let pulling = pod(&site, "pulling", STARTING, &json!({})).await;
    let runs = pod(&site, "runs", RUNNING, &json!({})).await;
    pod(&site, "never", STARTING, &json!({})).await;
    cri.pod(&pulling).start().await;
    cri.pod(&runs).container("main", Script::Obedient).start().await;
    abandon(&site, &["pulling", "runs", "never"]).await;
    for name in ["pulling", "never"] {
        let message = site.event_of(name, "PodWouldFail").await.message.unwrap_or_default();
        assert!(message.starts_with("Would be failed"), "{message}");
        assert_eq!(phase(&site.pod(name).await), "Pending");
    }
    assert_eq!(stops(&cri, &pulling), 0);
    // An agent that does not act anyway reports no reason for not acting.
    assert!(site.events("runs", "PodStuckTerminating").await.is_empty());
    assert_eq!(site.metric("stuck_pods_failed_total").await, Some(0.0));
    site.stop().await;
}
