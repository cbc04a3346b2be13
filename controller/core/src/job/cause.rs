//! Names why a pod of a Job ended, as far as its status shows: one closed set of causes for
//! messages, events, metrics and the plugin.

use std::fmt;

use epilogue_common::names::disruption_reason::{
    DELETION_BY_POD_GC, LOST_BY_NODE, REJECTED_BY_KUBELET, TERMINATION_BY_KUBELET,
};
use epilogue_common::names::oom_reason::{CONTAINER_LIMIT, NODE_OUT_OF_MEMORY};
use epilogue_common::names::pod_condition::PENDING_TIMEOUT;

use crate::view::{Container, ContainerKind, EndedBy, Phase, Pod, Terminated};

/// The most characters of a reason that somebody else writes.
const REASON_MAX: usize = 64;

/// Why a pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A container exited with an error.
    ExitCode,
    /// A container was OOM-killed: by its own limit, as far as anybody says.
    ContainerOom,
    /// A container was OOM-killed because the node had no memory left.
    NodeOom,
    /// A container could not be started, or not in time.
    StartFailed,
    /// The pod took more local storage than it may.
    StorageLimit,
    /// The pod reached its own `activeDeadlineSeconds`.
    PodDeadline,
    /// The kubelet rejected the pod.
    RejectedByKubelet,
    /// The Eviction API, as in a drain.
    EvictionByEvictionApi,
    /// A pod of a higher priority took its place.
    PreemptionByScheduler,
    /// A taint with NoExecute.
    DeletionByTaintManager,
    /// Pod GC.
    DeletionByPodGc,
    /// The kubelet, or the agent in its place: a shutdown or a shortage of the node.
    TerminationByKubelet,
    /// The node booted.
    LostByNode,
    /// A `DisruptionTarget` with a reason that is not known here.
    OtherDisruption,
    /// The node is gone from the API.
    NodeGone,
    /// The controller failed the pod without proof, as its Job allows.
    ForceFailed,
    /// Somebody deleted the pod, and no condition says why.
    Deleted,
    /// The status does not say.
    Unknown,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 18] = [
        Self::ExitCode,
        Self::ContainerOom,
        Self::NodeOom,
        Self::StartFailed,
        Self::StorageLimit,
        Self::PodDeadline,
        Self::RejectedByKubelet,
        Self::EvictionByEvictionApi,
        Self::PreemptionByScheduler,
        Self::DeletionByTaintManager,
        Self::DeletionByPodGc,
        Self::TerminationByKubelet,
        Self::LostByNode,
        Self::OtherDisruption,
        Self::NodeGone,
        Self::ForceFailed,
        Self::Deleted,
        Self::Unknown,
    ];

    /// The name, also as the value of a label.
    pub fn label(self) -> &'static str {
        match self {
            Self::ExitCode => "ExitCode",
            Self::ContainerOom => "ContainerOOM",
            Self::NodeOom => "NodeOOM",
            Self::StartFailed => "StartFailed",
            Self::StorageLimit => "StorageLimit",
            Self::PodDeadline => "PodDeadline",
            Self::RejectedByKubelet => REJECTED_BY_KUBELET,
            Self::EvictionByEvictionApi => "EvictionByEvictionAPI",
            Self::PreemptionByScheduler => "PreemptionByScheduler",
            Self::DeletionByTaintManager => "DeletionByTaintManager",
            Self::DeletionByPodGc => DELETION_BY_POD_GC,
            Self::TerminationByKubelet => TERMINATION_BY_KUBELET,
            Self::LostByNode => LOST_BY_NODE,
            Self::OtherDisruption => "OtherDisruption",
            Self::NodeGone => "NodeGone",
            Self::ForceFailed => "ForceFailed",
            Self::Deleted => "Deleted",
            Self::Unknown => "Unknown",
        }
    }

    /// Whether something other than the pod itself ended it.
    pub fn is_disruption(self) -> bool {
        matches!(
            self,
            Self::EvictionByEvictionApi
                | Self::PreemptionByScheduler
                | Self::DeletionByTaintManager
                | Self::DeletionByPodGc
                | Self::TerminationByKubelet
                | Self::RejectedByKubelet
                | Self::LostByNode
                | Self::OtherDisruption
                | Self::NodeGone
                | Self::ForceFailed
        )
    }

    /// Why the pod ended. What others did to it comes before how its containers ended.
    pub fn of(pod: &Pod) -> Self {
        let decider = Decider::of(pod);
        let oom = pod.gc.oom_killed();
        match (pod.gc.ended(), &decider) {
            (Some("NodeGone"), _) => Self::NodeGone,
            (Some("ForceFail"), _) => Self::ForceFailed,
            _ if oom == Some(NODE_OUT_OF_MEMORY) => Self::NodeOom,
            _ if pod.is_target() => Self::of_disruption(pod),
            _ if pod.has_condition(PENDING_TIMEOUT) => Self::StartFailed,
            (_, Some(decider)) => decider.cause(oom),
            _ => Self::without_containers(pod),
        }
    }

    /// Who disrupts a pod that has a `DisruptionTarget`.
    pub(crate) fn of_disruption(pod: &Pod) -> Self {
        let reason = pod.gc.target().map_or("", |target| &target.reason);
        let known = [
            Self::EvictionByEvictionApi,
            Self::PreemptionByScheduler,
            Self::DeletionByTaintManager,
            Self::DeletionByPodGc,
            Self::TerminationByKubelet,
            Self::RejectedByKubelet,
            Self::LostByNode,
        ];
        known.into_iter().find(|each| each.label() == reason).unwrap_or(Self::OtherDisruption)
    }

    /// No container says anything.
    fn without_containers(pod: &Pod) -> Self {
        match pod.gc.reason() {
            Some("DeadlineExceeded") => Self::PodDeadline,
            Some("Evicted") => Self::StorageLimit,
            Some(_) if pod.phase == Phase::Failed && pod.containers.is_empty() => {
                Self::RejectedByKubelet
            }
            _ if pod.deletion.is_some() => Self::Deleted,
            _ => Self::Unknown,
        }
    }
}

