//! Defines the past facts that the sources report.

use std::time::Duration;

use epilogue_common::outcome::{Failure, Outcome};
use jiff::Timestamp;

use super::action::{Action, ActionId};
use super::ending::{Ending, ShutdownKind, Source};
use super::node::KubeletFacts;
use super::pressure::{Figures, Measured, OomKill, OomdKill, Stalling};
use crate::pod::{PodRef, PodUid, PodView};

/// The clocks, read together at one moment. ([AP22])
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// CLOCK_MONOTONIC, the base of deadlines, as in logind. It stands still in suspend.
    pub monotonic: Duration,
    /// CLOCK_BOOTTIME, the base of the journal's timestamps. It continues in suspend.
    pub boot: Duration,
    /// Time of the API server, for timestamps in objects.
    pub wall: Timestamp,
}

/// A past fact.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// All pods of the node, from a list: at the start and after each loss of the watch. A pod that
    /// the list lacks is gone.
    PodsListed(Vec<PodView>),
    /// The same after the API has gone back to an earlier version, as when etcd is restored from a
    /// snapshot. What was known of a pod may not have happened.
    PodsRestored(Vec<PodView>),
    /// One pod, from the watch or from a read.
    PodObserved(Box<PodView>),
    /// The API no longer has the pod.
    PodGone(PodUid),
    /// The node's own object: our annotations and taints.
    NodeObserved(NodeView),
    /// logind is connected, its signals are subscribed, and this is its current state. Repeated
    /// after each change of the name's owner, and at each poll.
    LogindSeen(LogindState),
    /// The connection is lost, or no process owns the name. The agent keeps an existing lock.
    LogindLost(String),
    /// What a source says of the machine's end by itself: all of it, each time; `None` if there is
    /// no end, or none any more. logind says it by its signals; what is read of it is `LogindSeen`.
    EndingSeen(Source, Option<Ending>),
    /// A drop-in of logind that is not ours was written, for example by a kubelet that needs a
    /// longer delay. ([SD4])
    LogindConfChanged,
    /// What is known of the kubelet. Sent at least once a minute, after each change, and again
    /// after each announcement.
    KubeletSeen(KubeletFacts),
    /// A kernel trigger (PSI) fired: tasks of pods wait. Sent at most every 100 ms.
    PressureRose(Stalling),
    /// The kernel OOM-killed a process of a pod.
    OomKilled(Box<OomKill>),
    /// systemd-oomd killed a cgroup.
    OomdKilled(Box<OomdKill>),
    /// Whether the API refuses writes that an agent must not send, found by dry runs. Names the
    /// policy that is missing or too loose. (deploy/policy)
    PoliciesTried(Option<String>),
    /// The agent received SIGTERM.
    StopRequested,
    /// An action has finished.
    Finished {
        /// The action.
        id: ActionId,
        /// Its result.
        result: ActionResult,
    },
}

/// The fields of the node's object that the agent needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.uid`.
    pub uid: String,
    /// Value of the annotation `epilogue.dev/state`, if present.
    pub announced: Option<String>,
    /// Value of the annotation `epilogue.dev/readiness`, if present.
    pub readiness: Option<String>,
    /// Whether the node has our taint `epilogue.dev/shutting-down`.
    pub tainted: bool,
    /// Whether condition Ready is False with a message that contains `node is shutting down`.
    pub kubelet_says_shutdown: bool,
    /// The kubelet's pressure conditions that are True: `MemoryPressure`, `DiskPressure`,
    /// `PIDPressure`.
    pub kubelet_pressure: Vec<String>,
    /// The conditions that the agent may write.
    pub conditions: Vec<NodeCondition>,
    /// By what another program says that the node is about to end.
    pub end_sign: Option<EndSign>,
    /// `status.volumesInUse`.
    pub volumes_in_use: VolumesInUse,
}

