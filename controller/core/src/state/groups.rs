//! Holds Workloads and PodGroups, by the Jobs that they concern.
//!
//! The state has them only while the API serves them. Until the first list of each kind is
//! complete, no Job is synced: one whose group is not shown yet would get pods outside of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use epilogue_common::watch_event::WatchEvent;

use super::ClusterState;
use super::event::{Entry, Now, Reaction};
use super::relist::Relist;
use crate::job::{JobGroups, Versions};
use crate::view::{GroupKey, Job, PodGroup, TypedReference, Uid, Version, Workload};

/// An object that a Workload names as its controller, in its namespace.
pub(super) type Controller = (Arc<str>, TypedReference);

/// Workloads and PodGroups.
#[derive(Clone, Debug, Default)]
pub(super) struct Groups {
    workloads: Kept<Workload>,
    runtime: Kept<PodGroup>,
    /// Workloads by the controller that they name.
    by_controller: HashMap<Controller, BTreeSet<GroupKey>>,
    /// PodGroups by their namespace and the UID of the object that controls them. One of another
    /// namespace may name any UID.
    by_owner: HashMap<(Arc<str>, Uid), BTreeSet<GroupKey>>,
}

/// The objects of one kind.
#[derive(Clone, Debug)]
struct Kept<T> {
    by_key: BTreeMap<GroupKey, Arc<T>>,
    list: Relist<GroupKey>,
    /// Whether a list was complete.
    is_filled: bool,
    /// Whether the list in progress began too early to count as one.
    is_early: bool,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        let (by_key, list) = (BTreeMap::new(), Relist::default());
        Self { by_key, list, is_filled: false, is_early: false }
    }
}

impl ClusterState {
    /// From now on, the API serves Workloads and PodGroups to us, or does not. No Job is synced
    /// until both have been listed. Returns what to enqueue.
    pub fn serve_groups(&mut self, served: bool, now: &Now) -> Vec<Entry> {
        if served == self.groups.is_some() {
            return Vec::new();
        }
        self.groups = served.then(Groups::default);
        self.jobs.forget_groups();
        if served { Vec::new() } else { self.everything(now) }
    }

    /// Workloads and PodGroups are listed again before the next sync: another replica may have
    /// made some.
    pub fn expect_groups(&mut self) {
        if let Some(groups) = &mut self.groups {
            groups.expect_lists();
        }
    }

    /// Whether all Workloads and PodGroups are known that the API serves.
    pub(super) fn has_groups(&self) -> bool {
        self.groups.as_ref().is_none_or(Groups::is_filled)
    }

    /// What concerns this Job; `None` where the API serves none.
    pub(super) fn groups_of(&self, job: &Job) -> Option<JobGroups> {
        self.groups.as_ref().map(|groups| groups.of_job(job))
    }

    /// Returns the version up to which the event proves the watch of Workloads. Jobs that follow a
    /// Workload are synced.
    pub(super) fn workload_event(
        &mut self,
        event: WatchEvent<Arc<Workload>>,
        now: &Now,
        reaction: &mut Reaction,
    ) -> Versions {
        let Some(groups) = &mut self.groups else { return Versions::default() };
        let (workloads, changed) = groups.workload(event);
        if groups.is_filled() {
            self.jobs.workloads_changed(&changed, &self.pods, now, reaction);
        }
        Versions { workloads, ..Versions::default() }
    }

    /// Returns the version up to which the event proves the watch of PodGroups.
    pub(super) fn pod_group_event(&mut self, event: WatchEvent<Arc<PodGroup>>) -> Versions {
        let groups = self.groups.as_mut();
        let pod_groups = groups.map(|groups| groups.pod_group(event)).unwrap_or_default();
        Versions { pod_groups, ..Versions::default() }
    }

    /// Once both are listed, each Job is synced. Only a state without them is asked for them.
    pub(super) fn follow_groups(&mut self, was_filled: bool, now: &Now, reaction: &mut Reaction) {
        reaction.asks_for_group &= self.groups.is_none();
        if was_filled != self.has_groups() {
            reaction.entries = self.everything(now);
        }
    }
}

impl Groups {
    /// Whether a list of each kind was complete.
    pub(super) fn is_filled(&self) -> bool {
        self.workloads.is_filled && self.runtime.is_filled
    }

    /// Lists that begin from now on are awaited.
    pub(super) fn expect_lists(&mut self) {
        self.workloads.expect_list();
        self.runtime.expect_list();
    }

    /// What concerns this Job.
    pub(super) fn of_job(&self, job: &Job) -> JobGroups {
        let namespace = &job.key.namespace;
        let own = TypedReference::of_job(&job.key.name);
        let parent = job.scheduling.as_ref().and_then(|it| it.controller.clone());
        let parent = parent.filter(|parent| *parent != own);
        let named = [Some(own), parent].into_iter().flatten();
        let named = named.map(|controller| (Arc::clone(namespace), controller));
        let workloads: Vec<Arc<Workload>> =
            named.flat_map(|it| self.naming(&it).cloned().collect::<Vec<_>>()).collect();
        let owned = self.by_owner.get(&(Arc::clone(namespace), job.uid.clone()));
        let pod_groups = owned.into_iter().flatten();
        let pod_groups = pod_groups.filter_map(|key| self.runtime.by_key.get(key));
        JobGroups::of(job, workloads, pod_groups.cloned())
    }

