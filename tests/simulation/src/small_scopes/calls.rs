//! Carries out the calls of processes at the API, and has each of them judged.

use std::sync::Arc;

use controller_core::job::{
    Answer, End, PodPlan, PodStage, Purpose, Step, WrittenPod, fail_pending_patch, mark_fault_patch,
};
use controller_core::view::{Job, Pod};
use epilogue_common::outcome::{Failure, FailureKind, Outcome as Reply};

use super::history::Knowledge;
use super::kubelet::Ending;
use super::model::{Fate, State};
use super::sabotage::Sabotage;
use super::scope::Scope;
use crate::controller::api::GRACE_SECONDS;
use crate::controller::pod_object;

impl State {
    /// A call of a process meets its fate.
    pub(super) fn call(
        &mut self,
        number: usize,
        call: usize,
        fate: Fate,
        scope: &Scope,
    ) -> Result<(), String> {
        let process = Arc::clone(&self.processes[number]);
        let Some(work) = &process.work else { return Ok(()) };
        let step = &work.calls[call].step;
        let answered = fate == Fate::Answered;
        let by = Knowledge { process: process.number, shown: work.shown };
        let lost = || Err(Failure::new(FailureKind::Unknown, "no reply"));
        self.left.lost_replies -= u8::from(!answered);
        let reply = if fate == Fate::Lost {
            lost()
        } else {
            let reply = self.carry_out(step, work.progress.job(), &work.plan, by, scope)?;
            if answered { reply } else { lost() }
        };
        drop(process);
        Arc::make_mut(&mut self.processes[number]).answer(call, reply, &self.api, scope);
        Ok(())
    }

    /// Carries out a call, and judges it.
    pub(super) fn carry_out(
        &mut self,
        step: &Step,
        job: &Arc<Job>,
        plan: &PodPlan,
        by: Knowledge,
        scope: &Scope,
    ) -> Result<Reply<Answer>, String> {
        let planned = &plan.facts.job;
        let reply = match step {
            Step::ConfirmJob => Err(Failure::new(FailureKind::Other, "no pod is adopted here")),
            Step::ConfirmPods => Ok(Answer::Newest(self.api.newest_of(planned))),
            Step::Claim(claim) => self.api.claim(planned, claim).map(|pod| written(&pod)),
            Step::Group(step) => {
                let reply = self.api.group(planned, step);
                self.api.surplus_groups(planned).map_or(Ok(reply), Err)?
            }
            Step::Create(draft) => {
                let pod = self.api.create_pod(planned, draft);
                self.history.created((&self.api, &self.running), planned, &pod, by, scope)?;
                if !scope.has_pending_pods() {
                    Ending::Start.happen(&mut self.api, &mut self.running, &pod.uid);
                }
                Ok(written(&pod))
            }
            Step::Strip(pod) => {
                let blind = scope.sabotage == Some(Sabotage::StripBlindly);
                let found = self.api.pods.get(&pod.uid).cloned();
                let seen = found.as_ref().filter(|_| blind).unwrap_or(pod);
                let done = self.api.strip(seen);
                if let (Ok(_), Some(found)) = (&done, &found) {
                    self.history.stripped(found)?;
                }
                done.map(|pod| written(&pod))
            }
            Step::Delete(pod, version) => {
                let blind = scope.sabotage == Some(Sabotage::DeleteBlindly);
                let version = version.filter(|_| !blind);
                let lives = self.api.pods.get(&pod.uid).is_some_and(|pod| pod.is_active());
                let done = self.api.delete_pod_at(&pod.uid, version, GRACE_SECONDS);
                if done.is_ok() && lives && !counts_its_victims(plan) {
                    self.history.taken_out(&pod.uid);
                }
                done.map(|()| Answer::Deleted)
            }
            Step::RemoveFinalizer(pod) => self.release(pod, by, scope)?,
            Step::FailPending(pod) => self.fail_pending(pod, scope)?,
            Step::MarkFault(fault) => {
                let patch = mark_fault_patch(fault, self.api.now);
                self.api.patch_status(&fault.pod.uid, &patch).map(|pod| written(&pod))
            }
            Step::WriteStatus(status) | Step::WriteWholeStatus(status) => {
                let before = Arc::clone(self.job());
                let over = scope.sabotage == Some(Sabotage::OverwriteStatus);
                let read = if over { &before } else { job };
                let written = self.api.write_status(read, status);
                if let Err(failure) = &written
                    && failure.kind == FailureKind::Invalid
                {
                    return Err(format!("the API refuses the status: {}", failure.message));
                }
                if let Ok(after) = &written {
                    let world = (&self.api, &self.running);
                    self.history.wrote(world, &before, after, by, scope)?;
                }
                written.map(Answer::Job)
            }
        };
        Ok(reply)
    }

    fn release(
        &mut self,
        pod: &Pod,
        by: Knowledge,
        scope: &Scope,
    ) -> Result<Reply<Answer>, String> {
        self.history.may_release(&self.api, self.job(), pod, scope)?;
        self.history.leaves_no_mate(&self.api, self.job(), pod, by)?;
        let done = self.api.change_pod(&pod.uid, |pod| pod_object::track(pod, false));
        Ok(done.map(|pod| written(&pod)))
    }

    fn fail_pending(&mut self, pod: &Pod, scope: &Scope) -> Result<Reply<Answer>, String> {
        let mut patch = fail_pending_patch(pod, self.api.now);
        if scope.sabotage == Some(Sabotage::FailStarted) {
            patch["metadata"]["resourceVersion"] = serde_json::Value::Null;
        }
        let done = self.api.patch_status(&pod.uid, &patch);
        let fails = done.as_ref().is_ok_and(|pod| pod.is_terminal());
        if fails && self.running.contains(&pod.uid) {
            return Err(format!("{} is called Failed while its container runs", pod.uid));
        }
        Ok(done.map(|pod| written(&pod)))
    }

    /// A worker of the queue of orphans takes an item.
    pub(super) fn release_orphans(&mut self, number: usize, item: usize) -> Result<(), String> {
        let process = Arc::make_mut(&mut self.processes[number]);
        let item = process.orphans.remove(item);
        for pod in process.state.orphans(&item, false) {
            if !self.job().is_finished() {
                return Err(format!("{} loses its finalizer as an orphan", pod.uid));
            }
            // If the pod is gone, there is nothing to release.
            let _ = self.api.change_pod(&pod.uid, |pod| pod_object::track(pod, false));
        }
        Ok(())
    }

    /// Sabotage: releases terminated pods before anything is written.
    pub(super) fn release_first(&mut self, number: usize, scope: &Scope) -> Result<(), String> {
        let process = Arc::clone(&self.processes[number]);
        let Some(work) = &process.work else { return Ok(()) };
        let facts = &work.plan.facts;
        for pod in facts.census.tracked().filter(|pod| pod.is_terminal()) {
            self.history.may_release(&self.api, self.job(), pod, scope)?;
            let _ = self.api.change_pod(&pod.uid, |pod| pod_object::track(pod, false));
        }
        Ok(())
    }
}

/// Whether what this plan deletes counts as failed: the pods of a Job that fails, and those that do
/// not start.
fn counts_its_victims(plan: &PodPlan) -> bool {
    match &plan.pods {
        PodStage::Delete { purpose, .. } => *purpose == Purpose::End(End::Failure),
        _ => true,
    }
}

fn written(pod: &Pod) -> Answer {
    let (uid, name, version) = (pod.uid.clone(), Arc::clone(&pod.name), pod.version);
    Answer::Pod(WrittenPod { uid, name, version })
}
