//! Keeps the lock, the delay, and the facts about logind and the kubelet before any shutdown.

use std::time::Duration;

use epilogue_common::outcome::Outcome;
use jiff::Timestamp;

use super::calls::Task;
use super::mode::{self, Kubelet};
use super::notices::DELAY_TOO_SHORT;
use super::shutdown_run::Begin;
use super::{Agent, Allowed, LockState};
use crate::protocol::action::Action;
use crate::protocol::event::{ActionResult, Announcement, LogindState};
use crate::protocol::node::{Healthz, KubeletFacts};
use crate::shutdown::budget::wanted_delay;
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX};
use crate::termination::hanging::{KubeletLiveness, StuckTimes};

/// A read of logind may have begun before a signal that arrived before the read's answer.
const CHECK_LASTS: Duration = Duration::from_secs(2);

/// logind's last known state, and our lock.
#[derive(Debug, Default)]
pub(super) struct Logind {
    pub(super) state: Option<LogindState>,
    pub(super) connected: bool,
    pub(super) lock: LockState,
    pub(super) granted: Option<Duration>,
    taking: Attempt,
    held_since: Duration,
    /// Whether the shell holds a lock, even while another is taken or released.
    holds: bool,
    releasing: bool,
    /// The delay that was requested or warned of, the delay then, and logind's owner.
    raised_for: Option<(Duration, Option<Duration>, String)>,
    /// Whether a drop-in of another program changed since the delay was last requested.
    conf_changed: bool,
    /// The scheduled shutdown that was already checked.
    pub(super) foretold: Option<(String, Timestamp)>,
    /// Whether a shutdown is in progress that the agent only observes, and has reported.
    pub(super) observed: bool,
    /// When a shutdown was last cancelled.
    cancelled_at: Option<Duration>,
}

/// The kubelet's last known state.
#[derive(Debug, Default)]
pub(super) struct KubeletMemory {
    pub(super) facts: Option<KubeletFacts>,
    pub(super) seen_at: Duration,
    pub(super) armed_at: Option<Duration>,
    pub(super) gone_since: Option<Duration>,
    pub(super) lives_since: Option<Duration>,
    /// Since when the kubelet is dead without a sign of life in between.
    dead_since: Option<Duration>,
    /// Since when its `/healthz` is bad and no kubelet has renewed the lease.
    hung_since: Option<Duration>,
}

/// The shell reports facts about the kubelet at least once a minute.
const FACTS_LAST: Duration = Duration::from_secs(90);

impl KubeletMemory {
    /// Whether the kubelet may live: then only it writes its pods' phases.
    pub(super) fn lives(&self) -> bool {
        self.facts
            .as_ref()
            .is_none_or(|facts| !matches!(mode::kubelet(facts), Kubelet::Dead | Kubelet::Hangs))
    }

    /// The kubelet's state for pods that hang; `None` while it is uncertain. A kubelet that
    /// restarts again and again is neither dead nor alive for long enough.
    pub(super) fn liveness(&self, now: Duration, times: &StuckTimes) -> Option<KubeletLiveness> {
        let facts = self.facts.as_ref().filter(|_| now < self.seen_at + FACTS_LAST)?;
        let reached = |since: Option<Duration>, time| since.is_some_and(|at| now >= at + time);
        if mode::kubelet(facts) == Kubelet::Lives {
            return Some(KubeletLiveness::Lives);
        }
        if reached(self.dead_since, times.dead) {
            return Some(KubeletLiveness::Dead);
        }
        let hangs = reached(self.hung_since, times.hung) && mode::lease_is_stale(facts);
        hangs.then_some(KubeletLiveness::Hangs)
    }

