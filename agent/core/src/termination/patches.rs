//! The bodies of the patches that end a pod, for `pods/status` as
//! `application/strategic-merge-patch+json`. ([AP24])
//!
//! They name only what they change: container statuses are atomic lists and the kubelet's. ([API5])

use epilogue_common::names::node::TERMINATED_AT;
use epilogue_common::names::pod_condition::{OOM_KILLED, READY};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::pod::{Disruption, PodView, TERMINATION_BY_KUBELET};
use crate::pressure::message::{MESSAGE_START, REASON_EVICTED};

/// The message of a pod that a shutdown ends: the kubelet's own, so that its later write of the
/// same changes nothing. ([SD16])
pub const SHUTDOWN_MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// The message of a pod that ran on its node's last boot and was not heard of again.
pub const LOST_MESSAGE: &str = "Pod was lost when its node went down without notice.";

/// What the deadline lever sets: a pod that runs has run for so long. ([API17])
pub const DEADLINE_SECONDS: u32 = 1;

const REASON_TERMINATED: &str = "Terminated";
const REASON_POD_FAILED: &str = "PodFailed";
const CONTAINERS_READY: &str = "ContainersReady";

/// `DisruptionTarget=True`, and nothing else. ([API15])
///
/// The resourceVersion is not needed for the write to hold ([API6]), but for what it says: a pod
/// that has ended by itself since it was read keeps its own result without our cause.
pub fn mark(pod: &PodView, at: Timestamp) -> Value {
    condition(pod, at, SHUTDOWN_MESSAGE)
}

/// `DisruptionTarget=True` for a pod whose node has gone down without notice, and is back. ([W5])
pub fn lost(pod: &PodView, at: Timestamp) -> Value {
    condition(pod, at, LOST_MESSAGE)
}

/// `DisruptionTarget=True` for a pod that the node's pressure ends. ([EV13])
pub fn pressed(pod: &PodView, at: Timestamp, message: &str) -> Value {
    condition(pod, at, message)
}

/// `phase=Failed` for a pod that pressure or its own limit of local storage has ended, with the
/// annotation that makes a live kubelet take it over at once. Only for a pod all of whose
/// containers have exited. ([EV13], [EV26], [API16])
///
/// Of a condition it says nothing: that of a shortage was set before the end, and a limit of the
/// pod's own is no disruption.
pub fn evicted(pod: &PodView, at: Timestamp, message: &str) -> Value {
    json!({
        "metadata": proven(pod, at),
        "status": {
            "phase": "Failed",
            "reason": REASON_EVICTED,
            "message": message,
            "observedGeneration": pod.generation,
            "conditions": not_ready(at),
        },
    })
}

fn condition(pod: &PodView, at: Timestamp, message: &str) -> Value {
    json!({
        "metadata": {"uid": pod.uid, "resourceVersion": pod.resource_version},
        "status": {"conditions": [disruption(pod, at, message)]},
    })
}

/// `phase=Failed` with all that goes with it, in one write. Only for a pod of which nothing runs
/// any more under a kubelet that is dead. ([AP2])
///
/// A `DisruptionTarget` that stands is left as it is: a foreign reason says more, and of our own
/// a second write would move the time. The resourceVersion holds the read state to be true. The
/// annotation says that it is proven: a kubelet that lives takes the phase over at once ([API16]),
/// and whoever replaces the pod need not wait for containers that the status still shows running.
pub fn failed(pod: &PodView, at: Timestamp) -> Value {
    let mut conditions = not_ready(at);
    if !pod.is_disrupted() {
        conditions.insert(0, disruption(pod, at, SHUTDOWN_MESSAGE));
    }
    json!({
        "metadata": proven(pod, at),
        "status": {
            "phase": "Failed",
            "reason": REASON_TERMINATED,
            "message": SHUTDOWN_MESSAGE,
            "observedGeneration": pod.generation,
            "conditions": conditions,
        },
    })
}

