//! The clocks of the moment that is being decided about, and when to decide next.

use std::cell::Cell;
use std::time::Duration;

use crate::protocol::event::Now;

/// Every comparison with the time goes through here: what is not reached yet becomes the next
/// deadline, so none can be forgotten. ([AP10])
#[derive(Clone, Debug)]
pub struct Clock {
    now: Now,
    wake: Cell<Option<Duration>>,
}

impl Clock {
    /// The clock at a moment.
    pub fn new(now: Now) -> Self {
        Self { now, wake: Cell::new(None) }
    }

    /// Goes on to a moment; forgets the deadlines, which are collected anew.
    pub fn set(&mut self, now: Now) {
        self.now = now;
        self.wake.set(None);
    }

    /// The moment.
    pub fn now(&self) -> Now {
        self.now
    }

    /// CLOCK_MONOTONIC.
    pub fn monotonic(&self) -> Duration {
        self.now.monotonic
    }

    /// Whether a time on CLOCK_MONOTONIC is reached; if not, the agent is woken at it.
    pub fn reached(&self, at: Duration) -> bool {
        if self.now.monotonic >= at {
            return true;
        }
        let earliest = self.wake.get().map_or(at, |other| other.min(at));
        self.wake.set(Some(earliest));
        false
    }

    /// The earliest time that was asked for and not reached.
    pub fn wake(&self) -> Option<Duration> {
        self.wake.get()
    }
}
