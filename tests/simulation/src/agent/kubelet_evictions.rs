//! Models the kubelet's own eviction manager: a check every 10 s against its own thresholds,
//! conditions on the node, one victim at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::pressure::signal::Signal;
use agent_core::protocol::node::KubeletEviction;
use serde_json::json;

use super::kubelet::Stage;
use super::promises;
use super::situations::Met;
use super::world::{Life, World, name_of};
use crate::controller::agenda::Moment;

const LOOP: Duration = Duration::from_secs(10);
/// How long it waits for the last victim.
const CLEANUP_MAX: Duration = Duration::from_secs(30);
/// Pods of this priority are never evicted. ([EV12])
pub(super) const CRITICAL: i32 = 2_000_000_000;

/// Eviction state of one run of the kubelet.
#[derive(Debug, Default)]
pub(super) struct OwnEvictions {
    seen: BTreeMap<&'static str, Moment>,
    victim: Option<(PodUid, Moment)>,
}

impl World {
    /// The thresholds, as `/configz` shows them.
    pub(super) fn kubelet_eviction(&self) -> KubeletEviction {
        let Some((memory, disk, tasks)) = self.behaviour.strain.kubelet_limits else {
            let local_storage_limits = self.behaviour.strain.kubelet_limits_storage;
            return KubeletEviction { local_storage_limits, ..KubeletEviction::default() };
        };
        let mut hard = vec![
            ("memory.available".to_owned(), memory.to_string()),
            ("nodefs.available".to_owned(), disk.to_string()),
        ];
        if tasks > 0 {
            hard.push(("pid.available".to_owned(), tasks.to_string()));
        }
        let local_storage_limits = self.behaviour.strain.kubelet_limits_storage;
        KubeletEviction { hard, soft: Vec::new(), local_storage_limits }
    }

    /// What is short on the node for the kubelet, most urgent first.
    fn kubelet_shortages(&self) -> Vec<Signal> {
        let Some((memory, disk, tasks)) = self.behaviour.strain.kubelet_limits else {
            return Vec::new();
        };
        let limits = [
            (Signal::MemoryAvailable, memory),
            (Signal::NodefsAvailable, disk),
            (Signal::PidAvailable, tasks),
        ];
        let short = limits.iter().filter(|(signal, limit)| self.left(*signal).available < *limit);
        short.map(|(signal, _)| *signal).collect()
    }

    /// One round of the loop.
    pub(super) fn kubelet_evicts(&mut self) {
        let now = self.now();
        let short = self.kubelet_shortages();
        let own = &mut self.kubelet.evictions;
        for signal in &short {
            own.seen.insert(signal.node_condition(), now);
        }
        let transition = self.behaviour.strain.kubelet_transition;
        own.seen.retain(|_, seen| now.saturating_sub(*seen) < transition || *seen == now);
        let conditions: Vec<String> = own.seen.keys().map(|name| (*name).to_owned()).collect();
        if self.kubelet_dark().is_none() {
            self.api.update_node(|node| node.kubelet_pressure = conditions);
        }
        if let Some(signal) = short.first()
            && !self.waits_for_cleanup()
        {
            self.kubelet_evicts_one(*signal);
        }
        if self.behaviour.strain.kubelet_limits_storage {
            self.evict_beyond_own_limits();
        }
        self.after(LOOP, Life::Kubelet(self.kubelet.run), World::kubelet_evicts);
    }

    fn waits_for_cleanup(&self) -> bool {
        self.kubelet.evictions.victim.as_ref().is_some_and(|(uid, since)| {
            let worker = self.kubelet.workers.get(uid);
            let ends = worker.is_some_and(|worker| !worker.is_over());
            ends && self.now() < *since + CLEANUP_MAX
        })
    }

    fn kubelet_evicts_one(&mut self, signal: Signal) {
        let evictable = |uid: &&PodUid| {
            let worker = &self.kubelet.workers[*uid];
            let nature = self.ledger.natures.get(*uid);
            matches!(worker.stage, Stage::Up)
                && nature.is_some_and(|n| !n.is_static && n.view.priority < CRITICAL)
        };
        let uids: Vec<PodUid> = self.kubelet.workers.keys().filter(evictable).cloned().collect();
        let worst = uids.into_iter().max_by_key(|uid| {
            let used = self.use_of(uid);
            let view = &self.ledger.natures[uid].view;
            match signal {
                Signal::MemoryAvailable => used.memory.saturating_sub(view.asks.memory),
                Signal::PidAvailable => used.tasks,
                _ => used.disk.saturating_sub(view.asks.storage),
            }
        });
        let Some(uid) = worst else { return };
        let message: &'static str = match signal.node_condition() {
            "MemoryPressure" => "The node was low on resource: memory. ",
            "PIDPressure" => "The node was low on resource: pids. ",
            _ => "The node was low on resource: ephemeral-storage. ",
        };
        self.kubelet.evictions.victim = Some((uid.clone(), self.now()));
        self.evict_by_kubelet(&uid, message, true);
    }

    fn evict_by_kubelet(&mut self, uid: &PodUid, message: &'static str, disrupts: bool) {
        self.log(|_| format!("kubelet   evicts {}", name_of(uid)));
        self.stats.kubelet_evictions += 1;
        self.met(Met::KubeletEvicts);
        self.ledger.kubelet_victims.insert(uid.clone());
        let at = self.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        if let Some(worker) = self.kubelet.workers.get_mut(uid) {
            worker.words = Some(("Evicted", message));
            if disrupts {
                worker.disruption = Some(json!({
                    "type": "DisruptionTarget", "status": "True",
                    "reason": promises::REASON, "message": message,
                    "lastTransitionTime": at,
                }));
            }
        }
        self.terminate(uid, 1);
    }

    /// An eviction for a local storage limit is not a disruption. ([EV26])
    fn evict_beyond_own_limits(&mut self) {
        let beyond = |uid: &&PodUid| {
            let up = matches!(self.kubelet.workers[*uid].stage, Stage::Up);
            let nature = self.ledger.natures.get(*uid);
            let critical = nature.is_none_or(|n| n.is_static || n.view.priority >= CRITICAL);
            let script = self.scripts.get(*uid);
            let over = script.is_some_and(|s| s.needs.exceeds_own(self.use_of(uid).disk));
            up && !critical && over
        };
        let uids: Vec<PodUid> = self.kubelet.workers.keys().filter(beyond).cloned().collect();
        for uid in uids {
            self.evict_by_kubelet(&uid, "Pod ephemeral local storage usage exceeds. ", false);
        }
    }
}
