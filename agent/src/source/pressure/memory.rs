//! Reads memory and tasks of cgroups. ([EV1], [EV2], [EV8])

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use agent_core::pod::PodUid;
use agent_core::pressure::observe::{self, Observation, Unreadable, working_set};
use thiserror::Error;

use super::read;
use crate::cgroups::PodCgroup;

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

fn text(dir: &Path, name: &str) -> Result<String, FigureError> {
    let path = dir.join(name);
    read(&path).map_err(|source| FigureError::File { path: path.display().to_string(), source })
}

fn stat(cgroup: &Path) -> Result<String, FigureError> {
    text(cgroup, "memory.stat")
}

/// `memory.available`: MemTotal minus the working set of the root cgroup. ([EV1])
pub(super) fn of_node(root: &Path, meminfo: &str) -> Result<Observation, FigureError> {
    Ok(observe::memory(meminfo, &stat(root)?)?)
}

/// `allocatableMemory.available`, of the cgroup of all pods; `None` if it has no limit. ([EV2])
pub(super) fn of_all_pods(kubepods: &Path) -> Result<Option<Observation>, FigureError> {
    let max = text(kubepods, "memory.max")?;
    let current = text(kubepods, "memory.current")?;
    Ok(observe::allocatable_memory(&max, &current, &stat(kubepods)?)?)
}

/// Working set and swap of a cgroup, in bytes. Without a count of swap it is 0.
fn used(cgroup: &Path) -> Result<u64, FigureError> {
    let used = working_set(&text(cgroup, "memory.current")?, &stat(cgroup)?)?;
    let swap = text(cgroup, "memory.swap.current").ok();
    let swap = swap.and_then(|text| text.trim().parse::<u64>().ok());
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
    let all = std::iter::once(pod.path.as_path())
        .chain(containers.iter().map(|(_, path)| path.as_path()));
    let free =
        |(current, limit): &(u64, u64)| i128::from(*limit) * 1_000 / i128::from((*current).max(1));
    all.filter_map(of).min_by_key(free)
}

/// The memory that these pods use; pods without a cgroup are missing.
pub fn memory_of_pods(
    cgroups: &[PodCgroup],
    wanted: &BTreeSet<PodUid>,
) -> BTreeMap<PodUid, MemoryUse> {
    let of = |pod: &PodCgroup| {
        let containers = pod.containers().unwrap_or_default();
        let containers = containers.into_iter().filter_map(|(id, path)| {
            // A container that ends meanwhile does not count.
            Some((id, used(&path).ok()?))
        });
        let containers = containers.collect();
        MemoryUse { pod: used(&pod.path).ok(), containers }
    };
    of_wanted(cgroups, wanted, of)
}

/// The tasks of these pods; pods without a cgroup are missing.
pub fn tasks_of_pods(
    cgroups: &[PodCgroup],
    wanted: &BTreeSet<PodUid>,
) -> BTreeMap<PodUid, Option<u64>> {
    let of = |pod: &PodCgroup| text(&pod.path, "pids.current").ok()?.trim().parse().ok();
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
