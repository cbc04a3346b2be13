//! Holds Jobs and what is remembered of each, and turns events into entries for their queues.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use epilogue_common::watch_event::WatchEvent;
use jiff::{SignedDuration, Timestamp};

use super::adopters::Adopters;
use super::event::{Entry, Now, Reaction};
use super::followers::Followers;
use super::groups::Controller;
use super::late::Late;
use super::pods::{OwnerJob, Pods};
use super::relist::Relist;
use super::templates::Templates;
use crate::batching::{BatchInput, Batching, Change, LastSync, Load, Pressure};
use crate::event_handlers::{
    Enqueue, JobChange, Lookup, PodChange, external_controller, is_relevant, job_changed,
    pod_changed, tracked_terminal_transition,
};
use crate::job::{Memory, MemoryUpdate, Versions};
use crate::orphans::Orphans;
use crate::view::{Job, JobKey, Pod, Uid, Version};
use crate::workqueue::Moment;

/// Jobs and memories.
#[derive(Clone, Debug, Default)]
pub(super) struct Jobs {
    batching: Batching,
    load: Load,
    last_syncs: HashMap<JobKey, LastSync>,
    by_key: BTreeMap<JobKey, Arc<Job>>,
    adopters: Adopters,
    memories: HashMap<Uid, Memory>,
    seen: Versions,
    list: Relist<JobKey>,
    /// Whether a list of pods has begun.
    pods_begun: bool,
    /// Jobs whose latest version could not be read.
    unreadable: HashSet<JobKey>,
    /// Those of ours that are being deleted.
    released: HashMap<JobKey, Uid>,
    late: Late,
    templates: Templates,
    /// Jobs by the controller whose Workload they follow.
    followers: Followers,
}

impl Jobs {
    pub(super) fn new(batching: Batching) -> Self {
        Self { batching, ..Self::default() }
    }

    /// Whether Jobs of upstream are ours.
    pub(super) fn manage(&mut self, all: bool) {
        self.templates.manage(all);
    }

    /// No Jobs, by the same settings.
    pub(super) fn emptied(&self) -> Self {
        Self { templates: self.templates.emptied(), ..Self::new(self.batching) }
    }

    /// Nothing is known of scheduling objects any more, and none is awaited.
    pub(super) fn forget_groups(&mut self) {
        let none = |versions: Versions| Versions {
            workloads: Version::default(),
            pod_groups: Version::default(),
            ..versions
        };
        self.seen = none(self.seen);
        for memory in self.memories.values_mut() {
            memory.written = none(memory.written);
        }
    }

    /// The Workloads of these controllers have changed.
    pub(super) fn workloads_changed(
        &self,
        controllers: &[Controller],
        pods: &Pods,
        now: &Now,
        reaction: &mut Reaction,
    ) {
        let jobs = controllers.iter().flat_map(|it| self.followers.of(it));
        let jobs = jobs.filter(|key| self.by_key.contains_key(*key));
        let queue = jobs.cloned().map(Enqueue::Sync).collect();
        self.react(queue, pods, now, reaction);
    }

    /// A list of pods begins.
    pub(super) fn pods_begin(&mut self) {
        self.pods_begun = true;
    }

    /// The pods will be listed before the next sync.
    pub(super) fn expect_pods(&mut self) {
        for memory in self.memories.values_mut() {
            memory.counted = None;
        }
    }

    /// The Job of this key.
    pub(super) fn get(&self, key: &JobKey) -> Option<&Arc<Job>> {
        self.by_key.get(key)
    }

    /// The Job that controls a pod, if name and UID match.
    pub(super) fn of_pod(&self, pod: &Pod) -> Option<&Arc<Job>> {
        let owner = pod.owner.as_ref()?;
        let key = JobKey::new(Arc::clone(&pod.namespace), Arc::clone(&owner.name));
        self.by_key.get(&key).filter(|job| job.uid == owner.uid)
    }

    /// The Job of this name and UID.
    pub(super) fn of_owner(&self, (key, uid): &OwnerJob) -> Option<&Arc<Job>> {
        self.by_key.get(key).filter(|job| job.uid == *uid)
    }

    pub(super) fn is_unreadable(&self, key: &JobKey) -> bool {
        self.unreadable.contains(key)
    }

    /// Whether a watch has shown a Job of this name and UID.
    pub(super) fn knows(&self, key: &JobKey, uid: &Uid) -> bool {
        let read = self.by_key.get(key).map(|job| &job.uid);
        [read, self.released.get(key)].into_iter().flatten().any(|known| known == uid)
    }

    /// Whether the Job is ours, as far as is known.
    pub(super) fn is_ours(&self, job: &Job) -> bool {
        self.templates.is_ours(job)
    }

