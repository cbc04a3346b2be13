//! Evaluates the calls of the pod stage: pods that were created by slow start, deleted, or failed
//! because they do not start.
//!
//! Slow start creates in batches of 1, 2, 4, …, where the first batch with an error is the last.
//! ([P8], [P9])

use std::ops::Range;
use std::sync::Arc;

use epilogue_common::names::TRACKING_FINALIZER;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::body;
use super::facts::Facts;
use super::input::{MemoryUpdate, WrittenPod};
use super::node_fault::NodeFault;
use super::pods::{PodStage, Purpose};
use super::status_plan::PodOutcomes;
use super::steps::{Answer, Claim, ClaimKind, EventDraft, MetricEvent, SideEffect};
use crate::event_series::FAILED_RELEASE;
use crate::view::{Pod, Uid, Version};

/// The longest list of names in one event, so that the message stays within the API's 1,024 bytes.
const NAMES_BYTES_MAX: usize = 900;

/// The API's words about a patch for a pod of this name that is gone.
const OTHER_UID: &str = "metadata.uid: Invalid value";

/// How far a creation has come.
#[derive(Clone, Debug, Default)]
pub(super) struct SlowStart {
    drafts: usize,
    batch: usize,
    created: Vec<Arc<str>>,
    failures: Vec<Failure>,
    attempted: usize,
}

/// What the calls of the pod stage came to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodResult {
    pub outcomes: PodOutcomes,
    pub side_effects: Vec<SideEffect>,
    /// The failure that makes the controller repeat the sync.
    pub failure: Option<Failure>,
}

impl SlowStart {
    /// Starts to create this many pods, with a batch of this size.
    pub(super) fn new(drafts: usize, initial_batch: usize) -> Self {
        Self { drafts, batch: initial_batch.max(1), ..Self::default() }
    }

    /// The drafts of the next batch; `None` when all are created or a call failed.
    pub(super) fn next_batch(&mut self) -> Option<Range<usize>> {
        let left = self.drafts - self.attempted;
        if left == 0 || self.created.len() < self.attempted {
            return None;
        }
        let start = self.attempted;
        self.attempted += self.batch.min(left);
        self.batch = self.batch.saturating_mul(2);
        Some(start..self.attempted)
    }

    /// Takes the outcome of one call.
    pub(super) fn done(&mut self, outcome: Outcome<WrittenPod>) -> Option<SideEffect> {
        match outcome {
            Ok(pod) => {
                self.created.push(Arc::clone(&pod.name));
                Some(SideEffect::Remember(MemoryUpdate::Created(pod.version)))
            }
            Err(failure) => {
                let in_doubt = failure.is_in_doubt();
                self.failures.push(failure);
                in_doubt.then_some(SideEffect::Remember(MemoryUpdate::CreationInDoubt))
            }
        }
    }

    /// A terminating namespace takes the Job with it, so there is nothing to repeat.
    ///
    /// DIVERGES(upstream): only pods that exist are counted as active. Upstream also counts those
    /// that a terminating namespace refused, and waits for them. ([P9])
    pub(super) fn result(self, facts: &Facts) -> PodResult {
        let (created, failed) = (self.created.len(), self.failures.len());
        let before = PodOutcomes::before(facts);
        let mut side_effects: Vec<_> = self.events().into_iter().map(SideEffect::Event).collect();
        side_effects.push(SideEffect::Count(pods_created(facts, created, failed)));
        PodResult {
            outcomes: PodOutcomes { active: before.active + created, ..before },
            side_effects,
            failure: self
                .failures
                .into_iter()
                .find(|each| each.kind != FailureKind::NamespaceTerminating),
        }
    }

    /// One event for the created pods, and one for each kind of failure.
    ///
    /// DIVERGES(upstream): one event reports all pods that are created together. Upstream sends one
    /// per pod, which the client's rate limit then drops, together with `Completed`.
    fn events(&self) -> Vec<EventDraft> {
        let mut events = Vec::new();
        if !self.created.is_empty() {
            let message = pods_message("Created", &self.created);
            events.push(EventDraft::normal("SuccessfulCreate", message));
        }
        let mut kinds: Vec<FailureKind> = vec![FailureKind::NamespaceTerminating];
        for first in &self.failures {
            if kinds.contains(&first.kind) {
                continue;
            }
            kinds.push(first.kind);
            let alike = self.failures.iter().filter(|each| each.kind == first.kind).count();
            let more = and_more(alike - 1);
            let message = format!("Error creating: {}{more}", first.message);
            events.push(EventDraft::warning("FailedCreate", message));
        }
        events
    }
}

