//! Merges a strategic merge patch into a pod as the API server does, and checks what the admission
//! policy lets an agent write. ([API2], [API5], [API11])

use epilogue_common::names::node::{ENDS_AT, TERMINATED_AT};
use epilogue_common::names::pod_condition::OOM_KILLED;
use serde_json::{Map, Value};

/// Merges `patch` into `target`: objects by field, null removes, `conditions` by their type;
/// everything else is replaced.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (field, value) in patch {
        let target = target.as_object_mut().expect("a merged target must be an object");
        if value.is_null() {
            target.remove(field);
        } else if field == "conditions" {
            merge_conditions(target.entry(field.clone()).or_insert(Value::Array(vec![])), value);
        } else {
            merge(target.entry(field.clone()).or_insert(Value::Null), value);
        }
    }
}

fn merge_conditions(target: &mut Value, patch: &Value) {
    let (Value::Array(target), Value::Array(patch)) = (target, patch) else { return };
    for condition in patch {
        let known = target.iter_mut().find(|known| known["type"] == condition["type"]);
        if let Some(known) = known {
            merge(known, condition);
        } else {
            let mut fresh = Value::Null;
            merge(&mut fresh, condition);
            target.push(fresh);
        }
    }
}

/// What a status patch of the agent contains although the policy forbids it. ([API11])
pub(crate) fn forbidden(body: &Value) -> Option<String> {
    let keys = |value: &Value| -> Vec<String> {
        value.as_object().map(|object| object.keys().cloned().collect()).unwrap_or_default()
    };
    let outside = |value: &Value, allowed: &[&str]| {
        keys(value).into_iter().find(|key| !allowed.contains(&key.as_str()))
    };
    if let Some(key) = outside(body, &["metadata", "status"]) {
        return Some(key);
    }
    if let Some(key) = outside(&body["metadata"], &["uid", "resourceVersion", "annotations"]) {
        return Some(format!("metadata.{key}"));
    }
    if let Some(key) = outside(&body["metadata"]["annotations"], &[TERMINATED_AT, ENDS_AT]) {
        return Some(format!("annotation {key}"));
    }
    let fields = ["phase", "reason", "message", "observedGeneration", "conditions"];
    if let Some(key) = outside(&body["status"], &fields) {
        return Some(format!("status.{key}"));
    }
    if body["status"].get("phase").is_some_and(|phase| phase != "Failed") {
        return Some(format!("phase {}", body["status"]["phase"]));
    }
    let conditions = body["status"]["conditions"].as_array().cloned().unwrap_or_default();
    // An announced end comes with its cause, and goes with it.
    let announced = body["metadata"]["annotations"].get(ENDS_AT);
    let status = announced.map(|at| if at.is_null() { "False" } else { "True" });
    let is_cause = |condition: &Value| {
        condition["type"] == "DisruptionTarget"
            && Some(&condition["status"]) == status.map(Value::from).as_ref()
    };
    if announced.is_some() && !conditions.iter().any(is_cause) {
        return Some("an announced end without its cause".to_owned());
    }
    let types = ["DisruptionTarget", "Ready", "ContainersReady", OOM_KILLED];
    let foreign = conditions
        .iter()
        .find(|condition| !types.contains(&condition["type"].as_str().unwrap_or_default()));
    if let Some(condition) = foreign {
        return Some(format!("condition {}", condition["type"]));
    }
    let timeless = conditions.iter().any(|condition| {
        // A condition with unchanged content keeps its time.
        let kept = condition["type"] == OOM_KILLED;
        let time = condition["lastTransitionTime"].as_str();
        time.map_or(!kept, |time| time.parse::<jiff::Timestamp>().is_err())
    });
    timeless.then(|| "a condition without its time".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_merge_by_their_type_and_null_removes() {
        let mut target = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "DisruptionTarget", "status": "True", "reason": "R", "message": "M"},
        ]}});
        let patch = json!({"status": {"conditions": [
            {"type": "DisruptionTarget", "status": "False", "reason": null, "message": null},
            {"type": "Other", "status": "True", "reason": null},
        ]}});
        merge(&mut target, &patch);
        let expected = json!({"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "DisruptionTarget", "status": "False"},
            {"type": "Other", "status": "True"},
        ]}});
        assert_eq!(target, expected);
    }

    #[test]
    fn a_body_that_writes_more_than_it_may_is_found() {
        let condition = |kind: &str| {
            json!({"type": kind, "status": "True",
            "lastTransitionTime": "2026-11-21T14:05:06Z"})
        };
        let ours = json!({"metadata": {"uid": "u"},
            "status": {"conditions": [condition("DisruptionTarget")]}});
        assert_eq!(forbidden(&ours), None);
        for (body, found) in [
            (json!({"spec": {}}), "spec"),
            (json!({"metadata": {"labels": {}}}), "metadata.labels"),
            (json!({"status": {"phase": "Succeeded"}}), "phase \"Succeeded\""),
            (json!({"status": {"containerStatuses": []}}), "status.containerStatuses"),
            (json!({"status": {"conditions": [condition("X")]}}), "condition \"X\""),
            (
                json!({"status": {"conditions": [{"type": "Ready"}]}}),
                "a condition without its time",
            ),
        ] {
            assert_eq!(forbidden(&body).as_deref(), Some(found));
        }
    }
}
