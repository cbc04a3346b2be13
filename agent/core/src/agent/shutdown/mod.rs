//! Holds the state of one shutdown: its time, its pods, and how far it is. ([AP11])

mod answers;
mod ends;
mod exit_check;
mod follow;
mod journaled;
mod left;
mod marks;
mod observed;
mod pod_ends;
mod release;
mod reports;
mod run;
mod window;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::disruptions::Disruptions;
use super::facts::Situation;
use super::mode::Detected;
use super::status::{LeftReason, ShutdownStatus};
use super::writer::Recorded;
use crate::pod::PodUid;
use crate::protocol::ending::{ShutdownKind, Source};
use crate::shutdown::budget::Step;
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX, WAIT_MAX_HASTE, salt};
use crate::termination::clock::Clock;
use crate::termination::progress::{PodTermination, Terminator};

/// A kubelet that is gone for this long in a shutdown does not come back in time.
const KUBELET_GONE: Duration = Duration::from_secs(3);

pub(super) use follow::{Others, Shutdowns};
pub(super) use journaled::recall;
use window::Window;

/// Number of pods left, by reason.
type Left = BTreeMap<LeftReason, usize>;

/// One shutdown. What it does with each pod is in the table of disruptions.
#[derive(Clone, Debug)]
pub(super) struct Shutdown {
    since: Timestamp,
    kind: Option<ShutdownKind>,
    origin: Origin,
    window: Window,
    mode: ModeTaken,
    /// The pods in order of their marks' value.
    order: Vec<PodUid>,
    /// The pods that were present at the signal, once they are known.
    present: Option<BTreeSet<PodUid>>,
    intent_mark: u64,
    work: Work,
    release: Release,
    summary: Summary,
}

/// How the agent learnt of a shutdown, and who announced it. Where systemd did, the agent sets
/// marks, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// While it ran.
    Announced(Source),
    /// From the journal, after a restart: there is no lock, and Assist does not turn into Replace.
    Resumed(Source),
}

impl Origin {
    fn source(self) -> Source {
        let (Self::Announced(source) | Self::Resumed(source)) = self;
        source
    }

    fn is_resumed(self) -> bool {
        matches!(self, Self::Resumed(_))
    }
}

/// The mode of a shutdown.
#[derive(Clone, Copy, Debug)]
struct ModeTaken {
    found: Detected,
    /// The time since the signal at which the mode was adopted.
    since: Duration,
    /// Whether the mode stays: terminations were sent, or the mode was switched.
    is_final: bool,
}

/// How far the work on the pods is.
#[derive(Clone, Debug)]
struct Work {
    step: Step,
    stage: Option<ActiveStage>,
    /// Whether all priority groups had their turn.
    deletions_over: bool,
    /// Whether a pod has ended: an armed kubelet does its work.
    progress: bool,
    /// Whether the runtime was asked about every pod without a report.
    inspected: bool,
}

/// What is reported of a shutdown.
#[derive(Clone, Debug, Default)]
struct Summary {
    marked_after: Option<Duration>,
    reported_after: Option<Duration>,
    released_after: Option<Duration>,
    unreported_at_release: Option<usize>,
    left_at_release: Left,
    /// Volumes that were in use, perhaps of pods that had ended.
    volumes_at_release: Option<String>,
    /// Whether the log says that the lock is held for volumes.
    volumes_awaited: bool,
    /// Whether the API has the drained record.
    drained: bool,
}

/// One priority group, or several together, under way.
#[derive(Clone, Debug)]
struct ActiveStage {
    ends_at: Duration,
    /// That its pods are terminated.
    recorded: Recorded,
    pods: Vec<PodUid>,
}

impl ActiveStage {
    /// Whether all its pods have ended, or its share of the time is over.
    fn is_over(&self, disruptions: &Disruptions, clock: &Clock) -> bool {
        let ended = |uid| {
            disruptions.covering(uid).is_none_or(|termination| {
                let stopped =
                    termination.end.by == Terminator::Stop && termination.end.call.is_done();
                termination.is_reported()
                    || stopped
                    || termination.end.is_left()
                    || termination.end.call.is_held_back()
            })
        };
        self.pods.iter().all(ended) || clock.reached(self.ends_at)
    }
}

