//! One process of the controller: state, queues and the work in hand. It dies, and another
//! process succeeds it.

use std::collections::BTreeMap;
use std::time::Duration;

use controller_core::batching::Batching;
use controller_core::orphans::Orphans;
use controller_core::podgc::{self, Item};
use controller_core::state::{ClusterState, Entry, Event as StateEvent, Now};
use controller_core::view::JobKey;
use controller_core::workqueue::{FailureDelay, QueueCore};
use epilogue_common::watch_event::WatchEvent;
use jiff::{SignedDuration, Timestamp};

use super::Sabotage;
use super::agenda::Moment;
use super::checks::InHand;
use super::situations::Met;
use super::watches::{Kind, Watches};
use super::work::{Task, Work};
use super::world::{Event, World};

/// Delays after failures, with the program's defaults.
const FAILURE_DELAY: FailureDelay =
    FailureDelay { base: Duration::from_secs(1), max: Duration::from_mins(1) };

/// Delays after failures of pod GC, with the program's figures.
const RETRY: FailureDelay =
    FailureDelay { base: Duration::from_millis(250), max: Duration::from_mins(1) };

/// How long a process that was deposed may go on: the renew deadline, with the program's default.
const NOTICES_WITHIN: Duration = Duration::from_secs(10);

/// Life cycle of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Holds the lease.
    Leads,
    /// Lost the lease without knowing it: continues the work in hand, and starts nothing new. It
    /// ends within [`NOTICES_WITHIN`]; what it has sent may arrive later still.
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
    /// Whether its calls wait for a limit of requests, so that counts of new pods wait for long.
    is_limited: bool,
    /// Error of its clock.
    pub(super) skew: SignedDuration,
    pub(super) watches: Watches,
    /// Whether its queues are open.
    open: bool,
    /// When it next checks its queues.
    wake: Option<Moment>,
}

impl Process {
    fn new(
        skew: SignedDuration,
        is_limited: bool,
        pod_gc: Option<podgc::Settings>,
        serves_groups: bool,
    ) -> Self {
        let mut state = ClusterState::new(Batching::default(), pod_gc);
        let (time, elapsed) = (Timestamp::default(), Moment::ZERO);
        let now = Now { time, elapsed, has_backlog: false, is_limited };
        // No object is known yet, so nothing is enqueued.
        let _ = state.serve_groups(serves_groups, &now);
        Self {
            life: Life::Leads,
            state,
            queue: QueueCore::new(FAILURE_DELAY),
            orphan_queue: QueueCore::new(FAILURE_DELAY),
            works: BTreeMap::new(),
            gc_queue: QueueCore::new(RETRY),
            checks: BTreeMap::new(),
            is_limited,
            skew,
            watches: Watches::default(),
            open: false,
            wake: None,
        }
    }

    /// Whether all caches are filled, which the workers wait for. ([Q7])
    pub(super) fn is_ready(&self) -> bool {
        self.life == Life::Leads && self.watches.are_listed()
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

    /// The time as this process sees it, and its load.
    pub(super) fn moment(&self, api: Timestamp, elapsed: Moment) -> Now {
        let (has_backlog, is_limited) = (self.queue.has_ready(), self.is_limited);
        Now { time: self.time(api), elapsed, has_backlog, is_limited }
    }

    /// Hands an event to the state, and returns what it enqueues. Until all lists are complete,
    /// that is nothing; then it is everything.
    fn handle(&mut self, event: StateEvent, api: Timestamp, now: Moment) -> Vec<Entry> {
        let now = self.moment(api, now);
        let entries = self.state.handle(event, &now).entries;
        if self.open {
            return entries;
        }
        self.open = self.is_ready();
        if self.open { self.state.everything(&now) } else { Vec::new() }
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
        for (number, process) in self.processes.iter_mut().enumerate() {
            if process.life == Life::Leads {
                process.life = Life::Deposed;
                self.ledger.two_leaders = true;
                self.agenda.after(NOTICES_WITHIN, Event::Deposed { process: number });
            }
        }
        let bound = if self.is_quiet() { 0 } else { self.behaviour.skew_seconds };
        let skew = SignedDuration::from_secs(i64::from(self.random.between(-bound, bound)));
        if skew.abs() > SignedDuration::from_secs(1) {
            self.met(Met::Skew);
        }
        let number = self.processes.len();
        let mut pod_gc = self.behaviour.pod_gc.clone();
        if let (Some(settings), Some(sabotage)) = (&mut pod_gc, self.sabotage) {
            sabotage.configure(settings);
        }
        let (is_limited, groups) = (self.behaviour.is_limited, self.api.serves_groups);
        self.processes.push(Process::new(skew, is_limited, pod_gc, groups));
        self.say(|_| format!("p{number} starts, its clock is off by {skew:#}"));
        for &kind in Kind::of(&self.api) {
            self.relist(number, kind);
        }
    }

    /// A process learns that it was deposed, and exits; calls on the wire may still arrive.
    pub(super) fn exit(&mut self, number: usize) {
        self.say(|_| format!("p{number} exits, no longer leading"));
        self.processes[number].life = Life::Dead;
    }

    /// Hands an event to a process, and puts its consequences into the queues.
    pub(super) fn hand_over(&mut self, number: usize, mut event: StateEvent) {
        if let Some(sabotage) = self.sabotage {
            sabotage.distort(&mut event);
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
