//! Holds all pods and nodes as the watches show them, with their history, and names the items to
//! check.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use epilogue_common::names::job_option::FORCE_FAIL_AFTER;
use jiff::{SignedDuration, Timestamp};

use super::case::{Case, Cause, Verdict};
use super::evidence::ForceFailPolicy;
use super::finished::{Excess, Finished};
use super::missing_node::{MissingNode, NodeState};
use super::node::{NodeRecord, NodeView, WireNode};
use super::settings::{Mode, Settings};
use super::stale_taint::stale_from;
use super::verdict::verdict;
use crate::go_duration::GoDuration;
use crate::view::{Interner, Pod, Uid, Version, WirePod};
use crate::workqueue::Key;

/// After so many events the interner is swept.
const EVENTS_PER_SWEEP: u32 = 20_000;
/// The delay between two searches for excess finished pods, so that a list of many costs one
/// search.
const EXCESS_DELAY: Duration = Duration::from_secs(1);

/// An item to check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// A missing node that pods name, or a node with a stale taint.
    Node(Arc<str>),
    /// A pod, and its namespace.
    Pod(Arc<str>, Uid),
    /// The search for excess finished pods.
    Excess,
}

impl Key for Item {
    fn namespace(&self) -> &str {
        match self {
            Self::Pod(namespace, _) => namespace,
            Self::Node(_) | Self::Excess => "",
        }
    }
}

/// The priority of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A controller or a user may wait for this pod to terminate.
    Ending,
    /// The check only frees space.
    Tidying,
}

/// A check to schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The item.
    pub item: Item,
    /// Its priority.
    pub priority: Priority,
    /// The delay before the check.
    pub after: Duration,
}

/// The cluster.
#[derive(Debug, Default)]
pub struct Cluster {
    settings: Settings,
    pods: HashMap<Uid, PodRecord>,
    by_node: HashMap<Arc<str>, HashSet<Uid>>,
    nodes: HashMap<Arc<str>, NodeRecord>,
    /// Missing nodes that pods name; empty until all nodes were listed.
    missing_nodes: HashMap<Arc<str>, MissingNode>,
    /// The force-fail policies of namespaces for their Jobs' pods.
    policies: HashMap<Arc<str>, SignedDuration>,
    finished: Finished,
    excess: HashMap<Uid, Excess>,
    interner: Interner,
    events: u32,
    nodes_listed: bool,
    pod_list: Option<HashSet<Uid>>,
    node_list: Option<HashSet<Arc<str>>>,
    namespace_list: Option<HashSet<Arc<str>>>,
}

#[derive(Debug)]
struct PodRecord {
    view: Pod,
    /// The boot of its node in which its deletion was first seen.
    deleted_in: Option<Arc<str>>,
    /// When we set its DisruptionTarget.
    marked_at: Option<Timestamp>,
    /// The first version that shows our writes to it.
    shown_from: Version,
    /// Whether a write to it is in progress; its calls show one by one.
    in_hand: bool,
}

impl Cluster {
    /// An empty cluster.
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// A list of all pods begins.
    pub fn pods_begin(&mut self) {
        self.pod_list = Some(HashSet::new());
    }

    /// A pod was listed, added or modified.
    pub fn pod_shown(&mut self, pod: &WirePod, now: Timestamp) -> Vec<Wake> {
        self.events += 1;
        if self.events >= EVENTS_PER_SWEEP {
            self.events = 0;
            self.interner.sweep();
        }
        let view = pod.clone().view(&mut self.interner);
        let uid = view.uid.clone();
        if let Some(list) = &mut self.pod_list {
            list.insert(uid.clone());
        }
        let mut wakes = Vec::new();
        if self.settings.mode != Mode::Off && self.finished.show(&view, &self.settings) {
            wakes.push(excess_wake());
        }
        self.insert(view);
        self.wake(&uid, now, &mut wakes);
        wakes
    }

    /// A pod was deleted.
    pub fn pod_gone(&mut self, uid: &Uid) {
        self.finished.remove(uid);
        self.excess.remove(uid);
        let Some(record) = self.pods.remove(uid) else { return };
        self.unbind(record.view.node.as_ref(), uid);
    }

    /// The list of all pods is complete: a pod that it lacks is gone.
    pub fn pods_end(&mut self) {
        let listed = self.pod_list.take().unwrap_or_default();
        let lost: Vec<Uid> =
            self.pods.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        for uid in &lost {
            self.pod_gone(uid);
        }
    }

    /// A list of all nodes begins.
    pub fn nodes_begin(&mut self) {
        self.node_list = Some(HashSet::new());
    }

