//! Holds what the watches have shown of Jobs and pods, and what is remembered of each Job. Takes
//! each event and returns what it enqueues.
//!
//! The program keeps it behind one lock, so that an event, what it enqueues and the input of a plan
//! are consistent. The simulation drives the same type.

mod event;
mod pods;
mod relist;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use epilogue_common::watch_event::WatchEvent;
use jiff::Timestamp;

pub use self::event::{Entry, Event, Now, Reaction, Snapshot};
use self::pods::Pods;
use self::relist::Relist;
use crate::batching::{BatchInput, Batching, Change, LastSync, Load};
use crate::event_handlers::{
    Enqueue, JobChange, Lookup, PodChange, external_controller, is_relevant, job_changed,
    pod_changed, tracked_terminal_transition,
};
use crate::job::{Memory, MemoryUpdate, Versions};
use crate::orphans::{Orphans, may_remove_finalizer};
use crate::view::{Interner, Job, JobKey, Owner, Pod, Uid, Version, WirePod};
use crate::workqueue::Moment;

/// The interner drops unused strings after this many events.
const EVENTS_PER_SWEEP: u32 = 20_000;

/// Jobs, pods and memories.
#[derive(Debug, Default)]
pub struct ClusterState {
    batching: Batching,
    load: Load,
    last_syncs: HashMap<JobKey, LastSync>,
    jobs: BTreeMap<JobKey, Arc<Job>>,
    pods: Pods,
    memories: HashMap<Uid, Memory>,
    seen: Versions,
    interner: Interner,
    reads: u32,
    job_list: Relist<JobKey>,
    pod_list: Relist<Uid>,
    /// Pods (by Job) that we created before the list of pods began and the watch has not shown.
    awaited: Vec<(Uid, Uid)>,
    /// Jobs whose latest version could not be read.
    unreadable: HashSet<JobKey>,
    /// Pods whose latest version could not be read, and the Job that owns each.
    unreadable_pods: HashMap<Uid, Uid>,
    /// Jobs whose sync found a watch behind our own writes. ([Z2])
    late: Vec<(JobKey, Versions)>,
}

impl ClusterState {
    /// An empty state.
    pub fn new(batching: Batching) -> Self {
        Self { batching, ..Self::default() }
    }

    /// The view of a pod, which shares its strings with other pods.
    pub fn view(&mut self, pod: WirePod) -> Arc<Pod> {
        self.reads += 1;
        if self.reads >= EVENTS_PER_SWEEP {
            self.reads = 0;
            self.interner.sweep();
        }
        Arc::new(pod.view(&mut self.interner))
    }

    /// Takes an event, and returns what follows from it.
    pub fn handle(&mut self, event: Event, now: &Now) -> Reaction {
        let mut reaction = Reaction::default();
        let versions = match event {
            Event::Job(event) => {
                let jobs = self.job_event(event, now, &mut reaction);
                Versions { jobs, ..Versions::default() }
            }
            Event::Pod(event) => {
                let pods = self.pod_event(event, now, &mut reaction);
                Versions { pods, ..Versions::default() }
            }
        };
        self.advance(versions, &mut reaction);
        reaction
    }

    /// Returns what to enqueue for all Jobs and pods, as if each had just been added.
    pub fn everything(&self, now: &Now) -> Vec<Entry> {
        let mut reaction = Reaction::default();
        for job in self.jobs.values() {
            self.react(job_changed(JobChange::Added(job), now.time).queue, now, &mut reaction);
        }
        let mut pods: Vec<&Arc<Pod>> = self.pods.all().collect();
        pods.sort_by(|one, other| one.uid.cmp(&other.uid));
        for pod in pods {
            self.react(pod_changed(PodChange::Added(pod), self).queue, now, &mut reaction);
        }
        reaction.entries
    }

    /// Returns the input of a plan for this Job; `None` if it is unknown, or it or a pod of it is
    /// unreadable. ([S2])
    pub fn input(&self, key: &JobKey) -> Option<Snapshot> {
        if self.unreadable.contains(key) {
            return None;
        }
        let job = Arc::clone(self.jobs.get(key)?);
        if self.unreadable_pods.values().any(|owner| *owner == job.uid) {
            return None;
        }
        let owned = self.pods.of_owner(&job.uid);
        // Pods without a controller may be adopted. ([S10])
        let pods = owned.chain(self.pods.without_owner(&key.namespace)).cloned().collect();
        let memory = self.memories.get(&job.uid).cloned().unwrap_or_default();
        Some(Snapshot { job, pods, memory, seen: self.seen })
    }

