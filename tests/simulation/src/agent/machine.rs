//! Drives the events of the machine and its pods: boots, power-off, crashes, and controllers
//! elsewhere that manage its pods.

use std::time::Duration;

use agent_core::pod::PodUid;
use jiff::SignedDuration;

use super::api::Stored;
use super::kernel::Kernel;
use super::kubelet::Health;
use super::kubelet_facts::Place;
use super::logind::{Logind, Stage};
use super::scenario::{Fault, Outcome};
use super::world::{Life, World};

impl World {
    /// The first boot, and every event that the seed rolled.
    pub(super) fn begin(&mut self) {
        self.begin_boot();
        self.populate();
        self.start_kubelet();
        let pause = self.random.millis(0, 2_000);
        self.after(pause, Life::Boot(self.boot), World::start_process);
        self.schedule_notices();
        for shutdown in self.behaviour.shutdowns.clone() {
            self.after(shutdown.at, Life::World, move |w| {
                w.met_outcome(shutdown.outcome);
                if let Outcome::Unannounced(lasts) = shutdown.outcome {
                    return w.stop_system(lasts);
                }
                w.schedule_faults();
                w.announce_shutdown();
                match shutdown.outcome {
                    Outcome::Goes | Outcome::Unannounced(_) => {}
                    Outcome::Cancelled(after) => {
                        w.after(after, Life::Boot(w.boot), World::cancel_shutdown);
                    }
                    Outcome::Forgotten(after) => {
                        w.after(after, Life::Boot(w.boot), World::restart_logind);
                    }
                    Outcome::Cut(after) => {
                        w.after(after, Life::Boot(w.boot), World::power_off);
                    }
                }
            });
        }
        if let Some(before) = self.behaviour.kubelet_dies_before {
            for shutdown in self.behaviour.shutdowns.clone() {
                let at = shutdown.at.saturating_sub(before);
                self.after(at, Life::World, |w| w.befall(Fault::Kubelet(Health::Dead)));
            }
        }
        if self.behaviour.shutdowns.is_empty() {
            let pause = self.random.millis(5_000, 60_000);
            self.after(pause, Life::World, World::schedule_faults);
        }
        if let Some((at, length)) = self.behaviour.outage {
            self.after(at, Life::World, move |w| w.darken(length, false));
        }
        if self.behaviour.strain.presses {
            self.after(Duration::ZERO, Life::World, World::kernel_tick);
        }
        self.begin_hangs();
        self.after(Duration::from_secs(1), Life::World, World::inspect);
        self.after(self.behaviour.calm_from, Life::World, World::settle);
        self.after(self.behaviour.ends_at, Life::World, |w| w.over = true);
    }

    /// Schedules the faults of a seed around its shutdowns.
    fn schedule_faults(&mut self) {
        for (after, fault) in self.behaviour.faults.clone() {
            self.after(after, Life::Boot(self.boot), move |w| w.befall(fault));
        }
    }

    fn befall(&mut self, fault: Fault) {
        if self.ledger.settling {
            return;
        }
        self.met_fault(fault);
        match fault {
            Fault::Dark(length, kubelet_too) => self.darken(length, kubelet_too),
            Fault::Crash => {
                let pause = self.random.millis(200, 5_000);
                self.crash(Some(pause));
            }
            Fault::Freeze(length) => self.freeze(length),
            Fault::Stop => self.request_stop(),
            Fault::Kubelet(_)
            | Fault::KubeletStarts
            | Fault::KubeletRestarts(_)
            | Fault::KubeletsPortTaken
                if self.deserted => {}
            Fault::Kubelet(health) => self.end_kubelet(health),
            Fault::KubeletRestarts(after) => self.restart_kubelet(after),
            Fault::KubeletsPortTaken => self.take_port(),
            Fault::KubeletStarts => {
                self.end_kubelet(Health::Dead);
                self.start_kubelet();
            }
            Fault::RuntimeSilent(length) => {
                self.log(|_| format!("runtime   is silent for {length:?}"));
                self.runtime.answers = false;
                self.after(length, Life::World, |w| w.runtime.answers = !w.runtime_is_dead);
            }
            Fault::Clock(seconds) => {
                self.log(|_| format!("machine   the wall clock jumps by {seconds} s"));
                self.wall_offset += SignedDuration::from_secs(seconds.into());
            }
            Fault::Suspend(length) => {
                self.log(|_| format!("machine   was suspended for {length:?}"));
                self.suspended += length;
                self.wall_offset += SignedDuration::try_from(length).unwrap_or_default();
            }
            Fault::Arrival => self.new_pod(),
        }
    }

