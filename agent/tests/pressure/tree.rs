//! Provides a host's files as a node with a kubelet has them, for both of its drivers.
//!
//! The suite `agent` of `tests/` includes it by `#[path]`.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use agent_core::pod::PodUid;
use epilogue_agent::host::Host;
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const MEMINFO: &str = "MemTotal:        4096000 kB\nMemFree:   1000 kB\n\
     SwapTotal:        2048 kB\nSwapFree:         1024 kB\n";

/// How a kubelet names cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Systemd,
    Cgroupfs,
}

/// A host whose files all lie in a directory.
pub(crate) struct Tree {
    root: PathBuf,
    /// The directory, if it belongs to the tree.
    _dir: Option<TempDir>,
    driver: Driver,
}

/// The text of `memory.pressure` and similar files, always of one length.
pub(crate) fn psi(some: u64, full: u64) -> String {
    format!(
        "some avg10=0.00 avg60=0.00 avg300=0.00 total={some:020}\n\
         full avg10=0.00 avg60=0.00 avg300=0.00 total={full:020}\n"
    )
}

/// The text of `memory.stat`, as far as it matters.
pub(crate) fn stat(anon: u64, file: u64, inactive_file: u64) -> String {
    format!("anon {anon}\nfile {file}\nkernel 7\nactive_file 1\ninactive_file {inactive_file}\n")
}

pub(crate) fn uid(text: &str) -> PodUid {
    PodUid(text.to_owned())
}

impl Tree {
    /// A node with cgroup v2 and no pod.
    pub(crate) fn new(driver: Driver) -> Self {
        let dir = tempfile::tempdir().expect("must be creatable");
        let tree = Self::at(dir.path(), driver);
        Self { _dir: Some(dir), ..tree }
    }

    /// The same in an existing directory.
    pub(crate) fn at(root: &Path, driver: Driver) -> Self {
        let tree = Self::bare(root, driver);
        tree.write("sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
        tree.write("sys/fs/cgroup/memory.stat", &stat(1_000 * MIB, 500 * MIB, 300 * MIB));
        tree.write_in("", "memory.max", "2097152000\n");
        tree.write_in("", "memory.current", "1048576000\n");
        tree.write_in("", "memory.stat", &stat(0, 0, 48_576_000));
        tree.write_in("", "memory.pressure", &psi(0, 0));
        tree
    }

    fn bare(root: &Path, driver: Driver) -> Self {
        let tree = Self { root: root.to_owned(), _dir: None, driver };
        tree.write("proc/meminfo", MEMINFO);
        tree.write("proc/loadavg", "0.10 0.20 0.30 2/345 6789\n");
        tree.write("proc/sys/kernel/pid_max", "32768\n");
        tree.write("proc/sys/kernel/threads-max", "63432\n");
        tree.write("proc/pressure/io", &psi(70, 7));
        tree.write("proc/pressure/memory", &psi(0, 0));
        for dir in ["var/lib/kubelet/pods", "var/lib/containerd/layers", "var/log/pods"] {
            fs::create_dir_all(tree.path(dir)).expect("must be creatable");
        }
        tree
    }

    /// The directory with all files.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn host(&self) -> Host {
        Host::new(self.root.clone())
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        write(&self.path(path), text.as_bytes());
    }

    /// The cgroup of all pods, or one below it.
    pub(crate) fn cgroup(&self, below: &str) -> String {
        let name = match self.driver {
            Driver::Systemd => "kubepods.slice",
            Driver::Cgroupfs => "kubepods",
        };
        format!("sys/fs/cgroup/{name}/{below}").trim_end_matches('/').to_owned()
    }

    pub(crate) fn write_in(&self, cgroup: &str, name: &str, text: &str) {
        self.write(&format!("{}/{name}", self.cgroup(cgroup)), text);
    }

    /// The cgroup of a pod of class Burstable, below that of all pods.
    pub(crate) fn of_pod(&self, uid: &str) -> String {
        match self.driver {
            Driver::Systemd => {
                let uid = uid.replace('-', "_");
                format!("kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice")
            }
            Driver::Cgroupfs => format!("burstable/pod{uid}"),
        }
    }

    /// The cgroup of a container, below that of all pods.
    pub(crate) fn of_container(&self, uid: &str, id: &str) -> String {
        let pod = self.of_pod(uid);
        match self.driver {
            Driver::Systemd => format!("{pod}/cri-containerd-{id}.scope"),
            Driver::Cgroupfs => format!("{pod}/{id}"),
        }
    }

    /// Adds a pod with a container and its sandbox. They use this much, a fifth of it inactive
    /// files.
    pub(crate) fn pod(&self, uid: &str, bytes: u64) {
        let places = [
            (self.of_pod(uid), bytes),
            (self.of_container(uid, &format!("{uid}c").replace('-', "")), bytes / 2),
            (self.of_container(uid, &format!("{uid}s").replace('-', "")), 0),
        ];
        for (cgroup, bytes) in places {
            self.usage(&cgroup, bytes);
        }
        self.write_in(&self.of_pod(uid), "pids.current", "12\n");
        self.write_in(&self.of_pod(uid), "memory.pressure", &psi(0, 0));
        self.write_in(&self.of_pod(uid), "memory.max", "max\n");
    }

    /// Sets a cgroup's usage, a fifth of it inactive files, and a MiB of swap.
    pub(crate) fn usage(&self, cgroup: &str, bytes: u64) {
        self.write_in(cgroup, "memory.current", &format!("{bytes}\n"));
        self.write_in(cgroup, "memory.stat", &stat(0, 0, bytes / 5));
        self.write_in(cgroup, "memory.swap.current", &format!("{MIB}\n"));
    }

    /// Removes the cgroup of a pod with all below it.
    pub(crate) fn remove_pod(&self, uid: &str) {
        let path = self.path(&self.cgroup(&self.of_pod(uid)));
        fs::remove_dir_all(path).expect("must be removable");
    }

    /// Replaces a file by a directory: root can read any file, but no directory.
    pub(crate) fn spoil(&self, path: &str) {
        let path = self.path(path);
        fs::remove_file(&path).expect("the file must be there");
        fs::create_dir(&path).expect("must be creatable");
    }
}

/// Overwrites a text with one of the same length, as the kernel does: a reader never sees half of
/// it.
pub(crate) fn overwrite(path: &Path, text: &str) {
    let file = fs::OpenOptions::new().write(true).open(path).expect("must be there");
    file.write_all_at(text.as_bytes(), 0).expect("must be writable");
}

pub(crate) fn write(path: &Path, bytes: &[u8]) {
    let dir = path.parent().expect("must lie in a directory");
    fs::create_dir_all(dir).expect("the root must be writable");
    fs::write(path, bytes).expect("the root must be writable");
}
