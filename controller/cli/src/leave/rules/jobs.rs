//! Sorts Jobs by what has to happen to them before the controller can go.

use std::collections::HashMap;

use epilogue_common::finding_code::FindingCode as Code;
use epilogue_common::names::{MANAGED_BY, job_condition};
use serde_json::{Value, json};

use super::{Facts, LeaveError, Left, of_kind, subject, unreadable};
use controller_core::view::{Job, Uid, WireJob};

/// The Jobs of a cluster.
#[derive(Debug)]
pub(crate) struct Jobs {
    all: HashMap<Uid, Job>,
    /// Names of the CronJobs that make Jobs of this controller.
    makers: Vec<String>,
    facts: Facts,
}

/// A Job to change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct JobRef {
    /// `metadata.namespace`.
    pub(crate) namespace: String,
    /// `metadata.name`.
    pub(crate) name: String,
    /// `metadata.uid`.
    pub(crate) uid: String,
}

/// What a Job needs before the controller can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs, or it is being deleted.
    Active,
    /// No pod runs; only the controller can resume it.
    Suspended,
    /// Complete or Failed.
    Finished,
}

/// The merge patch that suspends this Job and no other one of its name.
pub(crate) fn suspend_patch(job: &JobRef) -> Value {
    json!({"metadata": {"uid": job.uid}, "spec": {"suspend": true}})
}

fn state(job: &Job) -> State {
    match job {
        job if job.is_finished() && !job.deleting => State::Finished,
        job if job.spec.suspend && !job.deleting => State::Suspended,
        _ => State::Active,
    }
}

/// No controller but this project's ever runs it: the field is immutable. ([S3])
fn names_us(job: &Job) -> bool {
    job.spec.managed_by.as_deref() == Some(MANAGED_BY)
}

impl Jobs {
    /// The Jobs and CronJobs among these objects.
    pub(crate) fn read(objects: &[Value], facts: Facts) -> Result<Self, LeaveError> {
        let mut all = HashMap::new();
        for object in of_kind(objects, "Job") {
            let job = WireJob::parse(object.clone()).and_then(WireJob::view);
            let job = job.map_err(|error| unreadable("Job", object, error))?;
            all.insert(job.uid.clone(), job);
        }
        let makes_ours = |it: &&Value| it["spec"]["jobTemplate"]["spec"]["managedBy"] == MANAGED_BY;
        let makers = of_kind(objects, "CronJob").filter(makes_ours).map(subject).collect();
        Ok(Self { all, makers, facts })
    }

    /// The Job of this UID.
    pub(super) fn get(&self, uid: &Uid) -> Option<&Job> {
        self.all.get(uid)
    }

    /// All Jobs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.all.values()
    }

    /// Whether the controller that leaves runs this Job.
    pub(super) fn runs(&self, job: &Job) -> bool {
        names_us(job) || self.facts.manage_all_jobs && job.is_managed_by_upstream()
    }

    /// Whether kube-controller-manager continues this Job.
    pub(super) fn goes_over(&self, job: &Job) -> bool {
        self.facts.manage_all_jobs && job.is_managed_by_upstream() && !job.is_finished()
    }

    /// The Jobs to suspend.
    pub(crate) fn to_suspend(&self) -> Vec<JobRef> {
        let runs = |job: &&Job| names_us(job) && state(job) == State::Active && !job.deleting;
        let mut found: Vec<JobRef> = self.all.values().filter(runs).map(JobRef::of).collect();
        found.sort();
        found
    }

    /// The Jobs that are in progress; a drain waits for them.
    pub(crate) fn in_progress(&self) -> Vec<JobRef> {
        self.named(|job| state(job) == State::Active)
    }

    /// The suspended Jobs whose pods the controller has not removed yet.
    pub(crate) fn not_yet_stopped(&self) -> Vec<JobRef> {
        self.named(|job| {
            let stopped = job.true_condition(job_condition::SUSPENDED).is_some();
            state(job) == State::Suspended && (!stopped || job.status.active.unwrap_or(0) > 0)
        })
    }

    fn named(&self, holds: impl Fn(&Job) -> bool) -> Vec<JobRef> {
        let found = self.all.values().filter(|job| names_us(job) && holds(job));
        let mut found: Vec<JobRef> = found.map(JobRef::of).collect();
        found.sort();
        found
    }

    pub(super) fn left(&self) -> Vec<Left> {
        let of = |wanted: State| self.named(|job| state(job) == wanted);
        let subjects = |jobs: Vec<JobRef>| jobs.iter().map(JobRef::subject).collect();
        let parts = [
            Left::some(Code::CronJobLeft, "CronJobs that make Jobs", self.makers.clone()),
            Left::some(Code::JobLeftActive, "Jobs in progress", subjects(of(State::Active))),
            Left::some(Code::JobLeftSuspended, "suspended Jobs", subjects(of(State::Suspended))),
        ];
        parts.into_iter().flatten().collect()
    }

    pub(super) fn stay(&self) -> Vec<Left> {
        let finished = self.named(|job| state(job) == State::Finished);
        let finished = finished.iter().map(JobRef::subject).collect();
        let over = self.all.values().filter(|job| self.goes_over(job));
        let over = over.map(|job| JobRef::of(job).subject()).collect();
        let parts = [
            Left::some(Code::JobLeftFinished, "finished Jobs", finished),
            Left::some(Code::JobHandedOver, "Jobs for kube-controller-manager", over),
        ];
        parts.into_iter().flatten().collect()
    }
}

impl JobRef {
    fn of(job: &Job) -> Self {
        Self {
            namespace: job.key.namespace.to_string(),
            name: job.key.name.to_string(),
            uid: job.uid.as_str().to_owned(),
        }
    }

    /// `job/NAMESPACE/NAME`.
    pub(crate) fn subject(&self) -> String {
        format!("job/{}/{}", self.namespace, self.name)
    }
}
