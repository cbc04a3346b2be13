//! How long the runtime's answer to a stop is waited for beyond the grace.
//!
//! A runtime that hangs has to be given up for what else can be done in a shutdown's time; one that
//! is slow kills only while somebody waits for its answer. So the first wait is short, and each
//! further one is twice as long: a slow runtime is met in the end.

use std::time::Duration;

use super::attempt::Attempt;

/// In a shutdown.
const IN_HASTE: Duration = Duration::from_secs(2);
/// Where the stop of one pod holds up nothing else.
const AT_EASE: Duration = Duration::from_secs(8);
/// After that a runtime hangs.
const LONGEST: Duration = Duration::from_secs(30);

/// For the next of these attempts, while a shutdown's time runs.
pub fn in_haste(attempt: &Attempt) -> Duration {
    after(IN_HASTE, attempt.failures())
}

/// For the next one after so many that failed, when nothing presses.
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
