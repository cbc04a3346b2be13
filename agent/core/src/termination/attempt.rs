//! Tracks one task that needs an acknowledgement, over any number of attempts.

use std::time::Duration;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::clock::Clock;

/// First wait; each further failure doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Maximum wait during a shutdown.
pub const WAIT_MAX_HASTE: Duration = Duration::from_secs(1);
/// Maximum wait outside a shutdown.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// Wait before the single retry after a refusal of the pod.
const REFUSED_WAIT: Duration = Duration::from_secs(1);
/// A shorter wait is not worth a request.
const REFUSED_WAIT_MIN: Duration = Duration::from_millis(50);

/// How much longer the waits are after a write that the API found invalid. A webhook or policy of
/// others may be corrected meanwhile, but hardly within seconds.
const INVALID_FACTOR: u32 = 10;
/// How often such a write is retried where no time limit ends it, which takes about a minute.
const INVALID_RETRIES: u32 = 7;

/// How many failures a conflict follows without a wait. More of them mean that the object cannot be
/// read, or that another writer never rests.
const CHANGES_AT_ONCE: u32 = 3;

/// How to handle a refusal (403).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The API may refuse everything for a moment: keep retrying.
    Passing,
    /// The permission may come late: retry until the task has failed this often.
    UpTo(u32),
    /// The refusal concerns this pod: retry once.
    OfPod,
    /// Never retry.
    Final,
}

/// How to handle a conflict (409).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The decision used an outdated object: the task is due as soon as that is read again.
    Outdated,
    /// Another write was faster: retry.
    Passing,
}

/// How to handle a write that validation or admission finds invalid (422).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// Never retry.
    Final,
    /// Retry slowly, this often.
    Slowly(u32),
}

/// Where tasks differ in what follows a failure.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// How to handle a conflict.
    pub conflict: Conflict,
    /// How to handle a refusal.
    pub refusal: Refusal,
    /// How to handle a write that is found invalid.
    pub invalid: Invalid,
    /// Whether each retry needs a fresh read: the API may have applied an attempt that it did not
    /// acknowledge.
    pub rereads: bool,
}

/// Sets `DisruptionTarget=True`: a repeated attempt that the API had applied meets a conflict.
pub const MARK: Rule = Rule {
    conflict: Conflict::Outdated,
    refusal: Refusal::Final,
    invalid: Invalid::Final,
    rereads: false,
};
/// Writes a phase, or takes a condition back.
pub const REPORT: Rule = Rule { rereads: true, ..MARK };
/// Reads the pod, or writes what is true of every state of the object.
pub const REPEATABLE: Rule = Rule { conflict: Conflict::Passing, ..MARK };
/// Writes for an eviction, which has time for a wait before each attempt.
pub const EVICTION: Rule = Rule { rereads: true, ..REPEATABLE };
/// Deletes the pod, or sets its deadline: the call names the version that carries the mark. One
/// that arrives after the mark was cleared must not end the pod.
pub const END: Rule = MARK;

impl Rule {
    /// The same rule with this handling of refusals.
    #[must_use]
    pub const fn refused(self, refusal: Refusal) -> Self {
        Self { refusal, ..self }
    }

    /// The same rule with slow retries of a write that is found invalid.
    #[must_use]
    pub const fn slowly(self) -> Self {
        Self { invalid: Invalid::Slowly(INVALID_RETRIES), ..self }
    }

    /// The same without a limit: something else ends the retries.
    #[must_use]
    pub const fn slowly_without_end(self) -> Self {
        Self { invalid: Invalid::Slowly(u32::MAX), ..self }
    }
}

/// What follows a call to the API. ([AP14])
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The task is acknowledged.
    Done,
    /// The object is gone, so nothing is left to do.
    Gone,
    /// The task is repeated on an object that is read again.
    Reread,
    /// The task is repeated.
    Retry,
    /// The API finds the write invalid. It is repeated slowly, and what waits for it goes on as
    /// after a refusal.
    Slowly,
    /// The API does not accept the task, which is given up.
    Refused,
}

/// State of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The task is not requested.
    #[default]
    Unwanted,
    /// The task is due now.
    Due,
    /// The request was sent; its result is pending.
    InFlight,
    /// The attempt failed; the next one is due at this time.
    Waiting(Duration),
    /// The task is acknowledged.
    Done,
    /// The task cannot be done.
    GivenUp,
}

