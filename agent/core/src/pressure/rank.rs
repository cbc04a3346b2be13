//! Ranks the pods to terminate when the node runs short of a resource.

use std::cmp::{Ordering, Reverse};

use super::signal::Signal;
use super::usage::{DiskLayout, DiskUsage, PodUsage};

/// The pods that may be terminated for a signal, in order of eviction, without critical ones.
/// ([EV12])
///
/// Pods that are equal by all keys keep their order.
pub fn rank(signal: Signal, layout: DiskLayout, pods: &[PodUsage]) -> Vec<&PodUsage> {
    let mut ranked: Vec<_> = pods.iter().filter(|pod| !pod.critical).collect();
    match signal {
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => {
            ranked.sort_by(|a, b| by_memory(a, b));
        }
        Signal::PidAvailable => ranked.sort_by(|a, b| by_tasks(a, b)),
        _ => {
            let filesystem = Filesystem::of(signal);
            let used = |pod: &PodUsage| filesystem.used(pod, layout);
            ranked.sort_by(|a, b| by_disk(a, b, filesystem.inodes, &used));
        }
    }
    ranked
}

/// Whether the pod is known to exceed its request of the short resource. Inodes and tasks have no
/// request, so any use exceeds it.
pub fn exceeds_asks(signal: Signal, layout: DiskLayout, pod: &PodUsage) -> bool {
    match signal {
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => {
            pod.memory.is_some_and(|used| used > pod.memory_request)
        }
        Signal::PidAvailable => pod.tasks.is_some_and(|tasks| tasks > 0),
        _ => {
            let filesystem = Filesystem::of(signal);
            let asked = if filesystem.inodes { 0 } else { pod.storage_request };
            filesystem.used(pod, layout).is_some_and(|used| used > asked)
        }
    }
}

/// What the pod's end would free of a short disk, in bytes or inodes; `None` if that is not known,
/// or another resource is short.
pub fn frees(signal: Signal, layout: DiskLayout, pod: &PodUsage) -> Option<u64> {
    match signal {
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => None,
        _ => Filesystem::of(signal).used(pod, layout),
    }
}

/// Sorts pods above their request first, then by lower priority, then by larger excess. ([EV8])
fn by_memory(a: &PodUsage, b: &PodUsage) -> Ordering {
    let exceeds = |pod: &PodUsage| pod.memory.map(|used| used > pod.memory_request);
    let excess = |pod: &PodUsage| pod.memory.map(|used| distance(used, pod.memory_request));
    unknown_first(exceeds(a), exceeds(b), |a, b| b.cmp(&a))
        .then(a.priority.cmp(&b.priority))
        .then(unknown_first(excess(a), excess(b), |a, b| b.cmp(&a)))
}

/// Sorts by the same keys for a disk. Inodes have no request, so each one exceeds it. ([EV9])
///
/// DIVERGES(upstream): for inodes, upstream subtracts the request of ephemeral storage, in bytes,
/// from the inodes used. There the pod with the smallest request goes first; here the pod with the
/// most inodes does.
fn by_disk(
    a: &PodUsage,
    b: &PodUsage,
    inodes: bool,
    used: &dyn Fn(&PodUsage) -> Option<u64>,
) -> Ordering {
    let request = |pod: &PodUsage| if inodes { 0 } else { pod.storage_request };
    let exceeds = |pod: &PodUsage| used(pod).map(|used| used > request(pod));
    let excess = |pod: &PodUsage| used(pod).map(|used| distance(used, request(pod)));
    unknown_first(exceeds(a), exceeds(b), |a, b| b.cmp(&a))
        .then(a.priority.cmp(&b.priority))
        .then(unknown_first(excess(a), excess(b), |a, b| b.cmp(&a)))
}

/// Sorts by lower priority, then by more tasks. ([EV10])
fn by_tasks(a: &PodUsage, b: &PodUsage) -> Ordering {
    a.priority
        .cmp(&b.priority)
        .then(unknown_first(a.tasks, b.tasks, |a, b| Reverse(a).cmp(&Reverse(b))))
}

/// Sorts a pod without figures first, because it may be the worst. ([EV11])
fn unknown_first<T>(a: Option<T>, b: Option<T>, known: impl Fn(T, T) -> Ordering) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => known(a, b),
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

fn distance(used: u64, request: u64) -> i128 {
    i128::from(used) - i128::from(request)
}

/// The file system of a signal.
#[derive(Clone, Copy)]
struct Filesystem {
    signal: Signal,
    inodes: bool,
}

impl Filesystem {
    fn of(signal: Signal) -> Self {
        Self { signal, inodes: signal.resource() == "inodes" }
    }

    /// What the pod uses of it, in bytes or inodes.
    fn used(self, pod: &PodUsage, layout: DiskLayout) -> Option<u64> {
        let usage = if self.inodes { pod.inodes } else { pod.disk };
        usage.map(|usage| self.counted(usage, layout))
    }

