//! Tracks the counters of pods' and containers' cgroups, and attributes each new count to a kill.
//!
//! The kernel counts a kill in the cgroup of the process and in all above it. It counts that memory
//! was short in the cgroup whose limit was reached and in all above it. So a container whose `oom`
//! grew with its `oom_kill` was at its own limit. If only the pod's own `oom` grew, the limit was
//! the pod's.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::pressure::OomConstraint;
use nix::sys::inotify::WatchDescriptor;
use tokio::time::Instant;

use super::counters::{Counters, limit};
use super::watches::Watches;
use crate::cgroups::{Kubepods, PodCgroup};
use crate::host::Host;

/// The kernel counts that memory was short right before it kills.
const BEFORE_KILL_MAX: Duration = Duration::from_secs(2);
/// If only the pod counts a kill, the victim may be a container that has gone this recently.
const GONE_FOR: Duration = Duration::from_secs(10);
/// Maximum number of containers per pod that are remembered after they are gone.
const GONE_MAX: usize = 16;

/// A kill that the counters show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) pod: PodUid,
    pub(super) container_id: Option<String>,
    /// The cgroup in which the container's end shows; `None` if it has ended.
    pub(super) cgroup: Option<PathBuf>,
    pub(super) constraint: OomConstraint,
    pub(super) limit: Option<u64>,
}

/// The counters of one cgroup.
#[derive(Debug, Default)]
struct Level {
    all: Counters,
    own: Counters,
    /// When memory was last short at its limit, or at one below it.
    short_at: Option<Instant>,
    /// The same at its own limit.
    own_short_at: Option<Instant>,
}

#[derive(Debug)]
struct Container {
    cgroup: PathBuf,
    level: Level,
    watch: Option<WatchDescriptor>,
}

#[derive(Debug)]
struct Pod {
    cgroup: PodCgroup,
    level: Level,
    containers: BTreeMap<String, Container>,
    gone: VecDeque<(String, Instant)>,
    /// Kills that the pod has counted and none of its containers. Negative while a container was
    /// read after the pod.
    unexplained: i64,
    watches: [Option<WatchDescriptor>; 2],
}

/// The pods with their counters.
#[derive(Debug)]
pub(super) struct Tree {
    host: Host,
    kubepods: Option<Kubepods>,
    directories: BTreeMap<PathBuf, Option<WatchDescriptor>>,
    pods: BTreeMap<PathBuf, Pod>,
    /// Whether there was a list before: a later cgroup is younger than the agent's watch.
    begun: bool,
}

impl Level {
    /// The level of a cgroup. Forgets what it counted before the agent watched it: nothing, if it
    /// is young.
    fn new(cgroup: &Path, young: bool, now: Instant) -> Self {
        let mut level = Self::default();
        if !young {
            level.see(cgroup, now);
            level.forget();
        }
        level
    }

    /// Reads the counters now; returns the number of new kills. `None`: the cgroup is gone.
    fn see(&mut self, cgroup: &Path, now: Instant) -> Option<u64> {
        let all = Counters::read(&cgroup.join("memory.events")).ok()?;
        let own = Counters::read(&cgroup.join("memory.events.local")).unwrap_or_default();
        if all.oom > self.all.oom {
            self.short_at = Some(now);
        }
        if own.oom > self.own.oom {
            self.own_short_at = Some(now);
        }
        let kills = all.kills.saturating_sub(self.all.kills);
        // Counters only grow.
        self.all = self.all.max(all);
        self.own = self.own.max(own);
        Some(kills)
    }

    /// Forgets when memory was short.
    fn forget(&mut self) {
        (self.short_at, self.own_short_at) = (None, None);
    }
}

fn is_recent(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.duration_since(at) <= BEFORE_KILL_MAX)
}

impl Pod {
    fn container_was_killed(&mut self, id: &str, now: Instant) -> Option<Found> {
        let container = self.containers.get_mut(id)?;
        let level = &mut container.level;
        let (constraint, limit) = if is_recent(level.short_at, now) {
            // At a limit within the container, the container's own limit says nothing.
            let own = is_recent(level.own_short_at, now);
            (OomConstraint::ContainerLimit, own.then(|| limit(&container.cgroup)).flatten())
        } else {
            self.level.constraint_above(&self.cgroup.path, now)
        };
        level.forget();
        Some(Found {
            pod: self.cgroup.uid.clone(),
            container_id: Some(id.to_owned()),
            cgroup: Some(container.cgroup.clone()),
            constraint,
            limit,
        })
    }

    /// A kill that no container has counted: its container went before it was read.
    fn gone_was_killed(&mut self, now: Instant) -> Option<Found> {
        self.gone.retain(|(_, at)| now.duration_since(*at) <= GONE_FOR);
        let (id, _) = self.gone.pop_back()?;
        let level = &self.level;
        let below = is_recent(level.short_at, now) && !is_recent(level.own_short_at, now);
        let (constraint, limit) = if below {
            (OomConstraint::ContainerLimit, None)
        } else {
            level.constraint_above(&self.cgroup.path, now)
        };
        self.unexplained = 0;
        let pod = self.cgroup.uid.clone();
        Some(Found { pod, container_id: Some(id), cgroup: None, constraint, limit })
    }

