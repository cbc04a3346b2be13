//! Names the fields of Jobs and pods that programs read, and cuts objects down to them.
//!
//! Nothing else of a cluster belongs in a dump. Tests build their Jobs and pods from the whole
//! object and from the cut one, and expect the same view: a field that a view reads stands here.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// The fields of a pod. `[]` stands for each item of a list. Labels that selectors of Jobs name
/// are read as well. Messages of conditions may say anything, so they are left out; the view takes
/// from them what metrics tell apart, and from none in a dump.
pub const POD: &[&str] = &[
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
    "metadata.annotations.epilogue.dev/ends-at",
    "metadata.annotations.epilogue.dev/gang-attempt",
    "metadata.annotations.epilogue.dev/terminated-at",
    "metadata.annotations.kubernetes.io/config.mirror",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.activeDeadlineSeconds",
    "spec.schedulingGroup.podGroupName",
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
    "status.containerStatuses[].lastState.terminated.exitCode",
    "status.containerStatuses[].lastState.terminated.reason",
    "status.containerStatuses[].lastState.terminated.finishedAt",
    "status.initContainerStatuses[].name",
    "status.initContainerStatuses[].restartCount",
    "status.initContainerStatuses[].state.waiting.reason",
    "status.initContainerStatuses[].state.running.startedAt",
    "status.initContainerStatuses[].state.terminated.exitCode",
    "status.initContainerStatuses[].state.terminated.reason",
    "status.initContainerStatuses[].state.terminated.startedAt",
    "status.initContainerStatuses[].state.terminated.finishedAt",
    "status.initContainerStatuses[].lastState.terminated.exitCode",
    "status.initContainerStatuses[].lastState.terminated.reason",
    "status.initContainerStatuses[].lastState.terminated.finishedAt",
];

/// The fields of a Job. `{}` stands for an object of which only the presence is read. The labels
/// that its selector names are read as well.
pub const JOB: &[&str] = &[
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
    "metadata.annotations.epilogue.dev/finished-pods-kept",
    "metadata.annotations.epilogue.dev/force-fail-after",
    "metadata.annotations.epilogue.dev/pending-timeout",
    "metadata.annotations.epilogue.dev/pod-failure-policy-names",
    "metadata.annotations.epilogue.dev/replace-early",
    "metadata.annotations.scheduling.k8s.io/group-template-name",
    "metadata.ownerReferences[].apiVersion",
    "metadata.ownerReferences[].kind",
    "metadata.ownerReferences[].name",
    "metadata.ownerReferences[].controller",
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
    "spec.podFailurePolicy.rules[].name",
    "spec.podFailurePolicy.rules[].action",
    "spec.podFailurePolicy.rules[].onExitCodes.containerName",
    "spec.podFailurePolicy.rules[].onExitCodes.operator",
    "spec.podFailurePolicy.rules[].onExitCodes.values[]",
    "spec.podFailurePolicy.rules[].onPodConditions[].type",
    "spec.podFailurePolicy.rules[].onPodConditions[].status",
    "spec.successPolicy.rules[].succeededIndexes",
    "spec.successPolicy.rules[].succeededCount",
    "spec.scheduling.schedulingPolicy.gang.minCount",
    "spec.selector.matchExpressions[].key",
    "spec.selector.matchExpressions[].operator",
    "spec.selector.matchExpressions[].values[]",
    "spec.scheduling.schedulingPolicy.basic{}",
    "spec.scheduling.schedulingConstraints.topology[].key",
    "spec.scheduling.disruptionMode.single{}",
    "spec.scheduling.disruptionMode.all{}",
    "spec.scheduling.resourceClaims[].name",
    "spec.scheduling.resourceClaims[].resourceClaimName",
    "spec.scheduling.resourceClaims[].resourceClaimTemplateName",
    "spec.template.spec.restartPolicy",
    "spec.template.spec.schedulingGroup.podGroupName",
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

/// The places of labels that selectors of Jobs name.
const LABELS_OF_PODS: &[&str] = &["metadata.labels"];
const LABELS_OF_JOBS: &[&str] = &["spec.selector.matchLabels", "spec.template.metadata.labels"];

/// The keys of labels that selectors of these Jobs name.
pub fn selected_labels<'a>(jobs: impl IntoIterator<Item = &'a Value>) -> BTreeSet<&'a str> {
    let mut keys = BTreeSet::new();
    for selector in jobs.into_iter().map(|job| &job["spec"]["selector"]) {
        let labels = selector["matchLabels"].as_object();
        keys.extend(labels.into_iter().flat_map(Map::keys).map(String::as_str));
        let expressions = selector["matchExpressions"].as_array();
        keys.extend(expressions.into_iter().flatten().filter_map(|each| each["key"].as_str()));
    }
    keys
}

