//! Applies `spec.backoffLimitPerIndex`: finds failed indexes, and failed pods that wait for their
//! replacement. ([I9], [I10])

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::IndexSet;
use super::backoff::{self, FREE_DISRUPTIONS};
use super::census::{self, Census};
use super::failure_policy::FailureAction;
use super::memory::BackoffRecord;
use super::sync_input::Settings;
use crate::view::{FailureCounts, Job, Pod};

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
            .tracked
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
        let Some(pod) = self.delayed.get(&index) else { return FailureCounts::default() };
        let FailureCounts { counted, ignored } = pod.failures;
        if census::counts_as_failure(job, pod) {
            FailureCounts { counted: counted.saturating_add(1), ignored }
        } else {
            FailureCounts { counted, ignored: ignored.saturating_add(1) }
        }
    }

    /// How long the next pod of this index has to wait. ([D4])
    ///
    /// DIVERGES(upstream): the first six ignored disruptions of an index neither raise the delay
    /// nor cause one. After those, the disruption of a pod that lived longer than the longest delay
    /// causes none. Nor do earlier ignored failures raise the delay of a counted one. Upstream adds
    /// all of them.
    pub(super) fn backoff(
        &self,
        job: &Job,
        index: u32,
        now: Timestamp,
        settings: &Settings,
    ) -> SignedDuration {
        let Some(pod) = self.delayed.get(&index) else { return SignedDuration::ZERO };
        let FailureCounts { counted, ignored } = pod.failures;
        let before = if census::counts_as_failure(job, pod) {
            counted
        } else if !census::is_ignored_disruption(job, pod) {
            counted.saturating_add(ignored)
        } else if ignored < FREE_DISRUPTIONS || lifetime(pod) >= settings.max_delay() {
            return SignedDuration::ZERO;
        } else {
            counted.saturating_add(ignored - FREE_DISRUPTIONS)
        };
        let record = BackoffRecord {
            failures: before.saturating_add(1),
            last_failure: pod.finished_at(),
            ..BackoffRecord::default()
        };
        backoff::remaining(record, now, settings)
    }

    /// Whether this pod waits for its replacement.
    pub(super) fn delays(&self, pod: &Pod) -> bool {
        let held = pod.index.and_then(|index| self.delayed.get(&index));
        held.is_some_and(|held| held.uid == pod.uid)
    }
}

/// The time from the pod's creation to its end.
fn lifetime(pod: &Pod) -> SignedDuration {
    let times = pod.created.zip(pod.finished_at());
    times.map_or(SignedDuration::ZERO, |(created, ended)| ended.duration_since(created))
}

/// FailIndex fails the index, and so does a counted failure at the limit. ([I9])
fn fails_index(job: &Job, pod: &Pod, limit: u32) -> bool {
    match census::action(job, pod) {
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
    let active: HashSet<u32> = census.active.iter().filter_map(|pod| pod.index).collect();
    let mut delayed: HashMap<u32, Arc<Pod>> = HashMap::new();
    for &(index, pod) in candidates {
        if succeeded.contains(index) || failed.contains(index) || active.contains(&index) {
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