    /// Counts the time since the last sign of life. A renewed lease is one, even of a kubelet that
    /// came and went between two samples.
    fn note_silence(&mut self, facts: &KubeletFacts, now: Duration) {
        let renewed = facts.lease_age.map(|age| now.saturating_sub(age)).unwrap_or_default();
        let since = |before: Option<Duration>| Some(before.unwrap_or(now).max(renewed));
        let dead = mode::kubelet(facts) == Kubelet::Dead;
        self.dead_since = if dead { since(self.dead_since) } else { None };
        let bad = matches!(facts.healthy, Some(Healthz::Failing | Healthz::Silent));
        self.hung_since = if bad { since(self.hung_since) } else { None };
    }
}

impl Logind {
    /// The state of a node without logind: as far as can be known, no shutdown goes on there.
    pub(super) fn absent() -> Self {
        let state = LogindState {
            owner: String::new(),
            delay: None,
            preparing: false,
            scheduled: None,
            lock_listed: false,
        };
        Self { state: Some(state), ..Self::default() }
    }

    /// Notes that another program wrote a drop-in of logind.
    pub(super) fn conf_changed(&mut self) {
        self.conf_changed = true;
    }

    pub(super) fn is_preparing(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.preparing)
    }

    /// Whether logind has reported that no shutdown goes on.
    pub(super) fn is_calm(&self) -> bool {
        self.state.as_ref().is_some_and(|state| !state.preparing)
    }

    /// Whether repeated attempts to take a lock have failed.
    pub(super) fn is_refused_lock(&self) -> bool {
        self.lock != LockState::Held && self.taking.failures() > 1
    }

    /// Whether a lock of ours may delay logind.
    pub(super) fn may_hold(&self) -> bool {
        self.holds || self.lock == LockState::Taking
    }

    pub(super) fn prepares(&mut self, preparing: bool) {
        if let Some(state) = &mut self.state {
            state.preparing = preparing;
        }
    }

    /// Takes a new lock, and only then releases the old one. ([SD7])
    pub(super) fn take_anew(&mut self, now: Duration) {
        self.cancelled_at = Some(now);
        if self.lock != LockState::Taking {
            self.lock = LockState::None;
            self.taking = Attempt::wanted();
        }
    }
}

impl Agent {
    pub(super) fn allowed(&self) -> Allowed {
        Allowed {
            enforce: self.settings.enforce,
            runtime: self.settings.runtime,
            ends_pods: self.settings.priority_groups.is_some(),
        }
    }

    pub(super) fn see_kubelet(&mut self, facts: KubeletFacts) {
        let now = self.clock.monotonic();
        let memory = &mut self.kubelet;
        memory.seen_at = now;
        if facts.lock_armed == Some(true) {
            memory.armed_at = Some(now);
        }
        let gone = matches!(mode::kubelet(&facts), Kubelet::Dead | Kubelet::Hangs);
        memory.gone_since = gone.then(|| memory.gone_since.unwrap_or(now));
        let lives = mode::kubelet(&facts) == Kubelet::Lives;
        memory.lives_since = lives.then(|| memory.lives_since.unwrap_or(now));
        memory.note_silence(&facts, now);
        memory.facts = Some(facts);
    }

    pub(super) fn see_logind(&mut self, seen: LogindState) {
        let now = self.clock.monotonic();
        let owner = self.logind.state.as_ref().map(|state| state.owner.clone());
        let restarted = owner.is_some_and(|owner| owner != seen.owner);
        self.logind.connected = true;
        self.logind.granted = seen.delay.or(self.logind.granted);
        if self.logind.lock == LockState::Held && !seen.lock_listed && !self.is_fresh_lock() {
            self.calls.log(true, None, "logind does not list our lock; it is taken again");
            self.logind.lock = LockState::None;
            self.logind.taking = Attempt::wanted();
        }
        let preparing = seen.preparing;
        self.logind.observed &= preparing;
        let granted = seen.delay;
        self.logind.state = Some(seen);
        let Some(shutdown) = &self.shutdown else {
            let echo = self.logind.cancelled_at.is_some_and(|at| now < at + CHECK_LASTS);
            if preparing && !echo && self.journaled.is_none() && !self.logind.observed {
                self.calls.log(true, None, "logind is shutting down, and no signal arrived");
                self.begin(&Begin::found(granted));
            } else if preparing && echo {
                self.logind.prepares(false);
            }
            return;
        };
        if preparing {
            return;
        }
        // DIVERGES(upstream): a shutdown that vanished counts as cancelled. Upstream receives no
        // signal of it, and its node stays not ready. ([LD7], [W13])
        if restarted {
            self.cancel("logind was restarted, and its shutdown is gone");
        } else if shutdown.elapsed(now) >= CHECK_LASTS {
            self.cancel("logind is not shutting down any more");
        } else {
            self.logind.prepares(true);
        }
    }

