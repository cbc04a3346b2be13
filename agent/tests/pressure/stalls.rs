//! Tests that stalls are reported as they begin, from files that stand in for the kernel's.

use std::path::PathBuf;
use std::time::Duration;

use agent_core::protocol::event::Event;
use agent_core::protocol::pressure::Stalling;
use epilogue_agent::source::pressure::psi;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::percentiles;
use super::tree::{Driver, Tree, overwrite, psi as text};

/// Longer than any pause of the source between two attempts at a file that exists.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);

/// The limit of one report in a hundred, on a machine that others use too.
pub(crate) const SLOWEST: Duration = Duration::from_secs(2);

/// The source looks for stalls within this time.
const WINDOW: Duration = Duration::from_millis(500);

/// The running source.
pub(crate) struct Source {
    pub(crate) events: mpsc::Receiver<Event>,
    stop: CancellationToken,
    task: JoinHandle<Option<()>>,
}

impl Source {
    pub(crate) fn start(host: epilogue_agent::host::Host) -> Self {
        let (sender, events) = mpsc::channel(64);
        let stop = CancellationToken::new();
        let task = tokio::spawn(stop.clone().run_until_cancelled_owned(psi::run(host, sender)));
        Self { events, stop, task }
    }

    /// The next event about `what`, and when it came.
    pub(crate) async fn next(&mut self, what: Stalling, within: Duration) -> Option<Instant> {
        let next = async {
            loop {
                match self.events.recv().await? {
                    Event::PressureRose(which) if which == what => return Some(Instant::now()),
                    _ => {}
                }
            }
        };
        timeout(within, next).await.ok().flatten()
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        timeout(WITHIN, self.task).await.expect("must end").expect("must not panic");
    }
}

/// The pressure file of all pods.
fn pressure(tree: &Tree) -> PathBuf {
    tree.path(&tree.cgroup("")).join("memory.pressure")
}

/// Waits until the source reads the file: it then reports only later changes.
async fn at_work(tree: &Tree, source: &mut Source) -> u64 {
    let mut total = 0;
    let begin = Instant::now();
    while begin.elapsed() < WITHIN {
        total += 30_000;
        overwrite(&pressure(tree), &text(total, 0));
        if source.next(Stalling::Memory, Duration::from_millis(250)).await.is_some() {
            return total;
        }
    }
    panic!("nothing was reported within {WITHIN:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_after_a_rest_is_reported_within_300_ms() {
    let tree = Tree::new(Driver::Systemd);
    let mut source = Source::start(tree.host());
    let mut total = at_work(&tree, &mut source).await;
    let mut latencies = Vec::new();
    for _ in 0..9 {
        // A window without a stall.
        while source.next(Stalling::Memory, Duration::from_millis(600)).await.is_some() {}
        let begin = Instant::now();
        // It goes on: a source that got no processor for a window may have missed its beginning.
        let answered = loop {
            assert!(begin.elapsed() < WITHIN, "nothing was reported within {WITHIN:?}");
            total += 20_000;
            overwrite(&pressure(&tree), &text(total, 0));
            if let Some(answered) = source.next(Stalling::Memory, WINDOW).await {
                break answered;
            }
        };
        latencies.push(answered - begin);
    }
    percentiles::hold("a stall is reported", latencies, Duration::from_millis(300), SLOWEST);
    source.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_that_goes_on_is_reported_again_but_not_more_than_ten_times_a_second() {
    let tree = Tree::new(Driver::Cgroupfs);
    let mut source = Source::start(tree.host());
    let mut total = at_work(&tree, &mut source).await;
    let begin = Instant::now();
    let mut answered = Vec::new();
    while begin.elapsed() < Duration::from_secs(1) {
        total += 100_000;
        overwrite(&pressure(&tree), &text(total, 0));
        answered.extend(source.next(Stalling::Memory, Duration::from_millis(10)).await);
    }
    let at_most = usize::try_from(begin.elapsed().as_millis() / 100).expect("must be few") + 1;
    assert!((2..=at_most).contains(&answered.len()), "{answered:?}");
    source.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_are_reported_apart_and_need_a_longer_stall() {
    let tree = Tree::new(Driver::Systemd);
    let mut source = Source::start(tree.host());
    at_work(&tree, &mut source).await;
    overwrite(&tree.path("proc/pressure/io"), &text(1_000_000, 0));
    // The change above may have come before the first read.
    let mut total = 1_000_000;
    let begin = Instant::now();
    while source.next(Stalling::Io, Duration::from_millis(300)).await.is_none() {
        assert!(begin.elapsed() < WITHIN, "nothing was reported of disks");
        total += 200_000;
        overwrite(&tree.path("proc/pressure/io"), &text(total, 0));
    }
    total += 100_000;
    overwrite(&tree.path("proc/pressure/io"), &text(total, 0));
    assert_eq!(source.next(Stalling::Io, Duration::from_millis(500)).await, None);
    source.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cgroup_that_goes_and_comes_is_watched_again() {
    let tree = Tree::new(Driver::Systemd);
    let mut source = Source::start(tree.host());
    at_work(&tree, &mut source).await;
    tree.write("sys/fs/cgroup/kubepods/memory.pressure", &text(5, 5));
    // The kernel's file fails when its cgroup is gone; an emptied file gives as little.
    tree.write_in("", "memory.pressure", "");
    std::fs::remove_dir_all(tree.path("sys/fs/cgroup/kubepods.slice")).expect("must be removable");
    let mut total = 5;
    let begin = Instant::now();
    loop {
        total += 30_000;
        overwrite(&tree.path("sys/fs/cgroup/kubepods/memory.pressure"), &text(total, 0));
        if source.next(Stalling::Memory, Duration::from_millis(250)).await.is_some() {
            break;
        }
        assert!(begin.elapsed() < 4 * WITHIN, "the new one is not watched");
    }
    source.end().await;
}

#[tokio::test]
async fn a_host_without_psi_is_left_to_the_cores_own_pace() {
    let tree = Tree::new(Driver::Systemd);
    for file in ["proc/pressure/io", "proc/pressure/memory"] {
        std::fs::remove_file(tree.path(file)).expect("must be removable");
    }
    std::fs::remove_file(tree.path("sys/fs/cgroup/kubepods.slice/memory.pressure"))
        .expect("must be removable");
    let mut source = Source::start(tree.host());
    let answered = source.next(Stalling::Memory, Duration::from_millis(300)).await;
    assert_eq!(answered, None);
    source.end().await;
}

#[tokio::test]
async fn files_that_are_none_of_the_kernels_are_not_watched() {
    let tree = Tree::new(Driver::Systemd);
    tree.spoil("proc/pressure/io");
    tree.write_in("", "memory.pressure", "garbage");
    let mut source = Source::start(tree.host());
    tree.write_in("", "memory.pressure", &text(9_000_000, 9_000_000));
    let answered = source.next(Stalling::Memory, Duration::from_millis(300)).await;
    assert_eq!(answered, None);
    source.end().await;
}

#[tokio::test]
async fn a_source_without_a_listener_waits_until_it_is_stopped() {
    let tree = Tree::new(Driver::Systemd);
    let mut source = Source::start(tree.host());
    let total = at_work(&tree, &mut source).await;
    let Source { events, stop, mut task } = source;
    drop(events);
    let rest = total + 1_000_000;
    tree.write_in("", "memory.pressure", &text(rest, rest));
    assert!(timeout(Duration::from_millis(500), &mut task).await.is_err(), "must not end");
    stop.cancel();
    timeout(WITHIN, task).await.expect("must end").expect("must not panic");
}
