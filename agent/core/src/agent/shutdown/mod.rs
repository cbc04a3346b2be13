//! Holds the state of one shutdown: its time, its pods, and how far it is. ([AP11])

mod answers;
mod ends;
mod exit_check;
mod follow;
mod journaled;
mod left;
mod marks;
mod observed;
mod release;
mod reports;
mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::facts::Situation;
use super::mode::Detected;
use super::status::{LeftReason, ShutdownStatus};
use super::writer::Writer;
use crate::pod::{PodRef, PodUid};
use crate::protocol::event::ShutdownKind;
use crate::shutdown::budget::{Step, Timetable};
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX, WAIT_MAX_HASTE, salt};
use crate::termination::clock::Clock;
use crate::termination::progress::{PodTermination, Terminator};

/// A kubelet that is gone for this long in a shutdown does not come back in time.
const KUBELET_GONE: Duration = Duration::from_secs(3);
/// After logind's time and this, a shutdown that did not happen will not happen. ([AP27])
const LONG_OVER: Duration = Duration::from_secs(30);

pub(super) use follow::{Others, Shutdowns};
pub(super) use journaled::recall;

/// Number of pods left, by reason.
type Left = BTreeMap<LeftReason, usize>;

/// One shutdown.
#[derive(Clone, Debug)]
pub(super) struct Shutdown {
    /// When the shutdown was taken up, and how much of its time had passed by then.
    taken_up_at: Duration,
    head_start: Duration,
    since: Timestamp,
    kind: Option<ShutdownKind>,
    granted: Duration,
    found: Detected,
    /// Taken up after a restart: there is no lock, and Assist does not turn into Replace.
    resumed: bool,
    /// A stop of the system that logind has not announced: the agent sets marks, and nothing else.
    unannounced: bool,
    ends: Timetable,
    margin: Duration,
    terminations: BTreeMap<PodUid, PodTermination>,
    /// The pods in order of their marks' value.
    order: Vec<PodUid>,
    /// Marks of the previous shutdown, taken over: the pod, and when it was marked.
    carried: BTreeMap<PodUid, (PodRef, Timestamp)>,
    intent_mark: u64,
    /// The pods whose marks are in the journal, or on their way to it.
    recorded: BTreeMap<PodUid, Recorded>,
    /// Pods that had exited before it, as an earlier process found.
    exited: BTreeSet<PodUid>,
    /// The pods that were present at the signal, once they are known.
    present: Option<BTreeSet<PodUid>>,
    /// The time since the signal at which the mode was adopted.
    mode_since: Duration,
    /// How long the API gave no answer, and since when it gives none now.
    silence: Duration,
    silent_since: Option<Duration>,
    step: Step,
    stage: Option<ActiveStage>,
    deletions_over: bool,
    /// Whether the mode stays: terminations were sent, or the mode was switched.
    mode_is_final: bool,
    progress: bool,
    inspected: bool,
    /// Whether the API has the drained record.
    drained: bool,
    release: Release,
    marked_after: Option<Duration>,
    reported_after: Option<Duration>,
    released_after: Option<Duration>,
    unreported_at_release: Option<usize>,
    left_at_release: Left,
    /// Volumes that were in use, perhaps of pods that had ended.
    volumes_at_release: Option<String>,
    /// Whether the log says that the lock is held for volumes.
    volumes_awaited: bool,
}

/// An intent in the journal.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    /// The time of the intent, which a mark carries.
    at: Timestamp,
    /// When the record was handed in, on CLOCK_MONOTONIC, and the writer's mark for it.
    since: Duration,
    until: u64,
}

impl Recorded {
    /// A record that is on the disk.
    fn durable(at: Timestamp) -> Self {
        Self { at, since: Duration::ZERO, until: 0 }
    }

