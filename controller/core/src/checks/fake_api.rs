//! Simulates the API as one Job sees it: pods, a status that obeys the API's rules, deletion with
//! grace and finalizers. Explanations, invariants, simulation and tests use it, a real sync never
//! does.

use std::collections::BTreeMap;
use std::sync::Arc;

use epilogue_common::names::pod_condition::{DISRUPTION_TARGET, PENDING_TIMEOUT};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::JobStatus;

use super::status_rules;
use crate::job::JobGroups;
use crate::job::Progress;
use crate::job::WrittenPod;
use crate::job::{Answer, ClaimKind, LiveJob, NodeFault, PodDraft, SideEffect, Step, SyncResult};
use crate::job::{Memory, Settings, SyncInput, Versions};
use crate::job::{PodPlan, plan_pods};
use crate::job::{generate_name, pod_body};
use crate::job_pods::JobPods;
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
    /// How long the status may lack new pods.
    pub counts_max: SignedDuration,
    /// Its scheduling objects; `None` where the API serves none.
    pub groups: Option<JobGroups>,
    /// Writes that the status rules refused.
    pub refused: Vec<String>,
    /// What a mutating webhook makes of a status.
    pub admission: fn(&mut JobStatus),
    /// Whether new pods start at once. While none starts, a Job with a pending-timeout fails and
    /// replaces its pods for ever.
    pub starts_pods: bool,
    version: u64,
}

/// What one sync did.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The plan of the sync.
    pub plan: PodPlan,
    /// Steps that were carried out, and their outcomes.
    pub steps: Vec<(Step, Outcome<Answer>)>,
    /// Side effects: what to remember, report and count.
    pub side_effects: Vec<SideEffect>,
    /// The result; `None` after a crash.
    pub sync_result: Option<SyncResult>,
}