impl NodeView {
    /// The condition of this type.
    pub fn condition(&self, kind: &str) -> Option<&NodeCondition> {
        self.conditions.iter().find(|condition| condition.kind == kind)
    }

    /// Whether the condition of this type is True.
    pub fn shows(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.is_true)
    }
}

/// A taint or condition by which another program says that the node is about to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndSign {
    /// The taint's key, or the condition's type.
    pub name: String,
    /// Whether the node should get no new pods meanwhile, and its writer has not seen to it.
    pub needs_taint: bool,
}

impl EndSign {
    /// What it says: who wrote it ends the pods, and may call it off.
    pub fn ending(&self) -> Ending {
        let kind = Some(ShutdownKind::Other(self.name.clone()));
        Ending { within: None, kind, certain: false }
    }
}

/// A condition of the node that the agent may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCondition {
    /// `type`.
    pub kind: String,
    /// Whether `status` is True.
    pub is_true: bool,
    /// Whether the agent wrote it last.
    pub is_ours: bool,
}

impl NodeCondition {
    /// A condition that the agent has written.
    pub fn ours(kind: &str, is_true: bool) -> Self {
        Self { kind: kind.to_owned(), is_true, is_ours: true }
    }
}

/// The volumes that the kubelet reports as in use, of bounded size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumesInUse {
    /// How many there are.
    pub number: usize,
    /// The names of the first ones.
    pub names: Vec<String>,
}

impl VolumesInUse {
    /// More than a node may have attached, for any driver that has a limit.
    const NAMES_MAX: usize = 128;
    /// A CSI driver's name and a volume's handle have at most 63 and 128 bytes in most clouds.
    const NAME_BYTES_MAX: usize = 256;

    /// Keeps what is needed of a list.
    pub fn of(names: impl IntoIterator<Item = String>) -> Self {
        let mut kept = Self::default();
        for mut name in names {
            kept.number += 1;
            if kept.names.len() < Self::NAMES_MAX {
                name.truncate(name.floor_char_boundary(Self::NAME_BYTES_MAX));
                kept.names.push(name);
            }
        }
        kept
    }
}

/// State of logind, from its properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogindState {
    /// Unique bus name of logind's connection. A different name means that logind has restarted.
    pub owner: String,
    /// `InhibitDelayMaxUSec`; `None` if it could not be read.
    pub delay: Option<Duration>,
    /// `PreparingForShutdown`.
    pub preparing: bool,
    /// `ScheduledShutdown`: kind, and time (wall clock); `None` if no shutdown is scheduled.
    pub scheduled: Option<(String, Timestamp)>,
    /// Whether our own lock is in `ListInhibitors`; `None` without an answer.
    pub lock_listed: Option<bool>,
}

impl LogindState {
    /// The end that is scheduled, as of this time of the wall clock.
    pub fn scheduled_ending(&self, now: Timestamp) -> Option<Ending> {
        let (kind, at) = self.scheduled.as_ref()?;
        // `shutdown -k` only warns those who are logged in.
        if kind.starts_with("dry-") {
            return None;
        }
        let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
        Some(Ending::certain(Some(left), Some(ShutdownKind::named(kind))))
    }
}

/// Result of an action. The action's comment names its variants.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionResult {
    /// The action succeeded, or failed with the error of the API or the host.
    Done(Outcome<()>),
    /// Outcome of a patch of a pod's status: its `metadata.resourceVersion` since; `None` if the
    /// API's answer does not say it.
    Patched(Outcome<Option<String>>),
    /// The agent holds a delay lock.
    Locked,
    /// logind refused the lock, because a shutdown is in progress. ([LD5])
    LockRefusedInProgress,
    /// The delay that logind grants now; less than requested if logind did not follow.
    Delay(Outcome<Duration>),
    /// The current pod; `None` if no pod has that UID any more.
    Pod(Outcome<Option<Box<PodView>>>),
    /// State of the pod in the container runtime.
    Runtime(Result<RuntimeState, Failure>),
    /// All pods that the container runtime knows.
    RuntimePods(Result<Vec<RuntimePod>, Failure>),
    /// A sample of the node.
    Measured(Measured),
    /// Usage of the pods.
    Figures(Result<Figures, Failure>),
}

