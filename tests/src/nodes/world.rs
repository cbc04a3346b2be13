//! All pods of the simulated nodes, without IO: which pod belongs to which node, its attempt, and
//! which writes are due, now or later.

mod processes;
mod restart;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Bind;
use super::machine::{Cause, Need, Pace, PodMachine};
use super::pod::{PodView, Uid};
use super::processes::{Change, Observer, Processes};
use super::script::Script;
use super::status::Address;

const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The settings of the world.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) nodes: Vec<String>,
    pub(super) bind: Bind,
    pub(super) pace: Pace,
    pub(super) shutdown_grace: Duration,
    pub(super) script: Script,
    pub(super) observer: Option<Observer>,
}

/// The current state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    Up,
    ShuttingDown,
    /// Its kubelet is dead; processes go on.
    Headless,
    /// Writes nothing: shut down or vanished.
    Silent,
}

/// One write, ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) uid: Uid,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) node: usize,
    pub(super) kind: WriteKind,
}

#[derive(Clone, Debug)]
pub(super) enum WriteKind {
    Bind { node: String, unless_tainted: bool },
    Pod(Need),
}

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WriteResult {
    Done,
    /// The pod is gone.
    Gone,
    /// Worth a retry.
    Retry,
    /// The API rejects it as invalid or forbidden.
    Refused(String),
}

/// Counts of the simulated nodes since they started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub pods_seen: u64,
    pub bound: u64,
    pub statuses_written: u64,
    pub deleted: u64,
    pub retries: u64,
    /// Writes that the API rejected as invalid or forbidden, with its last message about one.
    pub refused: u64,
    pub refused_last: Option<String>,
    pub watch_errors: u64,
}

#[derive(Debug)]
struct Node {
    name: String,
    state: NodeState,
    in_flight: usize,
}

#[derive(Debug)]
struct Tracked {
    view: PodView,
    node: usize,
    earlier: u32,
    /// `None` until the pod is bound.
    machine: Option<PodMachine>,
    /// What the observer knows.
    observed: Processes,
    ordinal: u32,
    in_flight: bool,
    queued: bool,
    wakes: Option<Timestamp>,
    failures: u32,
    retry_at: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) struct World {
    settings: Settings,
    nodes: Vec<Node>,
    next_node: usize,
    ordinal: u32,
    /// In an order that does not vary, so that runs replay.
    pods: BTreeMap<Uid, Tracked>,
    attempts: HashMap<(Arc<str>, Option<u32>), u32>,
    queue: VecDeque<Uid>,
    timers: BTreeSet<(Timestamp, Uid)>,
    stats: Stats,
}

impl World {
    pub(super) fn new(settings: Settings) -> Self {
        let node = |name: &String| Node { name: name.clone(), state: NodeState::Up, in_flight: 0 };
        let nodes = settings.nodes.iter().map(node).collect();
        Self {
            settings,
            nodes,
            next_node: 0,
            ordinal: 0,
            pods: BTreeMap::new(),
            attempts: HashMap::new(),
            queue: VecDeque::new(),
            timers: BTreeSet::new(),
            stats: Stats::default(),
        }
    }

    pub(super) fn watch_failed(&mut self) {
        self.stats.watch_errors += 1;
    }

    pub(super) fn stats(&self) -> &Stats {
        &self.stats
    }

    pub(super) fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// Replaces the whole state by a complete list: a missing pod is gone.
    pub(super) fn replace(&mut self, mut list: Vec<PodView>, now: Timestamp) {
        let listed: HashSet<Uid> = list.iter().map(|pod| pod.uid.clone()).collect();
        let lost: Vec<Uid> =
            self.pods.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        for uid in lost {
            self.forget(&uid);
        }
        // Attempts count in the order of creation; a list comes in the order of names.
        list.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
        for pod in list {
            self.observe(pod, now);
        }
    }

    /// Takes in the watch's state of one pod.
    pub(super) fn observe(&mut self, view: PodView, now: Timestamp) {
        let uid = view.uid.clone();
        if let Some(tracked) = self.pods.get_mut(&uid) {
            tracked.view = view;
        } else if let Some(tracked) = self.track(view) {
            self.pods.insert(uid.clone(), tracked);
        } else {
            return;
        }
        let Some(tracked) = self.pods.get_mut(&uid) else { return };
        let node = self.nodes.get(tracked.node);
        let is_headless = node.is_some_and(|node| node.state == NodeState::Headless);
        if is_headless && tracked.view.node.is_some() {
            return self.enqueue(&uid);
        }
        if let Some(bound) = tracked.view.node.clone()
            && tracked.machine.is_none()
        {
            let Some(node) = self.nodes.iter().position(|node| node.name == bound) else {
                // A scheduler was faster and chose a node that is not ours.
                self.forget(&uid);
                return;
            };
            tracked.node = node;
            tracked.take_on(&self.settings, self.nodes[node].state, now);
        } else if let Some(machine) = &mut tracked.machine {
            machine.observe(&tracked.view, now);
            if machine.reported() && !self.settings.pace.remembers {
                tracked.view.containers = Vec::new();
            }
        }
        self.tell(&uid);
        self.enqueue(&uid);
    }

