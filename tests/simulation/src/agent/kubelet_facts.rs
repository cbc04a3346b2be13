//! Models what the agent sees of the kubelet from outside: its ports, its unit, its lease and its
//! lock. And the ways of a kubelet to be gone that look alike from one of them.

use std::time::Duration;

use agent_core::protocol::event::Event;
use agent_core::protocol::node::{Healthz, KubeletFacts, MainPort, Unit};
use agent_core::shutdown::Mode;
use agent_core::shutdown::priority_groups::PriorityGroup;

use super::kubelet::Health;
use super::logind::Stage;
use super::scenario::Fault;
use super::situations::Met;
use super::world::{Life, World};
use crate::controller::random::Random;

/// Time between two looks of the source, outside of a shutdown and in one.
const LOOKS_EVERY: Duration = Duration::from_mins(1);
const LOOKS_GOING_DOWN: Duration = Duration::from_secs(2);
/// How long the source waits for a port in a shutdown, and outside.
const ANSWERS_GOING_DOWN: Duration = Duration::from_secs(2);
const ANSWERS: Duration = Duration::from_secs(1);
/// How long a kubelet that systemd starts again is waited for.
const RESTARTED: Duration = Duration::from_secs(12);
/// Within this time of a shutdown the agent finds a kubelet that does nothing: two looks without an
/// answer, what was on its way, and the time for which a mode must be wrong.
const FOUND_WITHIN: Duration = Duration::from_secs(10);

/// What stands in the kubelet's place while it has no process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing.
    #[default]
    Empty,
    /// systemd is about to start it again. Whether it lived, and the agent had not taken its place.
    Restarting(bool),
    /// Another process answers on its port.
    Taken,
}

/// Turns some of the kubelet's ends into others that look alike. The generator is their own, so
/// that a seed stays what it was.
pub(super) fn vary(faults: &mut [(Duration, Fault)], random: &mut Random) {
    for (_, fault) in faults {
        *fault = match fault {
            Fault::Kubelet(Health::Hung) if random.percent(50) => Fault::Kubelet(Health::Stuck),
            Fault::Kubelet(Health::Dead) => match random.below(10) {
                0..2 => Fault::KubeletRestarts(random.millis(1_000, 11_000)),
                2 => Fault::KubeletsPortTaken,
                _ => continue,
            },
            _ => continue,
        };
    }
}

impl World {
    /// The kubelet is killed, and systemd starts it again after this time.
    pub(super) fn restart_kubelet(&mut self, after: Duration) {
        let lived = self.kubelet.is_live() && self.mode() != Some(Mode::Substitute);
        self.end_kubelet(Health::Dead);
        self.kubelet.place = Place::Restarting(lived);
        self.after(after, Life::Boot(self.boot), |w| {
            if matches!(w.kubelet.place, Place::Restarting(_)) && !w.deserted {
                w.start_kubelet();
            }
        });
        self.see_kubelet();
    }

    /// The kubelet is killed for good, and another process takes its port.
    pub(super) fn take_port(&mut self) {
        self.end_kubelet(Health::Dead);
        self.kubelet.place = Place::Taken;
        self.see_kubelet();
    }

    fn goes_down(&self) -> bool {
        self.logind.stage != Stage::Idle
    }

    /// The agent's source checks the kubelet a moment after a change. A port without an answer
    /// takes its time.
    pub(super) fn see_kubelet(&mut self) {
        if self.agent_run().is_none() {
            return;
        }
        let pause = self.random.millis(10, 150);
        self.see_kubelet_after(pause);
    }

    fn see_kubelet_after(&mut self, pause: Duration) {
        let Some(run) = self.agent_run() else { return };
        let silent = self.kubelet.health == Health::Hung;
        let waits = match (silent, self.goes_down()) {
            (false, _) => Duration::ZERO,
            (true, true) => ANSWERS_GOING_DOWN,
            (true, false) => ANSWERS,
        };
        self.after(pause + waits, Life::Agent(run), move |w| {
            // An answer that came while the source waited for it counts.
            let facts = w.kubelet_facts();
            w.agent_handles(Event::KubeletSeen(facts));
        });
    }

    /// The source also checks at least once a minute, and more often in a shutdown.
    pub(super) fn watch_kubelet(&mut self) {
        let Some(run) = self.agent_run() else { return };
        if self.goes_down() {
            let pause = self.replaced_random.millis(10, 150);
            self.see_kubelet_after(pause);
        } else {
            self.see_kubelet();
        }
        let pause = if self.goes_down() { LOOKS_GOING_DOWN } else { LOOKS_EVERY };
        let watch = self.kubelet.watches + 1;
        self.kubelet.watches = watch;
        self.after(pause, Life::Agent(run), move |w| {
            if w.kubelet.watches == watch {
                w.watch_kubelet();
            }
        });
    }

