//! Holds what only pod GC needs: nodes, policies of namespaces and the history of pods. Names the
//! items to check.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use epilogue_common::names::job_option::FORCE_FAIL_AFTER;
use epilogue_common::watch_event::WatchEvent;
use jiff::{SignedDuration, Timestamp};

use super::event::Now;
use super::jobs::Jobs;
use super::kept_pods::{is_left, kept_rule};
use super::pods::Pods;
use super::relist::Relist;
use crate::podgc::case::Case;
use crate::podgc::finished::Finished;
use crate::podgc::kept::Kept;
use crate::podgc::missing_node::{MissingNode, NodeState};
use crate::podgc::namespace::force_fail_after;
use crate::podgc::observed::Observed;
use crate::podgc::stale_taint::stale_from;
use crate::podgc::verdict::verdict;
use crate::podgc::{
    Cause, Excess, ForceFailPolicy, Item, Mode, NamespaceView, NodeRecord, NodeView, PodWrite,
    Priority, Settings, Verdict, Wake,
};
use crate::view::{Pod, Uid, Version};

/// The delay between two searches for excess finished pods, so that a list of many costs one
/// search.
const EXCESS_DELAY: Duration = Duration::from_secs(1);

/// Nodes, policies and histories. What wakes are made from is ordered, so that a simulation repeats
/// exactly.
#[derive(Clone, Debug, Default)]
pub(super) struct Gc {
    pub(super) settings: Settings,
    pub(super) by_node: BTreeMap<Arc<str>, BTreeSet<Uid>>,
    pub(super) nodes: BTreeMap<Arc<str>, NodeRecord>,
    node_list: Relist<Arc<str>>,
    nodes_listed: bool,
    /// Missing nodes that pods name; empty until all nodes were listed.
    missing_nodes: BTreeMap<Arc<str>, MissingNode>,
    /// The force-fail policies of namespaces for their Jobs' pods.
    policies: HashMap<Arc<str>, SignedDuration>,
    namespace_list: Relist<Arc<str>>,
    histories: HashMap<Uid, History>,
    finished: Finished,
    pub(super) kept: Kept,
    pub(super) excess: HashMap<Uid, Excess>,
    /// What was reported, where pod GC only observes.
    observed: Option<Observed>,
}

/// What is remembered of a pod beyond its present state. Only pods that are being deleted, or that
/// we wrote to, have one.
#[derive(Clone, Debug, Default)]
struct History {
    /// The boot of its node in which its deletion was first seen.
    deleted_in: Option<Arc<str>>,
    /// When we set its DisruptionTarget.
    marked_at: Option<Timestamp>,
    /// The first version that shows our writes to it.
    shown_from: Version,
    /// Whether a write to it is in progress; its calls show one by one.
    in_hand: bool,
}

impl Gc {
    /// Knows nothing yet.
    pub(super) fn new(settings: Settings) -> Self {
        let observed = (settings.mode == Mode::Observe).then(Observed::default);
        Self { settings, observed, ..Self::default() }
    }

    /// Its settings.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A pod was listed, added or modified. `old` is the pod that it replaces.
    pub(super) fn pod_shown(
        &mut self,
        pod: &Pod,
        old: Option<&Pod>,
        pods: &Pods,
        jobs: &Jobs,
        now: Timestamp,
    ) -> Vec<Wake> {
        let mut wakes = Vec::new();
        if self.settings.mode != Mode::Off {
            let is_crowded = self.finished.show(pod, &self.settings);
            if self.kept.show(pod, kept_rule(pod, jobs)) || is_crowded {
                wakes.push(excess_wake());
            }
        }
        if let Some(old) = old.filter(|old| old.node != pod.node) {
            self.unbind(old);
        }
        if let Some(node) = &pod.node {
            self.by_node.entry(Arc::clone(node)).or_default().insert(pod.uid.clone());
        }
        self.saw_deletion(pod);
        self.wake(&pod.uid, pods, jobs, now, &mut wakes);
        wakes
    }