    /// The part of a pod's usage on this file system. ([EV9])
    fn counted(self, usage: DiskUsage, layout: DiskLayout) -> u64 {
        use Signal::{ImagefsAvailable, ImagefsInodesFree, NodefsAvailable, NodefsInodesFree};
        let nodefs = matches!(self.signal, NodefsAvailable | NodefsInodesFree);
        let imagefs = matches!(self.signal, ImagefsAvailable | ImagefsInodesFree);
        match layout {
            DiskLayout::DedicatedImages if nodefs => usage.logs.saturating_add(usage.volumes),
            DiskLayout::DedicatedImages => usage.rootfs,
            DiskLayout::Split if imagefs => 0,
            DiskLayout::Single | DiskLayout::Split => usage.sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::PodUid;

    fn pod(name: &str) -> PodUsage {
        PodUsage {
            uid: PodUid(format!("uid-{name}")),
            name: name.into(),
            priority: 0,
            critical: false,
            memory: Some(0),
            memory_request: 0,
            memory_request_of_pod: false,
            tasks: Some(1),
            disk: Some(DiskUsage::default()),
            inodes: Some(DiskUsage::default()),
            storage_request: 0,
            containers: Vec::new(),
            empty_dirs: Vec::new(),
        }
    }

    fn memory(name: &str, priority: i32, used: impl Into<Option<u64>>, request: u64) -> PodUsage {
        PodUsage { priority, memory: used.into(), memory_request: request, ..pod(name) }
    }

    fn disk(name: &str, priority: i32, usage: (u64, u64, u64), request: u64) -> PodUsage {
        let (rootfs, logs, volumes) = usage;
        let usage = Some(DiskUsage { rootfs, logs, volumes });
        PodUsage { priority, disk: usage, inodes: usage, storage_request: request, ..pod(name) }
    }

    fn order(signal: &str, layout: DiskLayout, pods: &[PodUsage]) -> String {
        let ranked = rank(signal.parse().expect("must be a signal"), layout, pods);
        ranked.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn memory_goes_by_excess_over_the_request_and_priority_between() {
        // Excess, priority, size; without figures first. ([EV8], [EV11])
        let pods = [
            memory("within-large", 0, 900, 1_000),
            memory("within-small", 0, 10, 20),
            memory("above-high", 9, 900, 0),
            memory("above-little", 0, 101, 100),
            memory("above-much", 0, 300, 100),
            memory("exact", -5, 100, 100),
            memory("unknown", 9, None, 100),
            PodUsage { critical: true, ..memory("critical", 0, 9_999, 0) },
        ];
        let expected = "unknown above-much above-little above-high exact within-small within-large";
        for signal in ["memory.available", "allocatableMemory.available"] {
            assert_eq!(order(signal, DiskLayout::Single, &pods), expected);
        }
        assert_eq!(order("memory.available", DiskLayout::Single, &pods[7..]), "", "critical");
    }

    #[test]
    fn disk_counts_what_lies_on_the_file_system_that_is_short() {
        // The counted usage depends on the short file system. ([EV9])
        use DiskLayout::{DedicatedImages, Single, Split};
        let pods = [
            disk("layer", 0, (100, 0, 0), 0),
            disk("logs", 0, (0, 70, 0), 0),
            disk("volumes", 0, (0, 0, 90), 0),
            disk("asked", 0, (500, 500, 500), 5_000),
        ];
        let table = [
            ("nodefs.available", Single, "layer volumes logs asked"),
            ("imagefs.available", Single, "layer volumes logs asked"),
            ("nodefs.available", DedicatedImages, "volumes logs layer asked"),
            ("imagefs.available", DedicatedImages, "layer logs volumes asked"),
            ("containerfs.available", DedicatedImages, "layer logs volumes asked"),
            ("nodefs.available", Split, "layer volumes logs asked"),
            ("containerfs.available", Split, "layer volumes logs asked"),
            ("imagefs.available", Split, "layer logs volumes asked"),
            ("nodefs.inodesFree", Single, "asked layer volumes logs"),
        ];
        for (signal, layout, expected) in table {
            assert_eq!(order(signal, layout, &pods), expected, "{signal} {layout:?}");
        }
        let by_priority = [disk("high", 5, (900, 0, 0), 0), disk("low", 0, (1, 0, 0), 0)];
        assert_eq!(order("nodefs.available", Single, &by_priority), "low high");
        let unknown = PodUsage { disk: None, priority: 5, ..pod("unknown") };
        let pods = [disk("known", 0, (1, 0, 0), 0), unknown];
        assert_eq!(order("nodefs.available", Single, &pods), "unknown known", "no figures");
    }

    #[test]
    fn inodes_go_by_inodes_not_by_bytes_asked_for() {
        // Upstream subtracts requested bytes from inodes. ([EV9])
        let pods = [disk("few", 0, (10, 0, 0), 0), disk("many", 0, (99, 0, 0), 1 << 30)];
        assert_eq!(order("nodefs.inodesFree", DiskLayout::Single, &pods), "many few");
    }

    #[test]
    fn processes_go_by_priority_and_then_by_number() {
        // Priority, then tasks. ([EV10])
        let tasks = |name: &str, priority, tasks| PodUsage { priority, tasks, ..pod(name) };
        let pods = [
            tasks("few", 0, Some(2)),
            tasks("many", 0, Some(2_000)),
            tasks("low", -1, Some(1)),
            tasks("unknown", 0, None),
        ];
        assert_eq!(order("pid.available", DiskLayout::Single, &pods), "low unknown many few");
    }
}
