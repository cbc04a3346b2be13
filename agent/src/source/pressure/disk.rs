//! Measures pods' usage of the node's disk: writable layers from the runtime, logs and emptyDir
//! volumes by walking them. ([EV9], [EV26])

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use agent_core::pod::PodUid;
use agent_core::pressure::usage::DiskUsage;
use agent_core::protocol::pressure::{ContainerFigures, Figures, PodFigures};

use super::LOGS_DIR;
use super::walk::{Budget, Tally, device, walk};
use crate::host::Host;

/// Maximum time for one pod.
const POD_TIME_MAX: Duration = Duration::from_millis(200);
/// Maximum time for all pods of one measurement.
const TIME_MAX: Duration = Duration::from_secs(2);
/// How long the result of a pod is kept that later measurements leave out: those for limits alone
/// do not cost the other pods their turns.
const LEFT_OUT_LASTS: Duration = Duration::from_mins(5);
/// Maximum number of entries for one pod: the walk holds some 40 bytes of each.
const POD_ENTRIES_MAX: u64 = 200_000;
/// Maximum number of volumes, or of containers with logs, of one pod.
const DIRS_MAX: usize = 1_024;
/// Maximum number of pods with logs, those that are gone included.
const LOG_DIRS_MAX: usize = 65_536;
/// emptyDir volumes, below the pod's directory.
const EMPTY_DIRS: &str = "volumes/kubernetes.io~empty-dir";
/// configMap volumes: files that the kubelet wrote. ([EV9])
const CONFIG_MAPS: &str = "volumes/kubernetes.io~configmap";

/// A container's writable layer, as the runtime counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerLayer {
    /// The container's name in the pod.
    pub name: String,
    /// Bytes; `None` if the runtime has not counted yet.
    pub bytes: Option<u64>,
    /// Inodes; `None` if the runtime has not counted yet.
    pub inodes: Option<u64>,
}

/// Measures pods' disks, and remembers the results: if a measurement has no time for all files, it
/// measures them in turns.
#[derive(Debug)]
pub struct DiskMeter {
    host: Host,
    kubelet_dir: String,
    found: BTreeMap<PodUid, Found>,
}

/// The result of a pod's walks.
#[derive(Clone, Debug)]
struct Found {
    at: Instant,
    logs: BTreeMap<String, Tally>,
    empty_dirs: Vec<(String, Tally)>,
    config_maps: Tally,
}

impl DiskMeter {
    /// A meter without results; the kubelet's directory is that of the host.
    pub fn new(host: Host, kubelet_dir: String) -> Self {
        Self { host, kubelet_dir, found: BTreeMap::new() }
    }

    /// Measures these pods, first those measured longest ago. `layers` is the runtime's answer, by
    /// pod: `None` without an answer, and without the pods that it does not name.
    ///
    /// What a walk had no time for is missing in the pod's sums: they are lower bounds.
    pub fn measure(
        &mut self,
        pods: &[PodUid],
        layers: Option<&BTreeMap<PodUid, Vec<ContainerLayer>>>,
    ) -> Figures {
        let until = Instant::now() + TIME_MAX;
        let mut turns: Vec<&PodUid> = pods.iter().filter(|uid| is_name(&uid.0)).collect();
        turns.sort_by_key(|uid| self.found.get(*uid).map(|found| found.at));
        let wanted: BTreeSet<&str> = turns.iter().map(|uid| uid.0.as_str()).collect();
        let logs = self.log_dirs(&wanted);
        for uid in &turns {
            let now = Instant::now();
            if now >= until {
                break;
            }
            let mut budget =
                Budget { until: until.min(now + POD_TIME_MAX), entries: POD_ENTRIES_MAX };
            let logs = logs.get(uid.0.as_str()).map(String::as_str);
            let found = self.walk_pod(uid, logs, &mut budget);
            self.found.insert((*uid).clone(), found);
        }
        self.found.retain(|uid, found| {
            wanted.contains(uid.0.as_str()) || found.at.elapsed() < LEFT_OUT_LASTS
        });
        let of = |uid: &PodUid| {
            let layers = layers.and_then(|all| all.get(uid)).map(Vec::as_slice);
            Some((uid.clone(), figures(self.found.get(uid)?, layers)))
        };
        turns.into_iter().filter_map(of).collect()
    }

