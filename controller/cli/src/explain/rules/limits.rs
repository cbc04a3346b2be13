//! Says how much of each limit of a Job is used up.

use controller_core::job::PodPlan;
use controller_core::job_pods::Kind;
use controller_core::view::Job;
use epilogue_common::names::job_option::{DISRUPTION_LIMIT, PENDING_TIMEOUT};
use serde::Serialize;

/// A limit of the Job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Usage {
    /// The field of the spec, or the annotation.
    pub(crate) field: &'static str,
    /// How much is used up, in the unit of the limit: the most of any pod for
    /// `epilogue.dev/pending-timeout`, the most of any index for `backoffLimitPerIndex`.
    pub(crate) used: i64,
    /// The limit.
    pub(crate) limit: i64,
}

/// The limits of a Job that this controller does not sync, as far as its status counts.
pub(super) fn counted_limits(job: &Job) -> Vec<Usage> {
    let counted = |count: Option<i32>| i64::from(count.unwrap_or(0));
    pod_limits(job, counted(job.status.succeeded), counted(job.status.failed))
}

fn pod_limits(job: &Job, succeeded: i64, failed: i64) -> Vec<Usage> {
    let mut limits = Vec::new();
    if let Some(completions) = job.spec.completions {
        limits.push(Usage { field: "completions", used: succeeded, limit: i64::from(completions) });
    }
    let limit = i64::from(job.spec.backoff_limit);
    if limit < i64::from(i32::MAX) {
        limits.push(Usage { field: "backoffLimit", used: failed, limit });
    }
    limits
}

/// The limits of a Job that is synced, as its pods count.
pub(super) fn limits(job: &Job, plan: &PodPlan) -> Vec<Usage> {
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let mut limits =
        pod_limits(job, number(plan.facts.succeeded), number(plan.facts.census.failed(job)));
    if let (Some(disruptions), Some(limit)) =
        (&plan.facts.disruptions, plan.facts.options.disruption_limit)
    {
        let (used, limit) = (i64::from(disruptions.ignored), i64::from(limit));
        limits.push(Usage { field: DISRUPTION_LIMIT, used, limit });
    }
    if let Some(timeout) = plan.facts.options.pending_timeout {
        let pending = plan.facts.census.pods.of_kind(Kind::Pending);
        let longest = pending.filter_map(|pod| pod.created).min();
        let used = longest.map_or(0, |since| plan.facts.now.duration_since(since).as_secs());
        limits.push(Usage { field: PENDING_TIMEOUT, used, limit: timeout.as_secs() });
    }
    let per_index = plan.facts.indexes.as_ref().and_then(|indexes| indexes.per_index.as_ref());
    if let (Some(_), Some(limit)) = (per_index, job.spec.backoff_limit_per_index) {
        let counted = plan.facts.census.pods.iter().map(|pod| i64::from(pod.failures.counted));
        let (used, limit) = (counted.max().unwrap_or(0), i64::from(limit));
        limits.push(Usage { field: "backoffLimitPerIndex", used, limit });
    }
    if let (Some(per_index), Some(limit)) = (per_index, job.spec.max_failed_indexes) {
        let (used, limit) = (i64::from(per_index.failed.len()), i64::from(limit));
        limits.push(Usage { field: "maxFailedIndexes", used, limit });
    }
    if let (Some(start), Some(limit)) = (job.start_time(), job.spec.active_deadline_seconds) {
        let used = plan.facts.now.duration_since(start).as_secs();
        limits.push(Usage { field: "activeDeadlineSeconds", used, limit });
    }
    limits
}
