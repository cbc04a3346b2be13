//! Carries out a plan, one step at a time: returns a step, takes its outcome, and counts only from
//! the census and the outcomes. The order of the stages makes the counting exact: pods → flush →
//! remove finalizers → settle.

mod pod_stage;

use std::collections::HashSet;
use std::sync::Arc;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use k8s_openapi::api::batch::v1::JobStatus;

use super::memory::BackoffRecord;
use super::metric_events;
use super::plan::{Plan, SkipReason};
use super::pods::PodStage;
use super::slow_start::SlowStart;
use super::status::{self, Finish, PodCounts};
use super::steps::{
    Claim, ClaimKind, EventDraft, LiveJob, MemoryUpdate, MetricEvent, SideEffect, Step,
    StepOutcome, SyncResult, WrittenPod,
};
use super::sync_input::Settings;
use super::tracking::{self, Accounting};
use super::verdict::End;
use crate::view::{Job, Uid};

/// A plan in progress.
#[derive(Debug)]
pub struct Progress {
    plan: Plan,
    pods_per_sync: usize,
    stage: Stage,
    side_effects: Vec<SideEffect>,
    counts: PodCounts,
    slow_start: SlowStart,
    finish: Finish,
    accounting: Accounting,
    /// The Job as the last successful write returned it.
    stored: Arc<Job>,
    /// The status that is being written.
    draft: JobStatus,
    untracked: HashSet<Uid>,
    /// The failure of claims and accounting; it hides the failure of the pod stage. ([S21])
    failure: Option<Failure>,
    pod_failure: Option<Failure>,
}

/// The step to return next, or whose outcome is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Confirm,
    Claim,
    Pods,
    Flush,
    RemoveFinalizer,
    Settle,
    Done,
}

impl Progress {
    /// Starts a plan.
    pub fn new(plan: Plan, settings: &Settings) -> Self {
        let census = &plan.census;
        let drafts = match &plan.pods {
            PodStage::Create(drafts) => drafts.clone(),
            _ => Vec::new(),
        };
        let mut progress = Self {
            counts: PodCounts {
                active: census.active.len(),
                ready: census.ready,
                terminating: census.terminating.len(),
                all_deleted: true,
            },
            pods_per_sync: settings.max_uncounted_pods,
            stage: if plan.is_skipped() { Stage::Done } else { Stage::Confirm },
            side_effects: Vec::new(),
            slow_start: SlowStart::new(drafts, settings.slow_start_initial_batch),
            finish: Finish::default(),
            accounting: Accounting::default(),
            stored: Arc::clone(&plan.job),
            draft: JobStatus::default(),
            untracked: HashSet::new(),
            failure: None,
            pod_failure: None,
            plan,
        };
        progress.report_problems();
        progress
    }

    fn report_problems(&mut self) {
        if self.plan.skip == Some(SkipReason::UnknownCompletionMode) {
            self.report(EventDraft::warning(
                "UnknownCompletionMode",
                "Skipped Job sync because completion mode is unknown",
            ));
        }
        if self.plan.unreported {
            let problems = self.plan.options.problems.clone();
            if !problems.is_empty() {
                self.report(EventDraft::warning("InvalidAnnotation", problems.join("; ")));
            }
            self.remember(MemoryUpdate::Reported(problems));
        }
    }

    /// The next step; `None` when the plan is complete or cannot go on.
    pub fn next_step(&mut self) -> Option<Step> {
        loop {
            let step = match self.stage {
                Stage::Confirm => self.confirm(),
                Stage::Claim => self.claim(),
                Stage::Pods => self.pods(),
                Stage::Flush => self.flush(),
                Stage::RemoveFinalizer => self.remove_finalizers(),
                Stage::Settle => self.settle(),
                Stage::Done => return None,
            };
            if step.is_some() {
                return step;
            }
        }
    }

    /// Takes the outcome of the last step.
    pub fn done(&mut self, outcome: StepOutcome) {
        match (self.stage, outcome) {
            (Stage::Confirm, StepOutcome::Confirmed(outcome)) => self.confirmed(outcome),
            (Stage::Claim, StepOutcome::Written(outcomes)) => self.claimed(outcomes),
            (Stage::Pods, StepOutcome::Written(outcomes)) => self.created(&outcomes),
            (Stage::Pods, StepOutcome::Deleted(outcomes)) => self.deleted(&outcomes),
            (Stage::Flush, StepOutcome::Status(outcome)) => self.flushed(*outcome),
            (Stage::RemoveFinalizer, StepOutcome::Written(outcomes)) => {
                self.finalizers_removed(outcomes);
            }
            (Stage::Settle, StepOutcome::Status(outcome)) => self.settled(*outcome),
            (stage, outcome) => {
                let message = format!("outcome {outcome:?} does not belong to stage {stage:?}");
                self.stop(Failure::new(FailureKind::Other, message));
            }
        }
    }

