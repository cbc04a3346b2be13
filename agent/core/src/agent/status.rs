//! Defines the state that metrics, `/readyz` and `doctor` show.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::end_signals::EndSignalTally;
use super::settings::Enforcement;
use crate::pod::PodUid;
use crate::pressure::observe::Observation;
use crate::pressure::signal::Signal;
use crate::protocol::action::Purpose;
use crate::protocol::ending::ShutdownKind;
use crate::protocol::pressure::OomConstraint;
use crate::shutdown::Mode;
use crate::shutdown::budget::Step;
use crate::termination::hanging::Hang;

/// The agent's state. Durations are on CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// What the agent does, or would do, in a shutdown; `None` until the kubelet was seen.
    pub mode: Option<Mode>,
    /// The admission policy that does not bind the agent, which therefore does not act.
    pub unbounded: Option<String>,
    /// The reason for this mode, in a phrase.
    pub mode_reason: &'static str,
    /// Whether no component terminates pods: the agent only marks those that cannot survive.
    pub marks_only: bool,
    /// Whether logind is connected.
    pub logind: bool,
    /// logind's `PreparingForShutdown`.
    pub preparing: bool,
    /// The delay lock.
    pub lock: LockState,
    /// The delay that logind grants, as last read.
    pub granted: Option<Duration>,
    /// The delay that the priority groups and the reports need.
    pub wanted: Duration,
    /// Whether the pods of the node were listed.
    pub pods_listed: bool,
    /// Number of known pods of the node.
    pub pods: usize,
    /// Whether the last finished API call got a response, or a watch has shown a change since.
    pub api_reachable: bool,
    /// Whether the journal has records of a shutdown.
    pub journal_open: bool,
    /// The current or the last shutdown.
    pub shutdown: Option<ShutdownStatus>,
    /// Status patches by purpose: acknowledged, and failed attempts.
    pub patches: BTreeMap<Purpose, Tries>,
    /// Deletions: acknowledged, and failed attempts.
    pub deletions: Tries,
    /// Acknowledged writes of ours that the API showed and later showed reverted.
    pub reverted: BTreeMap<Purpose, u64>,
    /// Deleted pods that do not end, outside of shutdowns.
    pub stuck: StuckStatus,
    /// Pods of an earlier boot that are still to be checked.
    pub boot_recovery_pending: usize,
    /// Conditions of a cancelled shutdown that are still to be removed.
    pub mark_removals_pending: usize,
    /// Node pressure.
    pub pressure: PressureStatus,
    /// OOM kills.
    pub oom: OomStatus,
    /// Signals to pods ahead of their end.
    pub end_signals: EndSignalTally,
    /// How often an agent that enforces would have acted, where this one observes.
    pub would_have: BTreeMap<WouldHave, u64>,
    /// After `StopRequested`: whether no open work remains.
    pub may_exit: bool,
}

/// What an agent that enforces would have done with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WouldHave {
    /// Set `DisruptionTarget` before anything else, in a shutdown.
    SetDisruptionTarget,
    /// Terminate the pod, in a shutdown.
    Terminate,
    /// Report the pod if the kubelet does not, in a shutdown.
    Report,
    /// Evict the pod.
    Evict,
    /// Fail a deleted pod that no kubelet handles.
    FailStuck,
}

impl WouldHave {
    /// All values.
    pub const ALL: [Self; 5] =
        [Self::SetDisruptionTarget, Self::Terminate, Self::Report, Self::Evict, Self::FailStuck];

    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::SetDisruptionTarget => "set-disruption-target",
            Self::Terminate => "terminate",
            Self::Report => "report",
            Self::Evict => "evict",
            Self::FailStuck => "fail-stuck",
        }
    }

    /// Words for an event, in this mode of a shutdown.
    pub(super) fn words(self, mode: Mode) -> &'static str {
        match (self, mode) {
            (Self::SetDisruptionTarget, _) => "set DisruptionTarget at once",
            (Self::Terminate, Mode::Substitute) => {
                "stop its containers through the runtime and report its end"
            }
            (Self::Terminate, _) => "terminate it through the API",
            (Self::Report, _) => "hold the shutdown until the API shows its end",
            (Self::Evict, _) => "evict it",
            (Self::FailStuck, _) => "fail it",
        }
    }
}