/// One task that needs an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    state: State,
    failures: u32,
    /// Whether an attempt that has ended took effect, or may have.
    applied: bool,
    /// Number of refusals that concern the pod.
    refusals: u8,
    /// Number of answers that found the write invalid.
    invalid: u32,
    /// Whether an answer was a refusal.
    held_back: bool,
}

/// Timing of the attempts after a failure.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Maximum wait.
    pub wait_max: Duration,
    /// Time on CLOCK_MONOTONIC after which an attempt is useless.
    pub latest: Option<Duration>,
    /// Spreads the waits of different tasks.
    pub salt: u64,
}

impl Attempt {
    /// Creates a task that is due now.
    pub fn wanted() -> Self {
        Self { state: State::Due, ..Self::default() }
    }

    /// Creates a task that others have completed.
    pub fn done_by_others() -> Self {
        Self { state: State::Done, ..Self::default() }
    }

    /// Creates a task that cannot be done.
    pub fn given_up() -> Self {
        Self { state: State::GivenUp, ..Self::default() }
    }

    /// Creates a task that the agent has completed before.
    pub fn done_before() -> Self {
        Self { state: State::Done, applied: true, ..Self::default() }
    }

    /// Requests the task, unless it was requested before.
    pub fn want(&mut self) {
        if self.state == State::Unwanted {
            self.state = State::Due;
        }
    }

    /// Requests the task again, whatever its result, unless it is in flight.
    pub fn want_again(&mut self) {
        if self.state != State::InFlight {
            self.state = State::Due;
        }
    }

    /// The object has changed: the task is due again once the change is known.
    pub fn met_change(&mut self) {
        self.failures += 1;
        self.state = State::Due;
    }

    /// Cancels the task, unless it is acknowledged or in flight.
    pub fn drop_it(&mut self) {
        if !matches!(self.state, State::Done | State::InFlight) {
            self.state = State::Unwanted;
        }
    }

    /// Records that the request was sent.
    pub fn sent(&mut self) {
        self.state = State::InFlight;
    }

    /// Records that the task is acknowledged.
    pub fn done(&mut self) {
        self.applied |= self.is_in_flight();
        self.state = State::Done;
    }

    /// Records that the task cannot be done.
    pub fn give_up(&mut self) {
        self.state = State::GivenUp;
    }

    /// Schedules a retry after a wait that grows and differs between tasks.
    ///
    /// The server's Retry-After applies only if it ends before the latest useful attempt. ([AP14])
    pub fn failed(&mut self, now: Duration, pace: Pace, failure: Option<&Failure>) {
        self.applied |= self.is_in_flight() && failure.is_none_or(Failure::is_in_doubt);
        self.repeat(now, pace, failure);
    }

    fn repeat(&mut self, now: Duration, pace: Pace, failure: Option<&Failure>) {
        self.failures += 1;
        let doubled = FIRST_WAIT * 2_u32.saturating_pow((self.failures - 1).min(16));
        let wait = scattered(doubled.min(pace.wait_max), pace.salt, self.failures);
        let asked = failure.and_then(|failure| failure.retry_after);
        let asked = asked.and_then(|asked| Duration::try_from(asked).ok());
        let fits = |asked: &Duration| pace.latest.is_none_or(|latest| now + *asked < latest);
        let wait = asked.filter(fits).map_or(wait, |asked| wait.max(asked));
        self.state = State::Waiting(now + wait);
    }

    /// Takes the API's answer: the one table of what follows each kind of failure. ([AP14])
    pub fn settle<T>(
        &mut self,
        result: &Outcome<T>,
        now: Duration,
        pace: Pace,
        rule: Rule,
    ) -> Follow {
        let Err(failure) = result else {
            self.done();
            return Follow::Done;
        };
        let again = if rule.rereads { Follow::Reread } else { Follow::Retry };
        match (failure.kind, rule.conflict) {
            (FailureKind::NotFound, _) => {
                self.give_up();
                Follow::Gone
            }
            (FailureKind::Conflict, Conflict::Outdated) => {
                if self.failures < CHANGES_AT_ONCE {
                    self.met_change();
                } else {
                    self.repeat(now, pace, Some(failure));
                }
                Follow::Reread
            }
            _ if failure.is_invalid() => self.found_invalid(now, pace, rule.invalid),
            // The API never accepts this write.
            (FailureKind::AlreadyExists | FailureKind::NamespaceTerminating, _) => {
                self.give_up();
                Follow::Refused
            }
            (FailureKind::Forbidden, _) => self.refused(now, pace, rule.refusal, again),
            (
                FailureKind::Conflict
                | FailureKind::Invalid
                | FailureKind::TooManyRequests
                | FailureKind::ServerError
                | FailureKind::Unknown
                | FailureKind::Other,
                _,
            ) => {
                self.failed(now, pace, Some(failure));
                again
            }
        }
    }

