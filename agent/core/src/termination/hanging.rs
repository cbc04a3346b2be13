//! A deleted pod that does not end: what the runtime shows of it, what may be done about that, and
//! how it is said.

use std::time::Duration;

use serde::Serialize;

use super::progress::would_succeed;
use crate::pod::{Phase, PodView};
use crate::protocol::event::RuntimeState;

/// A phase that is taken back so often is not ours to say. ([PT13])
pub const WRITES_MAX: u32 = 3;
/// A sandbox that stands after so many stops will not go by one more.
pub const STOPS_MAX: u32 = 3;
/// The longest of the short waits: a look at all pods asks the runtime for each.
const SHORT_MAX: Duration = Duration::from_secs(10);

/// How long is waited for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckTimes {
    /// Between two looks at the pods, and between two writes about one.
    pub pace: Duration,
    /// A kubelet without a process may come back for so long.
    pub dead: Duration,
    /// A kubelet whose `/healthz` says no good, or nothing, may wake for so long.
    pub hung: Duration,
    /// After a pod's grace, where no kubelet is there to end it.
    pub margin: Duration,
    /// After a pod's grace, for a kubelet that lives.
    pub patience: Duration,
    /// Between two events about one pod.
    pub event_interval: Duration,
}

impl StuckTimes {
    /// The times where a kubelet gets this much of it.
    pub fn after(patience: Duration) -> Self {
        let short = SHORT_MAX.min(patience / 6);
        Self {
            pace: short,
            dead: patience,
            hung: patience.saturating_mul(5),
            margin: short,
            patience,
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

/// The kubelet whose pod it is, for as long as it takes to be sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeletLiveness {
    /// It ends its pods itself, and takes back what others say of them.
    Lives,
    /// There is no process.
    Dead,
    /// There is one that does nothing, and it may wake.
    Hangs,
}

/// What is seen of a pod that hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hang {
    /// The runtime may not be asked, or does not answer. ([PT10])
    NoWitness,
    /// A container has not exited. ([PT12])
    Runs,
    /// It has run, and the runtime does not have all of what ran.
    Unproven,
    /// All its regular containers exited with 0.
    Succeeded,
    /// All that ran has exited. ([PT11])
    Exited,
    /// It has a sandbox, and never had a container: an image or a container hangs. ([PT9])
    NoContainer,
    /// The runtime has nothing of it: volumes or the sandbox's network hang.
    NotBegun,
}

impl Hang {
    /// Its name in metrics.
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

    /// All of them.
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
        // A container that is not there any more may have exited with 0. While the pod is Pending
        // one of them was not started yet, so it cannot have succeeded.
        let has = |name: &String| state.containers.iter().any(|known| known.name == *name);
        let all = pod.phase == Phase::Pending || pod.containers.iter().all(has);
        if all { Self::Exited } else { Self::Unproven }
    }

    /// What it means for people.
    fn words(self) -> &'static str {
        match self {
            Self::NoWitness => {
                "the container runtime does not answer, or may not be used, and nobody else can \
                 tell whether it runs"
            }
            Self::Runs => "a container of it has not exited",
            Self::Unproven => {
                "it has run, and the runtime does not know all its containers any more: how they \
                 ended cannot be told"
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
                "the runtime has nothing of it: its volumes or its network are waited for, or the \
                 kubelet never took it up"
            }
        }
    }
}

/// All that is decided by.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The pod: deleted, not terminal, not static, its grace over.
    pub pod: &'a PodView,
    /// Its kubelet.
    pub liveness: KubeletLiveness,
    /// What the runtime said just now; none if it did not.
    pub runtime: Option<&'a RuntimeState>,
    /// Whether an earlier look found as little.
    pub twice: bool,
    /// Whether pods may be failed beside a live kubelet.
    pub fail_hanging_starts: bool,
    /// How often the phase was written.
    pub written: u32,
    /// How often the sandbox was stopped.
    pub stops: u32,
}

