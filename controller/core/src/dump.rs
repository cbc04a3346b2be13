//! Redacts objects for a dump: keeps the fields that `doctor`, `explain` and `report` read, and no
//! others.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::doctor::{AGENT_REPORTER, Kind};
use crate::report;

/// The fields that are kept of each kind. `[]` stands for each item of a list. Labels that
/// selectors of Jobs name are kept as well.
const POD: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.resourceVersion",
    "metadata.generation",
    "metadata.creationTimestamp",
    "metadata.deletionTimestamp",
    "metadata.deletionGracePeriodSeconds",
    "metadata.finalizers[]",
    "metadata.ownerReferences[].apiVersion",
    "metadata.ownerReferences[].kind",
    "metadata.ownerReferences[].name",
    "metadata.ownerReferences[].uid",
    "metadata.ownerReferences[].controller",
    "metadata.labels.app.kubernetes.io/name",
    "metadata.annotations.batch.kubernetes.io/job-completion-index",
    "metadata.annotations.batch.kubernetes.io/job-index-failure-count",
    "metadata.annotations.batch.kubernetes.io/job-index-ignored-failure-count",
    "metadata.annotations.epilogue.dev/terminated-at",
    "metadata.annotations.kubernetes.io/config.mirror",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.activeDeadlineSeconds",
    "spec.containers[].restartPolicy",
    "spec.containers[].restartPolicyRules[].action",
    "spec.initContainers[].name",
    "spec.initContainers[].restartPolicy",
    "spec.initContainers[].restartPolicyRules[].action",
    "status.phase",
    "status.reason",
    "status.startTime",
    "status.conditions[].type",
    "status.conditions[].status",
    "status.conditions[].reason",
    "status.conditions[].lastTransitionTime",
    "status.containerStatuses[].name",
    "status.containerStatuses[].restartCount",
    "status.containerStatuses[].state.waiting.reason",
    "status.containerStatuses[].state.running.startedAt",
    "status.containerStatuses[].state.terminated.exitCode",
    "status.containerStatuses[].state.terminated.reason",
    "status.containerStatuses[].state.terminated.startedAt",
    "status.containerStatuses[].state.terminated.finishedAt",
    "status.initContainerStatuses[].name",
    "status.initContainerStatuses[].restartCount",
    "status.initContainerStatuses[].state.waiting.reason",
    "status.initContainerStatuses[].state.running.startedAt",
    "status.initContainerStatuses[].state.terminated.exitCode",
    "status.initContainerStatuses[].state.terminated.startedAt",
    "status.initContainerStatuses[].state.terminated.finishedAt",
];

const JOB: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.resourceVersion",
    "metadata.generation",
    "metadata.creationTimestamp",
    "metadata.deletionTimestamp",
    "metadata.annotations.epilogue.dev/avoid-failed-nodes",
    "metadata.annotations.epilogue.dev/backoff-base",
    "metadata.annotations.epilogue.dev/backoff-max",
    "metadata.annotations.epilogue.dev/disruption-limit",
    "metadata.annotations.epilogue.dev/force-fail-after",
    "metadata.annotations.epilogue.dev/pending-timeout",
    "spec.parallelism",
    "spec.completions",
    "spec.completionMode",
    "spec.backoffLimit",
    "spec.backoffLimitPerIndex",
    "spec.maxFailedIndexes",
    "spec.activeDeadlineSeconds",
    "spec.suspend",
    "spec.managedBy",
    "spec.podReplacementPolicy",
    "spec.podFailurePolicy.rules[].action",
    "spec.podFailurePolicy.rules[].onExitCodes.containerName",
    "spec.podFailurePolicy.rules[].onExitCodes.operator",
    "spec.podFailurePolicy.rules[].onExitCodes.values[]",
    "spec.podFailurePolicy.rules[].onPodConditions[].type",
    "spec.podFailurePolicy.rules[].onPodConditions[].status",
    "spec.successPolicy.rules[].succeededIndexes",
    "spec.successPolicy.rules[].succeededCount",
    "spec.selector.matchExpressions[].key",
    "spec.selector.matchExpressions[].operator",
    "spec.selector.matchExpressions[].values[]",
    "spec.template.spec.restartPolicy",
    "status.active",
    "status.ready",
    "status.terminating",
    "status.succeeded",
    "status.failed",
    "status.completedIndexes",
    "status.failedIndexes",
    "status.startTime",
    "status.completionTime",
    "status.uncountedTerminatedPods.succeeded[]",
    "status.uncountedTerminatedPods.failed[]",
    "status.conditions[].type",
    "status.conditions[].status",
    "status.conditions[].reason",
    "status.conditions[].message",
    "status.conditions[].lastTransitionTime",
];

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
    "spec.holderIdentity",
    "spec.leaseDurationSeconds",
    "spec.renewTime",
];

const EVENT: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
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
    "lastTimestamp",
    "series.count",
    "series.lastObservedTime",
];

