//! Carries a plan out, one step at a time: hands out a step, takes its outcome back, and counts
//! from the census and the outcomes, never from a wish. The order of the stages is what makes
//! the counting exact: pods → flush → release → settle. (design §3, spec §10)

mod pod_stage;

use std::collections::HashSet;
use std::sync::Arc;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use k8s_openapi::api::batch::v1::JobStatus;

use super::creation::Creation;
use super::draft::{self, Closing, PodsAfter};
use super::input::{BackoffRecord, Settings};
use super::plan::{Idle, Plan};
use super::pods::PodStage;
use super::steps::{
    Claim, ClaimKind, Conclusion, EventDraft, LiveJob, Note, Recollection, Step, StepOutcome,
    Tally, WrittenPod,
};
use super::tally;
use super::tracking::{self, Ledger};
use super::verdict::End;
use crate::view::{Job, Uid};

/// A plan that is being carried out.
#[derive(Debug)]
pub struct Progress {
    plan: Plan,
    pods_per_sync: usize,
    stage: Stage,
    notes: Vec<Note>,
    after: PodsAfter,
    creation: Creation,
    closing: Closing,
    ledger: Ledger,
    /// The Job as the last successful write returned it.
    stored: Arc<Job>,
    /// The status that is being written.
    draft: JobStatus,
    released: HashSet<Uid>,
    /// Of claims and accounting; hides the one of the pod stage. ([S21])
    failure: Option<Failure>,
    pod_failure: Option<Failure>,
}

/// The step to hand out next, or whose outcome is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Confirm,
    Claim,
    Pods,
    Flush,
    Release,
    Settle,
    Done,
}

impl Progress {
    /// Begins a plan.
    pub fn new(plan: Plan, settings: &Settings) -> Self {
        let census = &plan.census;
        let drafts = match &plan.pods {
            PodStage::Create(drafts) => drafts.clone(),
            _ => Vec::new(),
        };
        let mut progress = Self {
            after: PodsAfter {
                active: census.active.len(),
                ready: census.ready,
                terminating: census.terminating.len(),
                all_deleted: true,
            },
            pods_per_sync: settings.max_uncounted_pods,
            stage: if plan.is_idle() { Stage::Done } else { Stage::Confirm },
            notes: Vec::new(),
            creation: Creation::new(drafts, settings.slow_start_initial_batch),
            closing: Closing::default(),
            ledger: Ledger::default(),
            stored: Arc::clone(&plan.job),
            draft: JobStatus::default(),
            released: HashSet::new(),
            failure: None,
            pod_failure: None,
            plan,
        };
        progress.tell_problems();
        progress
    }

    fn tell_problems(&mut self) {
        if self.plan.idle == Some(Idle::UnknownCompletionMode) {
            self.tell(EventDraft::warning(
                "UnknownCompletionMode",
                "Skipped Job sync because completion mode is unknown",
            ));
        }
        if self.plan.untold {
            let problems = self.plan.options.problems.clone();
            if !problems.is_empty() {
                self.tell(EventDraft::warning("InvalidAnnotation", problems.join("; ")));
            }
            self.remember(Recollection::Told(problems));
        }
    }

    /// The next step; none when the plan is carried out or cannot go on.
    pub fn next_step(&mut self) -> Option<Step> {
        loop {
            let step = match self.stage {
                Stage::Confirm => self.confirm(),
                Stage::Claim => self.claim(),
                Stage::Pods => self.pods(),
                Stage::Flush => self.flush(),
                Stage::Release => self.release(),
                Stage::Settle => self.settle(),
                Stage::Done => return None,
            };
            if step.is_some() {
                return step;
            }
        }
    }

    /// Takes in what became of the last step.
    pub fn done(&mut self, outcome: StepOutcome) {
        match (self.stage, outcome) {
            (Stage::Confirm, StepOutcome::Confirmed(outcome)) => self.confirmed(outcome),
            (Stage::Claim, StepOutcome::Written(outcomes)) => self.claimed(outcomes),
            (Stage::Pods, StepOutcome::Written(outcomes)) => self.created(&outcomes),
            (Stage::Pods, StepOutcome::Deleted(outcomes)) => self.deleted(&outcomes),
            (Stage::Flush, StepOutcome::Status(outcome)) => self.flushed(*outcome),
            (Stage::Release, StepOutcome::Written(outcomes)) => self.released(outcomes),
            (Stage::Settle, StepOutcome::Status(outcome)) => self.settled(*outcome),
            (stage, outcome) => {
                let message = format!("outcome {outcome:?} does not belong to stage {stage:?}");
                self.stop(Failure::new(FailureKind::Other, message));
            }
        }
    }

