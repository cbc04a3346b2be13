//! The wall clock, which tests replace by one that goes with tokio's time.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock(Option<Beginning>);

/// When a clock of tokio's time began, by both times.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    wall: Timestamp,
    tokio: Instant,
}

impl Clock {
    /// The clock of this machine.
    pub const MACHINE: Self = Self(None);

    /// A clock that shows `start` now, and goes with tokio's time, also where that is paused.
    pub fn of_tokio(start: Timestamp) -> Self {
        Self(Some(Beginning { wall: start, tokio: Instant::now() }))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        let Some(Beginning { wall, tokio }) = self.0 else { return Timestamp::now() };
        let elapsed = SignedDuration::try_from(tokio.elapsed()).unwrap_or(SignedDuration::MAX);
        wall.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_of_tokio_goes_with_paused_time_and_the_machine_s_does_not() {
        let start = Timestamp::from_second(1_000).expect("must be a time");
        let (clock, machine) = (Clock::of_tokio(start), Clock::MACHINE.now());
        tokio::time::sleep(Duration::from_hours(24)).await;
        assert_eq!(clock.now().as_second(), 1_000 + 24 * 3_600);
        let went = Clock::default().now().duration_since(machine);
        assert!(went < SignedDuration::from_hours(1), "{went}");
    }
}
