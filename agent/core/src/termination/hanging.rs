//! Judges a deleted pod that does not terminate: what the runtime shows, what the agent may do, and
//! how to report it.

use std::time::Duration;

use serde::Serialize;

use super::progress::would_succeed;
use crate::pod::{Phase, PodView};
use crate::protocol::event::RuntimeState;

/// After this number of reverted writes the agent stops writing the phase. ([PT13])
pub const WRITES_MAX: u32 = 3;
/// A sandbox that survives this number of stops will survive one more.
pub const STOPS_MAX: u32 = 3;
/// Maximum of the short waits; a check of all pods queries the runtime for each.
const SHORT_MAX: Duration = Duration::from_secs(10);

/// Waits of the check for stuck pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckTimes {
    /// Between two checks of all pods, and between two writes to one pod.
    pub pace: Duration,
    /// How long a kubelet without a process may take to come back.
    pub dead: Duration,
    /// How long a kubelet whose `/healthz` fails or stays silent may take to recover.
    pub hung: Duration,
    /// After a pod's grace, if no kubelet can terminate it.
    pub margin: Duration,
    /// After a pod's grace, if its kubelet is live.
    pub kubelet_timeout: Duration,
    /// Between two events about one pod.
    pub event_interval: Duration,
}

impl StuckTimes {
    /// Derives all waits from the time that a kubelet gets.
    pub fn after(kubelet_timeout: Duration) -> Self {
        let short = SHORT_MAX.min(kubelet_timeout / 6);
        Self {
            pace: short,
            dead: kubelet_timeout,
            hung: kubelet_timeout.saturating_mul(5),
            margin: short,
            kubelet_timeout,
            event_interval: Duration::from_mins(10),
        }
    }
}

impl Default for StuckTimes {
    /// A minute for a dead kubelet, five for one that hangs. ([PT7], [PT8])
    fn default() -> Self {
        Self::after(Duration::from_mins(1))
    }
}

/// State of the pod's kubelet, once it has lasted long enough to be certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletLiveness {
    /// The kubelet terminates its pods itself, and reverts what others write about them.
    Lives,
    /// The kubelet has no process.
    Dead,
    /// The kubelet has a process that does nothing, but may recover.
    Hangs,
}

/// What the runtime shows of a stuck pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hang {
    /// The agent may not query the runtime, or the runtime does not answer. ([PT10])
    NoWitness,
    /// A container has not exited. ([PT12])
    Runs,
    /// The pod has run, and the runtime does not know all of its containers.
    Unproven,
    /// All regular containers exited with 0.
    Succeeded,
    /// All containers that ran have exited. ([PT11])
    Exited,
    /// The pod has a sandbox and never had a container: an image pull or a container creation
    /// hangs. ([PT9])
    NoContainer,
    /// The runtime has nothing of the pod: its volumes or the sandbox's network hang.
    NotBegun,
}

impl Hang {
    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoWitness => "no-witness",
            Self::Runs => "runs",
            Self::Unproven => "unproven",
            Self::Succeeded => "succeeded",
            Self::Exited => "exited",
            Self::NoContainer => "no-container",
            Self::NotBegun => "not-begun",
        }
    }

    /// All variants.
    pub const ALL: [Self; 7] = [
        Self::NoWitness,
        Self::Runs,
        Self::Unproven,
        Self::Succeeded,
        Self::Exited,
        Self::NoContainer,
        Self::NotBegun,
    ];

    fn of(pod: &PodView, runtime: Option<&RuntimeState>) -> Self {
        let Some(state) = runtime else { return Self::NoWitness };
        if !state.containers.iter().all(|container| container.exited) {
            return Self::Runs;
        }
        if would_succeed(pod, state) {
            return Self::Succeeded;
        }
        if state.containers.is_empty() {
            return match (pod.has_run, state.sandbox_known) {
                (true, _) => Self::Unproven,
                (false, true) => Self::NoContainer,
                (false, false) => Self::NotBegun,
            };
        }
        // A container that the runtime no longer has may have exited with 0. While the pod is
        // Pending, one of its containers has not started, so the pod cannot have succeeded.
        let has = |name: &String| state.containers.iter().any(|known| known.name == *name);
        let all = pod.phase == Phase::Pending || pod.containers.iter().all(has);
        if all { Self::Exited } else { Self::Unproven }
    }

    /// Explanation for people.
    fn words(self) -> &'static str {
        match self {
            Self::NoWitness => {
                "the container runtime does not answer, or may not be used, and nothing else shows \
                 whether it runs"
            }
            Self::Runs => "a container of it has not exited",
            Self::Unproven => {
                "it has run, and the runtime does not know all its containers any more: their exit \
                 codes are not known"
            }
            Self::Succeeded => {
                "all its containers exited with 0: its success is for the kubelet to report"
            }
            Self::Exited => "all its containers have exited: an unmount or another clean-up hangs",
            Self::NoContainer => {
                "it has a sandbox and never had a container: the pull of an image or the creation \
                 of a container hangs"
            }
            Self::NotBegun => {
                "the runtime does not know it: it waits for its volumes or its network, or the \
                 kubelet never started it"
            }
        }
    }
}