/// What is remembered before these pods are deleted.
pub(super) fn deleting(victims: &[Arc<Pod>], purpose: Purpose) -> Vec<SideEffect> {
    let uids = || victims.iter().map(|pod| pod.uid.clone()).collect();
    let mut updates = Vec::new();
    let stripped = victims.iter().filter(|pod| purpose.strips_finalizer(pod));
    let stripped: Vec<Uid> = stripped.map(|pod| pod.uid.clone()).collect();
    if !stripped.is_empty() {
        // A watch that lags must not make them appear countable. ([Z1])
        updates.push(SideEffect::Remember(MemoryUpdate::RemovingFinalizer(stripped)));
    }
    if purpose.is_awaited() {
        updates.push(SideEffect::Remember(MemoryUpdate::Deleting(uids())));
    }
    updates
}

/// DIVERGES(upstream): a pod whose deletion failed still counts as active and ready. Upstream takes
/// it out of `ready` alone, or of `active` alone. ([P13], [P14])
pub(super) fn deleted(
    facts: &Facts,
    victims: &[Arc<Pod>],
    purpose: Purpose,
    outcomes: Vec<Outcome<Answer>>,
) -> PodResult {
    let (mut gone, mut kept, mut not_found) = (Vec::new(), Vec::new(), Vec::new());
    let mut failures: Vec<Failure> = Vec::new();
    for (pod, outcome) in victims.iter().zip(outcomes) {
        match outcome {
            Err(failure) if failure.kind != FailureKind::NotFound => {
                kept.push(Arc::clone(pod));
                failures.push(failure);
                continue;
            }
            // It was gone before we deleted it; no watch event will show our deletion.
            Err(_) => not_found.push(pod.uid.clone()),
            Ok(_) => {}
        }
        gone.push(Arc::clone(pod));
    }
    let all_deleted = kept.is_empty();
    let forgotten = forget_deletions(purpose, &kept, not_found).into_iter();
    let mut side_effects: Vec<_> = forgotten.map(SideEffect::Remember).collect();
    if !gone.is_empty() {
        let names: Vec<Arc<str>> = gone.iter().map(|pod| Arc::clone(&pod.name)).collect();
        let message = pods_message("Deleted", &names);
        side_effects.push(SideEffect::Event(EventDraft::normal("SuccessfulDelete", message)));
        let recovery = facts.recovery.as_ref().filter(|_| purpose == Purpose::Group);
        let event =
            recovery.map(|it| EventDraft::normal("PodGroupDisrupted", it.message(gone.len())));
        side_effects.extend(event.map(SideEffect::Event));
    }
    // After a conflict the next sync decides anew; there is nothing to tell a user.
    if let Some(failure) = failures.iter().find(|each| each.kind != FailureKind::Conflict) {
        let message = format!("Error deleting: {}", failure.message);
        side_effects.push(SideEffect::Event(EventDraft::warning("FailedDelete", message)));
    }
    let outcomes = PodOutcomes { all_deleted, ..PodOutcomes::before(facts).without(&gone) };
    PodResult { outcomes, side_effects, failure: failures.into_iter().next() }
}

/// The event of finalizers that could not be removed, with the API's words about the first.
///
/// After a conflict the next sync decides anew, and without a reply the patch may have been carried
/// out: there is nothing to tell a user.
pub fn refused_release<'a>(
    failures: impl IntoIterator<Item = (&'a Pod, &'a Failure)>,
) -> Option<EventDraft> {
    let unreported = [FailureKind::Conflict, FailureKind::Unknown];
    let mut reported =
        failures.into_iter().filter(|(_, failure)| !unreported.contains(&failure.kind));
    let (pod, failure) = reported.next()?;
    let more = and_more(reported.count());
    let message = format!(
        "Error removing finalizer {TRACKING_FINALIZER} from pod {}: {}{more}",
        pod.name, failure.message
    );
    Some(EventDraft::warning(FAILED_RELEASE, message))
}

/// The events of claims that failed: one for pods to disown, and one for the others.
pub(super) fn refused_claims(failures: &[(&Claim, Failure)]) -> Vec<EventDraft> {
    let of = |disowns: bool| {
        let failures = failures.iter();
        let failures =
            failures.filter(move |(claim, _)| (claim.kind == ClaimKind::Disown) == disowns);
        failures.map(|(claim, failure)| (&*claim.pod, failure))
    };
    // Another pod of the name is not ours.
    let released = refused_release(of(true).filter(|(_, it)| !it.message.contains(OTHER_UID)));
    let unreported = [FailureKind::Conflict, FailureKind::Unknown, FailureKind::NotFound];
    let mut reported = of(false).filter(|(_, failure)| !unreported.contains(&failure.kind));
    let adopted = reported.next().map(|(pod, failure)| {
        let more = and_more(reported.count());
        let message = format!("Error adopting pod {}: {}{more}", pod.name, failure.message);
        EventDraft::warning("FailedAdoption", message)
    });
    released.into_iter().chain(adopted).collect()
}

