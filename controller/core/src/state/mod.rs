//! Holds what the watches have shown of Jobs, pods, nodes and namespaces, and what is remembered of
//! each Job. Takes each event and returns what it enqueues.
//!
//! The program keeps it behind one lock, so that an event, what it enqueues, the input of a plan
//! and a verdict of pod GC are consistent. The simulation drives the same type.

mod adopters;
mod event;
mod followers;
mod gc;
mod groups;
mod jobs;
mod kept_pods;
mod late;
mod notices;
mod pod_events;
mod pods;
mod relist;
mod restored;
mod strays;
mod templates;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use epilogue_common::watch_event::WatchEvent;
use jiff::Timestamp;

pub use self::event::{Entry, Event, Now, Reaction, Snapshot};
use self::gc::Gc;
use self::groups::Groups;
use self::jobs::Jobs;
use self::pods::Pods;
use self::relist::Relist;
use self::restored::Awaited;
use crate::batching::Batching;
use crate::disruption_times::DisruptionTimes;
use crate::event_handlers::is_relevant;
use crate::job::{Memory, MemoryUpdate, NodeBoots, Versions};
use crate::job_pods::{JobPods, Kind};
use crate::orphans::{Orphans, may_remove_finalizer};
use crate::podgc::{Cause, Evidence, PodWrite, Settings, Verdict, Wake};
use crate::view::{Interner, Job, JobKey, Phase, Pod, Uid, Version, WirePod};
use crate::workqueue::Moment;

/// The interner drops unused strings after this many events.
const EVENTS_PER_SWEEP: u32 = 20_000;

/// Jobs, pods and memories; for pod GC also nodes, and policies of namespaces.
#[derive(Clone, Debug, Default)]
pub struct ClusterState {
    pods: Pods,
    pod_list: Relist<Uid>,
    jobs: Jobs,
    /// `None` without pod GC. Then no pods of others are kept.
    gc: Option<Gc>,
    groups: Option<Groups>,
    awaited: Awaited,
    disruption_times: DisruptionTimes,
    restores: u64,
    interner: Interner,
    reads: u32,
    /// Counts in debug builds only.
    events_until_check: usize,
}

impl ClusterState {
    /// An empty state. Without settings of pod GC, no event makes a check.
    pub fn new(batching: Batching, gc: Option<Settings>) -> Self {
        Self { jobs: Jobs::new(batching), gc: gc.map(Gc::new), ..Self::default() }
    }

    /// Tells whether Jobs of kube-controller-manager are ours. Of others' Jobs little is kept.
    #[must_use]
    pub fn managing(mut self, all: bool) -> Self {
        self.jobs.manage(all);
        self
    }

    /// A list of pods that is requested from now on is complete before the next sync. It shows the
    /// pods as others have counted them until now, so no version is awaited for that: Jobs and pods
    /// may be in different etcds, whose versions do not compare. ([Q7], [Z2])
    pub fn expect_pods(&mut self) {
        self.jobs.expect_pods();
    }

    /// Takes an event of the watch of pods as the API sends it.
    pub fn handle_pod(&mut self, event: WatchEvent<WirePod>, now: &Now) -> Reaction {
        let event = event.map(|pod| self.view(pod));
        self.handle(Event::Pod(event), now)
    }

