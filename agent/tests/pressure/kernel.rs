//! Tests stalls on this machine's own kernel: processes that really wait for memory, in a cgroup
//! that stands for that of all pods. Needs root and permission to make cgroups, as the machines for
//! node tests have. The test says what a machine lacks.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agent_core::pressure::observe;
use agent_core::pressure::signal::Signal;
use agent_core::protocol::pressure::Stalling;
use epilogue_agent::host::Host;
use tempfile::TempDir;

use super::kernel_here::{
    CGROUPS, Missing, NEW_CGROUPS, PSI, PSI_TRIGGER, not_tested_here, tested_in_part,
};
use super::percentiles;
use super::sampler::{Both, take_sample};
use super::stalls::{SLOWEST, Source, WITHIN};

/// How often the processes stall. One time takes a second.
const STALLS: usize = 20;
/// Number of samples for the cost of one.
const SAMPLES: u32 = 200;

/// Memory limit of the stalling process, and size of the file that it reads again and again.
const LIMIT_BYTES: u64 = 16 << 20;
const FILE_BYTES: u64 = 96 << 20;
/// What counts as the beginning of a stall: this much of it within a window.
const STALL: Duration = Duration::from_millis(20);
const WINDOW: Duration = Duration::from_millis(500);

/// Between two reads the kernel counts stalls in whole ticks, and drops what is shorter. A reader
/// every 1 ms sees next to nothing.
const READ_EVERY: Duration = Duration::from_millis(20);

/// Cgroups that belong to the test under the kernel's, and a host that has only these.
struct Real {
    /// The cgroup in the tree of version 2.
    cgroup: PathBuf,
    /// Where memory is limited, if that is a tree of version 1.
    memory: Option<PathBuf>,
    root: TempDir,
    child: Option<Child>,
}

