//! One process of the controller: state, queues, watches and the work in hand. It dies, and another
//! process succeeds it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use controller_core::batching::Batching;
use controller_core::orphans::Orphans;
use controller_core::podgc::{self, Item, NamespaceView, NodeView};
use controller_core::state::{ClusterState, Entry, Event as StateEvent, Now};
use controller_core::view::{Job, JobKey, Pod, Version};
use controller_core::workqueue::{FailureDelay, QueueCore};
use epilogue_common::watch_event::WatchEvent;
use jiff::{SignedDuration, Timestamp};

use super::Sabotage;
use super::agenda::Moment;
use super::api::{Sighting, node_view};
use super::checks::InHand;
use super::work::{Task, Work};
use super::world::{Event, Kind, World};

/// Delays after failures, with the program's defaults.
const FAILURE_DELAY: FailureDelay =
    FailureDelay { base: Duration::from_secs(1), max: Duration::from_mins(1) };

/// Delays after failures of pod GC, with the program's figures.
const RETRY: FailureDelay =
    FailureDelay { base: Duration::from_millis(250), max: Duration::from_mins(1) };

/// Life cycle of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Holds the lease.
    Leads,
    /// Lost the lease without knowing it: continues the work in hand, and starts nothing new.
    Deposed,
    /// Crashed; calls on the wire may still arrive.
    Dead,
}

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) life: Life,
    pub(super) state: ClusterState,
    pub(super) queue: QueueCore<JobKey>,
    pub(super) orphan_queue: QueueCore<Orphans>,
    pub(super) works: BTreeMap<u64, Work>,
    pub(super) gc_queue: QueueCore<Item>,
    pub(super) checks: BTreeMap<u64, InHand>,
    /// Error of its clock.
    pub(super) skew: SignedDuration,
    jobs: Watch<Job>,
    pods: Watch<Pod>,
    nodes: Watch<NodeView>,
    /// When it next checks its queues.
    wake: Option<Moment>,
}

/// A watch of one kind.
#[derive(Debug)]
struct Watch<T> {
    position: usize,
    roused: bool,
    listed: bool,
    listing: Option<Listing<T>>,
}

/// A list in progress: its remaining objects, and its version.
#[derive(Debug)]
struct Listing<T> {
    items: VecDeque<Arc<T>>,
    version: Version,
}

/// What a watch has for its process.
enum Came {
    Event(StateEvent),
    /// An event that a later one includes.
    Merged,
    Nothing,
}

impl<T> Watch<T> {
    fn new() -> Self {
        Self { position: 0, roused: false, listed: false, listing: None }
    }

    /// The next event of the list in progress.
    fn list(&mut self) -> Option<WatchEvent<Arc<T>>> {
        let listing = self.listing.as_mut()?;
        if let Some(object) = listing.items.pop_front() {
            return Some(WatchEvent::Shown(object));
        }
        let version = listing.version.to_string();
        self.listing = None;
        self.listed = true;
        Some(WatchEvent::ListEnds(version))
    }
}

impl Process {
    fn new(skew: SignedDuration, pod_gc: Option<podgc::Settings>) -> Self {
        Self {
            life: Life::Leads,
            state: ClusterState::new(Batching::default(), pod_gc),
            queue: QueueCore::new(FAILURE_DELAY),
            orphan_queue: QueueCore::new(FAILURE_DELAY),
            works: BTreeMap::new(),
            gc_queue: QueueCore::new(RETRY),
            checks: BTreeMap::new(),
            skew,
            jobs: Watch::new(),
            pods: Watch::new(),
            nodes: Watch::new(),
            wake: None,
        }
    }

    /// Whether all caches are filled, which the workers wait for. ([Q7])
    pub(super) fn is_ready(&self) -> bool {
        self.life == Life::Leads && self.jobs.listed && self.pods.listed && self.nodes.listed
    }

    /// Syncs in hand, and items of the queue of orphans.
    pub(super) fn in_hand(&self) -> (usize, usize) {
        let is_sync = |work: &&Work| matches!(work.task, Task::Sync { .. });
        let syncs = self.works.values().filter(is_sync).count();
        (syncs, self.works.len() - syncs)
    }

    /// The time as this process sees it.
    pub(super) fn time(&self, api: Timestamp) -> Timestamp {
        api + self.skew
    }