    /// Takes an event, and returns what follows from it.
    pub fn handle(&mut self, event: Event, now: &Now) -> Reaction {
        if self.is_of_the_past(&event) {
            return self.restored(&event);
        }
        let (mut reaction, is_filled) = (Reaction::default(), self.has_groups());
        let (kind, sign) = (event.kind(), event.sign());
        let versions = match event {
            Event::Job(event) => {
                self.time_job(&event);
                let old = self.job_before(&event);
                let jobs = self.jobs.handle(event, &mut self.pods, now, &mut reaction);
                let checks = old.and_then(|old| self.job_shown(&old));
                reaction.entries.extend(checks);
                Versions { jobs, ..Versions::default() }
            }
            Event::Pod(event) => {
                let pods = self.pod_event(event, now, &mut reaction);
                Versions { pods, ..Versions::default() }
            }
            Event::Node(event) => {
                let before = self.before_node(&event);
                let checks = self.with_gc(|gc, pods, jobs| gc.node(event, pods, jobs, now));
                reaction.entries.extend(checks);
                if let Some(before) = before {
                    self.follow_notice(&before, now, &mut reaction);
                }
                Versions::default()
            }
            Event::Workload(event) => self.workload_event(event, now, &mut reaction),
            Event::PodGroup(event) => self.pod_group_event(event),
            Event::Namespace(event) => {
                if let Some(gc) = &mut self.gc {
                    gc.namespace(event);
                }
                Versions::default()
            }
        };
        self.jobs.advance(versions, self.pod_list.is_open(), &mut reaction);
        self.follow_lists(kind, sign, now, &mut reaction);
        self.follow_groups(is_filled, now, &mut reaction);
        debug_assert!(!self.is_check_due() || self.is_sound(), "an index is not what it indexes");
        reaction
    }

    /// Whether the indexes are checked at this event, in debug builds. A check costs a walk, so it
    /// comes once in as many events as there are pods.
    fn is_check_due(&mut self) -> bool {
        self.events_until_check = match self.events_until_check.checked_sub(1) {
            Some(left) => left,
            None => self.pods.uids().count(),
        };
        self.events_until_check == 0
    }

    fn is_sound(&self) -> bool {
        let (gc, groups) = (self.gc.as_ref(), self.groups.as_ref());
        groups.is_none_or(Groups::is_sound)
            && self.pods.is_sound()
            && self.jobs.is_sound()
            && gc.is_none_or(|gc| gc.is_sound(&self.pods))
    }

    /// Returns what to enqueue for all Jobs, pods and nodes, as if each had just been added.
    pub fn everything(&mut self, now: &Now) -> Vec<Entry> {
        let mut reaction = Reaction::default();
        self.jobs.everything(&self.pods, now, &mut reaction);
        reaction.entries.extend(self.with_gc(|gc, pods, jobs| gc.everything(pods, jobs, now.time)));
        reaction.entries
    }

    /// Returns the input of a plan for this Job; `None` if it is unknown, or it or a pod of it is
    /// unreadable, or lists are awaited. ([S2])
    pub fn input(&self, key: &JobKey, now: &Now) -> Option<Snapshot> {
        if !self.awaited.is_empty() || !self.has_groups() {
            return None;
        }
        let job = Arc::clone(self.jobs.get(key).filter(|_| !self.jobs.is_unreadable(key))?);
        if self.pods.has_unreadable_of(&job) {
            return None;
        }
        // Pods without a controller may be adopted. ([S10])
        let pods = self.pods.of_job(&job);
        let (boots, noticed) = (self.boots(&pods, now), self.noticed(&job, &pods));
        let memory = Memory { boots, noticed, ..self.jobs.memory(&job.uid) };
        let (seen, counts_max) = (self.jobs.seen(), self.jobs.counts_max(now));
        let (groups, restores) = (self.groups_of(&job), self.restores);
        Some(Snapshot { job, pods, memory, groups, seen, counts_max, restores })
    }

    /// The boots of the nodes of failed pods that may be to be counted.
    fn boots(&self, pods: &JobPods, now: &Now) -> HashMap<Uid, NodeBoots> {
        let Some(gc) = &self.gc else { return HashMap::new() };
        let failed = pods.of_kind(Kind::Unsettled).filter(|pod| pod.phase == Phase::Failed);
        let boots = failed.filter_map(|pod| {
            let node = gc.nodes.get(pod.node.as_ref()?)?;
            let created = pod.created.unwrap_or_default();
            Some((pod.uid.clone(), node.boots_since(created, now.time, now.elapsed)?))
        });
        boots.collect()
    }

    /// The same. Remembers which pods without a controller the Job may adopt, so that the next time
    /// costs only what has changed.
    pub fn take_input(&mut self, key: &JobKey, now: &Now) -> Option<Snapshot> {
        if let Some(job) = self.jobs.get(key) {
            self.pods.find_strays(job);
        }
        self.input(key, now)
    }

