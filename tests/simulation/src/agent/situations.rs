//! The situations that the worlds of the agent have to meet: each fault, each state in which a
//! verdict can fail, each stage in which the agent was killed.

use std::str::FromStr;

use agent_core::protocol::action::{Action, Purpose};
use agent_core::shutdown::budget::Step;

use super::scenario::{Fault, Outcome};
use super::world::World;
use crate::tally::situations;

situations! {
    // Faults.
    Dark: "the API is out of reach";
    DarkForKubelet: "the API is out of reach for the kubelet, too";
    Crash: "the agent crashes";
    Freeze: "the agent stands still";
    StopRequest: "the agent is asked to stop";
    KubeletDies: "the kubelet dies";
    KubeletHangs: "the kubelet hangs";
    SyncLoopHangs: "the kubelet's sync loop hangs, and it answers pings";
    KubeletIsRestarted: "the kubelet dies, and systemd starts it again";
    KubeletsPortTaken: "the kubelet dies, and another process takes its port";
    KubeletRestarts: "the kubelet restarts";
    RuntimeSilent: "the runtime is silent for a while";
    ClockJumps: "the wall clock jumps";
    Suspend: "the machine was suspended";
    Arrival: "a pod arrives";
    RequestLost: "a request is lost";
    ReplyLost: "a reply is lost";
    Throttled: "the API slows the agent down";
    VerbForbidden: "the API forbids a verb";
    Webhook: "a webhook protects a pod from a verb";
    LateRights: "the API refuses everything for a while";
    ServerError: "the API answers with an error";
    WatchBreaks: "the watch breaks";
    ReadOnlyDisk: "the journal cannot be written";
    UnsyncedLost: "a record that was not synced is lost";
    MuteDelay: "logind does not say its delay";
    OtherLock: "another program holds a delay lock";
    LostCancel: "the signal of a cancel is lost";
    Going: "a shutdown ends with a power-off";
    Cancelled: "a shutdown is cancelled";
    Forgotten: "logind restarts and forgets a shutdown";
    PowerCut: "the power is cut in a shutdown";
    Unannounced: "systemd stops the system, and logind announces nothing";
    KubeletDeserts: "the kubelet is gone for good";
    KubeletWakes: "a hung kubelet wakes";
    RuntimeDies: "the runtime is silent for good";
    PullHangs: "a pull hangs";
    UserDeletes: "a user deletes a pod";
    IoStall: "tasks wait for disks";
    SampleFails: "a sample of the node fails";
    SampleIsOld: "a sample of the node is an old one";
    SignalMissing: "a sample lacks a signal";
    PodMissing: "a sample of the pods lacks one";
    WitnessLost: "a witness of a kill says nothing";
    WitnessVague: "a witness of a kill does not know what was short";
    ChildKilled: "the kernel kills a child, and its container lives";
    LimitKill: "the kernel kills at a limit";
    NodeKill: "the kernel kills for the node";
    Preemption: "the scheduler preempts a pod";
    KubeletEvicts: "the kubelet evicts a pod";
    VolumeHangs: "the kubelet cannot unstage a volume";

    // Pods and states that an agent must respect as a shutdown comes.
    StaticInShutdown: "a static pod lives as a shutdown comes";
    OwnInShutdown: "the agent's own pod lives as a shutdown comes";
    DaemonInReplace: "a DaemonSet's pod lives as a shutdown in Replace comes";
    ObservedInShutdown: "a pod lives as a shutdown comes, and the agent only observes";
    ForeignMark: "a pod with a foreign DisruptionTarget lives as a shutdown comes";
    EndedLongBefore: "a pod has ended long before a shutdown, and its kubelet is dead";
    ArmedKubelet: "an armed kubelet lives as a shutdown comes";
    UnarmedKubelet: "a kubelet without a lock lives as a shutdown comes";

    // What the agent does, as it is judged.
    StatusPatch: "a status patch is issued";
    Deletion: "a deletion is issued";
    CallAboutPod: "a call about a pod is issued";
    KillIssued: "the agent begins to terminate a pod";
    SweptSandbox: "an empty sandbox of a deleted pod is stopped outside of a shutdown";
    FirstKill: "the first pod of a shutdown is terminated";
    StopIssued: "a pod other than a victim is stopped";
    Drained: "the node is announced as drained";
    WindowFull: "as many calls are under way as may be";
    StatusAfterEnd: "a Failed or a cause arrives after the pod's end";
    MarkAfterEnd: "a mark arrives after the pod's end";
    MarkArrives: "a mark of a shutdown stands after a patch";
    ClearArrives: "a mark is taken back";
    ClearAfterEnd: "the removal of a mark arrives after the pod's end";
    FailArrives: "a Failed arrives";
    FailInShutdown: "a Failed of a shutdown arrives";
    FailOfOnce: "a Failed arrives of a pod that cannot run again";
    EndedWell: "the agent asks the runtime about a pod that ended well";
    FirstDeletion: "the first deletion of a live pod arrives";
    EndOfDeleted: "a pod that the agent deleted ends";
    GoneAfterDeletion: "the object of a pod goes that the agent deleted";
    CutPod: "a pod that must be marked runs at the power-off";
    StoppedMarked: "a pod that must be marked ends with a stop that logind does not announce";
    CutMarked: "a marked pod that ran at the power-off ends";
    LostMarked: "a pod ends after the boot that the agent had the time to mark";
    EarlyRelease: "the agent releases its lock early";
    VolumesAtRelease: "the agent releases its lock early on a node with volumes";
    ProtectedAtRelease: "the agent releases its lock early, with a protected pod unreported";

    // What must be true over time.
    Replacement: "a controller's new pod is bound to the node that goes down";
    IdleKubeletFound: "a kubelet that does nothing is there in a shutdown";
    LockNearDeadline: "the lock is held just before its deadline";
    LockWithoutNeed: "the lock is held with all reported";
    CancelWithMarks: "a shutdown is cancelled, and marked pods live";
    CancelWithTaint: "a shutdown is cancelled, and the node is tainted";
    NoticeCertain: "notice is given of a certain end, far away";
    NoticeUncertain: "notice is given of an end that may come";
    NoticeInShutdown: "notice is given amid a shutdown that logind has announced";
    NoticeWithdrawn: "a notice is withdrawn";
    CancelWithAnnouncement: "a shutdown is cancelled that the node announces";
    TidiedUp: "what a cancelled shutdown left is tidied up";
    EndInRest: "a world ends at rest";
    EndSettled: "a world ends with the machine on";
    DeletedAtEnd: "a deleted pod must be gone at the end";
    EndedAtEnd: "a pod has ended at the end, and must not run";
    SandboxLost: "a pod that no kubelet starts again has lost its sandbox";
    AbandonedFailed: "a Failed arrives of a pod that has lost its sandbox";

    // Pressure.
    EvictedEvent: "an eviction is reported by an event";
    NodeVictim: "the agent chooses a victim for the node";
    OwnLimitVictim: "the agent chooses a victim of its own limit";
    ShortObserved: "the node is short, and the agent only observes";
    ShortWithCritical: "the node is short, and a critical pod runs";
    ShortInShutdown: "the node is short in a shutdown";
    ShortUnderKubelet: "the node is short, and the kubelet says so";
    EvictionIssued: "a victim is terminated that must be marked";
    VictimInOutage: "the agent chooses a victim while the API is out of reach";
    ForeignVictim: "a victim has a foreign DisruptionTarget";
    VictimStopped: "a victim is stopped under a live kubelet";
    SecondVictim: "a victim is terminated while another was chosen";
    StallCondition: "a stall's condition is set";
    StallOver: "a stall is over at the end";
    VictimsAtEnd: "a world with victims ends with a live kubelet";
    ShortageBegins: "a shortage begins that the agent can relieve";

    // OOM kills.
    CauseArrives: "a cause arrives";
    CauseDisrupts: "a cause arrives with DisruptionTarget";
    KillUnsaid: "a kill is reported to an agent that says nothing of kills";
    CauseRight: "a cause stands at the end, and its kill was reported";
    CauseDue: "a cause is due at the end";

    // Pods that hang.
    StuckFailed: "a Failed arrives of a pod that hangs";
    StuckUnderKubelet: "a Failed arrives of a pod that hangs under a live kubelet";
    StuckOfOthers: "a Failed arrives of a pod that others deleted";
    LateStart: "a deleted pod starts after its start hung";
    StuckAgain: "a hung kubelet wakes, and the agent has failed a pod meanwhile";
    StuckAtEnd: "a deleted pod must be Failed at the end";

    // Stages in which the agent was killed.
    CrashIdle: "killed in stage idle";
    CrashInIntent: "killed in stage intent";
    CrashInPreMark: "killed in stage pre-mark";
    CrashInKill: "killed in stage kill";
    CrashInFlush: "killed in stage flush";
    CrashInLastWrites: "killed in stage last-writes";
    CrashInRelease: "killed in stage release";
    CrashInRevoke: "killed in stage revoke";
    CrashInBootRecovery: "killed in stage boot-recovery";
    KilledAfterTakeLock: "killed after TakeLock";
    KilledAfterReleaseLock: "killed after ReleaseLock";
    KilledAfterRaiseDelay: "killed after RaiseDelay";
    KilledAfterJournal: "killed after Journal";
    KilledAfterCloseJournal: "killed after CloseJournal";
    KilledAfterAnnounce: "killed after Announce";
    KilledAfterTaint: "killed after Taint";
    KilledAfterUntaint: "killed after Taint is removed";
    KilledAfterMark: "killed after a mark";
    KilledAfterFail: "killed after a Failed";
    KilledAfterClear: "killed after a mark was taken back";
    KilledAfterPatchPod: "killed after PatchPod";
    KilledAfterDeletePod: "killed after DeletePod";
    KilledAfterStopPod: "killed after StopPod";
    KilledAfterInspectPod: "killed after InspectPod";
    KilledAfterListRuntimePods: "killed after ListRuntimePods";
}