/// Deleted pods that do not end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StuckStatus {
    /// Number of pods by finding.
    pub pods: BTreeMap<Hang, usize>,
    /// Number of pods that the agent failed.
    pub failed: u64,
}

/// The state of the delay lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LockState {
    /// No lock is held.
    #[default]
    None,
    /// The lock is requested.
    Taking,
    /// The lock is held.
    Held,
    /// logind grants no more locks: it is going down. ([LD5])
    Refused,
    /// The lock was released at the end of a shutdown.
    Released,
}

/// Number of acknowledged writes and of failed attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tries {
    /// Acknowledged by the API.
    pub done: u64,
    /// Attempts that failed, whatever the reason.
    pub failed: u64,
}

/// The progress of a shutdown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShutdownStatus {
    /// When the signal came.
    pub t0: Duration,
    /// The same by the API's clock.
    pub since: Timestamp,
    /// The kind of shutdown, if logind reported it.
    pub kind: Option<ShutdownKind>,
    /// The delay that logind granted at the signal.
    pub granted: Duration,
    /// The mode of the shutdown.
    pub mode: Mode,
    /// The current step.
    pub step: Step,
    /// Whether it was cancelled.
    pub cancelled: bool,
    /// Pods that the shutdown terminates or waits for.
    pub candidates: usize,
    /// Candidates with `DisruptionTarget=True` acknowledged.
    pub marked: usize,
    /// Candidates that are terminal in the API, or gone.
    pub terminal: usize,
    /// Candidates that are not terminal in the API yet.
    pub unreported: usize,
    /// Marks and reports of our own that the API has not acknowledged yet.
    pub unacknowledged: usize,
    /// Time from the signal until every mark of the first step was settled.
    pub marked_after: Option<Duration>,
    /// Time from the signal until the last report was in the API.
    pub reported_after: Option<Duration>,
    /// Time from the signal until the lock was released.
    pub released_after: Option<Duration>,
    /// Unreported pods at the release of the lock.
    pub unreported_at_release: Option<usize>,
    /// Pods without a terminal phase at the release that the shutdown did not wait for, by reason.
    pub left_at_release: BTreeMap<LeftReason, usize>,
}

/// Why a shutdown leaves a pod without a terminal phase in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum LeftReason {
    /// It is a DaemonSet pod: where the agent terminates pods, these stop with the machine, and
    /// start again with it.
    DaemonSet,
    /// Replace does not terminate pods of its priority.
    PriorityAboveMax,
    /// It has no controller, and `--bare-pods=leave` leaves such pods.
    NoController,
    /// It came after the signal in spite of the node's taint: after a deletion it would come again.
    ToleratesShutdown,
    /// The kubelet is gone and the container runtime may not be used, or the pod came after the
    /// signal and never ran. Or priority groups are turned off.
    NoTerminator,
    /// All its containers had exited before the shutdown: the kubelet has to report its result.
    ExitedBefore,
    /// All its containers exited with 0: the kubelet has to report its result.
    Succeeded,
    /// The API or the runtime refused, or there was no time.
    NotTerminated,
}

impl LeftReason {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::DaemonSet,
        Self::PriorityAboveMax,
        Self::NoController,
        Self::ToleratesShutdown,
        Self::NoTerminator,
        Self::ExitedBefore,
        Self::Succeeded,
        Self::NotTerminated,
    ];

    /// The name in metrics and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::DaemonSet => "DaemonSet",
            Self::PriorityAboveMax => "PriorityAboveMax",
            Self::NoController => "NoController",
            Self::ToleratesShutdown => "ToleratesShutdown",
            Self::NoTerminator => "NoTerminator",
            Self::ExitedBefore => "ExitedBefore",
            Self::Succeeded => "Succeeded",
            Self::NotTerminated => "NotTerminated",
        }
    }
}