    fn is_fresh_lock(&self) -> bool {
        self.clock.monotonic() < self.logind.held_since + CHECK_LASTS
    }

    pub(super) fn lose_logind(&mut self, why: &str) {
        self.logind.connected = false;
        self.calls.log(true, None, format!("logind is lost: {why}; a lock that is held is kept"));
    }

    pub(super) fn hear_shutdown(&mut self, announcement: Announcement) {
        let now = self.clock.monotonic();
        self.logind.prepares(true);
        self.logind.granted = announcement.granted.or(self.logind.granted);
        if let Some(shutdown) = &self.shutdown {
            if !shutdown.is_long_over(now) {
                self.calls.log(false, None, "a second signal of the same shutdown is ignored");
                return;
            }
            self.calls.log(true, None, "a new shutdown, though the last one is not over");
            self.leave_shutdown();
        }
        self.forget_journaled();
        self.begin(&Begin::heard(announcement));
    }

    /// Maintains the lock, the delay and the Node object while no shutdown goes on.
    pub(super) fn stand(&mut self) {
        if self.shutdown.is_none() {
            let elsewhere = self.node.view.as_ref().is_some_and(|view| self.is_stale(view));
            if self.settings.enforce
                && self.journaled.is_none()
                && (self.logind.is_calm() || elsewhere)
            {
                self.tidy_node();
                self.find_forgotten_marks();
                self.publish();
            }
            self.take_lock();
            self.raise_delay();
            self.check_ahead();
        }
        if self.stop_at.is_some() && self.shutdown.is_none() {
            self.release_lock();
        }
    }

    /// Whether the node's annotation belongs to an earlier boot.
    fn is_stale(&self, view: &crate::protocol::event::NodeView) -> bool {
        use epilogue_common::announcement::Announcement::{Drained, ShuttingDown};
        let said = view.announced.as_deref().and_then(|text| text.parse().ok());
        matches!(
            said,
            Some(ShuttingDown { boot_id, .. } | Drained { boot_id, .. })
                if boot_id != self.settings.boot_id
        )
    }

    /// Takes the lock whenever none is held and logind is calm.
    ///
    /// DIVERGES(upstream): the agent retries for as long as it takes. In upstream a first failure
    /// is final until the kubelet restarts, and only a log reports it. ([SD6], [W1])
    fn take_lock(&mut self) {
        let wanted = self.settings.enforce
            && self.stop_at.is_none()
            && self.logind.connected
            && self.logind.is_calm();
        if !wanted || matches!(self.logind.lock, LockState::Held | LockState::Taking) {
            return;
        }
        if !self.logind.taking.is_open() {
            self.logind.taking = Attempt::wanted();
        }
        if self.logind.taking.is_due(&self.clock) {
            self.logind.taking.sent();
            self.logind.lock = LockState::Taking;
            self.calls.send(Task::TakeLock, Action::TakeLock);
        }
    }

