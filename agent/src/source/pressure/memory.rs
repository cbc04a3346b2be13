//! Reads memory and tasks of cgroups. ([EV1], [EV2], [EV8])

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use agent_core::pod::PodUid;
use agent_core::pressure::observe::{self, Observation, working_set};

use super::text;
use crate::cgroups::PodCgroup;

/// The memory that one pod uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Working set and swap of the pod, in bytes.
    pub pod: Option<u64>,
    /// Of its containers and its sandbox, by the runtime's id. Those that could not be read are
    /// missing.
    pub containers: Vec<(String, u64)>,
}

/// `memory.available`: MemTotal minus the working set of the root cgroup. ([EV1])
pub(super) fn of_node(root: &Path, meminfo: &str) -> Result<Observation, String> {
    observe::memory(meminfo, &text(&root.join("memory.stat"))?).map_err(|error| error.to_string())
}

/// `allocatableMemory.available`, of the cgroup of all pods; `None` if it has no limit. ([EV2])
pub(super) fn of_all_pods(kubepods: &Path) -> Result<Option<Observation>, String> {
    let file = |name| text(&kubepods.join(name));
    let (max, current, stat) = (file("memory.max")?, file("memory.current")?, file("memory.stat")?);
    observe::allocatable_memory(&max, &current, &stat).map_err(|error| error.to_string())
}

/// A file of one number; `None` if it cannot be read, or has a word in its place.
fn number(file: &Path) -> Option<u64> {
    text(file).ok()?.trim().parse().ok()
}

/// Working set and swap of a cgroup, in bytes. Without a count of swap it is 0.
fn used(cgroup: &Path) -> Option<u64> {
    let file = |name| text(&cgroup.join(name)).ok();
    let used = working_set(&file("memory.current")?, &file("memory.stat")?).ok()?;
    Some(used.saturating_add(number(&cgroup.join("memory.swap.current")).unwrap_or(0)))
}

/// `memory.current` and the limit of that cgroup of the pod which is closest to its own limit;
/// `None` if the pod has no limit. The limit that throttles (`memory.high`) counts the same as the
/// one that kills: tasks wait at either.
pub(super) fn limit(pod: &PodCgroup) -> Option<(u64, u64)> {
    let of = |dir: &Path| {
        let number = |name: &str| number(&dir.join(name));
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
        // A container that ends meanwhile does not count.
        let containers = containers.into_iter().filter_map(|(id, path)| Some((id, used(&path)?)));
        MemoryUse { pod: used(&pod.path), containers: containers.collect() }
    };
    of_wanted(cgroups, wanted, of)
}

/// The tasks of these pods; pods without a cgroup are missing.
pub fn tasks_of_pods(
    cgroups: &[PodCgroup],
    wanted: &BTreeSet<PodUid>,
) -> BTreeMap<PodUid, Option<u64>> {
    of_wanted(cgroups, wanted, |pod| number(&pod.path.join("pids.current")))
}

fn of_wanted<T>(
    cgroups: &[PodCgroup],
    wanted: &BTreeSet<PodUid>,
    of: impl Fn(&PodCgroup) -> T,
) -> BTreeMap<PodUid, T> {
    let wanted = cgroups.iter().filter(|pod| wanted.contains(&pod.uid));
    wanted.map(|pod| (pod.uid.clone(), of(pod))).collect()
}
