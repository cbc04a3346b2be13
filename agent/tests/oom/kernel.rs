//! Tests real kills by this machine's kernel, in cgroups named as a kubelet names them. Without
//! cgroup v2 the test says so; the machine of `tests/node/` has it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use agent_core::protocol::event::Event;
use agent_core::protocol::pressure::{OomConstraint, OomKill, OomWitness};
use epilogue_agent::host::Host;
use tempfile::TempDir;
use tokio::time::timeout;

use super::kernel_here::{MEMORY_CONTROLLER, Missing, NEW_CGROUPS, not_tested_here};
use super::node::{Listening, WITHIN};

const LIMIT: u64 = 16 << 20;
const MOUNT: &str = "/sys/fs/cgroup";
/// Allocates memory until it is stopped.
const HOG: &str = "tail /dev/zero";

/// A cgroup that belongs to the test, with pods in it; the source sees it as the host's root.
struct Cgroups {
    root: TempDir,
    parent: PathBuf,
    made: Vec<PathBuf>,
}

impl Cgroups {
    /// Makes the cgroups; the error says what is missing.
    fn create(name: &str) -> Result<Self, Missing> {
        let controllers = fs::read_to_string(format!("{MOUNT}/cgroup.controllers"));
        if !controllers.is_ok_and(|controllers| controllers.contains("memory")) {
            let why = "the kernel kills nothing here: no cgroup v2 with memory";
            return Err(Missing(MEMORY_CONTROLLER, why.to_owned()));
        }
        let mount = PathBuf::from(MOUNT);
        let parent = mount.join(format!("epilogue-{name}-{}", std::process::id()));
        let denied =
            |error: io::Error| Missing(NEW_CGROUPS, format!("{}: {error}", parent.display()));
        fs::create_dir(&parent).map_err(denied)?;
        let root = tempfile::tempdir().expect("must be creatable");
        let link = |to: &Path, at: &str| {
            let at = root.path().join(at);
            fs::create_dir_all(at.parent().expect("must have one")).expect("must be creatable");
            std::os::unix::fs::symlink(to, at).expect("must be linkable");
        };
        link(&parent, "sys/fs/cgroup");
        link(Path::new("/dev/kmsg"), "dev/kmsg");
        link(Path::new("/proc"), "proc");
        let mut cgroups = Self { root, made: vec![parent.clone()], parent };
        Self::hand_down(&mount);
        let parent = cgroups.parent.clone();
        Self::hand_down(&parent);
        cgroups.make("kubepods");
        cgroups.make("kubepods/burstable");
        Ok(cgroups)
    }

    /// Enables the memory controller below the cgroup. It may be enabled already.
    fn hand_down(cgroup: &Path) {
        let _ = fs::write(cgroup.join("cgroup.subtree_control"), "+memory");
    }

    fn make(&mut self, below: &str) -> PathBuf {
        let path = self.parent.join(below);
        fs::create_dir(&path).expect("must be creatable");
        self.made.push(path.clone());
        path
    }

    /// A pod with one container; returns both cgroups, to set limits.
    fn pod(&mut self, uid: &str) -> (PathBuf, PathBuf) {
        let pod = self.make(&format!("kubepods/burstable/pod{uid}"));
        Self::hand_down(&self.parent.join("kubepods"));
        Self::hand_down(&self.parent.join("kubepods/burstable"));
        Self::hand_down(&pod);
        let container = self.make(&format!("kubepods/burstable/pod{uid}/c1"));
        (pod, container)
    }

