//! Evicts pods under node pressure: samples the node, chooses a victim, and terminates it.
//!
//! There is no journal, because the condition on the pod is the record. It is in the API before the
//! agent stops anything of the pod, and it names its reason. An agent that finds one after a
//! restart knows that its eviction is not in progress any more. (`disruptions/finders.rs`)

mod answers;
mod choice;
mod conditions;
mod effective_mode;
mod own_limits;
mod sampling;
mod silence;
mod stalls;
mod steps;
mod victim;

use super::disruptions::Disruptions;
use super::facts::{Facts, News};
use super::out::Out;
use super::settings::Features;
use super::status::VictimStatus;
use crate::pod::{PodUid, PodView};
use crate::pressure::signal::Signal;
use crate::pressure::usage::DiskLayout;
use crate::pressure::watch::{Cause, Hold, Measurements, Watch};

use choice::Choices;
use conditions::NodeConditions;
use effective_mode::{Overlaps, show_effective_mode};
use own_limits::OwnLimits;
use sampling::Sampling;
use stalls::Stalls;
pub(super) use victim::Victim;

/// The node's pressure, and the evictions in progress.
#[derive(Clone, Debug)]
pub(super) struct Evictions {
    watch: Watch,
    sampling: Sampling,
    stalls: Stalls,
    conditions: NodeConditions,
    overlaps: Overlaps,
    choices: Choices,
    own_limits: OwnLimits,
    /// The last measurements.
    signals: Measurements,
    layout: Option<DiskLayout>,
    /// The thresholds that the last sample crossed, in their order: each requires a victim.
    crossed: Vec<Cause>,
    /// The same for a stall that was seen twice.
    stalled: Option<Cause>,
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
            signals: Measurements::new(),
            layout: None,
            crossed: Vec::new(),
            stalled: None,
            stood_still: false,
        }
    }

    fn pod_gone(&mut self, uid: &PodUid) {
        self.choices.pod_gone(uid);
        self.stalls.pod_gone(uid);
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

/// How long the victims that are still terminating delay the next one.
pub(super) fn holds(disruptions: &Disruptions) -> Vec<Hold> {
    disruptions.victims().filter_map(|victim| victim.hold).collect()
}

/// Whether the pod takes part in the node's shortage.
fn is_active(pod: &PodView) -> bool {
    !pod.is_terminal()
}

impl Evictions {
    /// Advances the samples, the choice and the evictions.
    pub(super) fn advance(
        &mut self,
        news: &[News],
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        for news in news {
            if let News::PodGone(uid) = news {
                self.pod_gone(uid);
            }
        }
        if facts.situation.owns_pods {
            self.stood_still = true;
            show_effective_mode(facts, out);
            return;
        }
        if std::mem::take(&mut self.stood_still) {
            self.take_up_victims(disruptions);
        }
        show_effective_mode(facts, out);
        self.show_conditions(facts, out);
        self.advance_sampling(facts, out);
        self.check_limits(facts, out);
        self.advance_choice(facts, out, disruptions);
        self.advance_victims(facts, out, disruptions);
        show_victims(disruptions, out);
    }
}

fn show_victims(disruptions: &Disruptions, out: &mut Out) {
    let shown = |victim: &Victim| VictimStatus {
        uid: victim.termination.pod.uid.clone(),
        namespace: victim.termination.pod.namespace.clone(),
        name: victim.termination.pod.name.clone(),
        signal: victim.signal,
        since: victim.chosen_at,
    };
    out.status.pressure.victims = disruptions.victims().map(shown).collect();
}