    /// Updates the memory of a Job, unless the Job is gone, replaced by a namesake or finished.
    pub fn remember(&mut self, job: &Job, change: MemoryUpdate, now: Timestamp) {
        let seen = self.seen;
        let current = self.jobs.get(&job.key).filter(|known| known.uid == job.uid);
        if current.is_some_and(|known| !known.is_finished()) {
            self.memories.entry(job.uid.clone()).or_default().apply(change, seen, now);
        }
    }

    /// A sync found the watches behind these versions; it is enqueued again once they catch up.
    /// Returns the syncs for which they already have.
    pub fn await_versions(&mut self, key: JobKey, written: Versions) -> Vec<Entry> {
        let mut reaction = Reaction::default();
        self.late.retain(|(late, _)| *late != key);
        self.late.push((key, written));
        self.advance(Versions::default(), &mut reaction);
        reaction.entries
    }

    /// Records the end and the duration of a sync.
    pub fn synced(&mut self, key: &JobKey, took: Duration, ended: Moment) {
        self.load.synced(ended);
        self.last_syncs.insert(key.clone(), LastSync { ended, took });
    }

    /// Forgets the last sync of a Job that no longer exists.
    pub fn forget(&mut self, key: &JobKey) {
        self.last_syncs.remove(key);
    }

    /// The sync of a Job after the time that its plan requested. ([Q3])
    pub fn requeue(&self, key: &JobKey, wait: Duration) -> Entry {
        Entry::Job(key.clone(), Some(self.batching.floor(wait)))
    }

    /// An annotation of the Job that an owner reference names, if name and UID match.
    pub fn job_annotation(&self, namespace: &Arc<str>, owner: &Owner, name: &str) -> Option<&str> {
        let job = self.jobs.get(&JobKey::new(Arc::clone(namespace), &*owner.name))?;
        job.annotations.get(name).filter(|_| job.uid == owner.uid).map(String::as_str)
    }

    /// Whether there is a Job of this name and UID.
    pub fn knows(&self, key: &JobKey, uid: &Uid) -> bool {
        self.jobs.get(key).is_some_and(|job| job.uid == *uid)
    }

    /// Returns the pods whose tracking finalizer may be removed. ([O1], [O2])
    pub fn orphans(&self, item: &Orphans, manage_all_jobs: bool) -> Vec<Arc<Pod>> {
        let may = |pod: &&Arc<Pod>| {
            !self.has_unreadable_owner(pod)
                && !self.unreadable_pods.contains_key(&pod.uid)
                && may_remove_finalizer(pod, manage_all_jobs, |key| self.jobs.get(key))
        };
        match item {
            Orphans::Pod(_, uid) => self.pods.get(uid).into_iter().filter(may).cloned().collect(),
            Orphans::OfJob(former) => {
                let owned = self.pods.of_owner(&former.uid);
                let pods = owned.chain(self.pods.without_owner(&former.namespace));
                pods.filter(|pod| former.concerns(pod)).filter(may).cloned().collect()
            }
        }
    }

    /// Returns the version up to which the event proves the watch of Jobs.
    fn job_event(
        &mut self,
        event: WatchEvent<Arc<Job>>,
        now: &Now,
        reaction: &mut Reaction,
    ) -> Version {
        match event {
            WatchEvent::ListBegins => {
                self.job_list.begin();
                Version::default()
            }
            WatchEvent::ListEnds(version) => {
                self.jobs_end(now, reaction);
                Version::parse(&version)
            }
            WatchEvent::Shown(job) => {
                self.show_job(&job, now, reaction);
                job.version
            }
            WatchEvent::Gone(job) => {
                self.lose_job(&job.key, now, reaction);
                job.version
            }
            WatchEvent::Unreadable(job) => {
                let key = JobKey::new(job.namespace.as_str(), job.name.as_str());
                if job.gone {
                    self.lose_job(&key, now, reaction);
                } else {
                    // It is neither synced nor treated as deleted, which would release its pods'
                    // finalizers.
                    self.job_list.saw(&key);
                    self.unreadable.insert(key);
                }
                Version::parse(&job.version)
            }
            WatchEvent::UpTo(version) => Version::parse(&version),
        }
    }

