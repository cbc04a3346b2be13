//! What of the agent's state metrics, `/readyz` and `doctor` show.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::Enforcement;
use crate::pod::PodUid;
use crate::pressure::observe::Observation;
use crate::pressure::signal::Signal;
use crate::protocol::action::Purpose;
use crate::protocol::event::ShutdownKind;
use crate::protocol::pressure::OomConstraint;
use crate::shutdown::Mode;
use crate::shutdown::budget::Step;
use crate::termination::hanging::Hang;

/// The state as others may see it. Durations are on CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Status {
    /// What the agent does, or would do, in a shutdown; none until the kubelet was seen.
    pub mode: Option<Mode>,
    /// The admission policy that does not bind the agent, which therefore does not act.
    pub unbounded: Option<String>,
    /// Why this mode, in a phrase.
    pub mode_reason: &'static str,
    /// Whether nobody is there who would end pods: those that cannot survive are marked, no more.
    pub marks_only: bool,
    /// Whether logind is connected.
    pub logind: bool,
    /// logind's `PreparingForShutdown`.
    pub preparing: bool,
    /// Of the delay lock.
    pub lock: LockState,
    /// What logind grants, as last read.
    pub granted: Option<Duration>,
    /// What the priority groups and the reports want.
    pub wanted: Duration,
    /// Whether the pods of the node were listed.
    pub pods_listed: bool,
    /// The pods of the node that are known.
    pub pods: usize,
    /// Whether the last call to the API that ended had an answer.
    pub api_reachable: bool,
    /// Whether the journal has records of a shutdown.
    pub journal_open: bool,
    /// The shutdown that goes on, or went on last.
    pub shutdown: Option<ShutdownStatus>,
    /// Status patches by purpose: acknowledged, and failed attempts.
    pub patches: BTreeMap<Purpose, Tries>,
    /// Deletions: acknowledged, and failed attempts.
    pub deletions: Tries,
    /// Acknowledged writes of ours that the API showed, and then showed undone.
    pub reverted: BTreeMap<Purpose, u64>,
    /// Deleted pods that do not end, outside of shutdowns.
    pub stuck: StuckStatus,
    /// Pods of an earlier boot's run that are still to be looked at.
    pub boot_recovery_pending: usize,
    /// Conditions of a cancelled shutdown that still are to be taken back.
    pub mark_removals_pending: usize,
    /// Of the node's pressure.
    pub pressure: PressureStatus,
    /// Of OOM kills.
    pub oom: OomStatus,
    /// After `StopRequested`: nothing is left that would be worth living on for.
    pub may_exit: bool,
}

/// Deleted pods that do not end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StuckStatus {
    /// How many there are, by what is seen of them.
    pub pods: BTreeMap<Hang, usize>,
    /// How often one was failed.
    pub failed: u64,
}

/// Of the delay lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LockState {
    /// None is held.
    #[default]
    None,
    /// Asked for.
    Taking,
    /// Held.
    Held,
    /// logind gives none any more: it is going down. ([LD5])
    Refused,
    /// Given back at the end of a shutdown.
    Released,
}

/// How often something was acknowledged, and how often an attempt failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tries {
    /// Acknowledged by the API.
    pub done: u64,
    /// Attempts that failed, whatever the reason.
    pub failed: u64,
}

/// A shutdown, as far as it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShutdownStatus {
    /// When the signal came.
    pub t0: Duration,
    /// The same by the API's clock.
    pub since: Timestamp,
    /// The kind of shutdown, where logind told it.
    pub kind: Option<ShutdownKind>,
    /// What logind granted at the signal.
    pub granted: Duration,
    /// The mode of the shutdown.
    pub mode: Mode,
    /// The step.
    pub step: Step,
    /// Whether it was cancelled.
    pub cancelled: bool,
    /// The pods that the shutdown ends or waits for.
    pub candidates: usize,
    /// Of them, those with `DisruptionTarget=True` acknowledged.
    pub marked: usize,
    /// Of them, those that the API shows as ended, or that are gone.
    pub terminal: usize,
    /// Of them, those whose end the API does not show yet.
    pub unreported: usize,
    /// Marks and reports of our own that the API has not acknowledged yet.
    pub unacknowledged: usize,
    /// From the signal until every mark of the first step was settled.
    pub marked_after: Option<Duration>,
    /// From the signal until the last report was in the API.
    pub reported_after: Option<Duration>,
    /// From the signal until the lock was given back.
    pub released_after: Option<Duration>,
    /// Unreported pods at that moment.
    pub unreported_at_release: Option<usize>,
    /// Pods of the node that had no last phase at that moment either, and whose end the shutdown
    /// did not wait for, by the reason.
    pub left_at_release: BTreeMap<LeftReason, usize>,
}

