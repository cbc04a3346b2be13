//! Models the other controllers of a cluster, small: the garbage collector, the pod GC of
//! kube-controller-manager, and eviction from nodes that are gone.

use std::sync::Arc;
use std::time::Duration;

use controller_core::view::{JobKey, Pod, Uid};

use super::api::{GRACE_SECONDS, Propagation};
use super::kubelet::{node_name, node_number};
use super::pod_object;
use super::world::World;

/// How long a node is gone before pod garbage collection fails its pods.
const NODE_GRACE: Duration = Duration::from_mins(1);

impl World {
    /// Handles owners that are gone or being deleted: their pods follow, are orphaned, or block
    /// them.
    pub(super) fn collect_garbage(&mut self) {
        let pods: Vec<Arc<Pod>> = self.api.pods.values().cloned().collect();
        for pod in pods {
            let Some(owner) = &pod.owner else { continue };
            let deletion = self
                .api
                .jobs
                .values()
                .find(|stored| stored.view.uid == owner.uid)
                .map(|stored| stored.deletion);
            match deletion {
                None | Some(Some(Propagation::Foreground)) if pod.deletion.is_none() => {
                    self.say(|_| format!("garbage collection deletes {}", pod.uid));
                    let _ = self.api.delete_pod(&pod.uid, GRACE_SECONDS);
                }
                Some(Some(Propagation::Orphan)) => {
                    self.say(|_| format!("garbage collection orphans {}", pod.uid));
                    self.ledger.estranged(&pod);
                    self.change(&pod.uid, |pod| pod_object::set_owner(pod, None));
                }
                _ => {}
            }
        }
        let going = |stored: &&super::api::StoredJob| stored.deletion.is_some();
        let jobs: Vec<(JobKey, Uid)> = self
            .api
            .jobs
            .values()
            .filter(going)
            .map(|stored| (stored.view.key.clone(), stored.view.uid.clone()))
            .collect();
        for (key, uid) in jobs {
            if self.api.pods_of(&uid).next().is_none() {
                self.say(|_| format!("{key} is gone"));
                self.api.remove_job(&key);
            }
        }
    }

    /// The pod GC of kube-controller-manager, where ours is off: fails and deletes pods that no
    /// kubelet will ever terminate.
    pub(super) fn collect_pods(&mut self) {
        let now = self.agenda.now();
        let pods: Vec<Arc<Pod>> = self.api.pods.values().cloned().collect();
        for pod in pods {
            let node = pod.node.as_deref().and_then(node_number);
            let lost = node.is_some_and(|node| self.nodes[node].is_gone_for(NODE_GRACE, now));
            let out = node.is_some_and(|node| self.is_out_of_service(node));
            let unscheduled = pod.node.is_none() && pod.deletion.is_some();
            let ends = unscheduled || lost || out && pod.deletion.is_some();
            if !ends {
                continue;
            }
            if !pod.is_terminal() {
                self.say(|_| format!("pod garbage collection ends {}", pod.uid));
                let now = self.api.whole_second();
                self.change(&pod.uid, |pod| {
                    pod_object::fail(pod);
                    if lost {
                        pod_object::disrupt(pod, now);
                    }
                });
            }
            if pod.deletion.is_none_or(|it| it.grace_seconds > 0) {
                let _ = self.api.delete_pod(&pod.uid, 0);
            }
        }
    }

    /// Deletes the pods of a node that is gone; no kubelet sees it.
    pub(super) fn evict(&mut self, node: usize) {
        if !self.nodes[node].is_lost() {
            return;
        }
        let name = node_name(node);
        let pods: Vec<Uid> = self
            .api
            .pods
            .values()
            .filter(|pod| pod.node.as_deref() == Some(name.as_str()) && pod.is_active())
            .map(|pod| pod.uid.clone())
            .collect();
        for pod in pods {
            self.disrupt(&pod);
        }
    }
}
