//! Decides what the agent may do about pressure now. It depends on the configuration, on a
//! shutdown, and on the kubelet, which also evicts. ([EV29])

use std::collections::BTreeSet;

use super::super::facts::Facts;
use super::super::mode::Kubelet;
use super::super::notices::PRESSURE_OVERLAP;
use super::super::out::Out;
use super::super::settings::Enforcement;
use super::Evictions;
use crate::finding::Finding;
use crate::pressure::overlap::overlaps;
use crate::pressure::signal::Signal;

/// What the agent may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EffectiveMode {
    /// The agent neither evicts nor reports.
    Still(&'static str),
    /// The agent only reports; with the reason, if it is not the configuration.
    Observe(Option<&'static str>),
    /// The agent evicts.
    Enforce,
}

/// The signals for which the kubelet acts before the agent.
#[derive(Clone, Debug, Default)]
pub(super) struct Overlaps {
    now: BTreeSet<Signal>,
    reported: BTreeSet<Signal>,
}

impl Overlaps {
    pub(super) fn has(&self, signal: Signal) -> bool {
        self.now.contains(&signal)
    }
}

/// The mode on this node.
pub(super) fn effective_mode(facts: &Facts) -> EffectiveMode {
    let wanted = facts.settings.features.pressure;
    if wanted == Enforcement::Off {
        return EffectiveMode::Still("pressure is turned off");
    }
    if facts.situation.owns_pods {
        return EffectiveMode::Still("a shutdown goes on");
    }
    // Two evictors for the same shortage evict too many pods; the kubelet waits for the end of
    // each.
    let acts = facts.node.as_ref().map(|view| !view.kubelet_pressure.is_empty());
    if acts == Some(true) {
        return EffectiveMode::Still("the kubelet reports pressure on the node, and acts");
    }
    if wanted == Enforcement::Observe {
        return EffectiveMode::Observe(None);
    }
    if !facts.settings.enforce {
        return EffectiveMode::Observe(Some("the agent is set to observe"));
    }
    let Some((_, kubelet)) = facts.kubelet.judged().filter(|_| acts.is_some()) else {
        return EffectiveMode::Observe(Some("the kubelet's state is not known yet"));
    };
    // Unverified kills are worse than the kernel's own.
    match kubelet {
        Kubelet::Dead => EffectiveMode::Observe(Some("the kubelet is dead")),
        Kubelet::Hangs => EffectiveMode::Observe(Some("the kubelet hangs")),
        Kubelet::Lives | Kubelet::Unknown => EffectiveMode::Enforce,
    }
}

/// Shows the mode, and logs why it is weaker than configured.
pub(super) fn show_effective_mode(facts: &Facts, out: &mut Out) {
    let (effective_mode, why) = match effective_mode(facts) {
        EffectiveMode::Still(_) if facts.settings.features.pressure == Enforcement::Off => {
            (Enforcement::Off, None)
        }
        EffectiveMode::Still(why) => (Enforcement::Off, Some(why)),
        EffectiveMode::Observe(why) => (Enforcement::Observe, why),
        EffectiveMode::Enforce => (Enforcement::Enforce, None),
    };
    let shown = &mut out.status.pressure;
    if shown.held_by != why
        && let Some(why) = why
    {
        let text = match effective_mode {
            Enforcement::Observe => format!("pressure is only observed: {why}"),
            _ => format!("pressure is left alone: {why}"),
        };
        out.calls.log(false, None, text);
    }
    shown.mode = effective_mode;
    shown.held_by = why;
}

impl Evictions {
    /// The mode for a signal.
    pub(super) fn effective_mode_for(&self, signal: Signal, facts: &Facts) -> EffectiveMode {
        match effective_mode(facts) {
            EffectiveMode::Enforce if self.overlaps.has(signal) => {
                EffectiveMode::Observe(Some("the kubelet's own threshold is not below"))
            }
            effective_mode => effective_mode,
        }
    }

    /// Compares our thresholds with the kubelet's own.
    pub(super) fn check_overlaps(&mut self, facts: &Facts, out: &mut Out) {
        let Some(kubelet) = &facts.kubelet.facts else { return };
        let thresholds = &self.watch.config().thresholds;
        let theirs = kubelet.eviction.as_ref();
        let found = |signal: &Signal| {
            let capacity = self.capacity(*signal);
            capacity.is_some_and(|capacity| overlaps(*signal, thresholds, theirs, capacity))
        };
        let now: BTreeSet<Signal> = Signal::ALL.into_iter().filter(found).collect();
        let said = theirs.is_some();
        let reported = &mut self.overlaps.reported;
        let new: Vec<Signal> =
            now.iter().copied().filter(|signal| reported.insert(*signal)).collect();
        self.overlaps.now = now;
        for signal in new {
            let assumed = if said { "" } else { " (it does not say; its defaults are assumed)" };
            let finding = Finding::ThresholdsOverlap(signal.name());
            let text = format!("{finding}{assumed}: {}", finding.remedy());
            out.announce(true, PRESSURE_OVERLAP, text);
        }
    }
}
