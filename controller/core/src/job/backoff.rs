//! Computes how long to wait before pods are created after failures.

use jiff::{SignedDuration, Timestamp};

use super::census;
use super::memory::BackoffRecord;
use super::sync_input::Settings;
use crate::view::{Job, Pod};

/// The number of ignored disruptions that cost no time, of each slot and in each hour.
pub(super) const FREE_DISRUPTIONS: u32 = 6;
const FREE_EACH: SignedDuration = SignedDuration::from_hours(1);

/// The record after these pods finished. Failures before the latest success are forgotten.
///
/// DIVERGES(upstream): disruptions that the podFailurePolicy ignores cost no time, six for each pod
/// of `spec.parallelism` in an hour. Upstream lets each raise the delay. All other failures that
/// the policy ignores raise it here too. Otherwise a container that fails at once would make a pod
/// every second for ever. ([D1])
///
/// DIVERGES(upstream): a failure in the future counts as one of now. Otherwise a clock that is
/// behind would make each wait last until it has caught up. ([D2])
pub(super) fn after<'a>(
    job: &Job,
    record: BackoffRecord,
    succeeded: impl Iterator<Item = &'a Pod>,
    failed: impl Iterator<Item = &'a Pod>,
    now: Timestamp,
) -> BackoffRecord {
    let last_success = succeeded.filter_map(Pod::finished_at).max();
    let base = match last_success {
        Some(_) => BackoffRecord { failures: 0, last_failure: None, ..record },
        None => record,
    };
    let slots = u32::try_from(job.spec.parallelism).unwrap_or(0).max(1);
    let ended = |pod: &'a Pod| Some((pod.finished_at()?, census::is_ignored_disruption(job, pod)));
    let mut failed: Vec<_> =
        failed.filter_map(ended).filter(|(at, _)| Some(*at) > last_success).collect();
    failed.sort_unstable();
    failed.into_iter().fold(base, |mut record, (at, is_disruption)| {
        let at = at.min(now);
        if !is_disruption || !record.takes_free(at, slots) {
            record.failures = record.failures.saturating_add(1);
            record.last_failure = record.last_failure.max(Some(at));
        }
        record
    })
}

impl BackoffRecord {
    /// Whether a disruption costs no time; if so, one free disruption less is left.
    fn takes_free(&mut self, at: Timestamp, slots: u32) -> bool {
        if self.free_since.is_none_or(|since| at.duration_since(since) >= FREE_EACH) {
            (self.free_since, self.free_taken) = (Some(at), 0);
        }
        let is_left = self.free_taken < FREE_DISRUPTIONS.saturating_mul(slots);
        self.free_taken += u32::from(is_left);
        is_left
    }
}

/// How long creation still has to wait; zero if it need not. ([D2])
pub(super) fn remaining(
    record: BackoffRecord,
    now: Timestamp,
    settings: &Settings,
) -> SignedDuration {
    let Some(last_failure) = record.last_failure else { return SignedDuration::ZERO };
    let delay = delay(record.failures, settings);
    let elapsed = now.duration_since(last_failure);
    // DIVERGES(upstream): a failure time in the future comes from a clock that runs ahead. It is
    // not a reason to wait longer than the whole delay. ([D2])
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
        let record =
            BackoffRecord { failures: 1, last_failure: Some(ahead), ..BackoffRecord::default() };
        assert_eq!(remaining(record, now, &Settings::default()).as_secs(), 10);
    }
}
