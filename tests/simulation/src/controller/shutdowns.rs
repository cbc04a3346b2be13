//! Models shutdowns that logind announces: an agent or a kubelet reports them, pods are marked and
//! terminated, and the machine goes off, or the shutdown is cancelled.

use std::sync::Arc;
use std::time::Duration;

use controller_core::view::{Phase, Pod, Uid};
use epilogue_common::announcement::Announcement;
use epilogue_common::names::disruption_reason::TERMINATION_BY_KUBELET;
use epilogue_common::names::node::{SHUTTING_DOWN_TAINT, STATE};
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use serde_json::{Value, json};

use super::api::node_view;
use super::kubelet::{NODES, PodEvent, node_name, node_number};
use super::nodes::NodeEvent;
use super::pod_object;
use super::situations::Met;
use super::world::{Event, World};

/// How long after the end of faults a condition may still be new to the process that leads.
const LEADER_LEARNS: Duration = Duration::from_mins(5);

/// How long a condition of a shutdown that did not happen may stand once all is well.
const RESET_WITHIN: Duration = Duration::from_mins(5);

impl World {
    /// One node shuts down. One node always stays.
    pub(super) fn shut_down_node(&mut self) {
        let node = self.random.below(NODES);
        let leaving = self.nodes.iter().filter(|node| node.is_leaving()).count();
        if leaving + 1 >= NODES || self.nodes[node].is_leaving() {
            return;
        }
        self.met(Met::NodeShutsDown);
        self.say(|_| format!("{} shuts down", node_name(node)));
        let has_agent = self.random.percent(80);
        self.nodes[node].shuts_down = true;
        self.nodes[node].has_agent = has_agent;
        if has_agent {
            let announcement = Announcement::ShuttingDown {
                boot_id: self.nodes[node].boot_id(),
                since: self.api.whole_second(),
            };
            self.announce(node, &announcement, true);
        }
        if !has_agent || self.random.percent(70) {
            self.set_ready(node, "False");
        }
        for uid in self.pods_on(node) {
            self.shut_down_pod(&uid, has_agent);
        }
        if self.random.percent(50) {
            self.node_after(node, 3_000, 40_000, NodeEvent::GoesOff);
        } else {
            self.node_after(node, 500, 10_000, NodeEvent::Cancelled);
        }
    }

    fn shut_down_pod(&mut self, uid: &Uid, has_agent: bool) {
        if has_agent && self.random.percent(60) {
            let wait = self.random.millis(10, 5_000);
            self.agenda.after(wait, Event::Pod { pod: uid.clone(), event: PodEvent::Mark });
        }
        let wait = self.random.millis(100, 20_000);
        self.agenda.after(wait, Event::Pod { pod: uid.clone(), event: PodEvent::ShutDown });
    }

    /// The agent sets the condition before the kubelet terminates the pod.
    pub(super) fn mark(&mut self, node: usize, pod: &Pod) {
        let shuts_down = self.nodes[node].shuts_down;
        if shuts_down
            && pod.is_active()
            && self.running.contains(&pod.uid)
            && !pod.gc.survives_sandbox
        {
            let now = self.api.whole_second();
            self.change(&pod.uid, |pod| pod_object::mark(pod, now));
            self.note_mark(&pod.uid);
        }
    }

    /// A pod was marked for the shutdown in progress.
    pub(super) fn note_mark(&mut self, uid: &Uid) {
        let node = self.api.pods.get(uid).and_then(|pod| node_number(pod.node.as_deref()?));
        if let Some(node) = node.map(|node| &mut self.nodes[node]).filter(|node| node.shuts_down) {
            node.marked.insert(uid.clone());
        }
    }