    /// Returns the version up to which the event proves the watch of pods.
    fn pod_event(
        &mut self,
        event: WatchEvent<Arc<Pod>>,
        now: &Now,
        reaction: &mut Reaction,
    ) -> Version {
        match event {
            WatchEvent::ListBegins => {
                self.pods_begin();
                Version::default()
            }
            WatchEvent::ListEnds(version) => {
                self.pods_end(now, reaction);
                Version::parse(&version)
            }
            WatchEvent::Shown(pod) => {
                self.show_pod(&pod, now, reaction);
                pod.version
            }
            WatchEvent::Gone(pod) => {
                self.readable(&pod.uid, reaction);
                self.lose_pod(&pod.uid, now, reaction);
                pod.version
            }
            WatchEvent::Unreadable(pod) => {
                let uid = Uid::from(pod.uid.as_str());
                if pod.gone {
                    self.readable(&uid, reaction);
                    self.lose_pod(&uid, now, reaction);
                } else {
                    let owner = pod.owner.as_ref().map(|owner| owner.uid.as_str().into());
                    reaction.rests = self.pod_unreadable(uid, owner);
                }
                Version::parse(&pod.version)
            }
            WatchEvent::UpTo(version) => Version::parse(&version),
        }
    }

    /// The list of all Jobs is complete; a Job that it lacks is gone. ([H12])
    fn jobs_end(&mut self, now: &Now, reaction: &mut Reaction) {
        let listed = self.job_list.end();
        let lost: Vec<JobKey> =
            self.jobs.keys().filter(|key| !listed.contains(*key)).cloned().collect();
        self.unreadable.retain(|key| listed.contains(key));
        for key in &lost {
            self.lose_job(key, now, reaction);
        }
    }

    fn pods_begin(&mut self) {
        let created = |(job, memory): (&Uid, &Memory)| -> Vec<(Uid, Uid)> {
            let pods = memory.expectations.created.iter();
            pods.map(|pod| (job.clone(), pod.clone())).collect()
        };
        self.awaited = self.memories.iter().flat_map(created).collect();
        self.pod_list.begin();
    }

    /// The list of all pods is complete; a pod that it lacks is gone. ([H12])
    fn pods_end(&mut self, now: &Now, reaction: &mut Reaction) {
        let listed = self.pod_list.end();
        let mut lost: Vec<Uid> =
            self.pods.uids().filter(|uid| !listed.contains(*uid)).cloned().collect();
        lost.sort();
        let unread: Vec<Uid> = self.unreadable_pods.keys().cloned().collect();
        for uid in unread.iter().filter(|uid| !listed.contains(*uid)) {
            self.readable(uid, reaction);
        }
        for uid in &lost {
            self.lose_pod(uid, now, reaction);
        }
        self.settle_awaited();
    }

