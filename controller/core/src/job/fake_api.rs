//! Simulates the API as one Job sees it: pods, a status that obeys the API's rules, deletion with
//! grace and finalizers. Explanations, invariants, simulation and tests use it, a real sync never
//! does.

use std::collections::BTreeMap;
use std::sync::Arc;

use epilogue_common::names::pod_condition::PENDING_TIMEOUT;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use jiff::{SignedDuration, Timestamp};

use super::memory::Memory;
use super::plan::{Plan, plan};
use super::pod_template::{generate_name, pod_body};
use super::progress::Progress;
use super::status_rules;
use super::steps::{
    ClaimKind, LiveJob, PodDeletion, PodDraft, SideEffect, Step, StepOutcome, SyncResult,
    WrittenPod,
};
use super::sync_input::{Settings, SyncInput, Versions};
use crate::view::{Condition, Deletion, Interner, Job, Owner, Phase, Pod, Uid, Version};

/// Grace of a deletion that a kubelet has to carry out.
const GRACE_SECONDS: i64 = 30;

/// One Job, its pods, and the process's memory of it.
#[derive(Clone, Debug)]
pub struct FakeApi {
    /// The Job as stored.
    pub job: Arc<Job>,
    /// All pods, by UID.
    pub pods: BTreeMap<Uid, Arc<Pod>>,
    /// The process's memory; lost in a crash.
    pub memory: Memory,
    /// The time.
    pub now: Timestamp,
    /// The process's settings.
    pub settings: Settings,
    /// Writes that the status rules refused.
    pub refused: Vec<String>,
    version: u64,
}

/// What one sync did.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The plan of the sync.
    pub plan: Plan,
    /// Steps that were carried out, in whole or in part.
    pub steps: Vec<Step>,
    /// Side effects: what to remember, report and count.
    pub side_effects: Vec<SideEffect>,
    /// The result; `None` after a crash.
    pub sync_result: Option<SyncResult>,
}

/// Decides by step and call number how a single call fails; `None` if it succeeds.
pub type Faults<'a> = &'a dyn Fn(&Step, usize) -> Option<Failure>;

/// The point where a crash cuts off a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Calls that are carried out before the crash.
    pub after_calls: usize,
}

impl FakeApi {
    /// An API with this Job and these pods.
    pub fn new(job: Job, pods: impl IntoIterator<Item = Pod>, now: Timestamp) -> Self {
        let pods: BTreeMap<_, _> =
            pods.into_iter().map(|pod| (pod.uid.clone(), Arc::new(pod))).collect();
        Self {
            version: 1_000,
            job: Arc::new(job),
            pods,
            memory: Memory::default(),
            now,
            settings: Settings::default(),
            refused: Vec::new(),
        }
    }

    /// The API that this input shows, without anything unseen.
    pub fn of(input: &SyncInput<'_>) -> Self {
        let pods = input.pods.iter().map(|pod| Pod::clone(pod));
        let mut api = Self::new(Job::clone(input.job), pods, input.now);
        api.memory = input.memory.clone();
        api.settings = input.settings.clone();
        let newest = input.seen.max(input.memory.written);
        api.version = api.version.max(newest.jobs.0).max(newest.pods.0);
        api
    }

    /// Shows the pods whose finalizer was removed as they are.
    pub fn show_removed_finalizers(&mut self) {
        for uid in self.memory.removed_finalizers.clone() {
            // A pod that is gone needs no update.
            let _ = self.change(&uid, |pod, _| pod.tracked = false);
        }
    }

    /// The plan of the next sync.
    pub fn plan(&self) -> Plan {
        let pods: Vec<Arc<Pod>> = self.pods.values().cloned().collect();
        plan(&SyncInput {
            job: &self.job,
            pods: &pods,
            memory: &self.memory,
            seen: self.versions(),
            now: self.now,
            settings: &self.settings,
        })
    }

    /// One sync in which every call succeeds.
    pub fn sync(&mut self) -> Trace {
        self.sync_with(&|_, _| None, None)
    }

