//! Models nodes: their machines stop, boot again or lose the API, and their objects go, come back
//! or get a taint. What really runs is known here, whatever the API shows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use controller_core::podgc::OUT_OF_SERVICE_TAINT;
use controller_core::view::{Job, Pod, Uid};
use epilogue_common::names::job_option::{FINISHED_PODS_KEPT, FORCE_FAIL_AFTER};
use serde_json::{Value, json};

use super::agenda::Moment;
use super::api::node_view;
use super::kubelet::{NODES, PodEvent, node_name, node_number};
use super::situations::Met;
use super::world::{Event, World};

/// What a kubelet says while its node shuts down.
const SHUTS_DOWN: &str = "node is shutting down";

/// How long the control plane waits for a kubelet before it calls its state unknown.
const SILENT_AFTER: Duration = Duration::from_secs(40);

/// The least time between two mistaken deletions of a node.
const FORGOTTEN_AGAIN: Duration = Duration::from_mins(10);

/// The longest that a call is on its way.
const CALLS_ARRIVE_WITHIN: Duration = Duration::from_mins(1);

/// One node.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    /// Whether its machine is off.
    off: bool,
    /// Whether its kubelet has no connection to the API.
    cut_off: bool,
    boots: u32,
    /// Since when it has no object.
    gone: Option<Moment>,
    /// When its object was last deleted by mistake.
    forgotten: Option<Moment>,
    /// Whether a shutdown is in progress.
    pub(super) shuts_down: bool,
    /// Pods that were marked for the shutdown in progress.
    pub(super) marked: BTreeSet<Uid>,
    /// Pods that its kubelet has terminated for the shutdown, and not reported yet.
    pub(super) unreported: Vec<Uid>,
    /// Whether an agent runs in this boot.
    pub(super) has_agent: bool,
    /// When a shutdown last ended, or was cancelled.
    pub(super) shut_down: Option<Moment>,
    /// When its kubelet had the API again.
    back: Moment,
    /// What its kubelet reports when it has the API again.
    deferred: Vec<(Uid, PodEvent)>,
}

/// One event of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeEvent {
    /// The control plane finds its kubelet silent.
    Silent,
    /// Its object is deleted, by a cloud or a person.
    Deleted,
    /// Its kubelet registers it again.
    Registered,
    /// A person states that the machine is off.
    OutOfService,
    /// The machine boots, and its kubelet has the API.
    Boots,
    /// The machine boots; its kubelet reports once and loses the API.
    BootsCutOff,
    /// Its kubelet has the API again.
    Heals,
    /// The shutdown in progress comes to its end.
    GoesOff,
    /// The shutdown in progress is cancelled.
    Cancelled,
    /// Its agent runs again.
    AgentReturns,
}

impl Node {
    pub(super) fn is_lost(&self) -> bool {
        self.off || self.cut_off || self.gone.is_some()
    }

    /// Whether no pod is bound to it.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_lost() || self.shuts_down
    }

    /// Whether it shuts down, or did so shortly before; a watch may show that late.
    pub(super) fn shut_down_since(&self, since: Moment) -> bool {
        self.shuts_down || self.shut_down.is_some_and(|at| at > since)
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off && !self.off
    }

    pub(super) fn is_gone_for(&self, time: Duration, now: Moment) -> bool {
        self.gone.is_some_and(|since| now.saturating_sub(since) > time)
    }

    /// Whether a kubelet runs there that has the API.
    pub(super) fn has_kubelet(&self) -> bool {
        !self.off && !self.cut_off
    }

    /// Whether its kubelet has had the API for so long that no older call is on its way.
    pub(super) fn is_well(&self, now: Moment) -> bool {
        let settled = self.back.is_zero() || now.saturating_sub(self.back) > CALLS_ARRIVE_WITHIN;
        self.has_kubelet() && settled
    }

    /// Whether it has been well since then.
    pub(super) fn is_well_since(&self, since: Moment, now: Moment) -> bool {
        self.is_well(now) && self.gone.is_none() && self.back < since
    }

    pub(super) fn defer(&mut self, pod: &Uid, event: PodEvent) {
        self.deferred.push((pod.clone(), event));
    }

    pub(super) fn boot_id(&self) -> String {
        format!("boot-{}", self.boots)
    }
}

impl World {
    /// Registers all nodes.
    pub(super) fn register_nodes(&mut self) {
        for node in 0..NODES {
            self.register(node);
        }
    }

