//! Tests counters that change, and cgroups that appear and disappear.

use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use agent_core::protocol::pressure::{OomConstraint, OomKill, OomWitness};

use super::node::{Listening, Node};
use super::percentiles;

const MI: u64 = 1 << 20;
/// The limit of one report in a hundred, on a machine that others use too.
const SLOWEST: Duration = Duration::from_secs(2);

fn said(kill: &OomKill) -> (&str, Option<&str>, OomConstraint, Option<u64>, Option<bool>) {
    assert_eq!((kill.witness, &kill.process), (OomWitness::MemoryEvents, &None));
    let container = kill.container_id.as_deref();
    (&kill.pod.0, container, kill.constraint, kill.limit, kill.container_lives)
}

#[tokio::test]
async fn the_level_whose_limit_was_reached_is_what_was_short() {
    use OomConstraint::{ContainerLimit, Node as OfNode, PodLimit};
    let node = Node::new();
    let mut pod = node.pod("uid-1");
    pod.limit(128 * MI);
    let containers: Vec<_> = ["a", "b", "c", "d"].map(|id| pod.container(id)).into();
    let mut listening = node.listen().await;
    let [mut a, mut b, mut c, mut d] = containers.try_into().expect("must be four");
    for container in [&a, &b, &c, &d] {
        container.limit(64 * MI);
        container.empty();
    }

    a.count(|a| (a.oom, a.own_oom, a.kills) = (1, 1, 1));
    pod.count(|pod| (pod.oom, pod.kills) = (1, 1));
    let kill = listening.next().await;
    assert_eq!(said(&kill), ("uid-1", Some("a"), ContainerLimit, Some(64 * MI), Some(false)));

    // The container's counters do not show a limit within it.
    b.count(|b| (b.oom, b.kills) = (1, 1));
    pod.count(|pod| (pod.oom, pod.kills) = (2, 2));
    let kill = listening.next().await;
    assert_eq!(said(&kill), ("uid-1", Some("b"), ContainerLimit, None, Some(false)));

    // Longer than the kernel takes between a shortage and the kill.
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    c.count(|c| c.kills = 1);
    pod.count(|pod| pod.kills = 3);
    let kill = listening.next().await;
    assert_eq!(said(&kill), ("uid-1", Some("c"), OfNode, None, Some(false)));

    // The kernel counts the shortage before it kills.
    pod.count(|pod| (pod.oom, pod.own_oom) = (3, 1));
    d.count(|d| d.kills = 1);
    pod.count(|pod| pod.kills = 4);
    let kill = listening.next().await;
    assert_eq!(said(&kill), ("uid-1", Some("d"), PodLimit, Some(128 * MI), Some(false)));
    listening.silence().await;
    listening.end().await;
}

#[tokio::test]
async fn a_kill_is_reported_within_a_tenth_of_a_second() {
    let node = Node::new();
    let pod = node.pod("uid-1");
    let mut containers: Vec<_> = (0..100).map(|n| pod.container(&format!("c{n}"))).collect();
    let mut listening = node.listen().await;
    let mut times = Vec::new();
    for container in &mut containers {
        container.empty();
        listening.silence().await;
        let begun = Instant::now();
        container.count(|counted| (counted.oom, counted.own_oom, counted.kills) = (1, 1, 1));
        listening.next().await;
        times.push(begun.elapsed());
    }
    percentiles::hold("a kill is reported", times, Duration::from_millis(100), SLOWEST);
}

#[tokio::test]
async fn a_container_that_goes_on_lives_on() {
    let node = Node::new();
    let pod = node.pod("uid-1");
    let mut container = pod.container("a");
    let mut listening = node.listen().await;
    for number in 1..4 {
        container.count(|counted| (counted.oom, counted.own_oom, counted.kills) = (1, 1, number));
    }
    let kill = listening.next().await;
    assert_eq!(kill.container_lives, Some(true));
    listening.silence().await;

    // The source reports its end at once, also if that comes a moment after the kill.
    container.count(|counted| counted.kills += 1);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let ended = Instant::now();
    container.empty();
    let kill = listening.next().await;
    assert_eq!(kill.container_lives, Some(false));
    assert!(ended.elapsed() < Duration::from_secs(1), "{:?}", ended.elapsed());
}

