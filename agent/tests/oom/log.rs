//! Tests the kernel's log, through a pipe.

use std::fs::{File, OpenOptions};
use std::io::Write as _;

use agent_core::protocol::pressure::{OomConstraint, OomWitness};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::node::{Listening, Node};

const MI: u64 = 1 << 20;

/// A host whose kernel's log is a pipe.
fn with_log(node: &Node) -> File {
    let dir = node.root.path().join("dev");
    std::fs::create_dir_all(&dir).expect("must be creatable");
    mkfifo(&dir.join("kmsg"), Mode::S_IRUSR | Mode::S_IWUSR).expect("must be creatable");
    let open = OpenOptions::new().read(true).write(true).open(dir.join("kmsg"));
    open.expect("the pipe must open")
}

fn line(constraint: &str, task: &str, name: &str) -> String {
    format!(
        "6,100,200,-;oom-kill:constraint={constraint},task_memcg={task},task={name},pid=77,uid=0\n"
    )
}

const POD: &str = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poduid_1.slice";

#[tokio::test]
async fn the_log_names_process_and_limit_and_the_cgroup_says_what_became_of_it() {
    let node = Node::new();
    let mut log = with_log(&node);
    let pod = node.pod("uid-1");
    pod.limit(128 * MI);
    let container = pod.container("a");
    container.limit(64 * MI);
    container.empty();
    let mut listening = node.listen().await;

    let task = format!("{POD}/cri-containerd-a.scope");
    let table = [
        (
            format!("CONSTRAINT_MEMCG,oom_memcg={task}"),
            OomConstraint::ContainerLimit,
            Some(64 * MI),
        ),
        (format!("CONSTRAINT_MEMCG,oom_memcg={POD}"), OomConstraint::PodLimit, Some(128 * MI)),
        ("CONSTRAINT_NONE,global_oom".to_owned(), OomConstraint::Node, None),
    ];
    for (constraint, expected, limit) in table {
        log.write_all(line(&constraint, &task, "python").as_bytes()).expect("must be writable");
        let kill = listening.next().await;
        assert_eq!((kill.constraint, kill.limit), (expected, limit));
        assert_eq!(kill.witness, OomWitness::KernelLog);
        assert_eq!(kill.process, Some((77, "python".to_owned())));
        assert_eq!((kill.pod.0.as_str(), kill.container_id.as_deref()), ("uid-1", Some("a")));
        assert_eq!(kill.container_lives, Some(false));
    }

    // A container that is gone has ended; a pod that is not visible may be in any state.
    let gone = format!("{POD}/cri-containerd-gone.scope");
    log.write_all(line("CONSTRAINT_NONE,a", &gone, "x").as_bytes()).expect("must be writable");
    assert_eq!(listening.next().await.container_lives, Some(false));
    node.write("sys/fs/cgroup/cgroup.events", "populated 1\n");
    let foreign = "/kubepods/poduid-9/b";
    log.write_all(line("CONSTRAINT_NONE,a", foreign, "x").as_bytes()).expect("must be writable");
    assert_eq!(listening.next().await.container_lives, None);
    listening.end().await;
}

#[tokio::test]
async fn a_user_who_names_his_cgroup_like_a_pod_s_blames_no_pod() {
    let node = Node::new();
    let mut log = with_log(&node);
    let container = node.pod("uid-1").container("a");
    container.empty();
    let mut listening = node.listen().await;
    let task = format!("{POD}/cri-containerd-a.scope");
    let own = format!("/user.slice/user-1000.slice/user@1000.service{task}");
    for (task, name) in [(&own, "forged"), (&task, "true")] {
        log.write_all(line("CONSTRAINT_NONE,a", task, name).as_bytes()).expect("must be writable");
    }
    assert_eq!(listening.next().await.process, Some((77, "true".to_owned())));
    listening.silence().await;
    listening.end().await;
}

#[tokio::test]
async fn nonsense_in_the_log_is_passed_over() {
    let node = Node::new();
    let mut log = with_log(&node);
    let container = node.pod("uid-1").container("a");
    container.empty();
    let mut listening = node.listen().await;
    let task = format!("{POD}/cri-containerd-a.scope");
    let by_program = line("CONSTRAINT_NONE,a", &task, "forged").replacen('6', "14", 1);
    let nonsense: [&[u8]; 5] = [
        b"\xff\xfe\0\0;;;;oom-kill:constraint=\n",
        b"6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=,task_memcg=,pid=,uid=\n",
        by_program.as_bytes(),
        b"\n\n\n KEY=value\n",
        b"6,1,2,-;oom-kill:constraint=,,,,task_memcg=/kubepods/pod/x\n",
    ];
    for bytes in nonsense {
        log.write_all(bytes).expect("must be writable");
        listening.silence().await;
    }
    log.write_all(line("CONSTRAINT_NONE,a", &task, "true").as_bytes()).expect("must be writable");
    assert_eq!(listening.next().await.process, Some((77, "true".to_owned())));
    // The log ends: the cgroups still report.
    drop(log);
    listening.silence().await;
    let mut other = node.pod("uid-2").container("b");
    other.empty();
    other.count(|counted| counted.kills = 1);
    assert_eq!(listening.next().await.witness, OomWitness::MemoryEvents);
    listening.end().await;
}

#[tokio::test]
async fn without_cgroup_v2_the_log_alone_reports_a_kill() {
    let node = Node { root: tempfile::tempdir().expect("must be creatable") };
    node.write("sys/fs/cgroup/memory/kubepods/burstable/poduid-1/a/cgroup.procs", "");
    let mut log = with_log(&node);
    let mut listening = Listening::start(node.host());
    let task = "/kubepods/burstable/poduid-1/a";
    let constraint = format!("CONSTRAINT_MEMCG,oom_memcg={task}");
    // Text that is written before the source reads stays in the pipe.
    log.write_all(line(&constraint, task, "sh").as_bytes()).expect("must be writable");
    let kill = listening.next().await;
    assert_eq!((kill.constraint, kill.limit), (OomConstraint::ContainerLimit, None));
    assert_eq!(kill.container_lives, None, "nothing shows it");
    listening.end().await;
}