    /// The pod is no longer in the API.
    pub(super) fn forget(&mut self, uid: &Uid) {
        let Some(tracked) = self.pods.remove(uid) else { return };
        if let Some(at) = tracked.wakes {
            self.timers.remove(&(at, uid.clone()));
        }
        if let Some(observer) = &self.settings.observer
            && tracked.observed != Processes::None
        {
            let node = &self.nodes[tracked.node].name;
            observer.tell(Change { node, uid, container: "", now: None });
        }
    }

    /// The next write that is due, if any.
    pub(super) fn poll(&mut self, now: Timestamp) -> Option<Write> {
        while let Some((at, uid)) = self.timers.first()
            && *at <= now
        {
            let uid = uid.clone();
            self.timers.pop_first();
            if let Some(tracked) = self.pods.get_mut(&uid) {
                tracked.wakes = None;
            }
            self.enqueue(&uid);
        }
        while let Some(uid) = self.queue.pop_front() {
            let write = self.next_write(&uid, now);
            self.tell(&uid);
            if write.is_some() {
                return write;
            }
        }
        None
    }

    /// When `poll` may return something again without an event.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The result of a write that `poll` returned.
    pub(super) fn finished(&mut self, write: &Write, result: WriteResult, now: Timestamp) {
        self.nodes[write.node].in_flight -= 1;
        let Some(tracked) = self.pods.get_mut(&write.uid) else { return };
        tracked.in_flight = false;
        match result {
            WriteResult::Done => {
                self.stats.count(&write.kind);
                tracked.accept(write, &self.settings, self.nodes[write.node].state, now);
            }
            WriteResult::Gone => return self.forget(&write.uid),
            WriteResult::Retry => {
                self.stats.retries += 1;
                tracked.try_later(now);
            }
            WriteResult::Refused(words) => {
                // Retried all the same: the policy or quota that refuses it can go away.
                self.stats.refused += 1;
                self.stats.refused_last = Some(format!("{}: {words}", write.name));
                tracked.try_later(now);
            }
        }
        self.enqueue(&write.uid);
    }

    /// Terminates all pods of a node, as the kubelet does when the machine goes down.
    pub(super) fn shut_down(&mut self, node: usize, now: Timestamp) {
        self.nodes[node].state = NodeState::ShuttingDown;
        let grace_max = self.settings.shutdown_grace;
        for tracked in self.pods.values_mut().filter(|tracked| tracked.node == node) {
            let grace = Duration::from_secs(tracked.view.grace_seconds.max(1)).min(grace_max);
            if let Some(machine) = &mut tracked.machine {
                machine.stop(Cause::shutdown(), grace, now);
            }
        }
        self.enqueue_node(node);
    }

    /// The node writes nothing from now on; writes under way may still arrive.
    pub(super) fn silence(&mut self, node: usize) {
        self.nodes[node].state = NodeState::Silent;
    }

    /// The node answers again and continues with its pods.
    pub(super) fn revive(&mut self, node: usize, now: Timestamp) {
        let before = std::mem::replace(&mut self.nodes[node].state, NodeState::Up);
        if before == NodeState::Headless {
            for tracked in self.pods.values_mut().filter(|tracked| tracked.node == node) {
                match &mut tracked.machine {
                    Some(machine) => machine.adopt(&tracked.view, now),
                    None if tracked.view.node.is_some() => {
                        tracked.take_on(&self.settings, NodeState::Up, now);
                    }
                    None => {}
                }
            }
        }
        self.enqueue_node(node);
    }

    /// Whether no write of the node is under way.
    pub(super) fn is_quiet(&self, node: usize) -> bool {
        self.nodes[node].in_flight == 0
    }

    /// Whether the end of every pod of the node is in the API.
    pub(super) fn is_drained(&self, node: usize) -> bool {
        let mut machines = self.pods.values().filter(|t| t.node == node).map(|t| &t.machine);
        self.is_quiet(node) && machines.all(|m| m.as_ref().is_none_or(PodMachine::reported))
    }

    fn track(&mut self, view: PodView) -> Option<Tracked> {
        let node = match &view.node {
            Some(name) => self.node(name)?,
            None => 0,
        };
        let earlier = view.owner.clone().map_or(0, |owner| {
            let count = self.attempts.entry((owner, view.index)).or_default();
            *count += 1;
            *count - 1
        });
        self.ordinal = self.ordinal.wrapping_add(1);
        self.stats.pods_seen += 1;
        Some(Tracked {
            view,
            node,
            earlier,
            machine: None,
            observed: Processes::None,
            ordinal: self.ordinal,
            in_flight: false,
            queued: false,
            wakes: None,
            failures: 0,
            retry_at: None,
        })
    }