    fn refused(&mut self, now: Duration, pace: Pace, refusal: Refusal, again: Follow) -> Follow {
        self.held_back = true;
        let left = |latest: Duration| latest.saturating_sub(now);
        let wait = pace.latest.map_or(REFUSED_WAIT, |latest| REFUSED_WAIT.min(left(latest) / 2));
        match refusal {
            Refusal::Passing => self.repeat(now, pace, None),
            Refusal::UpTo(max) if self.failures < max => {
                self.repeat(now, pace, None);
                return again;
            }
            Refusal::OfPod if self.refusals == 0 && wait >= REFUSED_WAIT_MIN => {
                self.refusals += 1;
                self.failures += 1;
                self.state = State::Waiting(now + wait);
            }
            Refusal::UpTo(_) | Refusal::OfPod | Refusal::Final => {
                self.give_up();
                return Follow::Refused;
            }
        }
        // The API has not applied an attempt that it refused.
        Follow::Retry
    }

    /// Repeats a write that is found invalid, slowly and while an answer is of use.
    fn found_invalid(&mut self, now: Duration, pace: Pace, rule: Invalid) -> Follow {
        self.invalid = self.invalid.saturating_add(1);
        self.failures += 1;
        self.held_back = true;
        let doubled = FIRST_WAIT * 2_u32.saturating_pow((self.invalid - 1).min(16));
        let longest = doubled.min(pace.wait_max) * INVALID_FACTOR;
        let next = now + scattered(longest, pace.salt, self.failures);
        let in_time = pace.latest.is_none_or(|latest| next < latest);
        match rule {
            Invalid::Slowly(retries) if self.invalid <= retries && in_time => {
                self.state = State::Waiting(next);
                Follow::Slowly
            }
            Invalid::Slowly(_) | Invalid::Final => {
                self.give_up();
                Follow::Refused
            }
        }
    }

    /// Whether the API found the write invalid, and the next attempt has not begun. What waits for
    /// the task goes on as after a refusal.
    pub fn is_retried_slowly(&self) -> bool {
        self.invalid > 0 && matches!(self.state, State::Due | State::Waiting(_))
    }

    /// Whether the task is open, and what waits for it has to go on waiting.
    pub fn is_awaited(&self) -> bool {
        self.is_open() && !self.is_retried_slowly()
    }

    /// How often the API found the write invalid.
    pub fn times_invalid(&self) -> u32 {
        self.invalid
    }

    /// Whether the task is open after a refusal; other tasks need not wait for it.
    pub fn is_held_back(&self) -> bool {
        self.is_open() && self.held_back
    }

    /// Whether to send the request now; a wait sets the clock's deadline.
    pub fn is_due(&self, clock: &Clock) -> bool {
        match self.state {
            State::Due => true,
            State::Waiting(until) => clock.reached(until),
            _ => false,
        }
    }

    /// Whether the result is pending.
    pub fn is_in_flight(&self) -> bool {
        self.state == State::InFlight
    }

    /// Whether the task is acknowledged.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether the task is given up.
    pub fn is_given_up(&self) -> bool {
        self.state == State::GivenUp
    }

    /// Whether the task is requested and neither acknowledged nor given up.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Due | State::InFlight | State::Waiting(_))
    }

    /// Whether the task is requested.
    pub fn is_wanted(&self) -> bool {
        self.state != State::Unwanted
    }

    /// Number of failures.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether a request took effect, or may have: what the API has refused has not.
    pub fn may_have_applied(&self) -> bool {
        self.applied || self.is_in_flight()
    }
}

