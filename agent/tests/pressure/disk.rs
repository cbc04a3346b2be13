//! Tests pods' disk usage: layers as the runtime reports them, logs and volumes by walking them.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent_core::protocol::pressure::{PodFigures, Resource, Sample};
use doubles::cri::{Call, CriDouble, Fault, Layer};
use epilogue_agent::clock::Clock;
use epilogue_agent::sink::measure::MeasureSink;
use epilogue_agent::source::pressure::{DiskSampler, FilesystemPaths};
use tokio::sync::Notify;

use super::pods::{figures, runtime, sink};
use super::tree::{Driver, MIB, Tree, uid, write};

const DIR: &str = "var/lib/kubelet/pods";

/// The size that the kernel reports for a file or directory.
fn allocated(path: &Path) -> u64 {
    fs::symlink_metadata(path).expect("must be there").blocks() * 512
}

fn volume(tree: &Tree, pod: &str, name: &str) -> std::path::PathBuf {
    let path = tree.path(&format!("{DIR}/{pod}/volumes/kubernetes.io~empty-dir/{name}"));
    fs::create_dir_all(&path).expect("must be creatable");
    path
}

fn fill(path: &Path, bytes: u64) {
    write(path, &vec![b'x'; usize::try_from(bytes).expect("must fit")]);
}

/// Adds a container, by its pod and name, with these figures of its writable layer.
fn measured(cri: &CriDouble, (uid, name): (&str, &str), bytes: Option<u64>, inodes: Option<u64>) {
    cri.add_idle(uid, name, "x");
    cri.set_layer(uid, name, Layer { bytes, inodes });
}

async fn without_runtime(tree: &Tree, pod: &str) -> PodFigures {
    let figures = figures(&sink(tree, None), Resource::Disk, &[pod]).await;
    figures.expect("must be reported").remove(&uid(pod)).expect("must be there")
}

async fn bytes_of_volume(tree: &Tree) -> u64 {
    without_runtime(tree, "a").await.empty_dirs[0].1
}

#[tokio::test]
async fn layers_logs_and_volumes_come_together() {
    let tree = Tree::new(Driver::Systemd);
    let scratch = volume(&tree, "a", "scratch");
    fill(&scratch.join("deep/file"), 3 * MIB);
    let map = tree.path(&format!("{DIR}/a/volumes/kubernetes.io~configmap/map/key"));
    fill(&map, 9_000);
    let secret = tree.path(&format!("{DIR}/a/volumes/kubernetes.io~secret/s/key"));
    fill(&secret, MIB);
    fill(&tree.path("var/log/pods/jobs_a-0_a/main/0.log"), 2 * MIB);
    fill(&tree.path("var/log/pods/jobs_a-0_a/side/0.log"), MIB);
    fill(&tree.path("var/log/pods/jobs_other_b/main/0.log"), MIB);
    let cri = CriDouble::start(tree.root());
    measured(&cri, ("a", "main"), Some(10 * MIB), Some(7));
    measured(&cri, ("a", "side"), None, None);
    measured(&cri, ("b", "main"), Some(MIB), Some(1));
    let sink = sink(&tree, Some(runtime(&tree)));
    let figures = figures(&sink, Resource::Disk, &["a"]).await.expect("must be reported");
    assert_eq!(figures.len(), 1);
    let pod = &figures[&uid("a")];
    let in_scratch = allocated(&scratch)
        + allocated(&scratch.join("deep"))
        + allocated(&scratch.join("deep/file"));
    assert_eq!(pod.empty_dirs, [("scratch".to_owned(), in_scratch)]);
    let in_map = allocated(&map) + allocated(map.parent().expect("must have one"));
    let disk = pod.disk.expect("must be known");
    assert_eq!(disk.rootfs, 10 * MIB);
    assert_eq!(disk.volumes, in_scratch + in_map, "secrets lie in memory");
    let dir = tree.path("var/log/pods/jobs_a-0_a");
    let of_logs =
        |name: &str| allocated(&dir.join(name)) + allocated(&dir.join(name).join("0.log"));
    assert_eq!(disk.logs, of_logs("main") + of_logs("side"));
    let inodes = pod.inodes.expect("must be known");
    assert_eq!((inodes.rootfs, inodes.logs, inodes.volumes), (7, 4, 5));
    let named: Vec<_> = pod
        .containers
        .iter()
        .map(|one| (one.name.as_str(), one.rootfs, one.logs, one.memory))
        .collect();
    let expected = [
        ("main", Some(10 * MIB), Some(of_logs("main")), None),
        ("side", None, Some(of_logs("side")), None),
    ];
    assert_eq!(named, expected);
}

