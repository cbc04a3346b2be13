//! Models pods on nodes: their scripts bind, run, restart, finish, disrupt and terminate them. A
//! machine that is off ends its containers; a kubelet without the API reports later.

use std::sync::Arc;
use std::time::Duration;

use controller_core::view::{Phase, Pod, RestartPolicy, Uid};
use serde_json::Value;

use super::api::GRACE_SECONDS;
use super::pod_object;
use super::world::{Event, World};

/// Number of nodes.
pub(super) const NODES: usize = 4;

/// What a pod will do.
#[derive(Clone, Debug)]
pub(super) struct Script {
    runs_for: Duration,
    exit_code: i32,
    /// Containers that fail are restarted in place.
    restarts: bool,
    /// How long it takes to exit when asked to terminate.
    ends_after: Duration,
    exit_code_asked: i32,
}

/// One event of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodEvent {
    Bind(usize),
    Start,
    BecomeReady,
    /// The containers exit by themselves.
    End,
    /// The containers exit because they were asked to.
    Obey,
    /// They exited by themselves, which is only reported now.
    Exited,
    /// They exited because they were asked to, which is only reported now.
    Obeyed,
    /// The kubelet is done with a deleted pod.
    Remove,
    /// The machine has booted, and the kubelet looks after the pod again.
    Recover,
    /// The agent marks it: its node shuts down.
    Mark,
    /// The kubelet of a node that shuts down terminates it.
    ShutDown,
    /// The kubelet reports that it has.
    Reported,
    /// The agent takes its mark back.
    Unmark,
}

impl World {
    /// Schedules the events of a new pod.
    pub(super) fn schedule(&mut self, pod: &Arc<Pod>) {
        let owner = pod.owner.as_ref().and_then(|owner| self.api.job(&owner.uid));
        let restarts = owner.is_some_and(|job| job.spec.restart_policy == RestartPolicy::OnFailure);
        let fails = self.random.per_mille(self.behaviour.failures);
        let script = Script {
            runs_for: self.pod_time(),
            exit_code: if fails { *self.random.pick(&[1, 1, 7, 13, 42, 3]) } else { 0 },
            restarts,
            ends_after: self.random.millis(5, 29_000),
            exit_code_asked: *self.random.pick(&[143, 143, 143, 0, 42, 7]),
        };
        self.scripts.insert(pod.uid.clone(), script);
        let slow = !self.is_quiet() && self.random.percent(5);
        let (least, most) = if slow { (1_000, 120_000) } else { (1, 400) };
        let wait = self.random.millis(least, most);
        let node = self.random.below(NODES);
        self.agenda.after(wait, Event::Pod { pod: pod.uid.clone(), event: PodEvent::Bind(node) });
    }

    fn pod_time(&mut self) -> Duration {
        if self.random.per_mille(self.behaviour.long_pods) {
            return self.random.millis(300_000, 1_500_000);
        }
        match self.random.below(10) {
            0..4 => self.random.millis(1, 100),
            4..8 => self.random.millis(100, 5_000),
            _ => self.random.millis(5_000, 60_000),
        }
    }

    /// A pod is being deleted, and its kubelet sees that as soon as it can.
    pub(super) fn terminate(&mut self, pod: &Arc<Pod>) {
        let Some(script) = self.scripts.get(&pod.uid) else { return };
        let Some(node) = pod.node.as_deref().and_then(node_number) else { return };
        if pod.is_terminal() {
            return;
        }
        if self.nodes[node].is_cut_off() {
            self.nodes[node].defer(&pod.uid, PodEvent::Obey);
            return;
        }
        let wait = script.ends_after;
        self.agenda.after(wait, Event::Pod { pod: pod.uid.clone(), event: PodEvent::Obey });
    }

