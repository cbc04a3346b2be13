//! Applies `epilogue.dev/replace-early`: a pod that is about to end gives up its place while it
//! still runs.

use std::sync::Arc;

use super::IndexSet;
use super::facts::Facts;
use crate::job_pods::{JobPods, Kind};
use crate::view::{Job, Pod, Uid};

/// The active pods that keep their places, and what has no place any more.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Places {
    /// The Job's pods without those that have given up their place.
    pub(super) pods: JobPods,
    /// Indexes that have ended, though a successor may still run for them.
    pub(super) ended: IndexSet,
}

/// Why the option has no effect on this Job: its spec lets no two pods of one place run.
pub(super) fn never(job: &Job) -> Option<&'static str> {
    if job.spec.pod_failure_policy.is_some() {
        Some("a pod of a Job with podFailurePolicy is replaced once it has failed")
    } else if job.replaces_failed_only() {
        Some("podReplacementPolicy is Failed; set TerminatingOrFailed")
    } else if job.spec.backoff_limit_per_index.is_some() {
        Some("backoffLimitPerIndex counts the failure of a pod before its successor")
    } else {
        None
    }
}

impl Places {
    /// The places of a Job. Of one without the option, each active pod keeps its own.
    pub(super) fn of(facts: &Facts) -> Self {
        let mut pods = facts.census.pods.clone();
        if !facts.options.replace_early {
            return Self { pods, ended: IndexSet::default() };
        }
        let ended = facts.indexes.as_ref().map(|indexes| indexes.succeeded.clone());
        let ended = ended.unwrap_or_default();
        // Whoever runs for what has ended is superfluous.
        let has_ended = |pod: &Pod| pod.index.is_some_and(|index| ended.contains(index));
        let completions = facts.job.spec.completions.map(usize::try_from);
        let is_complete = completions.is_some_and(|it| it.is_ok_and(|it| facts.succeeded >= it));
        let announced = pods.of_kind(Kind::Disrupted).filter(|pod| gives_up(pod));
        let announced: Vec<Uid> = announced.filter(|pod| !has_ended(pod)).map(uid).collect();
        for uid in announced.iter().filter(|_| !is_complete) {
            pods.remove(uid);
        }
        Self { pods, ended }
    }

    /// How many active pods have a place.
    pub(super) fn active(&self) -> usize {
        self.pods.counts().active as usize
    }

    /// Whether a pod runs for an index that has ended.
    pub(super) fn has_superfluous(&self) -> bool {
        self.pods.active_indexes().intersection_size(&self.ended) > 0
    }
}

/// Members of a group start and end together.
fn gives_up(pod: &Pod) -> bool {
    pod.is_active() && pod.group.is_none()
}

fn uid(pod: &Arc<Pod>) -> Uid {
    pod.uid.clone()
}
