//! The cache and memory of one controller process: the program's cache, with ordered maps so that a
//! seed replays exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use controller_core::batching::CachedPodCounts;
use controller_core::event_handlers::{
    Enqueue, JobChange, Lookup, PodChange, is_relevant, job_changed, pod_changed,
};
use controller_core::job::{Memory, MemoryUpdate, Versions};
use controller_core::orphans::{Orphans, may_remove_finalizer};
use controller_core::view::{Job, JobKey, Pod, Uid, Version};
use jiff::Timestamp;

/// The store.
#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) jobs: BTreeMap<JobKey, Arc<Job>>,
    pub(super) pods: BTreeMap<Uid, Arc<Pod>>,
    memories: BTreeMap<Uid, Memory>,
    seen: Versions,
    job_list: Option<BTreeSet<JobKey>>,
    pod_list: Option<PodList>,
    /// Jobs whose sync found the watches behind our own writes.
    late: Vec<(JobKey, Versions)>,
}

#[derive(Debug, Default)]
struct PodList {
    listed: BTreeSet<Uid>,
    awaited: Vec<(Uid, Uid)>,
}

/// All inputs of a plan except time and settings.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) job: Arc<Job>,
    pub(super) pods: Vec<Arc<Pod>>,
    pub(super) memory: Memory,
    pub(super) seen: Versions,
}

/// The consequences of an event, in order.
pub(super) type Reaction = Vec<Enqueue>;

impl Store {
    pub(super) fn jobs_begin(&mut self) {
        self.job_list = Some(BTreeSet::new());
    }

    pub(super) fn job_shown(&mut self, job: &Arc<Job>, now: Timestamp) -> Reaction {
        let mut reaction = Vec::new();
        self.show_job(job, now, &mut reaction);
        self.advance(jobs_at(job.version), &mut reaction);
        reaction
    }

    pub(super) fn job_gone(&mut self, key: &JobKey, at: Version, now: Timestamp) -> Reaction {
        let mut reaction = Vec::new();
        self.lose_job(key, now, &mut reaction);
        self.advance(jobs_at(at), &mut reaction);
        reaction
    }

    /// The list of all Jobs is complete: a missing Job is gone.
    pub(super) fn jobs_end(&mut self, at: Version, now: Timestamp) -> Reaction {
        let mut reaction = Vec::new();
        let listed = self.job_list.take().unwrap_or_default();
        let lost: Vec<JobKey> =
            self.jobs.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        for key in &lost {
            self.lose_job(key, now, &mut reaction);
        }
        self.advance(jobs_at(at), &mut reaction);
        reaction
    }

    pub(super) fn pods_begin(&mut self) {
        let awaited = self
            .memories
            .iter()
            .flat_map(|(job, memory)| {
                memory.expectations.created.iter().map(|pod| (job.clone(), pod.clone()))
            })
            .collect();
        self.pod_list = Some(PodList { listed: BTreeSet::new(), awaited });
    }

    pub(super) fn pod_shown(&mut self, pod: &Arc<Pod>) -> Reaction {
        let mut reaction = Vec::new();
        self.show_pod(pod, &mut reaction);
        self.advance(pods_at(pod.version), &mut reaction);
        reaction
    }

    pub(super) fn pod_gone(&mut self, uid: &Uid, at: Version) -> Reaction {
        let mut reaction = Vec::new();
        self.lose_pod(uid, &mut reaction);
        self.advance(pods_at(at), &mut reaction);
        reaction
    }

    /// The list of all pods is complete: a missing pod is gone.
    pub(super) fn pods_end(&mut self, at: Version) -> Reaction {
        let mut reaction = Vec::new();
        let list = self.pod_list.take().unwrap_or_default();
        let lost: Vec<Uid> =
            self.pods.keys().filter(|uid| !list.listed.contains(*uid)).cloned().collect();
        for uid in &lost {
            self.lose_pod(uid, &mut reaction);
        }
        for (job, pod) in list.awaited {
            if !self.pods.contains_key(&pod)
                && let Some(memory) = self.memories.get_mut(&job)
            {
                memory.saw_pod_gone(&pod);
            }
        }
        self.advance(pods_at(at), &mut reaction);
        reaction
    }

    /// All events up to these versions have been shown.
    pub(super) fn seen(&mut self, versions: Versions) -> Reaction {
        let mut reaction = Vec::new();
        self.advance(versions, &mut reaction);
        reaction
    }

    /// The inputs of a plan for this Job; `None` if the Job does not exist.
    pub(super) fn snapshot(&self, key: &JobKey) -> Option<Snapshot> {
        let job = Arc::clone(self.jobs.get(key)?);
        let concerns = |pod: &&Arc<Pod>| {
            pod.is_owned_by(&job.uid) || (pod.owner.is_none() && pod.namespace == job.key.namespace)
        };
        let pods = self.pods.values().filter(concerns).cloned().collect();
        let memory = self.memories.get(&job.uid).cloned().unwrap_or_default();
        Some(Snapshot { job, pods, memory, seen: self.seen })
    }

    /// Updates the memory of a Job, unless the watch has shown that it is not needed.
    pub(super) fn remember(&mut self, job: &Job, change: MemoryUpdate, now: Timestamp) {
        let current = self.jobs.get(&job.key).filter(|known| known.uid == job.uid);
        if current.is_some_and(|known| !known.is_finished()) {
            let seen = self.seen;
            self.memories.entry(job.uid.clone()).or_default().apply(change, seen, now);
        }
    }