    /// Whether a pod is remembered that no count has, although it has no finalizer.
    pub(super) fn is_uncounted(&self, job: &Uid, pod: &Uid) -> bool {
        self.memories.get(job).is_some_and(|memory| memory.uncounted_pods.contains(pod))
    }

    pub(super) fn memory(&self, job: &Uid) -> Memory {
        self.memories.get(job).cloned().unwrap_or_default()
    }

    /// How far the watches have come.
    pub(super) fn seen(&self) -> Versions {
        self.seen
    }

    /// What to enqueue for all Jobs and their pods, as if each had just been added.
    pub(super) fn everything(&self, pods: &Pods, now: &Now, reaction: &mut Reaction) {
        for job in self.by_key.values() {
            let queue = job_changed(JobChange::Added(job), now.time).queue;
            self.react(queue, pods, now, reaction);
        }
        for pod in pods.sorted().into_iter().filter(|pod| is_relevant(pod)) {
            let queue = pod_changed(PodChange::Added(pod), self).queue;
            self.react(queue, pods, now, reaction);
        }
    }

    /// Updates the memory of a Job, unless the Job is gone, replaced by a namesake or finished.
    pub(super) fn remember(&mut self, job: &Job, change: MemoryUpdate, now: Timestamp) {
        let current = self.by_key.get(&job.key).filter(|known| known.uid == job.uid);
        if current.is_some_and(|known| !known.is_finished()) {
            self.memories.entry(job.uid.clone()).or_default().apply(change, now);
        }
    }