/// The node's pressure, and the evictions for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PressureStatus {
    /// The current mode.
    pub mode: Enforcement,
    /// Why the mode is weaker than the operator's configuration, in a phrase.
    pub held_by: Option<&'static str>,
    /// The signals that are watched or could be measured.
    pub signals: BTreeMap<Signal, SignalStatus>,
    /// When the node was last sampled with success, on CLOCK_MONOTONIC.
    pub sampled_at: Option<Duration>,
    /// Samples of the node: done, and failed or too slow.
    pub samples: Tries,
    /// What could not be read in the last sample, a phrase each.
    pub unreadable: Vec<String>,
    /// Swap, where it could be read.
    pub swap: Option<Observation>,
    /// Stalls of pods for memory and of the node for disks; empty without PSI.
    pub stalls: StallStatus,
    /// Evicted pods, by signal (`memory.available`, `emptydirfs.limit`, …).
    pub evictions: BTreeMap<&'static str, EvictionCount>,
    /// Pods whose eviction is in progress.
    pub victims: Vec<VictimStatus>,
}

/// The last measurement of one signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SignalStatus {
    /// The measured value; `None` if it could not be measured.
    pub found: Option<Observation>,
    /// When, on CLOCK_MONOTONIC.
    pub at: Option<Duration>,
    /// The hard threshold in units, if there is one.
    pub hard: Option<u64>,
    /// The soft threshold in units, if there is one.
    pub soft: Option<u64>,
    /// Whether a hard threshold is crossed, or was crossed and is not over yet.
    pub hard_crossed: bool,
    /// The same for a soft threshold.
    pub soft_crossed: bool,
    /// Whether the kubelet's own threshold comes before ours, so that the agent only observes.
    pub overlaps: bool,
}

/// Stalls, in ms of each second in which all tasks waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StallStatus {
    /// Stalls of all pods together for memory.
    pub memory_full_ms_per_second: Option<u64>,
    /// Stalls of the whole node for disks, over 10 s.
    pub io_full_ms_per_second: Option<u64>,
    /// Whether the node's condition `epilogue.dev/MemoryStall` is to be True.
    pub memory: bool,
    /// Whether the node's condition `epilogue.dev/IOStall` is to be True.
    pub io: bool,
}

/// Evictions of one signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EvictionCount {
    /// Evicted pods that have ended.
    pub done: u64,
    /// Pods that the agent would have evicted, where it only observes.
    pub would: u64,
    /// Pods whose eviction failed.
    pub given_up: u64,
    /// Time from the last eviction's choice of the pod until the pod ended.
    pub took: Option<Duration>,
}

/// A pod whose eviction is in progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VictimStatus {
    /// The pod's UID.
    pub uid: PodUid,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The signal that caused the eviction.
    pub signal: &'static str,
    /// When it was chosen, on CLOCK_MONOTONIC.
    pub since: Duration,
}

/// OOM kills, and the results of the conditions that report them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OomStatus {
    /// Kills by the kernel, by what was short.
    pub oom_kills: BTreeMap<OomConstraint, OomTally>,
    /// Kills of pods' cgroups by systemd-oomd.
    pub oomd_kills: u64,
    /// Conditions on pods that never restart (`restartPolicy: Never`) which the API had before the
    /// pod's terminal phase: a `podFailurePolicy` can match them.
    pub oom_conditions_won: u64,
    /// The same, but the terminal phase was there first.
    pub oom_conditions_lost: u64,
    /// Conditions that the API has not acknowledged yet.
    pub oom_conditions_pending: usize,
}

/// Kills, by what became of the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OomTally {
    /// The container ended.
    pub ended: u64,
    /// The container lived on: a child process was killed.
    pub lived_on: u64,
    /// It is not known whether the container lived on.
    pub unknown: u64,
}
