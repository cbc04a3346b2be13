//! Tests memory and tasks of pods as the sink reports them, and where the runtime keeps images.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_core::pressure::usage::DiskLayout;
use agent_core::protocol::pressure::{Figures, Resource, Sample};
use doubles::cri::{Call, CriDouble, Fault};
use epilogue_agent::clock::Clock;
use epilogue_agent::cri::{Runtime, Sockets};
use epilogue_agent::sink::measure::MeasureSink;
use epilogue_agent::source::pressure::KUBELET_DIR;
use epilogue_common::outcome::Failure;

use super::tree::{Driver, MIB, Tree, uid};

pub(crate) fn sink(tree: &Tree, runtime: Option<Runtime>) -> MeasureSink {
    MeasureSink::new(tree.host(), KUBELET_DIR, Clock::new(Arc::default()), runtime)
}

/// The runtime at its usual path on the host.
pub(crate) fn runtime(tree: &Tree) -> Runtime {
    Runtime::new(Sockets::new(None, tree.root()))
}

pub(crate) async fn figures(
    sink: &MeasureSink,
    of: Resource,
    pods: &[&str],
) -> Result<Figures, Failure> {
    let pods = pods.iter().map(|pod| uid(pod)).collect();
    sink.pods(of, pods).await
}

async fn take_sample(sink: &MeasureSink) -> Result<Box<Sample>, Failure> {
    sink.node().await
}

#[tokio::test]
async fn memory_is_working_set_and_swap_of_pods_and_named_containers() {
    for tree in [Tree::new(Driver::Systemd), Tree::new(Driver::Cgroupfs)] {
        tree.pod("a-1", 100 * MIB);
        tree.pod("b-2", 50 * MIB);
        tree.pod("not-asked", 10 * MIB);
        let cri = CriDouble::start(tree.root());
        cri.add_idle("a-1", "main", "a1c");
        cri.add_idle("b-2", "other", "b2c");
        let sink = sink(&tree, Some(runtime(&tree)));
        let figures = figures(&sink, Resource::Memory, &["a-1", "b-2", "gone"]).await;
        let figures = figures.expect("must be reported");
        assert_eq!(figures.len(), 2, "one that has no cgroup is missing: {figures:?}");
        let pod = &figures[&uid("a-1")];
        assert_eq!(pod.memory, Some(80 * MIB + MIB));
        let of: Vec<_> = pod.containers.iter().map(|one| (one.name.as_str(), one.memory)).collect();
        assert_eq!(of, [("main", Some(40 * MIB + MIB))], "the sandbox is none");
        assert_eq!((pod.tasks, pod.disk, pod.containers[0].rootfs), (None, None, None));
    }
}

#[tokio::test]
async fn the_runtime_is_asked_for_names_only_when_there_is_a_new_container() {
    let tree = Tree::new(Driver::Systemd);
    tree.pod("a", 100 * MIB);
    let cri = CriDouble::start(tree.root());
    cri.add_idle("a", "main", "ac");
    let sink = sink(&tree, Some(runtime(&tree)));
    for _ in 0..3 {
        let figures = figures(&sink, Resource::Memory, &["a"]).await.expect("must be reported");
        assert_eq!(figures[&uid("a")].containers[0].name, "main");
    }
    assert_eq!(cri.count(Call::ListContainers), 1);

    cri.add_idle("a", "second", "new");
    tree.usage(&tree.of_container("a", "new"), 5 * MIB);
    let both = figures(&sink, Resource::Memory, &["a"]).await.expect("must be reported");
    assert_eq!(both[&uid("a")].containers.len(), 2);
    assert_eq!(cri.count(Call::ListContainers), 2);

    // A runtime that hangs, as it may under pressure, delays the figures, which lack only the
    // names.
    cri.fault(Call::Any, "", Fault::Hang);
    tree.usage(&tree.of_container("a", "newer"), 5 * MIB);
    let known = figures(&sink, Resource::Memory, &["a"]).await.expect("must be reported");
    assert_eq!(known[&uid("a")].memory, Some(81 * MIB));
    assert_eq!(known[&uid("a")].containers.len(), 2, "the new one has no name");
}

#[tokio::test]
async fn without_a_runtime_pods_have_figures_and_containers_no_names() {
    let tree = Tree::new(Driver::Cgroupfs);
    tree.pod("a", 100 * MIB);
    let answered =
        figures(&sink(&tree, None), Resource::Memory, &["a"]).await.expect("must be reported");
    assert_eq!(
        (answered[&uid("a")].memory, answered[&uid("a")].containers.len()),
        (Some(81 * MIB), 0)
    );
}

