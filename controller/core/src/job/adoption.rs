//! Decides which pods are the Job's own, and which to adopt or disown, and what follows from the
//! answers. ([L1])

use std::sync::Arc;

use epilogue_common::names::job_condition;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use jiff::{SignedDuration, Timestamp};

use super::input::{Memory, MemoryUpdate, SyncInput, WrittenPod};
use super::plan::earliest;
use super::pod_stage;
use super::pods::PodStage;
use super::steps::{Claim, ClaimKind, SideEffect};
use crate::job_pods::{JobPods, Kind, PodSet};
use crate::view::{Job, Pod};

/// After so long, a claim that the API refused is tried again: a policy may have changed.
const REFUSED_FOR: SignedDuration = SignedDuration::from_mins(5);

/// The Job's pods, and the patches that adopt or disown pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    /// The Job's pods as they will be after the patches.
    pub pods: JobPods,
    /// Patches, adoptions last.
    pub patches: Vec<Claim>,
    /// When to try again what the API refused.
    pub again_after: Option<SignedDuration>,
}

/// Sorts the pods that name the Job as their controller and those without a controller.
///
/// DIVERGES(upstream): while a Job is being deleted, a pod that no longer matches the selector
/// stays the Job's. Upstream neither counts it nor removes its finalizer, so a foreground deletion
/// waits for ever. ([L1])
///
/// DIVERGES(upstream): a pod whose adoption the API refuses, as a policy of admission does, stays
/// alone, and the Job goes on without it; it is tried again every five minutes. Upstream repeats
/// the patch, and does nothing else for the Job. ([L3])
pub(super) fn decide(input: &SyncInput<'_>) -> Claims {
    let SyncInput { job, pods, memory, now, .. } = *input;
    if job.deleting {
        let pods = pods.clone().with_strays(PodSet::default());
        return Claims { pods, ..Claims::default() };
    }
    let refused = |pod: &Pod| memory.refused_claims.get(&pod.uid).copied();
    let rests = |pod: &Pod| refused(pod).and_then(|at| left(at, now));
    let adopts = |pod: &&Arc<Pod>| pod.deletion.is_none() && pod.matches(&job.spec.selector);
    let mut adopted: Vec<_> = pods.strays().filter(adopts).collect();
    let mut again_after = None;
    adopted.retain(|pod| {
        let rests = rests(pod);
        again_after = earliest([again_after, rests]);
        rests.is_none()
    });
    let mut own = pods.clone().with_strays(PodSet::default());
    let disowned: Vec<_> =
        pods.unmatched().filter(|pod| !pod.matches(&job.spec.selector)).collect();
    for pod in &disowned {
        own.remove(&pod.uid);
    }
    for pod in &adopted {
        own.insert(&Arc::new(Pod { tracked: true, ..Pod::clone(pod) }), || None);
    }
    let disown = disowned.into_iter().filter(|pod| rests(pod).is_none());
    let disown = disown.map(|pod| patch(pod, ClaimKind::Disown));
    let adopt = adopted.into_iter().map(|pod| patch(pod, ClaimKind::Adopt));
    Claims { pods: own, patches: disown.chain(adopt).collect(), again_after }
}

/// How long a claim still rests that the API refused at this time.
fn left(refused: Timestamp, now: Timestamp) -> Option<SignedDuration> {
    let left = REFUSED_FOR.saturating_sub(now.duration_since(refused));
    (left > SignedDuration::ZERO && left <= REFUSED_FOR).then_some(left)
}

/// What follows from the answers to claims, and the failure that ends the sync.
///
/// A pod of ours that is gone needs no claim. The plan is good without a pod that was to be
/// disowned, and void without one that was to be adopted.
///
/// DIVERGES(upstream): a failed adoption always ends the sync, because the plan counts the pod.
/// Upstream goes on without a pod that is gone. ([L3])
pub(super) fn claimed(
    claims: &[Claim],
    outcomes: impl Iterator<Item = Outcome<WrittenPod>>,
    pods: &mut PodStage,
) -> (Vec<SideEffect>, Option<Failure>) {
    let (mut updates, mut failures) = (Vec::new(), Vec::new());
    for (claim, outcome) in claims.iter().zip(outcomes) {
        match outcome {
            Ok(written) => {
                pod_stage::written_to(pods, &claim.pod, written.version);
                updates.push(MemoryUpdate::PodWritten(written.version));
                if claim.kind != ClaimKind::Disown {
                    // We may have removed the finalizer before a user took the pod from us.
                    updates.push(MemoryUpdate::FinalizerKept(vec![written.uid]));
                }
            }
            Err(failure)
                if claim.kind != ClaimKind::Adopt && failure.kind == FailureKind::NotFound => {}
            Err(failure) => {
                if is_refused(claim, &failure) {
                    updates.push(MemoryUpdate::ClaimRefused(claim.pod.uid.clone()));
                }
                failures.push((claim, failure));
            }
        }
    }
    let events = pod_stage::refused_claims(&failures).into_iter().map(SideEffect::Event);
    let side_effects = updates.into_iter().map(SideEffect::Remember).chain(events).collect();
    let ends = |(claim, failure): &(&Claim, Failure)| match claim.kind {
        ClaimKind::Disown => !is_refused(claim, failure),
        ClaimKind::Adopt | ClaimKind::Track => true,
    };
    (side_effects, failures.into_iter().find(ends).map(|(_, failure)| failure))
}

/// Whether the API refuses the claim for good. A pod of ours that could not be tracked would run
/// uncounted, so that claim has no end.
fn is_refused(claim: &Claim, failure: &Failure) -> bool {
    claim.kind != ClaimKind::Track
        && (failure.kind == FailureKind::Forbidden || failure.is_invalid())
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
