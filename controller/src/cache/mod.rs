//! Holds the watched Jobs and pods and the memory of each Job, and returns what each event
//! enqueues.
//!
//! One lock covers both, so that an event, its reaction and a snapshot are consistent. The core
//! decides what an event enqueues.

mod pods;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use controller_core::batching::CachedPodCounts;
use controller_core::event_handlers::{
    Enqueue, JobChange, Lookup, PodChange, external_controller, is_relevant, job_changed,
    pod_changed, tracked_terminal_transition,
};
use controller_core::job::{Memory, MemoryUpdate, Versions};
use controller_core::orphans::{Orphans, may_remove_finalizer};
use controller_core::view::{Interner, Job, JobKey, Owner, Pod, Uid, Version, WirePod};
use jiff::Timestamp;
use parking_lot::Mutex;

use self::pods::Pods;

/// The interner drops unused strings after this many events.
const EVENTS_PER_SWEEP: u32 = 20_000;

/// The cache of Jobs, pods and memories.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    jobs: BTreeMap<JobKey, Arc<Job>>,
    pods: Pods,
    memories: HashMap<Uid, Memory>,
    seen: Versions,
    interner: Interner,
    events: u32,
    job_list: Option<HashSet<JobKey>>,
    /// Jobs whose latest version could not be read.
    unreadable: HashSet<JobKey>,
    pod_list: Option<PodList>,
    /// Pods whose latest version could not be read, and the Job that owns each.
    unreadable_pods: HashMap<Uid, Uid>,
    /// Jobs whose sync found a watch behind our own writes. ([Z2])
    late: Vec<(JobKey, Versions)>,
}

/// A list of pods that has begun and is not complete.
#[derive(Debug, Default)]
struct PodList {
    listed: HashSet<Uid>,
    /// Pods (by Job) that we created before the list began and the watch has not shown.
    awaited: Vec<(Uid, Uid)>,
}

/// The input of a plan, except for time and settings.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) job: Arc<Job>,
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) memory: Memory,
    pub(crate) seen: Versions,
}

/// What one event enqueues and counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reaction {
    pub(crate) entries: Vec<Entry>,
    /// For `terminated_pods_tracking_finalizer_total`. ([M7])
    pub(crate) tracked_terminal: Vec<&'static str>,
    /// For `jobs_by_external_controller_total`. ([M6])
    pub(crate) external: Option<String>,
}

/// An item to enqueue, with the facts that its delay depends on.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) enqueue: Enqueue,
    pub(crate) facts: Option<(Arc<Job>, CachedPodCounts)>,
}

impl Cache {
    /// A list of all Jobs begins.
    pub(crate) fn jobs_begin(&self) {
        self.state.lock().job_list = Some(HashSet::new());
    }

    /// A Job was listed, added or modified.
    pub(crate) fn job_shown(&self, job: Job, now: Timestamp) -> Reaction {
        let mut state = self.state.lock();
        let mut reaction = Reaction::default();
        let version = job.version;
        state.show_job(&Arc::new(job), now, &mut reaction);
        state.advance(Versions { jobs: version, ..Versions::default() }, &mut reaction);
        reaction
    }

    /// A Job could not be read. It is neither synced nor treated as deleted, which would release
    /// its pods' finalizers.
    pub(crate) fn job_unreadable(&self, key: &JobKey, version: Version) -> Reaction {
        let mut state = self.state.lock();
        let mut reaction = Reaction::default();
        state.unreadable.insert(key.clone());
        if let Some(list) = &mut state.job_list {
            list.insert(key.clone());
        }
        state.advance(Versions { jobs: version, ..Versions::default() }, &mut reaction);
        reaction
    }

    /// A Job was deleted.
    pub(crate) fn job_gone(&self, key: &JobKey, version: Version, now: Timestamp) -> Reaction {
        let mut state = self.state.lock();
        let mut reaction = Reaction::default();
        state.lose_job(key, now, &mut reaction);
        state.advance(Versions { jobs: version, ..Versions::default() }, &mut reaction);
        reaction
    }

    /// The list of all Jobs is complete; a Job that it lacks is gone. ([H12])
    pub(crate) fn jobs_end(&self, version: Version, now: Timestamp) -> Reaction {
        let mut state = self.state.lock();
        let mut reaction = Reaction::default();
        let listed = state.job_list.take().unwrap_or_default();
        let lost: Vec<JobKey> =
            state.jobs.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        state.unreadable.retain(|key| listed.contains(key));
        for key in &lost {
            state.lose_job(key, now, &mut reaction);
        }
        state.advance(Versions { jobs: version, ..Versions::default() }, &mut reaction);
        reaction
    }

