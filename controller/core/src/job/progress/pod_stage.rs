//! Carries out the pod stage of a plan: creates pods, deletes them, or fails those that do not
//! start. Updates the census with the outcome of each call.

use std::sync::Arc;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::Progress;
use crate::job::metric_events;
use crate::job::pending_timeout;
use crate::job::pods::{PodStage, Purpose};
use crate::job::slow_start;
use crate::job::steps::{EventDraft, MemoryUpdate, PodDeletion, Step, WrittenPod};
use crate::view::{Pod, Uid};

impl Progress {
    pub(super) fn pods(&mut self) -> Option<Step> {
        match &self.plan.pods {
            PodStage::Create(_) => {
                if let Some(batch) = self.slow_start.next_batch() {
                    return Some(Step::Create(batch));
                }
                self.end_creation();
            }
            PodStage::Delete { victims, purpose } => {
                let strip = purpose.strips_finalizer();
                let purpose = *purpose;
                let uids: Vec<Uid> = victims.iter().map(|pod| pod.uid.clone()).collect();
                let deletion = |pod: &Arc<Pod>| PodDeletion {
                    pod: Arc::clone(pod),
                    strip: strip && pod.tracked,
                };
                let step = Step::Delete(victims.iter().map(deletion).collect());
                if strip {
                    // A watch that lags must not make them appear countable. ([Z1])
                    self.remember(MemoryUpdate::RemovingFinalizer(uids.clone()));
                }
                if purpose.is_awaited() {
                    self.remember(MemoryUpdate::Deleting(uids));
                }
                return Some(step);
            }
            PodStage::Refuse(problem) => {
                let problem = *problem;
                self.report(EventDraft::warning(
                    "FailedCreate",
                    format!("Error creating: {problem}"),
                ));
                self.pod_failure = Some(Failure::new(FailureKind::Invalid, problem));
            }
            PodStage::FailPending(pods) => return Some(Step::FailPending(pods.clone())),
            PodStage::None => {}
        }
        self.end_pods();
        None
    }

    /// The pods still count as active until the watch shows what happened to them.
    fn failed_pending(&mut self, outcomes: &[Outcome<WrittenPod>]) {
        let PodStage::FailPending(pods) = std::mem::replace(&mut self.plan.pods, PodStage::None)
        else {
            return;
        };
        for (pod, outcome) in pods.iter().zip(outcomes) {
            match outcome {
                Ok(written) => {
                    self.remember(MemoryUpdate::PodWritten(written.version));
                    let reason = pending_timeout::reason(pod);
                    let message = format!("Pod {} did not start in time: {reason}", pod.name);
                    self.report(EventDraft::warning("PendingTimeout", message));
                }
                // The pod has changed since we saw it: gone, started, or bound to a node.
                Err(failure) if is_overtaken(failure) => {}
                Err(failure) => self.pod_failure = Some(failure.clone()),
            }
        }
        self.end_pods();
    }

    pub(super) fn created(&mut self, outcomes: &[Outcome<WrittenPod>]) {
        if matches!(self.plan.pods, PodStage::FailPending(_)) {
            return self.failed_pending(outcomes);
        }
        for pod in outcomes.iter().flatten() {
            self.remember(MemoryUpdate::Created(pod.clone()));
        }
        self.slow_start.done(outcomes);
    }

    /// DIVERGES(upstream): only pods that exist are counted as active. Upstream also counts those
    /// that a terminating namespace refused, and waits for them. ([P9])
    fn end_creation(&mut self) {
        let (created, failed) = (self.slow_start.created(), self.slow_start.failed());
        self.counts.active += created;
        self.pod_failure = self.slow_start.failure().cloned();
        for event in self.slow_start.events() {
            self.report(event);
        }
        self.count(metric_events::created(&self.plan, created, failed));
    }

    /// DIVERGES(upstream): a pod whose deletion failed still counts as active and ready. Upstream
    /// takes it out of `ready` alone, or of `active` alone. ([P13], [P14])
    pub(super) fn deleted(&mut self, outcomes: &[Outcome<()>]) {
        let PodStage::Delete { victims, purpose } =
            std::mem::replace(&mut self.plan.pods, PodStage::None)
        else {
            return;
        };
        let (mut gone, mut kept, mut failures) = (Vec::new(), Vec::new(), Vec::<Failure>::new());
        for (pod, outcome) in victims.iter().zip(outcomes) {
            match outcome {
                Err(failure) if failure.kind != FailureKind::NotFound => {
                    kept.push(pod.uid.clone());
                    failures.push(failure.clone());
                }
                _ => gone.push(pod),
            }
        }
        self.counts.active -= gone.len();
        self.counts.terminating += gone.len();
        self.counts.ready -= gone.iter().filter(|pod| pod.is_ready()).count();
        self.counts.all_deleted = kept.is_empty();
        let not_found = gone_already(&victims, outcomes);
        self.forget_deletions(purpose, kept, not_found);
        let names: Vec<Arc<str>> = gone.iter().map(|pod| Arc::clone(&pod.name)).collect();
        if !names.is_empty() {
            let message = slow_start::pods_message("Deleted", &names);
            self.report(EventDraft::normal("SuccessfulDelete", message));
        }
        if let Some(first) = failures.first() {
            let message = format!("Error deleting: {}", first.message);
            self.report(EventDraft::warning("FailedDelete", message));
        }
        self.pod_failure = failures.into_iter().next();
        self.end_pods();
    }

    fn forget_deletions(&mut self, purpose: Purpose, kept: Vec<Uid>, not_found: Vec<Uid>) {
        if purpose.strips_finalizer() && !kept.is_empty() {
            self.remember(MemoryUpdate::FinalizerKept(kept.clone()));
        }
        let forgotten = [kept, not_found].concat();
        if purpose.is_awaited() && !forgotten.is_empty() {
            self.remember(MemoryUpdate::NotDeleted(forgotten));
        }
    }
}

fn is_overtaken(failure: &Failure) -> bool {
    matches!(failure.kind, FailureKind::NotFound | FailureKind::Conflict)
}

/// Pods that were gone before we deleted them; no watch event will show our deletion.
fn gone_already(victims: &[Arc<Pod>], outcomes: &[Outcome<()>]) -> Vec<Uid> {
    let not_found = |outcome: &Outcome<()>| {
        outcome.as_ref().is_err_and(|failure| failure.kind == FailureKind::NotFound)
    };
    let gone = victims.iter().zip(outcomes).filter(|(_, outcome)| not_found(outcome));
    gone.map(|(pod, _)| pod.uid.clone()).collect()
}
