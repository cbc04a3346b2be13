//! Provides a host with pods' cgroups as a kernel keeps them, and the source under test on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::protocol::event::Event;
use agent_core::protocol::pressure::OomKill;
use epilogue_agent::clock::Clock;
use epilogue_agent::host::Host;
use epilogue_agent::source::oom;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Maximum wait: a busy machine is slow.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);

pub(crate) const KUBEPODS: &str = "sys/fs/cgroup/kubepods.slice";

/// A host.
pub(crate) struct Node {
    pub(crate) root: TempDir,
}

/// One cgroup and its counters.
#[derive(Clone, Debug)]
pub(crate) struct Cgroup {
    pub(crate) path: PathBuf,
    oom: u64,
    own_oom: u64,
    kills: u64,
}

impl Node {
    /// A host with cgroup v2 and no pods.
    pub(crate) fn new() -> Self {
        let node = Self { root: tempfile::tempdir().expect("must be creatable") };
        node.write("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
        node.write(&format!("{KUBEPODS}/kubepods-burstable.slice/cgroup.procs"), "");
        node
    }

    pub(crate) fn host(&self) -> Host {
        Host::new(self.root.path().to_owned())
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        write(&self.root.path().join(path), text);
    }

    /// The cgroup of a Burstable pod.
    pub(crate) fn pod(&self, uid: &str) -> Cgroup {
        let name = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
        let path = self.root.path().join(KUBEPODS).join("kubepods-burstable.slice").join(name);
        Cgroup::create(path)
    }

    /// Starts the source, and returns once it reports.
    pub(crate) async fn listen(&self) -> Listening {
        let mut listening = Listening::start(self.host());
        let mut probe = self.pod("probe").container("probe");
        let heard = async {
            loop {
                probe.count(|cgroup| cgroup.kills += 1);
                let event = timeout(Duration::from_millis(50), listening.events.recv()).await;
                if event.is_ok() {
                    return;
                }
            }
        };
        timeout(WITHIN, heard).await.expect("the source must report");
        fs::remove_dir_all(probe.path.parent().expect("must have a pod")).expect("must be there");
        listening.silence().await;
        listening
    }
}

fn write(path: &Path, text: &str) {
    let dir = path.parent().expect("must have a directory");
    fs::create_dir_all(dir).expect("must be creatable");
    fs::write(path, text).expect("must be writable");
}

impl Cgroup {
    fn create(path: PathBuf) -> Self {
        let cgroup = Self { path, oom: 0, own_oom: 0, kills: 0 };
        write(&cgroup.path.join("cgroup.events"), "populated 1\nfrozen 0\n");
        write(&cgroup.path.join("memory.max"), "max\n");
        cgroup.show();
        cgroup
    }

    /// A container of the pod, as containerd names it.
    pub(crate) fn container(&self, id: &str) -> Self {
        Self::create(self.path.join(format!("cri-containerd-{id}.scope")))
    }

    pub(crate) fn count(&mut self, change: impl FnOnce(&mut Counted)) {
        let mut counted = Counted { oom: self.oom, own_oom: self.own_oom, kills: self.kills };
        change(&mut counted);
        (self.oom, self.own_oom, self.kills) = (counted.oom, counted.own_oom, counted.kills);
        self.show();
    }

    /// Writes the files as the kernel does: first the file that no task waits for.
    fn show(&self) {
        let text = |oom: u64, kills: u64| {
            format!("low 0\nhigh 0\nmax 9\noom {oom}\noom_kill {kills}\noom_group_kill 0\n")
        };
        write(&self.path.join("memory.events.local"), &text(self.own_oom, self.kills));
        write(&self.path.join("memory.events"), &text(self.oom, self.kills));
    }

    pub(crate) fn limit(&self, bytes: u64) {
        write(&self.path.join("memory.max"), &format!("{bytes}\n"));
    }

    /// Ends its last process.
    pub(crate) fn empty(&self) {
        write(&self.path.join("cgroup.events"), "populated 0\nfrozen 0\n");
    }

    pub(crate) fn remove(self) {
        fs::remove_dir_all(self.path).expect("must be removable");
    }
}

/// The counters that a test sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) oom: u64,
    pub(crate) own_oom: u64,
    pub(crate) kills: u64,
}

/// The running source.
pub(crate) struct Listening {
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<Option<()>>,
}

impl Listening {
    pub(crate) fn start(host: Host) -> Self {
        let (sender, events) = mpsc::channel(64);
        let stop = CancellationToken::new();
        let clock = Clock::new(Arc::default());
        let run = oom::run(host, clock, sender);
        let task = tokio::spawn(stop.clone().run_until_cancelled_owned(run));
        Self { events, stop, task }
    }

    pub(crate) async fn next(&mut self) -> OomKill {
        let event = timeout(WITHIN, self.events.recv()).await;
        match event.expect("a kill must be reported").expect("the source must run") {
            Event::OomKilled(kill) => *kill,
            other => panic!("{other:?}"),
        }
    }

    /// Checks that nothing more is reported, for longer than any wait of the source except that for
    /// a container's end.
    pub(crate) async fn silence(&mut self) {
        while let Ok(event) = timeout(Duration::from_millis(150), self.events.recv()).await {
            let of_probe = matches!(&event, Some(Event::OomKilled(kill)) if kill.pod.0 == "probe");
            assert!(of_probe, "{event:?}");
        }
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        let ended = timeout(WITHIN, self.task).await;
        ended.expect("it must end when it is asked to").expect("it must not panic");
    }
}
