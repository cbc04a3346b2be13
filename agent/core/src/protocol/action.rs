//! Imperatives, as the sinks carry them out: one attempt each, no choices, no retries.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::journal::Record;
use super::pressure::Resource;
use crate::pod::PodUid;

/// Names one action; its result comes back under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ActionId(pub u64);

/// A pod to act on. Every write carries the UID. ([AP9])
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodRef {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.uid`.
    pub uid: PodUid,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Action {
    /// Takes a delay lock; only then drops the one held before. ([SD7])
    /// → `Locked`, `LockRefusedInProgress`, or `Done(Err)`.
    TakeLock,
    /// Drops the lock, which releases it. → `Done`.
    ReleaseLock,
    /// Writes our drop-in (merged with what others wrote, never lowering), has logind read it,
    /// and reads the property until it says so, at most 5 s. → `Delay`.
    RaiseDelay {
        /// The delay to have, at least.
        wanted: Duration,
    },
    /// Appends to the journal and syncs it to the disk. → `Done`.
    Journal(Vec<Record>),
    /// Removes all records: the shutdown that they belong to is over. → `Done`.
    CloseJournal,
    /// Sets the node's annotation `epilogue.dev/state`. → `Done`.
    Announce(String),
    /// Sets the node's annotation `epilogue.dev/readiness`. → `Done`.
    Publish(String),
    /// Adds or removes the node's taint `epilogue.dev/shutting-down:NoSchedule`, and leaves all
    /// other taints and `spec.unschedulable` as they are. → `Done`.
    Taint {
        /// Whether the taint is to be there.
        present: bool,
    },
    /// Sends a strategic merge patch to `pods/status`. → `Done`.
    PatchStatus {
        /// Whose.
        pod: PodRef,
        /// What for.
        purpose: Purpose,
        /// The patch.
        body: Value,
    },
    /// Sends a strategic merge patch to the pod itself: the deadline lever. ([API17]) → `Done`.
    PatchPod {
        /// Whose.
        pod: PodRef,
        /// The patch.
        body: Value,
    },
    /// Deletes the pod, with its UID as precondition. → `Done`.
    DeletePod {
        /// Which.
        pod: PodRef,
        /// The time between SIGTERM and SIGKILL, at least 1.
        grace_seconds: u32,
    },
    /// Reads the pod from the API, not from a cache. → `Pod`.
    ReadPod(PodRef),
    /// Stops the pod's containers through the runtime, regular ones first, sidecars after, then,
    /// if asked to, its sandbox; ends when all have exited or the grace and a margin are over.
    /// → `Runtime`, as it is afterwards.
    StopPod {
        /// Which.
        pod: PodRef,
        /// The time between SIGTERM and SIGKILL.
        grace_seconds: u32,
        /// `PodView::sidecars`: stopped after all others. The runtime can't tell them apart.
        sidecars: Vec<String>,
        /// What is stopped.
        reach: Reach,
        /// How much longer than the grace each of the runtime's answers is waited for. It kills
        /// only while somebody waits. (`termination/stop_timeout.rs`)
        stop_timeout: Duration,
    },
    /// Asks the runtime what it has of the pod. → `Runtime`.
    InspectPod(PodRef),
    /// Looks at the node: signals, stalls, swap. Reads files of the host only. → `Measured`.
    Measure,
    /// Measures what pods use. → `Figures`.
    MeasurePods {
        /// Of what.
        of: Resource,
        /// Which.
        pods: Vec<PodUid>,
    },
    /// Sets a condition of our own on the node, by a strategic merge patch to `nodes/status`.
    /// → `Done`.
    SetNodeCondition {
        /// Its type, `epilogue.dev/…`.
        kind: &'static str,
        /// Whether it is True.
        stands: bool,
        /// CamelCase.
        reason: &'static str,
        /// For people.
        message: String,
        /// The `lastTransitionTime`.
        since: Timestamp,
    },
    /// Tells people, by an event in the API; nothing depends on it. → `Done`.
    EmitEvent(Notice),
    /// One line in the log: a decision and its reason. → no result.
    Log(Line),
}

/// How much of a pod is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// Its containers. The sandbox is left to a kubelet that lives: taking down its network takes
    /// longer than the kubelet takes to see the containers' end.
    Containers,
    /// Its sandbox, too: nothing of it can be started again.
    Pod,
}

/// What a status patch is for: its rank in retries, and its label in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// `DisruptionTarget=True` before the end.
    Mark,
    /// `phase=Failed`.
    Fail,
    /// `DisruptionTarget=False`: the pod lives on.
    Clear,
    /// `epilogue.dev/OOMKilled`: why a container died.
    Cause,
}

/// An event for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// What it is about; none is the node.
    pub pod: Option<PodRef>,
    /// Whether it is a Warning.
    pub warning: bool,
    /// CamelCase, documented in `agent/README.md`.
    pub reason: &'static str,
    /// What happened, and what to do.
    pub message: String,
    /// The event's annotations, for programs.
    pub annotations: Vec<(&'static str, String)>,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Whether somebody should look at it.
    pub warning: bool,
    /// What was decided, in one phrase.
    pub text: String,
    /// The pod, where it is about one.
    pub pod: Option<PodRef>,
}
