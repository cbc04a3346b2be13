//! Judges whether a shortage ends that the agent can relieve.

use std::time::Duration;

use agent_core::agent::Enforcement;
use agent_core::pod::{Owner, PodUid, PodView};
use agent_core::pressure::signal::Signal;
use agent_core::pressure::thresholds::Threshold;
use agent_core::shutdown::candidates::BarePods;

use super::api::Stored;
use super::kubelet::Health;
use super::logind::Stage;
use super::pressure_ledger::Victim;
use super::promises;
use super::situations::Met;
use super::world::World;
use crate::controller::agenda::Moment;

/// How long a shortage may last if the agent can relieve it. A soft threshold's grace comes on top.
/// For a disk, the last victim's files have to go first.
const PRESSURE_LASTS: Duration = Duration::from_mins(1);
const DISK_PRESSURE_LASTS: Duration = Duration::from_mins(2);
/// How long a shortage of memory may last after an outage of the API until a pod is evicted.
const FIRST_AFTER_OUTAGE: Duration = Duration::from_secs(10);
/// How long after its grace a pod may still end.
const STOP_TAKES: Duration = Duration::from_secs(10);
/// How long a victim that does not end delays the next one, for all but memory. ([EV25])
const HANGING_HOLDS: Duration = Duration::from_secs(40);
/// How long the agent waits after each victim for the files to go.
const FILES_LAST: Duration = Duration::from_secs(35);

impl World {
    /// Checks from time to time whether a shortage ends.
    pub(super) fn judge_shortage(&mut self) {
        self.note_beyond_own();
        let now = self.now();
        let short = self.thresholds_met();
        let since = &mut self.ledger.pressure.short_since;
        since.retain(|number, _| short.contains(number));
        for number in &short {
            since.entry(*number).or_insert(now);
        }
        // The agent relieves one shortage after the other.
        let Some(number) = short.first() else { return };
        let since = self.ledger.pressure.short_since[number];
        let threshold = self.behaviour.settings.features.eviction.thresholds[*number];
        let Some(time) = self.time_to_relieve(&threshold, since) else {
            self.ledger.pressure.short_since.remove(number);
            return;
        };
        let lasts = now.saturating_sub(since);
        if lasts.is_zero() {
            self.met(Met::ShortageBegins);
        }
        if lasts > time && !self.ledger.pressure.blamed {
            self.ledger.pressure.blamed = true;
            self.violate(&format!("the pressure has lasted for {lasts:?}"));
        }
    }

    /// The thresholds that are met, if the agent can and should act on them.
    fn thresholds_met(&self) -> Vec<usize> {
        let settings = &self.behaviour.settings;
        let able = self.process.as_ref().is_some_and(|process| !process.stop_requested)
            && settings.enforce
            && settings.features.pressure == Enforcement::Enforce
            && self.behaviour.strict
            && self.ledger.frozen_at.is_none()
            && !self.is_dark()
            && self.logind.stage == Stage::Idle
            && self.ledger.shutdown.is_none()
            && self.kubelet.health == Health::Live
            && self.api.node.kubelet_pressure.is_empty()
            && self.runtime.answers;
        if !able {
            return Vec::new();
        }
        let used = self.used();
        let thresholds = settings.features.eviction.thresholds.iter().enumerate();
        let met = thresholds.filter(|(_, threshold)| {
            let found = self.left_of(threshold.signal, used);
            promises::is_short(threshold, found.available, found.capacity)
                && self.is_before_kubelet(threshold.signal, found.capacity)
        });
        met.map(|(number, _)| number).collect()
    }

    /// How long a shortage since this moment may last; `None` if the agent cannot relieve it.
    fn time_to_relieve(&self, threshold: &Threshold, since: Moment) -> Option<Duration> {
        let signal = threshold.signal;
        let found = self.left(signal);
        let missing =
            promises::amount(threshold.limit, found.capacity).saturating_sub(found.available);
        // The victim of a soft threshold has the grace of its own specification to end.
        let waits = threshold.grace.is_some() && self.a_soft_victim_ends();
        let waits = waits || self.a_victim_hangs(signal);
        if waits || self.is_left_to_kubelet(signal) || !self.has_candidate(signal, missing) {
            return None;
        }
        let after_outage = self.behaviour.outage.is_some_and(|(at, length)| {
            let ended = at + length;
            since >= ended && since < ended + Duration::from_secs(1)
        });
        let evicted = |victim: &Victim| victim.killed_at.is_some_and(|at| at >= since);
        let none = !self.ledger.pressure.victims.values().any(evicted);
        let usual = if after_outage && none && promises::resource(signal).0 == "memory" {
            FIRST_AFTER_OUTAGE
        } else if promises::resource(signal).1 == "DiskPressure" {
            let victims = &self.ledger.pressure.victims;
            let after = victims.values().filter(|victim| victim.chosen_at >= since).count();
            DISK_PRESSURE_LASTS + FILES_LAST * u32::try_from(after).unwrap_or(u32::MAX)
        } else {
            PRESSURE_LASTS
        };
        Some(usual + threshold.grace.unwrap_or_default())
    }

