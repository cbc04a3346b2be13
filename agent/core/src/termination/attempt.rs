//! Tracks one task that needs an acknowledgement, over any number of attempts.

use std::time::Duration;

use epilogue_common::outcome::{Failure, FailureKind};

use super::clock::Clock;

/// First wait; each further failure doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Maximum wait during a shutdown.
pub const WAIT_MAX_HASTE: Duration = Duration::from_secs(1);
/// Maximum wait outside a shutdown.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// Wait before the single retry after a refusal of the pod.
const REFUSED_WAIT: Duration = Duration::from_secs(1);

/// How to handle a refusal (403).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The API may refuse everything for a moment: keep retrying.
    Passing,
    /// The refusal concerns this pod: retry once.
    OfPod,
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
    ever_sent: bool,
    /// Number of refusals that concern the pod.
    refusals: u8,
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

    /// Creates a task that the agent has completed before.
    pub fn done_before() -> Self {
        Self { state: State::Done, ever_sent: true, ..Self::default() }
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
        self.ever_sent = true;
    }

    /// Records that the task is acknowledged.
    pub fn done(&mut self) {
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
        self.failures += 1;
        let doubled = FIRST_WAIT * 2_u32.saturating_pow((self.failures - 1).min(16));
        let wait = scattered(doubled.min(pace.wait_max), pace.salt, self.failures);
        let asked = failure.and_then(|failure| failure.retry_after);
        let asked = asked.and_then(|asked| Duration::try_from(asked).ok());
        let fits = |asked: &Duration| pace.latest.is_none_or(|latest| now + *asked < latest);
        let wait = asked.filter(fits).map_or(wait, |asked| wait.max(asked));
        self.state = State::Waiting(now + wait);
    }

    /// Handles a refusal; returns whether the task is given up.
    pub fn refused(&mut self, now: Duration, pace: Pace, refusal: Refusal) -> bool {
        self.held_back = true;
        if refusal == Refusal::Passing {
            self.failed(now, pace, None);
            return false;
        }
        let at = now + REFUSED_WAIT;
        let fits = pace.latest.is_none_or(|latest| at < latest);
        if self.refusals > 0 || !fits {
            self.give_up();
            return true;
        }
        self.refusals += 1;
        self.failures += 1;
        self.state = State::Waiting(at);
        false
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

    /// Whether a request was ever sent, so that it may have taken effect.
    pub fn was_sent(&self) -> bool {
        self.ever_sent
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

/// How to react to a failed call to the API. ([AP14])
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// 404: nothing is left to do.
    Gone,
    /// 409: the decision used an outdated object.
    ReadAgain,
    /// 422: the API never accepts this write for the pod.
    Skip,
    /// 403: the API refuses this pod, or every pod.
    Refused,
    /// Every other failure is temporary.
    Retry,
}

/// Maps a failed call to the reaction.
pub fn verdict(failure: &Failure) -> Verdict {
    match failure.kind {
        FailureKind::NotFound => Verdict::Gone,
        FailureKind::Conflict => Verdict::ReadAgain,
        FailureKind::Invalid | FailureKind::AlreadyExists | FailureKind::NamespaceTerminating => {
            Verdict::Skip
        }
        FailureKind::Forbidden => Verdict::Refused,
        FailureKind::TooManyRequests
        | FailureKind::ServerError
        | FailureKind::Unknown
        | FailureKind::Other => Verdict::Retry,
    }
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