/// What may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The phase is written in the kubelet's place, with the annotation lever. ([API16])
    Fail,
    /// Nothing runs in its sandbox: that goes first. What a pull that ends late would start, finds
    /// no place then.
    StopSandbox,
    /// It is to be seen once more.
    LookAgain,
    /// Nothing but to say so.
    Leave(Obstacle),
}

/// Why nothing is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// What is seen does not prove its end, or proves another.
    Seen,
    /// Devices are unprepared by the kubelet only; a terminal phase would free them for others.
    Claims,
    /// Nothing proves that its volumes are unmounted.
    Volumes,
    /// Its kubelet lives, and the operator leaves the end to it.
    NotAsked,
    /// Its kubelet lives, and no Job waits for the pod.
    NotCounted,
    /// Its status tells of containers of which the runtime knows nothing, or the other way round.
    Contradiction,
    /// The phase was taken back as often as it was written.
    TakenBack,
    /// The sandbox does not go.
    SandboxStays,
    /// The API forbids the write, or refuses it.
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
                "its kubelet lives and has to end it; with --hanging-starts=fail the agent fails \
                 such pods of Jobs"
            }
            Self::NotCounted => "its kubelet lives and has to end it; no Job waits for it",
            Self::Contradiction => {
                "its status and the runtime tell different things of its containers: its phase is \
                 left as it is"
            }
            Self::TakenBack => "its phase Failed was taken back each time that it was written",
            Self::SandboxStays => "its sandbox does not go, though nothing runs in it",
            Self::Refused => "the API does not let the agent write its phase",
        }
    }
}

/// A look at a pod and what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is seen.
    pub hang: Hang,
    /// What may be done.
    pub judgement: Judgement,
}

/// What may be done about a pod that hangs: `Failed` only with the runtime's proof that nothing
/// runs, and beside a live kubelet only for a hanging start that the operator gives up. ([PT13])
pub fn judge(evidence: &Evidence<'_>) -> Finding {
    let Evidence { pod, runtime, .. } = *evidence;
    let hang = Hang::of(pod, runtime);
    let obstacle = obstacle(evidence, hang);
    let sandbox = runtime.is_some_and(|state| state.sandbox_ready);
    let proven = runtime.is_some_and(|state| state.proves_end(pod.has_run));
    let judgement = match obstacle {
        Some(obstacle) => Judgement::Leave(obstacle),
        None if sandbox && evidence.stops >= STOPS_MAX => Judgement::Leave(Obstacle::SandboxStays),
        None if sandbox => Judgement::StopSandbox,
        None if !proven => Judgement::Leave(Obstacle::Seen),
        // A runtime that has just come up may not have all yet.
        None if hang == Hang::NotBegun && !evidence.twice => Judgement::LookAgain,
        None => Judgement::Fail,
    };
    Finding { hang, judgement }
}

fn obstacle(evidence: &Evidence<'_>, hang: Hang) -> Option<Obstacle> {
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
        if !evidence.fail_hanging_starts {
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
    }
    (evidence.written >= WRITES_MAX).then_some(Obstacle::TakenBack)
}

impl KubeletLiveness {
    /// In a phrase.
    pub fn words(self) -> &'static str {
        match self {
            Self::Lives => "its kubelet lives and does not end it",
            Self::Dead => "its kubelet is dead",
            Self::Hangs => "its kubelet hangs",
        }
    }
}

impl Finding {
    /// The message of a pod that is left.
    pub fn left(&self, liveness: KubeletLiveness, over: Duration, obstacle: Obstacle) -> String {
        format!(
            "Deleted, and not ended {} s after its grace: {}; {}; {}. `kubectl delete --force` \
             takes away the object alone, whatever of it still runs or is mounted.",
            over.as_secs(),
            liveness.words(),
            self.hang.words(),
            obstacle.words(),
        )
    }

    /// The message of a pod that is failed, or would be.
    pub fn failed(&self, liveness: KubeletLiveness, over: Duration) -> String {
        format!(
            "deleted, and not ended {} s after its grace: {}; {}",
            over.as_secs(),
            liveness.words(),
            self.hang.words(),
        )
    }
}
