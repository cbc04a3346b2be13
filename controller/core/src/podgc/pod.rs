//! Reads a pod for the rules of pod GC and of disruption, in few bytes because it keeps all pods of
//! the cluster.

use std::sync::Arc;

use epilogue_common::names::pod_condition::{CONTAINERS_READY, DISRUPTION_TARGET, READY};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::view::wire::{WireCondition, WireContainerStatus, WirePodSpec};
use crate::view::{Deletion, Interner, Owner, Phase, Uid, Version, WirePod};

/// The annotation on the API's copy of a static pod.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// One pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodView {
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`.
    pub version: Version,
    /// `metadata.generation`.
    pub generation: i64,
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Box<str>,
    /// The owner reference with `controller: true`.
    pub owner: Option<Arc<Owner>>,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// `metadata.deletionTimestamp` and its grace.
    pub deletion: Option<Deletion>,
    /// `spec.nodeName`.
    pub node: Option<Arc<str>>,
    /// `status.phase`.
    pub phase: Phase,
    /// `status.reason`.
    pub reason: Option<Arc<str>>,
    /// Whether it is the mirror of a static pod.
    pub is_static: bool,
    /// Whether one of its containers can start again in place: by the pod's restartPolicy, or a
    /// container's own policy or rules. ([API19])
    pub may_restart: bool,
    /// When its `activeDeadlineSeconds` end.
    pub deadline: Option<Timestamp>,
    /// Status of the condition `Ready`.
    pub ready: Option<Tristate>,
    /// Status of the condition `ContainersReady`.
    pub containers_ready: Option<Tristate>,
    /// The condition `DisruptionTarget`.
    pub target: Option<Box<Target>>,
    /// The earliest start of the regular containers that run; `None` if none runs.
    pub running_since: Option<Timestamp>,
    /// The latest start of any container, as far as the status shows.
    pub last_start: Option<Timestamp>,
    /// When the last container ended; only of terminal pods.
    pub finished: Option<Timestamp>,
}

/// `status` of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tristate {
    /// `True`.
    True,
    /// `False`.
    False,
    /// `Unknown`, and any other value.
    Unknown,
}

/// The condition `DisruptionTarget` of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether its status is `True`.
    pub stands: bool,
    /// `reason`.
    pub reason: Arc<str>,
    /// `lastTransitionTime`.
    pub since: Option<Timestamp>,
}

impl Tristate {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

impl PodView {
    /// Reads the facts of a pod.
    pub fn read(pod: &WirePod, interner: &mut Interner) -> Self {
        let (meta, spec, status) = (&pod.metadata, &pod.spec, &pod.status);
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let regular = status.container_statuses.as_deref().unwrap_or_default();
        let init = status.init_container_statuses.as_deref().unwrap_or_default();
        let phase = Phase::parse(status.phase.as_deref().unwrap_or_default());
        let ended = matches!(phase, Phase::Succeeded | Phase::Failed);
        let created = time(meta.creation_timestamp.as_ref());
        Self {
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: Version::parse(meta.resource_version.as_deref().unwrap_or_default()),
            generation: meta.generation.unwrap_or(0),
            namespace: interner.text(meta.namespace.as_deref().unwrap_or_default()),
            name: meta.name.as_deref().unwrap_or_default().into(),
            owner: interner.owner(meta.owner_references.as_deref()),
            created,
            deletion: meta.deletion_timestamp.as_ref().map(|time| Deletion {
                at: time.0,
                grace_seconds: meta.deletion_grace_period_seconds.unwrap_or(0),
            }),
            node: spec
                .node_name
                .as_deref()
                .filter(|name| !name.is_empty())
                .map(|name| interner.text(name)),
            phase,
            reason: status
                .reason
                .as_deref()
                .filter(|reason| !reason.is_empty())
                .map(|reason| interner.text(reason)),
            is_static: meta.annotations.iter().flatten().any(|(key, _)| key == MIRROR_ANNOTATION),
            may_restart: may_restart(spec),
            deadline: deadline(spec.active_deadline_seconds, status.start_time.as_ref()),
            ready: tristate(conditions, READY),
            containers_ready: tristate(conditions, CONTAINERS_READY),
            target: target(conditions, interner),
            running_since: regular.iter().filter_map(running_since).min(),
            last_start: regular.iter().chain(init).filter_map(started).max(),
            finished: ended.then(|| finished(regular, conditions).or(created)).flatten(),
        }
    }

    /// Succeeded or Failed.
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether it has a true `DisruptionTarget`, from any writer.
    pub fn is_target(&self) -> bool {
        self.target.as_ref().is_some_and(|target| target.stands)
    }

    /// Whether a Job controls it.
    pub fn is_of_job(&self) -> bool {
        self.owner
            .as_ref()
            .is_some_and(|owner| &*owner.kind == "Job" && &*owner.api_version == "batch/v1")
    }

    /// Whether a DaemonSet controls it.
    pub fn is_of_daemon_set(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| &*owner.kind == "DaemonSet")
    }

    /// Whether the pod only waits for others to remove their finalizers: it is terminal and was
    /// deleted without grace.
    pub fn only_finalizers_hold_it(&self) -> bool {
        self.is_terminal() && self.deletion.is_some_and(|deletion| deletion.grace_seconds == 0)
    }
}

/// The last end of a regular container, or else when the pod ceased to be ready.
fn finished(regular: &[WireContainerStatus], conditions: &[WireCondition]) -> Option<Timestamp> {
    let ends = regular
        .iter()
        .filter_map(|each| time(each.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()));
    let unready = || {
        let ready = conditions.iter().find(|each| each.kind == READY && each.status == "False")?;
        time(ready.last_transition_time.as_ref())
    };
    ends.max().or_else(unready)
}

fn may_restart(spec: &WirePodSpec) -> bool {
    let own = |own: Option<&str>| own.is_some_and(|policy| policy != "Never");
    let containers = spec.containers.iter().chain(&spec.init_containers);
    own(Some(spec.restart_policy.as_deref().unwrap_or("Always")))
        || containers
            .into_iter()
            .any(|each| own(each.restart_policy.as_deref()) || each.restart_policy_rules.is_some())
}

fn deadline(seconds: Option<i64>, start: Option<&Time>) -> Option<Timestamp> {
    time(start)?.checked_add(SignedDuration::from_secs(seconds?)).ok()
}

fn tristate(conditions: &[WireCondition], kind: &str) -> Option<Tristate> {
    let condition = conditions.iter().find(|each| each.kind == kind)?;
    Some(Tristate::parse(&condition.status))
}

fn target(conditions: &[WireCondition], interner: &mut Interner) -> Option<Box<Target>> {
    let condition = conditions.iter().find(|each| each.kind == DISRUPTION_TARGET)?;
    Some(Box::new(Target {
        stands: condition.status == "True",
        reason: interner.text(condition.reason.as_deref().unwrap_or_default()),
        since: time(condition.last_transition_time.as_ref()),
    }))
}

fn running_since(status: &WireContainerStatus) -> Option<Timestamp> {
    time(status.state.as_ref()?.running.as_ref()?.started_at.as_ref())
}

fn started(status: &WireContainerStatus) -> Option<Timestamp> {
    let state = status.state.as_ref()?;
    let terminated = || time(state.terminated.as_ref()?.started_at.as_ref());
    running_since(status).or_else(terminated)
}

fn time(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|time| time.0)
}
