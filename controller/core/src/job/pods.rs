//! Decides how many pods the Job should have, and which ones to create or delete.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use jiff::SignedDuration;

use super::plan::Plan;
use super::pod_template::template_problem;
use super::report::WaitsFor;
use super::steps::{Action, PodDraft};
use super::sync_input::SyncInput;
use super::verdict::End;
use super::{backoff, pending_timeout, victims};
use crate::view::Pod;

/// The most nodes to avoid: each one costs the scheduler more work for the pod.
const NODES_AVOIDED_MAX: usize = 5;

/// What a sync does to pods.
#[derive(Clone, Debug, PartialEq)]
pub enum PodStage {
    /// Nothing.
    None,
    /// Delete these.
    Delete {
        /// The pods in the order of deletion.
        victims: Vec<Arc<Pod>>,
        /// The purpose of the deletion.
        purpose: Purpose,
    },
    /// Create these, in batches that grow.
    Create(Vec<PodDraft>),
    /// Fail these, which do not start.
    FailPending(Vec<Arc<Pod>>),
    /// Create nothing, because the template does not allow it. ([B8])
    Refuse(&'static str),
}

/// Why pods are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The Job has come to its end. ([P13])
    End(End),
    /// The Job is suspended. ([P1])
    Suspend,
    /// There are more than wanted, or they have no place in the Job. ([P3])
    Excess,
}

impl Purpose {
    /// Whether the pods must not be counted as failed, so that the finalizer goes first. ([P14])
    ///
    /// DIVERGES(upstream): also when the Job succeeds. Upstream keeps the finalizer, so after a
    /// crash the pods that it deleted count as failed.
    pub fn strips_finalizer(self) -> bool {
        self != Self::End(End::Failure)
    }

    /// Whether nothing else may be done to pods until a watch shows the deletion. ([E1])
    pub fn is_awaited(self) -> bool {
        matches!(self, Self::Suspend | Self::Excess)
    }
}

/// Decides the pod stage of a plan.
pub(super) fn decide(plan: &mut Plan, input: &SyncInput<'_>) {
    if let Some(verdict) = &plan.verdict {
        let purpose = Purpose::End(verdict.end);
        plan.pods = PodStage::delete(plan.census.active.clone(), purpose);
        return;
    }
    if !plan.expectations_satisfied || plan.job.deleting {
        return;
    }
    plan.manages_pods = true;
    if plan.job.spec.suspend {
        plan.pods = PodStage::delete(plan.census.active.clone(), Purpose::Suspend);
        plan.action = Action::PodsDeleted;
        return;
    }
    if fail_pending(plan) {
        return;
    }
    let active = plan.census.active.len();
    let wanted = wanted(plan);
    let mut excess = victims::choose(&plan.job, &plan.census.active, active.saturating_sub(wanted));
    excess.truncate(input.settings.max_pod_create_delete_per_sync);
    if !excess.is_empty() {
        plan.pods = PodStage::delete(excess, Purpose::Excess);
        plan.action = Action::PodsDeleted;
        return;
    }
    let waited_for =
        if plan.job.replaces_failed_only() { plan.census.terminating.len() } else { 0 };
    match wanted.saturating_sub(active + waited_for) {
        0 => plan.action = Action::Tracking,
        missing => create(plan, input, missing),
    }
}

/// Whether some pods have been Pending for too long; also wakes the Job when the next one will
/// have.
///
/// DIVERGES(upstream): only on request. Upstream lets a pod that cannot start hold up its Job for
/// ever.
fn fail_pending(plan: &mut Plan) -> bool {
    let Some(timeout) = plan.options.pending_timeout else { return false };
    let (overdue, next) = pending_timeout::overdue(&plan.census.active, timeout, plan.now);
    if let Some(next) = next {
        plan.wake_after(next);
    }
    let any = !overdue.is_empty();
    if any {
        plan.action = Action::PodsDeleted;
        plan.pods = PodStage::FailPending(overdue);
    }
    any
}

/// The number of pods that should be active. ([P2])
fn wanted(plan: &Plan) -> usize {
    let parallelism = usize::try_from(plan.job.spec.parallelism).unwrap_or(0);
    match plan.job.spec.completions {
        None if plan.succeeded > 0 => plan.census.active.len(),
        None => parallelism,
        Some(completions) => usize::try_from(completions)
            .unwrap_or(0)
            .saturating_sub(plan.succeeded)
            .min(parallelism),
    }
}

