//! Computes how long failures delay new pods, of the Job or of each index, and which indexes have
//! failed for good.

use std::collections::HashMap;
use std::sync::Arc;

use epilogue_common::names::pod_condition::PENDING_TIMEOUT;
use jiff::{SignedDuration, Timestamp};

use super::census::Census;
use super::input::{BackoffRecord, Settings};
use super::policies::FailureAction;
use super::{IndexSet, census};
use crate::view::{FailureCounts, Job, Pod};

/// The number of failures of each slot, in each hour, of which ignored disruptions cost no time.
pub(super) const FREE_DISRUPTIONS: u32 = 6;
const FREE_EACH: SignedDuration = SignedDuration::from_hours(1);

/// What decides which failures cost time, next to the Job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms<'a> {
    /// How many pods the Job may have at once, and has.
    pub slots: u32,
    pub now: Timestamp,
    pub settings: &'a Settings,
}

/// How many pods the Job may have at once, of as many as it has. A tenant may ask for two billion.
pub(super) fn slots(job: &Job, pods: usize) -> u32 {
    let wanted = job.spec.parallelism.min(job.spec.completions.unwrap_or(i32::MAX));
    let pods = u32::try_from(pods).unwrap_or(u32::MAX);
    u32::try_from(wanted).unwrap_or(0).min(pods).max(1)
}

/// The record after these pods finished. Failures before the latest success are forgotten.
///
/// DIVERGES(upstream): disruptions that the podFailurePolicy ignores cost no time, as long as they
/// are among the first six failures of each slot in an hour, or their pods lived as long as the
/// longest delay. Upstream lets each raise the delay. All other failures that the policy ignores
/// raise it here too. Otherwise a container that fails at once would make a pod every second for
/// ever. ([D1])
///
/// DIVERGES(upstream): a failure in the future counts as one of now. Otherwise a clock that is
/// behind would make each wait last until it has caught up. ([D2])
pub(super) fn after<'a>(
    job: &Job,
    record: BackoffRecord,
    terms: &Terms<'_>,
    succeeded: impl Iterator<Item = &'a Pod>,
    failed: impl Iterator<Item = &'a Pod>,
) -> BackoffRecord {
    let last_success = succeeded.filter_map(Pod::finished_at).max();
    let base = match last_success {
        Some(_) => BackoffRecord { failures: 0, last_failure: None, ..record },
        None => record,
    };
    let ended = |pod: &'a Pod| Some((pod.finished_at()?, Cause::of(job, pod, terms.settings)));
    let mut failed: Vec<_> =
        failed.filter_map(ended).filter(|(at, _)| Some(*at) > last_success).collect();
    failed.sort_unstable();
    failed.into_iter().fold(base, |mut record, (at, cause)| {
        let at = at.min(terms.now);
        let is_free = match cause {
            Cause::Failure => false,
            Cause::Disruption => record.takes_free(at, terms.slots),
            Cause::LateDisruption => true,
        };
        if !is_free {
            record.failures = record.failures.saturating_add(1);
            record.last_failure = record.last_failure.max(Some(at));
        }
        record
    })
}

/// Why a pod failed, as far as backoff asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// Anything but an ignored disruption. A pod that did not start in time is one, whatever its
    /// other conditions: its Job says how soon that is.
    Failure,
    /// An ignored disruption.
    Disruption,
    /// The same of a pod that had lived as long as the longest delay.
    LateDisruption,
}

impl Cause {
    fn of(job: &Job, pod: &Pod, settings: &Settings) -> Self {
        if !census::is_ignored_disruption(job, pod) || pod.has_condition(PENDING_TIMEOUT) {
            Self::Failure
        } else if lifetime(pod) < settings.max_delay() {
            Self::Disruption
        } else {
            Self::LateDisruption
        }
    }
}

