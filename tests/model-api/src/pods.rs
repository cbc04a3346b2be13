//! The API's rules about pods.

use serde_json::{Map, Value, json};

use crate::metadata;
use crate::refusal::Refusal;

/// Fields of a pod's spec that an update may change.
const MUTABLE: [&str; 4] = ["activeDeadlineSeconds", "containers", "initContainers", "tolerations"];

/// Sets the defaults of a pod's spec that programs read.
pub(crate) fn set_defaults(spec: &mut Value) {
    let Some(spec) = spec.as_object_mut() else { return };
    for (field, value) in [
        ("dnsPolicy", json!("ClusterFirst")),
        ("restartPolicy", json!("Always")),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
        ("terminationGracePeriodSeconds", json!(30)),
    ] {
        spec.entry(field).or_insert(value);
    }
}

/// Fills in a new pod.
pub(crate) fn prepare_new(pod: &mut Value) {
    set_defaults(&mut pod["spec"]);
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.entry("enableServiceLinks").or_insert(json!(true));
        spec.entry("priority").or_insert(json!(0));
        spec.entry("preemptionPolicy").or_insert(json!("PreemptLowerPriority"));
        let account = spec.get("serviceAccountName").cloned().unwrap_or(json!("default"));
        spec.insert("serviceAccountName".into(), account.clone());
        spec.insert("serviceAccount".into(), account);
    }
    let qos_class = qos_class(&pod["spec"]);
    pod["status"] = json!({"phase": "Pending", "qosClass": qos_class});
}

/// The class that requests and limits give.
fn qos_class(spec: &Value) -> &'static str {
    let containers = spec["containers"].as_array().into_iter().flatten();
    let (mut any, mut all) = (false, true);
    for container in containers {
        let resources = &container["resources"];
        for resource in ["cpu", "memory"] {
            let (request, limit) =
                (resources["requests"].get(resource), resources["limits"].get(resource));
            any |= request.is_some() || limit.is_some();
            all &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, false) => "Burstable",
        (true, true) => "Guaranteed",
    }
}

/// Checks a pod that is created.
pub(crate) fn check_new(spec: &Value, field: &str) -> Result<(), Refusal> {
    let containers = spec["containers"].as_array().filter(|list| !list.is_empty());
    let Some(containers) = containers else {
        let field = format!("{field}.containers");
        return Err(Refusal::invalid(&field, "FieldValueRequired", "Required value"));
    };
    for container in containers {
        for part in ["name", "image"] {
            if container[part].as_str().is_none_or(str::is_empty) {
                let field = format!("{field}.containers[0].{part}");
                return Err(Refusal::invalid(&field, "FieldValueRequired", "Required value"));
            }
        }
    }
    Ok(())
}

/// Checks an update of the spec.
pub(crate) fn check_update(new: &Value, old: &Value) -> Result<(), Refusal> {
    let fixed = |spec: &Value| -> Map<String, Value> {
        let fields = spec.as_object().into_iter().flatten();
        let fixed = fields.filter(|(field, _)| !MUTABLE.contains(&field.as_str()));
        fixed.map(|(field, value)| (field.clone(), value.clone())).collect()
    };
    let without_images = |spec: &Value| -> Vec<Value> {
        let lists = ["containers", "initContainers"].map(|field| spec[field].as_array());
        let mut containers: Vec<Value> = lists.into_iter().flatten().flatten().cloned().collect();
        for container in &mut containers {
            container["image"] = Value::Null;
        }
        containers
    };
    let (old_spec, new_spec) = (&old["spec"], &new["spec"]);
    let kept = old_spec["tolerations"].as_array().into_iter().flatten();
    let has = |it: &Value| new_spec["tolerations"].as_array().is_some_and(|all| all.contains(it));
    if fixed(old_spec) != fixed(new_spec)
        || without_images(old_spec) != without_images(new_spec)
        || !kept.into_iter().all(has)
    {
        let problem = "pod updates may not change fields other than some";
        return Err(Refusal::invalid("spec", "FieldValueForbidden", problem));
    }
    let deadline = |spec: &Value| spec["activeDeadlineSeconds"].as_i64();
    let is_fine = match (deadline(old_spec), deadline(new_spec)) {
        (None, new) => new.is_none_or(|new| new > 0),
        (Some(old), new) => new.is_some_and(|new| new > 0 && new <= old),
    };
    let field = "spec.activeDeadlineSeconds";
    let problem = "must be less than or equal to previous value";
    if is_fine { Ok(()) } else { Err(Refusal::invalid(field, "FieldValueInvalid", problem)) }
}