impl World {
    /// Counts a situation.
    pub(super) fn met(&mut self, what: Met) {
        self.stats.met.count(what as usize);
    }

    /// Counts the situation that a verdict is about, and records a violation if it is wrong.
    pub(super) fn judge(&mut self, about: Met, wrong: bool, what: impl FnOnce() -> String) {
        self.met(about);
        if wrong {
            self.violate(&what());
        }
    }

    pub(super) fn met_fault(&mut self, fault: Fault) {
        self.met(match fault {
            Fault::Kubelet(_) | Fault::KubeletRestarts(_) | Fault::KubeletsPortTaken => {
                return self.met_end(fault);
            }
            Fault::Dark(_, false) => Met::Dark,
            Fault::Dark(_, true) => Met::DarkForKubelet,
            Fault::Crash => Met::Crash,
            Fault::Freeze(_) => Met::Freeze,
            Fault::Stop => Met::StopRequest,
            Fault::KubeletStarts => Met::KubeletRestarts,
            Fault::RuntimeSilent(_) => Met::RuntimeSilent,
            Fault::Clock(_) => Met::ClockJumps,
            Fault::Suspend(_) => Met::Suspend,
            Fault::Arrival => Met::Arrival,
        });
    }

    pub(super) fn met_outcome(&mut self, outcome: Outcome) {
        self.met(match outcome {
            Outcome::Goes => Met::Going,
            Outcome::Cancelled(_) => Met::Cancelled,
            Outcome::Forgotten(_) => Met::Forgotten,
            Outcome::Cut(_) => Met::PowerCut,
            Outcome::Unannounced(_) => Met::Unannounced,
        });
    }

