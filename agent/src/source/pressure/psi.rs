//! Reports stalls as they begin, by triggers of the kernel, which cost nothing while nothing
//! stalls. If the kernel accepts none, it reads the counter. The core decides what follows.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::protocol::event::Event;
use agent_core::protocol::pressure::Stalling;
use nix::fcntl::OFlag;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::{cannot_read, psi_of};
use crate::cgroups::Cgroups;
use crate::host::Host;
use crate::source::tell;

/// Minimum time between two events of one kind.
const PAUSE: Duration = Duration::from_millis(100);
/// How many times per window the counter is read if the kernel accepts no trigger, the same as the
/// kernel itself does. More reads would lose stalls: the kernel counts in whole ticks (1 to 10 ms)
/// between two reads, and drops what is shorter.
const READS_PER_WINDOW: u32 = 10;
/// The same while nothing stalls: 20 wake-ups a second would cost an idle node 0.2 % of a core.
const READS_PER_WINDOW_AT_REST: u32 = 2;
/// How often a watch that failed is retried.
const RETRY: Duration = Duration::from_secs(10);
/// How long until a file that went away is opened again.
const REOPEN: Duration = Duration::from_millis(200);

/// What counts as the beginning of a stall: this much of it within a window.
#[derive(Clone, Copy, Debug)]
struct TriggerConfig {
    what: Stalling,
    stall: Duration,
    window: Duration,
}

/// 500 ms is the shortest window that the kernel accepts. It checks ten times in each, so it
/// reports a stall at most 50 ms late.
const MEMORY: TriggerConfig = TriggerConfig {
    what: Stalling::Memory,
    stall: Duration::from_millis(20),
    window: Duration::from_millis(500),
};
/// Every sound node waits for its disks, and that harms nothing at once. So the window has a whole
/// 2 s, which the kernel accepts from any user.
const IO: TriggerConfig = TriggerConfig {
    what: Stalling::Io,
    stall: Duration::from_millis(300),
    window: Duration::from_secs(2),
};

impl TriggerConfig {
    fn read_every(&self) -> Duration {
        self.window / READS_PER_WINDOW
    }

    fn read_every_at_rest(&self) -> Duration {
        self.window / READS_PER_WINDOW_AT_REST
    }
}

/// A file that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    path: PathBuf,
    /// Whether it stands in for a file that does not exist yet.
    instead: bool,
}

/// Reports stalls.
pub async fn run(host: Host, events: mpsc::Sender<Event>) {
    tokio::join!(watch(&host, MEMORY, &events), watch(&host, IO, &events));
}

/// Whether the kernel accepts each trigger that a watch asks for; the error says why not. Removes
/// the triggers at once.
pub fn takes_triggers(host: &Host) -> [(Stalling, Result<(), String>); 2] {
    [MEMORY, IO].map(|config| {
        let path = target(host, config.what).path;
        let taken = trigger(&path, config).map(drop);
        (config.what, taken.map_err(|error| cannot_read(&path, &error)))
    })
}

async fn watch(host: &Host, config: TriggerConfig, events: &mpsc::Sender<Event>) {
    let mut logged = String::new();
    loop {
        let target = target(host, config.what);
        let watch = Watch { config, events, target: &target, logged: &mut logged };
        let ended = tokio::select! {
            ended = watch.follow() => ended,
            // The file that this one stands in for may exist by then.
            () = sleep(RETRY), if target.instead => Ended::Gone,
        };
        sleep(match ended {
            Ended::Gone => REOPEN,
            Ended::NotWatched => RETRY,
        })
        .await;
    }
}

/// The file with the stalls: that of pods where they are counted apart.
fn target(host: &Host, what: Stalling) -> Target {
    match what {
        Stalling::Io => Target { path: host.path("/proc/pressure/io"), instead: false },
        Stalling::Memory => {
            let cgroups = Cgroups::of(host);
            let kubepods = cgroups.as_ref().and_then(Cgroups::kubepods);
            let of_node = || host.path("/proc/pressure/memory");
            Target {
                path: kubepods
                    .as_ref()
                    .map_or_else(of_node, |found| found.path.join("memory.pressure")),
                instead: kubepods.is_none() && cgroups.is_some(),
            }
        }
    }
}

/// Why a watch of a file ended.
enum Ended {
    /// It went away, or another file is better now.
    Gone,
    /// It cannot be watched.
    NotWatched,
}

/// The watch of one file, while it exists.
struct Watch<'a> {
    config: TriggerConfig,
    events: &'a mpsc::Sender<Event>,
    target: &'a Target,
    /// The last message in the log, so that each is logged once.
    logged: &'a mut String,
}

