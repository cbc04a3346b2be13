//! Builds the patches that terminate a pod, for `pods/status` as
//! `application/strategic-merge-patch+json`. ([AP24])
//!
//! Each patch names only the changed fields: container statuses are atomic lists that belong to the
//! kubelet. ([API5])

use epilogue_common::names::node::{ENDS_AT, TERMINATED_AT};
use epilogue_common::names::pod_condition::{OOM_KILLED, READY};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::pod::{Disruption, PodView, TERMINATION_BY_KUBELET};
use crate::pressure::message::{MESSAGE_START, REASON_EVICTED};

/// Message of a pod that a shutdown terminates. It is the kubelet's own, so that the kubelet's
/// later write changes nothing. ([SD16])
pub const SHUTDOWN_MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Message of a pod that ran on its node's last boot and was lost with it.
pub const LOST_MESSAGE: &str = "Pod was lost when its node went down without notice.";

/// Message of a pod without a sandbox, whose kubelet makes no other and reports no end.
pub const ABANDONED_MESSAGE: &str =
    "Pod lost its sandbox, and its kubelet makes no other for restartPolicy Never.";

/// Value of the deadline lever; a running pod has already run that long. ([API17])
pub const DEADLINE_SECONDS: u32 = 1;

const REASON_TERMINATED: &str = "Terminated";
const REASON_POD_FAILED: &str = "PodFailed";
const CONTAINERS_READY: &str = "ContainersReady";

/// Sets `DisruptionTarget=True`, and nothing else. ([API15])
///
/// The write needs no resourceVersion to hold ([API6]). The resourceVersion protects the meaning: a
/// pod that has terminated since the read keeps its own result without our cause.
pub fn mark(pod: &PodView, at: Timestamp) -> Value {
    condition(pod, at, SHUTDOWN_MESSAGE)
}

/// Sets `DisruptionTarget=True` on a pod whose node went down without notice, and is back. ([W5])
pub fn lost(pod: &PodView, at: Timestamp) -> Value {
    condition(pod, at, LOST_MESSAGE)
}

/// Sets `DisruptionTarget=True` on a pod that node pressure terminates. ([EV13])
pub fn pressed(pod: &PodView, at: Timestamp, message: &str) -> Value {
    condition(pod, at, message)
}

/// Sets `DisruptionTarget=True` on a pod that a shutdown ends, and announces by when its containers
/// end.
pub fn announced(pod: &PodView, at: Timestamp, ends_at: Timestamp) -> Value {
    let mut body = condition(pod, at, SHUTDOWN_MESSAGE);
    body["metadata"]["annotations"] = json!({ENDS_AT: seconds(ends_at)});
    body
}

/// Sets `phase=Failed` on a pod that pressure or its own limit of local storage has terminated. The
/// annotation makes a live kubelet adopt the phase at once. All containers of the pod must have
/// exited. ([EV13], [EV26], [API16])
///
/// The patch has no `DisruptionTarget`: for a shortage it was set before, and a pod's own limit is
/// no disruption.
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

/// Sets `phase=Failed` and all related fields in one write. Nothing of the pod may run any more.
/// Its kubelet is dead, or has not reported by the time of the last writes. ([AP2])
///
/// An existing `DisruptionTarget` stays: a foreign reason is more specific, and a second write of
/// our own would change its time. The resourceVersion ensures that the state is the one that was
/// read. The annotation states that the phase is proven: a live kubelet adopts it at once
/// ([API16]). A controller that replaces the pod need not wait for containers that the status still
/// shows running.
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

/// Sets `phase=Failed` on a pod that has lost its sandbox, and that its live kubelet neither starts
/// again nor reports. The annotation makes that kubelet adopt the phase. ([W21], [API16])
/// `disrupted`: whether the loss is not the pod's own doing.
pub fn abandoned(pod: &PodView, at: Timestamp, disrupted: bool) -> Value {
    let mut conditions = not_ready(at);
    if disrupted && !pod.is_disrupted() {
        conditions.insert(0, disruption(pod, at, ABANDONED_MESSAGE));
    }
    json!({
        "metadata": proven(pod, at),
        "status": {
            "phase": "Failed",
            "reason": REASON_TERMINATED,
            "message": ABANDONED_MESSAGE,
            "observedGeneration": pod.generation,
            "conditions": conditions,
        },
    })
}

/// Sets `phase=Failed` on a pod that another client deleted. Reason, message and `DisruptionTarget`
/// belong to that client and stay unchanged. ([PT1])
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

/// Metadata of the patch for the pod as read, none of whose containers runs any more.
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

/// Sets `spec.activeDeadlineSeconds=1` on the pod itself, not its status. The kubelet then
/// terminates the pod and keeps the object. The version is the one that carries the mark. ([API17])
pub fn deadline(pod: &PodView, version: &str) -> Value {
    json!({
        "metadata": {"uid": pod.uid, "resourceVersion": version},
        "spec": {"activeDeadlineSeconds": DEADLINE_SECONDS},
    })
}

/// Sets `DisruptionTarget=False` on a pod that stays because the shutdown was cancelled, and takes
/// the announced end back. ([AP17])
pub fn clear(pod: &PodView, at: Timestamp) -> Value {
    json!({
        "metadata": {
            "uid": pod.uid,
            "resourceVersion": pod.resource_version,
            "annotations": {ENDS_AT: null},
        },
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

/// Content of the condition `epilogue.dev/OOMKilled`.
#[derive(Clone, Copy, Debug)]
pub struct OomKilled<'a> {
    /// `ContainerLimit` or `NodeOutOfMemory`.
    pub reason: &'static str,
    /// The container, the limit and the source of the report.
    pub message: &'a str,
    /// The `lastTransitionTime`; `None` leaves it unchanged.
    pub since: Option<Timestamp>,
    /// Message and time of the `DisruptionTarget` in the same patch, if any.
    pub disruption: Option<(&'a str, Timestamp)>,
}

/// Sets `epilogue.dev/OOMKilled=True`. The patch has no resourceVersion: it must precede the
/// kubelet's final report, and it is true of any later state of the pod.
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

/// Whether a `DisruptionTarget` is the one that the agent wrote at `at`. ([AP17])
pub fn is_ours(disruption: &Disruption, at: Timestamp) -> bool {
    disruption.stands
        && disruption.reason == TERMINATION_BY_KUBELET
        && (matches!(
            disruption.message.as_str(),
            SHUTDOWN_MESSAGE | LOST_MESSAGE | ABANDONED_MESSAGE
        ) || is_of_pressure(disruption))
        && disruption.since.is_some_and(|since| since.as_second() == at.as_second())
}

/// Whether the pod lives on under a condition that the agent wrote at `at`. A pod with our deadline
/// does not: the kubelet terminates it, now or after the boot.
pub fn stands(pod: &PodView, at: Timestamp) -> bool {
    let ours = pod.disruption.as_ref().is_some_and(|disruption| is_ours(disruption, at));
    ours && !pod.is_terminal() && !pod.is_to_end()
}

/// Whether a `DisruptionTarget` reports a shortage of the node. ([EV13])
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

/// The API's own time format: UTC, whole seconds. ([AP24])
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Sets a condition on the node (`nodes/status`).
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
        // Neither a second time nor a less specific reason. ([AP7])
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
    fn a_pod_that_others_deleted_gets_no_cause_of_the_agent() {
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
        // The agent resets only its own condition. ([AP17])
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
        // A pod's own limit sets no condition. ([EV13], [EV26])
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
        let body = r#"{"metadata":{"uid":"uid-a","resourceVersion":"4711",
            "annotations":{"epilogue.dev/ends-at":null}},"status":{
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
