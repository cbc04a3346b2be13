//! Defines the measurements of the node and its pods, and the kills that the kernel and
//! systemd-oomd report.

use std::time::Duration;

use epilogue_common::outcome::Failure;
use serde::Serialize;

use crate::pod::PodUid;
use crate::pressure::observe::{DiskLayout, DiskUsage, Measurements, Observation, Psi};
use crate::pressure::stall::StallSample;

/// One sample of the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The signals that could be measured. ([EV7])
    pub signals: Measurements,
    /// Free swap and total swap; `None` if it could not be read.
    pub swap: Option<Observation>,
    /// Which file systems are on their own devices, once known. ([EV5])
    pub layout: Option<DiskLayout>,
    /// `memory.pressure` of the cgroup of all pods and of each pod; `None` without PSI or cgroup
    /// v2.
    pub stall: Option<StallSample>,
    /// `/proc/pressure/io`; `None` without PSI.
    pub io: Option<Psi>,
    /// What could not be read, and why: one phrase each.
    pub unreadable: Vec<String>,
}

/// The resource of pods to measure in a shortage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resource {
    /// Working set and swap.
    Memory,
    /// Bytes and inodes on disk.
    Disk,
    /// Tasks.
    Pids,
}

/// Usage of one pod. A value is `None` if it was not requested or could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFigures {
    /// Working set and swap of the whole pod, in bytes.
    pub memory: Option<u64>,
    /// Number of tasks.
    pub tasks: Option<u64>,
    /// Disk usage in bytes.
    pub disk: Option<DiskUsage>,
    /// Disk usage in inodes.
    pub inodes: Option<DiskUsage>,
    /// Its containers.
    pub containers: Vec<ContainerFigures>,
    /// Its emptyDir volumes on disk: name, bytes used.
    pub empty_dirs: Vec<(String, u64)>,
}

/// Usage of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFigures {
    /// Its name in the pod.
    pub name: String,
    /// Working set and swap, in bytes.
    pub memory: Option<u64>,
    /// Its writable layer, in bytes.
    pub rootfs: Option<u64>,
    /// Its logs, in bytes.
    pub logs: Option<u64>,
}

/// Usage of the requested pods; a pod that could not be measured is missing.
pub type Figures = std::collections::BTreeMap<PodUid, PodFigures>;

/// Result of a sample of the node.
pub type Measured = Result<Box<Sample>, Failure>;

/// The resource that tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stalling {
    /// For memory.
    Memory,
    /// For disks.
    Io,
}

/// A kill of a pod's process by the kernel's OOM killer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OomKill {
    /// The pod that the process belonged to.
    pub pod: PodUid,
    /// The runtime's id of the container, from the cgroup's name.
    pub container_id: Option<String>,
    /// The memory that was short.
    pub constraint: OomConstraint,
    /// The limit that was reached, in bytes, if it exists and is known.
    pub limit: Option<u64>,
    /// The killed process: PID on the host, name. Only the kernel's log contains it.
    pub process: Option<(u32, String)>,
    /// Whether processes of the container still run; `None` if unknown.
    pub container_lives: Option<bool>,
    /// Source of the report.
    pub witness: OomWitness,
    /// When the agent learned of the kill, on CLOCK_MONOTONIC.
    pub at: Duration,
}

/// The memory that was short when the kernel killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OomConstraint {
    /// The container reached its own limit.
    ContainerLimit,
    /// The containers of the pod together reached the pod's limit.
    PodLimit,
    /// Nothing of the pod was at a limit: the node, or all its pods together, ran short.
    Node,
    /// The cause is unknown.
    Unknown,
}

/// Source of the report of an OOM kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OomWitness {
    /// The kernel's log.
    KernelLog,
    /// `memory.events` of the cgroups.
    MemoryEvents,
    /// The container runtime: reason `OOMKilled`.
    Runtime,
}

/// A kill of a cgroup by systemd-oomd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OomdKill {
    /// The pod whose cgroup, or a part of it, was killed; `None` if the cgroup is not a pod's.
    pub pod: Option<PodUid>,
    /// The runtime's id of the container, if the cgroup is a container's.
    pub container_id: Option<String>,
    /// The cgroup, as systemd-oomd names it.
    pub cgroup: String,
    /// Why: `memory-used`, `memory-pressure`, or a future word.
    pub reason: String,
}
