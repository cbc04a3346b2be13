//! Decides how long to wait for the runtime's answer to a stop, beyond the grace.
//!
//! The agent has to give up a runtime that hangs, to have time for the rest of a shutdown. A slow
//! runtime kills only while a caller waits for its answer. So the first wait is short and each
//! further one doubles, until the slow runtime completes the stop.

use std::time::Duration;

use super::attempt::Attempt;

/// First wait in a shutdown.
const IN_HASTE: Duration = Duration::from_secs(2);
/// First wait if the stop of one pod delays nothing else.
const AT_EASE: Duration = Duration::from_secs(8);
/// Maximum wait; a slower runtime counts as hanging.
const LONGEST: Duration = Duration::from_secs(30);

/// Wait for the next attempt, during a shutdown.
pub fn in_haste(attempt: &Attempt) -> Duration {
    after(IN_HASTE, attempt.failures())
}

/// Wait for the next attempt after this number of failures, outside a shutdown.
pub fn at_ease(failures: u32) -> Duration {
    after(AT_EASE, failures)
}

fn after(first: Duration, failures: u32) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_slow_gets_more_time_each_time() {
        let seconds = |failures| at_ease(failures).as_secs();
        assert_eq!([0, 1, 2, 3, 40].map(seconds), [8, 16, 30, 30, 30]);
        assert_eq!(in_haste(&Attempt::wanted()), IN_HASTE);
    }
}