const POLICY_BINDING: &[&str] = &["metadata.name"];

/// The places of labels that selectors of Jobs name.
const LABELS_OF_PODS: &[&str] = &["metadata.labels"];
const LABELS_OF_JOBS: &[&str] = &["spec.selector.matchLabels", "spec.template.metadata.labels"];

/// The fields that a dump keeps of objects of this kind. The labels that selectors of Jobs name
/// come on top.
pub fn kept_fields(kind: Kind) -> &'static [&'static str] {
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

/// Redacts the objects of a dump. Objects of other kinds, and events that neither doctor nor report
/// reads, are left out. The oldest event stays without its text: it says how far events go back.
pub fn redact(objects: &[Value]) -> Vec<Value> {
    let labels = selected_labels(objects);
    let oldest = oldest_event(objects);
    let mut redacted = Vec::new();
    for kind in Kind::ALL {
        let paths = paths(kind, &labels);
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let of_kind = objects.iter().filter(|object| object["kind"] == kind.name());
        let is_kept = |object: &&Value| {
            let is_oldest = oldest.is_some_and(|oldest| std::ptr::eq(oldest, *object));
            kind != Kind::Event || is_oldest || is_of_agent(object) || report::is_read(object)
        };
        for object in of_kind.filter(is_kept) {
            let mut kept = kept(object, &paths).unwrap_or_else(|| Value::Object(Map::new()));
            if kind == Kind::Event {
                redact_event(object, &mut kept);
            }
            kept["apiVersion"] = kind.api_version().into();
            kept["kind"] = kind.name().into();
            if kind == Kind::Job {
                keep_that_the_template_has_labels(object, &mut kept);
            }
            redacted.push(kept);
        }
    }
    redacted
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
    if !is_of_agent(event) && !report::is_read(event) {
        fields.retain(|name, _| matches!(name.as_str(), "eventTime" | "lastTimestamp" | "series"));
    }
}

/// The keys of labels that selectors of Jobs name.
fn selected_labels(objects: &[Value]) -> BTreeSet<&str> {
    let selectors = objects.iter().filter(|object| object["kind"] == Kind::Job.name());
    let mut keys = BTreeSet::new();
    for selector in selectors.map(|job| &job["spec"]["selector"]) {
        let labels = selector["matchLabels"].as_object();
        keys.extend(labels.into_iter().flat_map(Map::keys).map(String::as_str));
        let expressions = selector["matchExpressions"].as_array();
        keys.extend(expressions.into_iter().flatten().filter_map(|each| each["key"].as_str()));
    }
    keys
}

/// All paths of a kind; each begins with its separator.
fn paths(kind: Kind, labels: &BTreeSet<&str>) -> Vec<String> {
    let parents = match kind {
        Kind::Pod => LABELS_OF_PODS,
        Kind::Job => LABELS_OF_JOBS,
        _ => &[],
    };
    let selected = parents
        .iter()
        .flat_map(|parent| labels.iter().map(move |label| format!(".{parent}.{label}")));
    kept_fields(kind).iter().map(|path| format!(".{path}")).chain(selected).collect()
}

/// The part of a value that these paths name; `None` if they name nothing of its form. An object or
/// a list that they lead through stays even if nothing in it does: its presence is read.
fn kept(value: &Value, paths: &[&str]) -> Option<Value> {
    match value {
        Value::Object(fields) => {
            let inner: Vec<&str> = paths.iter().filter_map(|it| it.strip_prefix('.')).collect();
            let mut rest = Map::new();
            for (name, field) in fields {
                let below = below(name, &inner);
                if let Some(field) = kept(field, &below) {
                    rest.insert(name.clone(), field);
                }
            }
            (!inner.is_empty()).then_some(Value::Object(rest))
        }
        Value::Array(items) => {
            let inner: Vec<&str> = paths.iter().filter_map(|it| it.strip_prefix("[]")).collect();
            (!inner.is_empty())
                .then(|| items.iter().filter_map(|item| kept(item, &inner)).collect())
        }
        scalar => paths.contains(&"").then(|| scalar.clone()),
    }
}

/// What the paths that begin with this field name below it. A name may contain dots.
fn below<'a>(name: &str, paths: &[&'a str]) -> Vec<&'a str> {
    let rests = paths.iter().filter_map(|path| path.strip_prefix(name));
    rests.filter(|rest| rest.is_empty() || rest.starts_with(['.', '['])).collect()
}

/// A template without any label makes no pods, so one that loses all of its labels gets another.
fn keep_that_the_template_has_labels(job: &Value, kept: &mut Value) {
    let pointer = "/spec/template/metadata/labels";
    let count = |job: &Value| job.pointer(pointer).and_then(Value::as_object).map_or(0, Map::len);
    if count(job) > 0 && count(kept) == 0 {
        kept["spec"]["template"]["metadata"]["labels"] = json!({"epilogue.dev/redacted": ""});
    }
}

#[cfg(test)]
mod tests;