    /// The watch has shown all events of Jobs up to this version.
    pub(crate) fn jobs_seen(&self, version: Version) -> Reaction {
        let mut reaction = Reaction::default();
        let seen = Versions { jobs: version, ..Versions::default() };
        self.state.lock().advance(seen, &mut reaction);
        reaction
    }

    /// A list of all pods begins.
    pub(crate) fn pods_begin(&self) {
        let mut state = self.state.lock();
        let created = |(job, memory): (&Uid, &Memory)| -> Vec<(Uid, Uid)> {
            let pods = memory.expectations.created.iter();
            pods.map(|pod| (job.clone(), pod.clone())).collect()
        };
        let awaited = state.memories.iter().flat_map(created).collect();
        state.pod_list = Some(PodList { listed: HashSet::new(), awaited });
    }

    /// A pod was listed, added or modified.
    pub(crate) fn pod_shown(&self, pod: WirePod) -> Reaction {
        let mut state = self.state.lock();
        let mut reaction = Reaction::default();
        let pod = pod.view(&mut state.interner);
        let version = pod.version;
        state.show_pod(pod, &mut reaction);
        state.advance(Versions { pods: version, ..Versions::default() }, &mut reaction);
        reaction
    }

    /// A pod could not be read. It is not treated as deleted. Its Job, which is returned, is not
    /// synced until the pod is readable or gone.
    pub(crate) fn pod_unreadable(
        &self,
        uid: Uid,
        owner: Option<Uid>,
        version: Version,
    ) -> (Reaction, Option<Arc<Job>>) {
        let mut state = self.state.lock();
        let mut reaction = Reaction::default();
        if let Some(list) = &mut state.pod_list {
            list.listed.insert(uid.clone());
        }
        let known = state.pods.get(&uid).and_then(|pod| pod.owner.as_ref());
        let owner = owner.or_else(|| known.map(|owner| owner.uid.clone()));
        let job = owner.as_ref().and_then(|owner| state.job_of_uid(owner));
        if let Some(owner) = owner {
            state.unreadable_pods.insert(uid, owner);
        }
        state.advance(Versions { pods: version, ..Versions::default() }, &mut reaction);
        (reaction, job)
    }

    /// A pod was deleted.
    pub(crate) fn pod_gone(&self, uid: &Uid, version: Version) -> Reaction {
        let mut state = self.state.lock();
        let mut reaction = Reaction::default();
        state.readable(uid, &mut reaction);
        state.lose_pod(uid, &mut reaction);
        state.advance(Versions { pods: version, ..Versions::default() }, &mut reaction);
        reaction
    }

    /// The list of all pods is complete; a pod that it lacks is gone. ([H12])
    pub(crate) fn pods_end(&self, version: Version) -> Reaction {
        let mut state = self.state.lock();
        let mut reaction = Reaction::default();
        let list = state.pod_list.take().unwrap_or_default();
        let lost: Vec<Uid> =
            state.pods.uids().filter(|uid| !list.listed.contains(*uid)).cloned().collect();
        let unread: Vec<Uid> = state.unreadable_pods.keys().cloned().collect();
        for uid in unread.iter().filter(|uid| !list.listed.contains(*uid)) {
            state.readable(uid, &mut reaction);
        }
        for uid in &lost {
            state.lose_pod(uid, &mut reaction);
        }
        state.settle_awaited(list.awaited);
        state.advance(Versions { pods: version, ..Versions::default() }, &mut reaction);
        reaction
    }

    /// The watch has shown all events of pods up to this version.
    pub(crate) fn pods_seen(&self, version: Version) -> Reaction {
        let mut reaction = Reaction::default();
        let seen = Versions { pods: version, ..Versions::default() };
        self.state.lock().advance(seen, &mut reaction);
        reaction
    }

    /// Returns what to enqueue for all Jobs and pods, as if each had just been added.
    pub(crate) fn everything(&self, now: Timestamp) -> Reaction {
        let state = self.state.lock();
        let mut reaction = Reaction::default();
        for job in state.jobs.values() {
            state.react(job_changed(JobChange::Added(job), now).queue, &mut reaction);
        }
        for pod in state.pods.all() {
            state.react(pod_changed(PodChange::Added(pod), &*state).queue, &mut reaction);
        }
        reaction
    }

    /// Returns the input of a plan for this Job; `None` if it is unknown, or it or a pod of it is
    /// unreadable. ([S2])
    pub(crate) fn snapshot(&self, key: &JobKey) -> Option<Snapshot> {
        let state = self.state.lock();
        if state.unreadable.contains(key) {
            return None;
        }
        let job = Arc::clone(state.jobs.get(key)?);
        if state.unreadable_pods.values().any(|owner| *owner == job.uid) {
            return None;
        }
        let owned = state.pods.of_owner(&job.uid);
        // Pods without a controller may be adopted. ([S10])
        let pods = owned.chain(state.pods.without_owner(&key.namespace)).cloned().collect();
        let memory = state.memories.get(&job.uid).cloned().unwrap_or_default();
        Some(Snapshot { job, pods, memory, seen: state.seen })
    }

