//! Applies `epilogue.dev/pending-timeout`: fails pods that do not start, with a condition that a
//! podFailurePolicy can match.
//!
//! The controller fails a pod without a node at once, because nothing of it can run. It marks and
//! deletes a pod on a node: the kubelet makes it Failed when nothing of it runs. ([API18])

use std::sync::Arc;

use epilogue_common::names::pod_condition::PENDING_TIMEOUT;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::view::{Phase, Pod};

/// Pods that have been pending for this long, and how long until the next one has.
pub(super) fn overdue(
    active: &[Arc<Pod>],
    timeout: SignedDuration,
    now: Timestamp,
) -> (Vec<Arc<Pod>>, Option<SignedDuration>) {
    let pending = active.iter().filter(|pod| pod.phase == Phase::Pending);
    let (mut overdue, mut next) = (Vec::new(), None::<SignedDuration>);
    for pod in pending {
        let Some(created) = pod.created else { continue };
        let left = timeout.saturating_sub(now.duration_since(created));
        if left <= SignedDuration::ZERO {
            overdue.push(Arc::clone(pod));
        } else {
            next = Some(next.map_or(left, |earlier| earlier.min(left)));
        }
    }
    (overdue, next)
}

/// Why the pod does not start, as its containers report it.
pub(super) fn reason(pod: &Pod) -> &str {
    let waiting = pod.containers.iter().find_map(|container| container.waiting.as_deref());
    match (waiting, &pod.node) {
        (Some(reason), _) => reason,
        (None, None) => "Unschedulable",
        (None, Some(_)) => "NotStarted",
    }
}

/// The strategic-merge patch of `pods/status`. With its resourceVersion the API refuses it when the
/// pod has changed meanwhile, for example because it was bound to a node.
pub fn fail_pending_patch(pod: &Pod, now: Timestamp) -> Value {
    let reason = reason(pod);
    let message = format!("the pod did not start within its Job's pending-timeout: {reason}");
    let condition = json!({
        "type": PENDING_TIMEOUT, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    });
    let mut status = json!({"conditions": [condition]});
    if pod.node.is_none() {
        status["phase"] = "Failed".into();
        status["reason"] = "PendingTimeout".into();
        status["message"] = message.into();
    }
    json!({
        "metadata": {"uid": pod.uid.as_str(), "resourceVersion": pod.version.to_string()},
        "status": status,
    })
}
