//! Samples the node's file systems: where they lie, what is free on them, and which are the same.
//! ([EV4], [EV5])

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::pressure::observe::Observation;
use agent_core::pressure::signal::Signal;
use agent_core::pressure::usage::DiskLayout;
use agent_core::pressure::watch::{Measured, Measurements};
use agent_core::protocol::pressure::Sample;
use nix::sys::statvfs::statvfs;

use super::cannot_read;
use crate::host::Host;

/// Where runtimes keep images and writable layers by default. If the runtime does not say, the
/// first that has any entry counts. An empty one may exist only because it is mounted.
const RUNTIME_DIRS: [&str; 6] = [
    "/var/lib/containerd",
    "/var/lib/containers/storage",
    "/var/lib/rancher/k3s/agent/containerd",
    "/var/lib/k0s/containerd",
    "/var/snap/microk8s/common/var/lib/containerd",
    "/var/lib/docker",
];

/// Where the runtime reports its images and its writable layers, as paths of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesystemPaths {
    /// The path of images.
    pub images: Option<String>,
    /// The path of writable layers; `None` if it is that of images.
    pub containers: Option<String>,
}

/// Samples the file systems. Unlike the other measurements, a disk may block.
#[derive(Debug)]
pub struct DiskSampler {
    host: Host,
    kubelet_dir: String,
    /// Determined once. ([EV5])
    layout: Option<DiskLayout>,
}

/// One sample of the file systems.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskSample {
    /// Their signals.
    pub signals: Measurements,
    /// Which of them are the same.
    pub layout: Option<DiskLayout>,
    /// What could not be read, a phrase each.
    pub unreadable: Vec<String>,
}

impl DiskSampler {
    /// A sampler without results.
    pub fn new(host: Host, kubelet_dir: String) -> Self {
        Self { host, kubelet_dir, layout: None }
    }

    /// Samples the file systems.
    pub fn take_sample(&mut self, paths: &FilesystemPaths, at: Duration) -> DiskSample {
        use Signal::{
            ContainerfsAvailable, ContainerfsInodesFree, ImagefsAvailable, ImagefsInodesFree,
            NodefsAvailable, NodefsInodesFree,
        };
        let mut unreadable = Vec::new();
        let found = Filesystems::read(&self.host, &self.kubelet_dir, paths, &mut unreadable);
        self.layout = self.layout.or_else(|| found.layout());
        let signals = [
            (found.node, NodefsAvailable, NodefsInodesFree),
            (found.images, ImagefsAvailable, ImagefsInodesFree),
            (found.containers, ContainerfsAvailable, ContainerfsInodesFree),
        ];
        let of_one = |(filesystem, bytes, inodes): (Option<Filesystem>, Signal, Signal)| {
            let bytes = filesystem.map(|it| (bytes, it.bytes));
            let inodes = filesystem.and_then(|it| Some((inodes, it.inodes?)));
            [bytes, inodes].into_iter().flatten()
        };
        let measured = |(signal, observation)| (signal, Measured { observation, at });
        let signals = signals.into_iter().flat_map(of_one).map(measured).collect();
        DiskSample { signals, layout: self.layout, unreadable }
    }
}

impl DiskSample {
    /// Adds it to the rest of the sample.
    pub fn add_to(self, sample: &mut Sample) {
        sample.signals.extend(self.signals);
        sample.layout = self.layout;
        sample.unreadable.extend(self.unreadable);
    }
}

/// One file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filesystem {
    device: u64,
    /// Bytes.
    pub(super) bytes: Observation,
    /// Inodes; `None` if the file system creates them on demand.
    pub(super) inodes: Option<Observation>,
}

/// The three file systems, as far as they can be read.
#[derive(Debug, Default)]
pub(super) struct Filesystems {
    pub(super) node: Option<Filesystem>,
    pub(super) images: Option<Filesystem>,
    pub(super) containers: Option<Filesystem>,
}

impl Filesystems {
    /// Reads all three; reports those that it cannot read.
    pub(super) fn read(
        host: &Host,
        kubelet_dir: &str,
        paths: &FilesystemPaths,
        unreadable: &mut Vec<String>,
    ) -> Self {
        let mut read = |what: &str, path: &Path| match filesystem(path) {
            Ok(found) => Some(found),
            Err(error) => {
                unreadable.push(format!("{what}: {}", cannot_read(path, &error)));
                None
            }
        };
        let node = read("nodefs", &host.path(kubelet_dir));
        let usual = || RUNTIME_DIRS.into_iter().map(|dir| host.path(dir)).find(|dir| is_used(dir));
        let of_images: Option<PathBuf> =
            paths.images.as_deref().map(|path| host.path(path)).or_else(usual);
        let images = of_images.as_deref().and_then(|path| read("imagefs", path));
        let containers = match &paths.containers {
            Some(path) if paths.containers != paths.images => read("containerfs", &host.path(path)),
            _ => images,
        };
        if of_images.is_none() {
            unreadable.push("imagefs: no directory of a container runtime is known".to_owned());
        }
        Self { node, images, containers }
    }

    /// Which of them are the same; `None` unless all are known. ([EV5])
    pub(super) fn layout(&self) -> Option<DiskLayout> {
        let (node, images, containers) = (self.node?, self.images?, self.containers?);
        Some(if images.device != containers.device {
            DiskLayout::Split
        } else if images.device != node.device {
            DiskLayout::DedicatedImages
        } else {
            DiskLayout::Single
        })
    }
}

fn is_used(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

fn filesystem(path: &Path) -> io::Result<Filesystem> {
    let device = fs::metadata(path)?.dev();
    let stat = statvfs(path)?;
    let size = stat.fragment_size();
    let bytes = Observation {
        available: stat.blocks_available().saturating_mul(size),
        capacity: stat.blocks().saturating_mul(size),
    };
    let inodes = Observation { available: stat.files_free(), capacity: stat.files() };
    Ok(Filesystem { device, bytes, inodes: (inodes.capacity > 0).then_some(inodes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_give_the_layout() {
        let on = |device| {
            let bytes = Observation { available: 1, capacity: 2 };
            Some(Filesystem { device, bytes, inodes: None })
        };
        let layout = |node, images, containers| Filesystems { node, images, containers }.layout();
        assert_eq!(layout(on(1), on(1), on(1)), Some(DiskLayout::Single));
        assert_eq!(layout(on(1), on(2), on(2)), Some(DiskLayout::DedicatedImages));
        assert_eq!(layout(on(1), on(2), on(1)), Some(DiskLayout::Split));
        assert_eq!(layout(on(1), on(2), on(3)), Some(DiskLayout::Split));
        assert_eq!(layout(None, on(1), on(1)), None);
        assert_eq!(layout(on(1), None, None), None);
    }
}
