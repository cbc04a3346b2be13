//! Samples the node's memory and tasks, and what pods wait for. Cheap enough for several samples a
//! second: what cannot have changed since the last sample is not read again. Reads only files of
//! the kernel, none on a disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::pressure::observe::{self, Observation, Psi};
use agent_core::pressure::signal::Signal;
use agent_core::pressure::stall::{PodStall, StallSample};
use agent_core::pressure::watch::Measured;
use agent_core::protocol::pressure::Sample;

use super::{memory, pressure, psi_of, text};
use crate::cgroups::{Cgroups, Kubepods, NO_V2, PodCgroup};
use crate::host::Host;

/// Maximum number of pods whose stalls are read; a kubelet runs 110 by default.
const STALLS_MAX: usize = 256;
/// How often the pods are listed again; a new pod does not cause a shortage in its first second.
const LIST_EVERY: Duration = Duration::from_secs(1);
const FILE: &str = "memory.pressure";

/// The last sample, and the paths that it found.
#[derive(Debug)]
pub struct Sampler {
    host: Host,
    cgroups: Option<Cgroups>,
    kubepods: Option<Kubepods>,
    stalls: Option<Stalls>,
}

/// The stalls of the last sample.
#[derive(Debug)]
struct Stalls {
    all_pods: Psi,
    pods: Vec<PodStall>,
    known: Known,
}

/// The pods whose stalls are read. Their files stay open, which makes a read four times as fast.
/// The file of a removed cgroup fails, and is dropped.
#[derive(Debug)]
struct Known {
    open: Vec<(PodCgroup, File)>,
    /// Number of pods beyond the limit.
    left_out: usize,
    listed_at: Duration,
}

impl Sampler {
    /// A sampler without results.
    pub fn new(host: Host) -> Self {
        Self { host, cgroups: None, kubepods: None, stalls: None }
    }

    /// Samples the node. Blocks for as long as the host's files do. On a sound host that is well
    /// below a millisecond for the node, and some 20 µs for each pod that stalls.
    pub fn take_sample(&mut self, at: Duration) -> Sample {
        let mut sample = Sample::default();
        self.find();
        self.memory(&mut sample, at);
        self.pids(&mut sample, at);
        self.stalls(&mut sample, at);
        sample.io = sample.known(pressure(&self.host.path("/proc/pressure/io")));
        sample
    }

    /// Finds the pods' cgroup, and finds it again when it has gone.
    fn find(&mut self) {
        let is_there = |kubepods: &Kubepods| kubepods.path.is_dir();
        if self.kubepods.as_ref().is_some_and(is_there) {
            return;
        }
        self.cgroups = Cgroups::of(&self.host);
        self.kubepods = self.cgroups.as_ref().and_then(Cgroups::kubepods);
        self.stalls = None;
    }

    fn memory(&self, sample: &mut Sample, at: Duration) {
        let meminfo = sample.known(text(&self.host.path("/proc/meminfo")));
        if let Some(meminfo) = &meminfo {
            sample.swap = sample.known(observe::swap(meminfo).map_err(|error| error.to_string()));
        }
        let Some(cgroups) = &self.cgroups else {
            sample.unreadable.push(NO_V2.to_owned());
            return;
        };
        if let Some(meminfo) = &meminfo {
            let found = sample.known(memory::of_node(cgroups.root(), meminfo));
            sample.insert(Signal::MemoryAvailable, found, at);
        }
        let Some(kubepods) = &self.kubepods else {
            sample.unreadable.push("no cgroup of all pods (kubepods) was found".to_owned());
            return;
        };
        let found = sample.known(memory::of_all_pods(&kubepods.path)).flatten();
        sample.insert(Signal::AllocatableMemoryAvailable, found, at);
    }

    fn pids(&self, sample: &mut Sample, at: Duration) {
        let file = |path: &str| text(&self.host.path(path));
        let found = || {
            let pid_max = file("/proc/sys/kernel/pid_max")?;
            let threads_max = file("/proc/sys/kernel/threads-max")?;
            let loadavg = file("/proc/loadavg")?;
            observe::pids(&pid_max, &threads_max, &loadavg).map_err(|error| error.to_string())
        };
        let found = sample.known(found());
        sample.insert(Signal::PidAvailable, found, at);
    }

