//! Measures the node, and the usage of its pods. Reads files on threads other than the agent's main
//! one; a disk that hangs delays nothing but its own figure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::pressure::{ContainerFigures, Figures, PodFigures, Resource, Sample};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::cgroups::{Kubepods, PodCgroup};
use crate::clock::Clock;
use crate::cri::stats::FilesystemUsage;
use crate::cri::wire::CONTAINER_NAME_LABEL;
use crate::cri::{CriError, Runtime};
use crate::host::Host;
use crate::sink::layers::LayerBook;
use crate::source::pressure::{
    DiskMeter, DiskSample, DiskSampler, FilesystemPaths, MemoryUse, Sampler, is_name,
    memory_of_pods, tasks_of_pods,
};

/// Maximum time for all files. A sound host's files take ms; the walks have a lower limit of their
/// own.
const FILES_TIME_MAX: Duration = Duration::from_secs(5);
/// Minimum time between two samples of file systems, however often the node is sampled: they fill
/// more slowly.
const DISKS_EVERY: Duration = Duration::from_secs(1);
/// How long a sample waits for file systems.
const DISKS_TIME_MAX: Duration = Duration::from_millis(200);
/// How long a measurement waits for each answer of the runtime.
const RUNTIME_TIME_MAX: Duration = Duration::from_millis(500);
/// How long until a runtime that did not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_mins(1);

/// Measures the node and its pods. Clones share their memory.
#[derive(Clone, Debug)]
pub struct MeasureSink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    host: Host,
    clock: Clock,
    /// `None` if the agent may not use the runtime.
    runtime: Option<Runtime>,
    sampler: Mutex<Sampler>,
    disk_looker: Mutex<DiskSampler>,
    /// The last sample of disks, and when it was taken.
    last_disks: Mutex<Option<(Duration, DiskSample)>>,
    disks: Mutex<DiskMeter>,
    places: Mutex<Places>,
    names: Mutex<Names>,
    /// Held while the sink waits for the runtime: one measurement of disks runs at a time.
    layers: tokio::sync::Mutex<LayerBook>,
}

/// Where the runtime keeps images and layers.
#[derive(Debug, Default)]
struct Places {
    paths: FilesystemPaths,
    /// When to ask the runtime again; `None` once it has answered.
    ask_at: Option<Instant>,
    logged: bool,
}

/// Containers' names by the runtime's ids; `None` for what is not a container, such as a sandbox.
type Names = BTreeMap<String, Option<String>>;

