//! What each pod uses and what it asked for: what the ranking and the messages are made of.
//! (spec/node-agent.md §2.6, §2.8)

use serde::Serialize;

use crate::pod::PodUid;

/// What one container uses of memory and of disk, and asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ContainerUsage {
    /// Its name.
    pub name: String,
    /// Whether it is an init container (sidecars included).
    pub init: bool,
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

/// What one pod uses, asked for, and is worth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodUsage {
    /// The pod.
    pub uid: PodUid,
    /// Its name.
    pub name: String,
    /// `spec.priority`.
    pub priority: i32,
    /// Whether it is never evicted: static, a mirror, or of critical priority. (EV12)
    pub critical: bool,
    /// Working set and swap of the whole pod, in bytes; none without figures.
    pub memory: Option<u64>,
    /// Its request of memory: of the pod if it has one, else of its containers with overhead.
    pub memory_request: u64,
    /// Whether that request stands on the pod itself.
    pub memory_request_of_pod: bool,
    /// Tasks.
    pub tasks: Option<u64>,
    /// Bytes on disk, by where they lie.
    pub disk: Option<DiskUsage>,
    /// Inodes, by where they lie.
    pub inodes: Option<DiskUsage>,
    /// Its request of ephemeral storage, in bytes.
    pub storage_request: u64,
    /// Its containers, regular ones first.
    pub containers: Vec<ContainerUsage>,
    /// emptyDir volumes on disk that have a limit: name, bytes used, limit.
    pub empty_dirs: Vec<EmptyDir>,
}

/// What lies where, in bytes or inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskUsage {
    /// The containers' writable layers.
    pub rootfs: u64,
    /// Logs.
    pub logs: u64,
    /// hostPath, configMap and emptyDir with the default medium.
    pub volumes: u64,
}

/// An emptyDir volume with a size limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EmptyDir {
    /// The volume's name.
    pub name: String,
    /// In bytes.
    pub used: u64,
    /// In bytes; above 0.
    pub limit: u64,
}

/// Which file systems lie on devices of their own. (EV5)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum DiskLayout {
    /// All on one.
    Single,
    /// Images and writable layers on one of their own.
    DedicatedImages,
    /// Images on one of their own, writable layers with the rest.
    Split,
}

impl DiskUsage {
    /// All of it.
    pub fn sum(self) -> u64 {
        self.rootfs.saturating_add(self.logs).saturating_add(self.volumes)
    }
}