    /// A node was listed, added or modified.
    pub fn node_shown(&mut self, node: &WireNode, now: Timestamp) -> Vec<Wake> {
        let view = NodeView::read(node);
        let name = Arc::clone(&view.name);
        if let Some(list) = &mut self.node_list {
            list.insert(Arc::clone(&name));
        }
        self.missing_nodes.remove(&name);
        let changed = if let Some(record) = self.nodes.get_mut(&name) {
            record.show(view, now)
        } else {
            self.nodes.insert(Arc::clone(&name), NodeRecord::new(view, now));
            true
        };
        if !changed {
            return Vec::new();
        }
        let mut wakes = self.wake_pods_of(&name, now);
        wakes.extend(self.wake_for_taint(&name, now));
        wakes
    }

    /// A node was deleted.
    pub fn node_gone(&mut self, name: &str, now: Timestamp) -> Vec<Wake> {
        self.nodes.remove(name);
        self.absent(name, now).into_iter().collect()
    }

    /// The list of all nodes is complete: a node that it lacks is gone.
    pub fn nodes_end(&mut self, now: Timestamp) -> Vec<Wake> {
        let listed = self.node_list.take().unwrap_or_default();
        self.nodes.retain(|name, _| listed.contains(name));
        self.nodes_listed = true;
        let named: Vec<Arc<str>> = self.by_node.keys().cloned().collect();
        let mut wakes = Vec::new();
        for name in named {
            if self.nodes.contains_key(&name) {
                wakes.extend(self.wake_pods_of(&name, now));
            } else {
                wakes.extend(self.absent(&name, now));
            }
        }
        wakes
    }

    /// Checks every pod as if it had just been seen, and searches for excess pods.
    pub fn check_everything(&mut self, now: Timestamp) -> Vec<Wake> {
        let mut wakes = vec![excess_wake()];
        let absent = self.missing_nodes.keys().cloned();
        wakes.extend(absent.map(|name| now_wake(Item::Node(name), Priority::Ending)));
        wakes.extend(self.nodes.keys().filter_map(|name| self.wake_for_taint(name, now)));
        for uid in self.pods.keys().cloned().collect::<Vec<_>>() {
            self.wake(&uid, now, &mut wakes);
        }
        wakes
    }

    /// A list of all namespaces begins.
    pub fn namespaces_begin(&mut self) {
        self.namespace_list = Some(HashSet::new());
    }

    /// A namespace was listed, added or modified. An option that cannot be read counts as absent:
    /// the admission policy refuses it.
    pub fn namespace_shown(&mut self, name: &str, annotations: &BTreeMap<String, String>) {
        let name = self.interner.text(name);
        if let Some(list) = &mut self.namespace_list {
            list.insert(Arc::clone(&name));
        }
        match annotations.get(FORCE_FAIL_AFTER).and_then(|text| duration(text)) {
            Some(after) => self.policies.insert(name, after),
            None => self.policies.remove(&name),
        };
    }

    /// A namespace was deleted.
    pub fn namespace_gone(&mut self, name: &str) {
        self.policies.remove(name);
    }

    /// The list of all namespaces is complete: one that it lacks is gone.
    pub fn namespaces_end(&mut self) {
        let listed = self.namespace_list.take().unwrap_or_default();
        self.policies.retain(|name, _| listed.contains(name));
    }

    /// Decides about a node. A missing one is read from the API, or checked again later; an
    /// existing one may have a stale taint.
    pub fn check_node(&mut self, name: &Arc<str>, now: Timestamp) -> Verdict {
        if let Some(record) = self.nodes.get(name) {
            return match stale_from(&record.view) {
                Some(from) if from <= now => Verdict::Untaint(Arc::clone(name)),
                Some(from) => Verdict::CheckAgain(from),
                None => Verdict::Leave,
            };
        }
        if !self.by_node.contains_key(name) {
            self.missing_nodes.remove(name);
        }
        match self.node_state(name, now) {
            Some(NodeState::Ask) => Verdict::Ask(Arc::clone(name)),
            Some(NodeState::Quarantine(end)) => Verdict::CheckAgain(end),
            Some(NodeState::Confirmed) | None => Verdict::Leave,
        }
    }

    /// Takes the API's answer whether this node exists.
    ///
    /// If it does and the watch has not shown it, its quarantine starts again.
    pub fn node_answered(&mut self, name: &Arc<str>, exists: bool, now: Timestamp) -> Vec<Wake> {
        let Some(missing_node) = self.missing_nodes.get_mut(name) else { return Vec::new() };
        if exists {
            self.missing_nodes.remove(name);
            return self.absent(name, now).into_iter().collect();
        }
        missing_node.confirm(now);
        self.wake_pods_of(name, now)
    }

