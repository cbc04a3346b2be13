//! Reads memory and tasks of cgroups, in the terms of cgroup v2 whichever version the host has.
//! ([EV1], [EV2], [EV8])

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use agent_core::pod::PodUid;
use agent_core::pressure::observe::{self, Observation, Unreadable, working_set};
use thiserror::Error;

use super::read;
use crate::cgroups::{Cgroups, PodCgroup, Version};

/// Why a figure is not known.
#[derive(Debug, Error)]
pub(super) enum FigureError {
    /// The file cannot be read.
    #[error("{path}")]
    File {
        path: String,
        #[source]
        source: io::Error,
    },
    /// Its content cannot be parsed.
    #[error(transparent)]
    Text(#[from] Unreadable),
}

impl FigureError {
    /// Both what and why, in a phrase.
    pub(super) fn phrase(&self) -> String {
        match self {
            Self::File { path, source } => format!("{path}: {source}"),
            Self::Text(error) => error.to_string(),
        }
    }
}

/// The memory that one pod uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Working set and swap of the pod, in bytes.
    pub pod: Option<u64>,
    /// Of its containers and its sandbox, by the runtime's id. Those that could not be read are
    /// missing.
    pub containers: Vec<(String, u64)>,
}

/// The file names of one version.
#[derive(Clone, Copy, Debug)]
struct Names {
    current: &'static str,
    max: &'static str,
}

fn names(version: Version) -> Names {
    match version {
        Version::V2 => Names { current: "memory.current", max: "memory.max" },
        Version::V1 => Names { current: "memory.usage_in_bytes", max: "memory.limit_in_bytes" },
    }
}

fn text(dir: &Path, name: &str) -> Result<String, FigureError> {
    let path = dir.join(name);
    read(&path).map_err(|source| FigureError::File { path: path.display().to_string(), source })
}

/// `memory.stat`. Of version 1 only the values that the agent uses, under their names in version 2:
/// in version 1 the plain names leave out the cgroups below.
fn stat(dir: &Path, version: Version) -> Result<String, FigureError> {
    let stat = text(dir, "memory.stat")?;
    Ok(match version {
        Version::V2 => stat,
        Version::V1 => observe::stat(&stat, "total_inactive_file")
            .map_or_else(String::new, |bytes| format!("inactive_file {bytes}\n")),
    })
}

/// `memory.available`: MemTotal minus the working set of the root cgroup. ([EV1])
pub(super) fn of_node(cgroups: &Cgroups, meminfo: &str) -> Result<Observation, FigureError> {
    let root = cgroups.memory_root();
    let stat = match cgroups.version {
        Version::V2 => stat(&root, Version::V2)?,
        // The root of version 1 has a file with its usage.
        Version::V1 => {
            let usage = text(&root, names(Version::V1).current)?;
            format!("anon {}\nfile 0\n{}", usage.trim(), stat(&root, Version::V1)?)
        }
    };
    Ok(observe::memory(meminfo, &stat)?)
}

/// `allocatableMemory.available`, of the cgroup of all pods; `None` if it has no limit. ([EV2])
pub(super) fn of_all_pods(
    kubepods: &Path,
    version: Version,
) -> Result<Option<Observation>, FigureError> {
    let names = names(version);
    let max = text(kubepods, names.max)?;
    let current = text(kubepods, names.current)?;
    Ok(observe::allocatable_memory(&max, &current, &stat(kubepods, version)?)?)
}

/// Working set and swap of a cgroup, in bytes. Without a count of swap it is 0.
fn used(cgroup: &Path, version: Version) -> Result<u64, FigureError> {
    let current = text(cgroup, names(version).current)?;
    let used = working_set(&current, &stat(cgroup, version)?)?;
    let number = |name: &str| text(cgroup, name).ok()?.trim().parse::<u64>().ok();
    let swap = match version {
        Version::V2 => number("memory.swap.current"),
        Version::V1 => number("memory.memsw.usage_in_bytes").and_then(|both| {
            let memory = current.trim().parse().ok()?;
            Some(both.saturating_sub(memory))
        }),
    };
    Ok(used.saturating_add(swap.unwrap_or(0)))
}

/// `memory.current` and the limit of that cgroup of the pod which is closest to its own limit;
/// `None` if the pod has no limit. The limit that throttles (`memory.high`) counts the same as the
/// one that kills: tasks wait at either.
pub(super) fn limit(pod: &PodCgroup) -> Option<(u64, u64)> {
    let of = |dir: &Path| {
        let number = |name: &str| text(dir, name).ok()?.trim().parse::<u64>().ok();
        let limit = [number("memory.max"), number("memory.high")].into_iter().flatten().min()?;
        Some((number("memory.current")?, limit))
    };
    let containers = pod.containers().unwrap_or_default();
    let all = std::iter::once(pod.memory.as_path())
        .chain(containers.iter().map(|(_, path)| path.as_path()));
    let free =
        |(current, limit): &(u64, u64)| i128::from(*limit) * 1_000 / i128::from((*current).max(1));
    all.filter_map(of).min_by_key(free)
}

/// The memory that these pods use; pods without a cgroup are missing.
pub fn memory_of_pods(
    version: Version,
    cgroups: &[PodCgroup],
    wanted: &BTreeSet<PodUid>,
) -> BTreeMap<PodUid, MemoryUse> {
    let of = |pod: &PodCgroup| {
        let containers = pod.containers().unwrap_or_default();
        let containers = containers.into_iter().filter_map(|(id, path)| {
            // A container that ends meanwhile does not count.
            Some((id, used(&path, version).ok()?))
        });
        let containers = containers.collect();
        MemoryUse { pod: used(&pod.memory, version).ok(), containers }
    };
    of_wanted(cgroups, wanted, of)
}

/// The tasks of these pods; pods without a cgroup are missing.
pub fn tasks_of_pods(
    cgroups: &[PodCgroup],
    wanted: &BTreeSet<PodUid>,
) -> BTreeMap<PodUid, Option<u64>> {
    let of = |pod: &PodCgroup| text(&pod.pids, "pids.current").ok()?.trim().parse().ok();
    of_wanted(cgroups, wanted, of)
}

fn of_wanted<T>(
    cgroups: &[PodCgroup],
    wanted: &BTreeSet<PodUid>,
    of: impl Fn(&PodCgroup) -> T,
) -> BTreeMap<PodUid, T> {
    let wanted = cgroups.iter().filter(|pod| wanted.contains(&pod.uid));
    wanted.map(|pod| (pod.uid.clone(), of(pod))).collect()
}
