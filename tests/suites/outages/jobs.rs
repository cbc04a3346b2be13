//! Four kinds of Jobs that are under way for some seconds, and the account of each: what its status
//! counts, and which pods the API has.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use lab::bed::{JobBuilder, JobState, has_finalizer, job};
use serde_json::json;

const INDEX_LABEL: &str = "batch.kubernetes.io/job-completion-index";

/// A kind of Job.
pub(crate) struct Kind {
    name: &'static str,
    spec: fn(JobBuilder) -> JobBuilder,
    script: &'static str,
    /// What the status counts at the end, if each pod runs once: succeeded, failed.
    totals: (i32, i32),
}

/// What the API shows of a Job.
#[derive(Debug)]
pub(crate) struct Account {
    state: JobState,
    /// Pods that `uncountedTerminatedPods` lists.
    uncounted: usize,
    succeeded: usize,
    failed: usize,
    /// Name and phase.
    unfinished: Vec<String>,
    with_finalizer: usize,
    /// Indexes of pods that succeeded, for an Indexed Job.
    indexes: Option<BTreeSet<String>>,
}

impl Kind {
    fn job(&self, number: usize) -> JobBuilder {
        let name = format!("{}-{number}", self.name);
        (self.spec)(job(&name)).script(self.script).pod("automountServiceAccountToken", false)
    }
}

/// The Jobs of each kind with these numbers.
pub(crate) fn jobs(numbers: Range<usize>) -> impl Iterator<Item = JobBuilder> {
    numbers.flat_map(|number| KINDS.iter().map(move |kind| kind.job(number)))
}

/// What the status of a Job counts at the end, if each pod runs once.
pub(crate) fn totals(name: &str) -> (i32, i32) {
    let kind = KINDS.iter().find(|kind| name.starts_with(kind.name));
    kind.expect("a Job of these kinds").totals
}

impl Account {
    /// Of each Job, by its name.
    pub(crate) fn of_all(jobs: &[Job], pods: &[Pod]) -> BTreeMap<String, Self> {
        let name = |job: &Job| job.metadata.name.clone().unwrap_or_default();
        jobs.iter().map(|job| (name(job), Self::of(job, pods))).collect()
    }

    fn of(job: &Job, pods: &[Pod]) -> Self {
        let uid = job.metadata.uid.as_ref();
        let owned = |pod: &&Pod| {
            pod.metadata.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == uid)
        };
        let pods: Vec<&Pod> = pods.iter().filter(owned).collect();
        let phase = |pod: &Pod| pod.status.clone().and_then(|status| status.phase);
        let count =
            |wanted: &str| pods.iter().filter(|pod| phase(pod).as_deref() == Some(wanted)).count();
        let (succeeded, failed) = (count("Succeeded"), count("Failed"));
        let spec = job.spec.clone().unwrap_or_default();
        let is_indexed = spec.completion_mode.as_deref() == Some("Indexed");
        let index = |pod: &&Pod| pod.metadata.labels.as_ref()?.get(INDEX_LABEL).cloned();
        let done = pods.iter().filter(|pod| phase(pod).as_deref() == Some("Succeeded"));
        let listed = job.status.clone().unwrap_or_default().uncounted_terminated_pods;
        let listed = listed.unwrap_or_default();
        Self {
            state: JobState::of(job),
            uncounted: listed.succeeded.iter().chain(&listed.failed).flatten().count(),
            succeeded,
            failed,
            unfinished: pods.iter().filter_map(|pod| unfinished(pod)).collect(),
            with_finalizer: pods.iter().filter(|pod| has_finalizer(pod)).count(),
            indexes: is_indexed.then(|| done.filter_map(index).collect()),
        }
    }

    /// How many pods its status counts.
    pub(crate) fn counted(&self) -> i32 {
        self.state.succeeded + self.state.failed
    }

    /// Whether the Job is Complete or Failed.
    pub(crate) fn is_finished(&self) -> bool {
        self.state.is_finished()
    }

    /// What the status counts: succeeded, failed.
    pub(crate) fn totals(&self) -> (i32, i32) {
        (self.state.succeeded, self.state.failed)
    }

    /// Whether each of its pods has ended.
    pub(crate) fn has_no_unfinished_pod(&self) -> bool {
        self.unfinished.is_empty()
    }

    /// Whether pods wait to be counted, and the Job is not finished.
    pub(crate) fn has_uncounted_pods(&self) -> bool {
        !self.is_finished() && self.with_finalizer > 0
    }

    /// How many pods the API has, if none has the index of another one that succeeded.
    pub(crate) fn pods(&self) -> Option<usize> {
        let distinct = self.indexes.as_ref().is_none_or(|all| all.len() == self.succeeded);
        distinct.then_some(self.succeeded + self.failed + self.unfinished.len())
    }

    /// Whether the status counts each pod that the API has once, and nothing is left of the
    /// counting. An index counts once, however many of its pods succeeded.
    pub(crate) fn is_exact(&self) -> bool {
        let succeeded = self.indexes.as_ref().map_or(self.succeeded, BTreeSet::len);
        let counted = (usize::try_from(self.state.succeeded), usize::try_from(self.state.failed));
        counted == (Ok(succeeded), Ok(self.failed))
            && (self.uncounted, self.with_finalizer, self.unfinished.len()) == (0, 0, 0)
    }
}

/// Name and phase of a pod that has not ended.
fn unfinished(pod: &Pod) -> Option<String> {
    let phase = pod.status.as_ref()?.phase.as_deref()?;
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let is_finished = matches!(phase, "Succeeded" | "Failed");
    (!is_finished).then(|| format!("{name} {phase}, bound: {is_bound}"))
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "plain",
        spec: |job| job.spec("parallelism", 3).spec("completions", 12),
        script: "succeed after=300ms",
        totals: (12, 0),
    },
    Kind {
        name: "indexed",
        spec: |job| job.indexed(12).spec("parallelism", 3),
        script: "succeed after=300ms",
        totals: (12, 0),
    },
    Kind {
        name: "retried",
        spec: |job| job.spec("parallelism", 2).spec("completions", 6).spec("backoffLimit", 30),
        script: "fail exit=1 after=100ms times=4; succeed after=300ms",
        totals: (6, 4),
    },
    Kind {
        name: "per-index",
        spec: |job| {
            let job = job.indexed(6).spec("parallelism", 2);
            job.spec("backoffLimit", json!(null)).spec("backoffLimitPerIndex", 1)
        },
        script: "index=1: fail exit=1 after=100ms; succeed after=300ms",
        totals: (5, 2),
    },
];