    /// A pod is gone.
    pub(super) fn pod_gone(&mut self, pod: &Pod) {
        if let Some(observed) = &mut self.observed {
            observed.forget(&pod.uid);
        }
        self.pod_unreadable(pod);
    }

    /// The latest version of a pod cannot be read: a verdict must not rest on an outdated one.
    pub(super) fn pod_unreadable(&mut self, pod: &Pod) {
        self.finished.remove(&pod.uid);
        self.kept.remove(&pod.uid);
        self.excess.remove(&pod.uid);
        self.histories.remove(&pod.uid);
        self.unbind(pod);
    }

    /// The list of all pods is complete.
    pub(super) fn pods_end(&mut self, pods: &Pods) {
        if let Some(observed) = &mut self.observed {
            observed.retain(|uid| pods.readable(uid).is_some());
        }
    }

    /// Takes an event of the watch of nodes.
    ///
    /// A node that a list shows and that cannot be read counts as missing, because its last
    /// readable version may be outdated. A live read will tell that it exists.
    pub(super) fn node(
        &mut self,
        event: WatchEvent<NodeView>,
        pods: &Pods,
        jobs: &Jobs,
        now: &Now,
    ) -> Vec<Wake> {
        let time = now.time;
        match event {
            WatchEvent::ListBegins => self.node_list.begin(),
            WatchEvent::ListEnds(_) => return self.nodes_end(pods, jobs, time),
            WatchEvent::Shown(node) => return self.node_shown(node, pods, jobs, now),
            WatchEvent::Gone(node) => return self.node_gone(&node.name, time),
            WatchEvent::Unreadable(node) if node.gone => return self.node_gone(&node.name, time),
            WatchEvent::Unreadable(_) | WatchEvent::UpTo(_) | WatchEvent::Restored => {}
        }
        Vec::new()
    }

    /// Takes an event of the watch of namespaces. The policy of one that cannot be read stays until
    /// a list.
    pub(super) fn namespace(&mut self, event: WatchEvent<NamespaceView>) {
        match event {
            WatchEvent::ListBegins => self.namespace_list.begin(),
            WatchEvent::ListEnds(_) => {
                let listed = self.namespace_list.end();
                for name in listed.lost(self.policies.keys()) {
                    self.policies.remove(&name);
                }
            }
            WatchEvent::Shown(namespace) => {
                let name: Arc<str> = namespace.name.into();
                self.namespace_list.saw(&name);
                match namespace.force_fail_after {
                    Some(after) => self.policies.insert(name, after),
                    None => self.policies.remove(&name),
                };
            }
            WatchEvent::Gone(NamespaceView { name, .. }) => drop(self.policies.remove(&*name)),
            WatchEvent::Unreadable(namespace) if namespace.gone => {
                self.policies.remove(&*namespace.name);
            }
            WatchEvent::Unreadable(_) | WatchEvent::UpTo(_) | WatchEvent::Restored => {}
        }
    }

    /// A node was listed, added or modified.
    fn node_shown(&mut self, view: NodeView, pods: &Pods, jobs: &Jobs, now: &Now) -> Vec<Wake> {
        let (name, Now { time: now, elapsed, .. }) = (Arc::clone(&view.name), *now);
        self.node_list.saw(&name);
        self.missing_nodes.remove(&name);
        let is_listed = self.node_list.is_open();
        let changed = if let Some(record) = self.nodes.get_mut(&name) {
            let changed = record.show(view, now, elapsed);
            record.watch_shutdown(is_listed, now);
            changed
        } else {
            let mut record = NodeRecord::new(view, now, elapsed);
            record.watch_shutdown(true, now);
            self.nodes.insert(Arc::clone(&name), record);
            true
        };
        if !changed {
            return Vec::new();
        }
        let mut wakes = self.wake_pods_of(&name, pods, jobs, now);
        wakes.extend(self.wake_for_taint(&name, now));
        wakes
    }

