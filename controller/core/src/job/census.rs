//! Sorts the pods of a Job by what they count as.

use std::collections::HashSet;
use std::sync::Arc;

use epilogue_common::names::pod_condition::DISRUPTION_TARGET;

use super::input::Memory;
use super::policies::FailureAction;
use super::{IndexSet, policies};
use crate::job_pods::{JobPods, Kind};
use crate::view::{Job, Phase, Pod, Uid};

/// The pods of a Job, sorted into what they count as. Of those that run there are numbers only: a
/// Job may have a hundred thousand.
#[derive(Clone, Debug, PartialEq)]
pub struct Census {
    /// All pods of the Job.
    pub pods: JobPods,
    /// How many pods are neither terminal nor being deleted.
    pub active: usize,
    /// How many of the active pods are ready.
    pub ready: usize,
    /// Pods that are being deleted and are not terminal.
    pub terminating: Vec<Arc<Pod>>,
    /// Pods that succeeded since the status was last written.
    pub newly_succeeded: Vec<Arc<Pod>>,
    /// Pods that failed since the status was last written, whatever the failure policy says.
    pub newly_failed: Vec<Arc<Pod>>,
    /// Those of `newly_failed` that the failure policy does not ignore.
    pub newly_failed_counted: Vec<Arc<Pod>>,
    /// Pods with the finalizer, as far as we know, that are terminal or being deleted. ([T2])
    pub ended: Vec<Arc<Pod>>,
    /// Pods whose finalizer we removed, while their watch event is pending. ([E2])
    removed_finalizers: HashSet<Uid>,
    /// UIDs in the status that are in no counter yet.
    pub uncounted: Uncounted,
}

/// `status.uncountedTerminatedPods`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uncounted {
    /// Of succeeded pods.
    pub succeeded: HashSet<Uid>,
    /// Of failed pods.
    pub failed: HashSet<Uid>,
}

impl Census {
    /// Sorts the Job's pods. `pods` must all be the Job's own.
    pub fn take(job: &Job, pods: JobPods, memory: &Memory) -> Self {
        let uncounted = Uncounted::read(job);
        let unsettled = || pods.of_kind(Kind::Unsettled);
        let ended: Vec<_> = unsettled()
            .filter(|pod| pod.tracked && !memory.removed_finalizers.contains(&pod.uid))
            .cloned()
            .collect();
        let terminating = unsettled().filter(|pod| pod.is_terminating()).cloned().collect();
        let fresh = |pod: &Pod| has_valid_index(job, pod) && !uncounted.contains(&pod.uid);
        let newly_succeeded = ended
            .iter()
            .filter(|pod| pod.phase == Phase::Succeeded && fresh(pod))
            .cloned()
            .collect();
        let newly_failed: Vec<_> =
            ended.iter().filter(|pod| is_failed(job, pod) && fresh(pod)).cloned().collect();
        let newly_failed_counted =
            newly_failed.iter().filter(|pod| counts_as_failure(job, pod)).cloned().collect();
        let counts = pods.counts();
        Self {
            active: counts.active as usize,
            ready: counts.ready as usize,
            pods,
            terminating,
            newly_succeeded,
            newly_failed,
            newly_failed_counted,
            ended,
            removed_finalizers: memory.removed_finalizers.clone(),
            uncounted,
        }
    }

    /// All pods with the finalizer, as far as we know. This walks all pods. ([T2])
    pub fn tracked(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.iter().filter(|pod| self.is_tracked(pod))
    }

    /// Those of these pods that have the finalizer.
    pub(super) fn tracked_of(&self, pods: HashSet<Uid>) -> HashSet<Uid> {
        let is_tracked = |uid: &Uid| self.pods.get(uid).is_some_and(|pod| self.is_tracked(pod));
        pods.into_iter().filter(is_tracked).collect()
    }

    fn is_tracked(&self, pod: &Pod) -> bool {
        pod.tracked && !self.removed_finalizers.contains(&pod.uid)
    }

    /// `status.succeeded` of a NonIndexed Job, once all that is known is counted. ([S13])
    ///
    /// DIVERGES(upstream): a pod that is listed as failed and then turned Succeeded is not counted
    /// a second time here. That could complete a Job too early. ([S13])
    pub fn succeeded(&self, job: &Job) -> usize {
        counter(job.status.succeeded) + self.newly_succeeded.len() + self.uncounted.succeeded.len()
    }

    /// `status.failed`, once all that is known is counted. ([S13])
    pub fn failed(&self, job: &Job) -> usize {
        counter(job.status.failed) + self.newly_failed_counted.len() + self.uncounted.failed.len()
    }
}