/// Keeps of a status update what it may not change, and checks it.
pub(crate) fn check_status(new: &mut Value, old: &Value) -> Result<(), Refusal> {
    metadata::of(new).remove("deletionTimestamp");
    match old["metadata"].get("ownerReferences") {
        Some(owners) => new["metadata"]["ownerReferences"] = owners.clone(),
        None => {
            metadata::of(new).remove("ownerReferences");
        }
    }
    if new["status"].get("qosClass").is_none() {
        new["status"]["qosClass"] = old["status"]["qosClass"].clone();
    }
    if new["status"]["qosClass"] != old["status"]["qosClass"] {
        return Err(Refusal::immutable("status.qosClass"));
    }
    let policy = old["spec"]["restartPolicy"].as_str().unwrap_or_default();
    if policy == "Always" {
        return Ok(());
    }
    for field in ["containerStatuses", "initContainerStatuses"] {
        let new_statuses = new["status"][field].as_array().cloned().unwrap_or_default();
        for container in old["status"][field].as_array().into_iter().flatten() {
            let Some(terminated) = container["state"].get("terminated") else { continue };
            if policy == "OnFailure" && terminated["exitCode"] != 0 {
                continue;
            }
            let now = new_statuses.iter().find(|it| it["name"] == container["name"]);
            if now.is_some_and(|now| now["state"].get("terminated").is_none()) {
                let problem = "may not be transitioned to non-terminated state";
                let field = format!("status.{field}");
                return Err(Refusal::invalid(&field, "FieldValueForbidden", problem));
            }
        }
    }
    Ok(())
}

/// The node that a Binding names. The API reports a Binding without one as an error of its own.
pub(crate) fn target(binding: &Value) -> Result<&str, Refusal> {
    let node = binding["target"]["name"].as_str().filter(|node| !node.is_empty());
    node.ok_or_else(|| Refusal::new(500, "", "target.name: Required value"))
}

/// Binds a pod to this node.
pub(crate) fn bind(pod: &mut Value, node: &str, now: &str) -> Result<(), Refusal> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if pod["metadata"].get("deletionTimestamp").is_some() {
        let message = format!("pod {name} is being deleted, cannot be assigned to a host");
        return Err(Refusal::conflict(message));
    }
    if let Some(bound) = pod["spec"]["nodeName"].as_str() {
        let message = format!("pod {name} is already assigned to node {bound:?}");
        return Err(Refusal::conflict(message));
    }
    pod["spec"]["nodeName"] = node.into();
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now});
    let conditions = &mut pod["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let list = conditions.as_array_mut().expect("it was made a list");
    match list.iter_mut().find(|it| it["type"] == "PodScheduled") {
        Some(known) => *known = scheduled,
        None => list.push(scheduled),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_follows_from_requests_and_limits() {
        let of = |resources: Value| {
            qos_class(&json!({"containers": [{"name": "c", "resources": resources}]}))
        };
        assert_eq!(of(json!({})), "BestEffort");
        assert_eq!(of(json!({"requests": {"cpu": "1"}})), "Burstable");
        assert_eq!(of(json!({"limits": {"cpu": "1", "memory": "1Gi"}})), "Guaranteed");
    }
}
