//! The pods of a Job, made from its template. (spec §9)

use std::sync::Arc;

use epilogue_common::names::{
    COMPLETION_INDEX, COMPLETION_INDEX_ENV, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT,
    TRACKING_FINALIZER,
};
use serde_json::{Map, Value, json};

use super::bodies::controller_reference;
use super::steps::PodDraft;
use crate::view::Job;

/// The API cuts a `generateName` to this length before it appends five characters.
const GENERATE_NAME_MAX: usize = 58;
/// Longest name that is a DNS subdomain.
const NAME_MAX: usize = 253;

/// Whether pods can be made from the template at all. ([B8])
pub(super) fn template_problem(job: &Job) -> Option<&'static str> {
    let labels = job.spec.template["metadata"]["labels"].as_object();
    labels
        .is_none_or(Map::is_empty)
        .then_some("unable to create pods, no labels: set spec.template.metadata.labels of the Job")
}

/// The body of a create call for one pod.
pub fn pod_body(job: &Job, draft: &PodDraft) -> Value {
    let template = &*job.spec.template;
    let mut metadata = Map::new();
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template["metadata"].get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    metadata.insert("generateName".to_owned(), generate_name(&job.key.name, draft.index).into());
    metadata.insert("ownerReferences".to_owned(), json!([controller_reference(job)]));
    add_finalizer(&mut metadata);
    let mut spec = template.get("spec").cloned().unwrap_or_default();
    if let Some(index) = draft.index {
        mark_index(&mut metadata, &mut spec, &job.key.name, index);
    }
    if !draft.avoid.is_empty() {
        avoid_nodes(&mut spec, &draft.avoid);
    }
    if let Some(failures) = draft.failures {
        let annotations = object(&mut metadata, "annotations");
        annotations.insert(INDEX_FAILURE_COUNT.to_owned(), failures.counted.to_string().into());
        if failures.ignored > 0 {
            let ignored = failures.ignored.to_string();
            annotations.insert(INDEX_IGNORED_FAILURE_COUNT.to_owned(), ignored.into());
        }
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

/// Prefers other nodes, on top of what the template prefers.
fn avoid_nodes(spec: &mut Value, nodes: &[Arc<str>]) {
    let names: Vec<&str> = nodes.iter().map(AsRef::as_ref).collect();
    let term = json!({"weight": 100, "preference": {"matchFields": [
        {"key": "metadata.name", "operator": "NotIn", "values": names},
    ]}});
    let terms =
        &mut spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    match terms {
        Value::Array(list) => list.push(term),
        other => *other = json!([term]),
    }
}

/// `<job>-`, or `<job>-<index>-` cut so that the API's own cut keeps the index. ([B4], [B5])
fn generate_name(job: &str, index: Option<u32>) -> String {
    match index {
        None if job.len() < NAME_MAX => format!("{job}-"),
        None => job.to_owned(),
        Some(index) => {
            let suffix = format!("-{index}-");
            let kept = job.len().min(GENERATE_NAME_MAX - suffix.len());
            let kept = job.floor_char_boundary(kept);
            format!("{}{suffix}", &job[..kept])
        }
    }
}

/// Appends ours behind those of the user. ([B2])
fn add_finalizer(metadata: &mut Map<String, Value>) {
    let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
    if !finalizers.is_array() {
        *finalizers = json!([]);
    }
    if let Value::Array(list) = finalizers
        && !list.iter().any(|each| each == TRACKING_FINALIZER)
    {
        list.push(TRACKING_FINALIZER.into());
    }
}

/// Annotation, label, host name and environment of an Indexed Job's pod. ([B6])
fn mark_index(metadata: &mut Map<String, Value>, spec: &mut Value, job: &str, index: u32) {
    for field in ["annotations", "labels"] {
        let index = Value::from(index.to_string());
        object(metadata, field).insert(COMPLETION_INDEX.to_owned(), index);
    }
    spec["hostname"] = format!("{job}-{index}").into();
    for field in ["initContainers", "containers"] {
        let Some(Value::Array(containers)) = spec.get_mut(field) else { continue };
        containers.iter_mut().filter_map(Value::as_object_mut).for_each(add_index_variable);
    }
}

fn add_index_variable(container: &mut Map<String, Value>) {
    let variables = container.entry("env").or_insert_with(|| json!([]));
    if !variables.is_array() {
        *variables = json!([]);
    }
    if let Value::Array(list) = variables
        && !list.iter().any(|each| each["name"] == COMPLETION_INDEX_ENV)
    {
        let path = format!("metadata.labels['{COMPLETION_INDEX}']");
        list.push(json!({
            "name": COMPLETION_INDEX_ENV,
            "valueFrom": {"fieldRef": {"fieldPath": path}},
        }));
    }
}

/// The object in this field, made empty when there is none.
fn object<'a>(fields: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let value = fields.entry(name).or_insert_with(|| Value::Object(Map::new()));
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("the value was just made an object")
}