    pub(super) fn pod_event(&mut self, uid: &Uid, event: PodEvent) {
        let Some(pod) = self.api.pods.get(uid).cloned() else {
            // Its kubelet ends what it no longer finds.
            self.running.remove(uid);
            return;
        };
        let Some(script) = self.scripts.get(uid).cloned() else { return };
        if let Some(node) = pod.node.as_deref().and_then(node_number) {
            if !self.reaches_api(node, uid, event, script.restarts && script.exit_code != 0) {
                return;
            }
            match event {
                PodEvent::Mark => self.mark(node, &pod),
                PodEvent::ShutDown => self.end_by_shutdown(node, &pod, script.exit_code_asked),
                PodEvent::Reported => self.report_shutdown(&pod, script.exit_code_asked),
                PodEvent::Unmark => self.unmark(node, &pod),
                _ => {}
            }
        }
        let later = |world: &mut Self, wait: Duration, event: PodEvent| {
            world.agenda.after(wait, Event::Pod { pod: uid.clone(), event });
        };
        match event {
            PodEvent::Bind(node) if self.nodes[node].is_leaving() => {
                later(self, Duration::from_secs(1), PodEvent::Bind((node + 1) % NODES));
            }
            PodEvent::Bind(node) if pod.is_active() && pod.node.is_none() => {
                self.change(uid, |pod| pod_object::bind(pod, &node_name(node)));
                let wait = self.random.millis(1, 500);
                later(self, wait, PodEvent::Start);
            }
            PodEvent::Start if pod.is_active() => {
                let now = self.api.whole_second();
                self.running.insert(uid.clone());
                self.change(uid, |pod| pod_object::start(pod, now));
                later(self, script.runs_for, PodEvent::End);
                if self.random.percent(60) {
                    later(self, script.runs_for / 3, PodEvent::BecomeReady);
                }
            }
            PodEvent::BecomeReady if pod.is_active() => {
                let now = self.api.whole_second();
                self.change(uid, |pod| pod_object::set_ready(pod, true, now));
            }
            PodEvent::End if !pod.is_terminal() && self.running.contains(uid) => {
                self.end(uid, &pod, &script);
            }
            PodEvent::Exited if !pod.is_terminal() => self.end(uid, &pod, &script),
            PodEvent::Obey | PodEvent::Obeyed if !pod.is_terminal() => {
                let killed = event == PodEvent::Obey
                    && pod.phase == Phase::Running
                    && !self.running.contains(uid);
                let exit_code = if killed { 137 } else { script.exit_code_asked };
                self.say(|_| format!("{uid} obeys with {exit_code}"));
                self.finish(uid, exit_code);
                let wait = self.random.millis(1, 1_000);
                later(self, wait, PodEvent::Remove);
            }
            PodEvent::Obey | PodEvent::Obeyed | PodEvent::Remove if pod.deletion.is_some() => {
                let _ = self.api.delete_pod(uid, 0);
            }
            PodEvent::Recover => self.recover(uid, &pod, &script),
            _ => {}
        }
    }

    /// No container has survived the boot of its machine.
    fn recover(&mut self, uid: &Uid, pod: &Pod, script: &Script) {
        let later = |world: &mut Self, wait: Duration, event: PodEvent| {
            world.agenda.after(wait, Event::Pod { pod: uid.clone(), event });
        };
        if pod.is_terminal() {
            later(self, Duration::ZERO, PodEvent::Remove);
        } else if pod.deletion.is_some() {
            self.finish(uid, 137);
            later(self, Duration::from_secs(1), PodEvent::Remove);
        } else if pod.phase != Phase::Running {
            later(self, Duration::ZERO, PodEvent::Start);
        } else if script.restarts {
            let now = self.api.whole_second();
            self.victims.remove(uid);
            self.running.insert(uid.clone());
            self.change(uid, |pod| pod_object::restart(pod, now));
            later(self, script.runs_for, PodEvent::End);
        } else {
            let now = self.api.whole_second();
            self.running.remove(uid);
            self.lost.insert(uid.clone());
            self.change(uid, |pod| pod_object::lose(pod, now));
        }
    }

    fn end(&mut self, uid: &Uid, pod: &Pod, script: &Script) {
        if script.restarts && script.exit_code != 0 && pod.deletion.is_none() {
            let restarts = pod.containers.first().map_or(0, |each| each.restarts) + 1;
            self.say(|_| format!("{uid} restarts for the {restarts}. time"));
            let now = self.api.whole_second();
            self.running.insert(uid.clone());
            self.change(uid, |pod| pod_object::restart(pod, now));
            if let Some(script) = self.scripts.get_mut(uid)
                && restarts >= 2
            {
                script.exit_code = 0;
            }
            let event = Event::Pod { pod: uid.clone(), event: PodEvent::End };
            self.agenda.after(script.runs_for, event);
            return;
        }
        self.say(|_| format!("{uid} ends with {}", script.exit_code));
        self.finish(uid, script.exit_code);
        if pod.deletion.is_some() {
            let wait = self.random.millis(1, 1_000);
            self.agenda.after(wait, Event::Pod { pod: uid.clone(), event: PodEvent::Remove });
        }
    }

    /// Writes the terminal phase.
    pub(super) fn finish(&mut self, uid: &Uid, exit_code: i32) {
        let now = self.api.whole_second();
        self.running.remove(uid);
        self.change(uid, |pod| pod_object::finish(pod, exit_code, now));
    }

    /// Sets DisruptionTarget on a pod, and deletes it.
    pub(super) fn disrupt(&mut self, uid: &Uid) {
        self.say(|_| format!("{uid} is disrupted"));
        let now = self.api.whole_second();
        self.change(uid, |pod| pod_object::disrupt(pod, now));
        let _ = self.api.delete_pod(uid, GRACE_SECONDS);
    }

    pub(super) fn change(&mut self, uid: &Uid, how: impl FnOnce(&mut Value)) {
        // If the pod is gone, there is nothing to change.
        let _ = self.api.change_pod(uid, how);
    }
}

/// The number of a node by its name.
pub(super) fn node_number(name: &str) -> Option<usize> {
    name.strip_prefix("node-")?.parse().ok()
}

/// The name of a node by its number.
pub(super) fn node_name(node: usize) -> String {
    format!("node-{node}")
}
