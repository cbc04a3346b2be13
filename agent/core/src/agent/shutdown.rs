//! Holds the state of one shutdown: its time, its pods, and how far it is. ([AP11])

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::mode::Detected;
use super::status::LeftReason;
use crate::pod::{PodRef, PodUid};
use crate::protocol::event::ShutdownKind;
use crate::shutdown::budget::{Step, Timetable};
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX, WAIT_MAX_HASTE, salt};
use crate::termination::clock::Clock;
use crate::termination::progress::{PodTermination, Terminator};

/// A kubelet that is gone for this long in a shutdown does not come back in time.
pub(super) const KUBELET_GONE: Duration = Duration::from_secs(3);
/// After logind's time and this, a shutdown that did not happen will not happen. ([AP27])
const LONG_OVER: Duration = Duration::from_secs(30);

/// Number of pods left, by reason.
pub(super) type Left = BTreeMap<LeftReason, usize>;

/// One shutdown.
#[derive(Debug)]
pub(super) struct Shutdown {
    /// When the shutdown was taken up, and how much of its time had passed by then.
    pub(super) taken_up_at: Duration,
    pub(super) head_start: Duration,
    pub(super) since: Timestamp,
    pub(super) kind: Option<ShutdownKind>,
    pub(super) granted: Duration,
    pub(super) found: Detected,
    /// Taken up after a restart: there is no lock, and Assist does not turn into Replace.
    pub(super) resumed: bool,
    pub(super) ends: Timetable,
    pub(super) margin: Duration,
    pub(super) terminations: BTreeMap<PodUid, PodTermination>,
    /// The pods in order of their marks' value.
    pub(super) order: Vec<PodUid>,
    /// Marks of the previous shutdown, taken over: the pod, and when it was marked.
    pub(super) carried: BTreeMap<PodUid, (PodRef, Timestamp)>,
    pub(super) intent_mark: u64,
    /// The pods whose marks are in the journal, or on their way to it.
    pub(super) recorded: BTreeMap<PodUid, Recorded>,
    /// Whether all pods that were present at the signal are part of it.
    pub(super) enlisted: bool,
    /// The time since the signal at which the mode was adopted.
    pub(super) mode_since: Duration,
    pub(super) step: Step,
    pub(super) stage: Option<ActiveStage>,
    pub(super) deletions_over: bool,
    /// Whether the mode stays: terminations were sent, or the mode was switched.
    pub(super) mode_is_final: bool,
    pub(super) progress: bool,
    pub(super) inspected: bool,
    pub(super) release: Release,
    pub(super) marked_after: Option<Duration>,
    pub(super) reported_after: Option<Duration>,
    pub(super) released_after: Option<Duration>,
    pub(super) unreported_at_release: Option<usize>,
    pub(super) left_at_release: Left,
}

/// A mark in the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    /// The time that the mark carries.
    pub(super) at: Timestamp,
    /// When the record was handed in, on CLOCK_MONOTONIC, and the writer's mark for it.
    pub(super) since: Duration,
    pub(super) until: u64,
}

impl Recorded {
    /// A record that is on the disk.
    pub(super) fn durable(at: Timestamp) -> Self {
        Self { at, since: Duration::ZERO, until: 0 }
    }
}

/// One priority group, or several together, under way.
#[derive(Debug)]
pub(super) struct ActiveStage {
    pub(super) ends_at: Duration,
    pub(super) pods: Vec<PodUid>,
}

impl ActiveStage {
    /// Whether all its pods have ended, or its share of the time is over.
    pub(super) fn is_over(&self, shutdown: &Shutdown, clock: &Clock) -> bool {
        let ended = |uid| {
            shutdown.terminations.get(uid).is_none_or(|termination| {
                let stopped =
                    termination.terminator == Terminator::Stop && termination.end.is_done();
                termination.reported
                    || stopped
                    || termination.end.is_given_up()
                    || termination.end.is_held_back()
            })
        };
        self.pods.iter().all(ended) || clock.reached(self.ends_at)
    }
}

/// The progress of the release.
#[derive(Debug)]
pub(super) enum Release {
    /// The agent holds the lock and awaits reports.
    Holding,
    /// The agent asks the runtime whether anything runs.
    Inspecting(BTreeMap<PodUid, (PodRef, Attempt)>),
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
    pub(super) fn elapsed(&self, now: Duration) -> Duration {
        now.saturating_sub(self.taken_up_at) + self.head_start
    }

    /// The moment of a time since the signal; a moment in the past may be cut off.
    pub(super) fn at(&self, elapsed: Duration) -> Duration {
        (self.taken_up_at + elapsed).saturating_sub(self.head_start)
    }

    /// Whether logind's time and a margin are over, and the machine still runs.
    pub(super) fn is_long_over(&self, now: Duration) -> bool {
        self.elapsed(now) > self.granted + LONG_OVER
    }

    pub(super) fn is_released(&self) -> bool {
        matches!(self.release, Release::Released)
    }

    /// Whether the agent may still terminate pods: each termination must leave time for its report.
    pub(super) fn may_end(&self, clock: &Clock) -> bool {
        !matches!(self.release, Release::Unlocking | Release::Released)
            && !clock.reached(self.at(self.ends.last_writes))
    }

    /// Whether there are marks to send.
    pub(super) fn is_marking(&self) -> bool {
        self.terminations.values().any(|it| !it.reported && it.mark.is_open())
    }

    /// Whether the next step waits for marks: a refused mark holds up only its own pod.
    fn waits_for_marks(&self) -> bool {
        let waits = |mark: &Attempt| mark.is_open() && !mark.is_held_back();
        self.terminations.values().any(|it| !it.reported && waits(&it.mark))
    }

    /// How failed calls are repeated.
    pub(super) fn pace(&self, uid: &PodUid) -> Pace {
        let released = self.is_released();
        let wait_max = if released { WAIT_MAX } else { WAIT_MAX_HASTE };
        let latest = (!released).then(|| self.at(self.ends.end));
        Pace { wait_max, latest, salt: salt(&uid.0) }
    }

    /// The step: as far as the work is, and at least as far as the clock. ([AP10])
    pub(super) fn step_now(&self, clock: &Clock, durable: bool) -> Step {
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
    pub(super) fn is_settled(&self) -> bool {
        let open = |termination: &PodTermination| {
            termination.is_awaited()
                || termination.is_unacknowledged()
                || termination.end.is_in_flight()
        };
        self.step > Step::Intent && !self.terminations.values().any(open)
    }

    pub(super) fn time_is_over(&self, now: Duration) -> bool {
        self.elapsed(now) >= self.ends.end
    }
}