    /// Hands an event to the state, and returns what it enqueues.
    fn handle(&mut self, event: StateEvent, api: Timestamp, now: Moment) -> Vec<Entry> {
        let has_backlog = self.queue.has_ready();
        let now = Now { time: self.time(api), elapsed: now, has_backlog };
        self.state.handle(event, &now).entries
    }

    /// Puts the consequences of an event into the queues.
    pub(super) fn enqueue(&mut self, entries: Vec<Entry>, now: Moment) {
        for entry in entries {
            match entry {
                Entry::Job(key, None) => self.queue.add(key, now),
                Entry::Job(key, Some(wait)) => self.queue.add_after(key, wait, now),
                Entry::Orphans(item, None) => self.orphan_queue.add(item, now),
                Entry::Orphans(item, Some(wait)) => self.orphan_queue.add_after(item, wait, now),
                Entry::Check(wake) => self.gc_queue.add_after(wake.item, wake.after, now),
            }
        }
    }
}

impl World {
    /// A new process takes the lease; the previous one is deposed, unless it is dead.
    pub(super) fn start_process(&mut self) {
        for process in &mut self.processes {
            if process.life == Life::Leads {
                process.life = Life::Deposed;
                self.ledger.two_leaders = true;
            }
        }
        let bound = if self.is_quiet() { 0 } else { self.behaviour.skew_seconds };
        let skew = SignedDuration::from_secs(i64::from(self.random.between(-bound, bound)));
        let number = self.processes.len();
        self.processes.push(Process::new(skew, self.behaviour.pod_gc.clone()));
        self.say(|_| format!("p{number} starts, its clock is off by {skew:#}"));
        self.list_namespaces(number);
        for kind in Kind::ALL {
            self.relist(number, kind);
        }
    }

    /// A watch breaks and lists again. Lists are consistent reads.
    pub(super) fn relist(&mut self, number: usize, kind: Kind) {
        self.say(|_| format!("p{number} lists {kind:?}"));
        let version = self.api.version();
        let process = &mut self.processes[number];
        match kind {
            Kind::Jobs => {
                let items = self.api.jobs.values().map(|stored| Arc::clone(&stored.view));
                process.jobs.position = self.api.job_log.len();
                process.jobs.listing = Some(Listing { items: items.collect(), version });
                self.hand_over(number, StateEvent::Job(WatchEvent::ListBegins));
            }
            Kind::Pods => {
                let mut items: Vec<Arc<Pod>> = self.api.pods.values().cloned().collect();
                self.random.shuffle(&mut items);
                process.pods.position = self.api.pod_log.len();
                process.pods.listing = Some(Listing { items: items.into(), version });
                self.hand_over(number, StateEvent::Pod(WatchEvent::ListBegins));
            }
            Kind::Nodes => {
                let items = self.api.nodes.values().map(|node| Arc::new(node_view(node)));
                process.nodes.position = self.api.node_log.len();
                process.nodes.listing = Some(Listing { items: items.collect(), version });
                self.hand_over(number, StateEvent::Node(WatchEvent::ListBegins));
            }
        }
        self.rouse(number, kind);
    }

    /// Lets a watch with pending events deliver them, in its own time.
    pub(super) fn rouse(&mut self, number: usize, kind: Kind) {
        let process = &mut self.processes[number];
        if process.life != Life::Leads {
            return;
        }
        let (roused, pending) = match kind {
            Kind::Jobs => {
                let watch = &mut process.jobs;
                let more = watch.position < self.api.job_log.len() || watch.listing.is_some();
                (&mut watch.roused, more)
            }
            Kind::Pods => {
                let watch = &mut process.pods;
                let more = watch.position < self.api.pod_log.len() || watch.listing.is_some();
                (&mut watch.roused, more)
            }
            Kind::Nodes => {
                let watch = &mut process.nodes;
                let more = watch.position < self.api.node_log.len() || watch.listing.is_some();
                (&mut watch.roused, more)
            }
        };
        if !pending || *roused {
            return;
        }
        *roused = true;
        let delay = self.watch_delay(kind);
        self.agenda.after(delay, Event::Watch { process: number, kind });
    }