/// Facts of the judgement.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The pod: deleted, neither terminal nor static, its grace over.
    pub pod: &'a PodView,
    /// State of the pod's kubelet.
    pub liveness: KubeletLiveness,
    /// The runtime's current answer; `None` without an answer.
    pub runtime: Option<&'a RuntimeState>,
    /// Whether an earlier check found as little.
    pub twice: bool,
    /// Whether the agent may fail pods while their kubelet is live.
    pub fail_hanging_starts: bool,
    /// Number of writes of the phase.
    pub written: u32,
    /// Number of stops of the sandbox.
    pub stops: u32,
}

/// What the agent may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The agent writes the phase for the kubelet, with the annotation lever. ([API16])
    Fail,
    /// Nothing runs in the sandbox: the agent stops it first. A pull that completes later then
    /// finds no sandbox for its container.
    StopSandbox,
    /// The agent checks the pod once more.
    CheckAgain,
    /// The agent only reports.
    Leave(Obstacle),
}

/// Why the agent does not write the phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The runtime's state does not prove the termination, or proves another result.
    Seen,
    /// Only the kubelet unprepares devices; a terminal phase would release them to other pods.
    Claims,
    /// Nothing proves the unmount of the pod's volumes.
    Volumes,
    /// The kubelet is live, and the operator leaves the termination to it.
    NotAsked,
    /// The kubelet is live, and no Job waits for the pod.
    NotCounted,
    /// The pod's status and the runtime disagree about its containers.
    Contradiction,
    /// The kubelet is live, and the call that hangs may still start a container: no sandbox that
    /// the agent has stopped bars it.
    MayStart,
    /// Every write of the phase was reverted.
    TakenBack,
    /// The sandbox survives every stop.
    SandboxStays,
    /// The API forbids or refuses the write.
    Refused,
}

impl Obstacle {
    fn words(self) -> &'static str {
        match self {
            Self::Seen => "so its phase is left as it is",
            Self::Claims => {
                "its devices (resource claims) may still have to be unprepared, and a terminal \
                 phase would free them for others: its phase is left as it is"
            }
            Self::Volumes => {
                "nothing proves that its volumes are unmounted, and a terminal phase would free \
                 them for others: its phase is left as it is"
            }
            Self::NotAsked => {
                "its kubelet is live and has to terminate it; with --hanging-starts=fail the agent \
                 fails such pods of Jobs"
            }
            Self::NotCounted => "its kubelet is live and has to terminate it; no Job waits for it",
            Self::Contradiction => {
                "its status and the runtime disagree about its containers: its phase is left as it \
                 is"
            }
            Self::MayStart => {
                "its kubelet is live and may still start it, as the agent has no sandbox to stop: \
                 its phase is left as it is"
            }
            Self::TakenBack => "its phase Failed was taken back each time that it was written",
            Self::SandboxStays => "its sandbox does not go, though nothing runs in it",
            Self::Refused => "the API does not let the agent write its phase",
        }
    }
}

/// Result of one check of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What the runtime shows.
    pub hang: Hang,
    /// What the agent may do.
    pub judgement: Judgement,
}

