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

use super::{cannot_read, memory, psi_of, read};
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
        self.io(&mut sample);
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
        let path = self.host.path("/proc/meminfo");
        let meminfo = match read(&path) {
            Ok(text) => text,
            Err(error) => {
                sample.unreadable.push(cannot_read(&path, &error));
                String::new()
            }
        };
        let swap = (!meminfo.is_empty()).then(|| observe::swap(&meminfo));
        sample.swap = match swap {
            Some(Ok(swap)) => Some(swap),
            Some(Err(error)) => {
                sample.unreadable.push(error.to_string());
                None
            }
            None => None,
        };
        let Some(cgroups) = &self.cgroups else {
            sample.unreadable.push(NO_V2.to_owned());
            return;
        };
        if !meminfo.is_empty() {
            match memory::of_node(cgroups.root(), &meminfo) {
                Ok(found) => insert(sample, Signal::MemoryAvailable, found, at),
                Err(error) => sample.unreadable.push(error.phrase()),
            }
        }
        let Some(kubepods) = &self.kubepods else {
            sample.unreadable.push("no cgroup of all pods (kubepods) was found".to_owned());
            return;
        };
        match memory::of_all_pods(&kubepods.path) {
            Ok(Some(found)) => insert(sample, Signal::AllocatableMemoryAvailable, found, at),
            Ok(None) => {}
            Err(error) => sample.unreadable.push(error.phrase()),
        }
    }

    fn pids(&self, sample: &mut Sample, at: Duration) {
        let text = |path: &str| {
            let path = self.host.path(path);
            read(&path).map_err(|error| cannot_read(&path, &error))
        };
        let found = || -> Result<Observation, String> {
            let pid_max = text("/proc/sys/kernel/pid_max")?;
            let threads_max = text("/proc/sys/kernel/threads-max")?;
            let loadavg = text("/proc/loadavg")?;
            observe::pids(&pid_max, &threads_max, &loadavg).map_err(|error| error.to_string())
        };
        match found() {
            Ok(found) => insert(sample, Signal::PidAvailable, found, at),
            Err(phrase) => sample.unreadable.push(phrase),
        }
    }

    fn stalls(&mut self, sample: &mut Sample, at: Duration) {
        let Some(kubepods) = &self.kubepods else { return };
        let all_pods = match pressure(&kubepods.path) {
            Ok(psi) => psi,
            Err(phrase) => {
                sample.unreadable.push(phrase);
                self.stalls = None;
                return;
            }
        };
        let last = self.stalls.take();
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

    fn io(&self, sample: &mut Sample) {
        let path = self.host.path("/proc/pressure/io");
        let found = read(&path).map_err(|error| cannot_read(&path, &error));
        match found.and_then(|text| observe::psi(&text).map_err(|error| error.to_string())) {
            Ok(psi) => sample.io = Some(psi),
            Err(phrase) => sample.unreadable.push(phrase),
        }
    }
}

fn insert(sample: &mut Sample, signal: Signal, observation: Observation, at: Duration) {
    sample.signals.insert(signal, Measured { observation, at });
}

fn pressure(cgroup: &std::path::Path) -> Result<Psi, String> {
    let path = cgroup.join(FILE);
    let text = read(&path).map_err(|error| cannot_read(&path, &error))?;
    observe::psi(&text).map_err(|error| error.to_string())
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
