//! Parses the API's JSON into the slim views, and skips what no decision reads.

use std::collections::BTreeMap;

use epilogue_common::names::{GROUP_TEMPLATE_NAME, job_option};
use k8s_openapi::api::batch::v1::{JobStatus, SuccessPolicy};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::json::{Json, read, read_field, without_managed_fields};
use super::lenient::{lean_metadata, lenient_time};
use super::{
    CompletionMode, FailurePolicy, Job, JobKey, JobScheduling, JobSpec, RestartPolicy,
    SchedulingSpec, Selector, Source, TypedReference, UnknownFields, Version,
};

/// The most bytes of an option. The longest duration has fewer.
const OPTION_MAX: usize = 128;
/// The same of `epilogue.dev/pod-failure-policy-names`: 20 names of 111 bytes, with commas.
const NAMES_MAX: usize = 20 * 112 - 1;

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
    pub(crate) scheduling_group: Option<WireSchedulingGroup>,
    #[serde(default)]
    pub(crate) containers: Vec<WireContainerSpec>,
    #[serde(default)]
    pub(crate) init_containers: Vec<WireContainerSpec>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireSchedulingGroup {
    pub(crate) pod_group_name: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireContainerSpec {
    #[serde(default)]
    pub(super) name: String,
    pub(crate) restart_policy: Option<String>,
    pub(crate) restart_policy_rules: Option<Vec<WireRestartRule>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct WireRestartRule {
    #[serde(default)]
    pub(crate) action: String,
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
    pub(crate) message: Option<String>,
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
    pub(crate) last_state: Option<WireContainerState>,
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
    pub(super) reason: Option<String>,
    #[serde(default, deserialize_with = "lenient_time")]
    pub(crate) started_at: Option<Time>,
    #[serde(default, deserialize_with = "lenient_time")]
    pub(crate) finished_at: Option<Time>,
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
    pub(super) pod_failure_policy: Option<FailurePolicy>,
    pub(super) success_policy: Option<SuccessPolicy>,
    pub(super) selector: Option<Selector>,
    pub(super) scheduling: Option<SchedulingSpec>,
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
    scheduling_group: Option<IgnoredAny>,
}

/// The options of the Job. Other annotations may be large, and the controller reads none of them.
///
/// Of a value that is too long the beginning is kept, so that an event shows it. No option can be
/// read from it.
fn own_annotations(all: Option<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let mut all = all.unwrap_or_default();
    all.retain(|name, _| job_option::ALL.contains(&name.as_str()));
    for (name, value) in &mut all {
        let is_list = name == job_option::POD_FAILURE_POLICY_NAMES;
        let max = if is_list { NAMES_MAX } else { OPTION_MAX };
        if value.len() > max {
            value.truncate(value.floor_char_boundary(max));
            value.push('…');
            value.shrink_to_fit();
        }
    }
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
        let scheduling = JobScheduling {
            spec: spec.scheduling.take(),
            has_own_group: read.spec.scheduling_group.is_some(),
            ..JobScheduling::default()
        };
        let spec = spec.view(read.spec.restart_policy.as_deref());
        Ok(job_view(meta, (spec, scheduling), status, source))
    }
}

/// The view of a Job in whichever format it came.
pub(super) fn job_view(
    meta: ObjectMeta,
    (spec, of_spec): (JobSpec, JobScheduling),
    status: JobStatus,
    source: Source,
) -> Job {
    let scheduling = JobScheduling {
        controller: TypedReference::of_controller(meta.owner_references.as_deref().unwrap_or(&[])),
        group_template: meta
            .annotations
            .as_ref()
            .and_then(|all| all.get(GROUP_TEMPLATE_NAME))
            .cloned(),
        ..of_spec
    };
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
        scheduling: Some(scheduling).filter(|it| !it.says_nothing()).map(Box::new),
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

/// The fields that `JobCondition` has.
const KNOWN_CONDITION: [&str; 6] =
    ["type", "status", "lastProbeTime", "lastTransitionTime", "reason", "message"];

/// The fields that `UncountedTerminatedPods` has.
const KNOWN_UNCOUNTED: [&str; 2] = ["succeeded", "failed"];

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

fn unknown_status(status: Value) -> UnknownFields<Map<String, Value>> {
    let Value::Object(mut status) = status else { return UnknownFields::default() };
    let text = |condition: &Map<String, Value>, field: &str| {
        condition.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    let of_condition = |condition: &mut Value| {
        let fields = condition.as_object_mut()?;
        let (kind, says) = (text(fields, "type"), text(fields, "status"));
        let unknown = unknown_of(std::mem::take(fields), &KNOWN_CONDITION);
        (!unknown.is_empty()).then_some((kind, says, unknown))
    };
    let conditions = conditions.into_iter().flatten().filter_map(of_condition).collect();
    let uncounted = match status.remove("uncountedTerminatedPods") {
        Some(Value::Object(fields)) => unknown_of(fields, &KNOWN_UNCOUNTED),
        _ => Map::new(),
    };
    UnknownFields { status: unknown_of(status, &KNOWN_STATUS), conditions, uncounted }
}

fn unknown_of(fields: Map<String, Value>, known: &[&str]) -> Map<String, Value> {
    fields.into_iter().filter(|(name, _)| !known.contains(&name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The API stores 256 KiB of annotations for each Job.
    #[test]
    fn of_annotations_little_is_kept() {
        let more = (0..5_000).map(|number| (format!("epilogue.dev/more-{number}"), json!("x")));
        let mut annotations: Map<String, Value> = more.collect();
        annotations.insert(job_option::BACKOFF_BASE.to_owned(), "1h".repeat(100_000).into());
        annotations.insert(job_option::BACKOFF_MAX.to_owned(), "ä".repeat(100).into());
        annotations.insert(job_option::PENDING_TIMEOUT.to_owned(), "10m".into());
        let job = json!({"metadata": {"name": "j", "annotations": annotations}});
        let kept = WireJob::parse(job).and_then(WireJob::view).expect("must be a Job").annotations;
        let size: usize = kept.iter().map(|(name, value)| name.len() + value.capacity()).sum();
        assert!(size < 400, "{size} bytes");
        let values: Vec<_> = kept.into_values().collect();
        let cut = [format!("{}…", "1h".repeat(64)), format!("{}…", "ä".repeat(64))];
        assert_eq!(values, [&cut[0], &cut[1], "10m"]);
    }
}
