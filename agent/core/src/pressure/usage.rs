//! Combines the usage and the requests of each pod, for the ranking and the messages.

use serde::Serialize;

pub use super::observe::{DiskLayout, DiskUsage};
use crate::pod::{ContainerAsks, PodSource, PodUid, PodView};
use crate::protocol::pressure::{ContainerFigures, PodFigures};
use crate::shutdown::priority_groups::CRITICAL_PRIORITY;

/// Memory and disk usage of one container, with its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ContainerUsage {
    /// Name of the container.
    pub name: String,
    /// Whether it is an init container (sidecars included).
    pub init: bool,
    /// Whether it is an init container that runs as long as the pod.
    pub sidecar: bool,
    /// Working set and swap, in bytes.
    pub memory: Option<u64>,
    /// `requests.memory`.
    pub memory_request: u64,
    /// Root file system, in bytes.
    pub rootfs: Option<u64>,
    /// Logs, in bytes.
    pub logs: Option<u64>,
    /// `requests.ephemeral-storage`.
    pub storage_request: u64,
    /// `limits.ephemeral-storage`.
    pub storage_limit: Option<u64>,
}

/// Usage, requests and priority of one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodUsage {
    /// The pod.
    pub uid: PodUid,
    /// Name of the pod.
    pub name: String,
    /// `spec.priority`.
    pub priority: i32,
    /// Whether the pod is never evicted: it is static, a mirror, or of critical priority. ([EV12])
    pub critical: bool,
    /// Working set and swap of the whole pod, in bytes; `None` without figures.
    pub memory: Option<u64>,
    /// Memory request of the pod itself, or else of its containers with overhead.
    pub memory_request: u64,
    /// Whether the memory request is one of the pod itself.
    pub memory_request_of_pod: bool,
    /// Number of tasks.
    pub tasks: Option<u64>,
    /// Bytes on disk, by location.
    pub disk: Option<DiskUsage>,
    /// Inodes, by location.
    pub inodes: Option<DiskUsage>,
    /// Request of ephemeral storage, in bytes.
    pub storage_request: u64,
    /// Its containers, regular ones first.
    pub containers: Vec<ContainerUsage>,
    /// emptyDir volumes on disk with a limit: name, bytes used, limit.
    pub empty_dirs: Vec<EmptyDir>,
}

/// An emptyDir volume with a size limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EmptyDir {
    /// Name of the volume.
    pub name: String,
    /// Usage, in bytes.
    pub used: u64,
    /// Limit, in bytes; above 0.
    pub limit: u64,
}

impl PodUsage {
    /// Combines a pod of the API with its measurements. A pod without figures may be the worst.
    /// ([EV11])
    pub fn of(pod: &PodView, figures: Option<&PodFigures>) -> Self {
        let asks = &pod.asks;
        let measured =
            |name: &str| figures?.containers.iter().find(|container| container.name == name);
        let used = |name: &str| {
            let dirs = figures.map_or(&[][..], |figures| &figures.empty_dirs);
            dirs.iter().find(|(other, _)| other == name).map(|(_, used)| *used)
        };
        let empty_dir = |(name, limit): &(String, u64)| {
            Some(EmptyDir { name: name.clone(), used: used(name)?, limit: *limit })
        };
        Self {
            uid: pod.uid.clone(),
            name: pod.name.clone(),
            priority: pod.priority,
            critical: is_critical(pod),
            memory: figures.and_then(|figures| figures.memory),
            memory_request: asks.memory,
            memory_request_of_pod: asks.memory_of_pod,
            tasks: figures.and_then(|figures| figures.tasks),
            disk: figures.and_then(|figures| figures.disk),
            inodes: figures.and_then(|figures| figures.inodes),
            storage_request: asks.storage,
            containers: asks
                .containers
                .iter()
                .map(|container| ContainerUsage::of(container, measured(&container.name)))
                .collect(),
            empty_dirs: asks.empty_dirs.iter().filter_map(empty_dir).collect(),
        }
    }
}

impl ContainerUsage {
    fn of(asks: &ContainerAsks, figures: Option<&ContainerFigures>) -> Self {
        Self {
            name: asks.name.clone(),
            init: asks.init,
            sidecar: asks.sidecar,
            memory: figures.and_then(|figures| figures.memory),
            memory_request: asks.memory,
            rootfs: figures.and_then(|figures| figures.rootfs),
            logs: figures.and_then(|figures| figures.logs),
            storage_request: asks.storage,
            storage_limit: asks.storage_limit,
        }
    }
}

/// Whether the pod is exempt from pressure. ([EV12])
pub fn is_critical(pod: &PodView) -> bool {
    pod.source == PodSource::Static || pod.priority >= CRITICAL_PRIORITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;

    #[test]
    fn what_a_pod_asked_for_and_what_it_uses_are_put_together_by_name() {
        let view = pod("a").priority(7).with(|pod| {
            let container = |name: &str, init| ContainerAsks {
                name: name.into(),
                init,
                memory: 10,
                storage: 20,
                storage_limit: Some(30),
                ..ContainerAsks::default()
            };
            pod.asks.memory = 20;
            pod.asks.storage = 40;
            pod.asks.containers = vec![container("main", false), container("init", true)];
            pod.asks.empty_dirs = vec![("cache".into(), 5), ("unmeasured".into(), 5)];
        });
        let figures = PodFigures {
            memory: Some(99),
            tasks: Some(3),
            containers: vec![ContainerFigures {
                name: "main".into(),
                memory: Some(98),
                rootfs: Some(1),
                logs: Some(2),
            }],
            empty_dirs: vec![("cache".into(), 6)],
            ..PodFigures::default()
        };
        let usage = PodUsage::of(&view, Some(&figures));
        assert_eq!((usage.memory, usage.memory_request, usage.priority), (Some(99), 20, 7));
        assert_eq!((usage.tasks, usage.storage_request, usage.disk), (Some(3), 40, None));
        let main = &usage.containers[0];
        assert_eq!((main.memory, main.memory_request, main.init), (Some(98), 10, false));
        assert_eq!((main.rootfs, main.logs, main.storage_limit), (Some(1), Some(2), Some(30)));
        let init = &usage.containers[1];
        assert_eq!((init.memory, init.init), (None, true));
        assert_eq!(usage.empty_dirs, [EmptyDir { name: "cache".into(), used: 6, limit: 5 }]);
        let blind = PodUsage::of(&view, None);
        assert_eq!((blind.memory, blind.tasks, blind.empty_dirs.len()), (None, None, 0));
    }

    #[test]
    fn static_pods_and_those_of_system_priority_are_critical() {
        let table = [
            (pod("a"), false),
            (pod("a").priority(1_999_999_999), false),
            (pod("a").priority(2_000_000_000), true),
            (pod("a").with(|pod| pod.source = PodSource::Static), true),
        ];
        for (pod, expected) in table {
            assert_eq!(is_critical(&pod), expected, "{pod:?}");
        }
    }
}