/// The pod with its fields that are read, and these labels.
pub fn keep_pod(pod: &Value, labels: &BTreeSet<&str>) -> Value {
    keep_with(pod, POD, &selected(LABELS_OF_PODS, labels))
}

/// The Job with its fields that are read, and these labels.
pub fn keep_job(job: &Value, labels: &BTreeSet<&str>) -> Value {
    let mut kept = keep_with(job, JOB, &selected(LABELS_OF_JOBS, labels));
    keep_that_the_template_has_labels(job, &mut kept);
    kept
}

/// The object with these fields.
pub fn keep(object: &Value, fields: &[&str]) -> Value {
    keep_with(object, fields, &[])
}

/// The paths of these labels.
fn selected(parents: &[&str], labels: &BTreeSet<&str>) -> Vec<String> {
    let below = |parent| labels.iter().map(move |label| format!("{parent}.{label}"));
    parents.iter().flat_map(below).collect()
}

fn keep_with(object: &Value, fields: &[&str], more: &[String]) -> Value {
    let fields = fields.iter().copied().chain(more.iter().map(String::as_str));
    // Each path begins with its separator.
    let paths: Vec<String> = fields.map(|path| format!(".{path}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    part(object, &paths).unwrap_or_else(|| Value::Object(Map::new()))
}

/// The part of a value that these paths name; `None` if they name nothing of its form. An object or
/// a list that they lead through stays even if nothing in it does: its presence is read.
fn part(value: &Value, paths: &[&str]) -> Option<Value> {
    match value {
        Value::Object(fields) => {
            let inner: Vec<&str> = paths.iter().filter_map(|it| it.strip_prefix('.')).collect();
            let mut rest = Map::new();
            for (name, field) in fields {
                let below = below(name, &inner);
                if let Some(field) = part(field, &below) {
                    rest.insert(name.clone(), field);
                }
            }
            (!inner.is_empty() || paths.contains(&"{}")).then_some(Value::Object(rest))
        }
        Value::Array(items) => {
            let inner: Vec<&str> = paths.iter().filter_map(|it| it.strip_prefix("[]")).collect();
            (!inner.is_empty())
                .then(|| items.iter().filter_map(|item| part(item, &inner)).collect())
        }
        scalar => paths.contains(&"").then(|| scalar.clone()),
    }
}

/// What the paths that begin with this field name below it. A name may contain dots.
fn below<'a>(name: &str, paths: &[&'a str]) -> Vec<&'a str> {
    let rests = paths.iter().filter_map(|path| path.strip_prefix(name));
    rests.filter(|rest| rest.is_empty() || rest.starts_with(['.', '[', '{'])).collect()
}

/// A template without any label makes no pods, so one that loses all of its labels gets another.
fn keep_that_the_template_has_labels(job: &Value, kept: &mut Value) {
    let pointer = "/spec/template/metadata/labels";
    let count = |job: &Value| job.pointer(pointer).and_then(Value::as_object).map_or(0, Map::len);
    if count(job) > 0 && count(kept) == 0 {
        kept["spec"]["template"]["metadata"]["labels"] = json!({"epilogue.dev/redacted": ""});
    }
}