    fn kubelet_facts(&self) -> KubeletFacts {
        let (health, place) = (self.kubelet.health, self.kubelet.place);
        let groups = self.behaviour.groups.as_deref().unwrap_or_default();
        let period = Duration::from_secs(groups.iter().map(|(_, seconds)| *seconds).sum());
        let speaks = matches!(health, Health::Live | Health::Stuck);
        let taken = health == Health::Dead && place == Place::Taken;
        let (unit, healthy, main_port) = match health {
            Health::Live => (Unit::Active, Healthz::Ok, Some(MainPort::Answers)),
            Health::Stuck => (Unit::Active, Healthz::Ok, Some(MainPort::Stuck)),
            Health::Hung => (Unit::Active, Healthz::Silent, Some(MainPort::Silent)),
            // Its certificate is another one.
            Health::Dead if taken => (Unit::Inactive, Healthz::Ok, None),
            Health::Dead if matches!(place, Place::Restarting(_)) => {
                (Unit::Changing, Healthz::Refused, Some(MainPort::Refused))
            }
            Health::Dead => (Unit::Inactive, Healthz::Refused, Some(MainPort::Refused)),
        };
        let renewed = if health == Health::Stuck { self.now() } else { self.kubelet.renewed_at };
        KubeletFacts {
            lock_armed: (!self.logind.down).then_some(self.logind.kubelet_lock),
            shutdown_groups: speaks.then(|| PriorityGroup::of_all(period)),
            main_pid: (health != Health::Dead).then_some(1_000 + self.kubelet.run as u32),
            unit: Some(unit),
            healthy: Some(healthy),
            main_port,
            lease_age: Some(self.now().saturating_sub(renewed)),
            eviction: speaks.then(|| self.kubelet_eviction()),
        }
    }

    /// Whether systemd starts the kubelet again, and has not taken long for it.
    pub(super) fn kubelet_comes_back_soon(&self) -> bool {
        let gone = self.now().saturating_sub(self.ledger.pressure.kubelet_changed_at);
        let returns =
            self.kubelet.health == Health::Dead && self.kubelet.place == Place::Restarting(true);
        returns && gone < (self.logind.delay / 3).min(RESTARTED)
    }

    /// Checks that a kubelet that does nothing is found soon in a shutdown.
    pub(super) fn inspect_mode(&mut self) {
        let settings = &self.behaviour.settings;
        let able = settings.enforce && settings.runtime && settings.priority_groups.is_some();
        let Some(process) = self.process.as_ref().filter(|_| able) else { return };
        let status = process.agent.status();
        let Some(shutdown) = &status.shutdown else { return };
        let since = |moment| self.now().saturating_sub(moment) > FOUND_WITHIN;
        let Some(ledger) = &self.ledger.shutdown else { return };
        let idle = matches!(self.kubelet.health, Health::Hung | Health::Stuck);
        let frozen = self.ledger.frozen_at.is_some();
        let thawed = self.ledger.thawed_at.is_none_or(since);
        let due = idle
            && !frozen
            && thawed
            && !shutdown.cancelled
            && ledger.heard
            && !ledger.released
            && self.now() < ledger.last_writes
            && self.logind.agent_lock == self.agent_run()
            && since(ledger.reported_at)
            && since(self.ledger.pressure.kubelet_changed_at);
        if due {
            let (mode, health) = (shutdown.mode, self.kubelet.health);
            let words = || format!("{mode:?}, though the kubelet is {health:?}");
            self.judge(Met::IdleKubeletFound, mode != Mode::Substitute, words);
        }
    }

    pub(super) fn met_end(&mut self, fault: Fault) {
        self.met(match fault {
            Fault::Kubelet(Health::Hung) => Met::KubeletHangs,
            Fault::Kubelet(Health::Stuck) => Met::SyncLoopHangs,
            Fault::KubeletRestarts(_) => Met::KubeletIsRestarted,
            Fault::KubeletsPortTaken => Met::KubeletsPortTaken,
            _ => Met::KubeletDies,
        });
    }
}

/// Whether the facts show a kubelet that works.
pub(super) fn works(facts: &KubeletFacts) -> bool {
    facts.healthy == Some(Healthz::Ok) && facts.main_port != Some(MainPort::Stuck)
}