    fn stalls(&mut self, sample: &mut Sample, at: Duration) {
        let Some(kubepods) = &self.kubepods else { return };
        let last = self.stalls.take();
        let Some(all_pods) = sample.known(pressure(&kubepods.path.join(FILE))) else { return };
        let stalls = match last {
            // Whenever a pod waits, the cgroup above it does too.
            Some(last) if last.all_pods.some.total == all_pods.some.total => {
                Stalls { all_pods, ..last }
            }
            last => stalls(kubepods, all_pods, last, at),
        };
        if stalls.known.left_out > 0 {
            let phrase = format!("what {} of the pods wait for: too many", stalls.known.left_out);
            sample.unreadable.push(phrase);
        }
        let available = sample.signals.get(&Signal::MemoryAvailable);
        sample.stall = available.map(|available| StallSample {
            at,
            all_pods,
            available: available.observation,
            pods: stalls.pods.clone(),
        });
        self.stalls = Some(stalls);
    }
}

/// What the sampler does to a sample.
trait Filled {
    /// What was read; notes the phrase of what was not.
    fn known<T>(&mut self, found: Result<T, String>) -> Option<T>;
    /// Adds a signal, if it is known.
    fn insert(&mut self, signal: Signal, found: Option<Observation>, at: Duration);
}

impl Filled for Sample {
    fn known<T>(&mut self, found: Result<T, String>) -> Option<T> {
        found.map_err(|phrase| self.unreadable.push(phrase)).ok()
    }

    fn insert(&mut self, signal: Signal, found: Option<Observation>, at: Duration) {
        self.signals.extend(found.map(|observation| (signal, Measured { observation, at })));
    }
}

/// Reads each pod's stalls. Reads limits only of pods that have waited since the last sample: the
/// limits of the others stay what they were when they mattered.
fn stalls(kubepods: &Kubepods, all_pods: Psi, last: Option<Stalls>, at: Duration) -> Stalls {
    let (known, last) = match last {
        Some(Stalls { known, pods, .. }) => (Some(known), pods),
        None => (None, Vec::new()),
    };
    let mut known = Known::at(kubepods, known, at);
    let last: BTreeMap<PodUid, PodStall> =
        last.into_iter().map(|pod| (pod.uid.clone(), pod)).collect();
    let mut pods = Vec::with_capacity(known.open.len());
    known.open.retain(|(cgroup, file)| {
        // A pod that ends meanwhile does not count.
        let Ok(psi) = psi_of(file) else { return false };
        let uid = cgroup.uid.clone();
        let limit = match last.get(&uid) {
            None => None,
            Some(last) if last.psi.some.total == psi.some.total => last.limit,
            Some(_) => memory::limit(cgroup),
        };
        pods.push(PodStall { uid, psi, limit });
        true
    });
    Stalls { all_pods, pods, known }
}

impl Known {
    /// The pods of the last list; a new list if that is too old.
    fn at(kubepods: &Kubepods, last: Option<Self>, at: Duration) -> Self {
        let mut open = match last {
            Some(known) if at < known.listed_at + LIST_EVERY => return known,
            last => last.map_or_else(Vec::new, |known| known.open),
        };
        let cgroups = kubepods.pods().unwrap_or_default();
        let left_out = cgroups.len().saturating_sub(STALLS_MAX);
        let mut held: BTreeMap<PodUid, (PodCgroup, File)> =
            open.drain(..).map(|(cgroup, file)| (cgroup.uid.clone(), (cgroup, file))).collect();
        let pod = |cgroup: PodCgroup| match held.remove(&cgroup.uid) {
            Some((before, file)) if before == cgroup => Some((before, file)),
            _ => {
                let file = File::open(cgroup.path.join(FILE)).ok()?;
                Some((cgroup, file))
            }
        };
        open.extend(cgroups.into_iter().take(STALLS_MAX).filter_map(pod));
        Self { open, left_out, listed_at: at }
    }
}
