//! Carries out the two plans of a sync: hands out calls, takes their outcomes, and makes the second
//! plan from those of the first. It does no IO, so program, simulation and checks run the same.
//!
//! The stages keep their order, which makes the counting exact: pods → flush → release → settle.

mod group;

use std::collections::HashSet;
use std::sync::Arc;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use epilogue_common::pod_end::Counted;
use k8s_openapi::api::batch::v1::JobStatus;

use super::calls::{Calls, misplaced, pod};
use super::end_events::PodEnded;
use super::group::{PodGroupDraft, Resize, SchedulingGroup};
use super::input::{BackoffRecord, MemoryUpdate, Settings};
use super::plan::{PodPlan, STALE_RETRY, SkipReason, earliest};
use super::pod_stage::{PodResult, SlowStart};
use super::pods::PodStage;
use super::status_plan::{PodOutcomes, StatusPlan, plan_status};
use super::steps::{
    Answer, Call, ClaimKind, EventDraft, MetricEvent, SideEffect, Step, SyncResult,
};
use super::verdict::{End, Verdict};
use super::{adoption, pod_stage, status_plan, tracking};
use crate::view::Job;

/// A sync in progress.
#[derive(Clone, Debug)]
pub struct Progress {
    plan: PodPlan,
    /// The Job as last read or written; the next write is based on it.
    job: Arc<Job>,
    stage: Stage,
    calls: Calls,
    side_effects: Vec<SideEffect>,
    group: Option<Arc<SchedulingGroup>>,
    /// Whether admission takes a status only with the spec.
    repeats_spec: bool,
    /// Whether the API stored other counts than were written.
    altered: bool,
    /// The failure of the pod stage; a failure of claims or accounting hides it. ([S21])
    pod_failure: Option<Failure>,
    /// Whether nothing is left for when the watches have caught up.
    complete: bool,
    initial_batch: usize,
}

/// The stage whose calls are being made, with what its end needs.
#[derive(Clone, Debug)]
enum Stage {
    Confirm,
    Claim,
    Workload,
    PodGroup(PodGroupDraft),
    Resize(Vec<Resize>),
    Create(SlowStart),
    Delete,
    FailPending,
    MarkFaults,
    Flush(StatusPlan),
    Release(StatusPlan),
    /// The end that the second write stores, and the failure of a release.
    Settle(Option<Verdict>, Option<Failure>),
    /// The failure of claims or accounting.
    Done(Option<Failure>),
}

/// A stage and its steps, which run concurrently. A stage without steps ends at once.
type Next = (Stage, Vec<Step>);

impl Progress {
    /// Starts a plan.
    pub fn new(plan: PodPlan, settings: &Settings) -> Self {
        let adopts = plan.claims.iter().any(|claim| claim.kind == ClaimKind::Adopt);
        let (stage, steps) = if plan.is_skipped() {
            (Stage::Done(None), Vec::new())
        } else {
            let steps = adopts.then_some(Step::ConfirmJob).into_iter();
            (Stage::Confirm, steps.chain(plan.confirms.map(|_| Step::ConfirmPods)).collect())
        };
        let mut progress = Self {
            job: Arc::clone(&plan.facts.job),
            stage,
            calls: Calls::new(steps),
            side_effects: Vec::new(),
            group: None,
            repeats_spec: plan.facts.status_needs_spec,
            altered: false,
            pod_failure: None,
            complete: plan.skip != Some(SkipReason::Stale),
            initial_batch: settings.slow_start_initial_batch,
            plan,
        };
        progress.report_problems();
        progress.advance();
        progress
    }

    /// The Job as last read or written; the next call is based on it.
    pub fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// The plan of the status whose first write or releases are being made. The plan of pods no
    /// longer matters then.
    pub fn status_plan(&self) -> Option<&StatusPlan> {
        match &self.stage {
            Stage::Flush(plan) | Stage::Release(plan) => Some(plan),
            _ => None,
        }
    }