    fn enqueue(&mut self, uid: &Uid) {
        if let Some(tracked) = self.pods.get_mut(uid)
            && !tracked.queued
            && !tracked.in_flight
        {
            tracked.queued = true;
            self.queue.push_back(uid.clone());
        }
    }

    /// Requeues the pods of a node, and those that wait for any node.
    fn enqueue_node(&mut self, node: usize) {
        let affected = |(_, t): &(&Uid, &Tracked)| t.node == node || t.machine.is_none();
        let uids: Vec<Uid> =
            self.pods.iter().filter(affected).map(|(uid, _)| uid.clone()).collect();
        for uid in uids {
            self.enqueue(&uid);
        }
    }

    fn next_write(&mut self, uid: &Uid, now: Timestamp) -> Option<Write> {
        let tracked = self.pods.get_mut(uid)?;
        tracked.queued = false;
        if tracked.in_flight {
            return None;
        }
        if let Some(at) = tracked.retry_at.filter(|at| *at > now) {
            self.wake(uid, at);
            return None;
        }
        let kind = match &mut tracked.machine {
            None => self.binding(uid)?,
            Some(_) if self.nodes[tracked.node].state == NodeState::Silent => return None,
            Some(machine) if self.nodes[tracked.node].state == NodeState::Headless => {
                let at = machine.pass(&tracked.view, now)?;
                self.wake(uid, at);
                return None;
            }
            Some(machine) => {
                let Some(need) = machine.need(&tracked.view, now) else {
                    let at = machine.deadline()?;
                    self.wake(uid, at);
                    return None;
                };
                WriteKind::Pod(need)
            }
        };
        let tracked = self.pods.get_mut(uid)?;
        tracked.in_flight = true;
        self.nodes[tracked.node].in_flight += 1;
        Some(Write {
            uid: uid.clone(),
            namespace: tracked.view.namespace.clone(),
            name: tracked.view.name.clone(),
            node: tracked.node,
            kind,
        })
    }

    /// Chooses the node of an unscheduled pod, round robin over the nodes that are up.
    fn binding(&mut self, uid: &Uid) -> Option<WriteKind> {
        let tracked = self.pods.get_mut(uid)?;
        let view = &tracked.view;
        let mine = self.settings.bind != Bind::Never && !view.gated && view.ended.is_none();
        let mine = mine && view.node.is_none();
        if !mine || view.deletion_grace_seconds.is_some() {
            return None;
        }
        let order = (0..self.nodes.len()).map(|n| (self.next_node + n) % self.nodes.len());
        let chosen = order.into_iter().find(|n| self.nodes[*n].state == NodeState::Up)?;
        self.next_node = chosen + 1;
        tracked.node = chosen;
        let unless_tainted = self.settings.bind == Bind::Untainted;
        Some(WriteKind::Bind { node: self.nodes[chosen].name.clone(), unless_tainted })
    }

    fn wake(&mut self, uid: &Uid, at: Timestamp) {
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        if let Some(old) = tracked.wakes.replace(at) {
            self.timers.remove(&(old, uid.clone()));
        }
        self.timers.insert((at, uid.clone()));
    }
}

impl Tracked {
    /// The pod is bound: its node's kubelet sees it.
    fn take_on(&mut self, settings: &Settings, node: NodeState, now: Timestamp) {
        let script = match &self.view.script {
            Some(text) => Script::parse(text),
            None => Ok(settings.script.clone()),
        };
        let address = Address::new(self.node, self.ordinal);
        let view = &self.view;
        let mut machine = PodMachine::new(view, script, self.earlier, address, settings.pace, now);
        if node == NodeState::ShuttingDown {
            let message = "Pod was rejected as the node is shutting down.".to_owned();
            machine.reject("NodeShutdown", message, now);
        }
        self.machine = Some(machine);
    }

    fn try_later(&mut self, now: Timestamp) {
        let wait = RETRY_FIRST.saturating_mul(2u32.saturating_pow(self.failures)).min(RETRY_MAX);
        self.failures += 1;
        self.retry_at = Some(now + wait);
    }

    fn accept(&mut self, write: &Write, settings: &Settings, node: NodeState, now: Timestamp) {
        self.failures = 0;
        self.retry_at = None;
        match (&write.kind, &mut self.machine) {
            // The watch may have shown the binding already.
            (WriteKind::Bind { .. }, None) => self.take_on(settings, node, now),
            (WriteKind::Pod(need), Some(machine)) => machine.written(need),
            _ => {}
        }
    }
}

impl Stats {
    fn count(&mut self, kind: &WriteKind) {
        match kind {
            WriteKind::Bind { .. } => self.bound += 1,
            WriteKind::Pod(Need::Status(_)) => self.statuses_written += 1,
            WriteKind::Pod(Need::Delete) => self.deleted += 1,
            WriteKind::Pod(Need::Event { .. }) => {}
        }
    }
}

#[cfg(test)]
mod tests;
