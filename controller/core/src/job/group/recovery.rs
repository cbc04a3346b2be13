//! Finds the members of a PodGroup that go with one that was lost.
//!
//! With `disruptionMode: all` a disruption of one member is one of the whole group: the others
//! wait in vain for a pod that lost what it knew. They are deleted, do not count as failed, and the
//! group is created anew. Pods of one attempt of the group have its number as an annotation; a lost
//! pod keeps its finalizer, and is not counted, until no pod of its attempt is left behind. So no
//! crash makes the loss forgotten, and no pod of a later attempt is taken for one of an earlier.
//!
//! DIVERGES(upstream): upstream replaces the one pod, whatever the mode says.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::job::backoff::with_own;
use crate::job::cause::Cause;
use crate::job::census::Census;
use crate::job::group::{JobGroups, SchedulingGroup};
use crate::job::steps::PodDraft;
use crate::job_pods::Kind;
use crate::view::{FailureCounts, Job, Phase, Pod, PodGroup};

/// So long the scheduler has to preempt the other members itself, which it does for this mode. Each
/// of them then counts as disrupted, as it is.
const PREEMPTED_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// The greatest attempt that the annotation can say.
const ATTEMPT_MAX: u32 = i32::MAX.unsigned_abs();

/// A member of a PodGroup is lost, and members of the same attempt are left.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// A lost member, the first by UID of those of the latest attempt.
    pub lost: Arc<Pod>,
    /// Active members of its attempt or an earlier one.
    pub left: Vec<Arc<Pod>>,
    /// How many members of its attempt are being deleted and awaited: none unless the Job replaces
    /// only failed pods.
    pub awaited: usize,
    /// How long until `left` is deleted.
    pub wait: SignedDuration,
}

impl Recovery {
    /// That of a Job which goes on and is not suspended, if any.
    pub(in crate::job) fn find(
        job: &Job,
        census: &Census,
        groups: Option<&JobGroups>,
        now: Timestamp,
    ) -> Option<Self> {
        if job.deleting || job.spec.suspend {
            return None;
        }
        let mut groups = groups?.pod_groups.iter().filter(|group| group.is_disrupted_whole);
        groups.find_map(|group| Self::of_group(job, census, group, now))
    }

    fn of_group(job: &Job, census: &Census, group: &PodGroup, now: Timestamp) -> Option<Self> {
        let is_lost = |pod: &&Arc<Pod>| is_member(pod, group) && is_lost(pod);
        // A lost pod that is counted left no other behind, or another controller counted it.
        let uncounted = || census.ended.iter().filter(is_lost);
        let shown = || census.pods.of_kind(Kind::Disrupted).filter(is_lost);
        let latest = |pods: &mut dyn Iterator<Item = &Arc<Pod>>| pods.map(|pod| pod.attempt).max();
        let over = latest(&mut shown()).filter(|attempt| *attempt < ATTEMPT_MAX)?;
        let lost = latest(&mut uncounted());
        let (mut left, mut awaited) = (Vec::new(), 0);
        for pod in census.pods.iter().filter(|pod| is_member(pod, group)) {
            if pod.is_active() && Some(pod.attempt) <= lost {
                left.push(Arc::clone(pod));
            } else if pod.is_terminating() && job.replaces_failed_only() && pod.attempt <= over {
                awaited += 1;
            }
        }
        if left.is_empty() && awaited == 0 {
            return None;
        }
        let wait = uncounted().filter(|pod| Some(pod.attempt) == lost);
        let wait = wait.map(|pod| scheduler_has(pod, now)).min().unwrap_or_default();
        let named = uncounted().find(|pod| Some(pod.attempt) == lost).or_else(|| shown().next())?;
        Some(Self { lost: Arc::clone(named), left, awaited, wait })
    }

    /// The members to delete now, without pods whose nodes may soon show a boot.
    pub(in crate::job) fn victims(&self, awaits_boots: &[Arc<Pod>]) -> Option<Vec<Arc<Pod>>> {
        let is_open = |pod: &Pod| awaits_boots.iter().any(|open| open.uid == pod.uid);
        let victims = self.left.iter().filter(|pod| !is_open(pod)).cloned();
        let victims: Vec<Arc<Pod>> = victims.collect();
        (self.wait <= SignedDuration::ZERO && !victims.is_empty()).then_some(victims)
    }