impl Watch<'_> {
    async fn follow(mut self) -> Ended {
        let path = self.target.path.clone();
        let refused = match trigger(&path, self.config) {
            Ok(file) => {
                self.log(&path, "the kernel reports stalls", false);
                return self.by_trigger(file).await;
            }
            Err(error) => error,
        };
        match File::open(&path) {
            Ok(file) if counter(&file).is_ok() => {
                let words = format!(
                    "the kernel takes no trigger for stalls ({refused}), so its counter is read \
                     every {} ms, and every {} ms while nothing stalls; CAP_SYS_RESOURCE and a \
                     writable file avoid that",
                    self.config.read_every().as_millis(),
                    self.config.read_every_at_rest().as_millis()
                );
                self.log(&path, &words, false);
                self.by_reading(&file).await
            }
            Ok(_) => {
                self.log(&path, "stalls are not reported: the file does not show them", true);
                Ended::NotWatched
            }
            Err(error) => {
                let words = format!("stalls are not reported: {}", cannot_read(&path, &error));
                self.log(&path, &words, true);
                Ended::NotWatched
            }
        }
    }

    async fn by_trigger(&self, file: AsyncFd<File>) -> Ended {
        let interest = Interest::PRIORITY.add(Interest::ERROR);
        while let Ok(mut guard) = file.ready(interest).await {
            let is_error = guard.ready().is_error();
            guard.clear_ready();
            drop(guard);
            if is_error {
                break;
            }
            self.report().await;
        }
        Ended::Gone
    }

    /// The same by the counter: the stall of a sliding window.
    async fn by_reading(&self, file: &File) -> Ended {
        let mut window = Window::new(self.config);
        let mut last = Duration::ZERO;
        while let Ok(total) = counter(file) {
            let now = Instant::now();
            if window.is_stall(total, now) {
                self.report().await;
            }
            let rests = std::mem::replace(&mut last, total) == total;
            let every =
                if rests { self.config.read_every_at_rest() } else { self.config.read_every() };
            sleep_until(now + every).await;
        }
        Ended::Gone
    }

    async fn report(&self) {
        tell(self.events, Event::PressureRose(self.config.what)).await;
        sleep(PAUSE).await;
    }

    fn log(&mut self, path: &Path, words: &str, warning: bool) {
        let all = format!("{} {words}", path.display());
        if *self.logged == all {
            return;
        }
        let (what, path) = (self.config.what, path.display());
        if warning {
            tracing::warn!(?what, %path, "{words}");
        } else {
            tracing::info!(?what, %path, "{words}");
        }
        *self.logged = all;
    }
}

/// Opens a pressure file and sets a trigger on it, which lasts as long as the file is open.
fn trigger(path: &Path, config: TriggerConfig) -> io::Result<AsyncFd<File>> {
    let flags = OFlag::O_NONBLOCK.bits();
    let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    // The kernel's files have no length. A file with a length would be overwritten.
    if file.metadata()?.len() > 0 {
        return Err(ErrorKind::Unsupported.into());
    }
    // The kernel overwrites the last byte.
    let text = format!("some {} {}\0", config.stall.as_micros(), config.window.as_micros());
    if file.write(text.as_bytes())? < text.len() {
        return Err(ErrorKind::WriteZero.into());
    }
    let interest = Interest::PRIORITY.add(Interest::ERROR);
    #[expect(deprecated, reason = "its successor is unsafe; a File keeps what that asks for")]
    AsyncFd::with_interest(file, interest)
}

/// The stall of some task since the boot.
fn counter(file: &File) -> io::Result<Duration> {
    Ok(Duration::from_micros(psi_of(file)?.some.total))
}

/// The counter over the last window.
struct Window {
    config: TriggerConfig,
    reads: VecDeque<(Instant, Duration)>,
}

impl Window {
    fn new(config: TriggerConfig) -> Self {
        Self { config, reads: VecDeque::new() }
    }

    /// Takes in a read; whether a stall begins with it. A reported stall is not reported again.
    fn is_stall(&mut self, total: Duration, now: Instant) -> bool {
        // A read comes late by less than the time between two.
        let length = self.config.window + self.config.read_every();
        self.reads.push_back((now, total));
        while self.reads.front().is_some_and(|(at, _)| now.duration_since(*at) >= length) {
            self.reads.pop_front();
        }
        let first = self.reads.front().map_or(total, |(_, first)| *first);
        let is_stall = total.saturating_sub(first) >= self.config.stall;
        if is_stall {
            self.reads.clear();
            self.reads.push_back((now, total));
        }
        is_stall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_begins_when_a_window_has_enough_of_it() {
        let mut window = Window::new(MEMORY);
        let mut now = Instant::now();
        let mut is_stall = |ms| {
            now += MEMORY.read_every();
            window.is_stall(Duration::from_millis(ms), now)
        };
        assert!(!is_stall(1_000), "what was before the start is not new");
        assert!(!is_stall(1_019));
        assert!(is_stall(1_020));
        assert!(!is_stall(1_039), "a reported stall is not reported again");
        assert!(is_stall(1_040));
        // A counter that goes back belongs to another cgroup.
        assert!(!is_stall(5));
    }

    #[test]
    fn a_slow_trickle_is_no_stall() {
        let (mut window, begun) = (Window::new(MEMORY), Instant::now());
        for read in 0..1_000 {
            let now = begun + MEMORY.read_every() * read;
            assert!(!window.is_stall(Duration::from_micros(1_900) * read, now), "read {read}");
        }
    }

    #[test]
    fn a_stall_after_a_rest_shows_at_the_next_read() {
        let (mut window, begun) = (Window::new(MEMORY), Instant::now());
        for read in 0..10 {
            let now = begun + MEMORY.read_every_at_rest() * read;
            assert!(!window.is_stall(Duration::from_secs(1), now), "read {read}");
        }
        let now = begun + MEMORY.read_every_at_rest() * 10;
        assert!(window.is_stall(Duration::from_millis(1_020), now));
    }
}