    fn a_soft_victim_ends(&self) -> bool {
        let most = self.behaviour.settings.features.eviction.soft_grace_seconds_max;
        let in_grace = |uid: &PodUid, victim: &Victim| {
            let asked = self.api.pods.get(uid)?.view().grace_seconds.unwrap_or(30);
            let grace = Duration::from_secs(asked.min(most.unwrap_or(u32::MAX)).into());
            Some(self.now() < victim.chosen_at + grace + STOP_TAKES)
        };
        self.ledger.pressure.victims.iter().any(|(uid, victim)| {
            let ends = !victim.hard && self.runtime.running(uid) > 0;
            ends && in_grace(uid, victim).unwrap_or(false)
        })
    }

    /// Whether a victim that takes unusually long delays the next one: the runtime or its kubelet
    /// may just be slow, and another victim would make them slower.
    fn a_victim_hangs(&self, signal: Signal) -> bool {
        let hangs = |uid: &PodUid, victim: &Victim| {
            let lasts = self.now().saturating_sub(victim.chosen_at);
            let ended = self.api.pods.get(uid).is_none_or(Stored::is_terminal);
            let ours = Some(victim.run) == self.agent_run() && !victim.own_limit;
            ours && !ended && lasts >= STOP_TAKES && lasts < HANGING_HOLDS
        };
        let mut victims = self.ledger.pressure.victims.iter();
        promises::resource(signal).0 != "memory" && victims.any(|(uid, it)| hangs(uid, it))
    }

    /// Whether the agent has left the signal to the kubelet: a bare pod that only the kubelet may
    /// terminate comes first in rank, and an eviction of another pod would hit an innocent one.
    fn is_left_to_kubelet(&self, signal: Signal) -> bool {
        self.ledger.pressure.left_to_kubelet.iter().any(|uid| {
            let stored = self.api.pods.get(uid);
            stored.is_some_and(|stored| self.is_kept(&stored.view()))
                && self.use_of_resource(uid, signal) > 0
        })
    }

    /// Whether the agent may not terminate the pod: it has no controller, and may run again.
    fn is_kept(&self, view: &PodView) -> bool {
        let settings = &self.behaviour.settings;
        view.owner == Owner::None
            && settings.bare_pods == BarePods::Leave
            && !(promises::had_its_only_run(view) && settings.runtime)
    }

    fn use_of_resource(&self, uid: &PodUid, signal: Signal) -> u64 {
        let used = self.use_of(uid);
        match promises::resource(signal).0 {
            "memory" => used.memory,
            "pids" => used.tasks,
            _ => used.disk,
        }
    }

    /// Whether all thresholds of the signal lie before the kubelet's own; otherwise the agent only
    /// observes it.
    fn is_before_kubelet(&self, signal: Signal, capacity: u64) -> bool {
        let Some((memory, disk, tasks)) = self.behaviour.strain.kubelet_limits else { return true };
        let theirs = match promises::resource(signal).1 {
            "MemoryPressure" => memory,
            "PIDPressure" => tasks,
            _ => disk,
        };
        let ours = self.behaviour.settings.features.eviction.thresholds.iter();
        let mut ours = ours.filter(|threshold| threshold.signal == signal);
        ours.all(|threshold| promises::amount(threshold.limit, capacity) > theirs)
    }

    /// Whether evictable pods use the missing amount, and every one of them can end.
    fn has_candidate(&self, signal: Signal, missing: u64) -> bool {
        let stuck = |uid: &PodUid| {
            self.scripts.get(uid).is_some_and(|s| s.habits.iter().any(|habit| habit.unkillable))
        };
        let running = self.api.pods.iter().filter(|(uid, _)| self.runtime.running(uid) > 0);
        let mut running = running.filter(|(uid, _)| !self.is_critical(uid)).peekable();
        running.peek().is_some()
            && running.clone().all(|(uid, _)| !stuck(uid))
            && missing
                < running
                    .map(|(uid, stored)| (uid, stored.view()))
                    .filter(|(_, view)| !self.is_kept(view) && !view.is_to_end())
                    .map(|(uid, _)| self.use_of_resource(uid, signal))
                    .sum()
    }
}
