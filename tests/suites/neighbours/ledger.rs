//! Records each Job and each pod of a namespace, in the order of their watches, so that what a
//! controller deletes is still known at the end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use lab::bed::{Bed, JobState};
use tokio_util::task::AbortOnDropHandle;

/// A pod from its first event to its last.
#[derive(Clone, Debug, Default)]
pub(super) struct PodLife {
    pub(super) job: String,
    pub(super) name: String,
    /// The number of the event that showed it first.
    pub(super) begun: usize,
    /// The number of the event that showed its terminal phase first, or that it was gone.
    pub(super) ended: Option<usize>,
    pub(super) phase: String,
    /// Whether it has DisruptionTarget.
    pub(super) disrupted: bool,
}

/// A Job of one UID.
#[derive(Clone, Debug, Default)]
pub(super) struct JobLife {
    pub(super) uid: String,
    pub(super) name: String,
    /// The last status that was seen.
    pub(super) state: JobState,
}

#[derive(Debug, Default)]
struct Book {
    number: usize,
    pods: BTreeMap<String, PodLife>,
    jobs: Vec<JobLife>,
}

/// What the watches have shown so far.
pub(super) struct Ledger {
    book: Arc<Mutex<Book>>,
    _watches: [AbortOnDropHandle<()>; 2],
}

impl Ledger {
    /// Begins to record.
    pub(super) fn of(bed: &Bed) -> Self {
        let book = Arc::<Mutex<Book>>::default();
        let pods = tokio::spawn(record_pods(bed.api(), Arc::clone(&book)));
        let jobs = tokio::spawn(record_jobs(bed.api(), Arc::clone(&book)));
        Self { book, _watches: [pods, jobs].map(AbortOnDropHandle::new) }
    }

    /// The Jobs of this name, in the order in which they came.
    pub(super) fn jobs(&self, name: &str) -> Vec<JobLife> {
        let book = self.book.lock().expect("no holder panics");
        book.jobs.iter().filter(|job| job.name == name).cloned().collect()
    }

    /// The pods of a Job.
    pub(super) fn pods(&self, job: &JobLife) -> Vec<PodLife> {
        let book = self.book.lock().expect("no holder panics");
        book.pods.values().filter(|pod| pod.job == job.uid).cloned().collect()
    }

    /// No Job has counted more pods than have ended so, and none that a disruption ended.
    pub(super) fn each_pod_counts_at_most_once(&self) {
        let jobs = self.book.lock().expect("no holder panics").jobs.clone();
        assert!(!jobs.is_empty());
        for job in jobs {
            let pods = self.pods(&job);
            let ended = |phase: &str| {
                let counts = |pod: &&PodLife| pod.phase == phase && !pod.disrupted;
                i32::try_from(pods.iter().filter(counts).count()).expect("few")
            };
            assert!(job.state.succeeded <= ended("Succeeded"), "{job:?}: {pods:?}");
            assert!(job.state.failed <= ended("Failed"), "{job:?}: {pods:?}");
        }
    }

    /// No pod of a Job came before all pods of the Job that had its name earlier were over.
    pub(super) fn no_attempt_overlaps(&self, name: &str) {
        for attempts in self.jobs(name).windows(2) {
            let (before, after) = (self.pods(&attempts[0]), self.pods(&attempts[1]));
            let begun = after.iter().map(|pod| pod.begun).min().expect("pods");
            let over = |pod: &PodLife| pod.ended.is_some_and(|ended| ended < begun);
            assert!(before.iter().all(over), "{name}: {before:?} {after:?}");
        }
    }
}

async fn record_pods(pods: Api<Pod>, book: Arc<Mutex<Book>>) {
    let events = watcher(pods, watcher::Config::default()).default_backoff();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let mut book = book.lock().expect("no holder panics");
        match event {
            Ok(watcher::Event::InitApply(pod) | watcher::Event::Apply(pod)) => {
                book.take_in(pod, false);
            }
            Ok(watcher::Event::Delete(pod)) => book.take_in(pod, true),
            _ => {}
        }
    }
}

async fn record_jobs(jobs: Api<Job>, book: Arc<Mutex<Book>>) {
    let events = watcher(jobs, watcher::Config::default()).default_backoff().touched_objects();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let Ok(job) = event else { continue };
        let (uid, name) = (job.metadata.uid.clone(), job.metadata.name.clone());
        let (uid, name) = (uid.unwrap_or_default(), name.unwrap_or_default());
        let life = JobLife { uid, name, state: JobState::of(&job) };
        let mut book = book.lock().expect("no holder panics");
        match book.jobs.iter_mut().find(|known| known.uid == life.uid) {
            Some(known) => *known = life,
            None => book.jobs.push(life),
        }
    }
}

impl Book {
    fn take_in(&mut self, pod: Pod, gone: bool) {
        self.number += 1;
        let number = self.number;
        let life = self.pods.entry(pod.metadata.uid.unwrap_or_default()).or_default();
        let mut owners = pod.metadata.owner_references.unwrap_or_default().into_iter();
        // An owner is never taken away, except where it was deleted as an orphan's.
        if let Some(owner) = owners.next() {
            life.job = owner.uid;
        }
        life.name = pod.metadata.name.unwrap_or_default();
        if life.begun == 0 {
            life.begun = number;
        }
        let status = pod.status.unwrap_or_default();
        life.phase = status.phase.unwrap_or_default();
        if gone || matches!(life.phase.as_str(), "Succeeded" | "Failed") {
            life.ended.get_or_insert(number);
        }
        let is_target = |kind: &str, status: &str| kind == "DisruptionTarget" && status == "True";
        let mut conditions = status.conditions.into_iter().flatten();
        life.disrupted |= conditions.any(|it| is_target(&it.type_, &it.status));
    }
}
