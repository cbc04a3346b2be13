//! Keeps the delay lock, and the delay that logind grants, outside of shutdowns.

use std::time::Duration;

use epilogue_common::outcome::Outcome;
use jiff::{SignedDuration, Timestamp};

use super::calls::Task;
use super::endings::CHECK_LASTS;
use super::facts::Facts;
use super::notices::{DELAY_TOO_SHORT, NOT_READY};
use super::out::Out;
use super::status::LockState;
use crate::finding::Finding;
use crate::protocol::action::Action;
use crate::protocol::event::ActionResult;
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX};

/// How long before a scheduled shutdown the agent checks that the node is ready for it. The agent
/// polls logind's schedule every 10 s.
const AHEAD: SignedDuration = SignedDuration::from_mins(1);

/// Our lock, and the requests for a longer delay.
#[derive(Clone, Debug, Default)]
pub(super) struct DelayLock {
    pub(super) state: LockState,
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
    checked_schedule: Option<(String, Timestamp)>,
}

impl DelayLock {
    /// Notes that another program wrote a drop-in of logind.
    pub(super) fn conf_changed(&mut self) {
        self.conf_changed = true;
    }

    /// Whether repeated attempts to take a lock have failed.
    pub(super) fn is_refused(&self) -> bool {
        self.state != LockState::Held && self.taking.failures() > 1
    }

    /// Whether a lock of ours may delay logind.
    pub(super) fn may_hold(&self) -> bool {
        self.holds || self.state == LockState::Taking
    }

    /// Takes a new lock after a cancelled shutdown, and only then releases the old one. ([SD7])
    pub(super) fn take_again(&mut self) {
        if self.state != LockState::Taking {
            self.state = LockState::None;
            self.taking = Attempt::wanted();
        }
    }

    /// Takes the lock again if logind does not list it. A list that did not come says nothing.
    pub(super) fn was_listed(&mut self, listed: Option<bool>, facts: &Facts, out: &mut Out) {
        let fresh = facts.clock.monotonic() < self.held_since + CHECK_LASTS;
        if self.state == LockState::Held && listed == Some(false) && !fresh {
            out.calls.log(true, None, "logind does not list our lock; it is taken again");
            self.state = LockState::None;
            self.taking = Attempt::wanted();
        }
    }

    /// Keeps the lock and the delay while no shutdown goes on.
    pub(super) fn keep(&mut self, facts: &Facts, out: &mut Out) {
        // This includes a lock that was being taken when the agent found a policy missing.
        if facts.policy_missing.is_some() && !facts.situation.runs {
            self.release(out);
        }
        if facts.situation.runs {
            return;
        }
        self.take(facts, out);
        self.raise_delay(facts, out);
        self.check_ahead(facts, out);
        if facts.stop_at.is_some() {
            self.release(out);
        }
    }

    /// Takes the lock whenever none is held and logind is calm.
    ///
    /// DIVERGES(upstream): the agent retries for as long as it takes. In upstream a first failure
    /// is final until the kubelet restarts, and only a log reports it. ([SD6], [W1])
    fn take(&mut self, facts: &Facts, out: &mut Out) {
        let wanted = facts.settings.enforce
            && facts.stop_at.is_none()
            && facts.logind.connected
            && facts.is_calm();
        if !wanted || matches!(self.state, LockState::Held | LockState::Taking) {
            return;
        }
        if !self.taking.is_open() {
            self.taking = Attempt::wanted();
        }
        if self.taking.is_due(&facts.clock) {
            self.taking.sent();
            self.state = LockState::Taking;
            out.calls.send(Task::TakeLock, Action::TakeLock);
        }
    }

    pub(super) fn taken(&mut self, result: &ActionResult, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        let pace = Pace { wait_max: WAIT_MAX, latest: None, salt: 2 };
        match result {
            ActionResult::Locked => {
                self.taking.done();
                self.state = LockState::Held;
                self.holds = true;
                self.held_since = now;
                out.calls.log(false, None, "the delay lock is held");
            }
            ActionResult::LockRefusedInProgress => {
                self.taking.failed(now, pace, None);
                self.state = LockState::Refused;
                out.calls.log(true, None, "logind gives no lock: it is going down already");
            }
            other => {
                self.taking.failed(now, pace, None);
                self.state = LockState::None;
                let why = match other {
                    ActionResult::Done(Err(failure)) => failure.message.as_str(),
                    _ => "no answer that belongs to it",
                };
                out.calls.log(true, None, format!("cannot take the delay lock: {why}"));
            }
        }
    }

    /// Releases the lock, once.
    pub(super) fn release(&mut self, out: &mut Out) {
        if self.holds && !self.releasing {
            self.releasing = true;
            out.calls.send(Task::ReleaseLock, Action::ReleaseLock);
        }
    }

