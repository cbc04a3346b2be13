//! Decides how long to wait for the runtime's answer to a stop, beyond the grace.
//!
//! The agent has to give up a runtime that hangs, to have time for the rest of a shutdown. A slow
//! runtime kills only while a caller waits for its answer. So the first wait is short and each
//! further one doubles, until the slow runtime completes the stop.

use std::time::Duration;

/// First wait in a shutdown.
const IN_HASTE: Duration = Duration::from_secs(2);
/// First wait if the stop of one pod delays nothing else.
const AT_EASE: Duration = Duration::from_secs(8);
/// Maximum wait; a slower runtime counts as hanging.
const LONGEST: Duration = Duration::from_secs(30);

/// Wait for the next attempt after this number of failures.
pub fn after(failures: u32, in_shutdown: bool) -> Duration {
    let first = if in_shutdown { IN_HASTE } else { AT_EASE };
    first.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_slow_gets_more_time_each_time() {
        let seconds = |failures| after(failures, false).as_secs();
        assert_eq!([0, 1, 2, 3, 40].map(seconds), [8, 16, 30, 30, 30]);
        assert_eq!(after(0, true), IN_HASTE);
    }
}