    /// Syncs a Job again once the watches have come this far.
    pub(super) fn await_versions(&mut self, key: JobKey, written: Versions) {
        self.late.wait(key, written);
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = (&JobKey, &Versions)> {
        self.late.iter()
    }

    pub(super) fn synced(&mut self, key: &JobKey, took: Duration, ended: Moment) {
        self.load.synced(ended);
        self.last_syncs.insert(key.clone(), LastSync { ended, took });
    }

    pub(super) fn forget(&mut self, key: &JobKey) {
        self.last_syncs.remove(key);
    }

    /// The delay after which a sync happens that asked for this one. ([Q3])
    pub(super) fn floor(&self, wait: Duration) -> Duration {
        self.batching.floor(wait)
    }

    /// How long a status may lack new pods.
    pub(super) fn counts_max(&self, now: &Now) -> SignedDuration {
        let pressure = match (now.is_limited, self.is_busy(now)) {
            (true, _) => Pressure::Limited,
            (false, true) => Pressure::Busy,
            (false, false) => Pressure::Quiet,
        };
        self.batching.counts_max(pressure).try_into().unwrap_or_default()
    }

    fn is_busy(&self, now: &Now) -> bool {
        now.has_backlog || self.load.is_busy(now.elapsed)
    }

    /// Returns the version up to which the event proves the watch of Jobs.
    pub(super) fn handle(
        &mut self,
        event: WatchEvent<Arc<Job>>,
        pods: &mut Pods,
        now: &Now,
        reaction: &mut Reaction,
    ) -> Version {
        match event {
            WatchEvent::ListBegins => {
                self.list.begin();
                Version::default()
            }
            WatchEvent::ListEnds(version) => {
                self.list_ends(pods, now, reaction);
                Version::parse(&version)
            }
            WatchEvent::Shown(job) => {
                self.show(&job, pods, now, reaction);
                job.version
            }
            WatchEvent::Gone(job) => {
                self.lose(&job.key, pods, now, reaction);
                job.version
            }
            WatchEvent::Unreadable(job) => {
                let key = JobKey::new(job.namespace.as_str(), job.name.as_str());
                if job.gone {
                    self.lose(&key, pods, now, reaction);
                } else if job.deleting && self.templates.is_run_by_us(job.managed_by.as_deref()) {
                    self.list.saw(&key);
                    self.release(key, job.uid.as_str().into(), pods, now, reaction);
                } else {
                    // It is neither synced nor treated as deleted, which would release its pods'
                    // finalizers.
                    self.list.saw(&key);
                    self.unreadable.insert(key);
                }
                Version::parse(&job.version)
            }
            WatchEvent::UpTo(version) => Version::parse(&version),
            WatchEvent::Restored => Version::default(),
        }
    }

    /// The list of all Jobs is complete; a Job that it lacks is gone. ([H12])
    fn list_ends(&mut self, pods: &mut Pods, now: &Now, reaction: &mut Reaction) {
        let listed = self.list.end();
        self.unreadable.retain(|key| listed.has(key));
        self.released.retain(|key, _| listed.has(key));
        for key in listed.lost(self.by_key.keys()) {
            self.lose(&key, pods, now, reaction);
        }
    }

    fn show(&mut self, job: &Arc<Job>, pods: &mut Pods, now: &Now, reaction: &mut Reaction) {
        self.list.saw(&job.key);
        self.unreadable.remove(&job.key);
        self.released.remove(&job.key);
        // A namesake is another Job, even if a list hides the deletion of the first one.
        if self.by_key.get(&job.key).is_some_and(|old| old.uid != job.uid) {
            self.lose(&job.key.clone(), pods, now, reaction);
        }
        let known = self.by_key.get(&job.key).map(Arc::as_ref);
        let (job, is_first) = self.templates.keep(known, job);
        let (job, namespace) = (&job, &job.key.namespace);
        reaction.asks_for_group = job.scheduling.as_ref().is_some_and(|it| it.asks_for_group());
        reaction.template_budget = is_first.then(|| Arc::clone(namespace));
        let old = self.by_key.insert(job.key.clone(), Arc::clone(job));
        if old.as_ref().is_none_or(|old| old.spec.selector != job.spec.selector) {
            pods.select(job);
        }
        self.follow_adopter(old.as_deref(), job);
        self.followers.follow(old.as_deref(), job);
        // A Job that is finished, or not ours, needs no memory. ([S4], [Z4])
        if job.is_finished() || self.templates.is_foreign(job) {
            self.memories.remove(&job.uid);
            pods.forget_strays(&job.uid);
        } else {
            let memory = self.memories.entry(job.uid.clone()).or_default();
            // A list of pods that begins later shows all that was counted before.
            if old.is_some() || self.pods_begun || !self.list.is_open() {
                memory.saw_job(old.as_deref(), job, now.time);
            }
        }
        let change = match &old {
            Some(old) if old.version == job.version => return,
            Some(old) => JobChange::Updated(old, job),
            None => {
                reaction.external = external_controller(job).map(str::to_owned);
                check_pods_of_finished(job, pods, reaction);
                JobChange::Added(job)
            }
        };
        self.react(job_changed(change, now.time).queue, pods, now, reaction);
    }

    /// A Job of ours that cannot be read is being deleted. It counts nothing any more, and a
    /// deletion in foreground waits for its pods.
    fn release(
        &mut self,
        key: JobKey,
        uid: Uid,
        pods: &mut Pods,
        now: &Now,
        reaction: &mut Reaction,
    ) {
        self.lose(&key, pods, now, reaction);
        check_tracked(&key.namespace, &uid, pods, reaction);
        self.released.insert(key, uid);
    }

    fn adopts(&self, job: &Job) -> bool {
        !job.is_finished() && !job.deleting && !self.templates.is_foreign(job)
    }

    /// Whether the Job adopts pods may have changed.
    fn follow_adopter(&mut self, old: Option<&Job>, job: &Job) {
        let did = old.filter(|old| self.adopts(old));
        let does = Some(job).filter(|job| self.adopts(job));
        if did.map(|old| &old.spec.selector) == does.map(|job| &job.spec.selector) {
            return;
        }
        if let Some(old) = did {
            self.adopters.remove(old);
        }
        if let Some(job) = does {
            self.adopters.insert(job);
        }
    }

    /// Removes a Job and its memory. ([H4])
    fn lose(&mut self, key: &JobKey, pods: &mut Pods, now: &Now, reaction: &mut Reaction) {
        self.unreadable.remove(key);
        self.released.remove(key);
        let Some(job) = self.by_key.remove(key) else { return };
        self.templates.release(&job);
        self.adopters.remove(&job);
        self.followers.remove(&job);
        pods.forget_strays(&job.uid);
        self.memories.remove(&job.uid);
        self.last_syncs.remove(key);
        self.late.forget(key);
        let queue = job_changed(JobChange::Deleted(&job), now.time).queue;
        self.react(queue, pods, now, reaction);
    }

    /// A pod that is relevant to Jobs has changed.
    pub(super) fn pod_changed(
        &mut self,
        change: PodChange<'_>,
        is_listed: bool,
        pods: &Pods,
        now: &Now,
        reaction: &mut Reaction,
    ) {
        reaction.tracked_terminal.extend(tracked_terminal_transition(change));
        let enqueues = pod_changed(change, self);
        for job in &enqueues.observers {
            if let Some(memory) = self.memories.get_mut(job) {
                match change {
                    PodChange::Added(pod) | PodChange::Updated(_, pod) if is_listed => {
                        memory.saw_listed_pod(pod);
                    }
                    PodChange::Added(pod) | PodChange::Updated(_, pod) => memory.saw_pod(pod),
                    PodChange::Deleted(pod) => memory.saw_pod_gone(&pod.uid),
                }
            }
        }
        self.react(enqueues.queue, pods, now, reaction);
    }

    /// A disruption has ended this pod.
    pub(super) fn disrupted(&self, pod: &Arc<Pod>, reaction: &mut Reaction) {
        let job = self.of_pod(pod).filter(|_| is_relevant(pod));
        reaction.disrupted.extend(job.map(|job| (Arc::clone(job), Arc::clone(pod))));
    }

    /// Records how far the watches have come, and enqueues the Jobs that waited for it. The
    /// versions of objects in an unfinished list do not count.
    pub(super) fn advance(
        &mut self,
        mut versions: Versions,
        lists_pods: bool,
        reaction: &mut Reaction,
    ) {
        if self.list.is_open() {
            versions.jobs = Version::default();
        }
        if lists_pods {
            versions.pods = Version::default();
        }
        self.seen = self.seen.max(versions);
        let ready = self.late.caught_up(self.seen).into_iter();
        reaction.entries.extend(ready.map(|key| Entry::Job(key, None)));
    }

    pub(super) fn has_unreadable_owner(&self, pod: &Pod) -> bool {
        !self.unreadable.is_empty()
            && pod.owner.as_ref().is_some_and(|owner| {
                let key = JobKey::new(Arc::clone(&pod.namespace), Arc::clone(&owner.name));
                self.unreadable.contains(&key)
            })
    }

    /// Whether what is kept of Jobs is of Jobs that are known.
    pub(super) fn is_sound(&self) -> bool {
        let known: HashSet<&Uid> = self.by_key.values().map(|job| &job.uid).collect();
        self.memories.keys().all(|uid| known.contains(uid))
            && self.by_key.iter().all(|(key, job)| *key == job.key)
            && self.adopters.is_sound(self.by_key.values().filter(|job| self.adopts(job)))
            && self.templates.is_sound(self.by_key.values())
            && self.followers.is_sound(self.by_key.values())
    }

    fn react(&self, queue: Vec<Enqueue>, pods: &Pods, now: &Now, reaction: &mut Reaction) {
        reaction.entries.extend(queue.into_iter().filter_map(|enqueue| {
            Some(match enqueue {
                Enqueue::Sync(key) => Entry::Job(key, None),
                Enqueue::SyncAfter(key, wait) => Entry::Job(key, Some(wait)),
                Enqueue::Batch(key, change) => {
                    let delay = self.batch_delay(&key, change, pods, now)?;
                    Entry::Job(key, Some(delay))
                }
                Enqueue::Orphans(orphans) => Entry::Orphans(orphans, None),
                Enqueue::OrphansAfter(orphans, wait) => Entry::Orphans(orphans, Some(wait)),
            })
        }));
    }

    /// How long a change of a Job's pods or status waits for others. ([Q3])
    fn batch_delay(
        &self,
        key: &JobKey,
        change: Change,
        pods: &Pods,
        now: &Now,
    ) -> Option<Duration> {
        let job = self.by_key.get(key)?;
        Some(self.batching.delay(&BatchInput {
            change,
            job,
            counts: pods.counts(&job.key.namespace, &job.uid),
            last: self.last_syncs.get(key).copied(),
            busy: self.is_busy(now),
            now: now.elapsed,
        }))
    }
}

/// A Job that is finished when it is first seen is never synced. Its pods may have been seen before
/// it, and then no event of theirs leads to a check.
fn check_pods_of_finished(job: &Job, pods: &Pods, reaction: &mut Reaction) {
    if job.is_finished() {
        check_tracked(&job.key.namespace, &job.uid, pods, reaction);
    }
}

/// Each pod of this owner may lose its finalizer.
fn check_tracked(namespace: &Arc<str>, owner: &Uid, pods: &Pods, reaction: &mut Reaction) {
    let tracked = pods.of_owner(namespace, owner).filter(|pod| pod.tracked);
    let check = |pod: &Arc<Pod>| Orphans::Pod(Arc::clone(&pod.namespace), pod.uid.clone());
    reaction.entries.extend(tracked.map(|pod| Entry::Orphans(check(pod), None)));
}

impl Lookup for Jobs {
    fn job(&self, key: &JobKey) -> Option<&Arc<Job>> {
        self.by_key.get(key)
    }

    fn matching(&self, pod: &Pod) -> Vec<JobKey> {
        let matches = |key: &&JobKey| {
            self.by_key.get(*key).is_some_and(|job| pod.matches(&job.spec.selector))
        };
        let mut keys: Vec<JobKey> = self.adopters.of_pod(pod).filter(matches).cloned().collect();
        keys.sort_unstable();
        keys
    }
}
