//! Builds the Event on a pod that pod GC or disruption wrote. Each write has one event, so that a
//! series is not needed.

use controller_core::podgc::{Cause, PodWrite};
use controller_core::view::{Pod, Uid};
use epilogue_common::names::POD_GC_EVENT_SOURCE;
use epilogue_common::outcome::Failure;
use jiff::Timestamp;
use serde_json::{Value, json};

/// The event of a successful write; `None` for the deletion of a pod that was already terminal.
pub(super) fn event(write: &PodWrite, instance: &str, now: Timestamp) -> Option<Value> {
    let (kind, reason, message) = match &write.cause {
        Cause::Ended(evidence) if write.patch.is_some() => {
            ("Warning", "EndedByPodGC", format!("Failed and deleted: {evidence}"))
        }
        Cause::Ended(_) | Cause::Excess(_) => return None,
        Cause::Marked(_) => {
            let message = "DisruptionTarget set: its node shuts down";
            ("Normal", "MarkedDisruptionTarget", message.to_owned())
        }
        Cause::Cleared(stale) => {
            ("Normal", "ResetDisruptionTarget", format!("DisruptionTarget reset: {stale}"))
        }
    };
    Some(about(of(write), (kind, reason), &message, instance, now))
}

/// The event of a write that a pod GC that only observes did not carry out.
pub(super) fn would_event(write: &PodWrite, instance: &str, now: Timestamp) -> Value {
    let (reason, message) = match &write.cause {
        Cause::Ended(evidence) if write.patch.is_some() => {
            ("PodWouldFail", format!("Would be failed and deleted: {evidence}"))
        }
        Cause::Ended(evidence) => ("PodWouldBeDeleted", format!("Would be deleted: {evidence}")),
        Cause::Excess(excess) => ("PodWouldBeDeleted", format!("Would be deleted: {excess}")),
        Cause::Marked(_) => {
            let message = "DisruptionTarget would be set: its node shuts down";
            ("DisruptionTargetWouldBeSet", message.to_owned())
        }
        Cause::Cleared(stale) => {
            ("DisruptionTargetWouldBeReset", format!("DisruptionTarget would be reset: {stale}"))
        }
    };
    let message = format!("{message} (--pod-gc=observe)");
    about(of(write), ("Normal", reason), &message, instance, now)
}

/// The event of a check that panicked.
pub(super) fn internal_error(
    pod: &Pod,
    failure: &Failure,
    instance: &str,
    now: Timestamp,
) -> Value {
    let message = format!("The check of this pod is repeated: {failure}");
    let pod = (&*pod.namespace, &*pod.name, &pod.uid);
    about(pod, ("Warning", "InternalError"), &message, instance, now)
}

fn of(write: &PodWrite) -> (&str, &str, &Uid) {
    (&write.namespace, &write.name, &write.uid)
}

fn about(
    (namespace, name, uid): (&str, &str, &Uid),
    (kind, reason): (&str, &str),
    message: &str,
    instance: &str,
    now: Timestamp,
) -> Value {
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{name}.{:x}", now.as_nanosecond()),
            "namespace": namespace,
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": namespace,
            "name": name,
            "uid": uid.as_str(),
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "source": {"component": POD_GC_EVENT_SOURCE},
        "reportingComponent": POD_GC_EVENT_SOURCE,
        "reportingInstance": instance,
        "count": 1,
        "firstTimestamp": time,
        "lastTimestamp": time,
    })
}