/// The container that decided how its pod ended.
#[derive(Clone, Copy, Debug)]
struct Decider<'a> {
    container: &'a Container,
    ended: Terminated,
}

impl<'a> Decider<'a> {
    /// The first one that failed, and of two at once a regular one. Sidecars never decide. The
    /// kubelet's own reason comes before the codes that its signals caused. What a container did
    /// before its last start is no cause of a deletion.
    fn of(pod: &'a Pod) -> Option<Self> {
        if matches!(pod.gc.reason(), Some("DeadlineExceeded" | "Evicted")) {
            return None;
        }
        let decide = || pod.containers.iter().filter(|each| each.kind != ContainerKind::Sidecar);
        let failed = |ended: &Terminated| ended.exit_code != 0;
        let now = decide().filter_map(|container| {
            let ended = container.terminated.filter(failed)?;
            Some(Self { container, ended })
        });
        let is_deleted = pod.deletion.is_some() && pod.phase != Phase::Failed;
        let first = |of: &Self| (of.ended.finished_at.is_none(), of.ended.finished_at);
        now.min_by_key(first).or_else(|| Self::before(pod).filter(|_| !is_deleted))
    }

    /// The last one that failed before its last start.
    fn before(pod: &'a Pod) -> Option<Self> {
        let decide = pod.containers.iter().filter(|each| each.kind != ContainerKind::Sidecar);
        let before = decide.filter_map(|container| {
            let ended = *container.last.as_deref().filter(|ended| ended.exit_code != 0)?;
            Some(Self { container, ended })
        });
        before.max_by_key(|of| of.ended.finished_at)
    }

    fn cause(&self, oom: Option<&str>) -> Cause {
        match self.ended.by {
            EndedBy::OomKill => Cause::ContainerOom,
            _ if oom == Some(CONTAINER_LIMIT) => Cause::ContainerOom,
            EndedBy::Start => Cause::StartFailed,
            EndedBy::Program => Cause::ExitCode,
            EndedBy::Unknown => Cause::Unknown,
        }
    }
}

/// How a pod ended, as a sentence without its full stop.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a>(pub &'a Pod);

impl fmt::Display for Ending<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pod = self.0;
        name(formatter, pod)?;
        let cause = Cause::of(pod);
        match (cause, Decider::of(pod)) {
            (Cause::ExitCode | Cause::ContainerOom | Cause::NodeOom, Some(decider)) => {
                write!(formatter, ": container {} ", decider.container.name)?;
                ended(formatter, pod, &decider)
            }
            (Cause::NodeOom, None) => {
                formatter.write_str(" was OOMKilled: its node was out of memory")
            }
            (Cause::StartFailed, decider) => start_failed(formatter, pod, decider.as_ref()),
            (Cause::NodeGone, _) => formatter.write_str(" was ended: its node is gone"),
            (Cause::ForceFailed, _) => {
                formatter.write_str(" was failed without proof, as force-fail-after allows")
            }
            (Cause::PodDeadline, _) => formatter.write_str(" reached its activeDeadlineSeconds"),
            (Cause::StorageLimit, _) => {
                formatter.write_str(" was evicted: it exceeded a storage limit of its own")
            }
            (Cause::RejectedByKubelet, _) => {
                let reason = pod.gc.reason().unwrap_or(REJECTED_BY_KUBELET);
                write!(formatter, " was rejected by its kubelet ({})", clean(reason))
            }
            (Cause::Deleted, _) => formatter.write_str(" was deleted, and no condition says why"),
            (Cause::Unknown, Some(decider)) => {
                write!(formatter, ": how container {} ended is not known", decider.container.name)
            }
            (Cause::Unknown, None) => {
                formatter.write_str(" failed, and its status does not say why")
            }
            _ => {
                let reason = pod.gc.target().map_or("", |target| &target.reason);
                let reason = if reason.is_empty() { "no reason given" } else { reason };
                write!(formatter, " was disrupted ({})", clean(reason))
            }
        }
    }
}

