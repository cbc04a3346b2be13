//! Reads Jobs from the API's protobuf, and writes their status.

use epilogue_common::watch_event::Rejected;
use k8s_openapi::api::batch::v1::{
    JobCondition, JobStatus, PodFailurePolicyOnExitCodesRequirement,
    PodFailurePolicyOnPodConditionsPattern, SuccessPolicy, SuccessPolicyRule,
    UncountedTerminatedPods,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use prost::Message;
use prost::bytes::Bytes;

use super::scheduling::SchedulingMessage;
use super::{EntryMessage, MetaMessage, Text, TimeMessage, decoded, present, retain, text, time};
use crate::view::wire::{WireJobSpec, job_view};
use crate::view::{
    FailurePolicy, FailureRule, Job, JobScheduling, Selector, Source, UnknownFields,
};

/// The tag of `metadata.managedFields`.
const MANAGED_FIELDS: u32 = 17;
/// The tags of `status` that [`StatusMessage`] has are 1 to this one.
const STATUS_TAG_MAX: u32 = 11;
/// The same for [`ConditionMessage`] and for [`UncountedMessage`].
const CONDITION_TAG_MAX: u32 = 6;
const UNCOUNTED_TAG_MAX: u32 = 2;

/// A Job, with the messages that are kept as they are.
#[derive(Clone, PartialEq, Message)]
struct JobMessage {
    #[prost(bytes = "bytes", tag = "1")]
    metadata: Bytes,
    #[prost(message, optional, tag = "2")]
    spec: Option<SpecMessage>,
    #[prost(bytes = "bytes", tag = "3")]
    status: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct SpecMessage {
    #[prost(int32, optional, tag = "1")]
    parallelism: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    completions: Option<i32>,
    #[prost(int64, optional, tag = "3")]
    active_deadline_seconds: Option<i64>,
    #[prost(message, optional, tag = "4")]
    selector: Option<SelectorMessage>,
    #[prost(bytes = "bytes", tag = "6")]
    template: Bytes,
    #[prost(int32, optional, tag = "7")]
    backoff_limit: Option<i32>,
    #[prost(bytes = "vec", optional, tag = "9")]
    completion_mode: Option<Text>,
    #[prost(bool, optional, tag = "10")]
    suspend: Option<bool>,
    #[prost(message, optional, tag = "11")]
    pod_failure_policy: Option<FailurePolicyMessage>,
    #[prost(int32, optional, tag = "12")]
    backoff_limit_per_index: Option<i32>,
    #[prost(int32, optional, tag = "13")]
    max_failed_indexes: Option<i32>,
    #[prost(bytes = "vec", optional, tag = "14")]
    pod_replacement_policy: Option<Text>,
    #[prost(bytes = "vec", optional, tag = "15")]
    managed_by: Option<Text>,
    #[prost(message, optional, tag = "16")]
    success_policy: Option<SuccessPolicyMessage>,
    #[prost(message, optional, tag = "17")]
    scheduling: Option<SchedulingMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct SelectorMessage {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<EntryMessage>,
    #[prost(message, repeated, tag = "2")]
    expressions: Vec<ExpressionMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ExpressionMessage {
    #[prost(bytes = "vec", tag = "1")]
    key: Text,
    #[prost(bytes = "vec", tag = "2")]
    operator: Text,
    #[prost(bytes = "vec", repeated, tag = "3")]
    values: Vec<Text>,
}

#[derive(Clone, PartialEq, Message)]
struct FailurePolicyMessage {
    #[prost(message, repeated, tag = "1")]
    rules: Vec<FailureRuleMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct FailureRuleMessage {
    #[prost(bytes = "vec", tag = "1")]
    action: Text,
    #[prost(message, optional, tag = "2")]
    on_exit_codes: Option<ExitCodesMessage>,
    #[prost(message, repeated, tag = "3")]
    on_pod_conditions: Vec<PatternMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ExitCodesMessage {
    #[prost(bytes = "vec", optional, tag = "1")]
    container_name: Option<Text>,
    #[prost(bytes = "vec", tag = "2")]
    operator: Text,
    #[prost(int32, repeated, tag = "3")]
    values: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct PatternMessage {
    #[prost(bytes = "vec", tag = "1")]
    kind: Text,
    #[prost(bytes = "vec", optional, tag = "2")]
    status: Option<Text>,
}

#[derive(Clone, PartialEq, Message)]
struct SuccessPolicyMessage {
    #[prost(message, repeated, tag = "1")]
    rules: Vec<SuccessRuleMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct SuccessRuleMessage {
    #[prost(bytes = "vec", optional, tag = "1")]
    succeeded_indexes: Option<Text>,
    #[prost(int32, optional, tag = "2")]
    succeeded_count: Option<i32>,
}

/// The part of a template that decisions read.
#[derive(Clone, PartialEq, Message)]
struct TemplateMessage {
    #[prost(message, optional, tag = "2")]
    spec: Option<TemplateSpecMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct TemplateSpecMessage {
    #[prost(bytes = "vec", tag = "3")]
    restart_policy: Text,
    #[prost(message, optional, tag = "43")]
    scheduling_group: Option<()>,
}

#[derive(Clone, PartialEq, Message)]
struct StatusMessage {
    #[prost(message, repeated, tag = "1")]
    conditions: Vec<ConditionMessage>,
    #[prost(message, optional, tag = "2")]
    start_time: Option<TimeMessage>,
    #[prost(message, optional, tag = "3")]
    completion_time: Option<TimeMessage>,
    #[prost(int32, tag = "4")]
    active: i32,
    #[prost(int32, tag = "5")]
    succeeded: i32,
    #[prost(int32, tag = "6")]
    failed: i32,
    #[prost(bytes = "vec", tag = "7")]
    completed_indexes: Text,
    #[prost(message, optional, tag = "8")]
    uncounted: Option<UncountedMessage>,
    #[prost(int32, optional, tag = "9")]
    ready: Option<i32>,
    #[prost(bytes = "vec", optional, tag = "10")]
    failed_indexes: Option<Text>,
    #[prost(int32, optional, tag = "11")]
    terminating: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct UncountedMessage {
    #[prost(bytes = "vec", repeated, tag = "1")]
    succeeded: Vec<Text>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    failed: Vec<Text>,
}

#[derive(Clone, PartialEq, Message)]
struct ConditionMessage {
    #[prost(bytes = "vec", tag = "1")]
    kind: Text,
    #[prost(bytes = "vec", tag = "2")]
    status: Text,
    #[prost(message, optional, tag = "3")]
    last_probe_time: Option<TimeMessage>,
    #[prost(message, optional, tag = "4")]
    last_transition_time: Option<TimeMessage>,
    #[prost(bytes = "vec", tag = "5")]
    reason: Text,
    #[prost(bytes = "vec", tag = "6")]
    message: Text,
}

/// The messages within a status, as they are.
#[derive(Clone, PartialEq, Message)]
struct StatusParts {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    conditions: Vec<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    uncounted: Option<Bytes>,
}

/// The spec of a Job, as it is.
#[derive(Clone, PartialEq, Message)]
struct SpecPart {
    #[prost(bytes = "bytes", optional, tag = "2")]
    spec: Option<Bytes>,
}

impl Job {
    /// Reads a Job from its protobuf message, and its `resourceVersion` as the server writes it.
    pub fn decode(message: &[u8]) -> Result<(Self, String), Rejected> {
        let JobMessage { metadata, spec, status } = decoded(message)?;
        let mut spec = spec.unwrap_or_default();
        let managed_by = spec.managed_by.clone().map(text);
        let rejected = |why| Rejected { why, managed_by };
        let fields: StatusMessage = decoded(&status)?;
        let fields = fields.read().map_err(rejected)?;
        let template: TemplateMessage = decoded(&spec.template)?;
        let template = template.spec.unwrap_or_default();
        let restart_policy = Some(text(template.restart_policy));
        let scheduling = JobScheduling {
            spec: spec.scheduling.take().map(SchedulingMessage::read),
            has_own_group: template.scheduling_group.is_some(),
            ..JobScheduling::default()
        };
        let source = Source::Protobuf {
            metadata: retain(&metadata, |tag| tag != MANAGED_FIELDS).into(),
            template: spec.template.clone(),
            status_unknown: unknown_status(&status)?,
        };
        let meta = decoded::<MetaMessage>(&metadata)?.wire();
        let version = meta.resource_version.clone().unwrap_or_default();
        let spec = spec.wire().view(restart_policy.as_deref());
        Ok((job_view(meta, (spec, scheduling), fields, source), version))
    }
}

impl SpecMessage {
    fn wire(self) -> WireJobSpec {
        WireJobSpec {
            parallelism: self.parallelism,
            completions: self.completions,
            completion_mode: self.completion_mode.map(text),
            backoff_limit: self.backoff_limit,
            backoff_limit_per_index: self.backoff_limit_per_index,
            max_failed_indexes: self.max_failed_indexes,
            active_deadline_seconds: self.active_deadline_seconds,
            suspend: self.suspend,
            managed_by: self.managed_by.map(text),
            pod_replacement_policy: self.pod_replacement_policy.map(text),
            pod_failure_policy: self.pod_failure_policy.map(failure_policy),
            success_policy: self.success_policy.map(success_policy),
            selector: self.selector.map(selector),
            ..WireJobSpec::default()
        }
    }
}

fn selector(selector: SelectorMessage) -> Selector {
    let labels = selector.labels.into_iter().map(|it| (text(it.key), text(it.value)));
    let expressions = selector.expressions.into_iter();
    Selector::of(
        // A later entry of a map replaces an earlier one.
        labels.collect(),
        expressions.map(|it| (text(it.key), text(it.operator), it.values.into_iter().map(text))),
    )
}

fn failure_policy(policy: FailurePolicyMessage) -> FailurePolicy {
    let pattern = |it: PatternMessage| PodFailurePolicyOnPodConditionsPattern {
        type_: text(it.kind),
        status: it.status.map(text),
    };
    let exit_codes = |it: ExitCodesMessage| PodFailurePolicyOnExitCodesRequirement {
        container_name: it.container_name.map(text),
        operator: text(it.operator),
        values: it.values,
    };
    let rule = |it: FailureRuleMessage| FailureRule {
        // No release has the field yet (KEP-4443), so its tag is not known. JSON has the name.
        name: None,
        action: text(it.action),
        on_exit_codes: it.on_exit_codes.map(exit_codes),
        on_pod_conditions: filled(it.on_pod_conditions.into_iter().map(pattern)),
    };
    FailurePolicy { rules: policy.rules.into_iter().map(rule).collect() }
}

fn success_policy(policy: SuccessPolicyMessage) -> SuccessPolicy {
    let rule = |it: SuccessRuleMessage| SuccessPolicyRule {
        succeeded_count: it.succeeded_count,
        succeeded_indexes: it.succeeded_indexes.map(text),
    };
    SuccessPolicy { rules: policy.rules.into_iter().map(rule).collect() }
}

impl StatusMessage {
    /// The status as JSON has it, which omits zeros and empty lists.
    fn read(self) -> Result<JobStatus, String> {
        let count = |count: i32| Some(count).filter(|count| *count != 0);
        let condition = |(index, it): (usize, ConditionMessage)| {
            let field = |name| format!("conditions[{index}].{name}");
            Ok(JobCondition {
                type_: text(it.kind),
                status: text(it.status),
                last_probe_time: known_time(it.last_probe_time, || field("lastProbeTime"))?,
                last_transition_time: known_time(it.last_transition_time, || {
                    field("lastTransitionTime")
                })?,
                reason: present(it.reason),
                message: present(it.message),
            })
        };
        let conditions = self.conditions.into_iter().enumerate().map(condition);
        let conditions: Vec<_> = conditions.collect::<Result<_, String>>()?;
        let uids = |uids: Vec<Text>| filled(uids.into_iter().map(text));
        Ok(JobStatus {
            conditions: filled(conditions.into_iter()),
            start_time: known_time(self.start_time, || "startTime".to_owned())?,
            completion_time: known_time(self.completion_time, || "completionTime".to_owned())?,
            active: count(self.active),
            succeeded: count(self.succeeded),
            failed: count(self.failed),
            completed_indexes: present(self.completed_indexes),
            uncounted_terminated_pods: self.uncounted.map(|it| UncountedTerminatedPods {
                succeeded: uids(it.succeeded),
                failed: uids(it.failed),
            }),
            ready: self.ready,
            failed_indexes: self.failed_indexes.map(text),
            terminating: self.terminating,
        })
    }

    fn of(status: &JobStatus) -> Self {
        let bytes = |text: &Option<String>| text.clone().unwrap_or_default().into_bytes();
        let condition = |it: &JobCondition| ConditionMessage {
            kind: it.type_.clone().into(),
            status: it.status.clone().into(),
            last_probe_time: it.last_probe_time.as_ref().map(time_message),
            last_transition_time: it.last_transition_time.as_ref().map(time_message),
            reason: bytes(&it.reason),
            message: bytes(&it.message),
        };
        let uids = |uids: &Option<Vec<String>>| -> Vec<Text> {
            uids.iter().flatten().map(|uid| uid.clone().into()).collect()
        };
        Self {
            conditions: status.conditions.iter().flatten().map(condition).collect(),
            start_time: status.start_time.as_ref().map(time_message),
            completion_time: status.completion_time.as_ref().map(time_message),
            active: status.active.unwrap_or(0),
            succeeded: status.succeeded.unwrap_or(0),
            failed: status.failed.unwrap_or(0),
            completed_indexes: bytes(&status.completed_indexes),
            uncounted: status.uncounted_terminated_pods.as_ref().map(|it| UncountedMessage {
                succeeded: uids(&it.succeeded),
                failed: uids(&it.failed),
            }),
            ready: status.ready,
            failed_indexes: status.failed_indexes.clone().map(Into::into),
            terminating: status.terminating,
        }
    }
}

/// The fields of a status that no message here has.
fn unknown_status(status: &Bytes) -> Result<UnknownFields<Bytes>, Rejected> {
    let parts: StatusParts = decoded(status)?;
    let unknown = |message: &[u8], max: u32| Bytes::from(retain(message, |tag| tag > max));
    let mut conditions = Vec::new();
    for condition in &parts.conditions {
        let fields = unknown(condition, CONDITION_TAG_MAX);
        if !fields.is_empty() {
            let known: ConditionMessage = decoded(condition)?;
            conditions.push((text(known.kind), text(known.status), fields));
        }
    }
    let uncounted = parts.uncounted.map(|uncounted| unknown(&uncounted, UNCOUNTED_TAG_MAX));
    let status = unknown(status, STATUS_TAG_MAX);
    Ok(UnknownFields { status, conditions, uncounted: uncounted.unwrap_or_default() })
}

/// The message of a Job for a status write: the metadata and the unknown fields of the status as
/// they came.
pub(crate) fn status_message(
    metadata: &Bytes,
    unknown: &UnknownFields<Bytes>,
    status: &JobStatus,
) -> Vec<u8> {
    let mut message = StatusMessage::of(status);
    let extended = |message: &[u8], unknown: Option<&Bytes>| {
        let unknown = unknown.map(AsRef::as_ref).unwrap_or_default();
        Bytes::from([message, unknown].concat())
    };
    let conditions = std::mem::take(&mut message.conditions).into_iter();
    let conditions = conditions
        .zip(status.conditions.iter().flatten())
        .map(|(it, of)| extended(&it.encode_to_vec(), unknown.of_condition(&of.type_, &of.status)));
    let uncounted = message.uncounted.take();
    let parts = StatusParts {
        conditions: conditions.collect(),
        uncounted: uncounted.map(|it| extended(&it.encode_to_vec(), Some(&unknown.uncounted))),
    };
    let mut fields = unknown.status.to_vec();
    message.encode(&mut fields).expect("a vector grows");
    parts.encode(&mut fields).expect("a vector grows");
    let (metadata, status) = (metadata.clone(), fields.into());
    JobMessage { metadata, spec: None, status }.encode_to_vec()
}

/// The message of a Job without a spec, with this one.
pub(crate) fn with_spec(mut message: Vec<u8>, spec: &Bytes) -> Vec<u8> {
    let part = SpecPart { spec: Some(spec.clone()) };
    part.encode(&mut message).expect("a vector grows");
    message
}

/// The spec within the message of a Job.
pub(in crate::view) fn raw_spec(message: &[u8]) -> Result<Bytes, Rejected> {
    Ok(decoded::<SpecPart>(message)?.spec.unwrap_or_default())
}

fn filled<T>(all: impl Iterator<Item = T>) -> Option<Vec<T>> {
    Some(all.collect()).filter(|all: &Vec<T>| !all.is_empty())
}

/// A time that a write echoes. Another one in its place would be a change.
fn known_time(
    read: Option<TimeMessage>,
    field: impl FnOnce() -> String,
) -> Result<Option<Time>, String> {
    let time = time(read);
    let is_beyond = time.as_ref().map(|time| time.0.as_second()) != read.and_then(|it| it.seconds);
    if is_beyond {
        return Err(format!("status.{}: the time is beyond the calendar", field()));
    }
    Ok(time)
}

fn time_message(time: &Time) -> TimeMessage {
    TimeMessage { seconds: Some(time.0.as_second()) }
}

#[cfg(test)]
mod tests {
    use super::super::OwnerMessage;
    use super::*;
    use crate::job::status_body;
    use crate::view::WireJob;
    use serde_json::json;

    /// A field that no message here has.
    const UNKNOWN: &[u8] = &[0xa2, 0x06, 0x01, b'u'];

    fn at(seconds: i64) -> TimeMessage {
        TimeMessage { seconds: Some(seconds) }
    }

    fn entry(key: &str, value: &str) -> EntryMessage {
        EntryMessage { key: key.into(), value: value.into() }
    }

    /// A message with an unknown field behind it.
    fn extended(message: &impl Message) -> Bytes {
        [&message.encode_to_vec(), UNKNOWN].concat().into()
    }

    fn metadata() -> Bytes {
        let metadata = MetaMessage {
            name: "j".into(),
            namespace: "ns".into(),
            uid: "uid".into(),
            resource_version: "7".into(),
            generation: 3,
            creation_timestamp: at(1_000).into(),
            annotations: vec![
                entry("epilogue.dev/backoff-base", "1s"),
                entry("scheduling.k8s.io/group-template-name", "workers"),
                entry("note", "left out"),
            ],
            owner_references: vec![OwnerMessage {
                kind: "JobSet".into(),
                name: "parent".into(),
                uid: "uid-parent".into(),
                api_version: "jobset.x-k8s.io/v1alpha2".into(),
                controller: Some(true),
            }],
            ..MetaMessage::default()
        };
        extended(&metadata)
    }

    fn spec() -> SpecMessage {
        let expression = ExpressionMessage {
            key: "a".into(),
            operator: "In".into(),
            values: vec!["b".into(), "c".into()],
        };
        let exit_codes = ExitCodesMessage {
            container_name: Some("main".into()),
            operator: "In".into(),
            values: vec![1, 255],
        };
        let pattern =
            PatternMessage { kind: "DisruptionTarget".into(), status: Some("True".into()) };
        let rules = vec![
            FailureRuleMessage {
                action: "FailJob".into(),
                on_exit_codes: Some(exit_codes),
                on_pod_conditions: vec![],
            },
            FailureRuleMessage {
                action: "Ignore".into(),
                on_exit_codes: None,
                on_pod_conditions: vec![pattern],
            },
        ];
        let success =
            SuccessRuleMessage { succeeded_indexes: Some("0-2".into()), succeeded_count: Some(1) };
        let template = TemplateMessage {
            spec: Some(TemplateSpecMessage {
                restart_policy: "OnFailure".into(),
                scheduling_group: Some(()),
            }),
        };
        SpecMessage {
            parallelism: Some(0),
            completions: Some(5),
            active_deadline_seconds: Some(i64::MAX),
            selector: Some(SelectorMessage {
                labels: vec![entry("job", "old"), entry("job", "j")],
                expressions: vec![expression],
            }),
            template: extended(&template),
            backoff_limit: Some(0),
            completion_mode: Some("Indexed".into()),
            suspend: Some(false),
            pod_failure_policy: Some(FailurePolicyMessage { rules }),
            backoff_limit_per_index: Some(1),
            max_failed_indexes: Some(2),
            pod_replacement_policy: Some("Failed".into()),
            managed_by: Some("example.com/x".into()),
            success_policy: Some(SuccessPolicyMessage { rules: vec![success] }),
            scheduling: Some(crate::view::protobuf::scheduling::sample()),
        }
    }

    fn status() -> StatusMessage {
        StatusMessage {
            conditions: vec![ConditionMessage {
                kind: "Suspended".into(),
                status: "False".into(),
                // Go writes an absent time as an empty message.
                last_probe_time: Some(TimeMessage { seconds: None }),
                last_transition_time: at(0).into(),
                reason: "JobResumed".into(),
                message: Text::new(),
            }],
            start_time: at(1_001).into(),
            completion_time: None,
            active: 0,
            succeeded: 2,
            failed: 0,
            completed_indexes: "0,2".into(),
            uncounted: Some(UncountedMessage { succeeded: vec!["u".into()], failed: vec![] }),
            ready: Some(0),
            failed_indexes: Some(Text::new()),
            terminating: None,
        }
    }

    fn message(status: &StatusMessage) -> Vec<u8> {
        let (metadata, status) = (metadata(), extended(status));
        JobMessage { metadata, spec: Some(spec()), status }.encode_to_vec()
    }

    fn read(message: &[u8]) -> Job {
        Job::decode(message).expect("must be a Job").0
    }

    #[test]
    fn protobuf_and_json_give_the_same_job() {
        let rules = json!([
            {"action": "FailJob",
             "onExitCodes": {"containerName": "main", "operator": "In", "values": [1, 255]}},
            {"action": "Ignore",
             "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]);
        let json = json!({
            "metadata": {
                "name": "j", "namespace": "ns", "uid": "uid", "resourceVersion": "7",
                "generation": 3, "creationTimestamp": "1970-01-01T00:16:40Z",
                "annotations": {"epilogue.dev/backoff-base": "1s", "note": "left out",
                                "scheduling.k8s.io/group-template-name": "workers"},
                "ownerReferences": [{"apiVersion": "jobset.x-k8s.io/v1alpha2",
                    "kind": "JobSet", "name": "parent", "uid": "uid-parent",
                    "controller": true}],
            },
            "spec": {
                "parallelism": 0, "completions": 5, "activeDeadlineSeconds": i64::MAX,
                "backoffLimit": 0, "completionMode": "Indexed", "suspend": false,
                "backoffLimitPerIndex": 1, "maxFailedIndexes": 2,
                "podReplacementPolicy": "Failed", "managedBy": "example.com/x",
                "podFailurePolicy": {"rules": rules},
                "successPolicy": {"rules": [{"succeededIndexes": "0-2", "succeededCount": 1}]},
                "selector": {"matchLabels": {"job": "j"}, "matchExpressions": [
                    {"key": "a", "operator": "In", "values": ["b", "c"]}]},
                "template": {"spec": {"restartPolicy": "OnFailure",
                    "schedulingGroup": {"podGroupName": "theirs"}}},
                "scheduling": {
                    "schedulingPolicy": {"gang": {"minCount": 2}},
                    "schedulingConstraints": {"topology": [{"key": "zone"}]},
                    "disruptionMode": {"all": {}},
                    "resourceClaims": [{"name": "gpu",
                                        "resourceClaimTemplateName": "gpus"}],
                },
            },
            "status": {
                "startTime": "1970-01-01T00:16:41Z", "succeeded": 2, "completedIndexes": "0,2",
                "uncountedTerminatedPods": {"succeeded": ["u"]}, "ready": 0, "failedIndexes": "",
                "conditions": [{"type": "Suspended", "status": "False", "reason": "JobResumed",
                                "lastProbeTime": null,
                                "lastTransitionTime": "1970-01-01T00:00:00Z"}],
            },
        });
        let json = WireJob::parse(json).and_then(WireJob::view).expect("must be a Job");
        let (job, version) = Job::decode(&message(&status())).expect("must be a Job");
        assert_eq!(version, "7");
        assert_eq!(Job { source: json.source.clone(), ..job.clone() }, json);
        assert!(job.scheduling.is_some_and(|it| it.has_own_group && it.controller.is_some()));
    }

    #[test]
    fn an_empty_message_is_a_job_without_facts() {
        let empty = WireJob::read("{}").and_then(WireJob::view).expect("must be a Job");
        assert_eq!(Job { source: empty.source.clone(), ..read(&[]) }, empty);
    }

    #[test]
    fn unknown_fields_are_kept_and_managed_fields_are_not() {
        let managed_fields = [0x8a, 0x01, 0x02, 0xff, 0xff];
        let bytes: Bytes = [&managed_fields, &*metadata(), &managed_fields].concat().into();
        let (status, spec) = (extended(&status()), Some(spec()));
        let job = read(&JobMessage { metadata: bytes, spec, status }.encode_to_vec());
        let Source::Protobuf { metadata: kept, template, status_unknown } = &job.source else {
            panic!("must be from protobuf");
        };
        assert_eq!((kept, &*status_unknown.status), (&metadata(), UNKNOWN));
        assert!(template.ends_with(UNKNOWN));
        let written = JobStatus { active: Some(3), ..job.status.clone() };
        let body = status_body(&job, &written).expect("must be writable").into_bytes();
        let contains = |part: &[u8]| body.windows(part.len()).any(|window| window == part);
        assert!(contains(&metadata()) && contains(UNKNOWN));
        assert!(body.starts_with(b"k8s\0") && contains(b"batch/v1") && contains(b"Job"));
    }

    #[test]
    fn a_status_is_read_as_it_was_written() {
        let job = read(&message(&status()));
        let Source::Protobuf { metadata, status_unknown, .. } = &job.source else {
            panic!("must be from protobuf");
        };
        let written = JobStatus { failed: Some(1), terminating: Some(0), ..job.status.clone() };
        let again = read(&status_message(metadata, status_unknown, &written));
        assert_eq!(again.status, written);
        assert_eq!((again.version, &again.uid), (job.version, &job.uid));
    }

    #[test]
    fn a_time_beyond_the_calendar_names_the_field_and_who_runs_the_job() {
        let mut far = status();
        far.conditions[0].last_transition_time = at(253_402_300_799).into();
        let rejected = Job::decode(&message(&far)).expect_err("must be rejected");
        let why = "status.conditions[0].lastTransitionTime: the time is beyond the calendar";
        assert_eq!((&*rejected.why, rejected.managed_by.as_deref()), (why, Some("example.com/x")));
        let far = StatusMessage { start_time: at(i64::MIN).into(), ..status() };
        let rejected = Job::decode(&message(&far)).expect_err("must be rejected");
        assert_eq!(rejected.why, "status.startTime: the time is beyond the calendar");
    }

    /// A later API may give a condition, or the list of uncounted pods, more fields.
    #[test]
    fn unknown_fields_within_the_status_are_written_as_they_came() {
        let parts = |status: &StatusMessage, of_condition: &[u8], of_list: &[u8]| {
            let mut rest = status.clone();
            let condition = rest.conditions.remove(0).encode_to_vec();
            let list = rest.uncounted.take().expect("must be there").encode_to_vec();
            let parts = StatusParts {
                conditions: vec![[&condition, of_condition].concat().into()],
                uncounted: Some([&list, of_list].concat().into()),
            };
            Bytes::from([rest.encode_to_vec(), parts.encode_to_vec()].concat())
        };
        let later: &[u8] = &[0x38, 0x05];
        let status = parts(&status(), later, UNKNOWN);
        let job =
            read(&JobMessage { metadata: metadata(), spec: Some(spec()), status }.encode_to_vec());
        let written = |status: &JobStatus| {
            let Source::Protobuf { metadata, status_unknown, .. } = &job.source else {
                panic!("must be from protobuf");
            };
            let message = status_message(metadata, status_unknown, status);
            let JobMessage { status, .. } = decoded(&message).expect("must be a Job");
            unknown_status(&status).expect("must be a status")
        };
        let suspended = |says: &str| ("Suspended".to_owned(), says.to_owned(), later.into());
        let same = written(&job.status);
        assert_eq!((same.conditions, &*same.uncounted), (vec![suspended("False")], UNKNOWN));
        let mut changed = job.status.clone();
        changed.conditions.iter_mut().flatten().for_each(|it| it.status = "True".to_owned());
        assert!(written(&changed).conditions.is_empty(), "it says something else now");
    }
}
