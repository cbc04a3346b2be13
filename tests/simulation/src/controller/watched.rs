//! The kinds of objects that are watched, and their events.

use std::sync::Arc;

use controller_core::podgc::{NamespaceView, NodeView};
use controller_core::state::Event as StateEvent;
use controller_core::view::{Job, Pod, PodGroup, Version, Workload};
use epilogue_common::watch_event::WatchEvent;

use super::api::{Api, Sighting, node_view};

/// A kind of object that is watched.
pub(crate) trait Watched: Clone {
    /// All that has happened to objects of this kind.
    fn log(api: &Api) -> &[Sighting<Self>];

    /// What a list shows.
    fn objects(api: &Api) -> Vec<Arc<Self>>;

    /// Whether these are two states of one object.
    fn is_same(&self, other: &Self) -> bool;

    /// The last state of a deleted object, at the version of its deletion.
    fn at(&self, version: Version) -> Self;

    /// The event as the state takes it.
    fn event(event: WatchEvent<Arc<Self>>) -> StateEvent;
}

impl Watched for Job {
    fn log(api: &Api) -> &[Sighting<Self>] {
        &api.job_log
    }

    fn objects(api: &Api) -> Vec<Arc<Self>> {
        api.jobs.values().map(|stored| Arc::clone(&stored.view)).collect()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }

    fn at(&self, version: Version) -> Self {
        Self { version, ..self.clone() }
    }

    fn event(event: WatchEvent<Arc<Self>>) -> StateEvent {
        StateEvent::Job(event)
    }
}

impl Watched for Pod {
    fn log(api: &Api) -> &[Sighting<Self>] {
        &api.pod_log
    }

    fn objects(api: &Api) -> Vec<Arc<Self>> {
        api.pods.values().cloned().collect()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }

    fn at(&self, version: Version) -> Self {
        Self { version, ..self.clone() }
    }

    fn event(event: WatchEvent<Arc<Self>>) -> StateEvent {
        StateEvent::Pod(event)
    }
}

impl Watched for NodeView {
    fn log(api: &Api) -> &[Sighting<Self>] {
        &api.node_log
    }

    fn objects(api: &Api) -> Vec<Arc<Self>> {
        api.nodes.values().map(|node| Arc::new(node_view(node))).collect()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
    }

    fn at(&self, _: Version) -> Self {
        self.clone()
    }

    fn event(event: WatchEvent<Arc<Self>>) -> StateEvent {
        StateEvent::Node(event.map(Arc::unwrap_or_clone))
    }
}

impl Watched for NamespaceView {
    fn log(api: &Api) -> &[Sighting<Self>] {
        &api.namespace_log
    }

    fn objects(api: &Api) -> Vec<Arc<Self>> {
        vec![Arc::clone(&api.namespace)]
    }

    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
    }

    fn at(&self, _: Version) -> Self {
        self.clone()
    }

    fn event(event: WatchEvent<Arc<Self>>) -> StateEvent {
        StateEvent::Namespace(event.map(Arc::unwrap_or_clone))
    }
}

impl Watched for Workload {
    fn log(api: &Api) -> &[Sighting<Self>] {
        &api.workload_log
    }

    fn objects(api: &Api) -> Vec<Arc<Self>> {
        api.workloads.values().cloned().collect()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }

    fn at(&self, version: Version) -> Self {
        Self { version, ..self.clone() }
    }

    fn event(event: WatchEvent<Arc<Self>>) -> StateEvent {
        StateEvent::Workload(event)
    }
}

impl Watched for PodGroup {
    fn log(api: &Api) -> &[Sighting<Self>] {
        &api.pod_group_log
    }

    fn objects(api: &Api) -> Vec<Arc<Self>> {
        api.pod_groups.values().cloned().collect()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.uid == other.uid
    }

    fn at(&self, version: Version) -> Self {
        Self { version, ..self.clone() }
    }

    fn event(event: WatchEvent<Arc<Self>>) -> StateEvent {
        StateEvent::PodGroup(event)
    }
}