    /// Decides what to do with a pod. `job` is its Job's value of [`FORCE_FAIL_AFTER`].
    ///
    /// The caller must return a write to [`Self::pod_done`], whatever the outcome. Until then the
    /// pod gets no other write.
    pub fn check_pod(&mut self, uid: &Uid, job: Option<&str>, now: Timestamp) -> Verdict {
        let verdict = self.verdict_on(uid, job, now);
        if let (Verdict::Do(_), Some(record)) = (&verdict, self.pods.get_mut(uid)) {
            record.in_hand = true;
        }
        verdict
    }

    /// The verdict on a pod, without any effect.
    pub fn verdict_on(&self, uid: &Uid, job: Option<&str>, now: Timestamp) -> Verdict {
        let Some(record) = self.pods.get(uid) else { return Verdict::Leave };
        self.judge(record, self.policy(&record.view, job).as_ref(), now)
    }

    /// A write to a pod has succeeded or failed.
    pub fn pod_done(&mut self, uid: &Uid, now: Timestamp) -> Vec<Wake> {
        let mut wakes = Vec::new();
        if let Some(record) = self.pods.get_mut(uid) {
            record.in_hand = false;
            self.wake(uid, now, &mut wakes);
        }
        wakes
    }

    /// The last known state of a pod.
    pub fn pod(&self, uid: &Uid) -> Option<&Pod> {
        self.pods.get(uid).map(|record| &record.view)
    }

    /// The finished pods in excess.
    pub fn check_excess(&mut self) -> Vec<Wake> {
        let named = self.finished.excess(&self.settings);
        let mut wakes = Vec::new();
        for (uid, excess) in named {
            // A pod that was named before is already queued.
            if self.excess.insert(uid.clone(), excess).is_none() {
                let namespace = self.pods.get(&uid).map(|record| &record.view.namespace);
                let namespace = namespace.map(Arc::clone).unwrap_or_default();
                wakes.push(now_wake(Item::Pod(namespace, uid), Priority::Tidying));
            }
        }
        if !wakes.is_empty() {
            wakes.push(excess_wake());
        }
        wakes
    }

    /// The API returned this version for a patch of a pod.
    pub fn pod_written(&mut self, uid: &Uid, cause: &Cause, version: Version) {
        if let Some(record) = self.pods.get_mut(uid) {
            record.shown_from = record.shown_from.max(version);
            record.marked_at = match cause {
                Cause::Marked(at) => Some(*at),
                _ => record.marked_at,
            };
        }
    }

    /// A pod's deletion was accepted: it is gone, or its finalizers hold it.
    pub fn pod_deleted(&mut self, uid: &Uid) {
        self.finished.remove(uid);
        self.excess.remove(uid);
        if let Some(record) = self.pods.get_mut(uid) {
            let newest = record.shown_from.max(record.view.version);
            record.shown_from = Version(newest.0.saturating_add(1));
        }
    }

    fn insert(&mut self, view: Pod) {
        let uid = view.uid.clone();
        let boot = view.node.as_ref().and_then(|name| self.nodes.get(name));
        let boot = boot.and_then(|node| node.view.boot_id.clone());
        let old = self.pods.remove(&uid);
        let old_node = old.as_ref().and_then(|old| old.view.node.clone());
        if old_node != view.node {
            self.unbind(old_node.as_ref(), &uid);
            if let Some(node) = &view.node {
                self.by_node.entry(Arc::clone(node)).or_default().insert(uid.clone());
            }
        }
        let deleted_in = old.as_ref().and_then(|old| old.deleted_in.clone()).or(boot);
        let record = PodRecord {
            deleted_in: view.deletion.and(deleted_in),
            marked_at: old.as_ref().and_then(|old| old.marked_at),
            shown_from: old.as_ref().map(|old| old.shown_from).unwrap_or_default(),
            in_hand: old.is_some_and(|old| old.in_hand),
            view,
        };
        self.pods.insert(uid, record);
    }