impl MeasureSink {
    /// A sink that reads the host's files, and those of pods in the kubelet's directory. It asks
    /// the runtime if there is one.
    pub fn new(host: Host, kubelet_dir: &str, clock: Clock, runtime: Option<Runtime>) -> Self {
        let sampler = Mutex::new(Sampler::new(host.clone()));
        let disk_looker = Mutex::new(DiskSampler::new(host.clone(), kubelet_dir.to_owned()));
        let disks = Mutex::new(DiskMeter::new(host.clone(), kubelet_dir.to_owned()));
        let shared = Shared {
            host,
            clock,
            runtime,
            sampler,
            disk_looker,
            last_disks: Mutex::default(),
            disks,
            places: Mutex::default(),
            names: Mutex::default(),
            layers: tokio::sync::Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Measures the usage of these pods.
    pub async fn pods(&self, of: Resource, pods: Vec<PodUid>) -> Outcome<Figures> {
        match of {
            Resource::Memory => self.memory(pods).await,
            Resource::Disk => self.disk(pods).await,
            Resource::Pids => self.tasks(pods).await,
        }
    }

    /// Samples the node. Its disks come last, on the same thread: an idle node wakes one a second.
    /// A disk that hangs keeps its last sample: other shortages still show.
    pub async fn node(&self) -> Outcome<Box<Sample>> {
        let now = self.shared.clock.now().monotonic;
        let is_fresh = |last: &Option<(Duration, DiskSample)>| {
            last.as_ref().is_some_and(|(at, _)| now < *at + DISKS_EVERY)
        };
        let rest = is_fresh(&self.shared.last_disks.lock());
        let paths = if rest { None } else { Some(self.places().await) };
        let shared = Arc::clone(&self.shared);
        let (found, files) = oneshot::channel();
        let sampled = self.shared.host.try_blocking(move || {
            // Not held any more while a disk hangs.
            let files = shared.sampler.try_lock();
            let files = files.map(|mut it| it.take_sample(shared.clock.now().monotonic));
            // A sample that is late is dropped.
            let _ = found.send(files);
            if let (Some(paths), Some(mut disks)) = (paths, shared.disk_looker.try_lock()) {
                let found = disks.take_sample(&paths, now);
                *shared.last_disks.lock() = Some((now, found));
            }
        });
        // In vain if a disk hangs, and then the last sample is old.
        let _ = timeout(DISKS_TIME_MAX, sampled).await;
        let files = timeout(FILES_TIME_MAX, files).await.map_err(|_| not_read())?;
        let files = files.map_err(|_| failure("measuring ended early"))?;
        let hangs = || failure("the last sample has not finished: a file hangs");
        let mut sample = files.ok_or_else(hangs)?;
        let last = self.shared.last_disks.lock();
        last.iter().for_each(|(_, disks)| disks.clone().add_to(&mut sample));
        if !is_fresh(&last) {
            let words = "the node's file systems: they do not answer in time";
            sample.unreadable.push(words.to_owned());
        }
        Ok(Box::new(sample))
    }

    /// Where images and layers lie, as the runtime once reported.
    async fn places(&self) -> FilesystemPaths {
        let Some(runtime) = &self.shared.runtime else { return FilesystemPaths::default() };
        {
            let mut places = self.shared.places.lock();
            let now = Instant::now();
            if places.logged || places.ask_at.is_some_and(|at| now < at) {
                return places.paths.clone();
            }
            places.ask_at = Some(now + ASK_AGAIN);
        }
        let answer =
            asked("where images lie", async { runtime.client().await?.image_fs_info().await });
        let first = |list: Vec<FilesystemUsage>| {
            list.into_iter().next()?.fs_id.map(|id| id.mountpoint).filter(|path| !path.is_empty())
        };
        let answer = answer.await;
        let mut places = self.shared.places.lock();
        if let Some(answer) = answer {
            let containers = first(answer.container_filesystems);
            places.paths = FilesystemPaths { images: first(answer.image_filesystems), containers };
            places.logged = places.paths.images.is_some();
        }
        places.paths.clone()
    }

    async fn memory(&self, pods: Vec<PodUid>) -> Outcome<Figures> {
        let used = self.of_cgroups(pods, memory_of_pods).await?;
        let names = self.names(&used).await;
        let figures = |used: MemoryUse| PodFigures {
            memory: used.pod,
            containers: named(used.containers, &names),
            ..PodFigures::default()
        };
        Ok(used.into_iter().map(|(uid, used)| (uid, figures(used))).collect())
    }

    /// The names of these containers. Asks the runtime only about a new one.
    async fn names(&self, used: &BTreeMap<PodUid, MemoryUse>) -> Names {
        let ids = || used.values().flat_map(|pod| pod.containers.iter().map(|(id, _)| id));
        {
            let names = self.shared.names.lock();
            if ids().all(|id| names.contains_key(id)) {
                return names.clone();
            }
        }
        let Some(runtime) = &self.shared.runtime else { return Names::new() };
        let containers = asked("what its containers are called", async {
            runtime.client().await?.containers(None).await
        });
        if let Some(containers) = containers.await {
            let mut names: Names = ids().map(|id| (id.clone(), None)).collect();
            names.extend(containers.into_iter().map(|mut container| {
                (container.id, container.labels.remove(CONTAINER_NAME_LABEL))
            }));
            *self.shared.names.lock() = names;
        }
        self.shared.names.lock().clone()
    }

    async fn tasks(&self, pods: Vec<PodUid>) -> Outcome<Figures> {
        let tasks = self.of_cgroups(pods, tasks_of_pods).await?;
        let figures = |tasks| PodFigures { tasks, ..PodFigures::default() };
        Ok(tasks.into_iter().map(|(uid, tasks)| (uid, figures(tasks))).collect())
    }

    /// What the cgroups of these pods say.
    async fn of_cgroups<T: Send + 'static>(
        &self,
        pods: Vec<PodUid>,
        read: fn(&[PodCgroup], &BTreeSet<PodUid>) -> BTreeMap<PodUid, T>,
    ) -> Outcome<BTreeMap<PodUid, T>> {
        let host = self.shared.host.clone();
        let found = alongside(&self.shared.host, move || {
            let wanted: BTreeSet<PodUid> = pods.into_iter().collect();
            let pods = Kubepods::of(&host)?.pods().ok()?;
            Some(read(&pods, &wanted))
        });
        found.await?.ok_or_else(|| failure("there is no cgroup of all pods"))
    }

    async fn disk(&self, pods: Vec<PodUid>) -> Outcome<Figures> {
        let layers = match &self.shared.runtime {
            Some(runtime) => self.shared.layers.lock().await.ask(runtime, &pods).await,
            None => None,
        };
        let shared = Arc::clone(&self.shared);
        let asked = pods.iter().filter(|uid| is_name(&uid.0)).count();
        let measured = alongside(&self.shared.host, move || {
            let mut disks = shared.disks.try_lock()?;
            Some(disks.measure(&pods, layers.as_ref()))
        });
        let hangs = || failure("the last walk has not finished: a disk hangs");
        let figures = measured.await?.ok_or_else(hangs)?;
        if figures.len() < asked {
            // A pod without figures ranks first. A pod that there was no time for must not rank as
            // one. What was measured is kept; the rest comes first at the next attempt. ([EV7],
            // [EV11])
            return Err(failure("not all pods could be measured in time"));
        }
        Ok(figures)
    }
}

/// The figures of containers, without those that have no name.
fn named(containers: Vec<(String, u64)>, names: &Names) -> Vec<ContainerFigures> {
    let figures = |(id, memory): (String, u64)| {
        let name = names.get(&id)?.clone()?;
        Some(ContainerFigures { name, memory: Some(memory), ..ContainerFigures::default() })
    };
    containers.into_iter().filter_map(figures).collect()
}

/// The runtime's answer, if it comes in time. `what` says what it answers.
async fn asked<T>(what: &str, answer: impl Future<Output = Result<T, CriError>>) -> Option<T> {
    match timeout(RUNTIME_TIME_MAX, answer).await {
        Ok(Ok(answer)) => return Some(answer),
        Ok(Err(error)) => tracing::debug!(%error, "the runtime does not say {what}"),
        Err(_) => tracing::debug!("the runtime does not say in time {what}"),
    }
    None
}

/// Runs blocking work on a thread of its own, with a timeout.
async fn alongside<T: Send + 'static>(
    host: &Host,
    work: impl FnOnce() -> T + Send + 'static,
) -> Outcome<T> {
    match timeout(FILES_TIME_MAX, host.try_blocking(work)).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(failure(&format!("measuring ended early: {error}"))),
        Err(_) => Err(not_read()),
    }
}

