//! Records what the checks need about pressure, victims, and pods that hang. The verdicts are in
//! [`super::eviction_verdicts`], [`super::stuck_verdicts`] and [`super::oom_verdicts`].

use std::collections::{BTreeMap, BTreeSet};

use agent_core::agent::Enforcement;
use agent_core::pod::PodUid;
use agent_core::pressure::signal::Signal;
use agent_core::protocol::event::{ActionResult, NodeView};
use agent_core::protocol::pressure::Sample;

use super::logind::Stage;
use super::promises;
use super::situations::Met;
use super::world::World;
use crate::controller::agenda::Moment;

/// A pod that the agent evicts.
#[derive(Clone, Debug)]
pub(super) struct Victim {
    /// The run of the agent that chose it.
    pub(super) run: u64,
    pub(super) chosen_at: Moment,
    /// Whether the cause is a limit of its own, and not the node.
    pub(super) own_limit: bool,
    /// Whether a hard threshold was crossed then.
    pub(super) hard: bool,
    /// When the agent first stopped or deleted it.
    pub(super) killed_at: Option<Moment>,
    /// Events about it, by this run.
    pub(super) events: u32,
}

/// The recorded state.
#[derive(Debug, Default)]
pub(super) struct PressureLedger {
    /// When a shortage was last reported to the agent.
    pub(super) reported_short: BTreeMap<Signal, Moment>,
    /// The kubelet's own conditions, as reported to the agent.
    pub(super) reported_conditions: Vec<String>,
    pub(super) victims: BTreeMap<PodUid, Victim>,
    /// When the agent last reported that it chose a pod, and its words.
    pub(super) said: BTreeMap<PodUid, (Moment, String)>,
    /// Since when each threshold has been met, by its number, while the agent could act on it.
    pub(super) short_since: BTreeMap<usize, Moment>,
    /// Pods that the agent has left to the kubelet.
    pub(super) left_to_kubelet: BTreeSet<PodUid>,
    pub(super) blamed: bool,
    /// How often the API accepted a phase of a pod that hung.
    pub(super) unstuck: BTreeMap<PodUid, u32>,
    /// Pods that have exceeded a limit of their own.
    pub(super) beyond_own: BTreeSet<PodUid>,
    pub(super) recent_samples: u32,
    /// When the kubelet last started, stopped or hung.
    pub(super) kubelet_changed_at: Moment,
}

impl PressureLedger {
    /// The knowledge of a process is gone with it.
    pub(super) fn process_ends(&mut self) {
        self.reported_short.clear();
        self.reported_conditions.clear();
        self.said.clear();
        self.short_since.clear();
    }

    pub(super) fn node_reported(&mut self, node: &NodeView) {
        self.reported_conditions.clone_from(&node.kubelet_pressure);
    }
}

impl World {
    /// Records that a sample of the node has ended.
    pub(super) fn ledger_hears_sample(&mut self, result: &ActionResult) {
        if let ActionResult::Measured(Ok(sample)) = result {
            self.note_shortages(sample);
        }
    }

    fn note_shortages(&mut self, sample: &Sample) {
        let now = self.now();
        // A node whose pods wait for memory is short of it before any threshold.
        let stalls = sample
            .stall
            .as_ref()
            .is_some_and(|stall| stall.available.available < stall.available.capacity / 100 * 12);
        let (mut fresh, mut any) = (false, stalls);
        let short = &mut self.ledger.pressure.reported_short;
        if stalls {
            fresh |= short.insert(Signal::MemoryAvailable, now).is_none();
        }
        for threshold in &self.behaviour.settings.features.eviction.thresholds {
            let Some(measured) = sample.signals.get(&threshold.signal) else { continue };
            let found = measured.observation;
            if promises::may_reclaim(threshold, found.available, found.capacity) {
                any = true;
                fresh |= short.insert(threshold.signal, now).is_none();
            }
        }
        let enforces = self.behaviour.settings.features.pressure == Enforcement::Enforce;
        let shutdown = self.ledger.shutdown.as_ref().is_some_and(|shutdown| shutdown.heard);
        if any && enforces && shutdown && self.logind.stage == Stage::Delayed {
            self.met(Met::ShortInShutdown);
        }
        if fresh {
            self.met_shortage();
        }
    }

    /// A run of the agent hears for the first time that the node is short of something.
    fn met_shortage(&mut self) {
        match self.behaviour.settings.features.pressure {
            Enforcement::Observe => self.met(Met::ShortObserved),
            Enforcement::Off => return,
            Enforcement::Enforce => {}
        }
        if self.runtime.sandboxes.keys().any(|uid| self.is_critical(uid)) {
            self.met(Met::ShortWithCritical);
        }
        if !self.ledger.pressure.reported_conditions.is_empty() {
            self.met(Met::ShortUnderKubelet);
        }
    }
}