    /// The kubelet terminates the pod, and reports that, if the API takes it in time.
    pub(super) fn end_by_shutdown(&mut self, node: usize, pod: &Pod, exit_code: i32) {
        if !self.nodes[node].shuts_down || pod.is_terminal() {
            return;
        }
        self.running.remove(&pod.uid);
        if self.random.percent(25) {
            self.say(|_| format!("{} is ended by the shutdown; nothing reports it", pod.uid));
            self.nodes[node].unreported.push(pod.uid.clone());
            return;
        }
        self.report_shutdown(pod, exit_code);
    }

    /// The kubelet reports a pod that it has terminated for a shutdown.
    pub(super) fn report_shutdown(&mut self, pod: &Pod, exit_code: i32) {
        if pod.is_terminal() {
            return;
        }
        let now = self.api.whole_second();
        self.say(|_| format!("{} is ended by the shutdown", pod.uid));
        self.change(&pod.uid, |pod| {
            pod_object::mark(pod, now);
            pod_object::finish(pod, exit_code, now);
        });
    }

    /// Checks the end of a pod.
    pub(super) fn keeps_target(&mut self, pod: &Pod) {
        if pod.phase == Phase::Failed && self.victims.remove(&pod.uid) {
            self.met(Met::ShutdownEnds);
            if !pod.has_condition(DISRUPTION_TARGET) {
                let problem = format!("{} fails by a shutdown without its condition", pod.uid);
                self.ledger.violations.push(problem);
            }
        }
    }

    /// The machine goes off. If nothing runs any more, its agent says so first.
    pub(super) fn complete_shutdown(&mut self, node: usize) {
        if !std::mem::take(&mut self.nodes[node].shuts_down) || self.nodes[node].is_lost() {
            return;
        }
        let pods = self.pods_on(node);
        let drained = !pods.iter().any(|uid| self.running.contains(uid));
        if drained && self.nodes[node].has_agent && self.random.percent(80) {
            let (boot_id, at) = (self.nodes[node].boot_id(), self.api.whole_second());
            self.announce(node, &Announcement::Drained { boot_id, at }, true);
        }
        let marked = std::mem::take(&mut self.nodes[node].marked);
        let unreported = std::mem::take(&mut self.nodes[node].unreported);
        let running = pods.iter().filter(|uid| self.running.contains(*uid)).cloned();
        for uid in unreported.into_iter().chain(running).collect::<Vec<_>>() {
            let Some(pod) = self.api.pods.get(&uid) else { continue };
            if marked.contains(&uid) && !pod.is_terminal() {
                self.victims.insert(uid);
            }
        }
        self.nodes[node].shut_down = Some(self.agenda.now());
        self.power_off(node);
        let (least, most, event) = match self.random.below(8) {
            0 | 1 => (1_000, 90_000, NodeEvent::Deleted),
            2..4 => (60_000, 400_000, NodeEvent::BootsCutOff),
            4 | 5 => (60_000, 900_000, NodeEvent::Boots),
            _ => (5_000, 60_000, NodeEvent::Boots),
        };
        self.node_after(node, least, most, event);
        let pause = self.random.millis(1_000, 60_000);
        self.agenda.after(pause, Event::Evict { node });
    }

    /// The shutdown is cancelled: what was not terminated lives on.
    pub(super) fn cancel_shutdown(&mut self, node: usize) {
        if !std::mem::take(&mut self.nodes[node].shuts_down) || !self.nodes[node].has_kubelet() {
            return;
        }
        self.nodes[node].shut_down = Some(self.agenda.now());
        self.nodes[node].marked.clear();
        self.set_ready(node, "True");
        for pod in std::mem::take(&mut self.nodes[node].unreported) {
            let wait = self.random.millis(10, 10_000);
            self.agenda.after(wait, Event::Pod { pod, event: PodEvent::Reported });
        }
        if !self.nodes[node].has_agent {
            return;
        }
        self.announce(node, &Announcement::Idle, false);
        for uid in self.pods_on(node) {
            if self.random.percent(40) {
                let wait = self.random.millis(10, 3_000);
                self.agenda.after(wait, Event::Pod { pod: uid, event: PodEvent::Unmark });
            }
        }
    }

