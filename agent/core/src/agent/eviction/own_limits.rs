//! Evicts pods that exceed their own limits of local storage, where the kubelet does not enforce
//! them. ([EV26])

use std::time::Duration;

use super::super::disruptions::Disruptions;
use super::super::facts::Facts;
use super::super::out::Out;
use super::Evictions;
use super::choice::Levers;
use super::effective_mode::{EffectiveMode, effective_mode};
use super::is_active;
use super::victim::Reason;
use crate::pod::{PodUid, PodView};
use crate::pressure::message::Description;
use crate::pressure::storage_limits::exceeded;
use crate::pressure::usage::{DiskLayout, PodUsage, is_critical};
use crate::protocol::pressure::{Figures, Resource};

/// The interval between two measurements for the limits: they read whole directories.
const EVERY: Duration = Duration::from_secs(10);
/// How long the node's own shortage waits for pods that exceed their limits.
const WAITED_FOR: Duration = Duration::from_secs(10);

/// When limits were last checked.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnLimits {
    asked_at: Option<Duration>,
}

fn has_limits(pod: &PodView) -> bool {
    let limited = pod.asks.containers.iter().any(|container| container.storage_limit.is_some());
    limited || !pod.asks.empty_dirs.is_empty()
}

/// Whether only the agent enforces the limits.
fn are_limits_ours(facts: &Facts) -> bool {
    let description = facts.kubelet.facts.as_ref().and_then(|facts| facts.eviction.as_ref());
    !facts.kubelet.lives() || description.is_some_and(|kubelet| !kubelet.local_storage_limits)
}

impl Evictions {
    /// Measures the pods with limits, at intervals.
    pub(super) fn check_limits(&mut self, facts: &Facts, out: &mut Out) {
        let still = matches!(effective_mode(facts), EffectiveMode::Still(_));
        if still || !are_limits_ours(facts) || facts.stop_at.is_some() {
            return;
        }
        let limited = |pod: &&PodView| is_active(pod) && !is_critical(pod) && has_limits(pod);
        let pods: Vec<PodUid> =
            facts.pods.iter().filter(limited).map(|pod| pod.uid.clone()).collect();
        let asked_at = self.own_limits.asked_at;
        if pods.is_empty() || asked_at.is_some_and(|at| !facts.clock.reached(at + EVERY)) {
            return;
        }
        self.own_limits.asked_at = Some(facts.clock.monotonic());
        self.ask(Resource::Disk, pods, false, facts, out);
    }

    /// Evicts every pod that exceeds a limit of its own, without `DisruptionTarget`: a limit that
    /// the user has set is no disruption.
    pub(super) fn end_for_own_limits(
        &mut self,
        figures: &Figures,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        if !are_limits_ours(facts) || facts.stop_at.is_some() {
            return;
        }
        let layout = self.layout.unwrap_or(DiskLayout::Single);
        let active =
            facts.pods.iter().filter(|pod| is_active(pod) && figures.contains_key(&pod.uid));
        let exceeded: Vec<_> = active
            .filter_map(|pod| {
                let usage = PodUsage::of(pod, figures.get(&pod.uid));
                Some((pod.clone(), exceeded(&usage, layout)?))
            })
            .collect();
        for (pod, exceeded) in exceeded {
            let levers = Levers { facts, refusals: &out.refusals, disruptions };
            let Some(terminator) = self.terminator_of(&pod, true, levers) else { continue };
            let description = Description { message: exceeded.message, annotations: Vec::new() };
            match effective_mode(facts) {
                EffectiveMode::Still(_) => {}
                EffectiveMode::Observe(_) => {
                    let signal = exceeded.signal;
                    self.would_end(&pod, signal, signal, &description.message, facts, out);
                }
                EffectiveMode::Enforce => {
                    let why = Reason { signal: exceeded.signal, cause: None, description };
                    self.begin_eviction(&pod, terminator, why, facts, out, disruptions);
                }
            }
        }
    }
}

/// Whether the eviction of a pod for its own limit has just begun.
pub(super) fn ends_for_own_limits(facts: &Facts, disruptions: &Disruptions) -> bool {
    let mut own = disruptions.victims().filter(|victim| victim.cause.is_none());
    own.any(|victim| !facts.clock.reached(victim.chosen_at + WAITED_FOR))
}