    /// Counts in which stage the process ends.
    pub(super) fn met_crash(&mut self) {
        for stage in Stage::ALL {
            if self.is_in(stage) {
                self.met(stage.met());
            }
        }
    }

    /// Whether the process is in this stage, which it tells in its status.
    pub(super) fn is_in(&self, stage: Stage) -> bool {
        let Some(process) = &self.process else { return false };
        let status = process.agent.status();
        let shutdown = status.shutdown.as_ref().filter(|shutdown| !shutdown.cancelled);
        let step = shutdown.map(|shutdown| shutdown.step);
        match stage {
            Stage::Idle => step.is_none(),
            Stage::Intent => step == Some(Step::Intent),
            Stage::PreMark => step == Some(Step::PreMark),
            Stage::Kill => step == Some(Step::Kill),
            Stage::Flush => step == Some(Step::Flush),
            Stage::LastWrites => step == Some(Step::LastWrites),
            Stage::Release => step == Some(Step::Release),
            Stage::Revoke => status.mark_removals_pending > 0,
            Stage::BootRecovery => status.boot_recovery_pending > 0,
        }
    }

    /// Counts after which action the process is killed.
    pub(super) fn met_kill(&mut self, after: KilledAfter) {
        if let Some(what) = after.0 {
            self.met(what);
        }
    }
}

