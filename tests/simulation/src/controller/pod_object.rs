//! Changes the JSON of a pod, as its writers do: kubelet, scheduler, users, garbage collection.

use controller_core::view::Job;
use epilogue_common::names::TRACKING_FINALIZER;
use epilogue_common::names::disruption_reason::TERMINATION_BY_KUBELET;
use epilogue_common::names::pod_condition::{DISRUPTION_TARGET, READY};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// The scheduler binds it.
pub(crate) fn bind(pod: &mut Value, node: &str) {
    pod["spec"]["nodeName"] = node.into();
}

/// The kubelet starts its container.
pub(crate) fn start(pod: &mut Value, now: Timestamp) {
    pod["status"]["phase"] = "Running".into();
    run(pod, restarts(pod), now);
}

/// The kubelet restarts its container in place.
pub(crate) fn restart(pod: &mut Value, now: Timestamp) {
    let restarts = restarts(pod) + 1;
    run(pod, restarts, now);
}

fn run(pod: &mut Value, restarts: i64, now: Timestamp) {
    let state = json!({"running": {"startedAt": now.to_string()}});
    pod["status"]["containerStatuses"] =
        json!([{"name": "main", "restartCount": restarts, "state": state}]);
}

/// How often its container was restarted.
pub(crate) fn restarts(pod: &Value) -> i64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or(0)
}

/// The kubelet reports that the container ended, and the terminal phase.
pub(crate) fn finish(pod: &mut Value, exit_code: i32, now: Timestamp) {
    let restarts = restarts(pod);
    let started = &pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"];
    let terminated = json!({
        "exitCode": exit_code, "startedAt": started, "finishedAt": now.to_string(),
    });
    pod["status"]["phase"] = if exit_code == 0 { "Succeeded" } else { "Failed" }.into();
    pod["status"]["containerStatuses"] =
        json!([{"name": "main", "restartCount": restarts, "state": {"terminated": terminated}}]);
    set_ready(pod, false, now);
}

/// After a boot, the kubelet reports that the container did not survive, as containerd shows it.
pub(crate) fn lose(pod: &mut Value, now: Timestamp) {
    finish(pod, 255, now);
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] = "Unknown".into();
}

/// Fails it without any report of its containers.
pub(crate) fn fail(pod: &mut Value) {
    pod["status"]["phase"] = "Failed".into();
}

/// A kubelet refuses to admit it for a reason of the pod, and replaces all that was reported of it.
pub(crate) fn refuse(pod: &mut Value) {
    pod["status"] = json!({"phase": "Failed", "reason": "SysctlForbidden"});
}

/// Sets the condition `Ready`.
pub(crate) fn set_ready(pod: &mut Value, ready: bool, now: Timestamp) {
    let status = if ready { "True" } else { "False" };
    let ready = json!({"type": READY, "status": status, "lastTransitionTime": now.to_string()});
    set_condition(pod, ready);
}

/// Sets `DisruptionTarget` as an eviction by taint does, unless it stands.
pub(crate) fn disrupt(pod: &mut Value, now: Timestamp) {
    set_target(pod, "DeletionByTaintManager", now);
}

fn set_target(pod: &mut Value, reason: &str, now: Timestamp) {
    let stands = |each: &Value| each["type"] == DISRUPTION_TARGET && each["status"] == "True";
    if !conditions(pod).iter().any(stands) {
        set_condition(
            pod,
            json!({
                "type": DISRUPTION_TARGET,
                "status": "True",
                "reason": reason,
                "lastTransitionTime": now.to_string(),
            }),
        );
    }
}

/// Sets `DisruptionTarget` as a shutdown does, unless it stands.
pub(crate) fn mark(pod: &mut Value, now: Timestamp) {
    set_target(pod, TERMINATION_BY_KUBELET, now);
}

/// Resets `DisruptionTarget`.
pub(crate) fn unmark(pod: &mut Value, now: Timestamp) {
    set_condition(
        pod,
        json!({
            "type": DISRUPTION_TARGET, "status": "False", "reason": null,
            "lastTransitionTime": now.to_string(),
        }),
    );
}

/// Sets or removes the tracking finalizer.
pub(crate) fn track(pod: &mut Value, tracked: bool) {
    pod["metadata"]["finalizers"] = if tracked { json!([TRACKING_FINALIZER]) } else { Value::Null };
}

/// Makes a Job its controller, or removes its controller.
pub(crate) fn set_owner(pod: &mut Value, job: Option<&Job>) {
    pod["metadata"]["ownerReferences"] = match job {
        Some(job) => json!([{
            "apiVersion": "batch/v1", "kind": "Job", "controller": true,
            "name": &*job.key.name, "uid": job.uid.as_str(),
        }]),
        None => Value::Null,
    };
}

/// Sets the label that the selectors of the Jobs read.
pub(crate) fn relabel(pod: &mut Value, app: &str) {
    pod["metadata"]["labels"]["app"] = app.into();
}

/// A deletion is accepted: its grace ends at `now` and this many seconds.
pub(crate) fn delete(pod: &mut Value, grace: i64, now: Timestamp) {
    let at = now + SignedDuration::from_secs(grace);
    pod["metadata"]["deletionTimestamp"] = at.to_string().into();
    pod["metadata"]["deletionGracePeriodSeconds"] = grace.into();
}

/// Merges a strategic merge patch of `pods/status`: conditions by their type, other fields whole.
pub(crate) fn merge_status(pod: &mut Value, patch: &Value) {
    for (field, value) in patch["status"].as_object().into_iter().flatten() {
        if field != "conditions" {
            pod["status"][field] = value.clone();
        }
    }
    for condition in patch["status"]["conditions"].as_array().into_iter().flatten() {
        set_condition(pod, condition.clone());
    }
}

fn conditions(pod: &Value) -> &[Value] {
    pod["status"]["conditions"].as_array().map_or(&[], Vec::as_slice)
}

/// Merges a condition into the one of its type, or adds it.
fn set_condition(pod: &mut Value, condition: Value) {
    if !pod["status"]["conditions"].is_array() {
        pod["status"]["conditions"] = json!([]);
    }
    let Some(all) = pod["status"]["conditions"].as_array_mut() else { return };
    match all.iter_mut().find(|each| each["type"] == condition["type"]) {
        Some(stored) => {
            for (field, value) in condition.as_object().into_iter().flatten() {
                stored[field] = value.clone();
            }
        }
        None => all.push(condition),
    }
}
