//! Reads the clocks together: two of the kernel's, and the API server's as far as it is known.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use agent_core::protocol::event::Now;
use epilogue_runtime::clock;
use jiff::{SignedDuration, Timestamp};
use nix::time::{ClockId, clock_gettime};

/// Reads the clocks. Clones share the offset.
#[derive(Clone, Debug)]
pub struct Clock {
    /// One clock in place of this machine's three: the other two show the time since 1970.
    given: Option<clock::Clock>,
    /// The API server's time minus this machine's, in ms.
    offset_ms: Arc<AtomicI64>,
}

impl Clock {
    /// Clocks whose wall time `offset_ms` corrects; whoever reads the API's `Date` headers updates
    /// it.
    pub fn new(offset_ms: Arc<AtomicI64>) -> Self {
        Self { given: None, offset_ms }
    }

    /// This clock in place of the machine's, for tests.
    pub fn given(clock: clock::Clock) -> Self {
        Self { given: Some(clock), offset_ms: Arc::default() }
    }

    /// The time now by this machine's wall clock.
    pub fn system(&self) -> Timestamp {
        self.given.unwrap_or_default().now()
    }

    /// What the API server's clock shows when this machine's wall clock shows this.
    pub(crate) fn to_api(&self, system: Timestamp) -> Timestamp {
        let offset = SignedDuration::from_millis(self.offset_ms.load(Ordering::Relaxed));
        system.checked_add(offset).unwrap_or(system)
    }

    /// The time now.
    pub fn now(&self) -> Now {
        let system = self.system();
        let since_1970 = self.given.map(|_| system.duration_since(Timestamp::UNIX_EPOCH));
        let read = |clock| since_1970.map_or_else(|| read(clock), SignedDuration::unsigned_abs);
        Now {
            monotonic: read(ClockId::CLOCK_MONOTONIC),
            boot: read(ClockId::CLOCK_BOOTTIME),
            wall: self.to_api(system),
        }
    }
}

fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).expect("Linux must have the clock").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wall_clock_is_the_api_s_and_the_others_go_forward() {
        let offset = Arc::new(AtomicI64::new(0));
        let clock = Clock::new(Arc::clone(&offset));
        let before = clock.now();
        offset.store(3_600_000, Ordering::Relaxed);
        let after = clock.now();
        assert!(after.monotonic >= before.monotonic && after.boot >= before.boot);
        let moved = after.wall.duration_since(before.wall);
        assert!(moved >= SignedDuration::from_hours(1), "{moved}");
        offset.store(i64::MAX, Ordering::Relaxed);
        assert!(clock.now().wall >= before.wall, "an absurd offset must not count");
    }
}
