//! Models the kubelet's graceful shutdown: lock, groups, shortened grace.

use std::time::Duration;

use agent_core::pod::PodUid;
use serde_json::json;

use super::kubelet::Stage;
use super::logind::Stage as Shutdown;
use super::promises;
use super::world::{Life, World};
use crate::controller::agenda::Moment;

/// Reason and message of the pods that it terminates.
pub(super) const WORDS: (&str, &str) = ("Terminated", promises::SHUTDOWN_MESSAGE);

/// Shutdown state of one run of the kubelet.
#[derive(Debug, Default)]
pub(super) struct Graceful {
    /// Whether it got its lock when it started.
    armed: bool,
    shutting_down: bool,
    killing: bool,
    cancelled: bool,
}

impl Graceful {
    pub(super) fn is_killing(&self) -> bool {
        self.killing
    }

    /// Why the kubelet does not admit a new pod.
    pub(super) fn refuses(&self) -> Option<(&'static str, &'static str)> {
        let words = ("NodeShutdown", "Pod was rejected as the node is shutting down.");
        self.shutting_down.then_some(words)
    }
}

impl World {
    /// At startup: takes the lock if logind grants the whole delay. ([SD5])
    pub(super) fn arm_graceful(&mut self) {
        let Some(groups) = &self.behaviour.groups else { return };
        let wanted: u64 = groups.iter().map(|(_, seconds)| *seconds).sum();
        let enough = self.logind.delay >= Duration::from_secs(wanted);
        if enough && self.logind.stage == Shutdown::Idle {
            self.logind.kubelet_lock = true;
            self.kubelet.graceful.armed = true;
            self.ledger.kubelet_was_armed = true;
        }
    }

    pub(super) fn kubelet_hears_shutdown(&mut self) {
        if !self.kubelet.is_live() || !self.kubelet.graceful.armed || !self.logind.kubelet_lock {
            return;
        }
        self.kubelet.graceful.shutting_down = true;
        self.kubelet.graceful.killing = true;
        let life = Life::Kubelet(self.kubelet.run);
        let pause = self.random.millis(30, 800);
        self.after(pause, life, World::say_not_ready);
        let pause = self.random.millis(1, 20);
        self.after(pause, life, |w| w.kill_group(0));
    }

    fn say_not_ready(&mut self) {
        let says = self.kubelet.graceful.shutting_down;
        if self.kubelet_dark().is_none() {
            self.api.update_node(|node| node.kubelet_says_shutdown = says);
        } else {
            let life = Life::Kubelet(self.kubelet.run);
            self.after(Duration::from_secs(2), life, World::say_not_ready);
        }
    }

    fn kill_group(&mut self, number: usize) {
        let groups = self.behaviour.groups.clone().unwrap_or_default();
        let Some((_, period)) = groups.get(number).copied() else {
            return self.killing_is_over();
        };
        let group_of =
            |priority: i32| groups.iter().rposition(|(lowest, _)| *lowest <= priority).unwrap_or(0);
        let workers = self.kubelet.workers.iter().filter(|(_, worker)| !worker.is_over());
        let victims: Vec<(PodUid, u32)> = workers
            .filter_map(|(uid, _)| {
                let view = self.api.pods.get(uid)?.view();
                let tgps = view.grace_seconds.unwrap_or(30);
                let grace = u32::try_from(period).unwrap_or(u32::MAX).min(tgps).max(1);
                (group_of(view.priority) == number).then(|| (uid.clone(), grace))
            })
            .collect();
        let at = self.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        for (uid, grace) in &victims {
            if let Some(worker) = self.kubelet.workers.get_mut(uid) {
                worker.words = Some(WORDS);
                worker.disruption = Some(json!({
                    "type": "DisruptionTarget", "status": "True",
                    "reason": promises::REASON, "message": promises::SHUTDOWN_MESSAGE,
                    "lastTransitionTime": at,
                }));
            }
            self.terminate(uid, *grace);
        }
        let until = self.now() + Duration::from_secs(period);
        self.await_group(
            number,
            &victims.into_iter().map(|(uid, _)| uid).collect::<Vec<_>>(),
            until,
        );
    }

    fn await_group(&mut self, number: usize, victims: &[PodUid], until: Moment) {
        let over = |uid: &PodUid| {
            let worker = self.kubelet.workers.get(uid);
            worker.is_none_or(|worker| worker.stage == Stage::Stopped)
        };
        if self.now() >= until || victims.iter().all(over) {
            return self.kill_group(number + 1);
        }
        let pause = Duration::from_millis(100).min(until.saturating_sub(self.now()));
        let (victims, life) = (victims.to_vec(), Life::Kubelet(self.kubelet.run));
        self.after(pause, life, move |w| w.await_group(number, &victims, until));
    }

    fn killing_is_over(&mut self) {
        self.log(|_| "kubelet   has killed, and drops its lock".into());
        self.kubelet.graceful.killing = false;
        if self.kubelet.graceful.cancelled {
            return self.kubelet_recovers();
        }
        self.logind.kubelet_lock = false;
        self.locks_changed();
    }

    /// The kubelet sees the cancellation only after it has killed its pods. ([SD10])
    pub(super) fn kubelet_hears_cancel(&mut self) {
        if self.kubelet.is_live() && self.kubelet.graceful.shutting_down {
            self.kubelet.graceful.cancelled = true;
            if !self.kubelet.graceful.killing {
                self.kubelet_recovers();
            }
        }
    }

    fn kubelet_recovers(&mut self) {
        self.kubelet.graceful = Graceful { armed: true, ..Graceful::default() };
        self.logind.kubelet_lock = self.logind.stage == Shutdown::Idle;
        self.say_not_ready();
        self.see_kubelet();
    }
}
