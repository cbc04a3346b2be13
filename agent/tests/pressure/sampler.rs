//! Tests samples of a sound node, and of one that changes.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use agent_core::pressure::observe::Observation;
use agent_core::pressure::signal::Signal;
use agent_core::pressure::usage::DiskLayout;
use agent_core::protocol::pressure::Sample;
use epilogue_agent::cgroups::NO_V2;
use epilogue_agent::host::Host;
use epilogue_agent::source::pressure::{DiskSampler, FilesystemPaths, KUBELET_DIR, Sampler};

use super::tree::{Driver, MIB, Tree, psi, uid};

/// Number of samples for the cost of one.
const SAMPLES: u32 = 100;
const AT: Duration = Duration::from_secs(77);

/// Samples everything: the node and its disks.
pub(crate) struct Both {
    node: Sampler,
    disks: DiskSampler,
}

impl Both {
    pub(crate) fn of(host: &Host) -> Self {
        let disks = DiskSampler::new(host.clone(), KUBELET_DIR.to_owned());
        Self { node: Sampler::new(host.clone()), disks }
    }

    fn take_sample(&mut self, paths: &FilesystemPaths, at: Duration) -> Sample {
        let mut sample = self.node.take_sample(at);
        self.disks.take_sample(paths, at).add_to(&mut sample);
        sample
    }
}

pub(crate) fn sampler(tree: &Tree) -> Both {
    Both::of(&tree.host())
}

pub(crate) fn take_sample(sampler: &mut Both) -> Sample {
    sampler.take_sample(&FilesystemPaths::default(), AT)
}

fn found(sample: &Sample, signal: Signal) -> Option<Observation> {
    let measured = sample.signals.get(&signal)?;
    assert_eq!(measured.at, AT);
    Some(measured.observation)
}

fn of(available: u64, capacity: u64) -> Observation {
    Observation { available, capacity }
}

#[test]
fn a_node_is_measured_under_both_drivers() {
    let trees =
        [("systemd", Tree::new(Driver::Systemd)), ("cgroupfs", Tree::new(Driver::Cgroupfs))];
    for (name, tree) in trees {
        tree.pod("a-1", 100 * MIB);
        let sample = take_sample(&mut sampler(&tree));
        // 4000 MiB minus (1500 - 300). ([EV1])
        let memory = Some(of(2_800 * MIB, 4_000 * MIB));
        assert_eq!(found(&sample, Signal::MemoryAvailable), memory, "{name}");
        // 2000 MiB minus (1048576000 - 48576000) bytes. ([EV2])
        let allocatable = Some(of(1_097_152_000, 2_097_152_000));
        assert_eq!(found(&sample, Signal::AllocatableMemoryAvailable), allocatable, "{name}");
        assert_eq!(found(&sample, Signal::PidAvailable), Some(of(32_423, 32_768)), "{name}");
        assert_eq!(sample.swap, Some(of(MIB, 2 * MIB)), "{name}");
        assert_eq!(sample.layout, Some(DiskLayout::Single), "{name}");
        let node = found(&sample, Signal::NodefsAvailable).expect("must be known");
        assert!(node.available > 0 && node.available <= node.capacity, "{name}: {node:?}");
        assert_eq!(found(&sample, Signal::ImagefsAvailable).map(|fs| fs.capacity), {
            Some(node.capacity)
        });
        assert!(sample.io.is_some_and(|io| io.some.total == 70 && io.full.total == 7), "{name}");
        assert!(sample.stall.is_some(), "{name}");
        assert_eq!(sample.unreadable, [""; 0], "{name}");
    }
}

#[test]
fn without_cgroup_v2_memory_is_not_measured_and_the_rest_is() {
    let tree = Tree::new(Driver::Systemd);
    tree.pod("a-1", MIB);
    std::fs::remove_file(tree.path("sys/fs/cgroup/cgroup.controllers")).expect("must be removable");
    let sample = take_sample(&mut sampler(&tree));
    assert_eq!(sample.unreadable, [NO_V2]);
    assert_eq!(found(&sample, Signal::MemoryAvailable), None);
    assert_eq!(found(&sample, Signal::AllocatableMemoryAvailable), None);
    assert!(sample.stall.is_none());
    assert!(found(&sample, Signal::PidAvailable).is_some());
    assert!(found(&sample, Signal::NodefsAvailable).is_some());
    assert!(sample.io.is_some() && sample.swap.is_some());
}