    /// How often the API has gone back to an earlier version. A snapshot from before is void.
    pub fn restores(&self) -> u64 {
        self.restores
    }

    /// Updates the memory of a Job, unless the Job is gone, replaced by a namesake or finished.
    pub fn remember(&mut self, job: &Job, change: MemoryUpdate, now: Timestamp) {
        self.jobs.remember(job, change, now);
    }

    /// A sync found the watches behind these versions; it is enqueued again once they catch up.
    /// Returns the syncs for which they already have.
    pub fn await_versions(&mut self, key: JobKey, written: Versions) -> Vec<Entry> {
        let mut reaction = Reaction::default();
        self.jobs.await_versions(key, written);
        self.jobs.advance(Versions::default(), self.pod_list.is_open(), &mut reaction);
        reaction.entries
    }

    /// Jobs whose sync waits for the watches, and the versions that it waits for.
    pub fn waiting(&self) -> impl Iterator<Item = (&JobKey, &Versions)> {
        self.jobs.waiting()
    }

    /// Records the end and the duration of a sync.
    pub fn synced(&mut self, key: &JobKey, took: Duration, ended: Moment) {
        self.jobs.synced(key, took, ended);
    }

    /// Forgets the last sync of a Job that no longer exists.
    pub fn forget(&mut self, key: &JobKey) {
        self.jobs.forget(key);
    }

    /// The sync of a Job after the time that its plan requested. ([Q3])
    pub fn requeue(&self, key: &JobKey, wait: Duration) -> Entry {
        Entry::Job(key.clone(), Some(self.jobs.floor(wait)))
    }

    /// The Job of this key, as last read.
    pub fn job(&self, key: &JobKey) -> Option<&Arc<Job>> {
        self.jobs.get(key)
    }

    /// Whether there is a Job of this name and UID.
    pub fn knows(&self, key: &JobKey, uid: &Uid) -> bool {
        self.jobs.knows(key, uid)
    }

    /// Returns the pods whose tracking finalizer may be removed, in a defined order. ([O1], [O2])
    pub fn orphans(&self, item: &Orphans, manage_all_jobs: bool) -> Vec<Arc<Pod>> {
        if !self.awaited.is_empty() {
            return Vec::new();
        }
        let may = |pod: &&Arc<Pod>| {
            !self.jobs.has_unreadable_owner(pod)
                && !self.pods.is_unreadable_of_owner(&pod.uid)
                && may_remove_finalizer(pod, manage_all_jobs, |key| self.jobs.get(key))
        };
        match item {
            Orphans::Pod(_, uid) => self.pods.get(uid).into_iter().filter(may).cloned().collect(),
            Orphans::OfJob(former) => {
                let owned = self.pods.of_owner(&former.namespace, &former.uid);
                let pods = owned.chain(self.pods.tracked_without_owner(&former.namespace));
                pods.filter(|pod| former.concerns(pod)).filter(may).cloned().collect()
            }
        }
    }

    /// The last known state of a pod whose latest version could be read.
    pub fn pod(&self, uid: &Uid) -> Option<&Arc<Pod>> {
        self.pods.readable(uid)
    }

    /// Decides about a node. A missing one is read from the API, or checked again later; an
    /// existing one may have a stale taint.
    pub(crate) fn check_node(&mut self, name: &Arc<str>, now: Timestamp) -> Verdict {
        let gc = self.gc.as_mut().filter(|_| self.awaited.is_empty());
        gc.map_or(Verdict::Leave, |gc| gc.check_node(name, now))
    }

    /// The node of a pod.
    pub(crate) fn node_of(&self, pod: &Uid) -> Option<Arc<str>> {
        self.pods.get(pod)?.node.clone()
    }

