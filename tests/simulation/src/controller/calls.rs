//! Carries out calls to the model API, by the API's own rules and under injected faults. The ledger
//! records every call that has an effect.

use std::sync::Arc;

use controller_core::job::{
    Answer, Claim, GroupStep, LiveJob, NodeFault, PodPlan, Step, WrittenPod, mark_fault_patch,
};
use controller_core::view::{Job, JobKey, Pod};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::Sabotage;
use super::api::GRACE_SECONDS;
use super::pod_object;
use super::process::Life;
use super::situations::Met;
use super::world::World;

/// Fate of a call on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Through,
    /// Refused before anything happened.
    Refused(FailureKind),
    /// Carried out, but the reply never comes.
    ReplyLost,
}

/// Describes a step in one line.
pub(crate) fn described(step: &Step) -> String {
    match step {
        Step::ConfirmJob => "reads the Job".to_owned(),
        Step::ConfirmPods => "lists the Job's pods".to_owned(),
        Step::Claim(claim) => format!("claims {}: {:?}", claim.pod.uid, claim.kind),
        Step::Group(step) => step.to_string(),
        Step::Create(draft) => format!("creates a pod {:?}", draft.index),
        Step::Strip(pod) => format!("strips {} to delete it", pod.uid),
        Step::Delete(pod, None) => format!("deletes {}", pod.uid),
        Step::Delete(pod, Some(version)) => format!("deletes {} at {version}", pod.uid),
        Step::RemoveFinalizer(pod) => {
            format!("removes the finalizer of {} {:?}", pod.uid, pod.phase)
        }
        Step::FailPending(pod) => format!("fails {}, which is pending", pod.uid),
        Step::MarkFault(fault) => format!("marks {}: {fault}", fault.pod.uid),
        Step::WriteStatus(status) | Step::WriteWholeStatus(status) => {
            let conditions: Vec<String> = status
                .conditions
                .iter()
                .flatten()
                .map(|each| format!("{}={}", each.type_, each.status))
                .collect();
            format!(
                "writes active {:?} terminating {:?} succeeded {:?} failed {:?} completed {:?} \
                     failed indexes {:?} uncounted {:?} {conditions:?}",
                status.active,
                status.terminating,
                status.succeeded,
                status.failed,
                status.completed_indexes,
                status.failed_indexes,
                status.uncounted_terminated_pods,
            )
        }
    }
}

impl World {
    /// No other pod of these worlds fails by a fault of its node.
    fn check_fault(&mut self, fault: &NodeFault) {
        if !self.lost.contains(&fault.pod.uid) {
            let problem = format!("{} is marked, and its node is at no fault", fault.pod.uid);
            self.ledger.violations.push(problem);
        }
        self.met(Met::LostMarked);
    }

    fn fate_of_step(&mut self, step: &Step) -> Fate {
        let quota = matches!(step, Step::Create(_))
            && !self.is_quiet()
            && self.random.per_mille(self.behaviour.quota);
        if quota {
            self.met(Met::Quota);
            return Fate::Refused(FailureKind::Forbidden);
        }
        let reads = match step {
            Step::ConfirmJob | Step::ConfirmPods => true,
            Step::Group(step) => step.reads(),
            _ => false,
        };
        self.fate(reads)
    }

    /// What happens to a call on its way. A read whose reply is lost has no effect.
    pub(super) fn fate(&mut self, reads: bool) -> Fate {
        if self.is_quiet() {
            return Fate::Through;
        }
        if self.random.per_mille(self.behaviour.lost_replies) {
            let lost_before = self.random.percent(30) || reads;
            self.met(if lost_before { Met::LostRequest } else { Met::LostReply });
            return if lost_before { Fate::Refused(FailureKind::Unknown) } else { Fate::ReplyLost };
        }
        if self.random.per_mille(self.behaviour.refusals) {
            self.met(Met::Refusal);
            let kinds = [FailureKind::TooManyRequests, FailureKind::ServerError];
            return Fate::Refused(*self.random.pick(&kinds));
        }
        Fate::Through
    }

