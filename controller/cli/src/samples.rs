//! Builds nodes and pods for the tests of `doctor` and `report`.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// The first moment of the test.
pub(crate) fn start() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().expect("must be a time")
}

/// A time in the API's form, this many seconds after the first moment.
pub(crate) fn at(seconds: i64) -> String {
    (start() + SignedDuration::from_secs(seconds)).to_string()
}

/// A running pod of a Job on the node `n`, which cannot start again.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "default", "generation": 1,
            "creationTimestamp": at(-3600),
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j",
                                 "controller": true}],
        },
        "spec": {"nodeName": "n", "restartPolicy": "Never", "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"},
                           {"type": "ContainersReady", "status": "True"}],
            "containerStatuses": [{"name": "main",
                                   "state": {"running": {"startedAt": at(-3590)}}}],
        },
    })
}

/// The node of this name, ready, in its first boot.
pub(crate) fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at(-7200)}],
            "nodeInfo": {"bootID": "boot-1"},
        },
    })
}

/// Deleted at this second with a grace of 30 s.
pub(crate) fn deleted(mut pod: Value, second: i64) -> Value {
    pod["metadata"]["deletionTimestamp"] = at(second + 30).into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    pod
}

/// With this phase.
pub(crate) fn phase(mut pod: Value, phase: &str) -> Value {
    pod["status"]["phase"] = phase.into();
    pod
}

/// With a `DisruptionTarget` of this reason, set at this second.
pub(crate) fn target(mut pod: Value, status: &str, reason: &str, second: i64) -> Value {
    let condition = json!({"type": "DisruptionTarget", "status": status, "reason": reason,
                           "lastTransitionTime": at(second)});
    pod["status"]["conditions"].as_array_mut().expect("must be there").push(condition);
    pod
}

/// With this Ready condition since this second.
pub(crate) fn ready(mut node: Value, status: &str, message: &str, second: i64) -> Value {
    node["status"]["conditions"][0] = json!({"type": "Ready", "status": status,
        "message": message, "lastTransitionTime": at(second)});
    node
}

/// In another boot.
pub(crate) fn boot(mut node: Value, id: &str) -> Value {
    node["status"]["nodeInfo"]["bootID"] = id.into();
    node
}

/// With this announcement.
pub(crate) fn announces(mut node: Value, text: &str) -> Value {
    node["metadata"]["annotations"]["epilogue.dev/state"] = text.into();
    node
}

/// With the out-of-service taint.
pub(crate) fn out_of_service(mut node: Value) -> Value {
    node["spec"]["taints"] = json!([{"key": "node.kubernetes.io/out-of-service"}]);
    node
}
