//! Reads the counters of the cgroups when the kernel reports a change, and periodically in any
//! case.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use agent_core::protocol::event::Event;
use agent_core::protocol::pressure::{OomKill, OomWitness};
use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::fate::lives_on;
use super::tree::{Found, Tree};
use super::watches::{Signs, Watches};
use crate::cgroups::Cgroups;
use crate::clock::Clock;
use crate::host::Host;
use crate::source::tell;

/// Minimum time between two reads of a counter; a container that is held at its limit changes it
/// all the time.
const PAUSE: Duration = Duration::from_millis(10);
/// Time between two reads of everything, for changes that a watch missed, and until pods exist.
const PERIOD: Duration = Duration::from_secs(10);
/// The same if the kernel gives no more watches.
const PERIOD_UNWATCHED: Duration = Duration::from_secs(1);
/// Maximum number of containers whose end is awaited at once; further kills are dropped.
const AT_ONCE_MAX: usize = 256;

/// A kill, and the cgroup of its container.
type Ending<'a> = BoxFuture<'a, (Option<PathBuf>, OomKill)>;

/// Reports kills.
pub(super) struct MemoryEvents<'a> {
    host: &'a Host,
    clock: &'a Clock,
    events: &'a mpsc::Sender<Event>,
    tree: Tree,
    ending: FuturesUnordered<Ending<'a>>,
    /// Containers whose end is awaited: further kills in them belong to the same incident.
    waited_for: BTreeSet<PathBuf>,
}

impl<'a> MemoryEvents<'a> {
    pub(super) fn new(host: &'a Host, clock: &'a Clock, events: &'a mpsc::Sender<Event>) -> Self {
        let tree = Tree::new(host.clone());
        Self {
            host,
            clock,
            events,
            tree,
            ending: FuturesUnordered::new(),
            waited_for: BTreeSet::new(),
        }
    }

    /// Runs forever, unless there is no cgroup v2.
    pub(super) async fn run(mut self) {
        if Cgroups::of(self.host).is_none() {
            return;
        }
        loop {
            match Watches::new() {
                Ok(watches) => self.watch(watches).await,
                Err(error) => {
                    tracing::warn!(%error, "cgroups can't be watched: OOM kills are missed");
                }
            }
            sleep(PERIOD).await;
        }
    }

    /// Runs until the watches fail.
    async fn watch(&mut self, mut watches: Watches) {
        self.tree.list(&mut watches, Instant::now());
        let mut due = Instant::now() + PERIOD;
        let mut open_at = Instant::now();
        loop {
            let next = async {
                sleep_until(open_at).await;
                watches.next().await
            };
            let signs = tokio::select! {
                biased;
                Some((cgroup, kill)) = self.ending.next(), if !self.ending.is_empty() => {
                    if let Some(cgroup) = cgroup {
                        self.waited_for.remove(&cgroup);
                    }
                    tell(self.events, Event::OomKilled(Box::new(kill))).await;
                    continue;
                }
                signs = next => match signs {
                    Ok(signs) => signs,
                    Err(error) => {
                        tracing::warn!(%error, "the watches of the cgroups are lost");
                        self.tree = Tree::new(self.host.clone());
                        return;
                    }
                },
                () = sleep_until(due) => Signs { lost: true, ..Signs::default() },
            };
            self.take(&signs, &mut watches);
            let now = Instant::now();
            open_at = now + PAUSE;
            if due <= now {
                let unexplained = self.tree.unexplained(now);
                self.follow(unexplained);
                due = now + if watches.is_refused() { PERIOD_UNWATCHED } else { PERIOD };
            }
        }
    }

    fn take(&mut self, signs: &Signs, watches: &mut Watches) {
        let now = Instant::now();
        // Read counters before cgroups that are gone are dropped.
        for pod in &signs.pods {
            let found = self.tree.check(pod, now);
            self.follow(found);
        }
        if signs.listed || signs.lost {
            self.tree.list(watches, now);
            let found = self.tree.check_all(now);
            self.follow(found);
        }
    }

    fn follow(&mut self, found: Vec<Found>) {
        for found in found {
            let again =
                found.cgroup.as_ref().is_some_and(|cgroup| self.waited_for.contains(cgroup));
            if again || self.ending.len() >= AT_ONCE_MAX {
                continue;
            }
            self.waited_for.extend(found.cgroup.clone());
            self.ending.push(self.end(found));
        }
    }

    /// The kill, once it is known what happened to the container.
    fn end(&self, found: Found) -> Ending<'a> {
        let (host, at) = (self.host, self.clock.now().monotonic);
        async move {
            let container_lives = match (&found.cgroup, &found.container_id) {
                (Some(cgroup), _) => lives_on(host, cgroup).await,
                (None, Some(_)) => Some(false),
                (None, None) => None,
            };
            let kill = OomKill {
                pod: found.pod,
                container_id: found.container_id,
                constraint: found.constraint,
                limit: found.limit,
                process: None,
                container_lives,
                witness: OomWitness::MemoryEvents,
                at,
            };
            (found.cgroup, kill)
        }
        .boxed()
    }
}