    pub(super) fn lock_taken(&mut self, result: &ActionResult) {
        let now = self.clock.monotonic();
        let pace = Pace { wait_max: WAIT_MAX, latest: None, salt: 2 };
        match result {
            ActionResult::Locked => {
                self.logind.taking.done();
                self.logind.lock = LockState::Held;
                self.logind.holds = true;
                self.logind.held_since = now;
                self.calls.log(false, None, "the delay lock is held");
            }
            ActionResult::LockRefusedInProgress => {
                self.logind.taking.failed(now, pace, None);
                self.logind.lock = LockState::Refused;
                self.calls.log(true, None, "logind gives no lock: it is going down already");
            }
            other => {
                self.logind.taking.failed(now, pace, None);
                self.logind.lock = LockState::None;
                let why = match other {
                    ActionResult::Done(Err(failure)) => failure.message.as_str(),
                    _ => "no answer that belongs to it",
                };
                self.calls.log(true, None, format!("cannot take the delay lock: {why}"));
            }
        }
    }

    /// Releases the lock, once.
    pub(super) fn release_lock(&mut self) {
        if self.logind.holds && !self.logind.releasing {
            self.logind.releasing = true;
            self.calls.send(Task::ReleaseLock, Action::ReleaseLock);
        }
    }

    pub(super) fn lock_released(&mut self, result: &ActionResult) {
        self.logind.releasing = false;
        self.logind.holds = false;
        self.logind.lock = LockState::Released;
        if let ActionResult::Done(Err(failure)) = result {
            self.calls.log(true, None, format!("the lock was not released: {failure}"));
        }
    }

    pub(super) fn wanted_delay(&self) -> Duration {
        let period = self.kubelet.facts.as_ref().and_then(|facts| facts.shutdown_period);
        wanted_delay(self.settings.priority_groups.as_ref(), period)
    }

    /// Raises a delay that is too short where this is allowed, and warns where it does not help.
    /// Our drop-in hides those of others, so it takes over a longer delay that one of them asks
    /// for. A kubelet waits 1.5 s for its own before it turns its graceful shutdown off. ([SD4])
    fn raise_delay(&mut self) {
        let wanted = self.wanted_delay();
        let Some(state) = &self.logind.state else { return };
        let Some(granted) = self.logind.granted else { return };
        if !self.settings.enforce || state.preparing {
            return;
        }
        let about = (wanted, Some(granted), state.owner.clone());
        let is_new = granted < wanted && self.logind.raised_for.as_ref() != Some(&about);
        let raises = self.settings.raise_delay;
        let is_hidden = raises && std::mem::take(&mut self.logind.conf_changed);
        if !is_new && !is_hidden {
            return;
        }
        self.logind.raised_for = Some(about);
        if raises {
            self.calls.send(Task::RaiseDelay, Action::RaiseDelay { wanted });
        } else {
            self.warn_of_delay("the agent may not raise it");
        }
    }

    pub(super) fn delay_raised(&mut self, result: &Outcome<Duration>) {
        match result {
            Ok(granted) => {
                self.logind.granted = Some(*granted);
                if let Some(about) = &mut self.logind.raised_for {
                    about.1 = Some(*granted);
                }
                if *granted < self.wanted_delay() {
                    self.warn_of_delay("logind did not follow: see `epilogue-agent check`");
                } else {
                    let text = format!("logind grants {} s now", granted.as_secs());
                    self.calls.log(false, None, text);
                }
            }
            Err(failure) => {
                let why = format!("raising it failed: {failure}");
                self.warn_of_delay(&why);
            }
        }
    }

    fn warn_of_delay(&mut self, why: &str) {
        let granted = self.logind.granted.unwrap_or_default().as_secs_f64();
        let wanted = self.wanted_delay().as_secs();
        let message = format!(
            "logind grants {granted} s to a shutdown, {wanted} s are wanted ({why}); the agent \
             uses what is granted, pods get less time to terminate"
        );
        self.calls.log(true, None, message.clone());
        self.emit_event(true, DELAY_TOO_SHORT, message);
    }
}
