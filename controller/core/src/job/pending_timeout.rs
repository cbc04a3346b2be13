//! `epilogue.dev/pending-timeout`: pods that do not start are failed, with a condition that a
//! podFailurePolicy can match.
//!
//! A pod without a node is failed at once, for nothing of it can run. A pod on a node is marked
//! and deleted: its kubelet makes it Failed when nothing of it runs. ([API18])

use std::sync::Arc;

use epilogue_common::names::pod_condition::PENDING_TIMEOUT;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::view::{Phase, Pod};

/// Pending pods that have been there for this long, and how long until the next one has.
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

/// What keeps the pod from starting, as its containers say it.
pub(super) fn reason(pod: &Pod) -> &str {
    let waiting = pod.containers.iter().find_map(|container| container.waiting.as_deref());
    match (waiting, &pod.node) {
        (Some(reason), _) => reason,
        (None, None) => "Unschedulable",
        (None, Some(_)) => "NotStarted",
    }
}

/// The strategic-merge patch of `pods/status`. Its resourceVersion makes the API refuse it when
/// the pod has changed meanwhile, as by a node that it got after all.
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