/// The progress of the release.
#[derive(Clone, Debug)]
enum Release {
    /// The agent holds the lock and awaits reports.
    Holding,
    /// The agent asks the runtime whether anything runs.
    Inspecting(Attempt),
    /// The drained record is being written since then, on CLOCK_MONOTONIC.
    Drained(Duration),
    /// The summary is being written to the disk.
    Closing(u64),
    /// The lock is being released.
    Unlocking,
    /// The lock is gone; late results are still recorded.
    Released,
}

impl Shutdown {
    /// Whether the lock is released; late results are still recorded.
    pub(super) fn is_released(&self) -> bool {
        matches!(self.release, Release::Released)
    }

    /// Whether the agent may still terminate pods: each termination must leave time for its report.
    fn may_end(&self, clock: &Clock) -> bool {
        !matches!(self.release, Release::Unlocking | Release::Released)
            && !clock.reached(self.window.at(self.window.ends.last_writes))
    }

    /// How failed calls are repeated.
    fn pace(&self, uid: &PodUid) -> Pace {
        let released = self.is_released();
        let wait_max = if released { WAIT_MAX } else { WAIT_MAX_HASTE };
        let latest = (!released).then(|| self.window.at(self.window.ends.end));
        Pace { wait_max, latest, salt: salt(&uid.0) }
    }

    /// The step: as far as the work is, and at least as far as the clock. ([AP10])
    fn step_now(&self, disruptions: &Disruptions, clock: &Clock, durable: bool) -> Step {
        let ends = &self.window.ends;
        let over = |end: Duration| clock.reached(self.window.at(end));
        if !durable && !over(ends.intent) {
            return Step::Intent;
        }
        if waits_for_marks(disruptions) && !over(ends.pre_mark) {
            return Step::PreMark;
        }
        if !over(ends.kill) && !self.work.deletions_over {
            return Step::Kill;
        }
        if !over(ends.last_writes) {
            return Step::Flush;
        }
        if over(ends.end) { Step::Release } else { Step::LastWrites }
    }

    /// Whether no open work justifies holding the lock.
    fn is_settled(&self, disruptions: &Disruptions) -> bool {
        let open = |termination: &PodTermination| {
            termination.is_awaited()
                || termination.is_unacknowledged()
                || termination.end.call.is_in_flight()
        };
        self.work.step > Step::Intent && !disruptions.covered().any(open)
    }

    /// What the other parts have to know.
    fn situation(&self, disruptions: &Disruptions, now: Duration) -> Situation {
        Situation {
            runs: true,
            marks: self.work.step <= Step::PreMark,
            released: self.is_released(),
            owns_pods: !self.window.is_long_over(now),
            journaled: false,
            unacknowledged: is_unacknowledged(disruptions),
        }
    }

    fn status(&self, disruptions: &Disruptions, now: Duration) -> ShutdownStatus {
        let count = |which: &dyn Fn(&PodTermination) -> bool| {
            disruptions.covered().filter(|termination| which(termination)).count()
        };
        let Summary { marked_after, reported_after, released_after, .. } = self.summary;
        ShutdownStatus {
            t0: now.saturating_sub(self.window.elapsed(now)),
            since: self.since,
            kind: self.kind.clone(),
            granted: self.window.granted,
            mode: self.mode.found.mode,
            step: self.work.step,
            cancelled: false,
            candidates: disruptions.covered().count(),
            marked: count(&|termination| termination.mark.write.is_done()),
            terminal: count(&PodTermination::is_reported),
            unreported: count(&PodTermination::is_awaited),
            unacknowledged: count(&PodTermination::is_unacknowledged),
            marked_after,
            reported_after,
            released_after,
            unreported_at_release: self.summary.unreported_at_release,
            left_at_release: self.summary.left_at_release.clone(),
        }
    }
}

/// Whether a write of ours is not acknowledged yet.
pub(super) fn is_unacknowledged(disruptions: &Disruptions) -> bool {
    disruptions.covered().any(PodTermination::is_unacknowledged)
}

/// Whether there are marks to send.
fn is_marking(disruptions: &Disruptions) -> bool {
    disruptions.covered().any(|it| !it.is_reported() && it.mark.write.is_awaited())
}

/// Whether the next step waits for marks: a refused mark holds up only its own pod.
fn waits_for_marks(disruptions: &Disruptions) -> bool {
    let waits = |mark: &Attempt| mark.is_open() && !mark.is_held_back();
    disruptions.covered().any(|it| !it.is_reported() && waits(&it.mark.write))
}