    /// A node was deleted.
    fn node_gone(&mut self, name: &str, now: Timestamp) -> Vec<Wake> {
        self.nodes.remove(name);
        self.absent(name, now).into_iter().collect()
    }

    /// The list of all nodes is complete: a node that it lacks is gone.
    fn nodes_end(&mut self, pods: &Pods, jobs: &Jobs, now: Timestamp) -> Vec<Wake> {
        let listed = self.node_list.end();
        for name in listed.lost(self.nodes.keys()) {
            self.nodes.remove(&name);
        }
        self.nodes_listed = true;
        let named: Vec<Arc<str>> = self.by_node.keys().cloned().collect();
        let mut wakes = Vec::new();
        for name in named {
            if self.nodes.contains_key(&name) {
                wakes.extend(self.wake_pods_of(&name, pods, jobs, now));
            } else {
                wakes.extend(self.absent(&name, now));
            }
        }
        wakes
    }

    /// Checks every pod as if it had just been seen, and searches for excess pods.
    pub(super) fn everything(&mut self, pods: &Pods, jobs: &Jobs, now: Timestamp) -> Vec<Wake> {
        let mut wakes = vec![excess_wake()];
        let missing = self.missing_nodes.keys().cloned();
        wakes.extend(missing.map(|name| Wake::now(Item::Node(name), Priority::Ending)));
        wakes.extend(self.nodes.keys().filter_map(|name| self.wake_for_taint(name, now)));
        for pod in pods.sorted() {
            self.wake(&pod.uid, pods, jobs, now, &mut wakes);
        }
        wakes
    }

