//! Parses the API's JSON into the slim views, and skips what no decision reads.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use epilogue_common::names::{
    COMPLETION_INDEX, INDEX_FAILURE_COUNT, INDEX_IGNORED_FAILURE_COUNT, TRACKING_FINALIZER,
    disruption_reason::DELETION_BY_POD_GC, node::TERMINATED_AT, pod_condition,
};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobStatus, PodFailurePolicy, SuccessPolicy};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::gc_facts::GcFacts;
use super::json::{Json, read, read_field, without_managed_fields};
use super::lenient::{lean_metadata, lenient_time};
use super::pod::{
    Condition, Container, ContainerKind, Deletion, FailureCounts, Owner, Phase, Pod,
    ReadyCondition, Terminated,
};
use super::{CompletionMode, Job, JobKey, JobSpec, RestartPolicy, Selector, Source, Version};

/// A pod as the API sends it, reduced to the fields of the view.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct WirePod {
    /// `metadata`, without `managedFields`.
    #[serde(default, deserialize_with = "lean_metadata")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: WirePodSpec,
    #[serde(default)]
    pub(crate) status: WirePodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WirePodSpec {
    pub(crate) node_name: Option<String>,
    pub(crate) restart_policy: Option<String>,
    pub(crate) active_deadline_seconds: Option<i64>,
    #[serde(default)]
    pub(crate) containers: Vec<WireContainerSpec>,
    #[serde(default)]
    pub(crate) init_containers: Vec<WireContainerSpec>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireContainerSpec {
    #[serde(default)]
    pub(super) name: String,
    pub(crate) restart_policy: Option<String>,
    pub(crate) restart_policy_rules: Option<Vec<IgnoredAny>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WirePodStatus {
    pub(crate) phase: Option<String>,
    pub(crate) reason: Option<String>,
    #[serde(default, deserialize_with = "lenient_time")]
    pub(crate) start_time: Option<Time>,
    pub(crate) conditions: Option<Vec<WireCondition>>,
    pub(crate) container_statuses: Option<Vec<WireContainerStatus>>,
    pub(crate) init_container_statuses: Option<Vec<WireContainerStatus>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireCondition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: Option<String>,
    #[serde(default, deserialize_with = "lenient_time")]
    pub(crate) last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireContainerStatus {
    pub(super) name: String,
    #[serde(default)]
    pub(super) restart_count: i64,
    pub(crate) state: Option<WireContainerState>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct WireContainerState {
    pub(super) waiting: Option<WireWaiting>,
    pub(crate) running: Option<WireRunning>,
    pub(crate) terminated: Option<WireTerminated>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireRunning {
    #[serde(default, deserialize_with = "lenient_time")]
    pub(crate) started_at: Option<Time>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct WireWaiting {
    pub(super) reason: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireTerminated {
    #[serde(default)]
    pub(super) exit_code: i32,
    #[serde(default, deserialize_with = "lenient_time")]
    pub(crate) started_at: Option<Time>,
    #[serde(default, deserialize_with = "lenient_time")]
    pub(crate) finished_at: Option<Time>,
}

/// Keeps one copy of each value that many pods share.
#[derive(Debug, Default)]
pub struct Interner {
    texts: HashSet<Arc<str>>,
    labels: HashSet<Arc<BTreeMap<String, String>>>,
    owners: HashSet<Arc<Owner>>,
    conditions: HashSet<Arc<[Condition]>>,
}

impl Interner {
    /// Removes the copies that nothing shares any more. Call it now and then, not on every event.
    pub fn sweep(&mut self) {
        self.texts.retain(|each| Arc::strong_count(each) > 1);
        self.labels.retain(|each| Arc::strong_count(each) > 1);
        self.owners.retain(|each| Arc::strong_count(each) > 1);
        self.conditions.retain(|each| Arc::strong_count(each) > 1);
    }

    /// Leaves of a pod only what pod GC reads. Labels are often a pod's own.
    pub(crate) fn strip(&mut self, pod: &mut Pod) {
        pod.labels = intern(&mut self.labels, BTreeMap::new());
        pod.index_label = None;
        pod.containers = Box::default();
    }

    pub(crate) fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return Arc::clone(known);
        }
        let fresh: Arc<str> = text.into();
        self.texts.insert(Arc::clone(&fresh));
        fresh
    }

    /// The owner that is the controller.
    pub(crate) fn owner(&mut self, references: Option<&[OwnerReference]>) -> Option<Arc<Owner>> {
        let mut references = references.into_iter().flatten();
        let each = references.find(|each| each.controller == Some(true))?;
        let owner = Owner {
            api_version: each.api_version.as_str().into(),
            kind: each.kind.as_str().into(),
            name: each.name.as_str().into(),
            uid: each.uid.as_str().into(),
        };
        Some(intern(&mut self.owners, owner))
    }
}

fn intern<T: Eq + Hash>(known: &mut HashSet<Arc<T>>, value: T) -> Arc<T> {
    if let Some(shared) = known.get(&value) {
        return Arc::clone(shared);
    }
    let fresh = Arc::new(value);
    known.insert(Arc::clone(&fresh));
    fresh
}

impl WirePod {
    /// The view of this pod.
    pub fn view(self, interner: &mut Interner) -> Pod {
        let phase = Phase::parse(self.status.phase.as_deref().unwrap_or_default());
        let terminal = matches!(phase, Phase::Succeeded | Phase::Failed);
        let gc = GcFacts::read(&self, terminal, interner);
        let metadata = self.metadata;
        let annotations = metadata.annotations.unwrap_or_default();
        let mut labels = metadata.labels.unwrap_or_default();
        let index_label = labels.remove(COMPLETION_INDEX).map(String::into_boxed_str);
        let owner = interner.owner(metadata.owner_references.as_deref());
        let shown_running_since = shown_running_since(&self.status, &annotations);
        let conditions = self.status.conditions.unwrap_or_default();
        let ready = conditions.iter().find(|each| each.kind == pod_condition::READY).map(|each| {
            ReadyCondition {
                is_true: each.status == "True",
                is_false: each.status == "False",
                since: each.last_transition_time.as_ref().map(|time| time.0),
            }
        });
        let containers = containers(
            self.status.container_statuses.unwrap_or_default(),
            self.status.init_container_statuses.unwrap_or_default(),
            &self.spec.init_containers,
            interner,
        );
        let count = |name: &str| {
            annotations.get(name).and_then(|text| parse_number(text)).unwrap_or_default()
        };
        Pod {
            uid: metadata.uid.unwrap_or_default().into(),
            version: Version::parse(metadata.resource_version.as_deref().unwrap_or_default()),
            namespace: interner.text(metadata.namespace.as_deref().unwrap_or_default()),
            name: metadata.name.unwrap_or_default().into(),
            labels: intern(&mut interner.labels, labels),
            index_label,
            owner,
            created: metadata.creation_timestamp.map(|time| time.0),
            deletion: metadata.deletion_timestamp.map(|time| Deletion {
                at: time.0,
                grace_seconds: metadata.deletion_grace_period_seconds.unwrap_or(0),
            }),
            tracked: metadata.finalizers.iter().flatten().any(|each| each == TRACKING_FINALIZER),
            node: self
                .spec
                .node_name
                .filter(|name| !name.is_empty())
                .map(|name| interner.text(&name)),
            phase,
            index: annotations.get(COMPLETION_INDEX).and_then(|text| parse_number(text)),
            failures: FailureCounts {
                counted: count(INDEX_FAILURE_COUNT),
                ignored: count(INDEX_IGNORED_FAILURE_COUNT),
            },
            conditions: shared_conditions(conditions, interner),
            ready,
            containers,
            shown_running_since,
            gc,
        }
    }
}

/// Since when a pod is Failed while its status shows a running container. `None` if a writer states
/// that no container runs, or if the status does not show since when.
fn shown_running_since(
    status: &WirePodStatus,
    annotations: &BTreeMap<String, String>,
) -> Option<Timestamp> {
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let runs = |each: &WireContainerStatus| {
        each.state.as_ref().is_some_and(|state| state.running.is_some())
    };
    let is_shown = status.phase.as_deref() == Some("Failed")
        && lists.into_iter().flatten().flatten().any(runs);
    if !is_shown || annotations.contains_key(TERMINATED_AT) {
        return None;
    }
    let mut since = None;
    for each in status.conditions.iter().flatten() {
        let holds = each.status == "True";
        let by_gc = each.reason.as_deref() == Some(DELETION_BY_POD_GC);
        match each.kind.as_str() {
            pod_condition::ENDED if holds => return None,
            pod_condition::DISRUPTION_TARGET if holds && by_gc => return None,
            pod_condition::DISRUPTION_TARGET if !holds => {}
            pod_condition::DISRUPTION_TARGET | pod_condition::READY => {
                since = since.max(each.last_transition_time.as_ref().map(|time| time.0));
            }
            _ => {}
        }
    }
    since
}

/// The number in an annotation; indexes and counts are non-negative 32-bit integers. ([I1], [I8])
fn parse_number(text: &str) -> Option<u32> {
    text.parse::<i32>().ok().and_then(|index| u32::try_from(index).ok())
}

fn shared_conditions(conditions: Vec<WireCondition>, interner: &mut Interner) -> Arc<[Condition]> {
    let slim: Arc<[Condition]> = conditions
        .into_iter()
        .map(|each| Condition { kind: each.kind.into(), status: each.status.into() })
        .collect();
    if let Some(shared) = interner.conditions.get(&slim) {
        return Arc::clone(shared);
    }
    interner.conditions.insert(Arc::clone(&slim));
    slim
}

fn containers(
    regular: Vec<WireContainerStatus>,
    init: Vec<WireContainerStatus>,
    init_specs: &[WireContainerSpec],
    interner: &mut Interner,
) -> Box<[Container]> {
    let is_sidecar = |name: &str| {
        init_specs
            .iter()
            .any(|spec| spec.name == name && spec.restart_policy.as_deref() == Some("Always"))
    };
    let regular = regular.into_iter().map(|status| (ContainerKind::Regular, status));
    let init = init.into_iter().map(|status| {
        let sidecar = is_sidecar(&status.name);
        (if sidecar { ContainerKind::Sidecar } else { ContainerKind::Init }, status)
    });
    regular
        .chain(init)
        .map(|(kind, status)| {
            let state = status.state;
            let waiting = state.as_ref().and_then(|state| state.waiting.as_ref());
            let terminated = state.as_ref().and_then(|state| state.terminated.as_ref());
            Container {
                name: interner.text(&status.name),
                kind,
                restarts: u32::try_from(status.restart_count).unwrap_or(0),
                waiting: waiting
                    .and_then(|each| each.reason.as_deref())
                    .map(|reason| interner.text(reason)),
                terminated: terminated.map(|each| Terminated {
                    exit_code: each.exit_code,
                    finished_at: each.finished_at.as_ref().map(|time| time.0),
                }),
            }
        })
        .collect()
}

/// A Job as the API sends it.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct WireJob {
    /// `metadata` as typed fields, without `managedFields`.
    #[serde(skip)]
    pub meta: ObjectMeta,
    #[serde(default, deserialize_with = "without_managed_fields")]
    metadata: Json,
    #[serde(default)]
    spec: WireJobSpec,
    #[serde(default)]
    status: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WireJobSpec {
    pub(super) parallelism: Option<i32>,
    pub(super) completions: Option<i32>,
    pub(super) completion_mode: Option<String>,
    pub(super) backoff_limit: Option<i32>,
    pub(super) backoff_limit_per_index: Option<i32>,
    pub(super) max_failed_indexes: Option<i32>,
    pub(super) active_deadline_seconds: Option<i64>,
    pub(super) suspend: Option<bool>,
    pub(super) managed_by: Option<String>,
    pub(super) pod_replacement_policy: Option<String>,
    pub(super) pod_failure_policy: Option<PodFailurePolicy>,
    pub(super) success_policy: Option<SuccessPolicy>,
    pub(super) selector: Option<Selector>,
    #[serde(default)]
    pub(super) template: Json,
}

/// The part of a template that the controller itself reads.
#[derive(Default, Deserialize)]
struct WireTemplate {
    #[serde(default)]
    spec: WireTemplateSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireTemplateSpec {
    restart_policy: Option<String>,
}

/// Other annotations may be large, and the controller reads none of them.
fn own_annotations(all: Option<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let mut all = all.unwrap_or_default();
    all.retain(|name, _| name.starts_with("epilogue.dev/"));
    all
}

impl WireJob {
    /// Reads a Job from its JSON; the error names the field.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        read::<Self>(text)?.complete()
    }

    /// Parses a Job; the error names the field.
    pub fn parse(object: Value) -> Result<Self, serde_json::Error> {
        serde_json::from_value::<Self>(object)?.complete()
    }

    /// Reads the typed part of the metadata, if serde made this object.
    fn complete(mut self) -> Result<Self, serde_json::Error> {
        let metadata = Some(self.metadata.as_str()).filter(|text| *text != "null");
        if let Some(metadata) = metadata {
            self.meta = lean_metadata(&mut serde_json::Deserializer::from_str(metadata))?;
        }
        Ok(self)
    }

    /// The view of this Job. A status that does not parse reads as empty only if it is absent.
    pub fn view(self) -> Result<Job, serde_json::Error> {
        let meta = self.meta;
        let status: JobStatus = match &self.status {
            Value::Null => JobStatus::default(),
            present => read_field("status", present)?,
        };
        let mut spec = self.spec;
        let template = std::mem::take(&mut spec.template);
        let read: WireTemplate = template.read();
        let (metadata, status_unknown) = (self.metadata, unknown_status(self.status));
        let source = Source::Json { metadata, template, status_unknown };
        Ok(job_view(meta, spec.view(read.spec.restart_policy.as_deref()), status, source))
    }
}

/// The view of a Job in whichever format it came.
pub(super) fn job_view(meta: ObjectMeta, spec: JobSpec, status: JobStatus, source: Source) -> Job {
    Job {
        key: JobKey::new(meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default()),
        uid: meta.uid.unwrap_or_default().into(),
        version: Version::parse(meta.resource_version.as_deref().unwrap_or_default()),
        generation: meta.generation.unwrap_or(0),
        created: meta.creation_timestamp.map(|time| time.0),
        deleting: meta.deletion_timestamp.is_some(),
        annotations: own_annotations(meta.annotations),
        spec,
        status,
        source,
    }
}

impl WireJobSpec {
    /// The view, for a template with this `restartPolicy`.
    pub(super) fn view(self, restart_policy: Option<&str>) -> JobSpec {
        let restart_policy = match restart_policy {
            Some("OnFailure") => RestartPolicy::OnFailure,
            _ => RestartPolicy::Never,
        };
        JobSpec {
            parallelism: self.parallelism.unwrap_or(1),
            completions: self.completions,
            completion_mode: match self.completion_mode.as_deref() {
                None | Some("" | "NonIndexed") => CompletionMode::NonIndexed,
                Some("Indexed") => CompletionMode::Indexed,
                Some(other) => CompletionMode::Unknown(other.to_owned()),
            },
            backoff_limit: self.backoff_limit.unwrap_or(6),
            backoff_limit_per_index: self.backoff_limit_per_index,
            max_failed_indexes: self.max_failed_indexes,
            active_deadline_seconds: self.active_deadline_seconds,
            suspend: self.suspend.unwrap_or(false),
            managed_by: self.managed_by,
            replaces_failed_only: self.pod_replacement_policy.as_deref() == Some("Failed"),
            pod_failure_policy: self.pod_failure_policy,
            success_policy: self.success_policy,
            selector: self.selector.unwrap_or_default(),
            restart_policy,
        }
    }
}

const KNOWN_STATUS: [&str; 11] = [
    "active",
    "completedIndexes",
    "completionTime",
    "conditions",
    "failed",
    "failedIndexes",
    "ready",
    "startTime",
    "succeeded",
    "terminating",
    "uncountedTerminatedPods",
];

fn unknown_status(status: Value) -> Map<String, Value> {
    match status {
        Value::Object(fields) => {
            fields.into_iter().filter(|(name, _)| !KNOWN_STATUS.contains(&name.as_str())).collect()
        }
        _ => Map::new(),
    }
}