    /// Whether the calls at hand create pods, whose bodies may be large.
    pub fn creates(&self) -> bool {
        matches!(self.stage, Stage::Create(_))
    }

    /// A call to make now, concurrently with those that are not answered yet.
    pub fn next_call(&mut self) -> Option<Call> {
        self.calls.next()
    }

    /// Whether one call is unanswered, so that its outcome ends the stage and leads to a plan.
    pub fn ends_stage(&self) -> bool {
        self.calls.unanswered == 1
    }

    /// Takes the outcome of a call. The sync is over when none is unanswered and there is no next.
    pub fn done(&mut self, call: &Call, outcome: Outcome<Answer>) {
        if let (Some(status), Ok(Answer::Job(job))) = (call.step.status(), &outcome) {
            self.altered = !tracking::counts_are(status, &job.status);
            if !self.repeats_spec && matches!(call.step, Step::WriteWholeStatus(_)) {
                self.repeats_spec = true;
                self.remember(MemoryUpdate::StatusNeedsSpec);
            }
        }
        if let (Step::Strip(_), Ok(Answer::Pod(pod))) = (&call.step, &outcome) {
            self.remember(MemoryUpdate::PodWritten(pod.version));
        }
        self.calls.done(call, outcome);
        self.advance();
    }

    /// The side effects since the last time: what to remember, to report and to count. They come
    /// before the next call.
    pub fn take_side_effects(&mut self) -> Vec<SideEffect> {
        std::mem::take(&mut self.side_effects)
    }

    /// How the sync ended.
    pub fn into_result(self) -> SyncResult {
        let failure = match self.stage {
            Stage::Done(failure) => failure,
            _ => None,
        };
        SyncResult {
            result: failure.or(self.pod_failure).map_or(Ok(()), Err),
            complete: self.complete,
            requeue_after: self.plan.requeue_after,
            action: self.plan.action,
        }
    }

    /// Goes on to the next stage that has calls to make.
    fn advance(&mut self) {
        while self.calls.unanswered == 0 {
            let outcomes = std::mem::take(&mut self.calls).into_outcomes();
            let (stage, steps) = match std::mem::replace(&mut self.stage, Stage::Done(None)) {
                Stage::Confirm => self.confirmed(outcomes),
                Stage::Claim => self.claimed(outcomes),
                Stage::Workload => self.workload_created(outcomes),
                Stage::PodGroup(draft) => self.pod_group_created(&draft, outcomes),
                Stage::Resize(resizes) => self.resized(&resizes, outcomes),
                Stage::Create(slow_start) => self.created(slow_start, outcomes),
                Stage::Delete => self.deleted(outcomes),
                Stage::FailPending => self.failed_pending(outcomes),
                Stage::MarkFaults => self.marked_faults(outcomes),
                Stage::Flush(plan) => self.flushed(plan, outcomes),
                Stage::Release(plan) => self.released(plan, outcomes),
                Stage::Settle(end, failure) => self.settled(end, failure, outcomes),
                done @ Stage::Done(_) => {
                    self.stage = done;
                    return;
                }
            };
            self.stage = stage;
            self.calls = Calls::new(steps);
        }
    }

    fn report_problems(&mut self) {
        if self.plan.skip == Some(SkipReason::UnknownCompletionMode) {
            self.report(EventDraft::warning(
                "UnknownCompletionMode",
                "Skipped Job sync because completion mode is unknown",
            ));
        }
        if self.plan.unreported {
            let problems = self.plan.facts.options.problems.clone();
            if !problems.is_empty() {
                self.report(EventDraft::warning("InvalidAnnotation", problems.join("; ")));
            }
            self.remember(MemoryUpdate::Reported(problems));
        }
    }

