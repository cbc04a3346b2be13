//! Redacts objects for a dump: keeps the fields that `doctor`, `explain` and `report` read, and no
//! others.

use controller_core::view::fields::{JOB, POD, keep, keep_job, keep_pod, selected_labels};
use serde_json::Value;

use crate::doctor::rules::AGENT_REPORTER;
use crate::explain::rules::warnings::is_warning;
use crate::kind::Kind;
use crate::report::rules as report;

/// The fields that are kept of each other kind. `[]` stands for each item of a list.
const NODE: &[&str] = &[
    "metadata.name",
    "metadata.labels.epilogue.dev/agent",
    "metadata.annotations.epilogue.dev/readiness",
    "metadata.annotations.epilogue.dev/state",
    "spec.unschedulable",
    "spec.taints[].key",
    "spec.taints[].effect",
    "spec.taints[].timeAdded",
    "status.conditions[].type",
    "status.conditions[].status",
    "status.conditions[].reason",
    "status.conditions[].message",
    "status.conditions[].lastTransitionTime",
    "status.nodeInfo.bootID",
];

const NAMESPACE: &[&str] = &[
    "metadata.name",
    "metadata.annotations.epilogue.dev/force-fail-after",
    "metadata.labels.epilogue.dev/jobs",
    "metadata.labels.epilogue.dev/pod-replacement-policy",
];

const LEASE: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.annotations.epilogue.dev/version",
    "metadata.annotations.epilogue.dev/manage-all-jobs",
    "metadata.annotations.epilogue.dev/watch-namespace",
    "metadata.annotations.epilogue.dev/mode",
    "metadata.annotations.epilogue.dev/runs-jobs",
    "metadata.annotations.epilogue.dev/gang-scheduling",
    "spec.holderIdentity",
    "spec.leaseDurationSeconds",
    "spec.renewTime",
];

const EVENT: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.annotations.epilogue.dev/cause",
    "metadata.annotations.epilogue.dev/counted",
    "metadata.annotations.epilogue.dev/ends",
    "metadata.annotations.epilogue.dev/nodes",
    "type",
    "reason",
    "message",
    "count",
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "reportingComponent",
    "source.component",
    "eventTime",
    "firstTimestamp",
    "lastTimestamp",
    "series.count",
    "series.lastObservedTime",
];

const POLICY_BINDING: &[&str] = &["metadata.name"];

/// The fields that a dump keeps of objects of this kind. The labels that selectors of Jobs name
/// come on top.
pub(crate) fn kept_fields(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Pod => POD,
        Kind::Job => JOB,
        Kind::Node => NODE,
        Kind::Namespace => NAMESPACE,
        Kind::Lease => LEASE,
        Kind::Event => EVENT,
        Kind::PolicyBinding => POLICY_BINDING,
    }
}

/// Redacts the objects of a dump. Objects of other kinds, and events that no command
/// reads, are left out. The oldest event stays without its text: it says how far events go back.
pub(crate) fn redact(objects: &[Value]) -> Vec<Value> {
    let labels = selected_labels(objects.iter().filter(|it| it["kind"] == Kind::Job.name()));
    let oldest = oldest_event(objects);
    let mut redacted = Vec::new();
    for kind in Kind::ALL {
        let of_kind = objects.iter().filter(|object| object["kind"] == kind.name());
        let is_kept = |object: &&Value| {
            let is_oldest = oldest.is_some_and(|oldest| std::ptr::eq(oldest, *object));
            kind != Kind::Event || is_oldest || is_read(object)
        };
        for object in of_kind.filter(is_kept) {
            let mut kept = match kind {
                Kind::Pod => keep_pod(object, &labels),
                Kind::Job => keep_job(object, &labels),
                _ => keep(object, kept_fields(kind)),
            };
            if kind == Kind::Event {
                redact_event(object, &mut kept);
            }
            kept["apiVersion"] = kind.api_version().into();
            kept["kind"] = kind.name().into();
            redacted.push(kept);
        }
    }
    redacted
}

/// Whether `doctor`, `report` or `explain` reads this event.
fn is_read(event: &Value) -> bool {
    is_of_agent(event) || report::is_read(event) || is_warning(event)
}

/// Whether `doctor` reads this event.
fn is_of_agent(event: &Value) -> bool {
    event["reportingComponent"] == AGENT_REPORTER && event["involvedObject"]["kind"] == "Node"
}

/// The event of the earliest time.
fn oldest_event(objects: &[Value]) -> Option<&Value> {
    let events = objects.iter().filter(|object| object["kind"] == Kind::Event.name());
    let timed = events.filter_map(|event| Some((report::time_of(event)?, event)));
    timed.min_by_key(|(at, _)| *at).map(|(_, event)| event)
}

/// Only agents' messages about nodes stay. The oldest event loses all but its time, unless a
/// program reads it.
fn redact_event(event: &Value, kept: &mut Value) {
    let Some(fields) = kept.as_object_mut() else { return };
    if !is_of_agent(event) {
        fields.remove("message");
    }
    if !is_read(event) {
        fields.retain(|name, _| matches!(name.as_str(), "eventTime" | "lastTimestamp" | "series"));
    }
}

#[cfg(test)]
mod tests;
