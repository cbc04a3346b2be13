//! Limits how often the thread wakes up. Under load a reply or an event arrives every few hundred
//! microseconds, and the kernel's part in waking for each alone costs as much as handling it: a
//! thread that sleeps for up to a millisecond first finds several.

use std::time::{Duration, Instant};

/// Wake-ups a second that are not delayed.
const PER_SECOND: u32 = 1_000;
/// Wake-ups at once that are not delayed: a controller with little to do answers at once.
const BURST: u32 = 16;

/// When the thread may wake up.
#[derive(Debug)]
pub(crate) struct WakeUps {
    /// When the bucket of wake-ups is full again.
    full_at: Instant,
}

impl WakeUps {
    /// A full bucket.
    pub(crate) fn new(now: Instant) -> Self {
        Self { full_at: now }
    }

    /// Takes a wake-up. Returns how long to sleep before the thread waits for events.
    pub(crate) fn take(&mut self, now: Instant) -> Duration {
        let each = Duration::from_secs(1) / PER_SECOND;
        self.full_at = self.full_at.max(now) + each;
        let owed = self.full_at.saturating_duration_since(now);
        owed.saturating_sub(BURST * each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn few_wake_ups_are_not_delayed() {
        let mut now = Instant::now();
        let mut wake_ups = WakeUps::new(now);
        for _ in 0..BURST {
            assert_eq!(wake_ups.take(now), Duration::ZERO);
        }
        for _ in 0..1_000 {
            now += MILLISECOND;
            assert_eq!(wake_ups.take(now), Duration::ZERO);
        }
    }

    #[test]
    fn many_wake_ups_are_a_millisecond_apart() {
        let mut now = Instant::now();
        let begun = now;
        let mut wake_ups = WakeUps::new(now);
        for _ in 0..100 + BURST {
            let sleep = wake_ups.take(now);
            assert!(sleep <= MILLISECOND, "{sleep:?}");
            now += sleep;
        }
        assert_eq!(now - begun, 100 * MILLISECOND);
    }

    #[test]
    fn a_thread_that_was_busy_owes_nothing() {
        let mut now = Instant::now();
        let mut wake_ups = WakeUps::new(now);
        for _ in 0..BURST {
            wake_ups.take(now);
        }
        now += BURST * MILLISECOND;
        assert_eq!(wake_ups.take(now), Duration::ZERO);
    }
}