/// Decides how a call fails, by its step and its place among the steps that run concurrently;
/// `None` if it succeeds.
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
            counts_max: SignedDuration::ZERO,
            groups: None,
            refused: Vec::new(),
            admission: |_| {},
            starts_pods: false,
        }
    }

    /// The API that this input shows, without anything unseen.
    pub fn of(input: &SyncInput<'_>) -> Self {
        let pods = input.pods.iter_with_strays().map(|pod| Pod::clone(pod));
        let mut api = Self::new(Job::clone(input.job), pods, input.now);
        api.memory = input.memory.clone();
        api.settings = input.settings.clone();
        api.counts_max = input.counts_max;
        api.groups = input.groups.cloned();
        api.starts_pods = true;
        let newest = input.seen.max(input.memory.written);
        let newest = newest.each().into_iter().max().unwrap_or_default();
        api.version = api.version.max(newest.0);
        api
    }

    /// Shows the pods that were deleted, or whose finalizer was removed, as they are.
    pub fn show_own_writes(&mut self) {
        for uid in self.memory.expectations.deleted.clone() {
            self.delete_pod(&uid);
        }
        for uid in self.memory.removed_finalizers.clone() {
            // A pod that is gone needs no update.
            let _ = self.change(&uid, |pod, _| pod.tracked = false);
        }
    }

    /// The plan of the next sync.
    pub fn plan(&self) -> PodPlan {
        let pods = JobPods::of(&self.job, self.pods.values());
        plan_pods(&SyncInput {
            job: &self.job,
            pods: &pods,
            memory: &self.memory,
            groups: self.groups.as_ref(),
            seen: self.versions(),
            now: self.now,
            settings: &self.settings,
            counts_max: self.counts_max,
        })
    }

    /// One sync in which every call succeeds.
    pub fn sync(&mut self) -> Trace {
        self.sync_with(&|_, _| None, None)
    }

    /// One sync with failing calls, and a crash that ends it.
    pub fn sync_with(&mut self, faults: Faults<'_>, crash: Option<Crash>) -> Trace {
        self.run(&mut |_, _| {}, faults, crash)
    }

    /// One sync during which others act: before each of its calls.
    pub fn sync_among(&mut self, others: &mut dyn FnMut(&mut Self, &Step)) -> Trace {
        self.run(others, &|_, _| None, None)
    }

    fn run(
        &mut self,
        others: &mut dyn FnMut(&mut Self, &Step),
        faults: Faults<'_>,
        crash: Option<Crash>,
    ) -> Trace {
        let plan = self.plan();
        let mut progress = Progress::new(plan.clone(), &self.settings);
        let (mut steps, mut side_effects) = (Vec::new(), Vec::new());
        loop {
            self.remember(progress.take_side_effects(), &mut side_effects);
            if crash.is_some_and(|crash| crash.after_calls == steps.len()) {
                self.crash();
                return Trace { plan, steps, side_effects, sync_result: None };
            }
            let Some(call) = progress.next_call() else { break };
            others(self, &call.step);
            let fault = faults(&call.step, call.slot);
            let outcome = fault.map_or_else(|| self.execute(&call.step), Err);
            progress.done(&call, outcome.clone());
            steps.push((call.step, outcome));
        }
        let sync_result = Some(progress.into_result());
        Trace { plan, steps, side_effects, sync_result }
    }

    /// The process dies, and with it what it remembers; except for what no process can learn from
    /// the API, where `adoption`, `census` and `lost` of [`crate::job`] document what is lost;
    /// and for what the real API would refuse again, as this one does not.
    pub fn crash(&mut self) {
        let Memory {
            marking_since,
            boots,
            noticed,
            refused_claims,
            uncounted_pods,
            completed_pods,
            ..
        } = std::mem::take(&mut self.memory);
        self.memory = Memory {
            marking_since,
            boots,
            noticed,
            refused_claims,
            uncounted_pods,
            completed_pods,
            ..Memory::default()
        };
    }

    /// Carries out a step.
    pub fn execute(&mut self, step: &Step) -> Outcome<Answer> {
        match step {
            Step::ConfirmJob => {
                let (uid, deleting) = (self.job.uid.clone(), self.job.deleting);
                Ok(Answer::Live(LiveJob { uid, deleting }))
            }
            Step::ConfirmPods => {
                let version = self.pods.values().map(|pod| pod.version).max();
                Ok(Answer::Newest(version.unwrap_or_default()))
            }
            Step::Claim(claim) => self.change(&claim.pod.uid, |pod, job| match claim.kind {
                ClaimKind::Adopt => {
                    pod.owner = Some(owner(job));
                    pod.tracked = true;
                }
                ClaimKind::Disown => {
                    pod.owner = None;
                    pod.tracked = false;
                }
                ClaimKind::Track => pod.tracked = true,
            }),
            Step::Group(step) => self.group(step),
            Step::Create(draft) => Ok(Answer::Pod(self.create(draft))),
            Step::Strip(pod) => {
                self.check_version(&pod.uid, Some(pod.version))?;
                self.change(&pod.uid, |pod, _| pod.tracked = false)
            }
            Step::RemoveFinalizer(pod) => self.change(&pod.uid, |pod, _| pod.tracked = false),
            Step::Delete(pod, version) => {
                self.check_version(&pod.uid, *version)?;
                self.delete(&pod.uid).map(|_| Answer::Deleted)
            }
            Step::FailPending(pod) => self.fail_pending(pod),
            Step::MarkFault(NodeFault { pod, .. }) => {
                self.check_version(&pod.uid, Some(pod.version))?;
                self.change(&pod.uid, |pod, _| set_condition(pod, DISRUPTION_TARGET))
            }
            Step::WriteStatus(status) | Step::WriteWholeStatus(status) => {
                self.write_status(status).map(Answer::Job)
            }
        }
    }

    fn check_version(&self, pod: &Uid, version: Option<Version>) -> Outcome<()> {
        let stored = self.pods.get(pod).map(|stored| stored.version);
        if version.is_some() && stored.is_some() && stored != version {
            return Err(Failure::new(FailureKind::Conflict, "the pod has been modified"));
        }
        Ok(())
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
        let _ = self.delete(pod);
    }

    fn versions(&self) -> Versions {
        let newest = Version(self.version);
        Versions { jobs: newest, pods: newest, workloads: newest, pod_groups: newest }
    }

    pub(super) fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }

    fn remember(&mut self, fresh: Vec<SideEffect>, all: &mut Vec<SideEffect>) {
        for side_effect in &fresh {
            if let SideEffect::Remember(change) = side_effect {
                self.memory.apply(change.clone(), self.now);
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
        if self.starts_pods {
            pod.phase = Phase::Running;
        }
        let written = written(&pod);
        self.memory.saw_pod(&pod);
        self.pods.insert(pod.uid.clone(), Arc::new(pod));
        written
    }

    /// The kubelet fails a pod that did not start at once, because nothing of it runs.
    fn delete(&mut self, uid: &Uid) -> Outcome<Answer> {
        let now = self.now;
        self.change(uid, |pod, _| {
            let immediate = pod.node.is_none() || pod.is_terminal();
            let grace_seconds = if immediate { 0 } else { GRACE_SECONDS };
            let at = now.checked_add(SignedDuration::from_secs(grace_seconds)).unwrap_or(now);
            pod.deletion.get_or_insert(Deletion { at, grace_seconds });
            if pod.phase == Phase::Pending && pod.has_condition(PENDING_TIMEOUT) {
                pod.phase = Phase::Failed;
            }
        })
    }

    fn fail_pending(&mut self, pod: &Pod) -> Outcome<Answer> {
        self.change(&pod.uid, |pod, _| {
            set_condition(pod, PENDING_TIMEOUT);
            if pod.node.is_none() {
                pod.phase = Phase::Failed;
            }
        })
    }

    /// Changes a pod. It is gone once it is deleted, needs no kubelet to terminate it, and has no
    /// tracking finalizer.
    fn change(&mut self, uid: &Uid, how: impl FnOnce(&mut Pod, &Job)) -> Outcome<Answer> {
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
        Ok(Answer::Pod(written))
    }

    fn write_status(&mut self, status: &JobStatus) -> Outcome<Arc<Job>> {
        let violations = status_rules::violations(&self.job, status);
        if !violations.is_empty() {
            let message = violations.join("; ");
            self.refused.push(message.clone());
            return Err(Failure::new(FailureKind::Invalid, message));
        }
        let mut job = Job::clone(&self.job);
        job.status = status.clone();
        (self.admission)(&mut job.status);
        job.version = self.next_version();
        self.job = Arc::new(job);
        Ok(Arc::clone(&self.job))
    }
}

fn written(pod: &Pod) -> WrittenPod {
    WrittenPod { uid: pod.uid.clone(), name: Arc::clone(&pod.name), version: pod.version }
}

fn set_condition(pod: &mut Pod, kind: &str) {
    let mut conditions = pod.conditions.to_vec();
    conditions.retain(|each| &*each.kind != kind);
    conditions.push(Condition { kind: kind.into(), status: "True".into() });
    pod.conditions = conditions.into();
}

fn owner(job: &Job) -> Arc<Owner> {
    Arc::new(Owner {
        api_version: "batch/v1".into(),
        kind: "Job".into(),
        name: (*job.key.name).into(),
        uid: job.uid.clone(),
    })
}
