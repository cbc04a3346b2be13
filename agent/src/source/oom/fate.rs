//! Decides whether a container ended or lives on after one of its processes was killed. The crate
//! procfs panics at a `stat` that breaks off, and takes no `status` of a process whose name is not
//! UTF-8, which is the tenant's choice.

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::counters::{is_populated, processes};
use crate::host::{Host, read_kernel};

/// The kernel frees some gigabytes a second. So a large process takes its time to end, and only
/// then the end of its container is visible. Nothing waits for the report that a container lives
/// on. The wait is repeated while memory is freed.
const WAIT: Duration = Duration::from_secs(2);
/// The least that is freed in that time while a process ends.
const FREED_MIN: u64 = 64 << 20;
/// Maximum time: a tenant's container may free memory as long as it lives.
const WAIT_MAX: Duration = Duration::from_mins(1);
/// When the container has ended, the agent races with the kubelet.
const POLL: Duration = Duration::from_millis(5);
/// The interval after the first tenth of a second.
const POLL_LATER: Duration = Duration::from_millis(20);
const LATER: Duration = Duration::from_millis(100);

/// `PF_EXITING` of `/proc/<pid>/stat`.
const EXITING: u64 = 4;
/// SIGKILL, as a bit of the pending signals.
const SIGKILL: u64 = 1 << 8;

/// Whether the container lives on; `None` if that is unknown. Returns as soon as the container has
/// ended.
pub(super) async fn lives_on(host: &Host, cgroup: &Path) -> Option<bool> {
    let begun = Instant::now();
    let mut wait = Wait { until: begun + WAIT, usage: usage(cgroup) };
    loop {
        match is_populated(cgroup) {
            Some(true) if wait.goes_on(cgroup, begun + WAIT_MAX) => {}
            Some(true) => return Some(!main_is_dying(host, cgroup)),
            other => return other,
        }
        sleep(if begun.elapsed() < LATER { POLL } else { POLL_LATER }).await;
    }
}

/// How long the end of the container is awaited.
struct Wait {
    until: Instant,
    /// The memory at its begin, if the kernel says it.
    usage: Option<u64>,
}

impl Wait {
    /// Whether it goes on: its time is not over, or enough memory was freed for another one.
    fn goes_on(&mut self, cgroup: &Path, end: Instant) -> bool {
        let now = Instant::now();
        if now < self.until {
            return true;
        }
        let usage = usage(cgroup);
        let freed = self.usage.zip(usage).map_or(0, |(before, now)| before.saturating_sub(now));
        *self = Self { until: (now + WAIT).min(end), usage };
        freed >= FREED_MIN && now < end
    }
}

/// The memory of the container.
fn usage(cgroup: &Path) -> Option<u64> {
    read_kernel(&cgroup.join("memory.current")).ok()?.trim().parse().ok()
}

/// Whether the container's first process is exiting. If this namespace has no number for it, it
/// counts as alive.
fn main_is_dying(host: &Host, cgroup: &Path) -> bool {
    let oldest = processes(cgroup)
        .into_iter()
        .filter_map(|pid| Some((Stat::of(host, pid)?, pid)))
        .min_by_key(|(stat, _)| stat.started);
    oldest.is_some_and(|(stat, pid)| stat.exiting || is_killed(host, pid))
}

/// The part of `/proc/<pid>/stat` that the agent reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    exiting: bool,
    /// Start time in ticks since the boot.
    started: u64,
}

impl Stat {
    fn of(host: &Host, pid: u32) -> Option<Self> {
        Self::parse(&read_kernel(&host.path(&format!("/proc/{pid}/stat"))).ok()?)
    }

    /// Parses the line. The name may contain any character; nothing after it contains `)`.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        // The first is field 3, the state.
        let field = |number: usize| fields.get(number - 3).copied();
        let dead = matches!(field(3)?, "Z" | "X" | "x");
        let flags: u64 = field(9)?.parse().ok()?;
        Some(Self { exiting: dead || flags & EXITING != 0, started: field(22)?.parse().ok()? })
    }
}