    /// What has come up to remember, to tell and to count since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// How the sync ended.
    pub fn conclude(self) -> Conclusion {
        Conclusion {
            result: self.failure.or(self.pod_failure).map_or(Ok(()), Err),
            requeue_after: self.plan.requeue_after,
            action: self.plan.action,
        }
    }

    fn confirm(&mut self) -> Option<Step> {
        let adopts = self.plan.claims.iter().any(|claim| claim.kind == ClaimKind::Adopt);
        if !adopts {
            self.stage = Stage::Claim;
        }
        adopts.then_some(Step::ConfirmJob)
    }

    fn confirmed(&mut self, outcome: Outcome<LiveJob>) {
        match outcome {
            Ok(live) if live.uid == self.plan.job.uid && !live.deleting => {
                self.stage = Stage::Claim;
            }
            Ok(live) => self.stop(Failure::new(
                FailureKind::Conflict,
                format!(
                    "pods are not adopted: Job {} with UID {} was deleted or replaced by UID {}",
                    self.plan.job.key, self.plan.job.uid, live.uid
                ),
            )),
            Err(failure) => self.stop(failure),
        }
    }

    fn claim(&mut self) -> Option<Step> {
        if self.plan.claims.is_empty() {
            self.stage = Stage::Pods;
            return None;
        }
        Some(Step::Claim(self.plan.claims.clone()))
    }

    /// A pod of ours that is gone needs no claim; a release that the API refuses as invalid was
    /// one of a pod that is no longer ours. Anything else ends the sync. (spec §17)
    fn claimed(&mut self, outcomes: Vec<Outcome<WrittenPod>>) {
        let claims = std::mem::take(&mut self.plan.claims);
        for (claim, outcome) in claims.iter().zip(outcomes) {
            match outcome {
                Ok(pod) => {
                    self.remember(Recollection::PodWritten(pod.version));
                    if claim.kind != ClaimKind::Release {
                        // It may be one that we had released before a user took it from us.
                        self.remember(Recollection::NotReleased(vec![pod.uid]));
                    }
                }
                Err(failure) if is_no_matter(claim, &failure) => {}
                Err(failure) => return self.stop(failure),
            }
        }
        self.stage = Stage::Pods;
    }

    /// Everything that is known of the pods is known now: drafts the first write. ([S18]–[T8])
    fn end_pods(&mut self) {
        let plan = &self.plan;
        let mut status = plan.job.status.clone();
        status.uncounted_terminated_pods.get_or_insert_default();
        self.closing = draft::closing(plan, &self.after);
        draft::start(&mut status, plan);
        let ends = plan.verdict.is_some() || self.closing.verdict.is_some();
        let suspension = (plan.manages_pods && !ends).then(|| draft::suspend(&mut status, plan));
        draft::count_pods(&mut status, &self.after);
        draft::count_disruptions(&mut status, plan);
        let closing = self.closing.verdict.as_ref();
        self.ledger = Ledger::enter(plan, closing, self.pods_per_sync, &mut status);
        for verdict in self.closing.verdict.iter().chain(&self.closing.announced) {
            draft::announce(&mut status, verdict, plan.now);
        }
        draft::normalize(&mut status);
        self.draft = status;
        if let Some(event) = suspension.flatten() {
            self.tell(event);
        }
        self.stage = Stage::Flush;
    }

    fn flush(&mut self) -> Option<Step> {
        if !draft::differs(&self.draft, &self.stored.status) {
            // A failure that the policy ignored changes no counter when its pod was replaced.
            if self.plan.backoff != BackoffRecord::default() {
                self.remember(Recollection::Backoff(self.plan.backoff));
            }
            self.stage = Stage::Release;
            return None;
        }
        Some(Step::WriteStatus(Box::new(self.draft.clone())))
    }

    fn flushed(&mut self, outcome: Outcome<Arc<Job>>) {
        match outcome {
            Ok(job) => {
                self.store(job);
                self.remember(Recollection::Backoff(self.plan.backoff));
                self.stage = Stage::Release;
            }
            Err(failure) => self.stop(failure),
        }
    }