    /// DIVERGES(upstream): a creation without a reply may have been carried out. Upstream creates
    /// the pod again as soon as its backoff is over; while its watch is behind, a pod too many
    /// runs, or the Job ends while a pod of it runs. ([P9])
    fn confirmed(&mut self, outcomes: Vec<Outcome<Answer>>) -> Next {
        for outcome in outcomes {
            match outcome {
                Ok(Answer::Live(live)) if live.uid == self.job.uid && !live.deleting => {}
                Ok(Answer::Live(live)) => {
                    let (key, uid) = (&self.job.key, &self.job.uid);
                    let message = format!(
                        "pods are not adopted: Job {key} with UID {uid} was deleted or replaced by \
                         UID {}",
                        live.uid
                    );
                    return stop(Failure::new(FailureKind::Conflict, message));
                }
                Ok(Answer::Newest(version)) => {
                    self.remember(MemoryUpdate::PodsConfirmed(version));
                    if Some(version) > self.plan.confirms {
                        self.plan.requeue_after = Some(STALE_RETRY);
                        self.complete = false;
                        return (Stage::Done(None), Vec::new());
                    }
                }
                Ok(answer) => return stop(misplaced(&answer)),
                Err(failure) => return stop(failure),
            }
        }
        (Stage::Claim, self.plan.claims.iter().cloned().map(Step::Claim).collect())
    }

    fn claimed(&mut self, outcomes: Vec<Outcome<Answer>>) -> Next {
        let PodPlan { claims, pods, .. } = &mut self.plan;
        let outcomes = outcomes.into_iter().map(pod);
        let (side_effects, failure) = adoption::claimed(claims, outcomes, pods);
        self.side_effects.extend(side_effects);
        failure.map_or_else(|| self.begin_group(), stop)
    }

    fn begin_pods(&mut self) -> Next {
        if !self.plan.awaits_boots.is_empty() {
            let uids = self.plan.awaits_boots.iter().map(|pod| pod.uid.clone()).collect();
            self.remember(MemoryUpdate::Marking(uids));
        }
        match &self.plan.pods {
            PodStage::Create(drafts) => {
                let slow_start = SlowStart::new(drafts.len(), self.initial_batch);
                self.created(slow_start, Vec::new())
            }
            PodStage::Delete { victims, purpose } => {
                self.side_effects.extend(pod_stage::deleting(victims, *purpose));
                let step = |pod| Step::delete(pod, purpose.strips_finalizer(pod));
                (Stage::Delete, victims.iter().map(step).collect())
            }
            PodStage::FailPending(pods) => {
                (Stage::FailPending, pods.iter().cloned().map(Step::FailPending).collect())
            }
            PodStage::MarkFaults(faults) => {
                let uids = faults.iter().map(|fault| fault.pod.uid.clone()).collect();
                self.side_effects.push(SideEffect::Remember(MemoryUpdate::Marking(uids)));
                (Stage::MarkFaults, faults.iter().cloned().map(Step::MarkFault).collect())
            }
            PodStage::Refuse(problem) => {
                let problem = *problem;
                let message = format!("Error creating: {problem}");
                self.report(EventDraft::warning("FailedCreate", message));
                self.pod_failure = Some(Failure::new(FailureKind::Invalid, problem));
                self.plan_status(&PodOutcomes::before(&self.plan.facts))
            }
            PodStage::None => self.plan_status(&PodOutcomes::before(&self.plan.facts)),
        }
    }

    /// Creates the next batch, until all are created or a call failed.
    fn created(&mut self, mut slow_start: SlowStart, outcomes: Vec<Outcome<Answer>>) -> Next {
        for outcome in outcomes {
            self.side_effects.extend(slow_start.done(pod(outcome)));
        }
        if let PodStage::Create(drafts) = &self.plan.pods
            && let Some(batch) = slow_start.next_batch()
        {
            let drafts = drafts[batch].iter().map(|draft| self.grouped(draft));
            let steps = drafts.map(Step::Create).collect();
            return (Stage::Create(slow_start), steps);
        }
        let result = slow_start.result(&self.plan.facts);
        self.end_pods(result)
    }