    /// The machine is off. No report leaves it any more. ([LD11])
    pub(super) fn power_off(&mut self) {
        self.log(|_| "machine   is off".into());
        self.on = false;
        self.judge_stopped();
        self.stats.power_offs += 1;
        self.ledger_at_power_off();
        self.process = None;
        self.lose_unsynced();
        self.kubelet.health = Health::Dead;
        self.kubelet.place = Place::Empty;
        self.kubelet.workers.clear();
        self.stops.clear();
        self.cut_containers();
        self.volumes.cut();
        self.notices.power_off();
        self.runtime.answers = true;
        self.runtime_is_dead = false;
        self.deserted = false;
        self.kernel = Kernel::default();
        self.last_sample = None;
        let (delay, announcements) = (self.logind.delay, self.logind.announcements);
        self.logind = Logind { delay, announcements, ..Logind::default() };
        if let Some(pause) = self.behaviour.boots_after {
            self.after(pause, Life::World, World::boot_again);
        }
    }

    fn boot_again(&mut self) {
        if self.on {
            return;
        }
        self.begin_boot();
        let kubelet = self.random.millis(1_000, 8_000);
        let agent = self.random.millis(500, 10_000);
        self.after(kubelet, Life::Boot(self.boot), World::start_kubelet);
        self.after(agent, Life::Boot(self.boot), World::start_process);
    }

    /// From now on nothing fails: everything left must end correctly.
    fn settle(&mut self) {
        self.log(|_| "all goes well from now on".into());
        self.ledger.settling = true;
        self.ledger.settling_since = Some(self.now());
        self.behaviour.throttle = None;
        self.wire.refused_until = self.now();
        self.behaviour.rtt_ms = (1, 10);
        self.runtime.answers = !self.runtime_is_dead;
        self.end_pulls();
        if !self.on {
            return;
        }
        if self.kubelet.health != Health::Live && !self.deserted {
            self.kubelet.health = Health::Dead;
            self.logind.kubelet_lock = false;
            self.start_kubelet();
        }
        if self.process.is_none() {
            self.start_process();
        }
        if self.logind.stage == Stage::Delayed {
            self.locks_changed();
        }
    }

    pub(super) fn own_pod_is_terminating(&self) -> bool {
        let own = self.behaviour.settings.own_pod.as_ref();
        own.and_then(|own| self.kubelet.workers.get(own))
            .is_some_and(|worker| matches!(worker.stage, super::kubelet::Stage::Terminating { .. }))
    }

    /// SIGTERM to a pod; for the agent's own pod, it goes to the process.
    pub(super) fn term_pod(&mut self, uid: &PodUid) {
        if self.behaviour.settings.own_pod.as_ref() == Some(uid) {
            self.request_stop();
        }
        self.term(uid);
    }

    /// Controllers elsewhere: a Job counts its pod and removes the finalizer.
    pub(super) fn controllers_notice(&mut self, stored: &Stored) {
        if stored.is_terminal() {
            self.replace(stored);
        }
        if stored.finalizer && stored.is_terminal() {
            let uid = stored.uid().clone();
            let pause = self.random.millis(300, 3_000);
            self.after(pause, Life::World, move |w| {
                w.api.update(&uid, |stored| stored.finalizer = false);
            });
        }
    }
}
