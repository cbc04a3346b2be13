//! The API's rules about the specs and statuses of all kinds.

use serde_json::{Value, json};

use crate::kind::Kind;
use crate::refusal::Refusal;
use crate::{gangs, jobs, pods};

/// The finalizer in the spec of a namespace, which waits for its content.
pub(crate) const CONTENT: &str = "kubernetes";

/// Fields of events, in the core and in `events.k8s.io`.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// Fills in a new object: defaults, and what a creation cannot set.
pub(crate) fn prepare_new(kind: Kind, object: &mut Value) {
    match kind {
        Kind::Pod => pods::prepare_new(object),
        Kind::Job => jobs::prepare_new(object),
        Kind::Node => prepare_node(object),
        Kind::Namespace => {
            let name = object["metadata"]["name"].clone();
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            object["spec"] = json!({"finalizers": [CONTENT]});
            object["status"] = json!({"phase": "Active"});
        }
        Kind::Lease if object.get("spec").is_none() => object["spec"] = json!({}),
        Kind::PodGroup => gangs::prepare_new(object),
        Kind::Event | Kind::Lease | Kind::PriorityClass | Kind::Workload => {}
    }
}

/// A node is not ready before its kubelet says so.
fn prepare_node(node: &mut Value) {
    let not_ready = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let taints = &mut node["spec"]["taints"];
    if !taints.is_array() {
        *taints = json!([]);
    }
    let taints = taints.as_array_mut().expect("it was made a list");
    if !taints.contains(&not_ready) {
        taints.push(not_ready);
    }
    if node.get("status").is_none() {
        node["status"] = json!({});
    }
}

/// Checks a new object.
pub(crate) fn check_new(kind: Kind, object: &Value) -> Result<(), Refusal> {
    match kind {
        Kind::Pod => pods::check_new(&object["spec"], "spec"),
        Kind::Job => jobs::check_new(object),
        Kind::Lease => check_lease(object),
        Kind::Event => check_event(object),
        Kind::PodGroup => gangs::check_new_pod_group(&object["spec"]),
        Kind::Workload => gangs::check_new_workload(&object["spec"]),
        Kind::Namespace | Kind::Node | Kind::PriorityClass => Ok(()),
    }
}

/// Sets the defaults of a changed object, and checks what may not change.
pub(crate) fn check_update(kind: Kind, new: &mut Value, old: &Value) -> Result<(), Refusal> {
    match kind {
        Kind::Pod => {
            pods::set_defaults(&mut new["spec"]);
            pods::check_update(new, old)
        }
        Kind::Job => jobs::check_update(new, old),
        Kind::Lease => check_lease(new),
        Kind::Event => check_event(new),
        Kind::Namespace => {
            new["spec"] = old["spec"].clone();
            Ok(())
        }
        Kind::PodGroup | Kind::Workload => gangs::check_update(new, old),
        Kind::Node | Kind::PriorityClass => Ok(()),
    }
}

/// Checks a status update.
pub(crate) fn check_status(kind: Kind, new: &mut Value, old: &Value) -> Result<(), Refusal> {
    match kind {
        Kind::Pod => pods::check_status(new, old),
        Kind::Job => jobs::check_status(new, old),
        _ => Ok(()),
    }
}

fn check_lease(lease: &Value) -> Result<(), Refusal> {
    for (field, min) in [("leaseDurationSeconds", 1), ("leaseTransitions", 0)] {
        if lease["spec"][field].as_i64().is_some_and(|it| it < min) {
            let field = format!("spec.{field}");
            return Err(Refusal::invalid(&field, "FieldValueInvalid", "too small"));
        }
    }
    Ok(())
}

fn check_event(event: &Value) -> Result<(), Refusal> {
    // With this time it is one of `events.k8s.io`, about which there is no such rule.
    if event.get("eventTime").is_some() {
        return Ok(());
    }
    let namespace = event["involvedObject"]["namespace"].as_str().unwrap_or("default");
    if event["metadata"]["namespace"] == namespace {
        return Ok(());
    }
    let problem = "does not match event.namespace";
    Err(Refusal::invalid("involvedObject.namespace", "FieldValueInvalid", problem))
}

/// An event of `events.k8s.io` as one of the core.
pub(crate) fn to_core_event(event: &mut Value) {
    rename(event, |(core, new)| (new, core));
    event["apiVersion"] = "v1".into();
}

/// An event of the core as one of `events.k8s.io`.
pub(crate) fn to_new_event(event: &mut Value) {
    rename(event, |(core, new)| (core, new));
    event["apiVersion"] = "events.k8s.io/v1".into();
}

fn rename(
    event: &mut Value,
    how: impl Fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let Some(fields) = event.as_object_mut() else { return };
    for (from, to) in EVENT_FIELDS.map(how) {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}
