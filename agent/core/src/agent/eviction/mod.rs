//! Evicts pods under node pressure: samples the node, chooses a victim, and terminates it.
//!
//! There is no journal, because the condition on the pod is the record. It is in the API before the
//! agent stops anything of the pod, and it names its reason. An agent that finds one after a
//! restart knows that its eviction is not in progress any more. (`own_marks_stale.rs`)

mod answers;
mod choice;
mod conditions;
mod effective_mode;
mod own_limits;
mod own_marks_stale;
mod sampling;
mod stalls;
mod victim;

use std::collections::BTreeMap;

use super::{Agent, Features, VictimStatus};
use crate::pod::{PodUid, PodView};
use crate::pressure::signal::Signal;
use crate::pressure::usage::DiskLayout;
use crate::pressure::watch::{Cause, Measurements, Watch};
use crate::termination::progress::PodTermination;

use choice::Choices;
use conditions::NodeConditions;
use effective_mode::Overlaps;
use own_limits::OwnLimits;
use own_marks_stale::StaleMarks;
use sampling::Sampling;
use stalls::Stalls;
use victim::Victim;

/// The node's pressure, and the evictions in progress.
#[derive(Debug)]
pub(super) struct Evictions {
    watch: Watch,
    sampling: Sampling,
    stalls: Stalls,
    conditions: NodeConditions,
    overlaps: Overlaps,
    choices: Choices,
    own_limits: OwnLimits,
    stale_marks: StaleMarks,
    /// The last measurements.
    signals: Measurements,
    layout: Option<DiskLayout>,
    /// The thresholds that the last sample crossed, in their order: each requires a victim.
    crossed: Vec<Cause>,
    /// The same for a stall that was seen twice.
    stalled: Option<Cause>,
    victims: BTreeMap<PodUid, Victim>,
    /// Whether a shutdown went on at the last decision.
    stood_still: bool,
}

impl Evictions {
    pub(super) fn new(features: &Features) -> Self {
        Self {
            watch: Watch::new(features.eviction.clone()),
            sampling: Sampling::default(),
            stalls: Stalls::default(),
            conditions: NodeConditions::default(),
            overlaps: Overlaps::default(),
            choices: Choices::default(),
            own_limits: OwnLimits::default(),
            stale_marks: StaleMarks::default(),
            signals: Measurements::new(),
            layout: None,
            crossed: Vec::new(),
            stalled: None,
            victims: BTreeMap::new(),
            stood_still: false,
        }
    }

    pub(super) fn pod_gone(&mut self, uid: &PodUid) {
        self.choices.pod_gone(uid);
        self.stalls.pod_gone(uid);
        self.stale_marks.pod_gone(uid);
    }

    /// Whether the pod's eviction is in progress.
    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.victims.contains_key(uid)
    }

    /// The termination of a victim.
    pub(super) fn termination(&self, uid: &PodUid) -> Option<&PodTermination> {
        self.victims.get(uid).map(|victim| &victim.termination)
    }

    /// Whether any eviction is in progress.
    pub(super) fn is_terminating_pods(&self) -> bool {
        !self.victims.is_empty()
    }

    /// The causes for an eviction now. Memory comes before the rest, and a hard threshold comes
    /// before a stall. ([EV22])
    fn causes(&self) -> Vec<Cause> {
        let urgent = |cause: &Cause| cause.signal.resource() == "memory" && cause.is_hard();
        let at = usize::from(self.crossed.first().is_some_and(urgent));
        let mut causes = self.crossed.clone();
        if let Some(stalled) = self.stalled {
            causes.insert(at, stalled);
        }
        causes
    }

    /// Drops the causes: they led to a decision, or are outdated. The next sample shows what is
    /// left.
    fn forget_causes(&mut self) {
        self.crossed.clear();
        self.stalled = None;
    }

    fn capacity(&self, signal: Signal) -> Option<u64> {
        self.signals.get(&signal).map(|measured| measured.observation.capacity)
    }
}

/// Whether the pod takes part in the node's shortage.
fn is_active(pod: &PodView) -> bool {
    !pod.is_terminal()
}

impl Agent {
    /// Advances the samples, the choice and the evictions.
    pub(super) fn advance_evictions(&mut self) {
        if self.stands_still() {
            self.evictions.stood_still = true;
            self.show_effective_mode();
            return;
        }
        if std::mem::take(&mut self.evictions.stood_still) {
            self.take_up_victims();
        }
        self.show_effective_mode();
        self.revoke_stale_marks();
        self.show_conditions();
        self.advance_sampling();
        self.limits_on();
        self.choose_on();
        self.advance_victims();
        self.show_victims();
    }

    fn show_victims(&mut self) {
        let shown = |victim: &Victim| VictimStatus {
            uid: victim.termination.pod.uid.clone(),
            namespace: victim.termination.pod.namespace.clone(),
            name: victim.termination.pod.name.clone(),
            signal: victim.signal,
            since: victim.chosen_at,
        };
        self.status.pressure.victims = self.evictions.victims.values().map(shown).collect();
    }
}
