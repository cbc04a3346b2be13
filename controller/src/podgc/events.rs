//! The Event on a pod that was ended: by whom, and why that was safe. One per pod, and a pod is
//! ended once, so there is nothing to count up.

use controller_core::podgc::{Cause, Order};
use epilogue_common::names::POD_GC_EVENT_SOURCE;
use jiff::Timestamp;
use serde_json::{Value, json};

/// What there is to tell of an order that was carried out; pods that had ended before go in
/// silence.
pub(super) fn event(order: &Order, instance: &str, now: Timestamp) -> Option<Value> {
    let (kind, reason, message) = match &order.cause {
        Cause::Ended(evidence) if order.patch.is_some() => {
            ("Warning", "EndedByPodGC", format!("Ended as Failed and deleted: {evidence}"))
        }
        Cause::Ended(_) | Cause::Surplus(_) => return None,
        Cause::Marked(_) => {
            let message = "Marked as a disruption target: its node shuts down";
            ("Normal", "MarkedDisruptionTarget", message.to_owned())
        }
        Cause::Cleared(stale) => {
            ("Normal", "ResetDisruptionTarget", format!("Reset its DisruptionTarget: {stale}"))
        }
    };
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    Some(json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{}.{:x}", order.name, now.as_nanosecond()),
            "namespace": &*order.namespace,
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": &*order.namespace,
            "name": &*order.name,
            "uid": order.uid.as_str(),
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
    }))
}