fn not_read() -> Failure {
    failure(&format!("files were not read within {}s", FILES_TIME_MAX.as_secs()))
}

fn failure(words: &str) -> Failure {
    Failure::new(FailureKind::Other, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::pressure::KUBELET_DIR;
    use agent_core::pressure::signal::Signal;

    #[tokio::test]
    #[expect(clippy::await_holding_lock, reason = "a disk that hangs holds it, too")]
    async fn a_disk_that_hangs_leaves_memory_to_be_seen_and_what_was_found_last() {
        let sink =
            MeasureSink::new(Host::new("/".into()), KUBELET_DIR, Clock::new(Arc::default()), None);
        let hangs = sink.shared.disk_looker.lock();
        let sample = sink.node().await.expect("must be reported");
        assert!(sample.signals.contains_key(&Signal::PidAvailable));
        let answered = |sample: &Sample| {
            sample.unreadable.iter().any(|phrase| phrase.contains("do not answer in time"))
        };
        assert!(answered(&sample) && sample.layout.is_none(), "{:?}", sample.unreadable);
        drop(hangs);
        assert!(!answered(&sink.node().await.expect("must be reported")));
        let hangs = sink.shared.disk_looker.lock();
        let found = DiskSample { unreadable: vec!["before".into()], ..DiskSample::default() };
        *sink.shared.last_disks.lock() = Some((Duration::ZERO, found));
        let sample = sink.node().await.expect("must be reported");
        assert!(answered(&sample) && sample.unreadable.contains(&"before".to_owned()));
        drop(hangs);
    }
}