impl Uncounted {
    /// Reads the status.
    pub fn read(job: &Job) -> Self {
        let lists = job.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let set = |list: Option<Vec<String>>| list.into_iter().flatten().map(Uid::from).collect();
        Self { succeeded: set(lists.succeeded), failed: set(lists.failed) }
    }

    /// Whether the pod is in either list.
    pub fn contains(&self, pod: &Uid) -> bool {
        self.succeeded.contains(pod) || self.failed.contains(pod)
    }
}

/// The same pods, with those as Succeeded that count as succeeded and have turned Failed since.
///
/// The status lists the succeeded pods of a NonIndexed Job by UID, but those of an Indexed one only
/// by index. A process that has not counted such a pod itself takes it for the one that completed
/// its index if no container of it failed, and if no other pod of that index shows as Succeeded.
///
/// DIVERGES(upstream): upstream counts such a pod of an Indexed Job a second time, as failed, and
/// may fail the Job for it. A kubelet that restarts makes such pods: it refuses to admit one that
/// has succeeded, and calls it Failed.
pub(super) fn as_counted(job: &Job, mut pods: JobPods, memory: &Memory) -> JobPods {
    let listed = Uncounted::read(job);
    let is_candidate =
        |pod: &&Arc<Pod>| pod.phase == Phase::Failed && !listed.failed.contains(&pod.uid);
    // Released pods matter only where the failures are counted anew.
    let mut turned: Vec<Arc<Pod>> = match memory.backoff {
        Some(_) => pods.of_kind(Kind::Unsettled).filter(is_candidate).cloned().collect(),
        None => pods.iter().filter(is_candidate).cloned().collect(),
    };
    if turned.is_empty() {
        return pods;
    }
    let text = job.status.completed_indexes.as_deref().filter(|_| job.is_indexed());
    let completed = IndexSet::parse(text.unwrap_or_default(), job.index_bound());
    let completes = |pod: &Pod| pod.index.is_some_and(|index| completed.contains(index));
    turned.retain(|pod| listed.succeeded.contains(&pod.uid) || completes(pod));
    let is_known =
        |pod: &Pod| listed.succeeded.contains(&pod.uid) || memory.completed_pods.contains(&pod.uid);
    if turned.iter().any(|pod| !is_known(pod)) {
        let succeeded = pods.iter().filter(|pod| pod.phase == Phase::Succeeded);
        let by_another: HashSet<u32> = succeeded.filter_map(|pod| pod.index).collect();
        let is_alone = |pod: &Pod| pod.index.is_some_and(|index| !by_another.contains(&index));
        turned.retain(|pod| is_known(pod) || is_alone(pod) && !has_failed_container(pod));
    }
    for mut pod in turned {
        Arc::make_mut(&mut pod).phase = Phase::Succeeded;
        pods.alter(pod);
    }
    pods
}

fn has_failed_container(pod: &Pod) -> bool {
    pod.containers.iter().any(|each| each.terminated.is_some_and(|ended| ended.exit_code != 0))
}

/// A counter of the status as an unsigned number.
pub(super) fn counter(value: Option<i32>) -> usize {
    usize::try_from(value.unwrap_or(0)).unwrap_or(0)
}

/// Failed; or terminating and not Succeeded, unless only failed pods are replaced. ([R2])
pub(super) fn is_failed(job: &Job, pod: &Pod) -> bool {
    match pod.phase {
        Phase::Failed => true,
        Phase::Succeeded => false,
        _ => pod.deletion.is_some() && !job.replaces_failed_only(),
    }
}

/// Whether the Job is NonIndexed, or the pod's index is within the completions.
pub fn has_valid_index(job: &Job, pod: &Pod) -> bool {
    !job.is_indexed() || pod.index.is_some_and(|index| job.has_index(index))
}

/// Whether the failure of this pod counts against limits. ([F5])
pub fn counts_as_failure(job: &Job, pod: &Pod) -> bool {
    failure_action(job, pod).is_none_or(|action| action.counts())
}

/// Whether the failure policy ignores this pod's failure, and a disruption was its cause.
pub(super) fn is_ignored_disruption(job: &Job, pod: &Pod) -> bool {
    pod.has_condition(DISRUPTION_TARGET) && !counts_as_failure(job, pod)
}

/// The action of the failure policy for this pod.
pub fn failure_action(job: &Job, pod: &Pod) -> Option<FailureAction> {
    failure_rule(job, pod).map(|(_, action)| action)
}

/// The same, with the place of its rule.
pub(super) fn failure_rule(job: &Job, pod: &Pod) -> Option<(usize, FailureAction)> {
    let policy = job.spec.pod_failure_policy.as_ref()?;
    policies::rule_for(policy, pod)
}
