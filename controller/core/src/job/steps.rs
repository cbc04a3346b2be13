//! Defines what passes between deciding and acting: steps, their answers, and side effects on
//! memory, events and metrics. All of it can be printed.

use std::sync::Arc;

use epilogue_common::outcome::{Failure, FailureKind};
use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::JobStatus;

use epilogue_common::pod_end::Counted;

use super::cause::Cause;
use super::end_events::PodEnded;
use super::group::{GroupStep, SchedulingGroup};
use super::input::{MemoryUpdate, WrittenPod};
use super::node_fault::NodeFault;
use crate::view::{FailureCounts, Job, Pod, PodGroup, Uid, Version, Workload};

/// One call to the API.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Read the Job itself, not a cache, before pods are adopted. ([L2])
    ConfirmJob,
    /// Patch a pod's owner reference or finalizer.
    Claim(Claim),
    /// List the Job's pods from the API itself, because an earlier creation had no reply.
    ConfirmPods,
    /// Make, find or resize the scheduling group of the Job's pods.
    Group(GroupStep),
    /// Create a pod.
    Create(PodDraft),
    /// Remove the tracking finalizer from a pod that is deleted next, so that it is not counted as
    /// failed; only while the pod has this version. ([P14])
    Strip(Arc<Pod>),
    /// Delete a pod; with a version, only while the pod still has it.
    Delete(Arc<Pod>, Option<Version>),
    /// Set the condition of a pod that does not start; this also fails a pod without a node.
    FailPending(Arc<Pod>),
    /// Set DisruptionTarget on a pod that failed by a fault of its node, before it is counted.
    MarkFault(NodeFault),
    /// Replace the Job's status.
    WriteStatus(Box<JobStatus>),
    /// The same with the spec as the API has it: mutating admission sees what is sent, and may read
    /// the spec.
    WriteWholeStatus(Box<JobStatus>),
    /// Remove the tracking finalizer from a pod that is counted.
    RemoveFinalizer(Arc<Pod>),
}

/// A step on its way to the API.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The step.
    pub step: Step,
    /// Its place among the steps that run concurrently.
    pub slot: usize,
}

/// What the API answers to a step that succeeds.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The Job as [`Step::ConfirmJob`] read it.
    Live(LiveJob),
    /// The newest version among the Job's pods, as [`Step::ConfirmPods`] listed them.
    Newest(Version),
    /// The pod as a write returned it.
    Pod(WrittenPod),
    /// The Workload, and whether this call created it.
    Workload(Arc<Workload>, bool),
    /// The PodGroup, and whether this call created it.
    PodGroup(Arc<PodGroup>, bool),
    /// The pod is deleted, or terminates.
    Deleted,
    /// The Job as [`Step::WriteStatus`] returned it.
    Job(Arc<Job>),
}

/// The result of a live read of the Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveJob {
    /// `metadata.uid`.
    pub uid: Uid,
    /// Whether `metadata.deletionTimestamp` is set.
    pub deleting: bool,
}

/// A patch that adopts a pod, disowns it, or restores its finalizer.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The kind of the patch.
    pub kind: ClaimKind,
}

/// The effect of a claim on a pod. ([L1])
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimKind {
    /// Add our controller reference and the finalizer.
    Adopt,
    /// Remove our controller reference and the finalizer.
    Disown,
    /// Add the finalizer that a pod of ours lost before it was counted.
    Track,
}

/// A pod to create, as far as it differs from its Job's template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDraft {
    /// The completion index of an Indexed Job.
    pub index: Option<u32>,
    /// Nodes to avoid where possible.
    pub avoid: Vec<Arc<str>>,
    /// The failures of the index so far, with `backoffLimitPerIndex`.
    pub failures: Option<FailureCounts>,
    /// The scheduling group that the pod joins.
    pub group: Option<Arc<SchedulingGroup>>,
}

/// One thing to remember, report or count. A sync returns them in order.
#[derive(Clone, Debug, PartialEq)]
pub enum SideEffect {
    /// Change what the process remembers of the Job.
    Remember(MemoryUpdate),
    /// Record an event on the Job.
    Event(EventDraft),
    /// Count in a metric.
    Count(MetricEvent),
}

/// An event on the Job.
#[derive(Clone, Debug, PartialEq)]
pub struct EventDraft {
    /// Whether something is wrong.
    pub severity: Severity,
    /// `reason`.
    pub reason: String,
    /// `message`.
    pub message: String,
    /// The end of a pod that it is about.
    pub ended: Option<Box<PodEnded>>,
}

/// `type` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// `Normal`.
    Normal,
    /// `Warning`.
    Warning,
}