    /// How long until they are deleted, if time alone is awaited.
    pub(in crate::job) fn due_in(&self) -> Option<SignedDuration> {
        Some(self.wait).filter(|wait| !self.left.is_empty() && *wait > SignedDuration::ZERO)
    }

    /// What the event of their deletion says.
    pub(in crate::job) fn message(&self, deleted: usize) -> String {
        let (lost, cause) = (&self.lost, Cause::of(&self.lost));
        let group = self.lost.group.as_deref().unwrap_or_default();
        let others = if deleted == 1 { "1 other pod" } else { &*format!("{deleted} other pods") };
        format!(
            "Pod {} of PodGroup {group} is lost ({}): {others} of the group end, too, as its \
             disruptionMode is all; the group starts anew",
            lost.name,
            cause.label()
        )
    }

    /// Whether the pod is a lost one, which is counted later.
    pub(in crate::job) fn holds(&self, pod: &Pod) -> bool {
        pod.group == self.lost.group && is_lost(pod)
    }
}

/// The attempt of the group that a new member belongs to: the latest one, or, once a member of that
/// is lost, the next. This walks all pods.
pub(super) fn next_attempt(census: &Census, group: &str) -> u32 {
    let members = census.pods.iter().filter(|pod| pod.group.as_deref() == Some(group));
    let attempts = members.map(|pod| pod.attempt + u32::from(is_lost(pod)));
    attempts.max().unwrap_or_default().min(ATTEMPT_MAX)
}

/// Gives each index the failures that its pods of earlier attempts show. With the group goes the
/// pod of the index that has their number; the one that failed before it may still be there.
///
/// A pod that was deleted shows those before it. An index that has failed for good and is to run
/// again was taken away meanwhile: it is new. So there are never more than there were, but fewer
/// where the pods are gone.
pub(super) fn inherit_failures(
    job: &Job,
    census: &Census,
    group: &SchedulingGroup,
    drafts: &mut [PodDraft],
) {
    let (Some(attempt), Some(limit)) = (group.attempt, job.spec.backoff_limit_per_index) else {
        return;
    };
    let is_earlier =
        |pod: &&Arc<Pod>| pod.group.as_ref() == Some(&group.name) && pod.attempt < attempt;
    let mut shown: HashMap<u32, FailureCounts> = HashMap::new();
    for pod in census.pods.iter().filter(is_earlier) {
        let Some(index) = pod.index else { continue };
        let has_failed = pod.phase == Phase::Failed && pod.deletion.is_none();
        let failures = if has_failed { with_own(job, pod) } else { pod.failures };
        let most = shown.entry(index).or_default();
        most.counted = most.counted.max(failures.counted);
        most.ignored = most.ignored.max(failures.ignored);
    }
    let limit = u32::try_from(limit).unwrap_or(0);
    for draft in drafts {
        let shown = draft.index.and_then(|index| shown.get(&index));
        let shown = shown.filter(|shown| shown.counted <= limit);
        if let (Some(failures), Some(shown)) = (&mut draft.failures, shown) {
            failures.counted = failures.counted.max(shown.counted);
            failures.ignored = failures.ignored.max(shown.ignored);
        }
    }
}

fn is_member(pod: &Pod, group: &PodGroup) -> bool {
    pod.group.as_ref() == Some(&group.key.1)
}

/// Whether a disruption ends the pod, or has ended it, after a node took it.
///
/// A pod that succeeds in spite of the disruption has done its part. One without a node never ran
/// together with the others.
fn is_lost(pod: &Pod) -> bool {
    pod.is_target() && pod.node.is_some() && pod.phase != Phase::Succeeded && !pod.is_active()
}

/// How much longer the scheduler may take to preempt the others of this pod's group. A clock that
/// is further ahead than this delays nothing.
fn scheduler_has(pod: &Pod, now: Timestamp) -> SignedDuration {
    let preempted = |reason: &str| reason == Cause::PreemptionByScheduler.label();
    let target = pod.gc.target().filter(|target| preempted(&target.reason));
    let Some(since) = target.and_then(|target| target.since) else { return SignedDuration::ZERO };
    let passed = now.duration_since(since);
    if passed < -PREEMPTED_WITHIN {
        return SignedDuration::ZERO;
    }
    PREEMPTED_WITHIN.saturating_sub(passed).clamp(SignedDuration::ZERO, PREEMPTED_WITHIN)
}