#[test]
fn what_each_pod_waits_for_is_reported_with_its_limit_once_it_has_waited() {
    let tree = Tree::new(Driver::Systemd);
    for name in ["a", "b"] {
        tree.pod(name, 100 * MIB);
    }
    let container = tree.of_container("a", "ac");
    tree.write_in(&container, "memory.max", &format!("{}\n", 50 * MIB));
    let mut sampler = sampler(&tree);
    let first = take_sample(&mut sampler).stall.expect("must be known");
    assert_eq!((first.at, first.pods.len()), (AT, 2));
    assert!(first.pods.iter().all(|pod| pod.limit.is_none()));

    let wait = |total| {
        tree.write_in("", "memory.pressure", &psi(total, total));
        tree.write_in(&tree.of_pod("a"), "memory.pressure", &psi(total, total));
    };
    wait(9);
    for round in 0..3 {
        let stall = take_sample(&mut sampler).stall.expect("must be known");
        let pod = stall.pods.iter().find(|pod| pod.uid == uid("a")).expect("must be there");
        assert_eq!(pod.psi.full.total, 9, "sample {round}");
        assert_eq!(pod.limit, Some((50 * MIB, 50 * MIB)), "sample {round}: its container's");
        assert_eq!(stall.all_pods.full.total, 9);
        let other = stall.pods.iter().find(|pod| pod.uid == uid("b")).expect("must be there");
        assert_eq!(other.limit, None, "it has not waited");
    }
    // Of two limits the closer one counts, also if it only throttles.
    tree.write_in(&tree.of_pod("a"), "memory.max", &format!("{}\n", 900 * MIB));
    tree.write_in(&tree.of_pod("a"), "memory.high", &format!("{}\n", 80 * MIB));
    wait(10);
    let stall = take_sample(&mut sampler).stall.expect("must be known");
    let pod = stall.pods.iter().find(|pod| pod.uid == uid("a")).expect("must be there");
    assert_eq!(pod.limit, Some((100 * MIB, 80 * MIB)));
}

#[test]
fn what_has_no_limit_has_no_allocatable_memory() {
    let tree = Tree::new(Driver::Systemd);
    tree.write_in("", "memory.max", "max\n");
    let sample = take_sample(&mut sampler(&tree));
    assert_eq!(found(&sample, Signal::AllocatableMemoryAvailable), None);
    assert_eq!(sample.unreadable, [""; 0], "this is not a failure");
}

#[test]
fn the_layout_is_determined_by_the_devices_once() {
    let other = tempfile::tempdir_in("/dev/shm").expect("/dev/shm must be writable");
    let tree = Tree::new(Driver::Systemd);
    symlink(other.path(), tree.path("images")).expect("must be creatable");
    let at = |images: &str, containers: Option<&str>| FilesystemPaths {
        images: Some(images.into()),
        containers: containers.map(Into::into),
    };
    let layout = |paths: &FilesystemPaths| sampler(&tree).take_sample(paths, AT).layout;
    let home = "/var/lib/containerd";
    assert_eq!(layout(&at("/images", None)), Some(DiskLayout::DedicatedImages));
    assert_eq!(layout(&at("/images", Some("/images"))), Some(DiskLayout::DedicatedImages));
    assert_eq!(layout(&at("/images", Some(home))), Some(DiskLayout::Split));
    assert_eq!(layout(&at(home, Some(home))), Some(DiskLayout::Single));

    let mut sampler = sampler(&tree);
    let sample = sampler.take_sample(&at("/elsewhere", None), AT);
    assert_eq!((sample.layout, found(&sample, Signal::ImagefsAvailable)), (None, None));
    assert!(found(&sample, Signal::NodefsAvailable).is_some(), "the node's own is known");
    let phrase = &sample.unreadable[0];
    assert!(phrase.starts_with("imagefs: ") && phrase.contains("/elsewhere"), "{phrase}");
    assert_eq!(sampler.take_sample(&at(home, None), AT).layout, Some(DiskLayout::Single));
    let kept = sampler.take_sample(&at("/images", None), AT).layout;
    assert_eq!(kept, Some(DiskLayout::Single), "the layout is determined once");
}