/// Something that a metric counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricEvent {
    /// `job_pods_creation_total`: how many pods were created and how many were not.
    PodsCreated {
        /// `new`, `recreate_failed` or `recreate_terminating_or_failed`.
        reason: &'static str,
        /// Created.
        succeeded: u32,
        /// Not created.
        failed: u32,
    },
    /// `job_pods_finished_total` and `job_finished_indexes_total`.
    PodsFinished {
        /// Newly counted successes.
        succeeded: u32,
        /// Newly counted failures.
        failed: u32,
        /// Newly failed indexes; `None` without `backoffLimitPerIndex`.
        failed_indexes: Option<u32>,
    },
    /// `pod_failures_handled_by_failure_policy_total`.
    FailureHandled {
        /// The action of the rule that matched.
        action: &'static str,
        /// How many pods.
        pods: u32,
    },
    /// `epilogue_pod_ends_total`.
    PodEnded {
        /// Why the pod ended.
        cause: Cause,
        /// How its Job counted that.
        counted: Counted,
    },
    /// `job_scheduling_object_syncs_total`: a sync that makes or follows scheduling objects.
    SchedulingObjectsSynced {
        /// Whether no call failed.
        ok: bool,
    },
    /// `jobs_finished_total`.
    JobFinished {
        /// Whether it is Complete.
        succeeded: bool,
        /// Reason of the terminal condition.
        reason: String,
    },
}

/// What a sync did to pods; the `action` label of the sync metrics. ([M1])
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Action {
    /// No pods were managed.
    #[default]
    Reconciling,
    /// The Job has as many pods as wanted.
    Tracking,
    /// Pods were created, or would have been without backoff.
    PodsCreated,
    /// Pods were deleted.
    PodsDeleted,
}

/// The result of a sync.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncResult {
    /// The first failure that makes the controller repeat the sync with backoff. ([Q5], [S21],
    /// [S22])
    pub result: Result<(), Failure>,
    /// Whether it came to its end, so that earlier failures no longer count. A sync that waits for
    /// the watches has not.
    pub complete: bool,
    /// When to sync again without any event.
    pub requeue_after: Option<SignedDuration>,
    /// What the sync did to pods.
    pub action: Action,
}

impl Step {
    /// Whether its body repeats what the Job keeps for its writes.
    pub fn repeats_source(&self) -> bool {
        match self {
            Self::Create(_) | Self::WriteStatus(_) => true,
            Self::Group(step) => step.repeats_source(),
            _ => false,
        }
    }

    /// The status that it writes.
    pub fn status(&self) -> Option<&JobStatus> {
        match self {
            Self::WriteStatus(status) | Self::WriteWholeStatus(status) => Some(status),
            _ => None,
        }
    }

    /// The step that follows once this one has failed: admission may have refused the status
    /// because it came without the spec, and a Workload or PodGroup may have been created by a call
    /// whose reply was lost.
    pub(super) fn instead(&self, failure: &Failure) -> Option<Self> {
        let status = match self {
            Self::WriteStatus(status) => status,
            Self::Group(step) => return step.instead(failure).map(Self::Group),
            _ => return None,
        };
        let is_refusal = match failure.kind {
            FailureKind::Forbidden | FailureKind::Invalid | FailureKind::Other => true,
            FailureKind::ServerError => !failure.is_in_doubt(),
            _ => false,
        };
        let may_help = is_refusal && !failure.unsent && failure.retry_after.is_none();
        may_help.then(|| Self::WriteWholeStatus(status.clone()))
    }

    /// The step that deletes this pod, or comes before its deletion.
    ///
    /// Where the finalizer must be gone first, the deletion names the version that has none.
    /// Another process may give it back meanwhile, and the pod would count as failed.
    pub(super) fn delete(pod: &Arc<Pod>, strip: bool) -> Self {
        let pod = Arc::clone(pod);
        if strip && pod.tracked {
            return Self::Strip(pod);
        }
        let version = strip.then_some(pod.version);
        Self::Delete(pod, version)
    }

    /// The step that follows on the same pod once this one has succeeded.
    ///
    /// The kubelet makes a pod on a node Failed when nothing of it runs; the condition is there by
    /// then. Such a pod counts as failed whatever happens before its deletion, so that names no
    /// version.
    pub(super) fn then(&self, answer: &Answer) -> Option<Self> {
        match (self, answer) {
            (Self::Strip(pod), Answer::Pod(stripped)) => {
                Some(Self::Delete(Arc::clone(pod), Some(stripped.version)))
            }
            (Self::FailPending(pod), _) if pod.node.is_some() => {
                Some(Self::Delete(Arc::clone(pod), None))
            }
            _ => None,
        }
    }
}

impl EventDraft {
    /// An event that is about no end of a pod.
    pub fn new(severity: Severity, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity, reason: reason.into(), message: message.into(), ended: None }
    }

    /// A `Normal` event.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Normal, reason, message)
    }

    /// A `Warning` event.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, reason, message)
    }
}

impl Action {
    /// The metric's label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reconciling => "reconciling",
            Self::Tracking => "tracking",
            Self::PodsCreated => "pods_created",
            Self::PodsDeleted => "pods_deleted",
        }
    }
}
