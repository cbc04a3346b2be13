//! Makes the pods of a Job from its template, in the format in which the Job came.

mod protobuf;

use std::borrow::Cow;
use std::sync::Arc;

use epilogue_common::names::{
    COMPLETION_INDEX, COMPLETION_INDEX_ENV, GANG_ATTEMPT, INDEX_FAILURE_COUNT,
    INDEX_IGNORED_FAILURE_COUNT, TRACKING_FINALIZER,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::body::{Body, controller_reference};
use super::group::SchedulingGroup;
use super::steps::PodDraft;
use crate::view::{Fields, Job, Json, Source, raw};

/// The API cuts a `generateName` to this length before it appends five characters.
const GENERATE_NAME_MAX: usize = 58;
/// The longest name that is a DNS subdomain.
const NAME_MAX: usize = 253;
/// The field by which an affinity names nodes.
const NODE_NAME: &str = "metadata.name";
/// The weight of the preference for other nodes: the greatest.
const AVOID_WEIGHT: i32 = 100;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodBody {
    api_version: &'static str,
    kind: &'static str,
    metadata: Fields,
    spec: Fields,
}

/// What a pod has beyond its template.
struct Additions<'a> {
    /// The owner.
    job: &'a Job,
    /// `metadata.generateName`.
    generate_name: String,
    /// Labels, which replace those of the same name.
    labels: Vec<(&'static str, String)>,
    /// Annotations, which replace those of the same name.
    annotations: Vec<(&'static str, String)>,
    /// `spec.hostname` of an Indexed Job's pod, whose containers also get the variable. ([B6])
    hostname: Option<String>,
    /// Nodes to avoid where possible.
    avoid: &'a [Arc<str>],
    /// `spec.schedulingGroup`. It is no owner of the pod: a PodGroup stays while it has pods, and
    /// the garbage collector keeps a pod while it has an owner.
    group: Option<&'a SchedulingGroup>,
}

/// Why no pod can be made from the template, if so. ([B8])
pub(super) fn template_problem(job: &Job) -> Option<&'static str> {
    (!has_labels(&job.source))
        .then_some("unable to create pods, no labels: set spec.template.metadata.labels of the Job")
}

/// Whether the template has labels.
pub(crate) fn has_labels(source: &Source) -> bool {
    match source {
        Source::Json { template, .. } => {
            let metadata = fields(&template.read(), "metadata");
            !fields(&metadata, "labels").is_empty()
        }
        Source::Protobuf { template, .. } => protobuf::has_labels(template),
        Source::Unkept { has_labels, .. } => *has_labels,
    }
}

/// `spec.priorityClassName` of the template.
pub(super) fn priority_class(source: &Source) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Peek {
        spec: PeekSpec,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct PeekSpec {
        priority_class_name: Option<String>,
    }
    let class = match source {
        Source::Json { template, .. } => template.read::<Peek>().spec.priority_class_name,
        Source::Protobuf { template, .. } => Some(protobuf::priority_class(template)),
        Source::Unkept { .. } => None,
    };
    class.filter(|class| !class.is_empty())
}

/// The body of a create call for one pod. The API refuses what is made without a template: its
/// reader comes first.
///
/// Unchanged parts are copied as they came, so that a large
/// template costs no more than its size.
pub fn pod_body(job: &Job, draft: &PodDraft) -> Body {
    let additions = Additions::of(job, draft);
    match &job.source {
        Source::Json { template, .. } => Body::Json(raw(&json_pod(template, &additions))),
        Source::Protobuf { template, .. } => {
            Body::protobuf("v1", "Pod", protobuf::pod_message(template, &additions))
        }
        Source::Unkept { .. } => Body::Json(raw(&json!(null))),
    }
}

impl<'a> Additions<'a> {
    fn of(job: &'a Job, draft: &'a PodDraft) -> Self {
        let index = draft.index.map(|index| (COMPLETION_INDEX, index.to_string()));
        let counted = draft.failures.map(|it| (INDEX_FAILURE_COUNT, it.counted.to_string()));
        let ignored = draft.failures.filter(|it| it.ignored > 0);
        let ignored = ignored.map(|it| (INDEX_IGNORED_FAILURE_COUNT, it.ignored.to_string()));
        let attempt = draft.group.as_ref().and_then(|group| group.attempt);
        let attempt = attempt.map(|attempt| (GANG_ATTEMPT, attempt.to_string()));
        Self {
            job,
            generate_name: generate_name(&job.key.name, draft.index),
            labels: index.clone().into_iter().collect(),
            annotations: [index, counted, ignored, attempt].into_iter().flatten().collect(),
            hostname: draft.index.map(|index| format!("{}-{index}", job.key.name)),
            avoid: &draft.avoid,
            group: draft.group.as_deref(),
        }
    }
}

fn json_pod(template: &Json, additions: &Additions<'_>) -> PodBody {
    let template: Fields = template.read();
    let mut metadata = fields(&template, "metadata");
    metadata.retain(|field, _| ["annotations", "finalizers", "labels"].contains(&field.as_str()));
    metadata.insert("generateName".to_owned(), raw(&additions.generate_name));
    metadata.insert("ownerReferences".to_owned(), raw(&[controller_reference(additions.job)]));
    insert(&mut metadata, "labels", &additions.labels);
    insert(&mut metadata, "annotations", &additions.annotations);
    add_finalizer(&mut metadata);
    let mut spec = fields(&template, "spec");
    if let Some(hostname) = &additions.hostname {
        spec.insert("hostname".to_owned(), raw(hostname));
        add_index_variables(&mut spec);
    }
    if !additions.avoid.is_empty() {
        avoid_nodes(&mut spec, additions.avoid);
    }
    if let Some(group) = additions.group {
        spec.insert("schedulingGroup".to_owned(), raw(&json!({"podGroupName": &*group.name})));
    }
    PodBody { api_version: "v1", kind: "Pod", metadata, spec }
}

/// The fields of the object in a field; empty where there is no object.
fn fields(of: &Fields, name: &str) -> Fields {
    of.get(name).and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
}

/// The entries of the list in a field; empty where there is no list.
fn list(of: &Fields, name: &str) -> Vec<Box<RawValue>> {
    of.get(name).and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
}

/// Inserts these entries, if any, into the object in a field, which is created if missing.
fn insert(all: &mut Fields, field: &str, entries: &[(&str, String)]) {
    if entries.is_empty() {
        return;
    }
    let mut object = fields(all, field);
    object.extend(entries.iter().map(|(name, value)| ((*name).to_owned(), raw(value))));
    all.insert(field.to_owned(), raw(&object));
}

/// Adds a preference for other nodes to the template's own preferences.
fn avoid_nodes(spec: &mut Fields, nodes: &[Arc<str>]) {
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let names: Vec<&str> = nodes.iter().map(AsRef::as_ref).collect();
    let term = json!({"weight": AVOID_WEIGHT, "preference": {"matchFields": [
        {"key": NODE_NAME, "operator": "NotIn", "values": names},
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
pub(crate) fn generate_name(job: &str, index: Option<u32>) -> String {
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

/// Adds the index to the environment of each container. ([B6])
///
/// DIVERGES(upstream): the variable stands before the template's own. The kubelet expands
/// `$(JOB_COMPLETION_INDEX)` only in variables that come later, and upstream appends it. ([B6])
fn add_index_variables(spec: &mut Fields) {
    for field in ["initContainers", "containers"] {
        if !spec.contains_key(field) {
            continue;
        }
        let containers = list(spec, field);
        let containers: Vec<_> = containers.into_iter().map(with_index_variable).collect();
        spec.insert(field.to_owned(), raw(&containers));
    }
}

/// Where the variable's value stands.
fn index_path() -> String {
    format!("metadata.labels['{COMPLETION_INDEX}']")
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
        let variable = raw(&json!({
            "name": COMPLETION_INDEX_ENV,
            "valueFrom": {"fieldRef": {"fieldPath": index_path()}},
        }));
        variables.insert(0, variable);
        container.insert("env".to_owned(), raw(&variables));
    }
    raw(&container)
}
