//! One thing that is to be acknowledged, over any number of attempts.

use std::time::Duration;

use epilogue_common::outcome::{Failure, FailureKind};

use super::clock::Clock;

/// The first wait; doubled by each further failure.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait while a shutdown's time runs.
pub const WAIT_MAX_HASTE: Duration = Duration::from_secs(1);
/// The longest wait when nothing presses.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// The wait before the one further attempt that a refused pod gets.
const REFUSED_WAIT: Duration = Duration::from_secs(1);

/// How a refusal (403) is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The API may refuse everything for a moment: it is tried on.
    Passing,
    /// It concerns this pod: it is tried once more.
    OfPod,
}

/// How far one thing has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It is not to be done.
    #[default]
    Unwanted,
    /// It is to be done now.
    Due,
    /// It was sent; its result is to come.
    InFlight,
    /// It failed, and is to be tried again from then on.
    Waiting(Duration),
    /// It is acknowledged.
    Done,
    /// It cannot be done.
    GivenUp,
}

/// One thing that is to be acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    state: State,
    failures: u32,
    ever_sent: bool,
    /// Refusals that concern the pod.
    refusals: u8,
    /// The last answer was a refusal.
    held_back: bool,
}

/// How a failed attempt is followed.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The longest wait.
    pub wait_max: Duration,
    /// After this, on CLOCK_MONOTONIC, an attempt is worth nothing.
    pub latest: Option<Duration>,
    /// Makes different things wait differently.
    pub salt: u64,
}

impl Attempt {
    /// Something that is to be done.
    pub fn wanted() -> Self {
        Self { state: State::Due, ..Self::default() }
    }

    /// Something that others have done already.
    pub fn done_by_others() -> Self {
        Self { state: State::Done, ..Self::default() }
    }

    /// Something that we have done before.
    pub fn done_before() -> Self {
        Self { state: State::Done, ever_sent: true, ..Self::default() }
    }

    /// Asks for it, unless it was asked for before.
    pub fn want(&mut self) {
        if self.state == State::Unwanted {
            self.state = State::Due;
        }
    }

    /// Asks for it once more, whatever became of it; not while it is under way.
    pub fn want_again(&mut self) {
        if self.state != State::InFlight {
            self.state = State::Due;
        }
    }

    /// It met a change: to be sent again at once, when what changed is known.
    pub fn met_change(&mut self) {
        self.failures += 1;
        self.state = State::Due;
    }

    /// Nobody needs it any more.
    pub fn drop_it(&mut self) {
        if !matches!(self.state, State::Done | State::InFlight) {
            self.state = State::Unwanted;
        }
    }

    /// It was sent.
    pub fn sent(&mut self) {
        self.state = State::InFlight;
        self.ever_sent = true;
    }

    /// It is acknowledged.
    pub fn done(&mut self) {
        self.state = State::Done;
    }

    /// It cannot be done.
    pub fn give_up(&mut self) {
        self.state = State::GivenUp;
    }

    /// It failed and is tried again after a wait that grows and that differs from thing to thing.
    ///
    /// What the server asked for is honoured where it fits: a later attempt than the last useful
    /// one would be none. ([AP14])
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

    /// It was refused; answers whether it is given up.
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

    /// Whether it is still to be done, and was refused last: what others do need not wait for it.
    pub fn is_held_back(&self) -> bool {
        self.is_open() && self.held_back
    }

    /// Whether it is to be sent now; if it waits, the clock is set.
    pub fn is_due(&self, clock: &Clock) -> bool {
        match self.state {
            State::Due => true,
            State::Waiting(until) => clock.reached(until),
            _ => false,
        }
    }

    /// Whether its result is to come.
    pub fn is_in_flight(&self) -> bool {
        self.state == State::InFlight
    }

    /// Whether it is acknowledged.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether it cannot be done.
    pub fn is_given_up(&self) -> bool {
        self.state == State::GivenUp
    }

    /// Whether it is to be done and neither acknowledged nor given up.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Due | State::InFlight | State::Waiting(_))
    }

    /// Whether it was ever asked for.
    pub fn is_wanted(&self) -> bool {
        self.state != State::Unwanted
    }

    /// How often it failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Whether it was ever sent, and thus may have happened.
    pub fn was_sent(&self) -> bool {
        self.ever_sent
    }
}

/// Between a half and the whole of a wait; the same for the same thing, so that a run can be
/// repeated.
fn scattered(wait: Duration, salt: u64, failures: u32) -> Duration {
    let mut mixed = salt ^ u64::from(failures).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let part = u32::try_from((mixed ^ (mixed >> 31)) % 512).unwrap_or(0);
    wait * (512 + part) / 1_024
}

/// A number of a text, for `Pace::salt`.
pub fn salt(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What a failed call to the API asks for. ([AP14])
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// 404: there is nothing to do any more.
    Gone,
    /// 409: what was decided on is out of date.
    ReadAgain,
    /// 422: this pod is not to be had this way.
    Skip,
    /// 403: this pod is not, or no pod is.
    Refused,
    /// Anything else passes.
    Retry,
}

/// What a failed call to the API asks for.
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
    fn a_wish_of_the_server_is_honoured_only_where_it_fits() {
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