#[test]
fn a_runtime_s_place_that_is_empty_is_only_mounted() {
    let tree = Tree::new(Driver::Systemd);
    let empty = tree.path("var/lib/containerd");
    std::fs::remove_dir_all(&empty).expect("must be removable");
    std::fs::create_dir(&empty).expect("must be creatable");
    let sample = take_sample(&mut sampler(&tree));
    assert_eq!(sample.layout, None);
    assert_eq!(sample.unreadable, ["imagefs: no directory of a container runtime is known"]);
    let other = tempfile::tempdir_in("/dev/shm").expect("/dev/shm must be writable");
    std::fs::write(other.path().join("layers"), "").expect("must be writable");
    std::fs::create_dir(tree.path("var/lib/containers")).expect("must be creatable");
    symlink(other.path(), tree.path("var/lib/containers/storage")).expect("must be creatable");
    assert_eq!(take_sample(&mut sampler(&tree)).layout, Some(DiskLayout::DedicatedImages));
}

#[test]
fn a_cgroup_of_all_pods_that_comes_and_goes_is_found_again() {
    let tree = Tree::new(Driver::Systemd);
    tree.pod("a", MIB);
    let mut sampler = sampler(&tree);
    assert_eq!(take_sample(&mut sampler).stall.expect("must be known").pods.len(), 1);
    std::fs::remove_dir_all(tree.path("sys/fs/cgroup/kubepods.slice")).expect("must be removable");
    let gone = take_sample(&mut sampler);
    assert!(gone.stall.is_none());
    assert_eq!(gone.unreadable, ["no cgroup of all pods (kubepods) was found"]);
    assert!(found(&gone, Signal::MemoryAvailable).is_some(), "the node's memory is known");
    let below = "sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice";
    tree.write(&format!("{below}/memory.pressure"), &psi(1, 1));
    tree.write(&format!("{below}/kubelet-kubepods-podx_1.slice/memory.pressure"), &psi(1, 1));
    let stall = take_sample(&mut sampler).stall.expect("must be known");
    assert_eq!(stall.pods.iter().map(|pod| pod.uid.0.as_str()).collect::<Vec<_>>(), ["x-1"]);
}

#[test]
fn pods_that_have_come_and_gone_are_noticed_within_a_second() {
    let tree = Tree::new(Driver::Systemd);
    for pod in ["stays", "goes"] {
        tree.pod(pod, MIB);
    }
    let mut sampler = sampler(&tree);
    let mut round = 0;
    let mut pods_at = |at| {
        round += 1;
        tree.write_in("", "memory.pressure", &psi(round, round));
        let sample = sampler.take_sample(&FilesystemPaths::default(), at);
        let pods = sample.stall.expect("must be known").pods;
        let mut pods: Vec<_> = pods.into_iter().map(|pod| pod.uid.0).collect();
        pods.sort();
        pods
    };
    assert_eq!(pods_at(AT), ["goes", "stays"]);
    tree.remove_pod("goes");
    tree.pod("comes", MIB);
    assert_eq!(pods_at(AT + Duration::from_secs(1)), ["comes", "stays"]);
}

#[test]
fn thousands_of_pods_are_checked_within_bounds() {
    let tree = Tree::new(Driver::Cgroupfs);
    for number in 0..3_000 {
        tree.write_in(&tree.of_pod(&format!("p{number}")), "memory.pressure", &psi(0, 0));
    }
    let mut sampler = sampler(&tree);
    let sample = take_sample(&mut sampler);
    assert_eq!(sample.stall.expect("must be known").pods.len(), 256);
    assert_eq!(sample.unreadable, ["what 2744 of the pods wait for: too many"]);
    // While nothing waits, a sample costs the same however many pods there are.
    let begin = Instant::now();
    for _ in 0..SAMPLES {
        assert_eq!(take_sample(&mut sampler).stall.expect("must be known").pods.len(), 256);
    }
    let cost = begin.elapsed() / SAMPLES;
    println!("one sample of a node on which nothing waits: {cost:?}");
    assert!(cost < Duration::from_millis(50), "{cost:?}");
    let begin = Instant::now();
    for round in 1..=u64::from(SAMPLES) {
        tree.write_in("", "memory.pressure", &psi(round, round));
        assert_eq!(take_sample(&mut sampler).stall.expect("must be known").pods.len(), 256);
    }
    let cost = begin.elapsed() / SAMPLES;
    println!("one sample of a node on which 256 pods may wait: {cost:?}");
    assert!(cost < Duration::from_millis(500), "{cost:?}");
}