    /// Updates the memory of a Job, unless the Job is gone, replaced by a namesake or finished.
    pub(crate) fn remember(&self, job: &Job, change: MemoryUpdate, now: Timestamp) {
        let mut state = self.state.lock();
        let seen = state.seen;
        let current = state.jobs.get(&job.key).filter(|known| known.uid == job.uid);
        if current.is_some_and(|known| !known.is_finished()) {
            state.memories.entry(job.uid.clone()).or_default().apply(change, seen, now);
        }
    }

    /// A sync found the watches behind these versions; it is enqueued again once they catch up.
    /// Returns the syncs for which they already have.
    pub(crate) fn await_versions(&self, key: JobKey, written: Versions) -> Reaction {
        let mut state = self.state.lock();
        let mut reaction = Reaction::default();
        state.late.retain(|(late, _)| *late != key);
        state.late.push((key, written));
        state.advance(Versions::default(), &mut reaction);
        reaction
    }

    /// An annotation of the Job that an owner reference names, if name and UID match.
    pub(crate) fn job_annotation(
        &self,
        namespace: &Arc<str>,
        owner: &Owner,
        name: &str,
    ) -> Option<String> {
        let state = self.state.lock();
        let job = state.jobs.get(&JobKey::new(Arc::clone(namespace), &*owner.name))?;
        job.annotations.get(name).filter(|_| job.uid == owner.uid).cloned()
    }

    /// Whether the cache has a Job of this name and UID.
    pub(crate) fn knows(&self, key: &JobKey, uid: &Uid) -> bool {
        self.state.lock().jobs.get(key).is_some_and(|job| job.uid == *uid)
    }

    /// Returns the pods whose tracking finalizer may be removed. ([O1], [O2])
    pub(crate) fn orphans(&self, item: &Orphans, manage_all_jobs: bool) -> Vec<Arc<Pod>> {
        let state = self.state.lock();
        let may = |pod: &&Arc<Pod>| {
            !state.has_unreadable_owner(pod)
                && !state.unreadable_pods.contains_key(&pod.uid)
                && may_remove_finalizer(pod, manage_all_jobs, |key| state.jobs.get(key))
        };
        match item {
            Orphans::Pod(_, uid) => state.pods.get(uid).into_iter().filter(may).cloned().collect(),
            Orphans::OfJob(former) => {
                let owned = state.pods.of_owner(&former.uid);
                let pods = owned.chain(state.pods.without_owner(&former.namespace));
                pods.filter(|pod| former.concerns(pod)).filter(may).cloned().collect()
            }
        }
    }
}

impl State {
    fn show_job(&mut self, job: &Arc<Job>, now: Timestamp, reaction: &mut Reaction) {
        if let Some(list) = &mut self.job_list {
            list.insert(job.key.clone());
        }
        self.unreadable.remove(&job.key);
        // A namesake is another Job, even if a list hides the deletion of the first one.
        if self.jobs.get(&job.key).is_some_and(|old| old.uid != job.uid) {
            self.lose_job(&job.key.clone(), now, reaction);
        }
        let old = self.jobs.insert(job.key.clone(), Arc::clone(job));
        // A finished Job needs no memory. ([S4], [Z4])
        if job.is_finished() {
            self.memories.remove(&job.uid);
        } else {
            let memory = self.memories.entry(job.uid.clone()).or_default();
            memory.saw_job(old.as_deref(), job, now);
        }
        let change = match &old {
            Some(old) if old.version == job.version => return,
            Some(old) => JobChange::Updated(old, job),
            None => {
                reaction.external = external_controller(job).map(str::to_owned);
                JobChange::Added(job)
            }
        };
        let queue = job_changed(change, now).queue;
        self.react(queue, reaction);
    }

    /// Removes a Job and its memory. ([H4])
    fn lose_job(&mut self, key: &JobKey, now: Timestamp, reaction: &mut Reaction) {
        self.unreadable.remove(key);
        let Some(job) = self.jobs.remove(key) else { return };
        self.memories.remove(&job.uid);
        self.late.retain(|(late, _)| late != key);
        let queue = job_changed(JobChange::Deleted(&job), now).queue;
        self.react(queue, reaction);
    }