    fn deleted(&mut self, outcomes: Vec<Outcome<Answer>>) -> Next {
        let PodStage::Delete { victims, purpose } = &self.plan.pods else {
            return (Stage::Done(None), Vec::new());
        };
        let result = pod_stage::deleted(&self.plan.facts, victims, *purpose, outcomes);
        self.end_pods(result)
    }

    fn failed_pending(&mut self, outcomes: Vec<Outcome<Answer>>) -> Next {
        let PodStage::FailPending(pods) = &self.plan.pods else {
            return (Stage::Done(None), Vec::new());
        };
        let outcomes = outcomes.into_iter().map(pod);
        let result = pod_stage::failed_pending(&self.plan.facts, pods, outcomes);
        self.end_pods(result)
    }

    /// The next sync counts the pods, and reads what the watch then shows of them.
    fn marked_faults(&mut self, outcomes: Vec<Outcome<Answer>>) -> Next {
        let PodStage::MarkFaults(faults) = &self.plan.pods else {
            return (Stage::Done(None), Vec::new());
        };
        let outcomes = outcomes.into_iter().map(pod);
        let (side_effects, failure) = pod_stage::marked_faults(faults, outcomes);
        self.side_effects.extend(side_effects);
        (Stage::Done(failure), Vec::new())
    }

    fn end_pods(&mut self, result: PodResult) -> Next {
        self.side_effects.extend(result.side_effects);
        self.pod_failure = result.failure.or(self.pod_failure.take());
        self.plan_status(&result.outcomes)
    }

    fn plan_status(&mut self, outcomes: &PodOutcomes) -> Next {
        let mut plan = plan_status(&self.plan, outcomes);
        self.side_effects.extend(plan.event.take().map(SideEffect::Event));
        if plan.waits.is_some() {
            self.remember(MemoryUpdate::CountsWait);
            self.plan.requeue_after = earliest([self.plan.requeue_after, plan.waits]);
        }
        let completing = plan.completing();
        if !completing.is_empty() {
            self.remember(MemoryUpdate::Completing(completing));
        }
        let steps = plan.flush.take().map(|status| self.write(status)).into_iter().collect();
        (Stage::Flush(plan), steps)
    }

    /// Counts the rules that matched, then removes finalizers. ([T10], [T11])
    fn flushed(&mut self, plan: StatusPlan, outcomes: Vec<Outcome<Answer>>) -> Next {
        let written = !outcomes.is_empty();
        if let Err(failure) = self.store(outcomes) {
            if failure.is_in_doubt() {
                self.remember(MemoryUpdate::BackoffInDoubt);
            }
            return stop(failure);
        }
        // DIVERGES(upstream): the backoff is remembered also when there is nothing to write. A
        // failure that the policy ignored changes no counter when its pod was replaced, and
        // upstream then forgets the wait. ([T9])
        let backoff = self.plan.facts.backoff;
        if written || backoff != BackoffRecord::default() {
            self.remember(MemoryUpdate::Backoff(backoff));
        }
        if let Some(ends) = &plan.ends {
            self.remember(MemoryUpdate::Ends(Arc::clone(ends)));
        }
        self.tell(plan.ended.iter().filter(|ended| ended.counted != Counted::Ignored));
        for (&action, &pods) in &plan.handled {
            self.count(MetricEvent::FailureHandled { action, pods });
        }
        if !plan.release.is_empty() {
            let uids = plan.release.iter().map(|pod| pod.uid.clone()).collect();
            self.remember(MemoryUpdate::RemovingFinalizer(uids));
        }
        let steps = plan.release.iter().cloned().map(Step::RemoveFinalizer).collect();
        (Stage::Release(plan), steps)
    }