/// A stage in which the agent may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No shutdown is under way.
    Idle,
    /// It writes the intent to the journal.
    Intent,
    /// It sets `DisruptionTarget` before any kill.
    PreMark,
    /// It terminates pods.
    Kill,
    /// It waits for reports.
    Flush,
    /// It writes in place of missing reports.
    LastWrites,
    /// It releases its lock.
    Release,
    /// It takes back marks.
    Revoke,
    /// It checks what an earlier boot left.
    BootRecovery,
}

impl Stage {
    /// All stages.
    pub const ALL: [Self; 9] = [
        Self::Idle,
        Self::Intent,
        Self::PreMark,
        Self::Kill,
        Self::Flush,
        Self::LastWrites,
        Self::Release,
        Self::Revoke,
        Self::BootRecovery,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Intent => "intent",
            Self::PreMark => "pre-mark",
            Self::Kill => "kill",
            Self::Flush => "flush",
            Self::LastWrites => "last-writes",
            Self::Release => "release",
            Self::Revoke => "revoke",
            Self::BootRecovery => "boot-recovery",
        }
    }

    fn met(self) -> Met {
        match self {
            Self::Idle => Met::CrashIdle,
            Self::Intent => Met::CrashInIntent,
            Self::PreMark => Met::CrashInPreMark,
            Self::Kill => Met::CrashInKill,
            Self::Flush => Met::CrashInFlush,
            Self::LastWrites => Met::CrashInLastWrites,
            Self::Release => Met::CrashInRelease,
            Self::Revoke => Met::CrashInRevoke,
            Self::BootRecovery => Met::CrashInBootRecovery,
        }
    }
}

impl FromStr for Stage {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|stage| stage.name() == name);
        let names = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("a stage is one of {}, e.g. kill", names()))
    }
}

/// Whether the action acts on nothing.
pub(super) fn is_check(action: &Action) -> bool {
    matches!(action, Action::Log(_) | Action::Measure | Action::MeasurePods { .. })
}

/// The action after which a process may be killed.
#[derive(Clone, Copy)]
pub(super) struct KilledAfter(Option<Met>);

impl KilledAfter {
    pub(super) fn of(action: &Action) -> Self {
        Self(match action {
            Action::TakeLock => Some(Met::KilledAfterTakeLock),
            Action::ReleaseLock => Some(Met::KilledAfterReleaseLock),
            Action::RaiseDelay { .. } => Some(Met::KilledAfterRaiseDelay),
            Action::Journal(_) => Some(Met::KilledAfterJournal),
            Action::CloseJournal => Some(Met::KilledAfterCloseJournal),
            Action::Announce(_) => Some(Met::KilledAfterAnnounce),
            Action::Taint { present: true } => Some(Met::KilledAfterTaint),
            Action::Taint { present: false } => Some(Met::KilledAfterUntaint),
            Action::PatchStatus { purpose: Purpose::Mark, .. } => Some(Met::KilledAfterMark),
            Action::PatchStatus { purpose: Purpose::Fail, .. } => Some(Met::KilledAfterFail),
            Action::PatchStatus { purpose: Purpose::Clear, .. } => Some(Met::KilledAfterClear),
            Action::PatchPod { .. } => Some(Met::KilledAfterPatchPod),
            Action::DeletePod { .. } => Some(Met::KilledAfterDeletePod),
            Action::StopPod { .. } => Some(Met::KilledAfterStopPod),
            Action::InspectPod(_) => Some(Met::KilledAfterInspectPod),
            Action::ListRuntimePods => Some(Met::KilledAfterListRuntimePods),
            _ => None,
        })
    }
}