/// Returns between half of the wait and all of it. The same task gets the same wait, so that a run
/// can be repeated.
fn scattered(wait: Duration, salt: u64, failures: u32) -> Duration {
    let mut mixed = salt ^ u64::from(failures).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let part = u32::try_from((mixed ^ (mixed >> 31)) % 512).unwrap_or(0);
    wait * (512 + part) / 1_024
}

/// Hashes a text, for `Pace::salt`.
pub fn salt(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    const PACE: Pace = Pace { wait_max: WAIT_MAX_HASTE, latest: None, salt: 7 };

    fn wait_of(attempt: Attempt) -> Duration {
        let State::Waiting(until) = attempt.state else { panic!("{attempt:?}") };
        until
    }

    #[test]
    fn waits_grow_to_their_limit_and_differ_between_things() {
        let mut attempt = Attempt::wanted();
        for whole in [100, 200, 400, 800, 1_000, 1_000].map(Duration::from_millis) {
            attempt.sent();
            attempt.failed(Duration::ZERO, PACE, None);
            let wait = wait_of(attempt);
            assert!(wait >= whole / 2 && wait <= whole, "{wait:?} of {whole:?}");
        }
        let of = |salt| scattered(WAIT_MAX, salt, 1);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn each_kind_of_failure_has_one_consequence() {
        use FailureKind::{
            Conflict as Changed, Forbidden, Invalid, NotFound, ServerError, Unknown,
        };
        let outdated = MARK.refused(Refusal::OfPod);
        let rereads = REPORT.refused(Refusal::OfPod);
        let passing = REPEATABLE.refused(Refusal::UpTo(2));
        let table = [
            (NotFound, outdated, Follow::Gone),
            (Changed, outdated, Follow::Reread),
            (Changed, END, Follow::Reread),
            (Changed, passing, Follow::Retry),
            (Invalid, outdated, Follow::Refused),
            (Unknown, outdated, Follow::Retry),
            (ServerError, rereads, Follow::Reread),
            (Forbidden, rereads, Follow::Retry),
            (Forbidden, passing, Follow::Retry),
            (Forbidden, REPORT.refused(Refusal::UpTo(1)), Follow::Reread),
            (Forbidden, MARK, Follow::Refused),
        ];
        for (kind, rule, expected) in table {
            let mut attempt = Attempt::wanted();
            attempt.sent();
            let result: Outcome<()> = Err(Failure::new(kind, "why"));
            let found = attempt.settle(&result, Duration::ZERO, PACE, rule);
            assert_eq!(found, expected, "{kind:?} {rule:?}");
            let ended = matches!(expected, Follow::Gone | Follow::Refused);
            assert_eq!(attempt.is_open(), !ended, "{kind:?} {rule:?}");
        }
    }

    #[test]
    fn a_refused_pod_is_tried_once_more_also_just_before_the_time_is_over() {
        // Simulation seed 9667811: another pod was granted while the refusal was on its way back.
        for (left, wait) in [(4_000, Some(1_000)), (700, Some(350)), (100, Some(50)), (90, None)] {
            let mut attempt = Attempt::wanted();
            attempt.sent();
            let result: Outcome<()> = Err(Failure::new(FailureKind::Forbidden, "why"));
            let pace = Pace { latest: Some(Duration::from_millis(left)), ..PACE };
            attempt.settle(&result, Duration::ZERO, pace, REPORT.refused(Refusal::OfPod));
            let found = attempt.is_open().then(|| wait_of(attempt));
            assert_eq!(found, wait.map(Duration::from_millis), "{left} ms left");
        }
    }

    #[test]
    fn an_invalid_write_is_repeated_slowly_while_time_is_left_and_nothing_waits_for_it() {
        let invalid: Outcome<()> = Err(Failure::new(FailureKind::Invalid, "denied request: no"));
        let haste = PACE;
        let calm = Pace { wait_max: WAIT_MAX, ..PACE };
        let latest = |seconds| Pace { latest: Some(Duration::from_secs(seconds)), ..PACE };
        let rule = MARK.slowly();
        let endless = MARK.slowly_without_end();
        // Each wait is between half of the time here and all of it.
        for (rule, pace, waits) in [
            (MARK, haste, &[][..]),
            (rule, haste, &[1, 2, 4, 8, 10, 10, 10]),
            (rule, calm, &[1, 2, 4, 8, 16, 32, 64]),
            (endless, latest(8), &[1, 2, 4]),
            (endless, Pace { latest: Some(Duration::from_millis(500)), ..PACE }, &[]),
        ] {
            let (mut attempt, mut now) = (Attempt::wanted(), Duration::ZERO);
            for (times, whole) in waits.iter().copied().map(Duration::from_secs).enumerate() {
                attempt.sent();
                assert!(attempt.is_awaited(), "an answer may come at once");
                assert_eq!(attempt.settle(&invalid, now, pace, rule), Follow::Slowly, "{times}");
                assert!(attempt.is_retried_slowly() && !attempt.is_awaited());
                let next = wait_of(attempt);
                assert!(next >= now + whole / 2 && next <= now + whole, "{pace:?} {times}");
                now = next;
            }
            attempt.sent();
            assert_eq!(attempt.settle(&invalid, now, pace, rule), Follow::Refused, "{pace:?}");
            assert!(attempt.is_given_up() && !attempt.may_have_applied());
        }
        let denied = "admission webhook \"a.example.com\" denied the request: no";
        let denied: Outcome<()> = Err(Failure::new(FailureKind::Other, denied));
        let mut attempt = Attempt::wanted();
        attempt.sent();
        assert_eq!(attempt.settle(&denied, Duration::ZERO, haste, rule), Follow::Slowly);
    }

    #[test]
    fn a_refusal_is_contested_as_long_as_the_task_says() {
        let refused: Outcome<()> = Err(Failure::new(FailureKind::Forbidden, "why"));
        let after = |refusal| {
            let mut attempt = Attempt::wanted();
            let settle = |_: &u32| {
                let rule = MARK.refused(refusal);
                attempt.settle(&refused, Duration::ZERO, PACE, rule) == Follow::Refused
            };
            (1..=20).find(settle)
        };
        assert_eq!(after(Refusal::Final), Some(1));
        assert_eq!(after(Refusal::OfPod), Some(2));
        assert_eq!(after(Refusal::UpTo(16)), Some(17));
        assert_eq!(after(Refusal::Passing), None);
    }

    #[test]
    fn conflicts_without_end_are_repeated_after_growing_waits() {
        let mut attempt = Attempt::wanted();
        let changed: Outcome<()> = Err(Failure::new(FailureKind::Conflict, "why"));
        let mut waits = Vec::new();
        for _ in 0..5 {
            attempt.sent();
            let follow = attempt.settle(&changed, Duration::ZERO, PACE, END);
            assert_eq!(follow, Follow::Reread);
            waits.push(matches!(attempt.state, State::Waiting(_)));
        }
        assert_eq!(waits, [false, false, false, true, true]);
        assert!(!attempt.may_have_applied());
    }

    #[test]
    fn what_the_api_refuses_has_not_taken_effect() {
        use FailureKind::{Conflict as Changed, Forbidden, ServerError, TooManyRequests, Unknown};
        let after = |kinds: &[FailureKind]| {
            let mut attempt = Attempt::wanted();
            for kind in kinds {
                attempt.sent();
                assert!(attempt.may_have_applied(), "an answer is awaited");
                let result: Outcome<()> = Err(Failure::new(*kind, "why"));
                attempt.settle(&result, Duration::ZERO, PACE, MARK.refused(Refusal::Passing));
            }
            attempt.may_have_applied()
        };
        assert!(!after(&[TooManyRequests, Forbidden, Changed]));
        assert!(after(&[Unknown, TooManyRequests]));
        assert!(after(&[ServerError]));
        let mut attempt = Attempt::wanted();
        attempt.done();
        assert!(!attempt.may_have_applied(), "another writer has done it");
        attempt.sent();
        attempt.done();
        assert!(attempt.may_have_applied());
    }

    #[test]
    fn a_retry_after_of_the_server_is_honoured_only_where_it_fits() {
        // Retry-After counts only where it fits. ([AP14])
        let mut failure = Failure::new(FailureKind::TooManyRequests, "slow down");
        failure.retry_after = Some(SignedDuration::from_secs(3));
        for (latest, honoured) in [(None, true), (Some(4), true), (Some(3), false)] {
            let mut attempt = Attempt::wanted();
            let pace = Pace { latest: latest.map(Duration::from_secs), ..PACE };
            attempt.failed(Duration::ZERO, pace, Some(&failure));
            assert_eq!(wait_of(attempt) >= Duration::from_secs(3), honoured, "{latest:?}");
        }
    }
}