    /// The log directories of these pods, `<namespace>_<name>_<uid>`, by UID.
    fn log_dirs<'a>(&self, wanted: &BTreeSet<&'a str>) -> BTreeMap<&'a str, String> {
        let names = names(&self.host.path(LOGS_DIR), LOG_DIRS_MAX);
        let of_wanted = names.into_iter().filter_map(|name| {
            let (_, uid) = name.rsplit_once('_')?;
            let uid = wanted.get(uid)?;
            Some((*uid, name))
        });
        of_wanted.collect()
    }

    fn walk_pod(&self, uid: &PodUid, logs: Option<&str>, budget: &mut Budget) -> Found {
        let dir = self.host.path(&self.kubelet_dir).join("pods").join(&uid.0);
        let home = device(&dir).ok();
        let mut volumes = |kind: &str| -> Vec<(String, Tally)> {
            let dir = dir.join(kind);
            let volumes = names(&dir, DIRS_MAX).into_iter().filter_map(|name| {
                let path = dir.join(&name);
                // An emptyDir in memory is a file system of its own.
                let on_disk = device(&path).ok() == home;
                Some((name, walk(&path, budget).ok().filter(|_| on_disk)?))
            });
            volumes.collect()
        };
        let empty_dirs = volumes(EMPTY_DIRS);
        let config_maps = volumes(CONFIG_MAPS).into_iter().map(|(_, tally)| tally);
        let config_maps = config_maps.fold(Tally::default(), Tally::and);
        let logs = logs.map(|name| self.host.path(LOGS_DIR).join(name));
        let of_container = |name: String| {
            let tally = walk(&logs.as_ref()?.join(&name), budget).ok()?;
            Some((name, tally))
        };
        let containers = logs.as_ref().map(|dir| names(dir, DIRS_MAX)).unwrap_or_default();
        let logs = containers.into_iter().filter_map(of_container).collect();
        Found { at: Instant::now(), logs, empty_dirs, config_maps }
    }
}

/// The figures of a pod. Without the runtime's answer the sums are unknown; logs and volumes are
/// known.
fn figures(found: &Found, layers: Option<&[ContainerLayer]>) -> PodFigures {
    let mut containers: BTreeMap<&str, ContainerFigures> = BTreeMap::new();
    for (name, tally) in &found.logs {
        containers.entry(name).or_default().logs = Some(tally.bytes);
    }
    let mut inodes_of_layers = 0_u64;
    for layer in layers.unwrap_or_default() {
        let container = containers.entry(&layer.name).or_default();
        container.rootfs = more(container.rootfs, layer.bytes);
        inodes_of_layers = inodes_of_layers.saturating_add(layer.inodes.unwrap_or(0));
    }
    let sum = |tallies: &mut dyn Iterator<Item = Tally>| tallies.fold(Tally::default(), Tally::and);
    let logs = sum(&mut found.logs.values().copied());
    let volumes = sum(&mut found.empty_dirs.iter().map(|(_, tally)| *tally));
    let volumes = volumes.and(found.config_maps);
    let rootfs = containers.values().filter_map(|container| container.rootfs);
    let rootfs = rootfs.fold(0, u64::saturating_add);
    let known = layers.is_some();
    let usage = |rootfs, logs, volumes| known.then_some(DiskUsage { rootfs, logs, volumes });
    let named = |(name, figures): (&str, ContainerFigures)| ContainerFigures {
        name: name.to_owned(),
        ..figures
    };
    PodFigures {
        disk: usage(rootfs, logs.bytes, volumes.bytes),
        inodes: usage(inodes_of_layers, logs.inodes, volumes.inodes),
        empty_dirs: found
            .empty_dirs
            .iter()
            .map(|(name, tally)| (name.clone(), tally.bytes))
            .collect(),
        containers: containers.into_iter().map(named).collect(),
        ..PodFigures::default()
    }
}

fn more(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    }
}

/// Whether the text can only be the name of an entry in a directory.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(['/', '\0']) && text != "." && text != ".."
}

/// The names in a directory, at most `max`; empty if it cannot be read.
fn names(dir: &Path, max: usize) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let entries = entries.filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().into_string().ok()).take(max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_of_some_pods_costs_the_others_no_turn() {
        let root = tempfile::tempdir().expect("must be creatable");
        let mut meter = DiskMeter::new(Host::new(root.path().into()), "/kubelet".into());
        let [a, b] = ["a", "b"].map(|name| PodUid(name.into()));
        meter.measure(&[a.clone(), b.clone()], None);
        meter.measure(std::slice::from_ref(&a), None);
        let found = meter.found.get_mut(&b).expect("must be kept");
        found.at = found.at.checked_sub(LEFT_OUT_LASTS).expect("must be after the boot");
        meter.measure(&[a], None);
        assert!(!meter.found.contains_key(&b), "a pod that is gone is forgotten");
    }
}