    /// One sync with failing calls, and a crash that ends it.
    pub fn sync_with(&mut self, faults: Faults<'_>, crash: Option<Crash>) -> Trace {
        let plan = self.plan();
        let mut progress = Progress::new(plan.clone(), &self.settings);
        let (mut steps, mut side_effects) = (Vec::new(), Vec::new());
        let mut left = crash.map(|crash| crash.after_calls);
        while let Some(step) = progress.next_step() {
            self.remember(progress.take_side_effects(), &mut side_effects);
            let calls = step.calls();
            if left.is_some_and(|left| left < calls) {
                self.execute(&cut(&step, left.unwrap_or(0)), faults);
                steps.push(step);
                self.memory = Memory::default();
                return Trace { plan, steps, side_effects, sync_result: None };
            }
            left = left.map(|left| left - calls);
            let outcome = self.execute(&step, faults);
            steps.push(step);
            progress.done(outcome);
        }
        self.remember(progress.take_side_effects(), &mut side_effects);
        let sync_result = Some(progress.into_result());
        Trace { plan, steps, side_effects, sync_result }
    }

    /// Carries out a step.
    pub fn execute(&mut self, step: &Step, faults: Faults<'_>) -> StepOutcome {
        let fault = |call: usize| faults(step, call);
        match step {
            Step::ConfirmJob => StepOutcome::Confirmed(match fault(0) {
                Some(failure) => Err(failure),
                None => Ok(LiveJob { uid: self.job.uid.clone(), deleting: self.job.deleting }),
            }),
            Step::WriteStatus(status) => StepOutcome::Status(Box::new(match fault(0) {
                Some(failure) => Err(failure),
                None => self.write_status(status),
            })),
            Step::Delete(deletions) => {
                StepOutcome::Deleted(each(deletions, &fault, |deletion| self.delete(deletion)))
            }
            Step::Create(drafts) => {
                StepOutcome::Written(each(drafts, &fault, |draft| Ok(self.create(draft))))
            }
            Step::Claim(claims) => StepOutcome::Written(each(claims, &fault, |claim| {
                self.change(&claim.pod.uid, |pod, job| match claim.kind {
                    ClaimKind::Adopt => {
                        pod.owner = Some(owner(job));
                        pod.tracked = true;
                    }
                    ClaimKind::Disown => {
                        pod.owner = None;
                        pod.tracked = false;
                    }
                    ClaimKind::Track => pod.tracked = true,
                })
            })),
            Step::FailPending(pods) => {
                StepOutcome::Written(each(pods, &fault, |pod| self.fail_pending(pod)))
            }
            Step::RemoveFinalizer(pods) => StepOutcome::Written(each(pods, &fault, |pod| {
                self.change(&pod.uid, |pod, _| pod.tracked = false)
            })),
        }
    }

    /// Changes a pod as a kubelet or a user does.
    pub fn touch(&mut self, pod: &Uid, how: impl FnOnce(&mut Pod)) {
        let _ = self.change(pod, |pod, _| how(pod));
    }

    /// Changes the Job as a user does.
    pub fn edit(&mut self, how: impl FnOnce(&mut Job)) {
        let mut job = Job::clone(&self.job);
        how(&mut job);
        job.version = self.next_version();
        job.generation += 1;
        self.job = Arc::new(job);
    }

    /// Deletes a pod as a user would.
    pub fn delete_pod(&mut self, pod: &Uid) {
        if let Some(pod) = self.pods.get(pod).cloned() {
            let _ = self.delete(&PodDeletion { pod, strip: false });
        }
    }

    fn versions(&self) -> Versions {
        Versions { jobs: Version(self.version), pods: Version(self.version) }
    }

    fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }

    fn remember(&mut self, fresh: Vec<SideEffect>, all: &mut Vec<SideEffect>) {
        for side_effect in &fresh {
            if let SideEffect::Remember(change) = side_effect {
                self.memory.apply(change.clone(), self.versions(), self.now);
            }
        }
        all.extend(fresh);
    }

    fn create(&mut self, draft: &PodDraft) -> WrittenPod {
        let version = self.next_version();
        let mut wire = pod_body(&self.job, draft).pod().unwrap_or_default();
        let prefix = generate_name(&self.job.key.name, draft.index);
        wire.metadata.name = Some(format!("{prefix}{version:05}"));
        wire.metadata.uid = Some(format!("uid-{version}"));
        let mut pod = wire.view(&mut Interner::default());
        pod.namespace = Arc::clone(&self.job.key.namespace);
        pod.version = version;
        pod.created = Some(self.now);
        let written = written(&pod);
        self.memory.saw_pod(&pod);
        self.pods.insert(pod.uid.clone(), Arc::new(pod));
        written
    }

    fn delete(&mut self, deletion: &PodDeletion) -> Outcome<()> {
        let uid = &deletion.pod.uid;
        if deletion.strip {
            self.change(uid, |pod, _| pod.tracked = false)?;
        }
        let now = self.now;
        self.change(uid, |pod, _| {
            let immediate = pod.node.is_none() || pod.is_terminal();
            let grace_seconds = if immediate { 0 } else { GRACE_SECONDS };
            let at = now.checked_add(SignedDuration::from_secs(grace_seconds)).unwrap_or(now);
            pod.deletion.get_or_insert(Deletion { at, grace_seconds });
        })?;
        Ok(())
    }

    /// The kubelet fails a pod on a node at once, because nothing of it runs.
    fn fail_pending(&mut self, pod: &Pod) -> Outcome<WrittenPod> {
        if pod.node.is_some() {
            self.delete(&PodDeletion { pod: Arc::new(pod.clone()), strip: false })?;
        }
        self.change(&pod.uid, |pod, _| {
            let mut conditions = pod.conditions.to_vec();
            conditions.push(Condition { kind: PENDING_TIMEOUT.into(), status: "True".into() });
            pod.conditions = conditions.into();
            pod.phase = Phase::Failed;
        })
    }

    /// Changes a pod. It is gone once it is deleted, needs no kubelet to terminate it, and has no
    /// tracking finalizer.
    fn change(&mut self, uid: &Uid, how: impl FnOnce(&mut Pod, &Job)) -> Outcome<WrittenPod> {
        let Some(pod) = self.pods.get(uid) else {
            return Err(Failure::new(FailureKind::NotFound, format!("pods {uid} not found")));
        };
        let mut pod = Pod::clone(pod);
        how(&mut pod, &self.job);
        pod.version = self.next_version();
        let written = written(&pod);
        let ended = pod.is_terminal() || pod.node.is_none();
        if pod.deletion.is_some() && ended && !pod.tracked {
            self.memory.saw_pod_gone(uid);
            self.pods.remove(uid);
        } else {
            self.memory.saw_pod(&pod);
            self.pods.insert(uid.clone(), Arc::new(pod));
        }
        Ok(written)
    }

    fn write_status(
        &mut self,
        status: &k8s_openapi::api::batch::v1::JobStatus,
    ) -> Outcome<Arc<Job>> {
        let violations = status_rules::violations(&self.job, status);
        if !violations.is_empty() {
            let message = violations.join("; ");
            self.refused.push(message.clone());
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let mut job = Job::clone(&self.job);
        job.status = status.clone();
        job.version = self.next_version();
        self.job = Arc::new(job);
        Ok(Arc::clone(&self.job))
    }
}

/// The first calls of a step.
fn cut(step: &Step, calls: usize) -> Step {
    match step {
        Step::Claim(claims) => Step::Claim(claims[..calls].to_vec()),
        Step::Create(drafts) => Step::Create(drafts[..calls].to_vec()),
        Step::Delete(deletions) => Step::Delete(deletions[..calls].to_vec()),
        Step::RemoveFinalizer(pods) => Step::RemoveFinalizer(pods[..calls].to_vec()),
        Step::FailPending(pods) => Step::FailPending(pods[..calls].to_vec()),
        Step::ConfirmJob | Step::WriteStatus(_) => Step::RemoveFinalizer(Vec::new()),
    }
}

fn each<T, R>(
    items: &[T],
    fault: &dyn Fn(usize) -> Option<Failure>,
    mut call: impl FnMut(&T) -> Outcome<R>,
) -> Vec<Outcome<R>> {
    let items = items.iter().enumerate();
    items.map(|(number, item)| fault(number).map_or_else(|| call(item), Err)).collect()
}

fn written(pod: &Pod) -> WrittenPod {
    WrittenPod { uid: pod.uid.clone(), name: Arc::clone(&pod.name), version: pod.version }
}

fn owner(job: &Job) -> Arc<Owner> {
    Arc::new(Owner {
        api_version: "batch/v1".into(),
        kind: "Job".into(),
        name: (*job.key.name).into(),
        uid: job.uid.clone(),
    })
}
