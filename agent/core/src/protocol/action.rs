//! Defines the imperatives for the sinks: one attempt each, without choices or retries.

use std::time::Duration;

use epilogue_common::end_signal::EndSignal;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::journal::Record;
use super::pressure::Resource;
pub use crate::pod::PodRef;
use crate::pod::PodUid;

/// Identifies one action and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ActionId(pub u64);

/// An imperative for a sink.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Action {
    /// Takes a delay lock, and only then drops the previous one. ([SD7]) → `Locked`,
    /// `LockRefusedInProgress`, or `Done(Err)`.
    TakeLock,
    /// Drops the lock, which releases it. → `Done`.
    ReleaseLock,
    /// Writes our drop-in, merged with other files' values and never lower. Makes logind read it,
    /// then reads the property until it matches, for at most 5 s. → `Delay`.
    RaiseDelay {
        /// Minimum delay.
        wanted: Duration,
    },
    /// Appends to the journal and syncs it to the disk. → `Done`.
    Journal(Vec<Record>),
    /// Removes all records, because their shutdown is over. → `Done`.
    CloseJournal,
    /// Sets the node's annotation `epilogue.dev/state`. → `Done`.
    Announce(String),
    /// Sets the node's annotation `epilogue.dev/readiness`. → `Done`.
    Publish(String),
    /// Adds or removes the node's taint `epilogue.dev/shutting-down:NoSchedule`. Leaves other
    /// taints and `spec.unschedulable` unchanged. → `Done`.
    Taint {
        /// Whether the node is to have the taint.
        present: bool,
    },
    /// Sends a strategic merge patch to `pods/status`. → `Patched`.
    PatchStatus {
        /// The pod to patch.
        pod: PodRef,
        /// Purpose of the patch.
        purpose: Purpose,
        /// The patch.
        body: Value,
    },
    /// Sends a strategic merge patch to the pod itself: the deadline lever. ([API17]) → `Done`.
    PatchPod {
        /// The pod to patch.
        pod: PodRef,
        /// The patch.
        body: Value,
    },
    /// Deletes the pod, with its UID and its version as preconditions. → `Done`.
    DeletePod {
        /// The pod to delete.
        pod: PodRef,
        /// `metadata.resourceVersion` of the state that is to be deleted.
        version: String,
        /// Time between SIGTERM and SIGKILL; at least 1.
        grace_seconds: u32,
    },
    /// Reads the pod from the API, not from a cache. → `Pod`.
    ReadPod(PodRef),
    /// Stops the pod's regular containers through the runtime, then its sidecars, then its sandbox
    /// if `reach` includes it. Completes when all have exited, or when the grace and a margin are
    /// over. → `Runtime`, with the state afterwards.
    StopPod {
        /// The pod to stop.
        pod: PodRef,
        /// Time between SIGTERM and SIGKILL.
        grace_seconds: u32,
        /// `PodView::sidecars`, which stop after all others; the runtime cannot distinguish them.
        sidecars: Vec<String>,
        /// How much of the pod to stop.
        reach: Reach,
        /// How long to wait for each of the runtime's answers beyond the grace. The runtime kills
        /// only while a caller waits. (`termination/stop_timeout.rs`)
        stop_timeout: Duration,
    },
    /// Sends a signal to the main process of a container, through the runtime. → `Done`.
    SignalContainer {
        /// The pod that asks for it.
        pod: PodRef,
        /// The runtime's id of the container.
        container: String,
        /// What it asks for.
        signal: EndSignal,
    },
    /// Reads the runtime's state of the pod. → `Runtime`.
    InspectPod(PodRef),
    /// Lists all pods that the runtime knows. → `RuntimePods`.
    ListRuntimePods,
    /// Samples the node: signals, stalls, swap. Reads only files of the host. → `Measured`.
    Measure,
    /// Measures the usage of pods. → `Figures`.
    MeasurePods {
        /// The resource to measure.
        of: Resource,
        /// The pods to measure.
        pods: Vec<PodUid>,
    },
    /// Sets a condition on the node, by a strategic merge patch to `nodes/status`. →
    /// `Done`.
    SetNodeCondition {
        /// Type of the condition.
        kind: &'static str,
        /// Whether the status is True.
        stands: bool,
        /// Reason of the condition, in CamelCase.
        reason: &'static str,
        /// Message for people.
        message: String,
        /// The `lastTransitionTime`.
        since: Timestamp,
    },
    /// Emits an event in the API, for people; nothing depends on it. → `Done`.
    EmitEvent(Notice),
    /// Writes one line to the log: a decision and its reason. No result.
    Log(Line),
}

/// How much of a pod the agent stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// Only the containers. A live kubelet stops the sandbox: removing its network takes longer
    /// than the kubelet needs to notice the containers' exit.
    Containers,
    /// The sandbox too, so that nothing of the pod can start again.
    Pod,
}

/// Purpose of a status patch: its rank in retries, and its label in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// `DisruptionTarget=True`, before the pod terminates.
    Mark,
    /// `phase=Failed`.
    Fail,
    /// `DisruptionTarget=False`, because the pod stays.
    Clear,
    /// `epilogue.dev/OOMKilled`, the reason why a container died.
    Cause,
}

/// An event for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// The pod that it is about; `None` for the node.
    pub pod: Option<PodRef>,
    /// Whether the event's type is Warning.
    pub warning: bool,
    /// Reason of the event, in CamelCase; `agent/README.md` documents each.
    pub reason: &'static str,
    /// What happened, and how to react.
    pub message: String,
    /// Annotations of the event, for programs.
    pub annotations: Vec<(&'static str, String)>,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Whether a person should read it.
    pub warning: bool,
    /// The decision, in one phrase.
    pub text: String,
    /// The pod that the line is about, if any.
    pub pod: Option<PodRef>,
}