    /// [T10] and [T11]
    fn release(&mut self) -> Option<Step> {
        for (action, pods) in std::mem::take(&mut self.ledger.handled) {
            self.count(Tally::FailureHandled { action, pods });
        }
        if self.ledger.releases.is_empty() {
            self.stage = Stage::Settle;
            return None;
        }
        let uids = self.ledger.releases.iter().map(|pod| pod.uid.clone()).collect();
        self.remember(Recollection::Releasing(uids));
        Some(Step::Release(self.ledger.releases.clone()))
    }

    /// DIVERGES(upstream): a pod that turns out to be gone is still remembered as released until
    /// the watch shows it gone; the reference forgets it at once, and counts it again while its
    /// cache shows it as it was. ([E2])
    fn released(&mut self, outcomes: Vec<Outcome<WrittenPod>>) {
        let releases = std::mem::take(&mut self.ledger.releases);
        let mut unreleased = Vec::new();
        for (pod, outcome) in releases.iter().zip(outcomes) {
            match outcome {
                Ok(written) => {
                    self.remember(Recollection::PodWritten(written.version));
                    self.released.insert(pod.uid.clone());
                }
                Err(failure) if failure.kind == FailureKind::NotFound => {
                    self.released.insert(pod.uid.clone());
                }
                Err(failure) => {
                    unreleased.push(pod.uid.clone());
                    self.failure.get_or_insert(failure);
                }
            }
        }
        if !unreleased.is_empty() {
            self.remember(Recollection::NotReleased(unreleased));
        }
        self.stage = Stage::Settle;
    }

    /// [T12] to [T14]
    fn settle(&mut self) -> Option<Step> {
        let mut status = self.stored.status.clone();
        self.ledger.settle(&mut status, &self.released, &self.plan.job);
        if let Some(verdict) =
            self.finishes(&status).then_some(self.closing.verdict.as_ref()).flatten()
        {
            draft::finish(&mut status, &self.plan.job, verdict, self.plan.now);
        }
        draft::normalize(&mut status);
        if !draft::differs(&status, &self.stored.status) {
            self.stage = Stage::Done;
            return None;
        }
        self.draft = status;
        Some(Step::WriteStatus(Box::new(self.draft.clone())))
    }

    /// [C3]
    fn finishes(&self, status: &JobStatus) -> bool {
        self.closing.verdict.is_some()
            && self.failure.is_none()
            && !self.ledger.cut_off
            && self.after.terminating == 0
            && tracking::is_settled(status)
    }

    /// [T15]
    fn settled(&mut self, outcome: Outcome<Arc<Job>>) {
        match outcome {
            Ok(job) => {
                self.store(job);
                if self.stored.is_finished() {
                    self.tell_the_end();
                }
                self.stage = Stage::Done;
            }
            Err(failure) => self.stop(failure),
        }
    }

    fn tell_the_end(&mut self) {
        let Some(verdict) = self.closing.verdict.clone() else { return };
        let succeeded = verdict.end == End::Success;
        let completions = self.plan.job.spec.completions;
        if succeeded && completions.is_some_and(|it| self.stored.status.succeeded > Some(it)) {
            self.tell(EventDraft::warning(
                "TooManySucceededPods",
                "Too many succeeded pods running after completion count reached",
            ));
        }
        self.tell(match verdict.end {
            End::Success => EventDraft::normal("Completed", "Job completed"),
            End::Failure => EventDraft::warning(&verdict.reason, &verdict.message),
        });
        self.count(Tally::JobFinished { succeeded, reason: verdict.reason });
        self.remember(Recollection::Finished);
    }

    /// Goes on from the Job as a write returned it.
    fn store(&mut self, job: Arc<Job>) {
        self.remember(Recollection::JobWritten(job.version));
        if let Some(tally) = tally::finished(&job, &self.stored.status, &job.status) {
            self.count(tally);
        }
        self.stored = job;
    }

    fn stop(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.stage = Stage::Done;
    }

    fn remember(&mut self, what: Recollection) {
        self.notes.push(Note::Remember(what));
    }

    fn tell(&mut self, event: EventDraft) {
        self.notes.push(Note::Event(event));
    }

    fn count(&mut self, tally: Tally) {
        self.notes.push(Note::Count(tally));
    }
}

/// A pod that could not be adopted because it is gone ends the sync, for the plan counts it.
fn is_no_matter(claim: &Claim, failure: &Failure) -> bool {
    match claim.kind {
        ClaimKind::Adopt => false,
        ClaimKind::Release => {
            matches!(failure.kind, FailureKind::NotFound | FailureKind::Invalid)
        }
        ClaimKind::Track => failure.kind == FailureKind::NotFound,
    }
}