    /// Forgets a Job's memory, as no real process does.
    pub(super) fn forget(&mut self, job: &Uid) {
        self.memories.remove(job);
    }

    /// A sync found the watches behind these versions; the Job is retried once they have caught up.
    pub(super) fn await_versions(&mut self, key: JobKey, written: Versions) -> Reaction {
        let mut reaction = Vec::new();
        self.late.retain(|(late, _)| *late != key);
        self.late.push((key, written));
        self.advance(Versions::default(), &mut reaction);
        reaction
    }

    /// The pods that are to lose their finalizer.
    pub(super) fn orphans(&self, item: &Orphans) -> Vec<Arc<Pod>> {
        let may = |pod: &&Arc<Pod>| may_remove_finalizer(pod, false, |key| self.jobs.get(key));
        match item {
            Orphans::Pod(_, uid) => self.pods.get(uid).into_iter().filter(may).cloned().collect(),
            Orphans::OfJob(former) => {
                let pods = self.pods.values().filter(|pod| {
                    pod.is_owned_by(&former.uid)
                        || (pod.owner.is_none() && pod.namespace == former.namespace)
                });
                pods.filter(|pod| former.concerns(pod)).filter(may).cloned().collect()
            }
        }
    }

    /// A Job and the counts of its pods, which decide the urgency of a change.
    pub(super) fn facts(&self, key: &JobKey) -> Option<(Arc<Job>, CachedPodCounts)> {
        let job = self.jobs.get(key)?;
        let mut counts = CachedPodCounts::default();
        self.pods.values().filter(|pod| pod.is_owned_by(&job.uid)).for_each(|pod| counts.add(pod));
        Some((Arc::clone(job), counts))
    }

    fn show_job(&mut self, job: &Arc<Job>, now: Timestamp, reaction: &mut Reaction) {
        if let Some(list) = &mut self.job_list {
            list.insert(job.key.clone());
        }
        if self.jobs.get(&job.key).is_some_and(|old| old.uid != job.uid) {
            self.lose_job(&job.key.clone(), now, reaction);
        }
        let old = self.jobs.insert(job.key.clone(), Arc::clone(job));
        if job.is_finished() {
            self.memories.remove(&job.uid);
        } else {
            let memory = self.memories.entry(job.uid.clone()).or_default();
            memory.saw_job(old.as_deref(), job, now);
        }
        let change = match &old {
            Some(old) if old.version == job.version => return,
            Some(old) => JobChange::Updated(old, job),
            None => JobChange::Added(job),
        };
        reaction.extend(job_changed(change, now).queue);
    }

    fn lose_job(&mut self, key: &JobKey, now: Timestamp, reaction: &mut Reaction) {
        let Some(job) = self.jobs.remove(key) else { return };
        self.memories.remove(&job.uid);
        self.late.retain(|(late, _)| late != key);
        reaction.extend(job_changed(JobChange::Deleted(&job), now).queue);
    }

    fn show_pod(&mut self, pod: &Arc<Pod>, reaction: &mut Reaction) {
        if let Some(list) = &mut self.pod_list {
            list.listed.insert(pod.uid.clone());
        }
        let old = if is_relevant(pod) {
            self.pods.insert(pod.uid.clone(), Arc::clone(pod))
        } else {
            match self.pods.remove(&pod.uid) {
                None => return,
                old => old,
            }
        };
        let change = match &old {
            Some(old) => PodChange::Updated(old, pod),
            None => PodChange::Added(pod),
        };
        let enqueues = pod_changed(change, self);
        for job in &enqueues.observers {
            if let Some(memory) = self.memories.get_mut(job) {
                memory.saw_pod(pod);
            }
        }
        reaction.extend(enqueues.queue);
    }

    fn lose_pod(&mut self, uid: &Uid, reaction: &mut Reaction) {
        let Some(pod) = self.pods.remove(uid) else { return };
        let enqueues = pod_changed(PodChange::Deleted(&pod), self);
        for job in &enqueues.observers {
            if let Some(memory) = self.memories.get_mut(job) {
                memory.saw_pod_gone(uid);
            }
        }
        reaction.extend(enqueues.queue);
    }

    /// The watches have advanced to these versions; objects of a list in progress do not count.
    /// Jobs that waited for it are synced.
    fn advance(&mut self, mut versions: Versions, reaction: &mut Reaction) {
        if self.job_list.is_some() {
            versions.jobs = Version::default();
        }
        if self.pod_list.is_some() {
            versions.pods = Version::default();
        }
        self.seen = self.seen.max(versions);
        let seen = self.seen;
        let (ready, late): (Vec<_>, Vec<_>) = std::mem::take(&mut self.late)
            .into_iter()
            .partition(|(_, it)| it.jobs <= seen.jobs && it.pods <= seen.pods);
        self.late = late;
        reaction.extend(ready.into_iter().map(|(key, _)| Enqueue::Sync(key)));
    }
}

impl Lookup for Store {
    fn job(&self, key: &JobKey) -> Option<&Arc<Job>> {
        self.jobs.get(key)
    }

    fn matching(&self, pod: &Pod) -> Vec<JobKey> {
        let jobs = self.jobs.values().filter(|job| job.key.namespace == pod.namespace);
        jobs.filter(|job| pod.matches(&job.spec.selector)).map(|job| job.key.clone()).collect()
    }
}

fn jobs_at(version: Version) -> Versions {
    Versions { jobs: version, ..Versions::default() }
}

fn pods_at(version: Version) -> Versions {
    Versions { pods: version, ..Versions::default() }
}