    /// DIVERGES(upstream): a pod that turns out to be gone is still remembered as released until
    /// the watch shows it gone. Upstream forgets it at once, and counts it again while its cache is
    /// behind. ([E2])
    fn released(&mut self, plan: StatusPlan, outcomes: Vec<Outcome<Answer>>) -> Next {
        let (mut released, mut kept) = (HashSet::new(), Vec::new());
        let mut failures = Vec::new();
        for (released_pod, outcome) in plan.release.iter().zip(outcomes) {
            let uid = released_pod.uid.clone();
            match pod(outcome) {
                Ok(written) => {
                    self.remember(MemoryUpdate::PodWritten(written.version));
                    released.insert(uid);
                }
                Err(failure) if failure.kind == FailureKind::NotFound => {
                    released.insert(uid);
                }
                Err(failure) => {
                    kept.push(uid);
                    failures.push((&**released_pod, failure));
                }
            }
        }
        if !kept.is_empty() {
            self.remember(MemoryUpdate::FinalizerKept(kept));
        }
        // The status lists none of these. One whose finalizer is kept comes again.
        let ignored = plan.ended.iter().filter(|ended| ended.counted == Counted::Ignored);
        self.tell(ignored.filter(|ended| released.contains(&ended.pod.uid)));
        let reported = failures.iter().map(|(pod, failure)| (*pod, failure));
        self.side_effects.extend(pod_stage::refused_release(reported).map(SideEffect::Event));
        let first = failures.into_iter().next().map(|(_, failure)| failure);
        let write = plan.settle.after(&self.job.status, &released, first.is_none());
        let steps = write.map(|status| self.write(status)).into_iter().collect();
        (Stage::Settle(plan.settle.end, first), steps)
    }

    /// Takes the outcome of the second write, and reports the end that it stored. ([T15])
    fn settled(
        &mut self,
        end: Option<Verdict>,
        failure: Option<Failure>,
        outcomes: Vec<Outcome<Answer>>,
    ) -> Next {
        let written = !outcomes.is_empty();
        let failure = failure.or(self.store(outcomes).err());
        if let Some(verdict) = end
            && written
            && self.job.is_finished()
        {
            self.report_finish(verdict);
        }
        (Stage::Done(failure), Vec::new())
    }

    fn report_finish(&mut self, verdict: Verdict) {
        let succeeded = verdict.end == End::Success;
        let completions = self.plan.facts.job.spec.completions;
        if succeeded && completions.is_some_and(|it| self.job.status.succeeded > Some(it)) {
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

    /// Continues from the Job as a write of the status returned it, if there was one.
    ///
    /// DIVERGES(upstream): counts that admission altered end the sync. Upstream removes the
    /// finalizers all the same, so that pods are counted twice or never. ([T9])
    fn store(&mut self, outcomes: Vec<Outcome<Answer>>) -> Result<(), Failure> {
        for outcome in outcomes {
            let job = match outcome? {
                Answer::Job(job) => job,
                answer => return Err(misplaced(&answer)),
            };
            self.remember(MemoryUpdate::JobWritten(job.version));
            let counted = status_plan::finished(&job, &self.job.status, &job.status);
            self.side_effects.extend(counted.map(SideEffect::Count));
            self.job = job;
        }
        if !std::mem::take(&mut self.altered) {
            return Ok(());
        }
        self.report(EventDraft::warning("StatusAltered", tracking::ALTERED));
        Err(Failure::new(FailureKind::Other, tracking::ALTERED))
    }

    fn write(&self, status: Box<JobStatus>) -> Step {
        if self.repeats_spec { Step::WriteWholeStatus(status) } else { Step::WriteStatus(status) }
    }

    /// Reports and counts how these pods ended.
    fn tell<'a>(&mut self, ended: impl Iterator<Item = &'a PodEnded>) {
        for ended in ended {
            let PodEnded { cause, counted, .. } = *ended;
            self.count(MetricEvent::PodEnded { cause, counted });
            self.report(ended.event());
        }
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

fn stop(failure: Failure) -> Next {
    (Stage::Done(Some(failure)), Vec::new())
}