/// Judges a stuck pod. `Failed` requires the runtime's proof that nothing runs. While the kubelet
/// is live, it also requires that the operator opted in to fail hanging starts, and that nothing
/// can start any more. ([PT13])
pub fn judge(evidence: &Evidence<'_>) -> Finding {
    let Evidence { pod, runtime, .. } = *evidence;
    let hang = Hang::of(pod, runtime);
    let sandbox = runtime.is_some_and(|state| state.sandbox_ready);
    let obstacle = obstacle(evidence, hang, sandbox);
    let proven = runtime.is_some_and(|state| state.proves_end(pod.has_run));
    let judgement = match obstacle {
        Some(obstacle) => Judgement::Leave(obstacle),
        None if sandbox && evidence.stops >= STOPS_MAX => Judgement::Leave(Obstacle::SandboxStays),
        None if sandbox => Judgement::StopSandbox,
        None if !proven => Judgement::Leave(Obstacle::Seen),
        // A runtime that has just started may not know everything yet.
        None if hang == Hang::NotBegun && !evidence.twice => Judgement::CheckAgain,
        None => Judgement::Fail,
    };
    Finding { hang, judgement }
}

fn obstacle(evidence: &Evidence<'_>, hang: Hang, sandbox_ready: bool) -> Option<Obstacle> {
    let details = &evidence.pod.details;
    match hang {
        Hang::NoWitness | Hang::Runs | Hang::Unproven | Hang::Succeeded => {
            return Some(Obstacle::Seen);
        }
        Hang::Exited | Hang::NoContainer | Hang::NotBegun => {}
    }
    if details.resource_claims {
        return Some(Obstacle::Claims);
    }
    if details.persistent_volumes {
        return Some(Obstacle::Volumes);
    }
    if evidence.liveness == KubeletLiveness::Lives {
        // Only in a sandbox that the agent has stopped can the call start nothing when it returns.
        let may_start = hang != Hang::Exited && !sandbox_ready && evidence.stops == 0;
        if !evidence.fail_hanging_starts && !may_start {
            return Some(Obstacle::NotAsked);
        }
        if !details.job_finalizer {
            return Some(Obstacle::NotCounted);
        }
        let contradicts = match hang {
            Hang::Exited => !evidence.pod.has_run,
            _ => evidence.pod.has_run || details.restarted,
        };
        if contradicts {
            return Some(Obstacle::Contradiction);
        }
        if may_start {
            return Some(Obstacle::MayStart);
        }
    }
    (evidence.written >= WRITES_MAX).then_some(Obstacle::TakenBack)
}

impl KubeletLiveness {
    /// Explanation in one phrase.
    pub fn words(self) -> &'static str {
        match self {
            Self::Lives => "its kubelet is live and does not terminate it",
            Self::Dead => "its kubelet is dead",
            Self::Hangs => "its kubelet hangs",
        }
    }
}

impl Finding {
    /// Whether an agent that acts would fail the pod if the runtime, which this one may not ask,
    /// proved that nothing of it runs.
    pub fn would_fail_unseen(&self, pod: &PodView, liveness: KubeletLiveness) -> bool {
        let kept = pod.details.resource_claims || pod.details.persistent_volumes;
        self.hang == Hang::NoWitness && liveness != KubeletLiveness::Lives && !kept
    }

    /// Message for a pod that the agent leaves alone.
    pub fn left(&self, liveness: KubeletLiveness, over: Duration, obstacle: Obstacle) -> String {
        format!(
            "Deleted, and not terminated {} s after its grace period: {}; {}; {}. `kubectl delete \
             --force` removes the object alone; what still runs or is mounted stays.",
            over.as_secs(),
            liveness.words(),
            self.hang.words(),
            obstacle.words(),
        )
    }

    /// Message for a pod that the agent fails, or would fail.
    pub fn failed(&self, liveness: KubeletLiveness, over: Duration) -> String {
        format!(
            "deleted, and not terminated {} s after its grace period: {}; {}",
            over.as_secs(),
            liveness.words(),
            self.hang.words(),
        )
    }
}