#[tokio::test]
async fn pods_and_containers_that_come_later_are_watched_from_their_first_count() {
    let node = Node::new();
    let mut listening = node.listen().await;
    // Killed before the source can have read anything.
    let mut first = node.pod("uid-1").container("a");
    first.empty();
    first.count(|counted| (counted.oom, counted.own_oom, counted.kills) = (1, 1, 1));
    let kill = listening.next().await;
    assert_eq!((kill.pod.0.as_str(), kill.container_id.as_deref()), ("uid-1", Some("a")));
    assert_eq!(kill.constraint, OomConstraint::ContainerLimit);

    // A class that did not exist before, and a pod without a class.
    node.write("sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/cgroup.procs", "");
    let path = "sys/fs/cgroup/kubepods.slice/kubepods-besteffort.slice/\
                kubepods-besteffort-poduid_2.slice/crio-b.scope";
    node.write(&format!("{path}/memory.events"), "oom 0\noom_kill 2\n");
    let kill = listening.next().await;
    assert_eq!((kill.pod.0.as_str(), kill.container_id.as_deref()), ("uid-2", Some("b")));
    // No `cgroup.events` and no list of processes: nothing is known.
    assert_eq!(kill.container_lives, None);
    let path = "sys/fs/cgroup/kubepods.slice/kubepods-poduid_3.slice/crio-c.scope";
    node.write(&format!("{path}/memory.events"), "oom 0\noom_kill 1\n");
    assert_eq!(listening.next().await.pod.0, "uid-3");
    listening.end().await;
}

#[tokio::test]
async fn what_was_counted_before_our_time_is_not_reported() {
    let node = Node::new();
    let pod = node.pod("uid-1");
    let mut container = pod.container("a");
    container.count(|counted| (counted.oom, counted.own_oom, counted.kills) = (5, 5, 5));
    container.empty();
    let mut listening = node.listen().await;
    listening.silence().await;
    // Nor does it explain the next kill.
    container.count(|counted| counted.kills += 1);
    assert_eq!(listening.next().await.constraint, OomConstraint::Node);
}

#[tokio::test]
async fn a_container_that_vanished_is_known_by_what_its_pod_counts() {
    let node = Node::new();
    let mut pod = node.pod("uid-1");
    let container = pod.container("a");
    let other = pod.container("b");
    let mut listening = node.listen().await;
    container.remove();
    pod.count(|pod| (pod.oom, pod.kills) = (1, 1));
    let kill = listening.next().await;
    assert_eq!(said(&kill), ("uid-1", Some("a"), OomConstraint::ContainerLimit, None, Some(false)));

    other.remove();
    pod.count(|pod| (pod.oom, pod.own_oom, pod.kills) = (2, 1, 2));
    let kill = listening.next().await;
    assert_eq!(
        (kill.container_id.as_deref(), kill.constraint),
        (Some("b"), OomConstraint::PodLimit)
    );
    listening.silence().await;
    // A pod that is removed as a whole causes no report, and no harm.
    pod.remove();
    listening.silence().await;
    let mut next = node.pod("uid-2").container("c");
    next.empty();
    next.count(|counted| counted.kills = 1);
    assert_eq!(listening.next().await.pod.0, "uid-2");
    listening.end().await;
}

#[tokio::test]
async fn more_changes_than_the_kernel_remembers_lose_no_kill() {
    let node = Node::new();
    let mut noisy = [node.pod("uid-1").container("a"), node.pod("uid-2").container("b")];
    let mut listening = node.listen().await;
    // Writes without a break: nothing is read meanwhile. Changes of one file in a row count as one.
    let files = [0, 1].map(|number: usize| {
        let path = noisy[number].path.join("memory.events");
        std::fs::OpenOptions::new().write(true).open(path).expect("must be there")
    });
    for number in 0..20_000 {
        files[number % 2].write_at(b"low 0", 0).expect("must be writable");
    }
    let mut late = node.pod("uid-3").container("c");
    late.empty();
    late.count(|counted| counted.kills = 1);
    noisy[1].empty();
    noisy[1].count(|counted| counted.kills = 1);
    let mut pods = vec![listening.next().await.pod.0, listening.next().await.pod.0];
    pods.sort();
    assert_eq!(pods, ["uid-2", "uid-3"]);
}

#[tokio::test]
async fn a_host_without_pods_or_with_nonsense_is_watched_in_silence() {
    let empty = tempfile::tempdir().expect("must be creatable");
    let host = epilogue_agent::host::Host::new(empty.path().to_owned());
    let mut listening = Listening::start(host);
    listening.silence().await;
    listening.end().await;

    let node = Node::new();
    let pod = node.pod("uid-1");
    let container = pod.container("a");
    let mut listening = node.listen().await;
    for text in ["", "\0\u{fffd}", "oom_kill 99999999999999999999999", "oom_kill", "oom_kill -1"] {
        std::fs::write(container.path.join("memory.events"), text).expect("must be writable");
        listening.silence().await;
    }
    std::fs::remove_file(container.path.join("memory.events")).expect("must be there");
    std::fs::create_dir(container.path.join("memory.events")).expect("must be creatable");
    listening.silence().await;
    listening.end().await;
}