    fn show_job(&mut self, job: &Arc<Job>, now: &Now, reaction: &mut Reaction) {
        self.job_list.saw(&job.key);
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
            memory.saw_job(old.as_deref(), job, now.time);
        }
        let change = match &old {
            Some(old) if old.version == job.version => return,
            Some(old) => JobChange::Updated(old, job),
            None => {
                reaction.external = external_controller(job).map(str::to_owned);
                JobChange::Added(job)
            }
        };
        self.react(job_changed(change, now.time).queue, now, reaction);
    }

    /// Removes a Job and its memory. ([H4])
    fn lose_job(&mut self, key: &JobKey, now: &Now, reaction: &mut Reaction) {
        self.unreadable.remove(key);
        let Some(job) = self.jobs.remove(key) else { return };
        self.memories.remove(&job.uid);
        self.last_syncs.remove(key);
        self.late.retain(|(late, _)| late != key);
        self.react(job_changed(JobChange::Deleted(&job), now.time).queue, now, reaction);
    }

    fn show_pod(&mut self, pod: &Arc<Pod>, now: &Now, reaction: &mut Reaction) {
        self.pod_list.saw(&pod.uid);
        self.readable(&pod.uid, reaction);
        let old = if is_relevant(pod) {
            self.pods.insert(Arc::clone(pod))
        } else {
            let old = self.pods.remove(&pod.uid);
            if old.is_none() {
                return;
            }
            old
        };
        let change = match &old {
            Some(old) => PodChange::Updated(old, pod),
            None => PodChange::Added(pod),
        };
        reaction.tracked_terminal.extend(tracked_terminal_transition(change));
        let enqueues = pod_changed(change, self);
        for job in &enqueues.observers {
            if let Some(memory) = self.memories.get_mut(job) {
                memory.saw_pod(pod);
            }
        }
        self.react(enqueues.queue, now, reaction);
    }

    /// A pod could not be read. It is not treated as deleted. Its Job, which is returned, is not
    /// synced until the pod is readable or gone.
    fn pod_unreadable(&mut self, uid: Uid, owner: Option<Uid>) -> Option<Arc<Job>> {
        self.pod_list.saw(&uid);
        let known = self.pods.get(&uid).and_then(|pod| pod.owner.as_ref());
        let owner = owner.or_else(|| known.map(|owner| owner.uid.clone()))?;
        let job = self.job_of_uid(&owner);
        self.unreadable_pods.insert(uid, owner);
        job
    }

    /// A pod is readable again, or gone: its Job is synced again.
    fn readable(&mut self, pod: &Uid, reaction: &mut Reaction) {
        if let Some(owner) = self.unreadable_pods.remove(pod)
            && let Some(job) = self.job_of_uid(&owner)
        {
            reaction.entries.push(Entry::Job(job.key.clone(), None));
        }
    }

    /// A linear search is enough: only unreadable pods need it, and they are rare.
    fn job_of_uid(&self, uid: &Uid) -> Option<Arc<Job>> {
        self.jobs.values().find(|job| job.uid == *uid).cloned()
    }

    fn lose_pod(&mut self, uid: &Uid, now: &Now, reaction: &mut Reaction) {
        let Some(pod) = self.pods.remove(uid) else { return };
        let change = PodChange::Deleted(&pod);
        reaction.tracked_terminal.extend(tracked_terminal_transition(change));
        let enqueues = pod_changed(change, self);
        for job in &enqueues.observers {
            if let Some(memory) = self.memories.get_mut(job) {
                memory.saw_pod_gone(uid);
            }
        }
        self.react(enqueues.queue, now, reaction);
    }

    /// Pods that were created before a list began and that it lacks were deleted unseen.
    fn settle_awaited(&mut self) {
        for (job, pod) in std::mem::take(&mut self.awaited) {
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
        if self.job_list.is_open() {
            versions.jobs = Version::default();
        }
        if self.pod_list.is_open() {
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
        reaction.entries.extend(ready.into_iter().map(|(key, _)| Entry::Job(key, None)));
    }

    fn has_unreadable_owner(&self, pod: &Pod) -> bool {
        !self.unreadable.is_empty()
            && pod.owner.as_ref().is_some_and(|owner| {
                let key = JobKey::new(Arc::clone(&pod.namespace), &*owner.name);
                self.unreadable.contains(&key)
            })
    }

    fn react(&self, queue: Vec<Enqueue>, now: &Now, reaction: &mut Reaction) {
        reaction.entries.extend(queue.into_iter().filter_map(|enqueue| {
            Some(match enqueue {
                Enqueue::Sync(key) => Entry::Job(key, None),
                Enqueue::SyncAfter(key, wait) => Entry::Job(key, Some(wait)),
                Enqueue::Batch(key, change) => {
                    let delay = self.batch_delay(&key, change, now)?;
                    Entry::Job(key, Some(delay))
                }
                Enqueue::Orphans(orphans) => Entry::Orphans(orphans, None),
                Enqueue::OrphansAfter(orphans, wait) => Entry::Orphans(orphans, Some(wait)),
            })
        }));
    }

    /// How long a change of a Job's pods or status waits for others. ([Q3])
    fn batch_delay(&self, key: &JobKey, change: Change, now: &Now) -> Option<Duration> {
        let job = self.jobs.get(key)?;
        Some(self.batching.delay(&BatchInput {
            change,
            job,
            counts: self.pods.counts(&job.uid),
            last: self.last_syncs.get(key).copied(),
            busy: now.has_backlog || self.load.is_busy(now.elapsed),
            now: now.elapsed,
        }))
    }
}

impl Lookup for ClusterState {
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