    /// Whether the disk may still take the record within this time of its handing in.
    fn is_awaited(&self, within: Duration, clock: &Clock, journal: &Writer) -> bool {
        !journal.is_durable(self.until)
            && !journal.is_refused()
            && !clock.reached(self.since + within)
    }
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
    fn is_over(&self, shutdown: &Shutdown, clock: &Clock) -> bool {
        let ended = |uid| {
            shutdown.terminations.get(uid).is_none_or(|termination| {
                let stopped =
                    termination.terminator == Terminator::Stop && termination.end.is_done();
                termination.reported
                    || stopped
                    || termination.is_left()
                    || termination.end.is_held_back()
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
    /// The time since the signal.
    fn elapsed(&self, now: Duration) -> Duration {
        now.saturating_sub(self.taken_up_at) + self.head_start
    }

    /// The moment of a time since the signal; a moment in the past may be cut off.
    fn at(&self, elapsed: Duration) -> Duration {
        (self.taken_up_at + elapsed).saturating_sub(self.head_start)
    }

    /// Whether logind's time and a margin are over, and the machine still runs.
    fn is_long_over(&self, now: Duration) -> bool {
        self.elapsed(now) > self.granted + LONG_OVER
    }

    /// Whether the lock is released; late results are still recorded.
    pub(super) fn is_released(&self) -> bool {
        matches!(self.release, Release::Released)
    }

    /// Whether the agent may still terminate pods: each termination must leave time for its report.
    fn may_end(&self, clock: &Clock) -> bool {
        !matches!(self.release, Release::Unlocking | Release::Released)
            && !clock.reached(self.at(self.ends.last_writes))
    }

    /// Whether there are marks to send.
    fn is_marking(&self) -> bool {
        self.terminations.values().any(|it| !it.reported && it.mark.is_awaited())
    }

    /// Whether the next step waits for marks: a refused mark holds up only its own pod.
    fn waits_for_marks(&self) -> bool {
        let waits = |mark: &Attempt| mark.is_open() && !mark.is_held_back();
        self.terminations.values().any(|it| !it.reported && waits(&it.mark))
    }

    /// How failed calls are repeated.
    fn pace(&self, uid: &PodUid) -> Pace {
        let released = self.is_released();
        let wait_max = if released { WAIT_MAX } else { WAIT_MAX_HASTE };
        let latest = (!released).then(|| self.at(self.ends.end));
        Pace { wait_max, latest, salt: salt(&uid.0) }
    }

    /// The step: as far as the work is, and at least as far as the clock. ([AP10])
    fn step_now(&self, clock: &Clock, durable: bool) -> Step {
        let over = |end: Duration| clock.reached(self.at(end));
        if !durable && !over(self.ends.intent) {
            return Step::Intent;
        }
        if self.waits_for_marks() && !over(self.ends.pre_mark) {
            return Step::PreMark;
        }
        if !over(self.ends.kill) && !self.deletions_over {
            return Step::Kill;
        }
        if !over(self.ends.last_writes) {
            return Step::Flush;
        }
        if over(self.ends.end) { Step::Release } else { Step::LastWrites }
    }

    /// Whether no open work justifies holding the lock.
    fn is_settled(&self) -> bool {
        let open = |termination: &PodTermination| {
            termination.is_awaited()
                || termination.is_unacknowledged()
                || termination.end.is_in_flight()
        };
        self.step > Step::Intent && !self.terminations.values().any(open)
    }

    /// Whether a write of ours is not acknowledged yet.
    pub(super) fn is_unacknowledged(&self) -> bool {
        self.terminations.values().any(PodTermination::is_unacknowledged)
    }

    fn time_is_over(&self, now: Duration) -> bool {
        self.elapsed(now) >= self.ends.end
    }

    /// What the other parts have to know.
    fn situation(&self, now: Duration) -> Situation {
        Situation {
            runs: true,
            released: self.is_released(),
            owns_pods: !self.is_long_over(now),
            journaled: false,
            unacknowledged: self.is_unacknowledged(),
        }
    }

    fn status(&self, now: Duration) -> ShutdownStatus {
        let count = |which: &dyn Fn(&PodTermination) -> bool| {
            self.terminations.values().filter(|termination| which(termination)).count()
        };
        ShutdownStatus {
            t0: now.saturating_sub(self.elapsed(now)),
            since: self.since,
            kind: self.kind.clone(),
            granted: self.granted,
            mode: self.found.mode,
            step: self.step,
            cancelled: false,
            candidates: self.terminations.len(),
            marked: count(&|termination| termination.mark.is_done()),
            terminal: count(&|termination| termination.reported),
            unreported: count(&PodTermination::is_awaited),
            unacknowledged: count(&PodTermination::is_unacknowledged),
            marked_after: self.marked_after,
            reported_after: self.reported_after,
            released_after: self.released_after,
            unreported_at_release: self.unreported_at_release,
            left_at_release: self.left_at_release.clone(),
        }
    }
}
