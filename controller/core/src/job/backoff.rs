//! How long to wait before pods are created after failures. (spec §12)

use jiff::{SignedDuration, Timestamp};

use super::input::{BackoffRecord, Settings};
use crate::view::Pod;

/// The record after these pods finished. Failures before the latest success are forgotten.
///
/// DIVERGES(upstream): `failed` must not hold failures that the podFailurePolicy ignores, so
/// that a disruption costs no time; the reference counts them here. (spec §12.1, §31 E)
///
/// DIVERGES(upstream): a failure in the future is taken for one of now, lest a clock that is
/// behind makes each wait last until it has caught up. (spec §12.2)
pub(super) fn after<'a>(
    record: BackoffRecord,
    succeeded: impl Iterator<Item = &'a Pod>,
    failed: impl Iterator<Item = &'a Pod>,
    now: Timestamp,
) -> BackoffRecord {
    let last_success = succeeded.filter_map(Pod::finished_at).max();
    let base = if last_success.is_some() { BackoffRecord::default() } else { record };
    failed.filter_map(Pod::finished_at).filter(|at| Some(*at) > last_success).fold(
        base,
        |record, at| BackoffRecord {
            failures: record.failures.saturating_add(1),
            last_failure: record.last_failure.max(Some(at.min(now))),
        },
    )
}

/// How long is left to wait; zero when nothing keeps pods from being created. (spec §12.2)
pub(super) fn remaining(
    record: BackoffRecord,
    now: Timestamp,
    settings: &Settings,
) -> SignedDuration {
    let Some(last_failure) = record.last_failure else { return SignedDuration::ZERO };
    let delay = delay(record.failures, settings);
    let elapsed = now.duration_since(last_failure);
    // DIVERGES(upstream): a failure time in the future is a clock that runs ahead, not a reason
    // to wait longer than the whole delay. (spec §12.2)
    delay.saturating_sub(elapsed).clamp(SignedDuration::ZERO, delay)
}

/// The base, doubled for each failure after the first, up to the maximum.
fn delay(failures: u32, settings: &Settings) -> SignedDuration {
    if failures == 0 {
        return SignedDuration::ZERO;
    }
    let base = settings.default_job_pod_failure_backoff;
    let max = settings.max_job_pod_failure_backoff;
    let mut delay = base;
    for _ in 1..failures {
        if delay >= max {
            break;
        }
        delay = delay.checked_mul(2).unwrap_or(max).min(max);
    }
    delay
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_the_maximum() {
        let settings = Settings::default();
        let delays: Vec<i64> = (0..9).map(|n| delay(n, &settings).as_secs()).collect();
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 320, 600, 600]);
    }

    #[test]
    fn a_base_above_the_maximum_is_not_clipped() {
        let settings = Settings {
            default_job_pod_failure_backoff: SignedDuration::from_secs(700),
            ..Settings::default()
        };
        assert_eq!(delay(1, &settings).as_secs(), 700);
        assert_eq!(delay(3, &settings).as_secs(), 700);
    }

    #[test]
    fn a_failure_in_the_future_waits_no_longer_than_the_whole_delay() {
        let now = Timestamp::UNIX_EPOCH;
        let ahead = now.checked_add(SignedDuration::from_hours(1)).expect("in range");
        let record = BackoffRecord { failures: 1, last_failure: Some(ahead) };
        assert_eq!(remaining(record, now, &Settings::default()).as_secs(), 10);
    }
}