impl BackoffRecord {
    /// Whether a disruption costs no time; if so, one free disruption less is left.
    fn takes_free(&mut self, at: Timestamp, slots: u32) -> bool {
        if self.free_since.is_none_or(|since| at.duration_since(since) >= FREE_EACH) {
            (self.free_since, self.free_taken) = (Some(at), 0);
        }
        let failures = self.free_taken.saturating_add(self.failures);
        let is_left = failures < FREE_DISRUPTIONS.saturating_mul(slots);
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
    let Some(doublings) = failures.checked_sub(1) else { return SignedDuration::ZERO };
    let base = settings.default_job_pod_failure_backoff;
    let max = settings.max_job_pod_failure_backoff;
    // More doublings than bits: only a base of zero then stays below the maximum.
    let doublings = doublings.min(i128::BITS - 1);
    if base <= max && base.as_nanos() <= max.as_nanos() >> doublings {
        SignedDuration::from_nanos_i128(base.as_nanos() << doublings)
    } else {
        max.max(base)
    }
}

// Applies `spec.backoffLimitPerIndex`: finds failed indexes, and failed pods that wait for their
// replacement. ([I9], [I10])

/// The state of the indexes of a Job with `backoffLimitPerIndex`.
#[derive(Clone, Debug, PartialEq)]
pub struct PerIndex {
    /// Indexes that failed for good.
    pub failed: IndexSet,
    /// The failed pod of each index that still needs a replacement. It keeps its finalizer until
    /// then, and with it the count of failures. ([I10])
    pub delayed: HashMap<u32, Arc<Pod>>,
}

impl PerIndex {
    /// `status.failedIndexes` as stored; empty for a Job without the field.
    pub(super) fn stored(job: &Job) -> IndexSet {
        let text = job.status.failed_indexes.as_deref().unwrap_or_default();
        match job.spec.backoff_limit_per_index {
            Some(_) => IndexSet::parse(text, job.index_bound()),
            None => IndexSet::default(),
        }
    }

    /// Reads the pods; `None` for a Job without the field.
    pub(super) fn read(
        job: &Job,
        census: &Census,
        succeeded: &IndexSet,
        stored: &IndexSet,
    ) -> Option<Self> {
        let limit = u32::try_from(job.spec.backoff_limit_per_index?).unwrap_or(0);
        let bound = job.index_bound();
        let candidates: Vec<(u32, &Arc<Pod>)> = census
            .ended
            .iter()
            .filter(|pod| census::is_failed(job, pod))
            .filter_map(|pod| Some((pod.index.filter(|index| *index < bound)?, pod)))
            .collect();
        let newly_failed = candidates
            .iter()
            .filter(|(index, pod)| !succeeded.contains(*index) && fails_index(job, pod, limit))
            .map(|(index, _)| *index);
        let failed = stored.union(&IndexSet::collect(newly_failed));
        let delayed = delayed(&candidates, census, succeeded, &failed);
        Some(Self { failed, delayed })
    }

    /// The failures that the next pod of this index starts with. ([I8])
    pub fn failures(&self, job: &Job, index: u32) -> FailureCounts {
        self.delayed.get(&index).map_or_else(FailureCounts::default, |pod| with_own(job, pod))
    }

    /// How long the next pod of this index has to wait. ([D4])
    ///
    /// DIVERGES(upstream): an ignored disruption neither raises the delay nor causes one, if it is
    /// among the first six failures of its index or its pod lived as long as the longest delay. Nor
    /// do earlier ignored failures raise the delay of a counted one, but for those beyond six
    /// failures. Upstream adds all of them.
    pub(super) fn backoff(
        &self,
        job: &Job,
        index: u32,
        now: Timestamp,
        settings: &Settings,
    ) -> SignedDuration {
        let Some(pod) = self.delayed.get(&index) else { return SignedDuration::ZERO };
        let FailureCounts { counted, .. } = pod.failures;
        let failures = pod.failures.total().saturating_add(1);
        let beyond_free = failures.saturating_sub(FREE_DISRUPTIONS);
        let failures = match Cause::of(job, pod, settings) {
            Cause::LateDisruption => return SignedDuration::ZERO,
            Cause::Disruption => beyond_free,
            Cause::Failure if census::counts_as_failure(job, pod) => {
                counted.saturating_add(1).max(beyond_free)
            }
            Cause::Failure => failures,
        };
        let last_failure = pod.finished_at();
        remaining(
            BackoffRecord { failures, last_failure, ..BackoffRecord::default() },
            now,
            settings,
        )
    }

