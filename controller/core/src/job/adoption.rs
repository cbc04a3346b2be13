//! Decides which pods are the Job's own, and which to adopt or disown. ([L1])

use std::collections::HashSet;
use std::sync::Arc;

use epilogue_common::names::job_condition;

use super::input::{Memory, SyncInput};
use super::steps::{Claim, ClaimKind};
use crate::view::{Job, Pod, Uid};

/// The Job's pods, and the patches that adopt or disown pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    /// The Job's pods as they will be after the patches.
    pub pods: Vec<Arc<Pod>>,
    /// Patches, adoptions last.
    pub patches: Vec<Claim>,
}

/// Sorts the pods that name the Job as their controller and those without a controller.
pub(super) fn decide(input: &SyncInput<'_>) -> Claims {
    let mut claims = Claims::default();
    let mut adopted = Vec::new();
    for pod in input.pods {
        match claim(input.job, pod) {
            Ownership::Ours => claims.pods.push(Arc::clone(pod)),
            Ownership::Foreign => {}
            Ownership::Disown => claims.patches.push(patch(pod, ClaimKind::Disown)),
            Ownership::Adopt => {
                claims.pods.push(Arc::new(Pod { tracked: true, ..Pod::clone(pod) }));
                adopted.push(patch(pod, ClaimKind::Adopt));
            }
        }
    }
    claims.patches.extend(adopted);
    claims
}

/// Pods of ours that lost their finalizer uncounted: those that live, which would otherwise run
/// uncounted, and those that ended so.
///
/// DIVERGES(upstream): upstream leaves them so. It removes the finalizer before it deletes an
/// excess or suspended pod. When the deletion then fails, the pod stays, cannot be counted, and its
/// work is done again. ([P14])
pub(super) fn untracked(job: &Job, pods: &[Arc<Pod>], memory: &Memory) -> Vec<Claim> {
    let ends = [job_condition::FAILURE_TARGET, job_condition::SUCCESS_CRITERIA_MET];
    if job.deleting || ends.iter().any(|it| job.true_condition(it).is_some()) {
        return Vec::new();
    }
    // A suspended Job deletes its live pods.
    let is_uncounted = |pod: &Pod| {
        if pod.is_terminal() { memory.uncounted_pods.contains(&pod.uid) } else { !job.spec.suspend }
    };
    pods.iter()
        .filter(|pod| !pod.tracked && pod.deletion.is_none() && is_uncounted(pod))
        .filter(|pod| !memory.expectations.deleted.contains(&pod.uid))
        .map(|pod| patch(pod, ClaimKind::Track))
        .collect()
}

/// The same pods, with the finalizer that these patches add.
pub(super) fn with_tracked(pods: Vec<Arc<Pod>>, patches: &[Claim]) -> Vec<Arc<Pod>> {
    let again: HashSet<&Uid> = patches.iter().map(|each| &each.pod.uid).collect();
    if again.is_empty() {
        return pods;
    }
    pods.into_iter()
        .map(|pod| {
            if again.contains(&pod.uid) {
                Arc::new(Pod { tracked: true, ..Pod::clone(&pod) })
            } else {
                pod
            }
        })
        .collect()
}

enum Ownership {
    Ours,
    Foreign,
    Disown,
    Adopt,
}

/// DIVERGES(upstream): while a Job is being deleted, a pod that no longer matches the selector
/// stays the Job's. Upstream neither counts it nor removes its finalizer, so a foreground deletion
/// waits for ever. ([L1])
fn claim(job: &Job, pod: &Pod) -> Ownership {
    let selected = pod.matches(&job.spec.selector);
    if pod.owner.is_some() {
        return match pod.is_owned_by(&job.uid) {
            true if selected || job.deleting => Ownership::Ours,
            true => Ownership::Disown,
            false => Ownership::Foreign,
        };
    }
    if selected && !job.deleting && pod.deletion.is_none() {
        Ownership::Adopt
    } else {
        Ownership::Foreign
    }
}

fn patch(pod: &Arc<Pod>, kind: ClaimKind) -> Claim {
    Claim { pod: Arc::clone(pod), kind }
}