/// How a pod failed before the last start of its container, which a deletion ended: the cause, and
/// a sentence without its full stop. `None` if no container had failed.
pub(super) fn before_last_start(pod: &Pod) -> Option<(Cause, String)> {
    struct Before<'a>(&'a Pod, Decider<'a>);
    impl fmt::Display for Before<'_> {
        fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            let Self(pod, decider) = self;
            name(formatter, pod)?;
            write!(formatter, ": container {} ", decider.container.name)?;
            match decider.ended.by {
                EndedBy::Start => formatter.write_str("could not be started"),
                _ => ended(formatter, pod, decider),
            }
        }
    }
    let (decider, oom) = (Decider::before(pod)?, pod.gc.oom_killed());
    let cause = if oom == Some(NODE_OUT_OF_MEMORY) { Cause::NodeOom } else { decider.cause(oom) };
    Some((cause, Before(pod, decider).to_string()))
}

/// The pod, its index and its node.
fn name(formatter: &mut fmt::Formatter<'_>, pod: &Pod) -> fmt::Result {
    write!(formatter, "pod {}", pod.name)?;
    if let Some(index) = pod.index {
        write!(formatter, " (index {index})")?;
    }
    match &pod.node {
        Some(node) => write!(formatter, " on {node}"),
        None => Ok(()),
    }
}

/// How the container ended that decided.
fn ended(formatter: &mut fmt::Formatter<'_>, pod: &Pod, decider: &Decider<'_>) -> fmt::Result {
    let code = decider.ended.exit_code;
    match (decider.ended.by, pod.gc.oom_killed()) {
        (_, Some(NODE_OUT_OF_MEMORY)) => {
            formatter.write_str("was OOMKilled: the node was out of memory")
        }
        (_, Some(CONTAINER_LIMIT)) => {
            formatter.write_str("was OOMKilled: it reached its own memory limit")
        }
        (EndedBy::OomKill, _) => write!(formatter, "was OOMKilled (exit code {code})"),
        _ => {
            write!(formatter, "exited with code {code}")?;
            match signal(code) {
                Some(signal) => write!(formatter, " ({signal})"),
                None => Ok(()),
            }
        }
    }
}

fn start_failed(
    formatter: &mut fmt::Formatter<'_>,
    pod: &Pod,
    decider: Option<&Decider<'_>>,
) -> fmt::Result {
    if let Some(decider) = decider.filter(|_| !pod.has_condition(PENDING_TIMEOUT)) {
        return write!(formatter, ": container {} could not be started", decider.container.name);
    }
    formatter.write_str(" did not start within pending-timeout")?;
    match pending_reason(pod) {
        Some(reason) => write!(formatter, " ({})", clean(reason)),
        None => Ok(()),
    }
}

/// What a pod waits for that has not begun: its scheduler's or its kubelet's reason.
pub fn pending_reason(pod: &Pod) -> Option<&str> {
    let waiting = pod.containers.iter().find_map(|each| each.waiting.as_deref());
    let waiting =
        waiting.filter(|reason| !["ContainerCreating", "PodInitializing"].contains(reason));
    waiting.or_else(|| pod.gc.unscheduled()).filter(|reason| !reason.is_empty())
}

/// The signal that a shell's exit code stands for.
fn signal(code: i32) -> Option<&'static str> {
    Some(match code - 128 {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// Text of others, bounded and without control characters.
pub(super) fn clean(text: &str) -> String {
    plain(text, REASON_MAX)
}

/// At most this many characters of a text of others, without control characters.
pub fn plain(text: &str, max: usize) -> String {
    let is_plain = |each: char| each.is_ascii_graphic() || each == ' ';
    text.chars().map(|each| if is_plain(each) { each } else { '?' }).take(max).collect()
}