    fn unbind(&mut self, node: Option<&Arc<str>>, uid: &Uid) {
        let Some(node) = node else { return };
        if let Some(pods) = self.by_node.get_mut(node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.by_node.remove(node);
                self.missing_nodes.remove(node);
            }
        }
    }

    /// A node that pods name is missing: its quarantine begins. ([GC7])
    fn absent(&mut self, name: &str, now: Timestamp) -> Option<Wake> {
        let name = Arc::clone(self.by_node.get_key_value(name)?.0);
        if !self.nodes_listed || self.node_list.is_some() || self.missing_nodes.contains_key(&name)
        {
            return None;
        }
        self.missing_nodes.insert(Arc::clone(&name), MissingNode::new(now));
        let after = Duration::try_from(self.settings.quarantine).unwrap_or_default();
        Some(Wake { item: Item::Node(name), priority: Priority::Ending, after })
    }

    /// When a node's taint will be stale if nothing changes.
    fn wake_for_taint(&self, name: &Arc<str>, now: Timestamp) -> Option<Wake> {
        let from = stale_from(&self.nodes.get(name)?.view)?;
        let after = Duration::try_from(from.duration_since(now)).unwrap_or_default();
        Some(Wake { item: Item::Node(Arc::clone(name)), priority: Priority::Tidying, after })
    }

    fn wake_pods_of(&mut self, name: &Arc<str>, now: Timestamp) -> Vec<Wake> {
        let Some(pods) = self.by_node.get(name) else { return Vec::new() };
        // A deletion that was seen before its node was seen happened in this boot or earlier.
        let boot = self.nodes.get(name).and_then(|node| node.view.boot_id.clone());
        for uid in pods {
            if let Some(record) = self.pods.get_mut(uid)
                && record.view.deletion.is_some()
                && record.deleted_in.is_none()
            {
                record.deleted_in.clone_from(&boot);
            }
        }
        let pods: Vec<Uid> = pods.iter().cloned().collect();
        let mut wakes = Vec::new();
        for uid in &pods {
            self.wake(uid, now, &mut wakes);
        }
        wakes
    }

    /// Schedules a check of a pod if it may need one.
    fn wake(&mut self, uid: &Uid, now: Timestamp, wakes: &mut Vec<Wake>) {
        let Some(record) = self.pods.get(uid) else { return };
        let node = record.view.node.clone();
        if let Some(node) = node.filter(|node| !self.nodes.contains_key(node)) {
            wakes.extend(self.absent(&node, now));
        }
        let Some(record) = self.pods.get(uid) else { return };
        let terminal = record.view.is_terminal();
        let priority = if terminal { Priority::Tidying } else { Priority::Ending };
        // Its Job may set `force-fail-after`, but this verdict knows only its namespace's.
        let may_have_word = record.view.deletion.is_some() && record.view.is_of_job();
        let after = match self.judge(record, self.policy(&record.view, None).as_ref(), now) {
            Verdict::Leave => return,
            Verdict::CheckAgain(_) if may_have_word => Duration::ZERO,
            Verdict::CheckAgain(at) => {
                Duration::try_from(at.duration_since(now)).unwrap_or_default()
            }
            Verdict::Ask(_) | Verdict::Untaint(_) | Verdict::Do(_) => Duration::ZERO,
        };
        let namespace = Arc::clone(&record.view.namespace);
        wakes.push(Wake { item: Item::Pod(namespace, uid.clone()), priority, after });
    }

    fn judge(
        &self,
        record: &PodRecord,
        policy: Option<&ForceFailPolicy>,
        now: Timestamp,
    ) -> Verdict {
        // The watch has yet to show our own write.
        if record.in_hand || record.view.version < record.shown_from {
            return Verdict::Leave;
        }
        let name = record.view.node.as_ref();
        verdict(&Case {
            pod: &record.view,
            node: name.and_then(|name| self.nodes.get(name)),
            missing_node: name.and_then(|name| self.missing_nodes.get(name)),
            deleted_in: record.deleted_in.as_ref(),
            marked_at: record.marked_at,
            excess: self.excess.get(&record.view.uid),
            policy,
            settings: &self.settings,
            now,
        })
    }

    fn node_state(&self, name: &Arc<str>, now: Timestamp) -> Option<NodeState> {
        Some(self.missing_nodes.get(name)?.node_state(self.settings.quarantine, now))
    }

    /// The Job's own policy overrides its namespace's; a time of zero revokes it.
    fn policy(&self, pod: &Pod, job: Option<&str>) -> Option<ForceFailPolicy> {
        let owner = pod.owner.as_ref().filter(|_| pod.is_of_job())?;
        let own = job.and_then(duration).map(|after| (after, format!("Job {}", owner.name)));
        let namespace = || {
            let after = *self.policies.get(&pod.namespace)?;
            Some((after, format!("namespace {}", pod.namespace)))
        };
        let (after, by) = own.or_else(namespace)?;
        (!after.is_zero()).then_some(ForceFailPolicy { after, by })
    }
}

fn duration(text: &str) -> Option<SignedDuration> {
    SignedDuration::try_from(text.parse::<GoDuration>().ok()?.0).ok()
}

fn now_wake(item: Item, priority: Priority) -> Wake {
    Wake { item, priority, after: Duration::ZERO }
}

fn excess_wake() -> Wake {
    Wake { item: Item::Excess, priority: Priority::Tidying, after: EXCESS_DELAY }
}
