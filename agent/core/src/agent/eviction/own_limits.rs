//! Evicts pods that exceed their own limits of local storage, where the kubelet does not enforce
//! them. ([EV26])

use std::time::Duration;

use super::super::Agent;
use super::effective_mode::EffectiveMode;
use super::is_active;
use super::victim::Why;
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
#[derive(Debug, Default)]
pub(super) struct OwnLimits {
    asked_at: Option<Duration>,
}

fn has_limits(pod: &PodView) -> bool {
    let limited = pod.asks.containers.iter().any(|container| container.storage_limit.is_some());
    limited || !pod.asks.empty_dirs.is_empty()
}

impl Agent {
    /// Whether only the agent enforces the limits.
    fn are_limits_ours(&self) -> bool {
        let description = self.kubelet.facts.as_ref().and_then(|facts| facts.eviction.as_ref());
        !self.kubelet.lives() || description.is_some_and(|kubelet| !kubelet.local_storage_limits)
    }

    pub(super) fn limits_on(&mut self) {
        let still = matches!(self.effective_mode(), EffectiveMode::Still(_));
        if still || !self.are_limits_ours() || self.stop_at.is_some() {
            return;
        }
        let limited = |pod: &&PodView| is_active(pod) && !is_critical(pod) && has_limits(pod);
        let pods: Vec<PodUid> =
            self.pods.iter().filter(limited).map(|pod| pod.uid.clone()).collect();
        let asked_at = self.evictions.own_limits.asked_at;
        if pods.is_empty() || asked_at.is_some_and(|at| !self.clock.reached(at + EVERY)) {
            return;
        }
        self.evictions.own_limits.asked_at = Some(self.clock.monotonic());
        self.ask(Resource::Disk, pods, false);
    }

    /// Evicts every pod that exceeds a limit of its own, without `DisruptionTarget`: a limit that
    /// the user has set is no disruption.
    pub(super) fn end_for_own_limits(&mut self, figures: &Figures) {
        if !self.are_limits_ours() || self.stop_at.is_some() {
            return;
        }
        let layout = self.evictions.layout.unwrap_or(DiskLayout::Single);
        let active =
            self.pods.iter().filter(|pod| is_active(pod) && figures.contains_key(&pod.uid));
        let exceeded: Vec<_> = active
            .filter_map(|pod| {
                let usage = PodUsage::of(pod, figures.get(&pod.uid));
                Some((pod.clone(), exceeded(&usage, layout)?))
            })
            .collect();
        for (pod, exceeded) in exceeded {
            let Some(terminator) = self.terminator_of(&pod, true) else { continue };
            let description = Description { message: exceeded.message, annotations: Vec::new() };
            match self.effective_mode() {
                EffectiveMode::Still(_) => {}
                EffectiveMode::Observe(_) => {
                    self.would_end(&pod, exceeded.signal, exceeded.signal, &description.message);
                }
                EffectiveMode::Enforce => {
                    let why = Why { signal: exceeded.signal, cause: None, description };
                    self.begin_eviction(&pod, terminator, why);
                }
            }
        }
    }

    /// Whether the eviction of a pod for its own limit has just begun.
    pub(super) fn ends_for_own_limits(&self) -> bool {
        let victims = self.evictions.victims.values();
        let mut own = victims.filter(|victim| victim.cause.is_none());
        own.any(|victim| !self.clock.reached(victim.chosen_at + WAITED_FOR))
    }
}
