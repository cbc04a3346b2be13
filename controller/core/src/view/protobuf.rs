//! Reads pods and Jobs from the API's protobuf: only the fields of their views, by the tags of the
//! published `generated.proto`. All other fields are skipped undecoded.
//!
//! Strings are read as bytes: clients may store text that is not UTF-8, and no text may hide its
//! object. In JSON the API server replaces such bytes, and so does this reader.

mod fields;
mod job;
mod scheduling;

use std::collections::BTreeMap;

use epilogue_common::watch_event::Rejected;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use prost::{DecodeError, Message};

use super::Reply;
use super::wire::{
    WireCondition, WireContainerSpec, WireContainerState, WireContainerStatus, WirePod,
    WirePodSpec, WirePodStatus, WireRestartRule, WireRunning, WireSchedulingGroup, WireTerminated,
    WireWaiting,
};

pub(crate) use fields::retain;
pub(super) use job::raw_spec;
pub(crate) use job::{status_message, with_spec};

/// A string of the API, which may lack or be empty. Go writes the latter for the former.
type Text = Vec<u8>;

#[derive(Clone, PartialEq, Message)]
struct PodMessage {
    #[prost(message, optional, tag = "1")]
    metadata: Option<MetaMessage>,
    #[prost(message, optional, tag = "2")]
    spec: Option<SpecMessage>,
    #[prost(message, optional, tag = "3")]
    status: Option<StatusMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct MetaMessage {
    #[prost(bytes = "vec", tag = "1")]
    name: Text,
    #[prost(bytes = "vec", tag = "3")]
    namespace: Text,
    #[prost(bytes = "vec", tag = "5")]
    uid: Text,
    #[prost(bytes = "vec", tag = "6")]
    resource_version: Text,
    #[prost(int64, tag = "7")]
    generation: i64,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<TimeMessage>,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<TimeMessage>,
    #[prost(int64, optional, tag = "10")]
    deletion_grace_period_seconds: Option<i64>,
    #[prost(message, repeated, tag = "11")]
    labels: Vec<EntryMessage>,
    #[prost(message, repeated, tag = "12")]
    annotations: Vec<EntryMessage>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<OwnerMessage>,
    #[prost(bytes = "vec", repeated, tag = "14")]
    finalizers: Vec<Text>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct TimeMessage {
    #[prost(int64, optional, tag = "1")]
    seconds: Option<i64>,
}

/// An entry of a map.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EntryMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Text,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Text,
}

#[derive(Clone, PartialEq, Message)]
struct OwnerMessage {
    #[prost(bytes = "vec", tag = "1")]
    kind: Text,
    #[prost(bytes = "vec", tag = "3")]
    name: Text,
    #[prost(bytes = "vec", tag = "4")]
    uid: Text,
    #[prost(bytes = "vec", tag = "5")]
    api_version: Text,
    #[prost(bool, optional, tag = "6")]
    controller: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct SpecMessage {
    #[prost(message, repeated, tag = "2")]
    containers: Vec<ContainerMessage>,
    #[prost(bytes = "vec", tag = "3")]
    restart_policy: Text,
    #[prost(int64, optional, tag = "5")]
    active_deadline_seconds: Option<i64>,
    #[prost(bytes = "vec", tag = "10")]
    node_name: Text,
    #[prost(message, repeated, tag = "20")]
    init_containers: Vec<ContainerMessage>,
    #[prost(message, optional, tag = "43")]
    scheduling_group: Option<SchedulingGroupMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct SchedulingGroupMessage {
    #[prost(bytes = "vec", optional, tag = "1")]
    pod_group_name: Option<Text>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerMessage {
    #[prost(bytes = "vec", tag = "1")]
    name: Text,
    #[prost(bytes = "vec", tag = "24")]
    restart_policy: Text,
    #[prost(message, repeated, tag = "25")]
    restart_policy_rules: Vec<RestartRuleMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct RestartRuleMessage {
    #[prost(bytes = "vec", tag = "1")]
    action: Text,
}

#[derive(Clone, PartialEq, Message)]
struct StatusMessage {
    #[prost(bytes = "vec", tag = "1")]
    phase: Text,
    #[prost(message, repeated, tag = "2")]
    conditions: Vec<ConditionMessage>,
    #[prost(bytes = "vec", tag = "4")]
    reason: Text,
    #[prost(message, optional, tag = "7")]
    start_time: Option<TimeMessage>,
    #[prost(message, repeated, tag = "8")]
    container_statuses: Vec<ContainerStatusMessage>,
    #[prost(message, repeated, tag = "10")]
    init_container_statuses: Vec<ContainerStatusMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ConditionMessage {
    #[prost(bytes = "vec", tag = "1")]
    kind: Text,
    #[prost(bytes = "vec", tag = "2")]
    status: Text,
    #[prost(message, optional, tag = "4")]
    last_transition_time: Option<TimeMessage>,
    #[prost(bytes = "vec", tag = "5")]
    reason: Text,
    #[prost(bytes = "vec", tag = "6")]
    message: Text,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerStatusMessage {
    #[prost(bytes = "vec", tag = "1")]
    name: Text,
    #[prost(message, optional, tag = "2")]
    state: Option<StateMessage>,
    #[prost(message, optional, tag = "3")]
    last_state: Option<StateMessage>,
    #[prost(int32, tag = "5")]
    restart_count: i32,
}

#[derive(Clone, PartialEq, Message)]
struct StateMessage {
    #[prost(message, optional, tag = "1")]
    waiting: Option<WaitingMessage>,
    #[prost(message, optional, tag = "2")]
    running: Option<RunningMessage>,
    #[prost(message, optional, tag = "3")]
    terminated: Option<TerminatedMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct WaitingMessage {
    #[prost(bytes = "vec", tag = "1")]
    reason: Text,
}

#[derive(Clone, PartialEq, Message)]
struct RunningMessage {
    #[prost(message, optional, tag = "1")]
    started_at: Option<TimeMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct TerminatedMessage {
    #[prost(int32, tag = "1")]
    exit_code: i32,
    #[prost(bytes = "vec", tag = "3")]
    reason: Text,
    #[prost(message, optional, tag = "5")]
    started_at: Option<TimeMessage>,
    #[prost(message, optional, tag = "6")]
    finished_at: Option<TimeMessage>,
}

/// The identity of an object of any kind.
#[derive(Clone, PartialEq, Message)]
struct ReplyMessage {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ReplyMetaMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct ReplyMetaMessage {
    #[prost(bytes = "vec", tag = "1")]
    name: Text,
    #[prost(bytes = "vec", tag = "5")]
    uid: Text,
    #[prost(bytes = "vec", tag = "6")]
    resource_version: Text,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<TimeMessage>,
}

/// Reads the identity of an object.
pub(super) fn reply(message: &[u8]) -> Result<Reply, Rejected> {
    let metadata = decoded::<ReplyMessage>(message)?.metadata.unwrap_or_default();
    if metadata.uid.is_empty() {
        return Err(Rejected { why: "metadata.uid: missing".to_owned(), managed_by: None });
    }
    Ok(Reply {
        uid: text(metadata.uid),
        name: text(metadata.name),
        version: text(metadata.resource_version),
        deleting: metadata.deletion_timestamp.is_some(),
    })
}

impl WirePod {
    /// Reads a pod from its protobuf message.
    pub fn decode(message: &[u8]) -> Result<Self, Rejected> {
        let PodMessage { metadata, spec, status } = decoded(message)?;
        Ok(Self {
            metadata: metadata.map(MetaMessage::wire).unwrap_or_default(),
            spec: spec.map(SpecMessage::wire).unwrap_or_default(),
            status: status.map(StatusMessage::wire).unwrap_or_default(),
        })
    }
}

impl MetaMessage {
    fn wire(self) -> ObjectMeta {
        ObjectMeta {
            name: present(self.name),
            namespace: present(self.namespace),
            uid: present(self.uid),
            resource_version: present(self.resource_version),
            generation: Some(self.generation),
            creation_timestamp: time(self.creation_timestamp),
            deletion_timestamp: time(self.deletion_timestamp),
            deletion_grace_period_seconds: self.deletion_grace_period_seconds,
            labels: Some(entries(self.labels)),
            annotations: Some(entries(self.annotations)),
            finalizers: Some(self.finalizers.into_iter().map(text).collect()),
            owner_references: Some(self.owner_references.into_iter().map(owner).collect()),
            ..ObjectMeta::default()
        }
    }
}

impl SpecMessage {
    fn wire(self) -> WirePodSpec {
        WirePodSpec {
            node_name: present(self.node_name),
            scheduling_group: self
                .scheduling_group
                .map(|it| WireSchedulingGroup { pod_group_name: it.pod_group_name.map(text) }),
            restart_policy: present(self.restart_policy),
            active_deadline_seconds: self.active_deadline_seconds,
            containers: self.containers.into_iter().map(container).collect(),
            init_containers: self.init_containers.into_iter().map(container).collect(),
        }
    }
}

impl StatusMessage {
    fn wire(self) -> WirePodStatus {
        let statuses = |all: Vec<ContainerStatusMessage>| {
            Some(all.into_iter().map(ContainerStatusMessage::wire).collect())
        };
        WirePodStatus {
            phase: present(self.phase),
            reason: present(self.reason),
            start_time: time(self.start_time),
            conditions: Some(self.conditions.into_iter().map(condition).collect()),
            container_statuses: statuses(self.container_statuses),
            init_container_statuses: statuses(self.init_container_statuses),
        }
    }
}

impl ContainerStatusMessage {
    fn wire(self) -> WireContainerStatus {
        WireContainerStatus {
            name: text(self.name),
            restart_count: self.restart_count.into(),
            state: self.state.map(StateMessage::wire),
            last_state: self.last_state.map(StateMessage::wire),
        }
    }
}

impl StateMessage {
    fn wire(self) -> WireContainerState {
        WireContainerState {
            waiting: self.waiting.map(|it| WireWaiting { reason: present(it.reason) }),
            running: self.running.map(|it| WireRunning { started_at: time(it.started_at) }),
            terminated: self.terminated.map(|it| WireTerminated {
                exit_code: it.exit_code,
                reason: present(it.reason),
                started_at: time(it.started_at),
                finished_at: time(it.finished_at),
            }),
        }
    }
}

/// Decodes a message. The API's own is never malformed.
fn decoded<T: Message + Default>(message: &[u8]) -> Result<T, Rejected> {
    let rejected = |error: DecodeError| Rejected { why: error.to_string(), managed_by: None };
    T::decode(message).map_err(rejected)
}

fn owner(owner: OwnerMessage) -> OwnerReference {
    OwnerReference {
        api_version: text(owner.api_version),
        kind: text(owner.kind),
        name: text(owner.name),
        uid: text(owner.uid),
        controller: owner.controller,
        block_owner_deletion: None,
    }
}

fn container(container: ContainerMessage) -> WireContainerSpec {
    let rules = container.restart_policy_rules.into_iter();
    let rules = rules.map(|rule| WireRestartRule { action: text(rule.action) }).collect();
    WireContainerSpec {
        name: text(container.name),
        restart_policy: present(container.restart_policy),
        restart_policy_rules: Some(rules),
    }
}

fn condition(condition: ConditionMessage) -> WireCondition {
    WireCondition {
        kind: text(condition.kind),
        status: text(condition.status),
        reason: present(condition.reason),
        message: present(condition.message),
        last_transition_time: time(condition.last_transition_time),
    }
}

fn entries(entries: Vec<EntryMessage>) -> BTreeMap<String, String> {
    entries.into_iter().map(|each| (text(each.key), text(each.value))).collect()
}

fn text(bytes: Text) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn present(bytes: Text) -> Option<String> {
    Some(text(bytes)).filter(|text| !text.is_empty())
}

/// An empty message is the absent time. The API knows whole seconds, and years that no calendar
/// here has: those read as the end of time, as in JSON.
fn time(time: Option<TimeMessage>) -> Option<Time> {
    let seconds = time?.seconds?;
    let time = Timestamp::from_second(seconds).ok();
    time.or_else(|| (seconds > 0).then_some(Timestamp::MAX)).map(Time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Interner;
    use serde_json::json;

    fn entry(key: &str, value: &str) -> EntryMessage {
        EntryMessage { key: key.into(), value: value.into() }
    }

    fn at(seconds: i64) -> TimeMessage {
        TimeMessage { seconds: Some(seconds) }
    }

    fn metadata() -> MetaMessage {
        MetaMessage {
            name: "a-0-x".into(),
            namespace: "default".into(),
            uid: "uid".into(),
            resource_version: "17".into(),
            generation: 2,
            creation_timestamp: at(1_000).into(),
            deletion_timestamp: at(2_000).into(),
            deletion_grace_period_seconds: Some(30),
            labels: vec![entry("app", "a"), entry("batch.kubernetes.io/job-completion-index", "0")],
            annotations: vec![
                entry("batch.kubernetes.io/job-completion-index", "0"),
                entry("epilogue.dev/ends-at", "1970-01-01T00:33:20.5Z"),
            ],
            owner_references: vec![OwnerMessage {
                kind: "Job".into(),
                name: "a".into(),
                uid: "uid-a".into(),
                api_version: "batch/v1".into(),
                controller: Some(true),
            }],
            finalizers: vec!["batch.kubernetes.io/job-tracking".into()],
        }
    }

    fn message() -> PodMessage {
        let container = |name: &str, policy: &str| ContainerMessage {
            name: name.into(),
            restart_policy: policy.into(),
            restart_policy_rules: Vec::new(),
        };
        let terminated = TerminatedMessage {
            exit_code: 137,
            reason: "ContainerStatusUnknown".into(),
            started_at: at(1_100).into(),
            finished_at: at(1_900).into(),
        };
        let last = TerminatedMessage { exit_code: 1, reason: "Error".into(), ..terminated.clone() };
        let ended = |terminated| StateMessage { terminated, ..StateMessage::default() };
        PodMessage {
            metadata: Some(metadata()),
            spec: Some(SpecMessage {
                containers: vec![container("main", "")],
                restart_policy: "Never".into(),
                active_deadline_seconds: Some(600),
                scheduling_group: Some(SchedulingGroupMessage {
                    pod_group_name: Some("group".into()),
                }),
                node_name: "node".into(),
                init_containers: vec![ContainerMessage {
                    restart_policy_rules: vec![RestartRuleMessage {
                        action: "RestartAllContainers".into(),
                    }],
                    ..container("sidecar", "Always")
                }],
            }),
            status: Some(StatusMessage {
                phase: "Failed".into(),
                reason: "Evicted".into(),
                start_time: at(1_050).into(),
                conditions: vec![ConditionMessage {
                    kind: "DisruptionTarget".into(),
                    status: "True".into(),
                    last_transition_time: at(1_800).into(),
                    reason: "TerminationByKubelet".into(),
                    message: "The node was low on resource: memory. ".into(),
                }],
                container_statuses: vec![ContainerStatusMessage {
                    name: "main".into(),
                    state: Some(ended(Some(terminated))),
                    last_state: Some(ended(Some(last))),
                    restart_count: 1,
                }],
                init_container_statuses: Vec::new(),
            }),
        }
    }

    #[test]
    fn protobuf_and_json_give_the_same_views() {
        let json = json!({
            "metadata": {
                "name": "a-0-x", "namespace": "default", "uid": "uid", "resourceVersion": "17",
                "generation": 2, "creationTimestamp": "1970-01-01T00:16:40Z",
                "deletionTimestamp": "1970-01-01T00:33:20Z", "deletionGracePeriodSeconds": 30,
                "labels": {"app": "a", "batch.kubernetes.io/job-completion-index": "0"},
                "annotations": {"batch.kubernetes.io/job-completion-index": "0",
                                "epilogue.dev/ends-at": "1970-01-01T00:33:20.5Z"},
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "a",
                                     "uid": "uid-a", "controller": true}],
                "finalizers": ["batch.kubernetes.io/job-tracking"],
            },
            "spec": {
                "schedulingGroup": {"podGroupName": "group"},
                "nodeName": "node", "restartPolicy": "Never", "activeDeadlineSeconds": 600,
                "containers": [{"name": "main"}],
                "initContainers": [{"name": "sidecar", "restartPolicy": "Always",
                    "restartPolicyRules": [{"action": "RestartAllContainers"}]}],
            },
            "status": {
                "phase": "Failed", "reason": "Evicted", "startTime": "1970-01-01T00:17:30Z",
                "conditions": [{"type": "DisruptionTarget", "status": "True",
                                "reason": "TerminationByKubelet",
                                "message": "The node was low on resource: memory. ",
                                "lastTransitionTime": "1970-01-01T00:30:00Z"}],
                "containerStatuses": [{"name": "main", "restartCount": 1, "state": {"terminated":
                    {"exitCode": 137, "reason": "ContainerStatusUnknown",
                     "startedAt": "1970-01-01T00:18:20Z",
                     "finishedAt": "1970-01-01T00:31:40Z"}},
                    "lastState": {"terminated": {"exitCode": 1, "reason": "Error",
                     "startedAt": "1970-01-01T00:18:20Z",
                     "finishedAt": "1970-01-01T00:31:40Z"}}}],
            },
        });
        let json: WirePod = serde_json::from_value(json).expect("must be a pod");
        let decoded = WirePod::decode(&message().encode_to_vec()).expect("must be a pod");
        let interner = &mut Interner::default();
        assert_eq!(decoded.view(interner), json.view(interner));
    }

    #[test]
    fn an_empty_message_is_a_pod_without_facts() {
        let decoded = WirePod::decode(&[]).expect("must be a pod");
        let interner = &mut Interner::default();
        assert_eq!(decoded.view(interner), WirePod::default().view(interner));
    }

    #[test]
    fn empty_strings_and_times_are_absent_ones() {
        let mut empty = message();
        let (spec, status) = (empty.spec.as_mut(), empty.status.as_mut());
        spec.expect("must be there").node_name = Text::new();
        let status = status.expect("must be there");
        status.reason = Text::new();
        status.start_time = Some(TimeMessage { seconds: None });
        let decoded = WirePod::decode(&empty.encode_to_vec()).expect("must be a pod");
        let view = decoded.view(&mut Interner::default());
        assert_eq!((view.node, view.gc.reason(), view.gc.deadline()), (None, None, None));
    }

    #[test]
    fn text_that_is_not_utf_8_hides_no_pod() {
        let mut odd = message();
        let metadata = odd.metadata.as_mut().expect("must be there");
        metadata.annotations.push(EntryMessage { key: vec![0xff], value: vec![0xfe, b'a'] });
        let decoded = WirePod::decode(&odd.encode_to_vec()).expect("must be a pod");
        let annotations = decoded.metadata.annotations.expect("must be there");
        assert_eq!(annotations["\u{fffd}"], "\u{fffd}a");
    }

    #[test]
    fn times_beyond_the_calendar_are_its_end() {
        let far = |seconds| time(Some(at(seconds))).map(|time| time.0);
        assert_eq!(far(i64::MAX), Some(Timestamp::MAX));
        assert_eq!(far(i64::MIN), None);
        assert_eq!(far(0), Some(Timestamp::UNIX_EPOCH));
    }
}