/// `phase=Failed` of a pod that somebody else deleted: reason, message and `DisruptionTarget` are
/// the deleter's to say, and stay as they are. ([PT1])
pub fn failed_for_deleter(pod: &PodView, at: Timestamp) -> Value {
    json!({
        "metadata": proven(pod, at),
        "status": {
            "phase": "Failed",
            "observedGeneration": pod.generation,
            "conditions": not_ready(at),
        },
    })
}

/// For the pod that was read, none of whose containers runs any more.
fn proven(pod: &PodView, at: Timestamp) -> Value {
    json!({
        "uid": pod.uid,
        "resourceVersion": pod.resource_version,
        "annotations": {TERMINATED_AT: seconds(at)},
    })
}

/// A terminal pod is not ready; Services and `Job.status.ready` rely on it. ([API5], [SD21])
fn not_ready(at: Timestamp) -> Vec<Value> {
    let condition = |kind: &str| {
        json!({
            "type": kind,
            "status": "False",
            "reason": REASON_POD_FAILED,
            "lastTransitionTime": seconds(at),
        })
    };
    vec![condition(READY), condition(CONTAINERS_READY)]
}

/// `spec.activeDeadlineSeconds=1`, for the pod itself, not its status: the kubelet ends the pod
/// and keeps the object. ([API17])
pub fn deadline(pod: &PodView) -> Value {
    json!({"metadata": {"uid": pod.uid}, "spec": {"activeDeadlineSeconds": DEADLINE_SECONDS}})
}

/// `DisruptionTarget=False`, for a pod that lives on because the shutdown was cancelled. ([AP17])
pub fn clear(pod: &PodView, at: Timestamp) -> Value {
    json!({
        "metadata": {"uid": pod.uid, "resourceVersion": pod.resource_version},
        "status": {"conditions": [{
            "type": Disruption::TYPE,
            "status": "False",
            "reason": null,
            "message": null,
            "lastTransitionTime": seconds(at),
            "observedGeneration": pod.generation,
        }]},
    })
}

/// What `epilogue.dev/OOMKilled` is to say.
#[derive(Clone, Copy, Debug)]
pub struct OomKilled<'a> {
    /// `ContainerLimit` or `NodeOutOfMemory`.
    pub reason: &'static str,
    /// Which container, which limit, who says so.
    pub message: &'a str,
    /// The `lastTransitionTime`; none leaves it as it is.
    pub since: Option<Timestamp>,
    /// Message and time of the `DisruptionTarget` that goes with it, if one does.
    pub disruption: Option<(&'a str, Timestamp)>,
}

/// `epilogue.dev/OOMKilled=True`. Without a resourceVersion: it has to be there before the
/// kubelet's report of the pod's end, and is as true of every other state of the pod.
pub fn oom_killed(pod: &PodView, killed_by: &OomKilled<'_>) -> Value {
    let mut killed = json!({
        "type": OOM_KILLED,
        "status": "True",
        "reason": killed_by.reason,
        "message": killed_by.message,
        "observedGeneration": pod.generation,
    });
    if let Some(since) = killed_by.since {
        killed["lastTransitionTime"] = json!(seconds(since));
    }
    let mut conditions = vec![killed];
    conditions.extend(killed_by.disruption.map(|(message, at)| disruption(pod, at, message)));
    json!({"metadata": {"uid": pod.uid}, "status": {"conditions": conditions}})
}

/// Whether a pod's `DisruptionTarget` is the one that was written at `at`. ([AP17])
pub fn is_ours(disruption: &Disruption, at: Timestamp) -> bool {
    disruption.stands
        && disruption.reason == TERMINATION_BY_KUBELET
        && (matches!(disruption.message.as_str(), SHUTDOWN_MESSAGE | LOST_MESSAGE)
            || is_of_pressure(disruption))
        && disruption.since.is_some_and(|since| since.as_second() == at.as_second())
}

/// Whether a `DisruptionTarget` says that the node was short of something. ([EV13])
pub fn is_of_pressure(disruption: &Disruption) -> bool {
    disruption.message.starts_with(MESSAGE_START)
}

