//! Builds the JSON for `pods/status`. It uses strategic merge patches, never server-side apply,
//! which fails for pods whose env or ports name a thing twice ([GC3]). They name the version that
//! was read, so that they never overwrite an end that came in between. ([API6])

use epilogue_common::names::disruption_reason::{DELETION_BY_POD_GC, TERMINATION_BY_KUBELET};
use epilogue_common::names::pod_condition::{CONTAINERS_READY, DISRUPTION_TARGET, ENDED, READY};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::case::PodWrite;
use super::evidence::Evidence;
use crate::view::{Pod, Tristate};

/// The message of a pod that a shutdown terminates. It is the kubelet's own, so that its later
/// write of the same changes nothing. ([SD16])
const SHUTDOWN_MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// What happens to `DisruptionTarget` when a pod is failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetRule {
    /// It is set; an existing one gets the new reason. ([GC8])
    Set,
    /// It is set unless there is one: another writer's reason says more. ([AP7])
    Keep,
    /// It is left alone.
    Leave,
}

/// The patch that makes a pod Failed and not ready, with the reason.
///
/// DIVERGES(upstream): a pod that is failed ceases to be ready in the same write; upstream leaves
/// it Failed and ready. ([GC4], [API5])
pub(super) fn failed(pod: &Pod, evidence: &Evidence, rule: TargetRule, now: Timestamp) -> Value {
    let mut conditions = Vec::new();
    if rule == TargetRule::Set || rule == TargetRule::Keep && !pod.is_target() {
        let since = pod.gc.target().filter(|target| target.stands);
        let since = since.and_then(|target| target.since).unwrap_or(now);
        let message = format!("PodGC: {evidence}");
        conditions.push(condition(pod, DISRUPTION_TARGET, DELETION_BY_POD_GC, &message, since));
    }
    for kind in [READY, CONTAINERS_READY] {
        if pod.condition(kind).is_some_and(|state| state != Tristate::False) {
            conditions.push(json!({
                "type": kind,
                "status": "False",
                "reason": "PodFailed",
                "lastTransitionTime": seconds(now),
            }));
        }
    }
    conditions.push(condition(pod, ENDED, evidence.reason(), &evidence.to_string(), now));
    json!({
        "metadata": identity(pod),
        "status": {
            "phase": "Failed",
            "observedGeneration": pod.gc.generation,
            "conditions": conditions,
        },
    })
}

/// The patch that sets `DisruptionTarget` as the kubelet of a node that shuts down would. ([SD16])
pub(crate) fn marked(pod: &Pod, now: Timestamp) -> Value {
    let target = condition(pod, DISRUPTION_TARGET, TERMINATION_BY_KUBELET, SHUTDOWN_MESSAGE, now);
    json!({"metadata": identity(pod), "status": {"conditions": [target]}})
}

/// The patch that resets `DisruptionTarget`. ([ST3])
pub(crate) fn cleared(pod: &Pod, now: Timestamp) -> Value {
    json!({
        "metadata": identity(pod),
        "status": {"conditions": [{
            "type": DISRUPTION_TARGET,
            "status": "False",
            "reason": null,
            "message": null,
            "lastTransitionTime": seconds(now),
            "observedGeneration": pod.gc.generation,
        }]},
    })
}

fn condition(pod: &Pod, kind: &str, reason: &str, message: &str, since: Timestamp) -> Value {
    json!({
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": seconds(since),
        "observedGeneration": pod.gc.generation,
    })
}

fn identity(pod: &Pod) -> Value {
    json!({"uid": pod.uid.as_str(), "resourceVersion": pod.version.to_string()})
}

/// The options of a deletion without grace.
///
/// DIVERGES(upstream): the deletion has the pod's UID as a precondition. Without it, a new pod of
/// the same name would be deleted. ([GC2])
pub fn delete_options(write: &PodWrite) -> Value {
    json!({"gracePeriodSeconds": 0, "preconditions": {"uid": write.uid.as_str()}})
}

/// Formats a time as the API does.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
