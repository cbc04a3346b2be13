//! Applies `epilogue.dev/replace-early`: a pod that is about to end gives up its place while it
//! still runs, from the notice of its node's end on, or else from its mark on.

use std::sync::Arc;

use epilogue_common::names::job_option::REPLACE_EARLY;

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

/// Whether a Job has its pods replaced while they are about to end.
pub fn replaces_early(job: &Job) -> bool {
    let asks = job.annotations.get(REPLACE_EARLY).is_some_and(|text| text.parse() == Ok(true));
    asks && never(job).is_none()
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
        let gives_up = |pod: &&Arc<Pod>| gives_up(pod) && !has_ended(pod);
        let marked: Vec<Uid> = pods.of_kind(Kind::Disrupted).filter(gives_up).map(uid).collect();
        let parallelism = usize::try_from(facts.job.spec.parallelism).unwrap_or(0);
        let noticed = noticed(facts, &pods, gives_up);
        let announced =
            marked.iter().chain(noticed.iter().take(parallelism.saturating_sub(marked.len())));
        for uid in announced.filter(|_| !is_complete) {
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

/// The pods whose nodes' end is announced, and that have no mark yet; the oldest first. A successor
/// may come to such a node nevertheless, so no more than parallelism give up their places.
fn noticed(facts: &Facts, pods: &JobPods, gives_up: impl Fn(&&Arc<Pod>) -> bool) -> Vec<Uid> {
    if facts.noticed.is_empty() {
        return Vec::new();
    }
    let active = pods.active();
    let noticed = active.iter().filter(|pod| facts.noticed.contains(&pod.uid));
    let mut noticed: Vec<_> = noticed.filter(|pod| !pod.is_target()).filter(gives_up).collect();
    noticed.sort_by_key(|pod| (pod.created, &pod.uid));
    noticed.into_iter().map(uid).collect()
}

/// Members of a group start and end together.
fn gives_up(pod: &Pod) -> bool {
    pod.is_active() && pod.group.is_none()
}

fn uid(pod: &Arc<Pod>) -> Uid {
    pod.uid.clone()
}