impl ActionResult {
    /// How this action fails, whatever the failure.
    pub fn failed(of: &Action) -> fn(Failure) -> Self {
        match of {
            Action::RaiseDelay { .. } => |failure| Self::Delay(Err(failure)),
            Action::PatchStatus { .. } => |failure| Self::Patched(Err(failure)),
            Action::ReadPod(_) => |failure| Self::Pod(Err(failure)),
            Action::StopPod { .. } | Action::InspectPod(_) => |failure| Self::Runtime(Err(failure)),
            Action::ListRuntimePods => |failure| Self::RuntimePods(Err(failure)),
            Action::Measure => |failure| Self::Measured(Err(failure)),
            Action::MeasurePods { .. } => |failure| Self::Figures(Err(failure)),
            Action::TakeLock
            | Action::ReleaseLock
            | Action::Journal(_)
            | Action::CloseJournal
            | Action::Announce(_)
            | Action::Publish(_)
            | Action::Taint { .. }
            | Action::PatchPod { .. }
            | Action::DeletePod { .. }
            | Action::SetNodeCondition { .. }
            | Action::EmitEvent(_)
            | Action::SignalContainer { .. }
            | Action::Log(_) => |failure| Self::Done(Err(failure)),
        }
    }
}

/// One pod in the list of all that the container runtime knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimePod {
    /// The pod, as its kubelet has named it to the runtime.
    pub pod: PodRef,
    /// Whether the kubelet has it from elsewhere than the API.
    pub is_static: bool,
    /// Whether a sandbox of it is READY, or a container has not exited.
    pub may_run: bool,
}

/// State of one pod in the container runtime, including exited containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeState {
    /// The pod's containers.
    pub containers: Vec<RuntimeContainer>,
    /// Whether a sandbox of the pod is READY.
    pub sandbox_ready: bool,
    /// Whether the pod ever had a sandbox, ready or not.
    pub sandbox_known: bool,
}

/// One container of a pod in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeContainer {
    /// The runtime's id.
    pub id: String,
    /// Label `io.kubernetes.container.name`.
    pub name: String,
    /// Whether it has exited. Created, running and unknown containers have not.
    pub exited: bool,
    /// Exit code of an exited container.
    pub exit_code: Option<i32>,
    /// Time of the exit.
    pub finished_at: Option<Timestamp>,
    /// The runtime's reason, such as `OOMKilled`.
    pub reason: String,
}

impl RuntimeState {
    /// Whether the runtime proves that nothing of the pod runs. ([PT7])
    pub fn nothing_runs(&self) -> bool {
        !self.sandbox_ready && self.containers.iter().all(|container| container.exited)
    }

    /// Whether the runtime has containers of the pod, and all have exited. A pod that cannot run
    /// again has then terminated; a kubelet, too, reports this while its sandbox is ready.
    pub fn containers_ended(&self) -> bool {
        !self.containers.is_empty() && self.containers.iter().all(|container| container.exited)
    }

    /// Whether a container ended while the runtime did not run, as at a loss of power. containerd
    /// says so.
    pub fn was_cut(&self) -> bool {
        self.containers.iter().any(|container| container.exited && container.reason == "Unknown")
    }

    /// Whether the runtime has neither a sandbox nor a container of the pod.
    pub fn knows_nothing(&self) -> bool {
        !self.sandbox_known && self.containers.is_empty()
    }

    /// Whether the runtime proves that a pod has terminated. A runtime without any record of a pod
    /// that has run may not be the pod's own, and proves nothing.
    pub fn proves_end(&self, has_run: bool) -> bool {
        self.nothing_runs() && (!self.knows_nothing() || !has_run)
    }
}