fn disruption(pod: &PodView, at: Timestamp, message: &str) -> Value {
    json!({
        "type": Disruption::TYPE,
        "status": "True",
        "reason": TERMINATION_BY_KUBELET,
        "message": message,
        "lastTransitionTime": seconds(at),
        "observedGeneration": pod.generation,
    })
}

/// The API's own form of time: UTC, whole seconds. ([AP24])
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A condition of our own on the node. (`nodes/status`)
pub fn node_condition(
    kind: &str,
    stands: bool,
    reason: &str,
    message: &str,
    since: Timestamp,
) -> Value {
    json!({"status": {"conditions": [{
        "type": kind,
        "status": if stands { "True" } else { "False" },
        "reason": reason,
        "message": message,
        "lastTransitionTime": seconds(since),
        "lastHeartbeatTime": seconds(since),
    }]}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;

    fn at() -> Timestamp {
        "2026-11-21T14:05:06.987654Z".parse().expect("must be a time")
    }

    fn view() -> PodView {
        pod("a").with(|pod| {
            pod.generation = 3;
            pod.resource_version = "4711".into();
        })
    }

    fn expected(text: &str) -> Value {
        serde_json::from_str(text).expect("must be JSON")
    }

    const MARK: &str = r#"{"type":"DisruptionTarget","status":"True",
        "reason":"TerminationByKubelet",
        "message":"Pod was terminated in response to imminent node shutdown.",
        "lastTransitionTime":"2026-11-21T14:05:06Z","observedGeneration":3}"#;

    const NOT_READY: &str = r#"{"type":"Ready","status":"False","reason":"PodFailed",
        "lastTransitionTime":"2026-11-21T14:05:06Z"},
        {"type":"ContainersReady","status":"False","reason":"PodFailed",
        "lastTransitionTime":"2026-11-21T14:05:06Z"}"#;

    fn failed_with(conditions: &str) -> Value {
        expected(&format!(
            r#"{{"metadata":{{"uid":"uid-a","resourceVersion":"4711",
            "annotations":{{"{TERMINATED_AT}":"2026-11-21T14:05:06Z"}}}},"status":{{
            "phase":"Failed","reason":"Terminated",
            "message":"Pod was terminated in response to imminent node shutdown.",
            "observedGeneration":3,"conditions":[{conditions}]}}}}"#
        ))
    }

    #[test]
    fn a_mark_is_the_condition_alone_for_the_object_that_was_read() {
        // The condition alone, with UID and resourceVersion. ([AP24])
        let body = format!(
            r#"{{"metadata":{{"uid":"uid-a","resourceVersion":"4711"}},
            "status":{{"conditions":[{MARK}]}}}}"#
        );
        assert_eq!(mark(&view(), at()), expected(&body));
    }

    #[test]
    fn failed_brings_condition_phase_and_not_ready_in_one_patch() {
        // Condition, phase and Ready=False in one patch. ([AP2], [API5])
        assert_eq!(failed(&view(), at()), failed_with(&format!("{MARK},{NOT_READY}")));
    }

    #[test]
    fn failed_leaves_a_mark_that_stands() {
        // No second time, no coarser reason. ([AP7])
        for reason in ["TerminationByKubelet", "DeletionByTaintManager"] {
            let marked = view().disrupted(reason);
            assert_eq!(failed(&marked, at()), failed_with(NOT_READY), "{reason}");
        }
        let revoked = view().disrupted("TerminationByKubelet").with(|pod| {
            pod.disruption = pod.disruption.take().map(|old| Disruption { stands: false, ..old });
        });
        assert_eq!(failed(&revoked, at()), failed_with(&format!("{MARK},{NOT_READY}")));
    }

    #[test]
    fn a_pod_that_others_deleted_gets_no_cause_of_ours() {
        // The deleter states the cause. ([PT1])
        for pod in [view(), view().disrupted("DeletionByTaintManager")] {
            let body = failed_for_deleter(&pod, at());
            assert_eq!(body["metadata"]["annotations"][TERMINATED_AT], "2026-11-21T14:05:06Z");
            let body = body.to_string();
            assert!(!body.contains("DisruptionTarget"), "{body}");
            assert!(!body.contains("Terminated"), "{body}");
            assert!(body.contains(r#""phase":"Failed""#) && body.contains("4711"), "{body}");
        }
    }

    #[test]
    fn ours_is_known_by_reason_message_and_time() {
        // Only a condition of ours is taken back. ([AP17])
        let ours = Disruption {
            stands: true,
            reason: TERMINATION_BY_KUBELET.into(),
            message: SHUTDOWN_MESSAGE.into(),
            since: "2026-11-21T14:05:06Z".parse().ok(),
        };
        assert!(is_ours(&ours, at()));
        let later = Disruption { since: "2026-11-21T14:05:07Z".parse().ok(), ..ours.clone() };
        let evicted = Disruption { message: "The node was low".into(), ..ours.clone() };
        let revoked = Disruption { stands: false, ..ours };
        for other in [later, evicted, revoked] {
            assert!(!is_ours(&other, at()), "{other:?}");
        }
    }

    #[test]
    fn a_mark_of_pressure_is_ours_too_and_evicted_says_nothing_of_conditions() {
        // An own limit sets no condition. ([EV13], [EV26])
        let message = "The node was low on resource: memory. ";
        let body = pressed(&view(), at(), message);
        let condition = &body["status"]["conditions"][0];
        assert_eq!(condition["reason"], "TerminationByKubelet");
        assert_eq!(condition["message"], message);
        let marked = Disruption {
            stands: true,
            reason: TERMINATION_BY_KUBELET.into(),
            message: message.into(),
            since: "2026-11-21T14:05:06Z".parse().ok(),
        };
        assert!(is_ours(&marked, at()) && is_of_pressure(&marked));
        let body = format!(
            r#"{{"metadata":{{"uid":"uid-a","resourceVersion":"4711",
            "annotations":{{"{TERMINATED_AT}":"2026-11-21T14:05:06Z"}}}},
            "status":{{"phase":"Failed","reason":"Evicted","message":"why. ",
            "observedGeneration":3,"conditions":[{NOT_READY}]}}}}"#
        );
        assert_eq!(evicted(&view(), at(), "why. "), expected(&body));
    }

    #[test]
    fn clear_nulls_reason_and_message() {
        // `null` removes a field, an absent field stays. ([AP24])
        let body = r#"{"metadata":{"uid":"uid-a","resourceVersion":"4711"},"status":{
            "conditions":[{"type":"DisruptionTarget","status":"False","reason":null,
            "message":null,"lastTransitionTime":"2026-11-21T14:05:06Z","observedGeneration":3}]}}"#;
        assert_eq!(clear(&view(), at()), expected(body));
    }

    #[test]
    fn why_a_container_died_is_said_whatever_the_version() {
        let killed_by = OomKilled {
            reason: "ContainerLimit",
            message: "why",
            since: Some(at()),
            disruption: None,
        };
        let killed = r#"{"type":"epilogue.dev/OOMKilled","status":"True","reason":"ContainerLimit",
            "message":"why","observedGeneration":3,"lastTransitionTime":"2026-11-21T14:05:06Z"}"#;
        let body = |conditions: &str| {
            expected(&format!(
                r#"{{"metadata":{{"uid":"uid-a"}},"status":{{"conditions":[{conditions}]}}}}"#
            ))
        };
        assert_eq!(oom_killed(&view(), &killed_by), body(killed));
        let disrupted = OomKilled {
            disruption: Some(("node", at())),
            since: None,
            reason: "NodeOutOfMemory",
            ..killed_by
        };
        let both = r#"{"type":"epilogue.dev/OOMKilled","status":"True","reason":"NodeOutOfMemory",
            "message":"why","observedGeneration":3},
            {"type":"DisruptionTarget","status":"True","reason":"TerminationByKubelet",
            "message":"node","lastTransitionTime":"2026-11-21T14:05:06Z","observedGeneration":3}"#;
        assert_eq!(oom_killed(&view(), &disrupted), body(both));
    }
}
