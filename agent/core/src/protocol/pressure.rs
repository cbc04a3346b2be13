//! What is measured of the node and of its pods, and what the kernel and systemd-oomd tell of
//! kills.

use std::time::Duration;

use epilogue_common::outcome::Failure;
use serde::Serialize;

use crate::pod::PodUid;
use crate::pressure::observe::{Observation, Psi};
use crate::pressure::stall::StallSample;
use crate::pressure::usage::{DiskLayout, DiskUsage};
use crate::pressure::watch::Measurements;

/// One look at the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The signals that could be measured. ([EV7])
    pub signals: Measurements,
    /// Free swap of all swap; none where it could not be read.
    pub swap: Option<Observation>,
    /// Which file systems lie on devices of their own, once it is known. ([EV5])
    pub layout: Option<DiskLayout>,
    /// `memory.pressure` of the cgroup of all pods and of each; none without PSI or cgroup v2.
    pub stall: Option<StallSample>,
    /// `/proc/pressure/io`; none without PSI.
    pub io: Option<Psi>,
    /// What could not be read, and why, a phrase each.
    pub unreadable: Vec<String>,
}

/// What of its pods a shortage is about.
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

/// What one pod uses. What was not asked for, or could not be read, is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFigures {
    /// Working set and swap of the whole pod, in bytes.
    pub memory: Option<u64>,
    /// Tasks.
    pub tasks: Option<u64>,
    /// Bytes.
    pub disk: Option<DiskUsage>,
    /// Inodes.
    pub inodes: Option<DiskUsage>,
    /// Its containers.
    pub containers: Vec<ContainerFigures>,
    /// Its emptyDir volumes on disk: name, bytes used.
    pub empty_dirs: Vec<(String, u64)>,
}

/// What one container uses.
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

/// What the pods that were asked about use; one that could not be measured is missing.
pub type Figures = std::collections::BTreeMap<PodUid, PodFigures>;

/// The result of a look at the node.
pub type Measured = Result<Box<Sample>, Failure>;

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stalling {
    /// For memory.
    Memory,
    /// For disks.
    Io,
}

/// The kernel's OOM killer has killed a process of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OomKill {
    /// The pod whose process it was.
    pub pod: PodUid,
    /// The runtime's id of the container, as the cgroup's name has it.
    pub container_id: Option<String>,
    /// What was short.
    pub constraint: OomConstraint,
    /// The limit that was hit, in bytes, where there is one and it is known.
    pub limit: Option<u64>,
    /// The killed process: id in the host, name; only the kernel's log knows.
    pub process: Option<(u32, String)>,
    /// Whether processes of the container live on; none if it could not be told.
    pub container_lives: Option<bool>,
    /// Who says so.
    pub witness: OomWitness,
    /// When it was learnt, on CLOCK_MONOTONIC.
    pub at: Duration,
}

/// What was short when the kernel killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OomConstraint {
    /// The container reached its own limit.
    ContainerLimit,
    /// The containers of the pod together reached the pod's limit.
    PodLimit,
    /// Nothing of the pod was at a limit: the node, or all pods of it together.
    Node,
    /// It could not be told.
    Unknown,
}

/// Who says that a process was killed for memory.
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

/// systemd-oomd has killed a cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OomdKill {
    /// The pod whose cgroup it was, or of which it was a part; none where it was no pod's.
    pub pod: Option<PodUid>,
    /// The runtime's id of the container, where it was one's.
    pub container_id: Option<String>,
    /// The cgroup, as oomd names it.
    pub cgroup: String,
    /// Why: `memory-used` or `memory-pressure`, or a word to come.
    pub reason: String,
}
