//! Decides which pods are the Job's own, and which to adopt or disown. ([L1])

use std::sync::Arc;

use epilogue_common::names::job_condition;

use super::input::{Memory, SyncInput};
use super::steps::{Claim, ClaimKind};
use crate::job_pods::{JobPods, Kind, PodSet};
use crate::view::{Job, Pod};

/// The Job's pods, and the patches that adopt or disown pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    /// The Job's pods as they will be after the patches.
    pub pods: JobPods,
    /// Patches, adoptions last.
    pub patches: Vec<Claim>,
}

/// Sorts the pods that name the Job as their controller and those without a controller.
///
/// DIVERGES(upstream): while a Job is being deleted, a pod that no longer matches the selector
/// stays the Job's. Upstream neither counts it nor removes its finalizer, so a foreground deletion
/// waits for ever. ([L1])
pub(super) fn decide(input: &SyncInput<'_>) -> Claims {
    let SyncInput { job, pods, .. } = *input;
    if job.deleting {
        return Claims { pods: pods.clone().with_strays(PodSet::default()), patches: Vec::new() };
    }
    let adopts = |pod: &&Arc<Pod>| pod.deletion.is_none() && pod.matches(&job.spec.selector);
    let adopted: Vec<_> = pods.strays().filter(adopts).collect();
    let mut own = pods.clone().with_strays(PodSet::default());
    let disowned: Vec<_> =
        pods.unmatched().filter(|pod| !pod.matches(&job.spec.selector)).collect();
    for pod in &disowned {
        own.remove(&pod.uid);
    }
    for pod in &adopted {
        own.insert(&Arc::new(Pod { tracked: true, ..Pod::clone(pod) }), None);
    }
    let disown = disowned.into_iter().map(|pod| patch(pod, ClaimKind::Disown));
    let adopt = adopted.into_iter().map(|pod| patch(pod, ClaimKind::Adopt));
    Claims { pods: own, patches: disown.chain(adopt).collect() }
}

/// Pods of ours that lost their finalizer uncounted: those that live, which would otherwise run
/// uncounted, and those that ended so.
///
/// DIVERGES(upstream): upstream leaves them so. It removes the finalizer before it deletes an
/// excess or suspended pod. When the deletion then fails, the pod stays, cannot be counted, and its
/// work is done again. ([P14])
pub(super) fn untracked(job: &Job, pods: &JobPods, memory: &Memory) -> Vec<Claim> {
    let ends = [job_condition::FAILURE_TARGET, job_condition::SUCCESS_CRITERIA_MET];
    if job.deleting || ends.iter().any(|it| job.true_condition(it).is_some()) {
        return Vec::new();
    }
    // A suspended Job deletes its live pods.
    let live = pods.of_kind(Kind::Untracked).filter(|_| !job.spec.suspend);
    let known = memory.uncounted_pods.iter().filter_map(|uid| pods.get(uid));
    let ended = known.filter(|pod| pod.is_terminal() && !pod.tracked && pod.deletion.is_none());
    let mut untracked: Vec<&Arc<Pod>> = live.chain(ended).collect();
    untracked.retain(|pod| !memory.expectations.deleted.contains(&pod.uid));
    untracked.sort_unstable_by(|one, other| one.uid.cmp(&other.uid));
    untracked.into_iter().map(|pod| patch(pod, ClaimKind::Track)).collect()
}

/// The same pods, with the finalizer that these patches add.
pub(super) fn with_tracked(mut pods: JobPods, patches: &[Claim]) -> JobPods {
    for Claim { pod, .. } in patches {
        pods.alter(Arc::new(Pod { tracked: true, ..Pod::clone(pod) }));
    }
    pods
}

fn patch(pod: &Arc<Pod>, kind: ClaimKind) -> Claim {
    Claim { pod: Arc::clone(pod), kind }
}