    /// Reads all of the pod's counters.
    fn check(&mut self, now: Instant) -> Vec<Found> {
        // Read the pod first: then it cannot lack what its containers count meanwhile.
        if let Some(kills) = self.level.see(&self.cgroup.path, now) {
            self.unexplained += i64::try_from(kills).unwrap_or(0);
        }
        let mut killed = Vec::new();
        for (id, container) in &mut self.containers {
            let kills = container.level.see(&container.cgroup, now).unwrap_or(0);
            self.unexplained -= i64::try_from(kills).unwrap_or(0);
            if kills > 0 {
                killed.push(id.clone());
            }
        }
        let mut found: Vec<_> =
            killed.iter().filter_map(|id| self.container_was_killed(id, now)).collect();
        if self.unexplained > 0 {
            found.extend(self.gone_was_killed(now));
        }
        found
    }
}

impl Level {
    /// What was short if the container was not at its own limit; this is its pod's level.
    fn constraint_above(&self, pod: &Path, now: Instant) -> (OomConstraint, Option<u64>) {
        if is_recent(self.own_short_at, now) {
            (OomConstraint::PodLimit, limit(pod))
        } else {
            (OomConstraint::Node, None)
        }
    }
}

impl Tree {
    pub(super) fn new(host: Host) -> Self {
        Self {
            host,
            kubepods: None,
            directories: BTreeMap::new(),
            pods: BTreeMap::new(),
            begun: false,
        }
    }

    /// Adds new cgroups, and drops those that are gone. Sets a watch before the first read, so that
    /// no count is missed in between.
    pub(super) fn list(&mut self, watches: &mut Watches, now: Instant) {
        if self.kubepods.as_ref().is_none_or(|kubepods| !kubepods.path.is_dir()) {
            self.kubepods = Kubepods::of(&self.host);
        }
        let young = std::mem::replace(&mut self.begun, true);
        let Some(kubepods) = self.kubepods.clone() else { return };
        let mut directories = kubepods.classes();
        directories.push(kubepods.path.clone());
        self.watch_directories(directories, watches);
        // A pod may appear between the watch and the list: then the list has it.
        let pods = kubepods.pods().unwrap_or_default();
        let there: BTreeMap<_, _> = pods.into_iter().map(|pod| (pod.path.clone(), pod)).collect();
        self.pods.retain(|path, pod| {
            let stays = there.contains_key(path);
            if !stays {
                pod.unwatch(watches);
            }
            stays
        });
        for (path, cgroup) in there {
            self.pods.entry(path).or_insert_with(|| Pod::new(cgroup, watches, young, now));
        }
        for pod in self.pods.values_mut() {
            pod.list(watches, young, now);
        }
    }

    fn watch_directories(&mut self, wanted: Vec<PathBuf>, watches: &mut Watches) {
        self.directories.retain(|path, watch| {
            let stays = wanted.contains(path);
            if !stays {
                watches.remove(*watch);
            }
            stays
        });
        // A directory that went and came back has a new watch; the kernel does not report that the
        // old one is void. If it stayed, the watch is the same.
        for path in wanted {
            let watch = watches.directory(&path);
            let before = self.directories.insert(path, watch).flatten();
            if before != watch {
                watches.remove(before);
            }
        }
    }

    /// Reads the counters of one pod.
    pub(super) fn check(&mut self, pod: &Path, now: Instant) -> Vec<Found> {
        self.pods.get_mut(pod).map_or_else(Vec::new, |pod| pod.check(now))
    }

    /// Reads all counters.
    pub(super) fn check_all(&mut self, now: Instant) -> Vec<Found> {
        self.pods.values_mut().flat_map(|pod| pod.check(now)).collect()
    }

    /// Kills that cannot be attributed to a container, after the last read.
    pub(super) fn unexplained(&mut self, now: Instant) -> Vec<Found> {
        let of = |pod: &mut Pod| {
            pod.unexplained = 0;
            let (constraint, limit) = pod.level.constraint_above(&pod.cgroup.path, now);
            let pod = pod.cgroup.uid.clone();
            Found { pod, container_id: None, cgroup: None, constraint, limit }
        };
        self.pods.values_mut().filter(|pod| pod.unexplained > 0).map(of).collect()
    }
}

impl Pod {
    fn new(cgroup: PodCgroup, watches: &mut Watches, young: bool, now: Instant) -> Self {
        let file = watches.file(&cgroup.path.join("memory.events"), &cgroup.path);
        let directory = watches.directory(&cgroup.path);
        let level = Level::new(&cgroup.path, young, now);
        Self {
            cgroup,
            level,
            containers: BTreeMap::new(),
            gone: VecDeque::new(),
            unexplained: 0,
            watches: [file, directory],
        }
    }

    /// Adds and drops containers. A container that is younger than the agent's watch had no counts
    /// before.
    fn list(&mut self, watches: &mut Watches, young: bool, now: Instant) {
        let there: BTreeMap<String, PathBuf> =
            self.cgroup.containers().unwrap_or_default().into_iter().collect();
        let gone: Vec<String> =
            self.containers.keys().filter(|id| !there.contains_key(*id)).cloned().collect();
        for id in gone {
            if let Some(container) = self.containers.remove(&id) {
                watches.remove(container.watch);
            }
            self.gone.push_back((id, now));
            if self.gone.len() > GONE_MAX {
                self.gone.pop_front();
            }
        }
        for (id, cgroup) in there {
            self.containers.entry(id).or_insert_with(|| {
                let watch = watches.file(&cgroup.join("memory.events"), &self.cgroup.path);
                Container { level: Level::new(&cgroup, young, now), cgroup, watch }
            });
        }
    }

    fn unwatch(&self, watches: &mut Watches) {
        let containers = self.containers.values().map(|container| container.watch);
        for watch in self.watches.into_iter().chain(containers) {
            watches.remove(watch);
        }
    }
}