    fn show_pod(&mut self, pod: Pod, reaction: &mut Reaction) {
        self.events += 1;
        if self.events >= EVENTS_PER_SWEEP {
            self.events = 0;
            self.interner.sweep();
        }
        if let Some(list) = &mut self.pod_list {
            list.listed.insert(pod.uid.clone());
        }
        self.readable(&pod.uid, reaction);
        let pod = Arc::new(pod);
        let old = if is_relevant(&pod) {
            self.pods.insert(Arc::clone(&pod))
        } else {
            let old = self.pods.remove(&pod.uid);
            if old.is_none() {
                return;
            }
            old
        };
        let change = match &old {
            Some(old) => PodChange::Updated(old, &pod),
            None => PodChange::Added(&pod),
        };
        reaction.tracked_terminal.extend(tracked_terminal_transition(change));
        let enqueues = pod_changed(change, self);
        for job in &enqueues.observers {
            if let Some(memory) = self.memories.get_mut(job) {
                memory.saw_pod(&pod);
            }
        }
        self.react(enqueues.queue, reaction);
    }

    /// A pod is readable again, or gone: its Job is synced again.
    fn readable(&mut self, pod: &Uid, reaction: &mut Reaction) {
        if let Some(owner) = self.unreadable_pods.remove(pod)
            && let Some(job) = self.job_of_uid(&owner)
        {
            self.react(vec![Enqueue::Sync(job.key.clone())], reaction);
        }
    }

    /// A linear search is enough: only unreadable pods need it, and they are rare.
    fn job_of_uid(&self, uid: &Uid) -> Option<Arc<Job>> {
        self.jobs.values().find(|job| job.uid == *uid).cloned()
    }

    fn lose_pod(&mut self, uid: &Uid, reaction: &mut Reaction) {
        let Some(pod) = self.pods.remove(uid) else { return };
        let change = PodChange::Deleted(&pod);
        reaction.tracked_terminal.extend(tracked_terminal_transition(change));
        let enqueues = pod_changed(change, self);
        for job in &enqueues.observers {
            if let Some(memory) = self.memories.get_mut(job) {
                memory.saw_pod_gone(uid);
            }
        }
        self.react(enqueues.queue, reaction);
    }

    /// Pods that were created before a list began and that it lacks were deleted unseen.
    fn settle_awaited(&mut self, awaited: Vec<(Uid, Uid)>) {
        for (job, pod) in awaited {
            if self.pods.get(&pod).is_none()
                && let Some(memory) = self.memories.get_mut(&job)
            {
                memory.saw_pod_gone(&pod);
            }
        }
    }

    /// Records how far the watches have come, and enqueues the Jobs that waited for it. The
    /// versions of objects in an unfinished list do not count.
    fn advance(&mut self, mut versions: Versions, reaction: &mut Reaction) {
        if self.job_list.is_some() {
            versions.jobs = Version::default();
        }
        if self.pod_list.is_some() {
            versions.pods = Version::default();
        }
        self.seen = self.seen.max(versions);
        if self.late.is_empty() {
            return;
        }
        let seen = self.seen;
        let caught_up = |written: &Versions| written.jobs <= seen.jobs && written.pods <= seen.pods;
        let (ready, late) =
            std::mem::take(&mut self.late).into_iter().partition(|(_, it)| caught_up(it));
        self.late = late;
        let ready: Vec<(JobKey, Versions)> = ready;
        self.react(ready.into_iter().map(|(key, _)| Enqueue::Sync(key)).collect(), reaction);
    }

    fn has_unreadable_owner(&self, pod: &Pod) -> bool {
        !self.unreadable.is_empty()
            && pod.owner.as_ref().is_some_and(|owner| {
                let key = JobKey::new(Arc::clone(&pod.namespace), &*owner.name);
                self.unreadable.contains(&key)
            })
    }

    fn react(&self, queue: Vec<Enqueue>, reaction: &mut Reaction) {
        reaction.entries.extend(queue.into_iter().map(|enqueue| {
            let facts = match &enqueue {
                Enqueue::Batch(key, _) => {
                    let job = self.jobs.get(key);
                    job.map(|job| (Arc::clone(job), self.pods.counts(&job.uid)))
                }
                _ => None,
            };
            Entry { enqueue, facts }
        }));
    }
}

impl Lookup for State {
    fn job(&self, key: &JobKey) -> Option<&Arc<Job>> {
        self.jobs.get(key)
    }

    fn matching(&self, pod: &Pod) -> Vec<JobKey> {
        let first = JobKey::new(Arc::clone(&pod.namespace), "");
        self.jobs
            .range(first..)
            .take_while(|(key, _)| key.namespace == pod.namespace)
            .filter(|(_, job)| pod.matches(&job.spec.selector))
            .map(|(key, _)| key.clone())
            .collect()
    }
}