fn is_killed(host: &Host, pid: u32) -> bool {
    let text = read_kernel(&host.path(&format!("/proc/{pid}/status"))).unwrap_or_default();
    let pending = text.lines().filter_map(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    pending.into_iter().any(|mask| mask & SIGKILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn stat(name: &str, state: char, flags: u64, started: u64) -> String {
        format!("7 ({name}) {state} 1 7 7 0 -1 {flags} 0 0 0 0 1 2 3 4 20 0 1 0 {started} 9 9\n")
    }

    #[test]
    fn a_process_s_name_may_be_anything() {
        for name in ["sh", "a) R (b", "x y)", "(("] {
            let found = Stat::parse(&stat(name, 'R', 0x0040_0100, 77));
            assert_eq!(found, Some(Stat { exiting: false, started: 77 }), "{name}");
        }
        let exiting = |text: &str| Stat::parse(text).map(|stat| stat.exiting);
        assert_eq!(exiting(&stat("a", 'R', 0x0040_0104, 1)), Some(true));
        assert_eq!(exiting(&stat("a", 'Z', 0, 1)), Some(true));
        assert_eq!(exiting("7 (a) R 1 2"), None);
        assert_eq!(exiting(""), None);
    }

    struct Place {
        root: tempfile::TempDir,
    }

    impl Place {
        fn new(populated: u8) -> Self {
            let place = Self { root: tempfile::tempdir().expect("must be creatable") };
            place.write("c/cgroup.events", &format!("populated {populated}\n"));
            place
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.root.path().join(path);
            let dir = path.parent().expect("must have one");
            fs::create_dir_all(dir).expect("must be creatable");
            fs::write(path, text).expect("must be writable");
        }

        async fn lives_on(&self) -> Option<bool> {
            let host = Host::new(self.root.path().to_owned());
            lives_on(&host, &self.root.path().join("c")).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_is_reported_as_soon_as_it_is_there_and_life_after_two_seconds() {
        let begun = Instant::now();
        assert_eq!(Place::new(0).lives_on().await, Some(false));
        assert_eq!(begun.elapsed(), Duration::ZERO);

        assert_eq!(Place::new(1).lives_on().await, Some(true));
        assert!(begun.elapsed() >= WAIT && begun.elapsed() < WAIT * 2);

        let place = Place::new(1);
        let begun = Instant::now();
        let (lives, ()) = tokio::join!(place.lives_on(), async {
            sleep(Duration::from_millis(50)).await;
            fs::remove_dir_all(place.root.path().join("c")).expect("must be removable");
        });
        assert_eq!(lives, Some(false));
        assert!(begun.elapsed() < Duration::from_millis(60), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn while_memory_is_freed_the_end_is_awaited_for_a_minute_at_most() {
        /// The memory in MiB at each second, and the second in which the container ends.
        async fn waited(usage: &[u64], ends_after: Option<u64>) -> (Option<bool>, u64) {
            let place = Place::new(1);
            let begun = Instant::now();
            let show = |second: usize| {
                let usage = usage.get(second).or(usage.last()).expect("must have one");
                place.write("c/memory.current", &format!("{}\n", usage << 20));
                if ends_after == Some(second as u64) {
                    place.write("c/cgroup.events", "populated 0\n");
                }
            };
            show(0);
            let script = async {
                for second in 1.. {
                    sleep(Duration::from_secs(1)).await;
                    show(second);
                }
            };
            tokio::select! {
                biased;
                () = script => unreachable!(),
                lives = place.lives_on() => (lives, begun.elapsed().as_secs()),
            }
        }
        let falling: Vec<u64> = (0..90).map(|second| 400_000 - 4_000 * second).collect();
        assert_eq!(waited(&falling, Some(9)).await, (Some(false), 9));
        assert_eq!(waited(&falling, None).await, (Some(true), 60));
        assert_eq!(waited(&[100_000], None).await, (Some(true), 2));
        // A child's memory went at once, and the container lives on.
        assert_eq!(waited(&[100_000, 1_000], None).await, (Some(true), 4));
        assert_eq!(waited(&[100_000, 99_950, 99_940], None).await, (Some(true), 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_process_that_is_still_ending_has_not_survived() {
        let of = |main: String, status: &str| {
            let place = Place::new(1);
            place.write("c/cgroup.procs", "12\n11\n0\n13\n");
            place.write("proc/11/stat", &main);
            place.write("proc/12/stat", &stat("child", 'R', 4, 900));
            place.write("proc/11/status", status);
            place
        };
        let pending = "Name:\ta\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n";
        let calm = "Name:\ta\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n";
        let table = [
            (stat("main", 'S', 0, 100), calm, Some(true)),
            (stat("main", 'D', 4, 100), calm, Some(false)),
            (stat("main", 'D', 0, 100), pending, Some(false)),
        ];
        for (main, status, expected) in table {
            let found = of(main.clone(), status).lives_on().await;
            assert_eq!(found, expected, "{main} {status}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_some_process(text in ".*") {
            let _ = Stat::parse(&text);
        }
    }
}