    /// Decides about a node.
    pub(super) fn check_node(&mut self, name: &Arc<str>, now: Timestamp) -> Verdict {
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
    pub(super) fn node_answered(
        &mut self,
        name: &Arc<str>,
        exists: bool,
        pods: &Pods,
        jobs: &Jobs,
        now: Timestamp,
    ) -> Vec<Wake> {
        let Some(missing_node) = self.missing_nodes.get_mut(name) else { return Vec::new() };
        if exists {
            *missing_node = MissingNode::doubted(now);
            return vec![self.wake_for_quarantine(name)];
        }
        missing_node.confirm(now);
        match self.node_state(name, now) {
            Some(NodeState::Quarantine(_)) => vec![self.wake_for_quarantine(name)],
            _ => self.wake_pods_of(name, pods, jobs, now),
        }
    }

    /// The checks of finished pods in excess.
    pub(super) fn check_excess(&mut self, pods: &Pods, jobs: &Jobs) -> Vec<Wake> {
        self.read_changed(pods, jobs);
        let mut named = self.kept.excess(&self.excess);
        named.extend(self.finished.excess(&self.settings, &self.excess));
        let mut wakes = Vec::new();
        for (uid, excess) in named {
            // A pod that was named before is already queued.
            if self.excess.insert(uid.clone(), excess).is_none() {
                let namespace = pods.get(&uid).map(|pod| Arc::clone(&pod.namespace));
                let item = Item::Pod(namespace.unwrap_or_default(), uid);
                wakes.push(Wake::now(item, Priority::Tidying));
            }
        }
        if !wakes.is_empty() || self.kept.is_crowded() {
            wakes.push(excess_wake());
        }
        wakes
    }

    /// A write to a pod begins, unless it is only reported.
    pub(super) fn begin(&mut self, uid: &Uid) {
        if self.observed.is_none() {
            self.histories.entry(uid.clone()).or_default().in_hand = true;
        }
    }

    /// A write to a pod has succeeded or failed.
    pub(super) fn pod_done(
        &mut self,
        uid: &Uid,
        pods: &Pods,
        jobs: &Jobs,
        now: Timestamp,
    ) -> Vec<Wake> {
        let mut wakes = Vec::new();
        if let Some(history) = self.histories.get_mut(uid) {
            history.in_hand = false;
            self.wake(uid, pods, jobs, now, &mut wakes);
        }
        wakes
    }

    /// The API returned this version for a patch of a pod that is known.
    pub(super) fn pod_written(&mut self, uid: &Uid, cause: &Cause, version: Version) {
        let history = self.histories.entry(uid.clone()).or_default();
        history.shown_from = history.shown_from.max(version);
        if let Cause::Marked(at) = cause {
            history.marked_at = Some(*at);
        }
    }

    /// A pod's deletion was accepted. `pod` is what is known of it.
    pub(super) fn pod_deleted(&mut self, uid: &Uid, pod: Option<&Arc<Pod>>) {
        self.finished.remove(uid);
        self.kept.remove(uid);
        self.excess.remove(uid);
        if let Some(pod) = pod {
            let history = self.histories.entry(uid.clone()).or_default();
            let newest = history.shown_from.max(pod.version);
            history.shown_from = Version(newest.0.saturating_add(1));
        }
    }

    /// Whether writes are only reported.
    pub(super) fn observes(&self) -> bool {
        self.observed.is_some()
    }

    /// Whether a write that is only observed was not reported yet; remembers it.
    pub(super) fn is_new_report(&mut self, write: &PodWrite) -> bool {
        self.observed.as_mut().is_some_and(|observed| observed.is_new(write))
    }

    /// The verdict on a pod.
    pub(super) fn judge(&self, pod: &Pod, jobs: &Jobs, now: Timestamp) -> Verdict {
        let history = self.histories.get(&pod.uid);
        // The watch has yet to show our own write.
        if history.is_some_and(|it| it.in_hand || pod.version < it.shown_from) {
            return Verdict::Leave;
        }
        let name = pod.node.as_ref();
        verdict(&Case {
            pod,
            node: name.and_then(|name| self.nodes.get(name)),
            missing_node: name.and_then(|name| self.missing_nodes.get(name)),
            deleted_in: history.and_then(|it| it.deleted_in.as_ref()),
            marked_at: history.and_then(|it| it.marked_at),
            excess: self.excess.get(&pod.uid).filter(|excess| is_left(excess, pod, jobs)),
            policy: self.policy(pod, jobs).as_ref(),
            settings: &self.settings,
            now,
        })
    }

    /// Remembers the boot in which the deletion of a pod was first seen.
    fn saw_deletion(&mut self, pod: &Pod) {
        if pod.deletion.is_none() {
            if let Some(history) = self.histories.get_mut(&pod.uid) {
                history.deleted_in = None;
            }
            return;
        }
        let boot = pod.node.as_ref().and_then(|name| self.nodes.get(name)?.view.boot_id.as_ref());
        if let Some(boot) = boot {
            let history = self.histories.entry(pod.uid.clone()).or_default();
            history.deleted_in.get_or_insert_with(|| Arc::clone(boot));
        }
    }

    /// Whether each pod that can be read is found by its node, and no other is.
    pub(super) fn is_sound(&self, pods: &Pods) -> bool {
        let is_on = |node: &Arc<str>, uid: &Uid| {
            pods.readable(uid).is_some_and(|pod| pod.node.as_ref() == Some(node))
        };
        let bound = pods.uids().filter_map(|uid| pods.readable(uid)?.node.as_ref()).count();
        self.by_node.iter().all(|(node, uids)| uids.iter().all(|uid| is_on(node, uid)))
            && self.by_node.values().map(BTreeSet::len).sum::<usize>() == bound
    }

    fn unbind(&mut self, pod: &Pod) {
        let Some(node) = &pod.node else { return };
        if let Some(pods) = self.by_node.get_mut(node) {
            pods.remove(&pod.uid);
            if pods.is_empty() {
                self.by_node.remove(node);
                self.missing_nodes.remove(node);
            }
        }
    }

    /// A node that pods name is missing: its quarantine begins. ([GC7])
    fn absent(&mut self, name: &str, now: Timestamp) -> Option<Wake> {
        let name = Arc::clone(self.by_node.get_key_value(name)?.0);
        if !self.nodes_listed || self.node_list.is_open() || self.missing_nodes.contains_key(&name)
        {
            return None;
        }
        self.missing_nodes.insert(Arc::clone(&name), MissingNode::new(now));
        Some(self.wake_for_quarantine(&name))
    }

    fn wake_for_quarantine(&self, name: &Arc<str>) -> Wake {
        let after = Duration::try_from(self.settings.quarantine).unwrap_or_default();
        Wake { item: Item::Node(Arc::clone(name)), priority: Priority::Ending, after }
    }

    /// When a node's taint will be stale if nothing changes.
    fn wake_for_taint(&self, name: &Arc<str>, now: Timestamp) -> Option<Wake> {
        let from = stale_from(&self.nodes.get(name)?.view)?;
        let after = Duration::try_from(from.duration_since(now)).unwrap_or_default();
        Some(Wake { item: Item::Node(Arc::clone(name)), priority: Priority::Tidying, after })
    }

    fn wake_pods_of(
        &mut self,
        name: &Arc<str>,
        pods: &Pods,
        jobs: &Jobs,
        now: Timestamp,
    ) -> Vec<Wake> {
        let uids: Vec<Uid> = self.by_node.get(name).into_iter().flatten().cloned().collect();
        let mut wakes = Vec::new();
        for uid in &uids {
            // A deletion that was seen before its node was seen happened in this boot or earlier.
            if let Some(pod) = pods.readable(uid).filter(|pod| pod.deletion.is_some()) {
                self.saw_deletion(pod);
            }
            self.wake(uid, pods, jobs, now, &mut wakes);
        }
        wakes
    }

    /// Schedules a check of a pod if it may need one.
    fn wake(&mut self, uid: &Uid, pods: &Pods, jobs: &Jobs, now: Timestamp, wakes: &mut Vec<Wake>) {
        let Some(pod) = pods.readable(uid) else { return };
        if let Some(node) = pod.node.as_ref().filter(|node| !self.nodes.contains_key(*node)) {
            wakes.extend(self.absent(node, now));
        }
        let after = match self.judge(pod, jobs, now) {
            Verdict::Leave => return,
            Verdict::CheckAgain(at) => {
                Duration::try_from(at.duration_since(now)).unwrap_or_default()
            }
            Verdict::Ask(_) | Verdict::Untaint(_) | Verdict::Do(_) => Duration::ZERO,
        };
        let priority = if pod.is_terminal() { Priority::Tidying } else { Priority::Ending };
        let item = Item::Pod(Arc::clone(&pod.namespace), uid.clone());
        wakes.push(Wake { item, priority, after });
    }

    fn node_state(&self, name: &Arc<str>, now: Timestamp) -> Option<NodeState> {
        Some(self.missing_nodes.get(name)?.node_state(self.settings.quarantine, now))
    }

    /// The policy for a pod that is being deleted. Its Job's own overrides its namespace's; a time
    /// of zero revokes it.
    fn policy(&self, pod: &Pod, jobs: &Jobs) -> Option<ForceFailPolicy> {
        let owner = pod.owner.as_ref().filter(|_| pod.is_of_job() && pod.deletion.is_some())?;
        let own = || {
            let text = jobs.of_pod(pod)?.annotations.get(FORCE_FAIL_AFTER)?;
            Some((force_fail_after(text)?, format!("Job {}", owner.name)))
        };
        let namespace = || {
            let after = *self.policies.get(&pod.namespace)?;
            Some((after, format!("namespace {}", pod.namespace)))
        };
        let (after, by) = own().or_else(namespace)?;
        (!after.is_zero()).then_some(ForceFailPolicy { after, by })
    }
}

pub(super) fn excess_wake() -> Wake {
    Wake { item: Item::Excess, priority: Priority::Tidying, after: EXCESS_DELAY }
}
