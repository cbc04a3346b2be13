//! Kubelets that start again, as Kubernetes recommends after a restore of etcd.

use jiff::Timestamp;

use super::super::pod::PodView;
use super::World;

impl World {
    /// All kubelets start again on this list. They report what their runtimes know of the pods in
    /// it; whatever else runs is killed. A pod that is no longer bound waits for a node again.
    pub(in super::super) fn restart(&mut self, list: Vec<PodView>, now: Timestamp) {
        for pod in &list {
            let Some(tracked) = self.pods.get_mut(&pod.uid) else { continue };
            match &mut tracked.machine {
                Some(_) if pod.node.is_none() => self.forget(&pod.uid),
                Some(machine) => machine.report_again(pod),
                None => {}
            }
        }
        self.replace(list, now);
    }
}