/// Creates missing pods, unless backoff delays it. ([P5], [P6])
fn create(plan: &mut Plan, input: &SyncInput<'_>, missing: usize) {
    plan.action = Action::PodsCreated;
    let missing = missing.min(input.settings.max_pod_create_delete_per_sync);
    if plan.per_index().is_none() {
        let left = backoff::remaining(plan.backoff, input.now, input.settings);
        if left > SignedDuration::ZERO {
            plan.waits_for.push(WaitsFor::Backoff { failures: plan.backoff.failures, left });
            plan.wake_after(left);
            return;
        }
    }
    let drafts = match &plan.indexes {
        None => {
            vec![PodDraft { avoid: nodes_to_avoid(plan, None), ..PodDraft::default() }; missing]
        }
        Some(_) => indexed_drafts(plan, input, missing),
    };
    plan.pods = match template_problem(&plan.job) {
        _ if drafts.is_empty() => PodStage::None,
        Some(problem) => PodStage::Refuse(problem),
        None => PodStage::Create(drafts),
    };
}

/// The lowest indexes that lack a pod and have no backoff left. ([I4])
///
/// DIVERGES(upstream): indexes in backoff are skipped before the lowest ones are picked. Upstream
/// picks first, so that waiting indexes block those behind them. ([I11])
fn indexed_drafts(plan: &mut Plan, input: &SyncInput<'_>, missing: usize) -> Vec<PodDraft> {
    let Some(indexes) = &plan.indexes else { return Vec::new() };
    let job = &plan.job;
    let waited_for: &[Arc<Pod>] =
        if job.replaces_failed_only() { &plan.census.terminating } else { &[] };
    let busy: HashSet<u32> =
        plan.census.active.iter().chain(waited_for).filter_map(|pod| pod.index).collect();
    let per_index = indexes.per_index.as_ref();
    let backoff = |index| {
        per_index
            .map_or(SignedDuration::ZERO, |it| it.backoff(job, index, input.now, input.settings))
    };
    let ended = per_index.map_or_else(
        || indexes.succeeded.clone(),
        |per_index| indexes.succeeded.union(&per_index.failed),
    );
    let chosen = ended.lowest_missing(job.index_bound(), missing, |index| {
        busy.contains(&index) || backoff(index) > SignedDuration::ZERO
    });
    let waits: Vec<SignedDuration> = per_index
        .iter()
        .flat_map(|per_index| per_index.delayed.keys())
        .map(|index| backoff(*index))
        .filter(|left| *left > SignedDuration::ZERO)
        .collect();
    let drafts = chosen
        .into_iter()
        .map(|index| PodDraft {
            index: Some(index),
            avoid: nodes_to_avoid(plan, Some(index)),
            failures: per_index.map(|per_index| per_index.failures(job, index)),
        })
        .collect();
    if let Some(left) = waits.iter().min().copied() {
        plan.waits_for.push(WaitsFor::IndexBackoff { indexes: waits.len(), left });
        plan.wake_after(left);
    }
    drafts
}

/// Nodes on which pods of the Job, or of this index, were disrupted; the latest first.
fn nodes_to_avoid(plan: &Plan, index: Option<u32>) -> Vec<Arc<str>> {
    if !plan.options.avoid_failed_nodes {
        return Vec::new();
    }
    let mut disrupted: Vec<&Arc<Pod>> = plan
        .census
        .pods
        .iter()
        .filter(|pod| index.is_none() || pod.index == index)
        .filter(|pod| pod.has_condition(DISRUPTION_TARGET))
        .collect();
    disrupted.sort_by_key(|pod| Reverse(pod.finished_at()));
    let mut nodes: Vec<Arc<str>> = Vec::new();
    for node in disrupted.into_iter().filter_map(|pod| pod.node.as_ref()) {
        if nodes.len() < NODES_AVOIDED_MAX && !nodes.contains(node) {
            nodes.push(Arc::clone(node));
        }
    }
    nodes
}

impl PodStage {
    fn delete(victims: Vec<Arc<Pod>>, purpose: Purpose) -> Self {
        if victims.is_empty() { Self::None } else { Self::Delete { victims, purpose } }
    }
}