    fn register(&mut self, node: usize) {
        let now = self.api.whole_second().to_string();
        let boot_id = self.nodes[node].boot_id();
        self.api.store_node(json!({
            "metadata": {"name": node_name(node), "annotations": {}},
            "spec": {},
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now,
                                "lastHeartbeatTime": now}],
                "nodeInfo": {"bootID": boot_id},
            },
        }));
    }

    /// One node is lost in one of the ways in which nodes are. One node always stays.
    pub(super) fn lose_node(&mut self) {
        let node = self.random.below(NODES);
        let lost = self.nodes.iter().filter(|node| node.is_leaving()).count();
        if lost + 1 >= NODES || self.nodes[node].is_leaving() {
            return;
        }
        self.met(Met::NodeLost);
        match self.random.below(8) {
            0 | 1 => {
                self.power_off(node);
                self.node_after(node, 1_000, 90_000, NodeEvent::Deleted);
            }
            2 => {
                self.power_off(node);
                self.node_after(node, 60_000, 300_000, NodeEvent::OutOfService);
            }
            3 => {
                self.power_off(node);
                self.node_after(node, 5_000, 200_000, NodeEvent::Boots);
            }
            4 => {
                self.power_off(node);
                self.node_after(node, 5_000, 100_000, NodeEvent::BootsCutOff);
            }
            5 => self.cut_off(node),
            _ => return self.forget_node(node),
        }
        let pause = self.random.millis(1_000, 40_000);
        self.agenda.after(pause, Event::Evict { node });
    }

    pub(super) fn node_after(&mut self, node: usize, least: u32, most: u32, event: NodeEvent) {
        let wait = self.random.millis(least, most);
        self.agenda.after(wait, Event::Node { node, event });
    }

    /// The machine goes off: nothing runs there.
    pub(super) fn power_off(&mut self, node: usize) {
        self.say(|_| format!("{} goes off", node_name(node)));
        self.nodes[node].off = true;
        self.nodes[node].deferred.clear();
        let pods = self.pods_on(node);
        self.running.retain(|uid| !pods.contains(uid));
        self.agenda.after(SILENT_AFTER, Event::Node { node, event: NodeEvent::Silent });
    }

    /// The kubelet loses the API, and its pods run on.
    fn cut_off(&mut self, node: usize) {
        self.say(|_| format!("{} is cut off", node_name(node)));
        self.nodes[node].cut_off = true;
        self.agenda.after(SILENT_AFTER, Event::Node { node, event: NodeEvent::Silent });
        self.node_after(node, 1_000, 400_000, NodeEvent::Heals);
    }

    /// Somebody deletes the object of a node that lives; its kubelet registers it again within the
    /// quarantine.
    ///
    /// Not soon again: live reads show that the node is missing at two times, not in between.
    fn forget_node(&mut self, node: usize) {
        let now = self.agenda.now();
        if self.nodes[node].forgotten.is_some_and(|at| now.saturating_sub(at) < FORGOTTEN_AGAIN) {
            return;
        }
        self.nodes[node].forgotten = Some(now);
        self.say(|_| format!("{} is deleted by mistake", node_name(node)));
        self.nodes[node].gone = Some(self.agenda.now());
        self.api.delete_node(&node_name(node));
        self.node_after(node, 100, 30_000, NodeEvent::Registered);
    }

    pub(super) fn node_event(&mut self, node: usize, event: NodeEvent) {
        let name = node_name(node);
        self.say(|_| format!("{name}: {event:?}"));
        match event {
            NodeEvent::Silent if self.nodes[node].has_kubelet() => {}
            NodeEvent::Silent => self.set_ready(node, "Unknown"),
            NodeEvent::Deleted => {
                self.nodes[node].gone = Some(self.agenda.now());
                self.api.delete_node(&name);
            }
            NodeEvent::Registered => {
                self.nodes[node].gone = None;
                self.register(node);
            }
            NodeEvent::OutOfService => self.api.change_node(&name, |node| {
                node["spec"]["taints"] =
                    json!([{"key": OUT_OF_SERVICE_TAINT, "effect": "NoExecute"}]);
            }),
            NodeEvent::Boots => self.boot(node),
            NodeEvent::BootsCutOff => {
                self.boot(node);
                self.cut_off(node);
            }
            NodeEvent::Heals => self.heal(node),
            NodeEvent::GoesOff => self.complete_shutdown(node),
            NodeEvent::Cancelled => self.cancel_shutdown(node),
            NodeEvent::AgentReturns => self.agent_returns(node),
        }
    }

    /// Its kubelet reports the new boot and its state in one write.
    fn boot(&mut self, node: usize) {
        self.nodes[node].off = false;
        self.nodes[node].back = self.agenda.now();
        self.nodes[node].boots += 1;
        self.set_ready(node, "True");
        for uid in self.pods_on(node) {
            let wait = self.random.millis(10, 5_000);
            self.agenda.after(wait, Event::Pod { pod: uid, event: PodEvent::Recover });
        }
        if self.random.percent(60) {
            self.node_after(node, 1_000, 60_000, NodeEvent::AgentReturns);
        }
    }

    fn heal(&mut self, node: usize) {
        if self.nodes[node].off {
            return;
        }
        self.nodes[node].cut_off = false;
        self.nodes[node].back = self.agenda.now();
        self.set_ready(node, "True");
        for (pod, event) in std::mem::take(&mut self.nodes[node].deferred) {
            let wait = self.random.millis(1, 3_000);
            self.agenda.after(wait, Event::Pod { pod, event });
        }
        // What was ended in the API meanwhile is ended here, too.
        for uid in self.pods_on(node) {
            if self.api.pods.get(&uid).is_none_or(|pod| pod.is_terminal()) {
                self.running.remove(&uid);
            }
        }
    }

    pub(super) fn set_ready(&mut self, node: usize, status: &str) {
        let now = self.api.whole_second().to_string();
        let boot_id = self.nodes[node].boot_id();
        self.api.change_node(&node_name(node), |node| {
            if status != "Unknown" {
                node["status"]["nodeInfo"]["bootID"] = boot_id.into();
            }
            let ready = &mut node["status"]["conditions"][0];
            if ready["status"] != status {
                ready["lastTransitionTime"] = now.clone().into();
            }
            ready["status"] = status.into();
            if status != "Unknown" {
                ready["lastHeartbeatTime"] = now.into();
            }
            let shuts_down = status == "False";
            ready["message"] = if shuts_down { SHUTS_DOWN } else { "" }.into();
        });
    }

    /// Whether a kubelet can act on an event of this pod, and report it. If it can act only, it
    /// acts, and reports later.
    pub(super) fn reaches_api(
        &mut self,
        node: usize,
        uid: &Uid,
        event: PodEvent,
        restarts: bool,
    ) -> bool {
        let state = &mut self.nodes[node];
        if state.off {
            return false;
        }
        if !state.cut_off {
            return true;
        }
        let later = match event {
            PodEvent::End if !restarts => PodEvent::Exited,
            PodEvent::Obey => PodEvent::Obeyed,
            other => other,
        };
        state.defer(uid, later);
        match event {
            PodEvent::Start => {
                self.running.insert(uid.clone());
            }
            PodEvent::End if restarts => {}
            PodEvent::End | PodEvent::Obey => {
                self.running.remove(uid);
            }
            _ => {}
        }
        false
    }

    pub(super) fn pods_on(&self, node: usize) -> Vec<Uid> {
        let on = |name: Option<&str>| name.and_then(node_number) == Some(node);
        let pods = self.api.pods.values().filter(|pod| on(pod.node.as_deref()));
        pods.map(|pod| pod.uid.clone()).collect()
    }

    /// Whether the owner of its Job has accepted that a pod is done twice.
    pub(super) fn accepts_double_run(&self, pod: &Pod) -> bool {
        let Some(owner) = &pod.owner else { return false };
        // A watch may still show a Job that is gone.
        let Some(job) = self.api.job(&owner.uid) else { return true };
        match job.annotations.get(FORCE_FAIL_AFTER) {
            Some(after) => after != "0s",
            None => self.api.namespace_accepted,
        }
    }

    /// Whether a pod is counted and its Job keeps only a number of such pods. A Job that is gone
    /// takes its pods with it.
    pub(super) fn is_spare(&self, pod: &Pod) -> bool {
        let keeps_few = |job: &Arc<Job>| job.annotations.contains_key(FINISHED_PODS_KEPT);
        let owner = pod.owner.as_ref();
        !pod.tracked && owner.is_some_and(|it| self.api.job(&it.uid).is_none_or(keeps_few))
    }

    /// Whether a person has stated that the machine is off.
    pub(super) fn is_out_of_service(&self, node: usize) -> bool {
        let node: Option<&Value> = self.api.nodes.get(node_name(node).as_str());
        node.is_some_and(|node| node_view(node).out_of_service)
    }
}