#[tokio::test]
async fn without_the_runtime_s_figures_the_sums_are_not_known_but_logs_and_volumes_are() {
    let tree = Tree::new(Driver::Systemd);
    fill(&volume(&tree, "a", "v").join("f"), MIB);
    fill(&tree.path("var/log/pods/n_p_a/main/0.log"), MIB);
    let pod = without_runtime(&tree, "a").await;
    assert_eq!((pod.disk, pod.inodes), (None, None));
    assert!(pod.empty_dirs[0].1 >= MIB && pod.containers[0].logs >= Some(MIB));
    let cri = CriDouble::start(tree.root());
    cri.fault(Call::Any, "", Fault::Hang);
    let silent = figures(&sink(&tree, Some(runtime(&tree))), Resource::Disk, &["a"]).await;
    assert_eq!(silent.expect("must be reported")[&uid("a")], pod);
}

#[tokio::test]
async fn what_a_busy_runtime_says_late_counts_for_the_next_measurement_and_holds_for_a_while() {
    let tree = Tree::new(Driver::Systemd);
    let cri = CriDouble::start(tree.root());
    measured(&cri, ("a", "main"), Some(MIB), Some(1));
    let late = Arc::new(Notify::new());
    cri.fault(Call::ListContainerStats, "", Fault::Until(Arc::clone(&late)));
    let sink = sink(&tree, Some(runtime(&tree)));
    let disk = async || {
        let figures = figures(&sink, Resource::Disk, &["a"]).await.expect("must be reported");
        figures[&uid("a")].disk.map(|disk| disk.rootfs)
    };
    assert_eq!(disk().await, None);
    assert_eq!(disk().await, None);
    late.notify_one();
    assert_eq!(disk().await, Some(MIB));
    let asked = cri.count(Call::ListContainerStats);
    assert_eq!(asked, 1, "a question that is open is not asked again");
    assert_eq!(disk().await, Some(MIB), "the last word holds while the runtime is silent");
    let later = figures(&sink, Resource::Disk, &["a", "later"]).await.expect("must be reported");
    assert!(later[&uid("a")].disk.is_some());
    assert_eq!(later[&uid("later")].disk, None, "it came after the last word");
}

#[tokio::test]
async fn a_file_counts_once_and_by_what_is_allocated() {
    let tree = Tree::new(Driver::Systemd);
    let dir = volume(&tree, "a", "v");
    fill(&dir.join("f"), 4 * MIB);
    let before = bytes_of_volume(&tree).await;
    assert!((4 * MIB..5 * MIB).contains(&before), "{before}");
    for name in ["again", "and-again"] {
        fs::hard_link(dir.join("f"), dir.join(name)).expect("must be linkable");
    }
    let sparse = fs::File::create(dir.join("sparse")).expect("must be creatable");
    sparse.set_len(1 << 40).expect("must be sparse");
    let after = bytes_of_volume(&tree).await;
    assert!(after < before + MIB, "{before} {after}");
}

#[tokio::test]
async fn links_lead_a_walk_nowhere() {
    let tree = Tree::new(Driver::Systemd);
    let outside = tempfile::tempdir().expect("must be creatable");
    fill(&outside.path().join("big"), 8 * MIB);
    let dir = volume(&tree, "a", "v");
    symlink(outside.path(), dir.join("dir")).expect("must be creatable");
    symlink(outside.path().join("big"), dir.join("file")).expect("must be creatable");
    symlink(&dir, dir.join("loop")).expect("must be creatable");
    symlink("nowhere", dir.join("broken")).expect("must be creatable");
    symlink("/", dir.join("root")).expect("must be creatable");
    let found = bytes_of_volume(&tree).await;
    assert!(found < MIB, "{found}");
    // Nor does a volume, a pod, or a log directory that is itself a link.
    let volumes = dir.parent().expect("must have one");
    symlink(outside.path(), volumes.join("link")).expect("must be creatable");
    symlink(outside.path(), tree.path("var/log/pods/n_p_a")).expect("must be creatable");
    let pod = without_runtime(&tree, "a").await;
    assert_eq!(pod.empty_dirs.len(), 1, "{pod:?}");
    assert!(pod.containers.is_empty(), "{pod:?}");
}

