//! Makes the pods of a Job from its template.

use std::borrow::Cow;
use std::sync::Arc;

use epilogue_common::names::{
    COMPLETION_INDEX, COMPLETION_INDEX_ENV, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT,
    TRACKING_FINALIZER,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::patches::controller_reference;
use super::steps::PodDraft;
use crate::view::{Fields, Job, raw};

/// The API cuts a `generateName` to this length before it appends five characters.
const GENERATE_NAME_MAX: usize = 58;
/// The longest name that is a DNS subdomain.
const NAME_MAX: usize = 253;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodBody {
    api_version: &'static str,
    kind: &'static str,
    metadata: Fields,
    spec: Fields,
}

/// Why no pod can be made from the template, if so. ([B8])
pub(super) fn template_problem(job: &Job) -> Option<&'static str> {
    let template: Fields = job.spec.template.read();
    let metadata = fields(&template, "metadata");
    fields(&metadata, "labels")
        .is_empty()
        .then_some("unable to create pods, no labels: set spec.template.metadata.labels of the Job")
}

/// The body of a create call for one pod. Unchanged parts are copied as text, so that a large
/// template costs no more than its size.
pub fn pod_body(job: &Job, draft: &PodDraft) -> Box<RawValue> {
    let template: Fields = job.spec.template.read();
    let mut metadata = fields(&template, "metadata");
    metadata.retain(|field, _| ["annotations", "finalizers", "labels"].contains(&field.as_str()));
    let name = generate_name(&job.key.name, draft.index);
    metadata.insert("generateName".to_owned(), raw(&name));
    metadata.insert("ownerReferences".to_owned(), raw(&[controller_reference(job)]));
    add_finalizer(&mut metadata);
    let mut spec = fields(&template, "spec");
    if let Some(index) = draft.index {
        mark_index(&mut metadata, &mut spec, &job.key.name, index);
    }
    if !draft.avoid.is_empty() {
        avoid_nodes(&mut spec, &draft.avoid);
    }
    if let Some(failures) = draft.failures {
        let counted = (INDEX_FAILURE_COUNT, failures.counted);
        let ignored = (INDEX_IGNORED_FAILURE_COUNT, failures.ignored);
        let ignored = Some(ignored).filter(|(_, count)| *count > 0);
        let counts = [counted].into_iter().chain(ignored);
        insert(&mut metadata, "annotations", counts.map(|(name, it)| (name, it.to_string())));
    }
    raw(&PodBody { api_version: "v1", kind: "Pod", metadata, spec })
}

/// The fields of the object in a field; empty where there is no object.
fn fields(of: &Fields, name: &str) -> Fields {
    of.get(name).and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
}

/// The entries of the list in a field; empty where there is no list.
fn list(of: &Fields, name: &str) -> Vec<Box<RawValue>> {
    of.get(name).and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
}

/// Inserts these entries into the object in a field, which is created if missing.
fn insert<'a>(all: &mut Fields, field: &str, entries: impl Iterator<Item = (&'a str, String)>) {
    let mut object = fields(all, field);
    object.extend(entries.map(|(name, value)| (name.to_owned(), raw(&value))));
    all.insert(field.to_owned(), raw(&object));
}

/// Adds a preference for other nodes to the template's own preferences.
fn avoid_nodes(spec: &mut Fields, nodes: &[Arc<str>]) {
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let names: Vec<&str> = nodes.iter().map(AsRef::as_ref).collect();
    let term = json!({"weight": 100, "preference": {"matchFields": [
        {"key": "metadata.name", "operator": "NotIn", "values": names},
    ]}});
    let mut affinity = fields(spec, "affinity");
    let mut of_nodes = fields(&affinity, "nodeAffinity");
    let mut terms = list(&of_nodes, PREFERRED);
    terms.push(raw(&term));
    of_nodes.insert(PREFERRED.to_owned(), raw(&terms));
    affinity.insert("nodeAffinity".to_owned(), raw(&of_nodes));
    spec.insert("affinity".to_owned(), raw(&affinity));
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

/// Appends our finalizer to those of the user. ([B2])
fn add_finalizer(metadata: &mut Fields) {
    let mut finalizers = list(metadata, "finalizers");
    let ours = raw(&TRACKING_FINALIZER);
    if !finalizers.iter().any(|each| each.get() == ours.get()) {
        finalizers.push(ours);
    }
    metadata.insert("finalizers".to_owned(), raw(&finalizers));
}

/// Annotation, label, host name and environment of an Indexed Job's pod. ([B6])
fn mark_index(metadata: &mut Fields, spec: &mut Fields, job: &str, index: u32) {
    for field in ["annotations", "labels"] {
        insert(metadata, field, [(COMPLETION_INDEX, index.to_string())].into_iter());
    }
    spec.insert("hostname".to_owned(), raw(&format!("{job}-{index}")));
    for field in ["initContainers", "containers"] {
        if !spec.contains_key(field) {
            continue;
        }
        let containers = list(spec, field);
        let containers: Vec<_> = containers.into_iter().map(with_index_variable).collect();
        spec.insert(field.to_owned(), raw(&containers));
    }
}

fn with_index_variable(container: Box<RawValue>) -> Box<RawValue> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow, default)]
        name: Cow<'a, str>,
    }
    let Ok(mut container) = serde_json::from_str::<Fields>(container.get()) else {
        return container;
    };
    let mut variables = list(&container, "env");
    let is_index = |each: &RawValue| {
        serde_json::from_str::<Named<'_>>(each.get())
            .is_ok_and(|it| it.name == COMPLETION_INDEX_ENV)
    };
    if !variables.iter().any(|each| is_index(each)) {
        let path = format!("metadata.labels['{COMPLETION_INDEX}']");
        variables.push(raw(&json!({
            "name": COMPLETION_INDEX_ENV,
            "valueFrom": {"fieldRef": {"fieldPath": path}},
        })));
        container.insert("env".to_owned(), raw(&variables));
    }
    raw(&container)
}
