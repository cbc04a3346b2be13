//! Views a pod, reduced to what the rules of Jobs and of pod GC read. Under 1 KiB with its indexes.

use std::sync::Arc;

use epilogue_common::names::COMPLETION_INDEX;
use jiff::Timestamp;

use super::selector::LabelLookup;
use super::{GcFacts, Labels, Selector, Uid, Version};

/// The slim view of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`.
    pub version: Version,
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.labels`, shared by pods with the same ones; without the completion index.
    pub labels: Arc<Labels>,
    /// The label with the completion index, kept apart so that `labels` can be shared.
    pub index_label: Option<Box<str>>,
    /// The owner reference with `controller: true`.
    pub owner: Option<Arc<Owner>>,
    /// `spec.schedulingGroup.podGroupName`.
    pub group: Option<Arc<str>>,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// `metadata.deletionTimestamp` and its grace.
    pub deletion: Option<Deletion>,
    /// Whether the pod has the tracking finalizer.
    pub tracked: bool,
    /// `spec.nodeName`.
    pub node: Option<Arc<str>>,
    /// `status.phase`.
    pub phase: Phase,
    /// The completion index from the annotation, if it is a number from 0. ([I1])
    pub index: Option<u32>,
    /// Failures of the index before this pod, from the annotations. ([I8])
    pub failures: FailureCounts,
    /// The attempt of its PodGroup, from the annotation.
    pub attempt: u32,
    /// Types and states of all conditions, shared by pods with the same ones.
    pub conditions: Arc<[Condition]>,
    /// The first `Ready` condition.
    pub ready: Option<ReadyCondition>,
    /// Container statuses: regular ones in order, then init containers in order.
    pub containers: Box<[Container]>,
    /// Since when it is Failed while its status shows a running container, and no writer states
    /// that no container runs.
    pub shown_running_since: Option<Timestamp>,
    /// What only pod GC reads.
    pub gc: GcFacts,
}

/// A controller reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// `apiVersion`.
    pub api_version: Box<str>,
    /// `kind`.
    pub kind: Box<str>,
    /// `name`.
    pub name: Arc<str>,
    /// `uid`.
    pub uid: Uid,
}

/// The deletion of a pod, in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// `metadata.deletionTimestamp`: when the grace ends.
    pub at: Timestamp,
    /// `metadata.deletionGracePeriodSeconds`.
    pub grace_seconds: i64,
}

/// `status.phase`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// `Pending`, and any phase that is empty or unknown: the pod has not begun, as far as is
    /// known.
    #[default]
    Pending,
    /// `Running`.
    Running,
    /// `Succeeded`.
    Succeeded,
    /// `Failed`.
    Failed,
    /// `Unknown`.
    Unknown,
}

/// How often the index of a pod had failed before this pod was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FailureCounts {
    /// Failures that count against `backoffLimitPerIndex`.
    pub counted: u32,
    /// Failures that the podFailurePolicy ignored.
    pub ignored: u32,
}

/// Type and status of a condition.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Condition {
    /// `type`.
    pub kind: Box<str>,
    /// `status`.
    pub status: Box<str>,
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

/// The `Ready` condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyCondition {
    /// Whether `status` is `True`.
    pub is_true: bool,
    /// Whether `status` is `False` (neither for `Unknown`).
    pub is_false: bool,
    /// `lastTransitionTime`.
    pub since: Option<Timestamp>,
}

/// One container's status.
#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    /// `name`.
    pub name: Arc<str>,
    /// Its place in the pod.
    pub kind: ContainerKind,
    /// `restartCount`.
    pub restarts: u32,
    /// `state.waiting.reason`.
    pub waiting: Option<Arc<str>>,
    /// `state.terminated`.
    pub terminated: Option<Terminated>,
    /// `lastState.terminated` of a container that was restarted.
    pub last: Option<Box<Terminated>>,
}

/// The place of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerKind {
    /// One of `containers`.
    Regular,
    /// One of `initContainers` that runs to its end.
    Init,
    /// One of `initContainers` with `restartPolicy: Always`.
    Sidecar,
}

/// `state.terminated` of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminated {
    /// `exitCode`.
    pub exit_code: i32,
    /// `finishedAt`, when it is set.
    pub finished_at: Option<Timestamp>,
    /// Who ended it, by its reason.
    pub by: EndedBy,
}

/// Who ended a container, as far as its `reason` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndedBy {
    /// Its program, or a signal.
    #[default]
    Program,
    /// The kernel, for its memory.
    OomKill,
    /// The runtime, which could not start it.
    Start,
    /// Not known: the runtime or the kubelet lost it.
    Unknown,
}

#[cfg(test)]
thread_local! {
    /// How often a selector was applied to a pod.
    pub(crate) static MATCHES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Pod {
    /// Succeeded or Failed.
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether the pod is neither terminal nor being deleted. ([S12])
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && self.deletion.is_none()
    }

    /// Whether the pod is being deleted and not terminal. ([S12])
    pub fn is_terminating(&self) -> bool {
        !self.is_terminal() && self.deletion.is_some()
    }

    /// Whether the first `Ready` condition is True.
    pub fn is_ready(&self) -> bool {
        self.ready.is_some_and(|ready| ready.is_true)
    }

    /// Whether the controller reference names the Job with this UID.
    pub fn is_owned_by(&self, job: &Uid) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.uid == *job && &*owner.kind == "Job")
    }

    /// Whether it is known at a glance that another pod has the same labels: those of pods that are
    /// read by one view are shared.
    pub(crate) fn has_labels_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.labels, &other.labels) && self.index_label == other.index_label
    }

    /// Whether a selector matches the pod's labels. Where it is not kept, a pod stays what it is:
    /// that of its controller, or without one.
    pub fn matches(&self, selector: &Selector) -> bool {
        #[cfg(test)]
        MATCHES.with(|matches| matches.set(matches.get() + 1));
        if selector.is_unkept() { self.owner.is_some() } else { selector.matches_in(self) }
    }

    /// All labels, also the one with the completion index.
    pub(crate) fn all_labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all()
    }

    /// Whether a condition of this type is True.
    pub fn has_condition(&self, kind: &str) -> bool {
        self.conditions.iter().any(|each| &*each.kind == kind && &*each.status == "True")
    }

    /// The state of the first condition of this type.
    pub fn condition(&self, kind: &str) -> Option<Tristate> {
        let condition = self.conditions.iter().find(|each| &*each.kind == kind)?;
        Some(Tristate::parse(&condition.status))
    }

    /// Whether it has a true `DisruptionTarget`, from any writer.
    pub fn is_target(&self) -> bool {
        self.gc.target().is_some_and(|target| target.stands)
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

    /// When the pod finished, by the first source that knows; never before it was created. ([D3])
    pub fn finished_at(&self) -> Option<Timestamp> {
        self.ended_at().or_else(|| self.deletion.map(Deletion::requested_at)).max(self.created)
    }

    /// When a terminal pod ended, if its status shows that.
    pub fn ended_at(&self) -> Option<Timestamp> {
        self.containers_finished_at()
            .or_else(|| self.ready.filter(|ready| ready.is_false).and_then(|ready| ready.since))
    }

    /// The latest end of the regular containers and sidecars, once all of them have ended.
    ///
    /// DIVERGES(upstream): a sidecar that ended while a regular container still runs gives no
    /// finish time; upstream takes the sidecar's end for the pod's. ([D3])
    pub fn containers_finished_at(&self) -> Option<Timestamp> {
        let mut latest = None;
        let mut regular_seen = false;
        for container in self.containers.iter().filter(|each| each.kind != ContainerKind::Init) {
            regular_seen |= container.kind == ContainerKind::Regular;
            let finished = container.terminated?.finished_at?;
            latest = latest.max(Some(finished));
        }
        latest.filter(|_| regular_seen)
    }
}

impl LabelLookup for Pod {
    fn count(&self) -> usize {
        self.labels.len() + usize::from(self.index_label.is_some())
    }

    fn value(&self, key: &str) -> Option<&str> {
        match key {
            COMPLETION_INDEX => self.index_label.as_deref(),
            _ => self.labels.get(key),
        }
    }

    fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        let index = self.index_label.as_deref().map(|value| (COMPLETION_INDEX, value));
        self.labels.iter().chain(index)
    }
}

impl Deletion {
    /// When deletion was requested.
    pub fn requested_at(self) -> Timestamp {
        self.at.checked_sub(jiff::SignedDuration::from_secs(self.grace_seconds)).unwrap_or(self.at)
    }
}

impl EndedBy {
    /// Reads the reason of a terminated container.
    ///
    /// containerd says `Unknown` with the code 255 of a container that ran when the machine went
    /// down. The kubelet says `ContainerStatusUnknown` of one that the runtime has no more. ([W5])
    pub fn read(reason: &str, exit_code: i32) -> Self {
        match reason {
            "ContainerStatusUnknown" => Self::Unknown,
            "Unknown" if exit_code == 255 => Self::Unknown,
            "OOMKilled" => Self::OomKill,
            "StartError" | "ContainerCannotRun" => Self::Start,
            _ => Self::Program,
        }
    }
}

impl Tristate {
    /// Reads the API's text.
    pub fn parse(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

impl FailureCounts {
    /// The sum of counted and ignored failures.
    pub fn total(self) -> u32 {
        self.counted.saturating_add(self.ignored)
    }
}

impl Phase {
    /// Reads the API's text.
    pub fn parse(text: &str) -> Self {
        match text {
            "Running" => Self::Running,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            "Unknown" => Self::Unknown,
            _ => Self::Pending,
        }
    }
}