    fn limit(cgroup: &Path) {
        fs::write(cgroup.join("memory.max"), LIMIT.to_string()).expect("must be writable");
        // Most nodes have no swap.
        let _ = fs::write(cgroup.join("memory.swap.max"), "0");
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for path in self.made.iter().rev() {
            for _ in 0..100 {
                if fs::remove_dir(path).is_ok() {
                    break;
                }
                // The kernel is still removing what it killed.
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Runs a script whose processes all belong to the cgroup.
fn run_in(cgroup: &Path, script: &str) -> Child {
    let procs = cgroup.join("cgroup.procs");
    let script = format!("echo $$ > {} && {script}", procs.display());
    Command::new("sh").args(["-c", &script]).spawn().expect("sh must start")
}

impl Listening {
    /// Waits until the source has begun: it reports nothing yet of pods whose UIDs have this
    /// prefix.
    async fn silence_of(&mut self, beginning: &str) {
        let mut silence = Box::pin(tokio::time::sleep(Duration::from_millis(200)));
        loop {
            tokio::select! {
                () = &mut silence => return,
                event = self.events.recv() => match event.expect("the source must run") {
                    Event::OomKilled(kill) => assert!(!kill.pod.0.starts_with(beginning)),
                    other => panic!("{other:?}"),
                },
            }
        }
    }

    /// The next kill of the pod; other tests have theirs in the same log.
    async fn next_of(&mut self, uid: &str) -> OomKill {
        let of = async {
            loop {
                match self.events.recv().await.expect("the source must run") {
                    Event::OomKilled(kill) if kill.pod.0 == uid => return *kill,
                    _ => {}
                }
            }
        };
        timeout(WITHIN, of).await.expect("a kill must be reported")
    }

    /// The reports of all witnesses that this machine has.
    async fn reported(&mut self, uid: &str) -> Vec<OomKill> {
        let mut reported = vec![self.next_of(uid).await];
        if fs::File::open("/dev/kmsg").is_ok() {
            reported.push(self.next_of(uid).await);
        }
        reported
    }
}

/// The cgroups; prints why it cannot make them.
fn cgroups(name: &str) -> Option<Cgroups> {
    match Cgroups::create(name) {
        Ok(cgroups) => Some(cgroups),
        Err(missing) => {
            not_tested_here(&missing);
            None
        }
    }
}

#[tokio::test]
async fn a_real_kill_at_the_container_s_limit_is_reported_within_a_tenth_of_a_second() {
    let Some(mut cgroups) = cgroups("main") else { return };
    let mut listening = Listening::start(Host::new(cgroups.root.path().to_owned()));
    listening.silence_of("real-").await;
    let mut best = Duration::MAX;
    for number in 0..5 {
        let uid = format!("real-{}-{number}", std::process::id());
        let (_, container) = cgroups.pod(&uid);
        Cgroups::limit(&container);
        let mut child = run_in(&container, &format!("exec {HOG}"));
        let ended = tokio::task::spawn_blocking(move || {
            let status = child.wait().expect("must be our child");
            (status, Instant::now())
        });
        let reported = listening.reported(&uid).await;
        let heard = Instant::now();
        let (status, ended) = ended.await.expect("must not panic");
        assert!(!status.success(), "{status}");
        for kill in reported {
            assert_eq!(kill.constraint, OomConstraint::ContainerLimit, "{kill:?}");
            assert_eq!(kill.container_id.as_deref(), Some("c1"));
            assert_eq!(kill.limit, Some(LIMIT));
            assert_eq!(kill.container_lives, Some(false));
            if kill.witness == OomWitness::KernelLog {
                assert_eq!(kill.process.map(|(_, name)| name).as_deref(), Some("tail"));
            }
        }
        best = best.min(heard.saturating_duration_since(ended));
    }
    println!("reported {best:?} after the exit was known to the parent");
    assert!(best < Duration::from_millis(100), "{best:?}");
    listening.end().await;
}

#[tokio::test]
async fn a_real_kill_of_a_child_leaves_the_container_alive() {
    let Some(mut cgroups) = cgroups("child") else { return };
    let uid = format!("child-{}", std::process::id());
    let (_, container) = cgroups.pod(&uid);
    Cgroups::limit(&container);
    let mut listening = Listening::start(Host::new(cgroups.root.path().to_owned()));
    listening.silence_of("child-").await;
    let mut main = run_in(&container, &format!("{HOG}; exec sleep 60"));
    for kill in listening.reported(&uid).await {
        assert_eq!(kill.constraint, OomConstraint::ContainerLimit, "{kill:?}");
        assert_eq!(kill.container_lives, Some(true), "{kill:?}");
    }
    main.kill().expect("must be our child");
    main.wait().expect("must be our child");
    listening.end().await;
}

#[tokio::test]
async fn a_real_kill_at_the_pod_s_limit_is_the_pod_s() {
    let Some(mut cgroups) = cgroups("pod") else { return };
    let uid = format!("pod-{}", std::process::id());
    let (pod, container) = cgroups.pod(&uid);
    Cgroups::limit(&pod);
    let mut listening = Listening::start(Host::new(cgroups.root.path().to_owned()));
    listening.silence_of("pod-").await;
    let mut main = run_in(&container, &format!("exec {HOG}"));
    for kill in listening.reported(&uid).await {
        assert_eq!((kill.constraint, kill.limit), (OomConstraint::PodLimit, Some(LIMIT)));
        assert_eq!(kill.container_id.as_deref(), Some("c1"));
    }
    main.wait().expect("must be our child");
    listening.end().await;
}
