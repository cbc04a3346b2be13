//! Holds the time of a shutdown: since when it runs, how long it may take, and what of that passed
//! without an answer of the API. ([AP13])

use std::time::Duration;

use super::super::facts::Facts;
use super::ModeTaken;
use crate::protocol::node::KubeletFacts;
use crate::shutdown::Mode;
use crate::shutdown::budget::{Budget, Timetable, assist_hold_max, wanted_delay};
use crate::time_span::TimeSpan;

/// After logind's time and this, a shutdown that did not happen will not happen. ([AP27])
const LONG_OVER: Duration = Duration::from_secs(30);

/// The time of a shutdown.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// When the shutdown was taken up, and how much of its time had passed by then.
    pub(super) taken_up_at: Duration,
    head_start: Duration,
    pub(super) granted: Duration,
    pub(super) ends: Timetable,
    pub(super) margin: Duration,
    /// How long the API gave no answer, and since when it gives none now.
    silence: Duration,
    silent_since: Option<Duration>,
}

impl Window {
    pub(super) fn new(taken_up_at: Duration, head_start: Duration, granted: Duration) -> Self {
        let budget = Budget::of(granted);
        Self {
            taken_up_at,
            head_start,
            granted,
            ends: budget.timetable(),
            margin: budget.margin,
            silence: Duration::ZERO,
            silent_since: None,
        }
    }

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

    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.elapsed(now) >= self.ends.end
    }

    /// Takes another time for the end, and returns whether it differs.
    pub(super) fn moves_to(&mut self, at: Duration, may_grow: bool) -> bool {
        let granted = at.saturating_sub(self.taken_up_at) + self.head_start;
        let moves = granted < self.granted || may_grow && granted > self.granted;
        if moves {
            self.granted = granted;
        }
        moves
    }

    /// Sets the time limits, because others wait for the lock. In Assist the agent holds it no
    /// longer than the sum of the kubelet's periods and a margin. In the other modes it holds it no
    /// longer than the priority groups and their reports need. Time in which the API gave no answer
    /// does not count. ([AP13])
    pub(super) fn set_ends(&mut self, mode: &ModeTaken, facts: &Facts) {
        let silence = self.silence_until(facts.clock.monotonic());
        let groups = facts.priority_groups();
        let groups = groups.filter(|_| mode.found.mode != Mode::Assist);
        let wanted = groups.map(|it| mode.since + silence + wanted_delay(Some(it), None));
        let budget = Budget::of(wanted.map_or(self.granted, |wanted| wanted.min(self.granted)));
        let mut ends = Timetable { pre_mark: self.ends.pre_mark, ..budget.timetable() };
        let period = facts.kubelet.facts.as_ref().and_then(KubeletFacts::shutdown_period);
        if mode.found.mode == Mode::Assist
            && let Some(period) = period.filter(|period| !period.is_zero())
        {
            let granted = TimeSpan::from_secs(self.granted.as_secs().max(1));
            ends.end = ends.end.min(assist_hold_max(period.saturating_add(silence), granted));
            ends.last_writes = ends.end.saturating_sub(budget.last_writes);
            ends.kill = ends.kill.min(ends.last_writes);
        }
        self.ends = ends;
    }

    fn silence_until(&self, now: Duration) -> Duration {
        self.silence + self.silent_since.map_or(Duration::ZERO, |at| now.saturating_sub(at))
    }

    /// Counts the time in which the API gives no answer, by which the shutdown may take longer.
    pub(super) fn note_silence(&mut self, mode: &ModeTaken, api_answers: bool, facts: &Facts) {
        let now = facts.clock.monotonic();
        if api_answers && self.silent_since.is_none() {
            return;
        }
        self.silence = self.silence_until(now);
        self.silent_since = (!api_answers).then_some(now);
        self.set_ends(mode, facts);
    }
}