impl Real {
    /// Makes the cgroups; the error says what is missing.
    fn start(name: &str) -> Result<Self, Missing> {
        let is_v2 = |path: &&Path| path.join("cgroup.controllers").exists();
        let trees = [Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/unified")];
        let none = || Missing(CGROUPS, "no cgroups of version 2 are mounted".to_owned());
        let tree = trees.into_iter().find(is_v2).ok_or_else(none)?;
        let name = format!("epilogue-test-{name}-{}", std::process::id());
        let cgroup = tree.join(&name);
        let make = |path: &Path| {
            let cannot =
                |error| Missing(NEW_CGROUPS, format!("cannot make {}: {error}", path.display()));
            fs::create_dir(path).map_err(cannot)
        };
        make(&cgroup)?;
        let root = tempfile::tempdir_in("/var/tmp").expect("must be creatable");
        let mut real = Self { cgroup, memory: None, root, child: None };
        let _ = fs::write(real.cgroup.join("cgroup.subtree_control"), "+memory");
        make(&real.kubepods())?;
        if !real.kubepods().join("memory.pressure").exists() {
            return Err(Missing(PSI, "the kernel has no PSI (CONFIG_PSI, psi=1)".to_owned()));
        }
        if !real.kubepods().join("memory.high").exists() {
            let memory = Path::new("/sys/fs/cgroup/memory").join(&name);
            make(&memory)?;
            real.memory = Some(memory);
        }
        real.limit();
        let dir = real.root.path().join("sys/fs");
        fs::create_dir_all(&dir).expect("must be creatable");
        symlink(&real.cgroup, dir.join("cgroup")).expect("must be creatable");
        Ok(real)
    }

    fn kubepods(&self) -> PathBuf {
        self.cgroup.join("kubepods")
    }

    fn pressure(&self) -> PathBuf {
        self.kubepods().join("memory.pressure")
    }

    fn limit(&self) {
        let limit = LIMIT_BYTES.to_string();
        let file = match &self.memory {
            Some(memory) => memory.join("memory.limit_in_bytes"),
            None => self.kubepods().join("memory.high"),
        };
        fs::write(file, limit).expect("memory must be limitable");
    }

    /// Starts processes that read more than they may keep.
    fn stall(&mut self) {
        let file = self.root.path().join("big").display().to_string();
        let memory = self.memory.iter().map(|memory| memory.join("cgroup.procs"));
        let groups = memory.chain([self.kubepods().join("cgroup.procs")]);
        let join: Vec<_> =
            groups.map(|procs| format!("echo $$ > {} && ", procs.display())).collect();
        let join = join.concat();
        // The processes themselves write the file: pages that another process has read would not
        // count as theirs.
        let read = format!("while :; do cat {file} > /dev/null; done");
        let script = format!(
            "{join} head -c {FILE_BYTES} /dev/zero > {file} && sync {file}; \
             {read} & {read} & {read} & {read}"
        );
        let child = Command::new("sh").arg("-c").arg(script).stdin(Stdio::null()).spawn();
        self.child = Some(child.expect("sh must be there"));
    }

    fn freeze(&self, frozen: bool) {
        let file = self.kubepods().join("cgroup.freeze");
        fs::write(file, if frozen { "1" } else { "0" }).expect("must be freezable");
    }

    /// Ends the process, and all that it started, and waits for the cgroup to be empty.
    fn calm(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        self.freeze(false);
        let procs = self.kubepods().join("cgroup.procs");
        let _ = child.kill();
        let _ = child.wait();
        let begin = Instant::now();
        loop {
            let left = fs::read_to_string(&procs).unwrap_or_default();
            if left.trim().is_empty() || begin.elapsed() > WITHIN {
                return;
            }
            for pid in left.lines().filter_map(|pid| pid.parse().ok()) {
                let pid = nix::unistd::Pid::from_raw(pid);
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
            std::thread::yield_now();
        }
    }

    /// Whether the kernel accepts triggers of half a second; the error says why not.
    fn triggers(&self) -> Result<(), String> {
        let file = OpenOptions::new().read(true).write(true).open(self.pressure());
        let mut file = file.map_err(|error| error.to_string())?;
        file.write(b"some 20000 500000\0").map(drop).map_err(|error| {
            format!("{error}: without CAP_SYS_RESOURCE only windows of whole 2 s are taken")
        })
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.calm();
        // A cgroup stays busy for a moment after its last process.
        let begin = Instant::now();
        let dirs = [Some(self.kubepods()), Some(self.cgroup.clone()), self.memory.clone()];
        for dir in dirs.into_iter().flatten() {
            while dir.exists() && fs::remove_dir(&dir).is_err() && begin.elapsed() < WITHIN {
                std::thread::yield_now();
            }
        }
    }
}

/// When enough stall first came within a window, measured without the code under test.
fn begins(path: &Path) -> Option<Instant> {
    let begin = Instant::now();
    let mut reads = VecDeque::new();
    while begin.elapsed() < WITHIN {
        let text = fs::read_to_string(path).ok()?;
        let (now, total) = (Instant::now(), observe::psi(&text).ok()?.some.total);
        reads.push_back((now, Duration::from_micros(total)));
        while reads.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            reads.pop_front();
        }
        let (_, first) = *reads.front()?;
        if Duration::from_micros(total).saturating_sub(first) >= STALL {
            return Some(now);
        }
        std::thread::sleep(READ_EVERY);
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_stall_is_reported_soon_after_its_beginning() {
    let mut real = match Real::start("stall") {
        Ok(real) => real,
        Err(missing) => return not_tested_here(&missing),
    };
    let soon = match real.triggers() {
        Ok(()) => {
            println!("tested: the kernel's triggers");
            Duration::from_millis(200)
        }
        Err(why) => {
            println!("tested: reading the counter");
            let why = format!("the kernel takes no trigger: {why}");
            tested_in_part(&Missing(PSI_TRIGGER, why));
            Duration::from_millis(300)
        }
    };
    let mut source = Source::start(Host::new(real.root.path().to_owned()));
    real.stall();
    source.next(Stalling::Memory, WITHIN).await.expect("the first stall must be reported");
    let mut latencies = Vec::new();
    for _ in 0..STALLS {
        real.freeze(true);
        // Until a whole window has passed without a stall.
        while source.next(Stalling::Memory, Duration::from_millis(700)).await.is_some() {}
        let path = real.pressure();
        let begins = std::thread::spawn(move || begins(&path));
        real.freeze(false);
        let answered =
            source.next(Stalling::Memory, WITHIN).await.expect("must be reported").into_std();
        let begun = begins.join().expect("must not panic").expect("must stall");
        latencies.push(answered.saturating_duration_since(begun));
    }
    percentiles::hold("reported after the first 20 ms of stall", latencies, soon, SLOWEST);

    // The cgroup goes, as when the kubelet is set up again, and returns.
    real.calm();
    let begin = Instant::now();
    while fs::remove_dir(real.kubepods()).is_err() {
        assert!(begin.elapsed() < WITHIN, "the cgroup is not empty");
        std::thread::yield_now();
    }
    fs::create_dir(real.kubepods()).expect("must be creatable");
    real.limit();
    real.stall();
    source.next(Stalling::Memory, 4 * WITHIN).await.expect("the new cgroup must be watched");
    source.end().await;
}

/// Every machine has these figures, even without cgroups.
#[tokio::test]
async fn this_machine_is_measured() {
    let mut sampler = Both::of(&Host::new("/".into()));
    let sample = take_sample(&mut sampler);
    println!("unreadable here: {:#?}", sample.unreadable);
    let pids = sample.signals[&Signal::PidAvailable].observation;
    assert!(pids.available > 0 && pids.available < pids.capacity, "{pids:?}");
    if let Some(memory) = sample.signals.get(&Signal::MemoryAvailable) {
        let memory = memory.observation;
        assert!(memory.available > 0 && memory.available < memory.capacity, "{memory:?}");
    }
    let begin = Instant::now();
    for _ in 0..SAMPLES {
        take_sample(&mut sampler);
    }
    println!("one sample of this machine: {:?}", begin.elapsed() / SAMPLES);
}

/// This machine's disk, which other programs use meanwhile; the window needs no privilege.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_the_disk_is_reported_by_the_kernel() {
    if let Err(why) = fs::read_to_string("/proc/pressure/io") {
        return not_tested_here(&Missing(PSI, format!("the kernel has no PSI: {why}")));
    }
    let root = tempfile::tempdir_in("/var/tmp").expect("must be creatable");
    let dir = root.path().join("proc/pressure");
    fs::create_dir_all(&dir).expect("must be creatable");
    symlink("/proc/pressure/io", dir.join("io")).expect("must be creatable");
    let mut source = Source::start(Host::new(root.path().to_owned()));
    let over = Arc::new(AtomicBool::new(false));
    // Several writers, so that one of them waits nearly always. On a slow processor with a fast
    // disk, a single one computes more than it waits.
    let writers = ["a", "b", "c", "d"].map(|name| {
        let (file, ended) = (root.path().join(name), Arc::clone(&over));
        std::thread::spawn(move || {
            let mut file = fs::File::create(file).expect("must be creatable");
            while !ended.load(Ordering::Relaxed) {
                file.write_all(&[b'x'; 4096]).expect("must be writable");
                file.sync_all().expect("must be writable");
            }
        })
    });
    let answered = source.next(Stalling::Io, WITHIN).await;
    over.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().expect("must not panic");
    }
    assert!(answered.is_some(), "nothing was reported within {WITHIN:?} of waiting for the disk");
    source.end().await;
}
