//! Computes what metrics count of a sync.

use k8s_openapi::api::batch::v1::JobStatus;

use super::IndexSet;
use super::census;
use super::facts::Facts;
use super::steps::MetricEvent;
use crate::view::Job;

/// The growth of the status counters. ([M4], [M8])
pub(super) fn finished(job: &Job, old: &JobStatus, new: &JobStatus) -> Option<MetricEvent> {
    let gain = |of: &dyn Fn(&JobStatus) -> u32| of(new).saturating_sub(of(old));
    let indexes = |text: Option<&String>| {
        IndexSet::parse(text.map_or("", String::as_str), job.index_bound()).len()
    };
    let number = |value: Option<i32>| u32::try_from(census::counter(value)).unwrap_or(u32::MAX);
    let succeeded = if job.is_indexed() {
        gain(&|status| indexes(status.completed_indexes.as_ref()))
    } else {
        gain(&|status| number(status.succeeded))
    };
    let failed = gain(&|status| number(status.failed));
    let failed_indexes = job
        .spec
        .backoff_limit_per_index
        .map(|_| gain(&|status| indexes(status.failed_indexes.as_ref())));
    let any = succeeded > 0 || failed > 0 || failed_indexes.is_some_and(|indexes| indexes > 0);
    any.then_some(MetricEvent::PodsFinished { succeeded, failed, failed_indexes })
}

/// The pods that a sync created, and why. ([M9])
///
/// DIVERGES(upstream): a failed creation counts as failed only; upstream counts it as succeeded
/// too. ([M9])
pub(super) fn created(facts: &Facts, succeeded: usize, failed: usize) -> MetricEvent {
    let any_failed = facts.census.failed(&facts.job) > 0;
    let reason = if facts.job.replaces_failed_only() && any_failed {
        "recreate_failed"
    } else if any_failed || !facts.census.terminating.is_empty() {
        "recreate_terminating_or_failed"
    } else {
        "new"
    };
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    MetricEvent::PodsCreated { reason, succeeded: number(succeeded), failed: number(failed) }
}