    /// Workloads that name this controller.
    fn naming(&self, controller: &Controller) -> impl Iterator<Item = &Arc<Workload>> {
        let keys = self.by_controller.get(controller).into_iter().flatten();
        keys.filter_map(|key| self.workloads.by_key.get(key))
    }

    /// Takes an event of the watch of Workloads. Returns the version up to which it proves the
    /// watch, and the controllers whose Workload has changed in what concerns Jobs.
    pub(super) fn workload(
        &mut self,
        event: WatchEvent<Arc<Workload>>,
    ) -> (Version, Vec<Controller>) {
        let (version, changes) =
            self.workloads.handle(event, |workload| (workload.key.clone(), workload.version));
        let mut changed = Vec::new();
        for (old, new) in changes {
            let same = |old: &Workload, new: &Workload| {
                old.uid == new.uid && old.templates == new.templates
            };
            // The Job that made a Workload knows it already.
            let is_made = old.is_none() && new.as_deref().is_some_and(Workload::is_of_job);
            let is_same =
                old.as_deref().zip(new.as_deref()).is_some_and(|(old, new)| same(old, new));
            if !is_made && !is_same {
                changed.extend(old.iter().chain(&new).filter_map(|it| controller(it)));
            }
            if let Some(old) = old {
                remove(&mut self.by_controller, controller(&old), &old.key);
            }
            if let Some(new) = new
                && let Some(controller) = controller(&new)
            {
                self.by_controller.entry(controller).or_default().insert(new.key.clone());
            }
        }
        changed.sort_unstable();
        changed.dedup();
        (version, changed)
    }

    /// Takes an event of the watch of PodGroups. Returns the version up to which it proves the
    /// watch.
    pub(super) fn pod_group(&mut self, event: WatchEvent<Arc<PodGroup>>) -> Version {
        let (version, changes) =
            self.runtime.handle(event, |group| (group.key.clone(), group.version));
        for (old, new) in changes {
            if let Some(old) = old {
                remove(&mut self.by_owner, owner(&old), &old.key);
            }
            if let Some(new) = new
                && let Some(owner) = owner(&new)
            {
                self.by_owner.entry(owner).or_default().insert(new.key.clone());
            }
        }
        version
    }

    /// Whether each index is what it indexes.
    pub(super) fn is_sound(&self) -> bool {
        let workloads = self.workloads.by_key.values().filter(|it| it.controller.is_some()).count();
        let pod_groups = self.runtime.by_key.values().filter(|it| it.owner.is_some()).count();
        let indexed: usize = self.by_controller.values().map(BTreeSet::len).sum();
        let owned: usize = self.by_owner.values().map(BTreeSet::len).sum();
        workloads == indexed && pod_groups == owned
    }
}

fn controller(workload: &Workload) -> Option<Controller> {
    Some((Arc::clone(&workload.key.0), workload.controller.clone()?))
}

fn owner(group: &PodGroup) -> Option<(Arc<str>, Uid)> {
    Some((Arc::clone(&group.key.0), group.owner.clone()?))
}

fn remove<K: Eq + std::hash::Hash>(
    index: &mut HashMap<K, BTreeSet<GroupKey>>,
    of: Option<K>,
    key: &GroupKey,
) {
    let Some(of) = of else { return };
    if let Some(keys) = index.get_mut(&of) {
        keys.remove(key);
        if keys.is_empty() {
            index.remove(&of);
        }
    }
}

/// An object before and after an event.
type Change<T> = (Option<Arc<T>>, Option<Arc<T>>);

impl<T> Kept<T> {
    fn expect_list(&mut self) {
        self.is_filled = false;
        self.is_early = self.list.is_open();
    }

    /// The versions of objects in an unfinished list prove nothing.
    fn handle(
        &mut self,
        event: WatchEvent<Arc<T>>,
        read: impl Fn(&T) -> (GroupKey, Version),
    ) -> (Version, Vec<Change<T>>) {
        let (version, changes) = match event {
            WatchEvent::ListBegins => {
                self.list.begin();
                self.is_early = false;
                (Version::default(), Vec::new())
            }
            WatchEvent::ListEnds(version) => {
                let listed = self.list.end();
                self.is_filled |= !std::mem::take(&mut self.is_early);
                let lost = listed.lost(self.by_key.keys()).into_iter();
                let changes = lost.map(|key| (self.by_key.remove(&key), None)).collect();
                (Version::parse(&version), changes)
            }
            WatchEvent::Shown(object) => {
                let (key, version) = read(&object);
                self.list.saw(&key);
                let old = self.by_key.insert(key, Arc::clone(&object));
                (version, vec![(old, Some(object))])
            }
            WatchEvent::Gone(object) => {
                let (key, version) = read(&object);
                (version, vec![(self.by_key.remove(&key), None)])
            }
            // It is not treated as deleted: the Job's pods are in it.
            WatchEvent::Unreadable(object) => {
                let key = (Arc::from(&*object.namespace), Arc::from(&*object.name));
                let changes = if object.gone {
                    vec![(self.by_key.remove(&key), None)]
                } else {
                    self.list.saw(&key);
                    Vec::new()
                };
                (Version::parse(&object.version), changes)
            }
            WatchEvent::UpTo(version) => (Version::parse(&version), Vec::new()),
            WatchEvent::Restored => (Version::default(), Vec::new()),
        };
        let proved = if self.list.is_open() { Version::default() } else { version };
        (proved, changes)
    }
}