    /// The Job of a pod that is to fail without proof, where no watch shows the Job: it may have a
    /// word in it.
    pub(crate) fn unshown_job(&self, write: &PodWrite) -> Option<JobKey> {
        let is_unproved = matches!(write.cause, Cause::Ended(Evidence::ForceFail(_)));
        let pod = self.pods.get(&write.uid).filter(|_| is_unproved)?;
        let owner = pod.owner.as_ref().filter(|_| self.jobs.of_pod(pod).is_none())?;
        Some(JobKey::new(Arc::clone(&pod.namespace), Arc::clone(&owner.name)))
    }

    /// Takes the API's answer whether this node exists, and returns what to enqueue.
    ///
    /// If it does and the watch has not shown it, its quarantine starts again.
    pub fn node_answered(&mut self, name: &Arc<str>, exists: bool, now: Timestamp) -> Vec<Entry> {
        self.with_gc(|gc, pods, jobs| gc.node_answered(name, exists, pods, jobs, now))
    }

    /// Decides what to do with a pod.
    ///
    /// The caller must return a write to [`Self::pod_done`], whatever the outcome. Until then the
    /// pod gets no other write. Where pod GC only observes, nothing is in progress.
    pub fn check_pod(&mut self, uid: &Uid, now: Timestamp) -> Verdict {
        let verdict = self.verdict(uid, now);
        if let (Verdict::Do(_), Some(gc)) = (&verdict, &mut self.gc) {
            gc.begin(uid);
        }
        verdict
    }

    /// The verdict on a pod, without any effect.
    pub fn verdict(&self, uid: &Uid, now: Timestamp) -> Verdict {
        let known = self.gc.as_ref().zip(self.pods.readable(uid));
        let Some((gc, pod)) = known.filter(|_| self.awaited.is_empty()) else {
            return Verdict::Leave;
        };
        gc.judge(pod, &self.jobs, now)
    }

    /// The checks of finished pods in excess.
    pub(crate) fn check_excess(&mut self) -> Vec<Entry> {
        self.with_gc(Gc::check_excess)
    }

    /// The API returned this version for a patch of a pod.
    pub(crate) fn pod_written(&mut self, uid: &Uid, cause: &Cause, version: Version) {
        if let Some(gc) = self.gc.as_mut().filter(|_| self.pods.readable(uid).is_some()) {
            gc.pod_written(uid, cause, version);
        }
    }

    /// A pod's deletion was accepted: it is gone, or its finalizers hold it.
    pub(crate) fn pod_deleted(&mut self, uid: &Uid) {
        if let Some(gc) = &mut self.gc {
            gc.pod_deleted(uid, self.pods.readable(uid));
        }
    }

    /// A write to a pod has succeeded or failed. Returns what to enqueue.
    pub(crate) fn pod_done(&mut self, uid: &Uid, now: Timestamp) -> Vec<Entry> {
        self.with_gc(|gc, pods, jobs| gc.pod_done(uid, pods, jobs, now))
    }

    /// Whether pod GC only reports what it would do.
    pub(crate) fn observes(&self) -> bool {
        self.gc.as_ref().is_some_and(Gc::observes)
    }

    /// Whether a write that pod GC only observes was not reported yet; remembers it.
    pub(crate) fn is_new_report(&mut self, write: &PodWrite) -> bool {
        self.gc.as_mut().is_some_and(|gc| gc.is_new_report(write))
    }

    /// The view of a pod, which shares its strings with other pods.
    fn view(&mut self, pod: WirePod) -> Arc<Pod> {
        self.reads += 1;
        if self.reads >= EVENTS_PER_SWEEP {
            self.reads = 0;
            self.interner.sweep();
        }
        let mut pod = pod.view(&mut self.interner);
        if !is_relevant(&pod) {
            self.interner.strip(&mut pod);
        }
        Arc::new(pod)
    }

    fn with_gc<T: IntoIterator<Item = Wake>>(
        &mut self,
        then: impl FnOnce(&mut Gc, &Pods, &Jobs) -> T,
    ) -> Vec<Entry> {
        let Some(gc) = &mut self.gc else { return Vec::new() };
        then(gc, &self.pods, &self.jobs).into_iter().map(Entry::Check).collect()
    }
}