    /// The side effects since the last call: what to remember, to report and to count.
    pub fn take_side_effects(&mut self) -> Vec<SideEffect> {
        std::mem::take(&mut self.side_effects)
    }

    /// How the sync ended.
    pub fn into_result(self) -> SyncResult {
        SyncResult {
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

    /// A pod of ours that is gone needs no claim. A disowning patch that the API refuses as invalid
    /// was for a pod that is no longer ours. Any other failure ends the sync. ([L3])
    fn claimed(&mut self, outcomes: Vec<Outcome<WrittenPod>>) {
        let claims = std::mem::take(&mut self.plan.claims);
        for (claim, outcome) in claims.iter().zip(outcomes) {
            match outcome {
                Ok(pod) => {
                    self.remember(MemoryUpdate::PodWritten(pod.version));
                    if claim.kind != ClaimKind::Disown {
                        // We may have removed the finalizer before a user took the pod from us.
                        self.remember(MemoryUpdate::FinalizerKept(vec![pod.uid]));
                    }
                }
                Err(failure) if is_no_matter(claim, &failure) => {}
                Err(failure) => return self.stop(failure),
            }
        }
        self.stage = Stage::Pods;
    }

    /// All facts about the pods are known now: drafts the first write. ([S18], [T8])
    fn end_pods(&mut self) {
        let plan = &self.plan;
        let mut status = plan.job.status.clone();
        status.uncounted_terminated_pods.get_or_insert_default();
        self.finish = status::decide_finish(plan, &self.counts);
        status::start(&mut status, plan);
        let ends = plan.verdict.is_some() || self.finish.verdict.is_some();
        let suspension = (plan.manages_pods && !ends).then(|| status::suspend(&mut status, plan));
        status::count_pods(&mut status, &self.counts);
        status::count_disruptions(&mut status, plan);
        let finish = self.finish.verdict.as_ref();
        self.accounting = Accounting::enter(plan, finish, self.pods_per_sync, &mut status);
        for verdict in self.finish.verdict.iter().chain(&self.finish.announced) {
            status::announce(&mut status, verdict, plan.now);
        }
        status::normalize(&mut status);
        self.draft = status;
        if let Some(event) = suspension.flatten() {
            self.report(event);
        }
        self.stage = Stage::Flush;
    }

    fn flush(&mut self) -> Option<Step> {
        if !status::differs(&self.draft, &self.stored.status) {
            // DIVERGES(upstream): the backoff is remembered also when there is nothing to write.
            // A failure that the policy ignored changes no counter when its pod was replaced, and
            // upstream then forgets the wait. ([T9])
            if self.plan.backoff != BackoffRecord::default() {
                self.remember(MemoryUpdate::Backoff(self.plan.backoff));
            }
            self.stage = Stage::RemoveFinalizer;
            return None;
        }
        Some(Step::WriteStatus(Box::new(self.draft.clone())))
    }

    fn flushed(&mut self, outcome: Outcome<Arc<Job>>) {
        match outcome {
            Ok(job) => {
                self.store(job);
                self.remember(MemoryUpdate::Backoff(self.plan.backoff));
                self.stage = Stage::RemoveFinalizer;
            }
            Err(failure) => self.stop(failure),
        }
    }

    /// Counts the rules that matched, then removes finalizers. ([T10], [T11])
    fn remove_finalizers(&mut self) -> Option<Step> {
        for (action, pods) in std::mem::take(&mut self.accounting.handled) {
            self.count(MetricEvent::FailureHandled { action, pods });
        }
        if self.accounting.finalizers.is_empty() {
            self.stage = Stage::Settle;
            return None;
        }
        let uids = self.accounting.finalizers.iter().map(|pod| pod.uid.clone()).collect();
        self.remember(MemoryUpdate::RemovingFinalizer(uids));
        Some(Step::RemoveFinalizer(self.accounting.finalizers.clone()))
    }

    /// DIVERGES(upstream): a pod that turns out to be gone is still remembered as released until
    /// the watch shows it gone. Upstream forgets it at once, and counts it again while its cache is
    /// behind. ([E2])
    fn finalizers_removed(&mut self, outcomes: Vec<Outcome<WrittenPod>>) {
        let pods = std::mem::take(&mut self.accounting.finalizers);
        let mut kept = Vec::new();
        for (pod, outcome) in pods.iter().zip(outcomes) {
            match outcome {
                Ok(written) => {
                    self.remember(MemoryUpdate::PodWritten(written.version));
                    self.untracked.insert(pod.uid.clone());
                }
                Err(failure) if failure.kind == FailureKind::NotFound => {
                    self.untracked.insert(pod.uid.clone());
                }
                Err(failure) => {
                    kept.push(pod.uid.clone());
                    self.failure.get_or_insert(failure);
                }
            }
        }
        if !kept.is_empty() {
            self.remember(MemoryUpdate::FinalizerKept(kept));
        }
        self.stage = Stage::Settle;
    }

    /// Counts the released pods, and finishes the Job if it may. ([T12], [T13], [T14])
    fn settle(&mut self) -> Option<Step> {
        let mut status = self.stored.status.clone();
        self.accounting.settle(&mut status, &self.untracked, &self.plan.job);
        if let Some(verdict) =
            self.finishes(&status).then_some(self.finish.verdict.as_ref()).flatten()
        {
            status::finish(&mut status, &self.plan.job, verdict, self.plan.now);
        }
        status::normalize(&mut status);
        if !status::differs(&status, &self.stored.status) {
            self.stage = Stage::Done;
            return None;
        }
        self.draft = status;
        Some(Step::WriteStatus(Box::new(self.draft.clone())))
    }

    /// Whether the terminal condition may be added. ([C3])
    fn finishes(&self, status: &JobStatus) -> bool {
        self.finish.verdict.is_some()
            && self.failure.is_none()
            && !self.accounting.cut_off
            && self.counts.terminating == 0
            && tracking::is_settled(status)
    }

    /// Takes the outcome of the second write, and reports the end that it stored. ([T15])
    fn settled(&mut self, outcome: Outcome<Arc<Job>>) {
        match outcome {
            Ok(job) => {
                self.store(job);
                if self.stored.is_finished() {
                    self.report_finish();
                }
                self.stage = Stage::Done;
            }
            Err(failure) => self.stop(failure),
        }
    }

    fn report_finish(&mut self) {
        let Some(verdict) = self.finish.verdict.clone() else { return };
        let succeeded = verdict.end == End::Success;
        let completions = self.plan.job.spec.completions;
        if succeeded && completions.is_some_and(|it| self.stored.status.succeeded > Some(it)) {
            self.report(EventDraft::warning(
                "TooManySucceededPods",
                "Too many succeeded pods running after completion count reached",
            ));
        }
        self.report(match verdict.end {
            End::Success => EventDraft::normal("Completed", "Job completed"),
            End::Failure => EventDraft::warning(&verdict.reason, &verdict.message),
        });
        self.count(MetricEvent::JobFinished { succeeded, reason: verdict.reason });
        self.remember(MemoryUpdate::Finished);
    }

    /// Continues from the Job as a write returned it.
    fn store(&mut self, job: Arc<Job>) {
        self.remember(MemoryUpdate::JobWritten(job.version));
        if let Some(metric_event) = metric_events::finished(&job, &self.stored.status, &job.status)
        {
            self.count(metric_event);
        }
        self.stored = job;
    }

    fn stop(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.stage = Stage::Done;
    }

    fn remember(&mut self, what: MemoryUpdate) {
        self.side_effects.push(SideEffect::Remember(what));
    }

    fn report(&mut self, event: EventDraft) {
        self.side_effects.push(SideEffect::Event(event));
    }

    fn count(&mut self, metric_event: MetricEvent) {
        self.side_effects.push(SideEffect::Count(metric_event));
    }
}

/// Whether a failed claim does not end the sync.
///
/// DIVERGES(upstream): a failed adoption always ends it, because the plan counts the pod. Upstream
/// goes on without a pod that is gone. ([L3])
fn is_no_matter(claim: &Claim, failure: &Failure) -> bool {
    match claim.kind {
        ClaimKind::Adopt => false,
        ClaimKind::Disown => {
            matches!(failure.kind, FailureKind::NotFound | FailureKind::Invalid)
        }
        ClaimKind::Track => failure.kind == FailureKind::NotFound,
    }
}