fn and_more(more: usize) -> String {
    if more > 0 { format!(" (and {more} more)") } else { String::new() }
}

/// A pod that is deleted next has the version that our claim, which named the one before, made.
pub(super) fn written_to(pods: &mut PodStage, claimed: &Pod, version: Version) {
    if let PodStage::Delete { victims, .. } = pods {
        for victim in victims.iter_mut().filter(|victim| victim.uid == claimed.uid) {
            Arc::make_mut(victim).version = version;
        }
    }
}

fn forget_deletions(purpose: Purpose, kept: &[Arc<Pod>], not_found: Vec<Uid>) -> Vec<MemoryUpdate> {
    let mut updates = Vec::new();
    let stripped = kept.iter().filter(|pod| purpose.strips_finalizer(pod));
    let stripped: Vec<Uid> = stripped.map(|pod| pod.uid.clone()).collect();
    if !stripped.is_empty() {
        updates.push(MemoryUpdate::FinalizerKept(stripped));
    }
    let kept = kept.iter().map(|pod| pod.uid.clone());
    let forgotten: Vec<Uid> = kept.chain(not_found).collect();
    if purpose.is_awaited() && !forgotten.is_empty() {
        updates.push(MemoryUpdate::NotDeleted(forgotten));
    }
    updates
}

/// The pods still count as active until the watch shows what happened to them.
pub(super) fn failed_pending(
    facts: &Facts,
    pods: &[Arc<Pod>],
    outcomes: impl Iterator<Item = Outcome<WrittenPod>>,
) -> PodResult {
    let outcomes_before = PodOutcomes::before(facts);
    let mut result =
        PodResult { outcomes: outcomes_before, side_effects: Vec::new(), failure: None };
    for (pod, outcome) in pods.iter().zip(outcomes) {
        match outcome {
            Ok(written) => {
                let version = MemoryUpdate::PodWritten(written.version);
                result.side_effects.push(SideEffect::Remember(version));
                let reason = body::pending_reason(pod);
                let message = format!("Pod {} did not start in time: {reason}", pod.name);
                let event = EventDraft::warning("PendingTimeout", message);
                result.side_effects.push(SideEffect::Event(event));
            }
            // The pod has changed since we saw it: gone, started, or bound to a node.
            Err(failure)
                if matches!(failure.kind, FailureKind::NotFound | FailureKind::Conflict) => {}
            Err(failure) => result.failure = Some(failure),
        }
    }
    result
}

/// A refusal is final: the pod then counts as it is. Any other failure is tried again.
pub(super) fn marked_faults(
    faults: &[NodeFault],
    outcomes: impl Iterator<Item = Outcome<WrittenPod>>,
) -> (Vec<SideEffect>, Option<Failure>) {
    let (mut side_effects, mut failed) = (Vec::new(), None);
    for (fault, outcome) in faults.iter().zip(outcomes) {
        let failure = match outcome {
            Ok(written) => {
                let version = MemoryUpdate::PodWritten(written.version);
                side_effects.push(SideEffect::Remember(version));
                continue;
            }
            // The pod is gone, or has changed since we saw it.
            Err(failure)
                if matches!(failure.kind, FailureKind::NotFound | FailureKind::Conflict) =>
            {
                continue;
            }
            Err(failure) => failure,
        };
        let pod = &fault.pod;
        let message = format!(
            "Pod {} does not get DisruptionTarget ({fault}): {}",
            pod.name, failure.message
        );
        side_effects
            .push(SideEffect::Event(EventDraft::warning("FailedDisruptionTarget", message)));
        if matches!(failure.kind, FailureKind::Forbidden | FailureKind::Invalid) {
            side_effects.push(SideEffect::Remember(MemoryUpdate::MarkRefused(pod.uid.clone())));
        } else {
            failed = Some(failure);
        }
    }
    (side_effects, failed)
}

/// `Created pod: a` for one, `Created pods: a, b` for more.
fn pods_message(verb: &str, names: &[Arc<str>]) -> String {
    if let [only] = names {
        return format!("{verb} pod: {only}");
    }
    let mut message = format!("{verb} pods: ");
    for (position, name) in names.iter().enumerate() {
        if message.len() + name.len() > NAMES_BYTES_MAX {
            return format!("{message} and {} more", names.len() - position);
        }
        if position > 0 {
            message += ", ";
        }
        message += name;
    }
    message
}

/// The pods that a sync created, and why. ([M9])
///
/// DIVERGES(upstream): a failed creation counts as failed only; upstream counts it as succeeded
/// too. ([M9])
fn pods_created(facts: &Facts, succeeded: usize, failed: usize) -> MetricEvent {
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