    /// Carries out one call, if its fate lets it through.
    ///
    /// `job` is the Job as the process last read or wrote it; `planned` is the Job that it planned
    /// for.
    pub(super) fn attempt(
        &mut self,
        number: usize,
        step: &Step,
        job: Option<&Arc<Job>>,
        planned: Option<&Arc<Job>>,
    ) -> Outcome<Answer> {
        let fate = self.fate_of_step(step);
        if let Fate::Refused(kind) = fate {
            return Err(Failure::new(kind, format!("injected: {kind:?}")));
        }
        if let (Step::RemoveFinalizer(pod), None) = (step, job) {
            self.read_unknown_job(number, pod)?;
        }
        let sure = self.processes[number].life == Life::Leads;
        if self.processes[number].life == Life::Deposed {
            self.met(Met::DeposedCall);
        }
        let outcome = self.carry_out(step, job, planned, sure);
        if fate == Fate::ReplyLost {
            if let Ok(Answer::Job(job)) = &outcome {
                self.ledger.unanswered(job);
            }
            if let (Some(job), Some(_), Ok(_)) = (job, step.status(), &outcome)
                && self.sabotage == Some(Sabotage::CountAgain)
            {
                self.count_again(job, step);
            }
            return Err(Failure::new(FailureKind::Unknown, "injected: the reply is lost"));
        }
        outcome
    }

    /// Of an orphan whose Job no watch has shown, the program reads the Job first.
    fn read_unknown_job(&self, number: usize, pod: &Pod) -> Outcome<()> {
        let Some(owner) = &pod.owner else { return Ok(()) };
        let key = JobKey::new(Arc::clone(&pod.namespace), &*owner.name);
        let is_known = self.processes[number].state.knows(&key, &owner.uid);
        match self.api.job(&owner.uid) {
            Some(_) if !is_known => Err(Failure::new(FailureKind::Conflict, "the Job is there")),
            _ => Ok(()),
        }
    }

    fn group(&mut self, planned: &Job, step: &GroupStep) -> Outcome<Answer> {
        let answer = self.api.group(planned, step);
        self.ledger.grouped(&self.api, planned, step, answer.is_ok());
        answer
    }

    /// `sure`: it is the process that leads.
    fn carry_out(
        &mut self,
        step: &Step,
        job: Option<&Arc<Job>>,
        planned: Option<&Arc<Job>>,
        sure: bool,
    ) -> Outcome<Answer> {
        let (job, planned) = match (step, job, planned) {
            (Step::RemoveFinalizer(pod), None, _) => return self.remove_orphan_finalizer(pod),
            (_, Some(job), Some(planned)) => (job, planned),
            _ => return Err(Failure::new(FailureKind::Other, "a call without a Job")),
        };
        match step {
            Step::ConfirmJob => match self.api.jobs.get(&job.key) {
                Some(stored) => {
                    let (uid, deleting) = (stored.view.uid.clone(), stored.view.deleting);
                    Ok(Answer::Live(LiveJob { uid, deleting }))
                }
                None => Err(Failure::new(FailureKind::NotFound, "jobs not found")),
            },
            Step::ConfirmPods => Ok(Answer::Newest(self.api.newest_of(planned))),
            Step::Claim(claim) => self.claim(planned, claim),
            Step::Group(step) => self.group(planned, step),
            Step::Create(draft) => {
                let pod = self.api.create_pod(planned, draft);
                self.ledger.created(&self.api, planned, &pod, sure);
                Ok(Answer::Pod(written(&pod)))
            }
            Step::Strip(pod) => {
                let written = self.api.strip(pod)?;
                self.ledger.stripped(&pod.uid);
                Ok(Answer::Pod(WrittenPod { version: written.version, ..answer(pod) }))
            }
            Step::Delete(pod, version) => {
                self.api.delete_pod_at(&pod.uid, *version, GRACE_SECONDS)?;
                Ok(Answer::Deleted)
            }
            Step::RemoveFinalizer(pod) => {
                self.ledger.finalizer_removed(&self.api, planned, pod);
                let pod = self.api.change_pod(&pod.uid, |pod| pod_object::track(pod, false))?;
                Ok(Answer::Pod(written(&pod)))
            }
            Step::FailPending(pod) => self.fail_pending(pod),
            Step::MarkFault(fault) => {
                self.check_fault(fault);
                let patch = mark_fault_patch(fault, self.api.now);
                Ok(Answer::Pod(written(&*self.api.patch_status(&fault.pod.uid, &patch)?)))
            }
            Step::WriteStatus(status) | Step::WriteWholeStatus(status) => {
                let before = self.api.jobs.get(&job.key).map(|stored| Arc::clone(&stored.view));
                let outcome = self.api.write_status(job, status);
                match (&outcome, before) {
                    (Ok(after), Some(before)) => {
                        self.ledger.wrote(&self.api, &before, &after.status, sure);
                    }
                    (Err(failure), _) if failure.kind == FailureKind::Conflict => {
                        self.met(Met::StatusConflict);
                    }
                    (Err(failure), _) if failure.kind == FailureKind::Invalid => {
                        let problem = format!("422 for {}: {}", job.key, failure.message);
                        self.ledger.violations.push(problem);
                    }
                    _ => {}
                }
                outcome.map(Answer::Job)
            }
        }
    }

