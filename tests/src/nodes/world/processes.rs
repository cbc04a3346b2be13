//! The processes of all pods: reports their changes, passes signals on, and lets kubelets die.

use jiff::Timestamp;

use super::super::machine::PodMachine;
use super::super::pod::{Role, Uid};
use super::super::processes::{Change, Processes, Signal};
use super::{NodeState, World};

impl World {
    /// Tells the observer what the pod's processes do, if that has changed.
    pub(super) fn tell(&mut self, uid: &Uid) {
        let Some(observer) = &self.settings.observer else { return };
        let Some(tracked) = self.pods.get_mut(uid) else { return };
        let now = tracked.machine.as_ref().map_or(Processes::None, PodMachine::processes);
        if std::mem::replace(&mut tracked.observed, now) == now {
            return;
        }
        let mut main = tracked.view.containers.iter().filter(|it| it.role == Role::Main);
        let container = main.next().map_or("", |container| container.name.as_str());
        let node = &self.nodes[tracked.node].name;
        observer.tell(Change { node, uid, container, now: Some(now) });
    }

    /// The runtime of the pod's node sends a signal to its processes.
    pub(in super::super) fn signal(&mut self, uid: &str, signal: Signal, now: Timestamp) {
        let Some((uid, tracked)) = self.pods.get_key_value(uid) else { return };
        let (uid, is_off) = (uid.clone(), self.nodes[tracked.node].state == NodeState::Silent);
        if let Some(machine) = self.pods.get_mut(&uid).and_then(|it| it.machine.as_mut())
            && !is_off
        {
            machine.signal(signal, now);
        }
        self.tell(&uid);
        self.enqueue(&uid);
    }

    /// The node's kubelet dies; writes under way may still arrive.
    pub(in super::super) fn behead(&mut self, node: usize) {
        self.nodes[node].state = NodeState::Headless;
        self.enqueue_node(node);
    }
}