/// Why a shutdown leaves a pod without a last phase in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum LeftReason {
    /// It is a DaemonSet's: in Replace these end with the machine, and start again with it.
    DaemonSet,
    /// Its priority is above what Replace ends.
    PriorityAboveMax,
    /// It has no controller, and `--bare-pods=leave` leaves such pods.
    NoController,
    /// It came after the notice in spite of the node's taint: once deleted, it would come again.
    ToleratesShutdown,
    /// The kubelet is gone and the container runtime may not be used, or priority groups are turned
    /// off.
    NoTerminator,
    /// All its containers had exited before the shutdown: its result is the kubelet's to report.
    ExitedBefore,
    /// All its containers exited with 0: its result is the kubelet's to report.
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

    /// As metrics and events have it.
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

/// What is known of the node's pressure, and what was done about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PressureStatus {
    /// What is done about it now.
    pub mode: Enforcement,
    /// Why it is less than what the operator has decided, in a phrase.
    pub held_by: Option<&'static str>,
    /// The signals that are watched or could be measured.
    pub signals: BTreeMap<Signal, SignalStatus>,
    /// When the node was last looked at with success, on CLOCK_MONOTONIC.
    pub sampled_at: Option<Duration>,
    /// Looks at the node: done, and failed or too slow.
    pub samples: Tries,
    /// What could not be read at the last look, a phrase each.
    pub unreadable: Vec<String>,
    /// Swap, where it could be read.
    pub swap: Option<Observation>,
    /// Stalls of pods for memory and of the node for disks; none without PSI.
    pub stalls: StallStatus,
    /// Pods ended, by signal (`memory.available`, `emptydirfs.limit`, …).
    pub evictions: BTreeMap<&'static str, EvictionCount>,
    /// Pods that are ending now.
    pub victims: Vec<VictimStatus>,
}

/// One signal, as it was measured last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SignalStatus {
    /// What was found; none where it could not be measured.
    pub found: Option<Observation>,
    /// When, on CLOCK_MONOTONIC.
    pub at: Option<Duration>,
    /// The hard threshold in units, where there is one.
    pub hard: Option<u64>,
    /// The soft threshold in units, where there is one.
    pub soft: Option<u64>,
    /// Whether a hard threshold is crossed, or was and is not over yet.
    pub hard_crossed: bool,
    /// The same of a soft one.
    pub soft_crossed: bool,
    /// Whether the kubelet's own threshold comes before ours, so that it is only observed.
    pub overlaps: bool,
}

/// Stalls, in ms of each second in which all tasks waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StallStatus {
    /// Of all pods together for memory.
    pub memory_full_ms_per_second: Option<u64>,
    /// Of the whole node for disks, over 10 s.
    pub io_full_ms_per_second: Option<u64>,
    /// Whether the node's condition `epilogue.dev/MemoryStall` is to be True.
    pub memory: bool,
    /// Whether the node's condition `epilogue.dev/IOStall` is to be True.
    pub io: bool,
}

/// Evictions of one signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EvictionCount {
    /// Pods that were ended, and are seen to have ended.
    pub done: u64,
    /// Pods that would have been ended, where only that is said.
    pub would: u64,
    /// Pods whose end could not be brought about.
    pub given_up: u64,
    /// From the choice of the pod that was ended last until its end was seen.
    pub took: Option<Duration>,
}

/// A pod that is ending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VictimStatus {
    /// The pod.
    pub uid: PodUid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The signal it ends for.
    pub signal: &'static str,
    /// When it was chosen, on CLOCK_MONOTONIC.
    pub since: Duration,
}

/// What is known of OOM kills, and what became of the conditions that say so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OomStatus {
    /// Kills by the kernel, by what was short.
    pub oom_kills: BTreeMap<OomConstraint, OomTally>,
    /// Kills of pods' cgroups by systemd-oomd.
    pub oomd_kills: u64,
    /// Conditions on pods that never restart (`restartPolicy: Never`) which the API had before
    /// the pod's last phase: a `podFailurePolicy` can match them.
    pub oom_conditions_won: u64,
    /// The same, but the last phase was there first.
    pub oom_conditions_lost: u64,
    /// Conditions that the API has not acknowledged yet.
    pub oom_conditions_pending: usize,
}

/// Kills, by what became of the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OomTally {
    /// It ended.
    pub ended: u64,
    /// It lived on: a child was killed.
    pub lived_on: u64,
    /// It could not be told.
    pub unknown: u64,
}
