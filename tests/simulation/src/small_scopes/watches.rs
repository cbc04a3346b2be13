//! The watches of a process: each shows a change at once, or holds events back until it catches up
//! or lists again.

use std::sync::Arc;

use controller_core::view::{Job, Pod, PodGroup, Version, Workload};
use epilogue_common::watch_event::WatchEvent;

use super::process::Process;
use super::scope::Scope;
use crate::controller::api::{Api, Sighting};
use crate::controller::watched::Watched;

/// The kinds that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Jobs,
    Pods,
    Workloads,
    PodGroups,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Jobs, Self::Pods, Self::Workloads, Self::PodGroups];

    /// Those that the API of this scope serves.
    pub(super) fn of(scope: &Scope) -> &'static [Self] {
        if scope.is_gang() { &Self::ALL } else { &Self::ALL[..2] }
    }
}

/// A watch: how much of the API's log it has shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    pub(super) position: usize,
    /// Whether it holds events back.
    pub(super) late: bool,
    /// The version that it has come to.
    pub(super) version: Version,
}

/// An object that is watched, with a version.
trait Object: Watched {
    const KIND: Kind;

    fn version(&self) -> Version;
}

impl Object for Job {
    const KIND: Kind = Kind::Jobs;

    fn version(&self) -> Version {
        self.version
    }
}

impl Object for Pod {
    const KIND: Kind = Kind::Pods;

    fn version(&self) -> Version {
        self.version
    }
}

impl Object for Workload {
    const KIND: Kind = Kind::Workloads;

    fn version(&self) -> Version {
        self.version
    }
}

impl Object for PodGroup {
    const KIND: Kind = Kind::PodGroups;

    fn version(&self) -> Version {
        self.version
    }
}

fn version<T: Object>(sighting: &Sighting<T>) -> Version {
    match sighting {
        Sighting::Shown(object) => object.version(),
        Sighting::Gone(_, version) => *version,
    }
}

impl Process {
    pub(super) fn watch(&self, kind: Kind) -> &Watch {
        &self.watches[kind as usize]
    }

    pub(super) fn watch_mut(&mut self, kind: Kind) -> &mut Watch {
        &mut self.watches[kind as usize]
    }

    /// The watch breaks and lists again.
    pub(super) fn list(&mut self, kind: Kind, api: &Api, scope: &Scope) {
        match kind {
            Kind::Jobs => self.list_all::<Job>(api, scope),
            Kind::Pods => self.list_all::<Pod>(api, scope),
            Kind::Workloads => self.list_all::<Workload>(api, scope),
            Kind::PodGroups => self.list_all::<PodGroup>(api, scope),
        }
    }

    fn list_all<T: Object>(&mut self, api: &Api, scope: &Scope) {
        self.handle(T::event(WatchEvent::ListBegins), api, scope);
        for object in T::objects(api) {
            self.handle(T::event(WatchEvent::Shown(object)), api, scope);
        }
        let version = api.version();
        self.handle(T::event(WatchEvent::ListEnds(version.to_string())), api, scope);
        let position = T::log(api).len();
        *self.watch_mut(T::KIND) = Watch { position, late: false, version };
    }

    /// The watch shows everything, up to a bookmark.
    pub(super) fn catch_up(&mut self, kind: Kind, api: &Api, scope: &Scope) {
        match kind {
            Kind::Jobs => self.show_all::<Job>(api, scope),
            Kind::Pods => self.show_all::<Pod>(api, scope),
            Kind::Workloads => self.show_all::<Workload>(api, scope),
            Kind::PodGroups => self.show_all::<PodGroup>(api, scope),
        }
    }

    fn show_all<T: Object>(&mut self, api: &Api, scope: &Scope) {
        self.watch_mut(T::KIND).late = false;
        while let Some(sighting) = T::log(api).get(self.watch(T::KIND).position) {
            let event = match sighting {
                Sighting::Shown(object) => WatchEvent::Shown(Arc::clone(object)),
                Sighting::Gone(object, version) => WatchEvent::Gone(Arc::new(object.at(*version))),
            };
            self.handle(T::event(event), api, scope);
            let watch = self.watch_mut(T::KIND);
            (watch.position, watch.version) = (watch.position + 1, version(sighting));
        }
        let newest = api.version();
        if self.watch(T::KIND).version < newest {
            self.handle(T::event(WatchEvent::UpTo(newest.to_string())), api, scope);
            self.watch_mut(T::KIND).version = newest;
        }
    }

    /// How many events the watch holds back.
    pub(super) fn behind(&self, kind: Kind, api: &Api) -> usize {
        logged(kind, api) - self.watch(kind).position
    }

    /// How many of these are older than this version.
    pub(super) fn older_held_back(&self, kind: Kind, version: Version, api: &Api) -> usize {
        match kind {
            Kind::Jobs => self.older::<Job>(version, api),
            Kind::Pods => self.older::<Pod>(version, api),
            Kind::Workloads => self.older::<Workload>(version, api),
            Kind::PodGroups => self.older::<PodGroup>(version, api),
        }
    }

    fn older<T: Object>(&self, than: Version, api: &Api) -> usize {
        let held = T::log(api)[self.watch(T::KIND).position..].iter();
        held.filter(|sighting| version(sighting) < than).count()
    }
}

fn logged(kind: Kind, api: &Api) -> usize {
    match kind {
        Kind::Jobs => api.job_log.len(),
        Kind::Pods => api.pod_log.len(),
        Kind::Workloads => api.workload_log.len(),
        Kind::PodGroups => api.pod_group_log.len(),
    }
}

/// Forgets the oldest events.
pub(super) fn forget(kind: Kind, count: usize, api: &mut Api) {
    match kind {
        Kind::Jobs => drop(api.job_log.drain(..count)),
        Kind::Pods => drop(api.pod_log.drain(..count)),
        Kind::Workloads => drop(api.workload_log.drain(..count)),
        Kind::PodGroups => drop(api.pod_group_log.drain(..count)),
    }
}