    /// Nodes change rarely, so their watch stalls more often than others do. Otherwise the cases
    /// would hardly come up.
    fn watch_delay(&mut self, kind: Kind) -> Duration {
        let stalls = !self.is_quiet() && self.behaviour.watch_stalls > 0;
        if kind == Kind::Nodes && stalls && self.random.percent(20) {
            return self.random.millis(10_000, 200_000);
        }
        if self.is_quiet() || !self.random.per_mille(self.behaviour.watch_stalls) {
            return self.random.millis(1, 30);
        }
        match self.random.below(10) {
            0 => self.random.millis(10_000, 400_000),
            1..4 => self.random.millis(2_000, 20_000),
            _ => self.random.millis(100, 3_000),
        }
    }

    /// A watch delivers some events, part of a list, or breaks.
    pub(super) fn deliver(&mut self, number: usize, kind: Kind) {
        let breaks = self.behaviour.watch_breaks;
        let process = &mut self.processes[number];
        let (roused, listing) = match kind {
            Kind::Jobs => (&mut process.jobs.roused, process.jobs.listing.is_some()),
            Kind::Pods => (&mut process.pods.roused, process.pods.listing.is_some()),
            Kind::Nodes => (&mut process.nodes.roused, process.nodes.listing.is_some()),
        };
        *roused = false;
        if process.life != Life::Leads {
            return;
        }
        if !self.is_quiet() && self.random.per_mille(breaks) {
            self.relist(number, kind);
            return;
        }
        let position = match kind {
            Kind::Jobs => self.processes[number].jobs.position,
            Kind::Pods => self.processes[number].pods.position,
            Kind::Nodes => self.processes[number].nodes.position,
        };
        let count = 1 + self.random.below(if self.behaviour.coalesces { 12 } else { 4 });
        for _ in 0..count {
            let came = match (kind, listing) {
                (Kind::Jobs, true) => self.list_jobs(number),
                (Kind::Pods, true) => self.list_pods(number),
                (Kind::Nodes, true) => self.list_nodes(number),
                (Kind::Jobs, false) => self.watch_jobs(number, position + count),
                (Kind::Pods, false) => self.watch_pods(number, position + count),
                (Kind::Nodes, false) => self.watch_nodes(number),
            };
            match came {
                Came::Event(event) => self.hand_over(number, event),
                Came::Merged => {}
                Came::Nothing => break,
            }
        }
        self.check_queues(number);
    }

    /// The API sends bookmarks to watches without pending events.
    pub(super) fn bookmark(&mut self) {
        let Some(number) = self.leader() else { return };
        let version = self.api.version();
        let process = &mut self.processes[number];
        let up_to = version.to_string();
        let jobs = process.jobs.listed && process.jobs.position == self.api.job_log.len();
        let pods = process.pods.listed && process.pods.position == self.api.pod_log.len();
        if jobs {
            self.hand_over(number, StateEvent::Job(WatchEvent::UpTo(up_to.clone())));
        }
        if pods {
            self.hand_over(number, StateEvent::Pod(WatchEvent::UpTo(up_to)));
        }
        self.check_queues(number);
    }

    fn list_jobs(&mut self, number: usize) -> Came {
        let watch = &mut self.processes[number].jobs;
        let Some(event) = watch.list() else { return Came::Nothing };
        Came::Event(StateEvent::Job(event))
    }

    fn list_pods(&mut self, number: usize) -> Came {
        let watch = &mut self.processes[number].pods;
        let Some(event) = watch.list() else { return Came::Nothing };
        Came::Event(StateEvent::Pod(event))
    }

    /// The next event. It may skip an update that a later one follows before `until`: events
    /// delivered together may be merged.
    fn watch_jobs(&mut self, number: usize, until: usize) -> Came {
        let position = self.processes[number].jobs.position;
        let Some(sighting) = self.api.job_log.get(position) else { return Came::Nothing };
        self.processes[number].jobs.position += 1;
        let event = match sighting {
            Sighting::Shown(job) => {
                let again = |later: &Sighting<Job>| match later {
                    Sighting::Shown(other) => other.uid == job.uid,
                    Sighting::Gone(..) => false,
                };
                let until = until.min(self.api.job_log.len()).max(position + 1);
                let merges = self.behaviour.coalesces
                    && self.api.job_log[position + 1..until].iter().any(again);
                if merges {
                    return Came::Merged;
                }
                WatchEvent::Shown(Arc::clone(job))
            }
            Sighting::Gone(job, version) => {
                let mut last = Job::clone(job);
                last.version = *version;
                WatchEvent::Gone(Arc::new(last))
            }
        };
        Came::Event(StateEvent::Job(event))
    }

