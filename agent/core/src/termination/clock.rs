//! Holds the clocks of the current decision, and the time of the next one.

use std::cell::Cell;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::protocol::event::Now;

/// Compares every deadline with the time. A deadline that is not reached becomes the next wake-up,
/// so that none is lost. ([AP10])
#[derive(Clone, Debug)]
pub struct Clock {
    now: Now,
    wake: Cell<Option<Duration>>,
}

impl Clock {
    /// Creates a clock at a moment.
    pub fn new(now: Now) -> Self {
        Self { now, wake: Cell::new(None) }
    }

    /// Advances to a moment and forgets the deadlines; the next decision collects them again.
    pub fn set(&mut self, now: Now) {
        self.now = now;
        self.wake.set(None);
    }

    /// The current moment.
    pub fn now(&self) -> Now {
        self.now
    }

    /// CLOCK_MONOTONIC.
    pub fn monotonic(&self) -> Duration {
        self.now.monotonic
    }

    /// What the wall clock shows at a moment of CLOCK_MONOTONIC.
    pub fn wall_at(&self, at: Duration) -> Timestamp {
        let Now { monotonic, wall, .. } = self.now;
        let later = SignedDuration::try_from(at.saturating_sub(monotonic)).ok();
        let earlier = SignedDuration::try_from(monotonic.saturating_sub(at)).unwrap_or_default();
        let later = later.and_then(|later| wall.checked_add(later).ok());
        let at = later.unwrap_or(Timestamp::MAX);
        at.checked_sub(earlier).unwrap_or(Timestamp::MIN)
    }

    /// Whether a time on CLOCK_MONOTONIC is reached; if not, the agent wakes at that time.
    pub fn reached(&self, at: Duration) -> bool {
        if self.now.monotonic >= at {
            return true;
        }
        let earliest = self.wake.get().map_or(at, |other| other.min(at));
        self.wake.set(Some(earliest));
        false
    }

    /// The earliest requested time that is not reached.
    pub fn wake(&self) -> Option<Duration> {
        self.wake.get()
    }
}