#[tokio::test]
async fn a_volume_in_memory_is_none_on_disk() {
    let tree = Tree::new(Driver::Systemd);
    fill(&volume(&tree, "a", "disk").join("f"), MIB);
    let memory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm must be writable");
    fill(&memory.path().join("shm/f"), MIB);
    // Stands for a mount: the directory of all volumes is on another device than the pod.
    let volumes = tree.path(&format!("{DIR}/b/volumes"));
    fs::create_dir_all(&volumes).expect("must be creatable");
    symlink(memory.path(), volumes.join("kubernetes.io~empty-dir")).expect("must be creatable");
    assert_eq!(without_runtime(&tree, "a").await.empty_dirs.len(), 1);
    assert_eq!(without_runtime(&tree, "b").await.empty_dirs.len(), 0);
}

#[tokio::test]
async fn names_that_are_paths_belong_to_no_pod() {
    let tree = Tree::new(Driver::Systemd);
    let pods = ["..", ".", "", "a/../../..", "/etc", "a\0b"];
    let answered =
        figures(&sink(&tree, None), Resource::Disk, &pods).await.expect("must be reported");
    assert!(answered.is_empty(), "{answered:?}");
}

#[tokio::test]
async fn a_tree_that_is_too_deep_or_too_wide_counts_with_what_there_was_time_for() {
    let tree = Tree::new(Driver::Systemd);
    let mut deep = volume(&tree, "a", "v");
    for _ in 0..200 {
        deep.push("d");
    }
    fill(&deep.join("bottom"), MIB);
    let found = bytes_of_volume(&tree).await;
    assert!(found < MIB, "{found}");

    let wide = volume(&tree, "b", "v");
    for number in 0..30_000 {
        fs::File::create(wide.join(format!("f{number}"))).expect("must be creatable");
    }
    let begin = Instant::now();
    let pod = without_runtime(&tree, "b").await;
    let took = begin.elapsed();
    println!("a walk of 30,000 files: {took:?}");
    assert!(pod.empty_dirs[0].1 > 0);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn many_pods_are_measured_within_the_time_for_all() {
    let tree = Tree::new(Driver::Systemd);
    let names: Vec<_> = (0..2_000).map(|number| format!("p{number}")).collect();
    for name in &names {
        fill(&volume(&tree, name, "v").join("f"), 5_000);
    }
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let sink = sink(&tree, None);
    let begin = Instant::now();
    let answered = figures(&sink, Resource::Disk, &names).await.expect("must be reported");
    println!("disks of {} pods: {:?}", answered.len(), begin.elapsed());
    assert!(begin.elapsed() < Duration::from_secs(4));
    // Later measurements add what one had no time for.
    let mut known = answered.len();
    for _ in 0..20 {
        if known == names.len() {
            return;
        }
        known = figures(&sink, Resource::Disk, &names).await.expect("must be reported").len();
    }
    panic!("{known} of {} are known after 20 measurements", names.len());
}

#[tokio::test]
async fn a_volume_that_changes_while_it_is_walked_does_no_harm() {
    let tree = Tree::new(Driver::Systemd);
    let dir = volume(&tree, "a", "v");
    let over = Arc::new(AtomicBool::new(false));
    let (churn, ended) = (dir.clone(), Arc::clone(&over));
    let thread = std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            // A directory that turns into a link to everything, and back.
            let path = churn.join("d");
            fs::create_dir_all(path.join("e/f")).expect("must be creatable");
            fs::remove_dir_all(&path).expect("must be removable");
            symlink("/", &path).expect("must be creatable");
            fs::remove_file(&path).expect("must be removable");
        }
    });
    for _ in 0..200 {
        let found = bytes_of_volume(&tree).await;
        assert!(found < MIB, "{found}");
    }
    over.store(true, Ordering::Relaxed);
    thread.join().expect("must not panic");
}

#[tokio::test]
async fn kubelet_s_own_directory_may_be_another() {
    let tree = Tree::new(Driver::Systemd);
    let volume = tree.path("var/lib/k0s/kubelet/pods/a/volumes/kubernetes.io~empty-dir/scratch");
    fill(&volume.join("file"), MIB);
    let dir = "/var/lib/k0s/kubelet";
    let sink = MeasureSink::new(tree.host(), dir, Clock::new(Arc::default()), None);
    let figures = figures(&sink, Resource::Disk, &["a"]).await.expect("must be reported");
    assert!(figures[&uid("a")].empty_dirs[0].1 >= MIB, "{figures:?}");
    // The node's file system is that of the directory: if the directory is missing, nothing is
    // reported of it.
    let unreadable = |dir: &str| {
        let mut sampler = DiskSampler::new(tree.host(), dir.to_owned());
        let mut sample = Sample::default();
        sampler.take_sample(&FilesystemPaths::default(), Duration::ZERO).add_to(&mut sample);
        sample.unreadable.iter().any(|what| what.contains(dir))
    };
    assert!(unreadable("/var/lib/microk8s/kubelet") && !unreadable(dir));
}
