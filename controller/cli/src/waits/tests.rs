//! Tests the causes of waits on objects and events as the API gives them.

use std::sync::Arc;

use controller_core::view::{Interner, WireJob, WirePod};
use serde::Deserialize as _;
use serde_json::json;

use super::*;
use crate::samples::{at, start};

fn job(status: &Value) -> Job {
    let job = json!({
        "metadata": {"namespace": "ns", "name": "j", "uid": "u"},
        "spec": {"parallelism": 3, "completions": 3, "template": {},
                 "selector": {"matchLabels": {"job": "j"}}},
        "status": status,
    });
    WireJob::parse(job).and_then(WireJob::view).expect("must be a Job")
}

fn event(message: &Value, second: i64) -> Value {
    json!({
        "kind": "Event", "type": "Warning", "reason": "FailedCreate", "message": message,
        "involvedObject": {"kind": "Job", "uid": "u"},
        "firstTimestamp": at(second - 60), "lastTimestamp": at(second), "count": 4,
    })
}

fn refused_with(message: &str) -> Obstacle {
    let found = refusal(&job(&json!({"active": 1})), &[event(&message.into(), -5)], start());
    found.expect("it was refused").obstacle
}

#[test]
fn a_refusal_names_the_quota_with_its_figures_or_who_refused() {
    let quota = refused_with(
        "Error creating: pods \"j-x\" is forbidden: exceeded quota: few, requested: pods=1, \
         used: pods=1, limited: pods=1",
    );
    assert_eq!(quota.code, Code::QuotaExceeded);
    let expected = "the quota few to allow its pods: requested: pods=1, used: pods=1, limited: \
                    pods=1";
    assert_eq!(quota.needs, expected);
    let words = "pods \"j-x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied \
                 request: no root";
    let policy = refused_with(&format!("Error creating: {words}"));
    assert_eq!(policy.code, Code::PodsRefused);
    assert_eq!(policy.needs, format!("its pods to be accepted: {words}"));
    let long = refused_with(&format!("Error creating: \u{1b}[31m{}", "x".repeat(9_000)));
    assert!(long.needs.len() < 500 && !long.needs.contains('\u{1b}'), "{long:?}");
}

#[test]
fn only_a_recent_refusal_of_a_job_that_lacks_pods_counts() {
    let quota: Value = "exceeded quota: few, requested: pods=1".into();
    let found = |status: Value, second| {
        refusal(&job(&status), &[event(&quota, second)], start()).map(|it| (it.first, it.last))
    };
    let times = |second| (start() + SignedDuration::from_secs(second - 60), second);
    let (first, last) = times(-5);
    let last = start() + SignedDuration::from_secs(last);
    assert_eq!(found(json!({"active": 1}), -5), Some((first, last)));
    assert_eq!(found(json!({}), -5), Some((first, last)), "also without any pod");
    assert_eq!(found(json!({"active": 3}), -5), None);
    assert_eq!(found(json!({"active": 1, "succeeded": 2}), -5), None);
    assert_eq!(found(json!({"active": 1}), -3600), None);
    let silent = refusal(&job(&json!({})), &[event(&json!(null), -5)], start());
    assert_eq!(silent.map(|it| it.obstacle.code), Some(Code::PodsRefused));
    let mut other = event(&quota, -5);
    other["involvedObject"]["uid"] = "former".into();
    assert_eq!(refusal(&job(&json!({})), &[other], start()), None);
}

fn pod(status: &Value, node: Option<&str>) -> (Arc<Pod>, Value) {
    let object = json!({
        "metadata": {"namespace": "ns", "name": "p", "uid": "p"},
        "spec": {"nodeName": node, "containers": [{"name": "main"}]}, "status": status,
    });
    let wire = WirePod::deserialize(object.clone()).expect("must be a pod");
    (Arc::new(wire.view(&mut Interner::default())), object)
}

fn waiting(reason: &str, message: &str) -> Value {
    json!({"phase": "Pending", "containerStatuses": [{"name": "main",
           "state": {"waiting": {"reason": reason, "message": message}}}]})
}

#[test]
fn a_pod_names_what_it_lacks_in_the_words_of_scheduler_and_kubelet() {
    let unscheduled = json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient cpu."}]});
    let mut restarts = waiting("CrashLoopBackOff", "back-off 5m0s");
    restarts["phase"] = "Running".into();
    let table = [
        (
            (unscheduled, None),
            Code::PodUnscheduled,
            "to be scheduled: 0/3 nodes are available: 3 Insufficient cpu.",
        ),
        ((json!({"phase": "Pending"}), None), Code::PodUnscheduled, "to be scheduled"),
        (
            (waiting("ImagePullBackOff", "Back-off pulling image \"x\""), Some("n")),
            Code::ImageNotPulled,
            "to get its image; it reports ImagePullBackOff: Back-off pulling image \"x\"",
        ),
        (
            (waiting("CreateContainerConfigError", "configmap \"c\" not found"), Some("n")),
            Code::VolumeOrConfigMissing,
            "to get its configuration; it reports CreateContainerConfigError: configmap \"c\" not \
             found",
        ),
        (
            (waiting("CreateContainerError", ""), Some("n")),
            Code::PodCannotStart,
            "to start; it reports CreateContainerError",
        ),
        (
            (restarts, Some("n")),
            Code::PodCannotStart,
            "to start; it reports CrashLoopBackOff: back-off 5m0s",
        ),
    ];
    for ((status, node), code, needs) in table {
        let (view, object) = pod(&status, node);
        let expected = Obstacle { code, needs: needs.to_owned() };
        assert_eq!(of_pod(&view, &object, [], start()), Some(expected));
    }
}

#[test]
fn a_volume_is_known_by_the_event_and_a_pod_that_starts_lacks_nothing() {
    let (view, object) = pod(&waiting("ContainerCreating", ""), Some("n"));
    assert_eq!(of_pod(&view, &object, [], start()), None);
    let event = json!({
        "kind": "Event", "reason": "FailedMount", "lastTimestamp": at(0),
        "message": "MountVolume.SetUp failed for volume \"v\" : secret \"s\" not found",
        "involvedObject": {"kind": "Pod", "uid": "p"},
    });
    let later = start() + SignedDuration::from_mins(11);
    assert_eq!(of_pod(&view, &object, [&event], later), None, "it may be mended");
    let found = of_pod(&view, &object, [&event], start()).expect("a volume is missing");
    assert_eq!(found.code, Code::VolumeOrConfigMissing);
    assert!(found.needs.starts_with("to get its volumes: MountVolume.SetUp failed"), "{found:?}");
}

#[test]
fn finalizers_of_others_are_named() {
    let own = "batch.kubernetes.io/job-tracking";
    let object = json!({"metadata": {"finalizers": [own, "example.com/a", "example.com/b"]}});
    assert_eq!(other_finalizers(&object, own).as_deref(), Some("example.com/a, example.com/b"));
    assert_eq!(other_finalizers(&json!({"metadata": {"finalizers": [own]}}), own), None);
    assert_eq!(other_finalizers(&json!({}), own), None);
}