    /// Whether this pod waits for its replacement.
    pub fn delays(&self, pod: &Pod) -> bool {
        let held = pod.index.and_then(|index| self.delayed.get(&index));
        held.is_some_and(|held| held.uid == pod.uid)
    }
}

/// The failures of an index up to this failed pod.
pub(super) fn with_own(job: &Job, pod: &Pod) -> FailureCounts {
    let FailureCounts { counted, ignored } = pod.failures;
    if census::counts_as_failure(job, pod) {
        FailureCounts { counted: counted.saturating_add(1), ignored }
    } else {
        FailureCounts { counted, ignored: ignored.saturating_add(1) }
    }
}

/// The time from the pod's creation to its end.
fn lifetime(pod: &Pod) -> SignedDuration {
    let times = pod.created.zip(pod.finished_at());
    times.map_or(SignedDuration::ZERO, |(created, ended)| ended.duration_since(created))
}

/// FailIndex fails the index, and so does a counted failure at the limit. ([I9])
fn fails_index(job: &Job, pod: &Pod, limit: u32) -> bool {
    match census::failure_action(job, pod) {
        Some(FailureAction::FailIndex) => true,
        Some(FailureAction::Ignore) => false,
        _ => pod.failures.counted >= limit,
    }
}

/// Holds one failed pod of each index: the one with the most failures, on ties the latest end.
/// ([I10])
///
/// DIVERGES(upstream): upstream also requires that the pod with the most failures finished last.
/// Under skewed clocks the order of its pod list then decides.
fn delayed(
    candidates: &[(u32, &Arc<Pod>)],
    census: &Census,
    succeeded: &IndexSet,
    failed: &IndexSet,
) -> HashMap<u32, Arc<Pod>> {
    let mut delayed: HashMap<u32, Arc<Pod>> = HashMap::new();
    for &(index, pod) in candidates {
        let is_active = census.pods.has_active(index);
        if is_active || succeeded.contains(index) || failed.contains(index) {
            continue;
        }
        let rank = |pod: &Pod| (pod.failures.total(), pod.finished_at());
        let held = delayed.entry(index).or_insert_with(|| Arc::clone(pod));
        if rank(pod) > rank(held) {
            *held = Arc::clone(pod);
        }
    }
    delayed
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

    /// A tenant may write the count into an annotation.
    #[test]
    fn a_delay_of_any_count_of_failures_is_found_at_once() {
        let of = |base, max| Settings {
            default_job_pod_failure_backoff: base,
            max_job_pod_failure_backoff: max,
            ..Settings::default()
        };
        let (zero, longest) = (SignedDuration::ZERO, SignedDuration::MAX);
        let nano = SignedDuration::from_nanos(1);
        for (base, max, counts) in [
            (zero, SignedDuration::from_mins(10), [(1, zero), (2, zero), (u32::MAX, zero)]),
            (zero, zero, [(1, zero), (2, zero), (u32::MAX, zero)]),
            (nano, longest, [(1, nano), (3, nano * 4), (u32::MAX, longest)]),
            (longest, longest, [(1, longest), (2, longest), (u32::MAX, longest)]),
        ] {
            for (failures, expected) in counts {
                let found = delay(failures, &of(base, max));
                assert_eq!(found, expected, "{failures} failures from {base:?} up to {max:?}");
            }
        }
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
