//! The cgroups of pods and containers with what they have counted, and which kill a new count is.
//!
//! A kill is counted in the cgroup of the process and in all above it; that memory was short, in
//! the cgroup whose limit was reached and in all above it. So a container whose `oom` grew with its
//! `oom_kill` was at a limit of its own, and where only the pod's own `oom` grew, it was the pod's.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::pressure::OomConstraint;
use nix::sys::inotify::WatchDescriptor;
use tokio::time::Instant;

use super::counters::{Counters, limit};
use super::watches::Watches;
use crate::cgroups::{Cgroups, Kubepods, PodCgroup};
use crate::host::Host;

/// The kernel counts that memory was short right before it kills.
const BEFORE_KILL_MAX: Duration = Duration::from_secs(2);
/// A container that has gone so recently may be the one whose kill only its pod still counts.
const GONE_FOR: Duration = Duration::from_secs(10);
/// Containers of one pod that are remembered after they are gone.
const GONE_MAX: usize = 16;

/// A kill that the counters show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) pod: PodUid,
    pub(super) container_id: Option<String>,
    /// Where the container's end is to be seen; none where it has ended.
    pub(super) cgroup: Option<PathBuf>,
    pub(super) constraint: OomConstraint,
    pub(super) limit: Option<u64>,
}

/// What one cgroup has counted.
#[derive(Debug, Default)]
struct Level {
    all: Counters,
    own: Counters,
    /// When memory was last short at its limit, or at one below it.
    short_at: Option<Instant>,
    /// The same at its own.
    own_short_at: Option<Instant>,
}

/// One container.
#[derive(Debug)]
struct Container {
    cgroup: PathBuf,
    level: Level,
    watch: Option<WatchDescriptor>,
}

/// One pod.
#[derive(Debug)]
struct Pod {
    cgroup: PodCgroup,
    level: Level,
    containers: BTreeMap<String, Container>,
    gone: VecDeque<(String, Instant)>,
    /// Kills that the pod has counted and no container of it; less than none while the container
    /// was read after the pod.
    unexplained: i64,
    watches: [Option<WatchDescriptor>; 2],
}

/// All pods.
#[derive(Debug)]
pub(super) struct Tree {
    host: Host,
    kubepods: Option<Kubepods>,
    directories: BTreeMap<PathBuf, Option<WatchDescriptor>>,
    pods: BTreeMap<PathBuf, Pod>,
    /// Whether there was a list before: what comes now is younger than us.
    begun: bool,
}

impl Level {
    /// Takes what is counted now; answers with the kills that are new. None: it is gone.
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

    /// What was counted before us is not ours to tell.
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
            // At a limit within the container, the container's own says nothing.
            let own = is_recent(level.own_short_at, now);
            (OomConstraint::ContainerLimit, own.then(|| limit(&container.cgroup)).flatten())
        } else {
            self.level.constraint_above(&self.cgroup.memory, now)
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

    /// A kill that no container has counted: of one that went before it was read.
    fn gone_was_killed(&mut self, now: Instant) -> Option<Found> {
        self.gone.retain(|(_, at)| now.duration_since(*at) <= GONE_FOR);
        let (id, _) = self.gone.pop_back()?;
        let level = &self.level;
        let below = is_recent(level.short_at, now) && !is_recent(level.own_short_at, now);
        let (constraint, limit) = if below {
            (OomConstraint::ContainerLimit, None)
        } else {
            level.constraint_above(&self.cgroup.memory, now)
        };
        self.unexplained = 0;
        let pod = self.cgroup.uid.clone();
        Some(Found { pod, container_id: Some(id), cgroup: None, constraint, limit })
    }

    /// Reads all of the pod's counters.
    fn check(&mut self, now: Instant) -> Vec<Found> {
        // The pod is read first: what its containers count meanwhile can't be missing in them.
        if let Some(kills) = self.level.see(&self.cgroup.memory, now) {
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
    /// What was short when the container was at no limit of its own; this is its pod's level.
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

    /// Finds cgroups that came, and drops those that went. A watch is set before the first look,
    /// so that no count falls in between.
    pub(super) fn list(&mut self, watches: &mut Watches, now: Instant) {
        if self.kubepods.as_ref().is_none_or(|kubepods| !kubepods.memory.is_dir()) {
            self.kubepods = Cgroups::of(&self.host).kubepods();
        }
        let young = std::mem::replace(&mut self.begun, true);
        let Some(kubepods) = self.kubepods.clone() else { return };
        let mut directories = kubepods.classes();
        directories.push(kubepods.memory.clone());
        self.watch_directories(directories, watches);
        // Between the watch and the list a pod may come: then the list has it.
        let pods = kubepods.pods().unwrap_or_default();
        let there: BTreeMap<_, _> = pods.into_iter().map(|pod| (pod.memory.clone(), pod)).collect();
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
        // One that went and came back has another watch; the kernel does not tell that the old
        // one watches nothing any more. Of one that stayed it is the same.
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

    /// Kills that cannot be said to be any container's, after the last look.
    pub(super) fn unexplained(&mut self, now: Instant) -> Vec<Found> {
        let of = |pod: &mut Pod| {
            pod.unexplained = 0;
            let (constraint, limit) = pod.level.constraint_above(&pod.cgroup.memory, now);
            let pod = pod.cgroup.uid.clone();
            Found { pod, container_id: None, cgroup: None, constraint, limit }
        };
        self.pods.values_mut().filter(|pod| pod.unexplained > 0).map(of).collect()
    }
}

impl Pod {
    fn new(cgroup: PodCgroup, watches: &mut Watches, young: bool, now: Instant) -> Self {
        let file = watches.file(&cgroup.memory.join("memory.events"), &cgroup.memory);
        let directory = watches.directory(&cgroup.memory);
        let mut level = Level::default();
        if !young {
            level.see(&cgroup.memory, now);
            level.forget();
        }
        Self {
            cgroup,
            level,
            containers: BTreeMap::new(),
            gone: VecDeque::new(),
            unexplained: 0,
            watches: [file, directory],
        }
    }

    /// Containers that came or went. One that is younger than us has counted nothing before.
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
                let file = cgroup.join("memory.events");
                let watch = watches.file(&file, &self.cgroup.memory);
                let mut level = Level::default();
                if !young {
                    level.see(&cgroup, now);
                    level.forget();
                }
                Container { cgroup, level, watch }
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
