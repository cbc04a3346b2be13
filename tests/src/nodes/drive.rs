//! The loop of the simulated nodes: feeds the watch, commands and answers into the world and sends
//! its writes. Decides nothing.

use std::collections::HashSet;
use std::time::Duration;

use epilogue_runtime::clock::Clock;
use futures::{Stream, StreamExt as _};
use jiff::Timestamp;
use kube::Client;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_pods};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::pod::{PodObject, PodView};
use super::processes::Signal;
use super::world::{Stats, World, Write, WriteResult};
use super::write;

/// The first pause of the watch after a failure, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(800);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A request of a test to the nodes. Each is answered when it is true in the API.
#[derive(Debug)]
pub(super) enum Command {
    ShutDown {
        node: usize,
        done: oneshot::Sender<()>,
    },
    Vanish {
        node: usize,
        done: oneshot::Sender<()>,
    },
    Behead {
        node: usize,
        done: oneshot::Sender<()>,
    },
    Signal {
        uid: String,
        signal: Signal,
    },
    Revive {
        node: usize,
        done: oneshot::Sender<()>,
    },
    /// The kubelets start again: the watch begins anew.
    Restart,
}

/// The state that a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Drained,
    Quiet,
}

#[derive(Debug)]
pub(super) struct Ends {
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) silent: watch::Sender<HashSet<usize>>,
    pub(super) stats: watch::Sender<Stats>,
    pub(super) stop: CancellationToken,
    pub(super) clock: Clock,
}

#[derive(Debug)]
struct Driver {
    world: World,
    /// The pods of an incomplete list.
    listing: Vec<PodView>,
    /// Whether the next list is that of kubelets that start again.
    restarts: bool,
    waiting: Vec<(usize, Until, oneshot::Sender<()>)>,
    silent: watch::Sender<HashSet<usize>>,
    clock: Clock,
}

/// Runs the nodes until the stop signal; writes under way are finished.
pub(super) async fn run(
    client: Client,
    pods: kube::Api<PodObject>,
    world: World,
    writes_max: usize,
    mut ends: Ends,
) {
    let (silent, clock) = (ends.silent, ends.clock);
    let (listing, waiting) = (Vec::new(), Vec::new());
    let mut driver = Driver { world, listing, restarts: false, waiting, silent, clock };
    // Not every version streams lists; 1.33 does not.
    let config = watcher::Config::default();
    let watch = || {
        let backoff = Pauses { next: PAUSE_FIRST };
        watch_pods(pods.clone(), config.clone()).backoff(backoff).boxed()
    };
    let mut events = watch();
    let mut writes: JoinSet<(Write, WriteResult)> = JoinSet::new();
    loop {
        while writes.len() < writes_max
            && let Some(write) = driver.world.poll(clock.now())
        {
            writes.spawn(write::send(client.clone(), write, clock));
        }
        driver.answer();
        ends.stats.send_if_modified(|stats| {
            let changed = stats != driver.world.stats();
            if changed {
                stats.clone_from(driver.world.stats());
            }
            changed
        });
        let deadline = if writes.len() < writes_max { driver.world.deadline() } else { None };
        tokio::select! {
            biased;
            () = ends.stop.cancelled() => break,
            Some(event) = events.next() => driver.take_in_ready(event, &mut events),
            Some(sent) = writes.join_next() => driver.finished(sent),
            Some(command) = ends.commands.recv() => {
                if matches!(command, Command::Restart) {
                    events = watch();
                }
                driver.obey(command);
            }
            () = sleep_until(deadline, clock) => {}
        }
    }
    while writes.join_next().await.is_some() {}
}

/// Pauses of the watch after failures: without jitter, so that a world in paused time replays.
#[derive(Debug)]
struct Pauses {
    next: Duration,
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.next;
        self.next = (2 * pause).min(PAUSE_MAX);
        Some(pause)
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.next = PAUSE_FIRST;
    }
}

type WatchItem = watcher::Result<Event<PodObject>>;

impl Driver {
    /// Handles an event and those that wait behind it: they often come hundreds at a time.
    fn take_in_ready(
        &mut self,
        first: WatchItem,
        events: &mut (impl Stream<Item = WatchItem> + Unpin),
    ) {
        self.take_in(first);
        for _ in 0..64 {
            let Some(Some(event)) = futures::FutureExt::now_or_never(events.next()) else { break };
            self.take_in(event);
        }
    }

    fn take_in(&mut self, event: WatchItem) {
        let now = self.clock.now();
        match event {
            Ok(Event::Init) => self.listing.clear(),
            Ok(Event::InitApply(pod)) => self.listing.extend(PodView::from_object(pod)),
            Ok(Event::InitDone) => {
                let list = std::mem::take(&mut self.listing);
                if std::mem::take(&mut self.restarts) {
                    self.world.restart(list, now);
                } else {
                    self.world.replace(list, now);
                }
            }
            Ok(Event::Apply(pod)) => {
                if let Some(pod) = PodView::from_object(pod) {
                    self.world.observe(pod, now);
                }
            }
            Ok(Event::Delete(pod)) => {
                if let Some(pod) = PodView::from_object(pod) {
                    self.world.forget(&pod.uid);
                }
            }
            // The watcher backs off and relists by itself.
            Err(_) => self.world.watch_failed(),
        }
    }

    fn finished(&mut self, sent: Result<(Write, WriteResult), tokio::task::JoinError>) {
        let (write, result) = sent.expect("a write must neither panic nor be aborted");
        self.world.finished(&write, result, self.clock.now());
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::ShutDown { node, done } => {
                self.world.shut_down(node, self.clock.now());
                self.waiting.push((node, Until::Drained, done));
            }
            Command::Vanish { node, done } => {
                self.silence(node);
                self.waiting.push((node, Until::Quiet, done));
            }
            Command::Behead { node, done } => {
                self.world.behead(node);
                self.silent.send_modify(|silent| {
                    silent.insert(node);
                });
                self.waiting.push((node, Until::Quiet, done));
            }
            Command::Signal { uid, signal } => self.world.signal(&uid, signal, self.clock.now()),
            Command::Revive { node, done } => {
                self.world.revive(node, self.clock.now());
                self.silent.send_modify(|silent| {
                    silent.remove(&node);
                });
                self.waiting.push((node, Until::Quiet, done));
            }
            Command::Restart => self.restarts = true,
        }
    }

    fn silence(&mut self, node: usize) {
        self.world.silence(node);
        self.silent.send_modify(|silent| {
            silent.insert(node);
        });
    }

    /// Answers the commands whose effect is in the API.
    fn answer(&mut self) {
        let world = &self.world;
        let came_true = |(node, until, _): &mut (usize, Until, _)| match until {
            Until::Drained => world.is_drained(*node),
            Until::Quiet => world.is_quiet(*node),
        };
        let done: Vec<_> = self.waiting.extract_if(.., came_true).collect();
        for (node, until, sender) in done {
            if until == Until::Drained {
                self.silence(node);
            }
            // The caller may have stopped waiting.
            sender.send(()).ok();
        }
    }
}

async fn sleep_until(deadline: Option<Timestamp>, clock: Clock) {
    let Some(at) = deadline else { return futures::future::pending().await };
    let wait = Duration::try_from(at.duration_since(clock.now())).unwrap_or_default();
    tokio::time::sleep(wait).await;
}