    /// A pod on a node is left to its kubelet.
    fn fail_pending(&mut self, pod: &Pod) -> Outcome<Answer> {
        let fails = pod.node.is_none();
        let pod = self.api.change_pod(&pod.uid, |pod| {
            if fails {
                pod_object::fail(pod);
            }
        })?;
        Ok(Answer::Pod(written(&pod)))
    }

    fn claim(&mut self, job: &Arc<Job>, claim: &Claim) -> Outcome<Answer> {
        let pod = self.api.claim(job, claim)?;
        self.ledger.claimed(&pod, job, claim.kind);
        Ok(Answer::Pod(written(&pod)))
    }

    fn remove_orphan_finalizer(&mut self, pod: &Pod) -> Outcome<Answer> {
        let stored = self.api.pods.get(&pod.uid);
        if stored.is_some_and(|stored| stored.version == pod.version) {
            self.ledger.orphaned(&self.api, pod);
        }
        let pod = self.api.strip(pod)?;
        Ok(Answer::Pod(written(&pod)))
    }

    /// Sabotage: adds the counters of a write whose reply was lost to what is stored.
    fn count_again(&mut self, read: &Job, step: &Step) {
        let Some(draft) = step.status() else { return };
        let Some(stored) = self.api.jobs.get(&read.key).map(|it| Arc::clone(&it.view)) else {
            return;
        };
        let number = |count: Option<i32>| count.unwrap_or(0);
        let mut status = stored.status.clone();
        let more = number(draft.failed) - number(read.status.failed);
        status.failed = Some(number(status.failed) + more);
        let more = number(draft.succeeded) - number(read.status.succeeded);
        status.succeeded = Some(number(status.succeeded) + more);
        if let Ok(after) = self.api.write_status(&stored, &status) {
            self.ledger.wrote(&self.api, &stored, &after.status, true);
        }
    }

    /// Sabotage: releases terminated pods before anything is written.
    pub(super) fn release_early(&mut self, plan: &PodPlan) {
        for pod in plan.facts.census.tracked().filter(|pod| pod.is_terminal()) {
            self.ledger.finalizer_removed(&self.api, &plan.facts.job, pod);
            let _ = self.api.change_pod(&pod.uid, |pod| pod_object::track(pod, false));
        }
    }
}

fn written(pod: &Pod) -> WrittenPod {
    WrittenPod { version: pod.version, ..answer(pod) }
}

fn answer(pod: &Pod) -> WrittenPod {
    WrittenPod { uid: pod.uid.clone(), name: Arc::clone(&pod.name), version: pod.version }
}