    pub(super) fn released(&mut self, result: &ActionResult, out: &mut Out) {
        self.releasing = false;
        self.holds = false;
        // One that is still being taken has to be released too.
        if self.state != LockState::Taking {
            self.state = LockState::Released;
        }
        if let ActionResult::Done(Err(failure)) = result {
            out.calls.log(true, None, format!("the lock was not released: {failure}"));
        }
    }

    /// Raises a delay that is too short where this is allowed, and warns where it does not help.
    /// Our drop-in hides those of others, so it takes over a longer delay that one of them asks
    /// for. A kubelet waits 1.5 s for its own before it turns its graceful shutdown off. ([SD4])
    fn raise_delay(&mut self, facts: &Facts, out: &mut Out) {
        let wanted = facts.wanted_delay();
        let Some(state) = &facts.logind.state else { return };
        let Some(granted) = facts.endings.granted else { return };
        if !facts.settings.enforce || facts.is_preparing() {
            return;
        }
        let about = (wanted, Some(granted), state.owner.clone());
        let is_new = granted < wanted && self.raised_for.as_ref() != Some(&about);
        let raises = facts.settings.raise_delay;
        let is_hidden = raises && std::mem::take(&mut self.conf_changed);
        if !is_new && !is_hidden {
            return;
        }
        self.raised_for = Some(about);
        if raises {
            out.calls.send(Task::RaiseDelay, Action::RaiseDelay { wanted });
        } else {
            warn_of_delay(facts, out, "the agent may not raise it");
        }
    }

    /// Takes logind's answer; the facts have the delay already.
    pub(super) fn delay_raised(
        &mut self,
        result: &Outcome<Duration>,
        facts: &Facts,
        out: &mut Out,
    ) {
        match result {
            Ok(granted) => {
                if let Some(about) = &mut self.raised_for {
                    about.1 = Some(*granted);
                }
                if *granted < facts.wanted_delay() {
                    warn_of_delay(facts, out, "logind did not follow");
                } else {
                    let text = format!("logind grants {} s now", granted.as_secs());
                    out.calls.log(false, None, text);
                }
            }
            Err(failure) => {
                let why = format!("raising it failed: {failure}");
                warn_of_delay(facts, out, &why);
            }
        }
    }

    /// Checks each schedule once, identified by its kind and time.
    fn check_ahead(&mut self, facts: &Facts, out: &mut Out) {
        let scheduled = facts.logind.state.as_ref().and_then(|state| state.scheduled.as_ref());
        let Some((kind, at)) = scheduled else { return };
        let left = at.duration_since(facts.clock.now().wall);
        let checked_schedule = self.checked_schedule.as_ref() == scheduled;
        if left >= AHEAD || checked_schedule || self.is_getting_ready(out) {
            return;
        }
        let when = format!("{kind} is scheduled in {} s", left.as_secs().max(0));
        self.checked_schedule = scheduled.cloned();
        let found: Vec<_> = self.find(facts, out).map(|finding| finding.to_string()).collect();
        if found.is_empty() {
            out.calls.log(false, None, format!("{when}; everything is ready for it"));
            return;
        }
        let message = format!("{when}, and the node is not ready for it: {}", found.join("; "));
        out.announce(true, NOT_READY, message);
    }

    /// Whether the answer may change within a moment.
    fn is_getting_ready(&self, out: &Out) -> bool {
        self.state == LockState::Taking || out.calls.count(|t| *t == Task::RaiseDelay) > 0
    }

    /// Finds what would fail if the machine went down now.
    fn find<'a>(&self, facts: &'a Facts, out: &'a Out) -> impl Iterator<Item = Finding<'a>> {
        let status = &out.status;
        let acts =
            |is_found: bool, finding| (facts.settings.enforce && is_found).then_some(finding);
        let of_pods = match (facts.pods.is_listed(), status.api_reachable) {
            (false, _) => Some(Finding::PodsNotListed),
            (true, false) => Some(Finding::ApiNoAnswer("the API")),
            (true, true) => None,
        };
        let found = [
            acts(self.state != LockState::Held, Finding::LockNotHeld),
            acts(is_short(facts), delay_too_short(facts)),
            acts(status.marks_only, Finding::NoTerminator(status.mode_reason)),
            of_pods,
        ];
        found.into_iter().flatten()
    }
}

fn is_short(facts: &Facts) -> bool {
    facts.endings.granted.unwrap_or_default() < facts.wanted_delay()
}

fn delay_too_short(facts: &Facts) -> Finding<'static> {
    let granted = facts.endings.granted.unwrap_or_default();
    Finding::DelayTooShort { granted, wanted: facts.wanted_delay() }
}

fn warn_of_delay(facts: &Facts, out: &mut Out, why: &str) {
    let finding = delay_too_short(facts);
    out.announce(true, DELAY_TOO_SHORT, format!("{finding} ({why}): {}", finding.remedy()));
}