    /// The agent takes its condition back from a pod that lives on. One that an earlier boot ended
    /// keeps it, although its kubelet has not reported it yet.
    pub(super) fn unmark(&mut self, node: usize, pod: &Pod) {
        let lives = pod.is_active() && !self.victims.contains(&pod.uid);
        if !self.nodes[node].shuts_down && is_marked(pod) && lives {
            self.say(|_| format!("the agent resets the condition of {}", pod.uid));
            let now = self.api.whole_second();
            self.change(&pod.uid, |pod| pod_object::unmark(pod, now));
        }
    }

    /// After a boot, an agent that is still installed says that no shutdown is in progress.
    pub(super) fn agent_returns(&mut self, node: usize) {
        if self.nodes[node].has_kubelet() && !self.nodes[node].shuts_down {
            self.announce(node, &Announcement::Idle, false);
        }
    }

    fn announce(&mut self, node: usize, announcement: &Announcement, taints: bool) {
        self.api.change_node(&node_name(node), |node| {
            node["metadata"]["annotations"][STATE] = announcement.to_string().into();
            let others = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            let mut all: Vec<Value> =
                others.into_iter().filter(|taint| taint["key"] != SHUTTING_DOWN_TAINT).collect();
            if taints {
                all.push(json!({"key": SHUTTING_DOWN_TAINT, "effect": "NoSchedule"}));
            }
            node["spec"]["taints"] = all.into();
        });
    }

    /// Counts what pod GC has to take back as faults end.
    pub(super) fn met_leftovers(&mut self) {
        let runs_well = |pod: &Arc<Pod>| {
            let node = pod.node.as_deref().and_then(node_number);
            let node = node.map(|node| &self.nodes[node]);
            node.is_some_and(|node| node.is_well(self.agenda.now()) && !node.shuts_down)
        };
        let marked = |pod: &&Arc<Pod>| pod.is_active() && is_marked(pod);
        if self.api.pods.values().filter(marked).any(runs_well) {
            self.met(Met::QuietMark);
        }
        if (0..NODES).any(|node| self.is_wrongly_tainted(node)) {
            self.met(Met::QuietTaint);
        }
    }

    /// Once faults have ended, no pod that lives on keeps the condition of a shutdown for long.
    pub(super) fn check_marks(&mut self) {
        let now = self.agenda.now();
        let is_quiet = self.quiet_since.is_some_and(|since| now > since + LEADER_LEARNS);
        let is_off = self.behaviour.skew_seconds > 60;
        if self.behaviour.pod_gc.is_none() || !is_quiet || is_off {
            return;
        }
        let since = now.saturating_sub(RESET_WITHIN);
        let long_ago = self.api.now - RESET_WITHIN;
        for pod in self.api.pods.values().filter(|pod| pod.is_active() && is_marked(pod)) {
            let Some(node) = pod.node.as_deref().and_then(node_number) else { continue };
            let node = &self.nodes[node];
            let is_old = pod.gc.target().is_some_and(|target| target.since < Some(long_ago));
            if is_old && node.is_well_since(since, now) && !node.shut_down_since(since) {
                let problem = format!("{} is marked for no shutdown", pod.uid);
                self.ledger.violations.push(problem);
            }
        }
    }

    /// Whether this node has the taint of an agent that no longer runs.
    pub(super) fn is_wrongly_tainted(&self, node: usize) -> bool {
        let Some(object) = self.api.nodes.get(node_name(node).as_str()) else { return false };
        let view = node_view(object);
        let well = self.nodes[node].is_well(self.agenda.now()) && !self.nodes[node].shuts_down;
        well && view.shutting_down
    }
}

/// Whether a condition says that a shutdown ends it.
fn is_marked(pod: &Pod) -> bool {
    let target = pod.gc.target().filter(|target| target.stands);
    target.is_some_and(|target| &*target.reason == TERMINATION_BY_KUBELET)
}
