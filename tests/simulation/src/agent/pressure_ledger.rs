//! What the checks remember of pressure, of victims, and of pods that hang. The verdicts are in
//! [`super::eviction_verdicts`], [`super::stuck_verdicts`] and [`super::cause_verdicts`].

use std::collections::{BTreeMap, BTreeSet};

use agent_core::pod::PodUid;
use agent_core::pressure::signal::Signal;
use agent_core::protocol::event::{ActionResult, NodeView};
use agent_core::protocol::pressure::Sample;

use super::world::World;
use crate::controller::agenda::Moment;

/// A pod that the agent evicts.
#[derive(Clone, Debug)]
pub(super) struct Victim {
    /// Which run of the agent chose it.
    pub(super) run: u64,
    pub(super) chosen_at: Moment,
    /// For a limit of its own, and not for the node.
    pub(super) own_limit: bool,
    /// Whether a hard threshold was crossed then.
    pub(super) hard: bool,
    /// When it was first stopped or deleted.
    pub(super) killed_at: Option<Moment>,
    /// Events that say so, by this run.
    pub(super) events: u32,
}

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct PressureLedger {
    /// When the agent was last told that something is short.
    pub(super) reported_short: BTreeMap<Signal, Moment>,
    /// The kubelet's own conditions, as the agent was told.
    pub(super) reported_conditions: Vec<String>,
    pub(super) victims: BTreeMap<PodUid, Victim>,
    /// When the agent last said that it chose a pod.
    pub(super) said: BTreeMap<PodUid, Moment>,
    /// Since when something has been short for the agent, and it could act.
    pub(super) short_since: Option<Moment>,
    pub(super) blamed: bool,
    /// How often the API took a phase of a pod that hung.
    pub(super) unstuck: BTreeMap<PodUid, u32>,
    /// Pods that exceeded limits of their own at some time.
    pub(super) beyond_own: BTreeSet<PodUid>,
    pub(super) recent_samples: u32,
    /// When a change of the kubelet's life was last made.
    pub(super) kubelet_changed_at: Moment,
}

impl PressureLedger {
    /// What one process was told is gone with it.
    pub(super) fn process_ends(&mut self) {
        self.reported_short.clear();
        self.reported_conditions.clear();
        self.said.clear();
        self.short_since = None;
    }

    pub(super) fn node_reported(&mut self, node: &NodeView) {
        self.reported_conditions.clone_from(&node.kubelet_pressure);
    }
}

impl World {
    /// A look at the node has ended.
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
        if stalls {
            self.ledger.pressure.reported_short.insert(Signal::MemoryAvailable, now);
        }
        for threshold in &self.temper.settings.features.eviction.thresholds {
            let Some(measured) = sample.signals.get(&threshold.signal) else { continue };
            let found = measured.observation;
            if threshold.is_met(found.available, found.capacity, true) {
                self.ledger.pressure.reported_short.insert(threshold.signal, now);
            }
        }
    }
}