    fn watch_pods(&mut self, number: usize, until: usize) -> Came {
        let position = self.processes[number].pods.position;
        let Some(sighting) = self.api.pod_log.get(position) else { return Came::Nothing };
        self.processes[number].pods.position += 1;
        let event = match sighting {
            Sighting::Shown(pod) => {
                let again =
                    |later: &Sighting<Pod>| later.shown().is_some_and(|it| it.uid == pod.uid);
                let until = until.min(self.api.pod_log.len()).max(position + 1);
                let merges = self.behaviour.coalesces
                    && self.api.pod_log[position + 1..until].iter().any(again);
                if merges {
                    return Came::Merged;
                }
                WatchEvent::Shown(Arc::clone(pod))
            }
            Sighting::Gone(pod, version) => {
                let mut last = Pod::clone(pod);
                last.version = *version;
                WatchEvent::Gone(Arc::new(last))
            }
        };
        Came::Event(StateEvent::Pod(event))
    }

    fn list_nodes(&mut self, number: usize) -> Came {
        let watch = &mut self.processes[number].nodes;
        let Some(event) = watch.list() else { return Came::Nothing };
        Came::Event(StateEvent::Node(event.map(Arc::unwrap_or_clone)))
    }

    fn watch_nodes(&mut self, number: usize) -> Came {
        let watch = &mut self.processes[number].nodes;
        let Some(sighting) = self.api.node_log.get(watch.position) else { return Came::Nothing };
        watch.position += 1;
        let event = match sighting {
            Sighting::Shown(node) => WatchEvent::Shown(NodeView::clone(node)),
            Sighting::Gone(node, _) => WatchEvent::Gone(NodeView::clone(node)),
        };
        Came::Event(StateEvent::Node(event))
    }

    /// The policies of namespaces stay as they are.
    fn list_namespaces(&mut self, number: usize) {
        let force_fail_after = self.behaviour.force_fail_after;
        let namespace = NamespaceView { name: "ns".to_owned(), force_fail_after };
        for event in [
            WatchEvent::ListBegins,
            WatchEvent::Shown(namespace),
            WatchEvent::ListEnds(String::new()),
        ] {
            self.hand_over(number, StateEvent::Namespace(event));
        }
    }

    /// Hands an event to a process, and puts its consequences into the queues.
    fn hand_over(&mut self, number: usize, mut event: StateEvent) {
        if let StateEvent::Node(WatchEvent::Shown(node)) = &mut event
            && self.sabotage == Some(Sabotage::EndSilent)
        {
            node.out_of_service |= node.is_silent();
        }
        let ends = match &event {
            StateEvent::Pod(WatchEvent::Shown(pod)) => pod.is_terminal(),
            StateEvent::Pod(WatchEvent::Gone(_)) => true,
            _ => false,
        };
        let (api, now) = (self.api.now, self.agenda.now());
        let mut entries = self.processes[number].handle(event, api, now);
        if ends && self.sabotage == Some(Sabotage::MissEvents) {
            entries.retain(|_| self.random.percent(50));
        }
        self.processes[number].enqueue(entries, now);
    }

    /// Wakes the workers: something may be due.
    pub(super) fn check_queues(&mut self, number: usize) {
        let now = self.agenda.now();
        let process = &mut self.processes[number];
        if !process.is_ready() {
            return;
        }
        let (syncs, orphans) = process.in_hand();
        let (syncs, orphans) = (syncs < self.behaviour.workers, orphans == 0);
        let ready = (syncs && process.queue.has_ready())
            || (orphans && process.orphan_queue.has_ready())
            || process.gc_queue.has_ready();
        let due = [
            process.queue.next_due().filter(|_| syncs),
            process.orphan_queue.next_due().filter(|_| orphans),
            process.gc_queue.next_due(),
        ];
        let due = due.into_iter().flatten().min();
        let Some(at) = (if ready { Some(now) } else { due }) else { return };
        let at = at.max(now);
        if process.wake.is_none_or(|wake| wake > at || wake < now) {
            process.wake = Some(at);
            let hesitation = self.random.millis(0, 2);
            self.agenda.after(at.saturating_sub(now) + hesitation, Event::Work { process: number });
        }
    }

    /// The workers have checked.
    pub(super) fn awake(&mut self, number: usize) {
        self.processes[number].wake = None;
    }
}
