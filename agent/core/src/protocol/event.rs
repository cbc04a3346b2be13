//! Past facts, as the sources tell them.

use std::time::Duration;

use epilogue_common::outcome::{Failure, Outcome};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::action::ActionId;
use super::node::KubeletFacts;
use super::pressure::{Figures, Measured, OomKill, OomdKill, Stalling};
use crate::pod::{PodUid, PodView};

/// The clocks, read together at one moment. ([AP22])
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// CLOCK_MONOTONIC: what deadlines count by, as logind's do. Stands still in suspend.
    pub monotonic: Duration,
    /// CLOCK_BOOTTIME: runs on in suspend; what the journal's stamps count by.
    pub boot: Duration,
    /// The time of the API server: what goes into objects.
    pub wall: Timestamp,
}

/// A past fact.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// All pods of the node, from a list: at the start and after each loss of the watch. A pod
    /// that is not among them is gone.
    PodsListed(Vec<PodView>),
    /// One pod, as the watch or a read brought it.
    PodObserved(Box<PodView>),
    /// The pod is not in the API any more.
    PodGone(PodUid),
    /// The node's own object: annotations and taints that are ours, and the boot id.
    NodeObserved(NodeView),
    /// There is a connection to logind, the signals are subscribed, and this is what logind says
    /// now. Comes again after each change of the name's owner, and at each poll.
    LogindSeen(LogindState),
    /// The connection is lost, or nobody owns the name. A lock taken before is held on.
    LogindLost(String),
    /// `PrepareForShutdown(true)`, from the owner of the name.
    ShutdownAnnounced(Announcement),
    /// `PrepareForShutdown(false)`, from the owner of the name.
    ShutdownCancelled,
    /// What is known of the kubelet; at least once a minute, after each change, and anew after
    /// each announcement.
    KubeletSeen(KubeletFacts),
    /// A trigger of the kernel fired: tasks of pods wait (PSI). Comes at most every 100 ms.
    PressureRose(Stalling),
    /// The kernel killed a process of a pod for want of memory.
    OomKilled(Box<OomKill>),
    /// systemd-oomd killed a cgroup.
    OomdKilled(Box<OomdKill>),
    /// Whether the API refuses what an agent must not write, by dry runs; the policy that it lacks
    /// or that is too loose. (deploy/policy)
    PoliciesTried(Option<String>),
    /// The agent itself is told to stop (SIGTERM).
    StopRequested,
    /// An action has ended.
    Finished {
        /// Which.
        id: ActionId,
        /// How.
        result: ActionResult,
    },
}

/// What the agent needs to know of its node's object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.uid`.
    pub uid: String,
    /// The value of the annotation `epilogue.dev/state`, if it is there.
    pub announced: Option<String>,
    /// The value of the annotation `epilogue.dev/readiness`, if it is there.
    pub readiness: Option<String>,
    /// Whether our taint `epilogue.dev/shutting-down` is there.
    pub tainted: bool,
    /// Whether condition Ready is False with a message that contains `node is shutting down`.
    pub kubelet_says_shutdown: bool,
    /// The kubelet's conditions of pressure that are True: `MemoryPressure`, `DiskPressure`,
    /// `PIDPressure`.
    pub kubelet_pressure: Vec<String>,
    /// Conditions of our own (`epilogue.dev/…`): type, and whether it is True.
    pub conditions: Vec<(String, bool)>,
}

/// What logind's properties say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogindState {
    /// The unique name of logind's connection: another one means that logind was restarted.
    pub owner: String,
    /// `InhibitDelayMaxUSec`, if it could be read.
    pub delay: Option<Duration>,
    /// `PreparingForShutdown`.
    pub preparing: bool,
    /// `ScheduledShutdown`: what, and when (wall clock), if there is one.
    pub scheduled: Option<(String, Timestamp)>,
    /// Whether our own lock is in `ListInhibitors`.
    pub lock_listed: bool,
}

/// `PrepareForShutdown(true)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// `InhibitDelayMaxUSec`, read anew at the signal; none if there was no answer in 100 ms.
    pub granted: Option<Duration>,
    /// The kind of shutdown, where logind told it.
    pub kind: Option<ShutdownKind>,
}

/// `type` of `PrepareForShutdownWithMetadata`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShutdownKind {
    /// The machine goes off.
    Poweroff,
    /// It comes back.
    Reboot,
    /// It stops.
    Halt,
    /// Another kernel.
    Kexec,
    /// Another user space under the same kernel: the boot id stays.
    SoftReboot,
    /// A word that is not known.
    #[serde(untagged)]
    Other(String),
}

/// How an action ended. Which variant belongs to which action stands at the action.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionResult {
    /// Done, or failed as the API or the host said.
    Done(Outcome<()>),
    /// A delay lock is held.
    Locked,
    /// There is no lock: logind is going down already. ([LD5])
    LockRefusedInProgress,
    /// The delay that logind grants now; less than asked for where it did not follow.
    Delay(Outcome<Duration>),
    /// The pod as it is; none when there is no pod of that UID any more.
    Pod(Outcome<Option<Box<PodView>>>),
    /// What the container runtime has of the pod.
    Runtime(Result<RuntimeState, Failure>),
    /// A look at the node.
    Measured(Measured),
    /// What pods use.
    Figures(Result<Figures, Failure>),
}

/// What the container runtime has of one pod, exited containers included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeState {
    /// The pod's containers.
    pub containers: Vec<RuntimeContainer>,
    /// Whether a sandbox of the pod is READY.
    pub sandbox_ready: bool,
    /// Whether there was ever a sandbox, ready or not.
    pub sandbox_known: bool,
}

/// One container of a pod in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeContainer {
    /// The runtime's id.
    pub id: String,
    /// Label `io.kubernetes.container.name`.
    pub name: String,
    /// Whether it has exited. Created, running and unknown are not exited.
    pub exited: bool,
    /// Exit code, of one that has exited.
    pub exit_code: Option<i32>,
    /// When it exited.
    pub finished_at: Option<Timestamp>,
    /// The runtime's reason, such as `OOMKilled`.
    pub reason: String,
}

impl RuntimeState {
    /// Whether the runtime proves that nothing of the pod runs. ([PT7])
    pub fn nothing_runs(&self) -> bool {
        !self.sandbox_ready && self.containers.iter().all(|container| container.exited)
    }

    /// Whether the runtime has containers of the pod, and all have exited. Of a pod that cannot run
    /// again that is its end: a kubelet, too, calls it ended while its sandbox still stands.
    pub fn containers_ended(&self) -> bool {
        !self.containers.is_empty() && self.containers.iter().all(|container| container.exited)
    }

    /// Whether the runtime has neither a sandbox nor a container of the pod.
    pub fn knows_nothing(&self) -> bool {
        !self.sandbox_known && self.containers.is_empty()
    }

    /// Whether the runtime proves that a pod has ended. A runtime that knows nothing of a pod that
    /// has run may be another than the pod's, and proves nothing.
    pub fn proves_end(&self, has_run: bool) -> bool {
        self.nothing_runs() && (!self.knows_nothing() || !has_run)
    }
}