#[tokio::test]
async fn what_cannot_be_read_of_a_pod_is_none_and_of_all_pods_a_failure() {
    let tree = Tree::new(Driver::Cgroupfs);
    for pod in ["a", "b"] {
        tree.pod(pod, 100 * MIB);
    }
    let cgroup = tree.cgroup(&tree.of_pod("a"));
    tree.spoil(&format!("{cgroup}/memory.current"));
    tree.write(&format!("{cgroup}/pids.current"), "max\n");
    let sink = sink(&tree, None);
    let memory = figures(&sink, Resource::Memory, &["a", "b"]).await.expect("must be reported");
    assert_eq!(memory[&uid("a")].memory, None);
    assert_eq!(memory[&uid("b")].memory, Some(81 * MIB));
    let tasks = figures(&sink, Resource::Pids, &["a", "b"]).await.expect("must be reported");
    assert_eq!((tasks[&uid("a")].tasks, tasks[&uid("b")].tasks), (None, Some(12)));

    std::fs::remove_dir_all(tree.path(&tree.cgroup(""))).expect("must be removable");
    for of in [Resource::Memory, Resource::Pids] {
        let error = figures(&sink, of, &["a"]).await.expect_err("must fail");
        assert_eq!(error.message, "there is no cgroup of all pods");
    }
}

#[tokio::test]
async fn tasks_are_counted_under_either_driver() {
    for tree in [Tree::new(Driver::Systemd), Tree::new(Driver::Cgroupfs)] {
        tree.pod("a-1", MIB);
        let answered = figures(&sink(&tree, None), Resource::Pids, &["a-1"]).await;
        assert_eq!(answered.expect("must be reported")[&uid("a-1")].tasks, Some(12));
    }
}

#[tokio::test]
async fn a_thousand_pods_are_measured_at_once() {
    let tree = Tree::new(Driver::Systemd);
    let names: Vec<_> = (0..1_000).map(|number| format!("p{number}")).collect();
    for name in &names {
        tree.pod(name, MIB);
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let begin = Instant::now();
    let answered =
        figures(&sink(&tree, None), Resource::Memory, &names).await.expect("must be reported");
    println!("memory of {} pods: {:?}", answered.len(), begin.elapsed());
    assert_eq!(answered.len(), 1_000);
    assert!(answered.values().all(|pod| pod.memory.is_some()));
}

#[tokio::test]
async fn the_runtime_says_where_its_images_lie_and_is_asked_once() {
    let tree = Tree::new(Driver::Systemd);
    let other = tempfile::tempdir_in("/dev/shm").expect("/dev/shm must be writable");
    std::os::unix::fs::symlink(other.path(), tree.path("images")).expect("must be creatable");
    let cri = CriDouble::start(tree.root());
    cri.set_images(&["/images", "/var/lib/containerd"]);
    let sink = sink(&tree, Some(runtime(&tree)));
    for _ in 0..3 {
        let sample = take_sample(&sink).await.expect("must be reported");
        assert_eq!(sample.layout, Some(DiskLayout::DedicatedImages));
    }
    assert_eq!(cri.count(Call::ImageFsInfo), 1);
}

#[tokio::test]
async fn a_runtime_that_does_not_say_where_its_images_lie_delays_one_sample_only() {
    let tree = Tree::new(Driver::Systemd);
    let cri = CriDouble::start(tree.root());
    cri.fault(Call::Any, "", Fault::Hang);
    let sink = sink(&tree, Some(runtime(&tree)));
    let begin = Instant::now();
    for _ in 0..10 {
        let sample = take_sample(&sink).await.expect("must be reported");
        // The default path exists.
        assert_eq!(sample.layout, Some(DiskLayout::Single));
    }
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(cri.count(Call::ImageFsInfo), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_hangs_holds_up_one_sample_and_the_next_one_says_so() {
    let tree = Tree::new(Driver::Systemd);
    let sink = sink(&tree, None);
    // A pipe blocks its reader for as long as a process could write to it.
    let path = tree.path("proc/loadavg");
    std::fs::remove_file(&path).expect("must be removable");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("must be creatable");
    let hangs = {
        let sink = sink.clone();
        tokio::spawn(async move { take_sample(&sink).await })
    };
    let begin = Instant::now();
    let writer = loop {
        // Fails while the pipe has no reader.
        let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
        match OpenOptions::new().write(true).custom_flags(flags).open(&path) {
            Ok(writer) => break writer,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(4), "no reader: {error}"),
        }
        tokio::task::yield_now().await;
    };
    let second = take_sample(&sink).await.expect_err("must not wait");
    assert_eq!(second.message, "the last sample has not finished: a file hangs");
    drop(writer);
    let first = hangs.await.expect("must not panic").expect("must end");
    assert_eq!(first.unreadable, ["/proc/loadavg has no number of tasks"]);
}
