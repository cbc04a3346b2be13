//! Finds marks in question: pods that ran before this boot, marks of a shutdown whose journal is
//! lost, and marks of evictions that an earlier agent did not carry out.
//!
//! For pods in the journal, the boot id decides which boot their containers belong to. For all
//! others the clock is only a hint: it is set and it jumps. A container's start also has the node's
//! clock, but the agent's time has the API's clock. So the clock alone never makes a pod lost.
//! ([AP19], [W5])

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::super::facts::Facts;
use super::super::out::Out;
use super::cases::{Why, remedy};
use super::{Disruptions, PodDisruption};
use crate::pod::{Disruption, PodRef, PodView, TERMINATION_BY_KUBELET};
use crate::termination::patches::{self, stands};

/// Container runtimes stamp by the node's clock, which may differ from the API's.
pub(in super::super) const CLOCKS_DIFFER: Duration = Duration::from_secs(10);
/// A younger mark of an eviction may be that of a pod whose end is not reported yet.
const AGE_MIN: Duration = Duration::from_mins(1);

impl Facts {
    /// The start of this boot by two clocks: the API's clock now and the node's clock at the boot.
    /// Returns the earliest and the latest. If they differ, a clock was set.
    fn boot_began(&self) -> Option<(Timestamp, Timestamp)> {
        let now = self.clock.now();
        let since = SignedDuration::try_from(now.boot).ok()?;
        let by_now = now.wall.checked_sub(since).ok()?;
        let by_then = self.settings.booted_at.unwrap_or(by_now);
        Some((by_now.min(by_then), by_now.max(by_then)))
    }

    /// Times before this are before the boot, by all known clocks.
    pub(super) fn surely_before_boot(&self) -> Option<Timestamp> {
        let (earliest, _) = self.boot_began()?;
        earliest.checked_sub(SignedDuration::try_from(CLOCKS_DIFFER).ok()?).ok()
    }

    /// Times before this are before the boot, by one clock at least.
    fn perhaps_before_boot(&self) -> Option<Timestamp> {
        let (_, latest) = self.boot_began()?;
        latest.checked_sub(SignedDuration::try_from(CLOCKS_DIFFER).ok()?).ok()
    }

    /// Times after this are in this boot, by all known clocks.
    fn surely_after_boot(&self) -> Option<Timestamp> {
        let (_, latest) = self.boot_began()?;
        latest.checked_add(SignedDuration::try_from(CLOCKS_DIFFER).ok()?).ok()
    }
}

impl Disruptions {
    /// Finds pods of the first list that show containers running since before this boot. They
    /// cannot run any more. The agent marks them before the kubelet notices and reports them as
    /// failures of their own. ([W5])
    ///
    /// On a machine without a clock that lasts, the clocks disagree about the boot. What ran before
    /// it by one of them may have been lost; only a runtime that saw no end of it shows that.
    ///
    /// DIVERGES(upstream): upstream does not distinguish them from containers that failed.
    pub(super) fn find_lost(&mut self, facts: &Facts, out: &mut Out) {
        if !facts.pods.is_listed() || std::mem::replace(&mut self.sought_lost, true) {
            return;
        }
        // The agent asks the runtime before the mark. Without a runtime it needs a clock that was
        // recorded at the boot. By today's clock alone, each jump would make living pods lost.
        let witness = facts.settings.runtime || facts.settings.booted_at.is_some();
        let Some(boot) = facts.surely_before_boot().filter(|_| witness && facts.settings.enforce)
        else {
            return;
        };
        let perhaps = facts.perhaps_before_boot().filter(|_| facts.settings.runtime);
        let now = facts.clock.now();
        for pod in facts.pods.iter() {
            let ran_before = |boot| pod.running_since.is_some_and(|since| since < boot);
            let (why, text) = if ran_before(boot) {
                (Why::Lost, "by the clock it ran before this boot: its node was lost")
            } else if perhaps.is_some_and(ran_before) {
                (Why::MaybeLost, "by one of two clocks it ran before this boot: it may be lost")
            } else {
                continue;
            };
            let is_open = || remedy(pod, why, (now.wall, true), None, now.wall).is_some();
            let is_explained = self.get(&pod.uid).is_some_and(|entry| entry.history.is_explained);
            if !is_explained && is_open() {
                out.calls.log(true, Some(&PodRef::of(pod)), text);
                self.add_lost(PodRef::of(pod), why, now, facts.settings.runtime);
            }
        }
    }

    /// Finds marks of a shutdown whose journal is lost. A condition like ours on a pod that has run
    /// since this boot, while logind is calm, has no other source. No kubelet shows it before the
    /// end. ([ST7]) After a boot the pod may run again long after the first list.
    pub(super) fn find_forgotten(&mut self, facts: &Facts, out: &mut Out) {
        let idle = !facts.situation.runs && !facts.situation.journaled;
        let ready = facts.settings.enforce && idle && facts.pods.is_listed();
        if !ready || !facts.is_calm() {
            return;
        }
        let Some(boot) = facts.surely_after_boot() else { return };
        // A start in the future proves only that the clock was set since.
        let now = facts.clock.now().wall;
        for pod in facts.pods.iter() {
            // Other messages do not belong to a shutdown.
            let ours = |disruption: &&Disruption| disruption.message == patches::SHUTDOWN_MESSAGE;
            let Some(at) = pod.disruption.as_ref().filter(ours).and_then(|ours| ours.since) else {
                continue;
            };
            let since = pod.running_since.filter(|since| *since <= now && *since > boot);
            // If the runtime can tell whether such a pod was stopped, the agent asks it.
            // (`survivors.rs`)
            let asks = facts.settings.runtime && pod.ends_with_its_sandbox();
            let is_explained = self.get(&pod.uid).is_some_and(PodDisruption::explains_mark);
            if since.is_some() && !asks && stands(pod, at) && !is_explained {
                let pod = PodRef::of(pod);
                out.calls.log(
                    true,
                    Some(&pod),
                    "a condition of a forgotten shutdown is taken back",
                );
                self.remove(pod, at);
            }
        }
    }

    /// Finds conditions of pressure on live pods. An earlier agent was killed between the mark and
    /// the end. No kubelet shows such a condition before the pod's end. ([ST7])
    pub(super) fn find_of_evictions(&mut self, facts: &Facts, out: &mut Out) {
        // Under a dead kubelet a stopped pod appears to be alive.
        let ready = facts.settings.enforce
            && !facts.situation.owns_pods
            && facts.kubelet.facts.is_some()
            && facts.kubelet.lives()
            && facts.pods.is_listed();
        if !ready {
            return;
        }
        let boot = facts.surely_before_boot();
        for pod in facts.pods.iter() {
            if self.evicts(&pod.uid) {
                continue;
            }
            let Some(at) = self.stale_since(pod, boot, facts) else { continue };
            if self.entry(PodRef::of(pod)).history.note_found(at) {
                let text = "a condition of an eviction that was not carried out is taken back";
                out.calls.log(true, Some(&PodRef::of(pod)), text);
                self.remove(PodRef::of(pod), at);
            }
        }
    }

    /// The time of a condition of pressure whose eviction is not in progress.
    fn stale_since(
        &self,
        pod: &PodView,
        boot: Option<Timestamp>,
        facts: &Facts,
    ) -> Option<Timestamp> {
        let ours = pod.disruption.as_ref().filter(|disruption| {
            disruption.stands
                && disruption.reason == TERMINATION_BY_KUBELET
                && patches::is_of_pressure(disruption)
        })?;
        let since = ours.since?;
        // A pod that ran before this boot has ended with the machine, and its condition states why.
        let cut = pod.running_since.zip(boot).is_some_and(|(since, boot)| since < boot);
        let history = self.get(&pod.uid).map(|entry| &entry.history);
        let known = history.is_some_and(|it| it.found.contains(&since.as_second()));
        if cut && pod.ends_with_its_sandbox() || known || pod.is_terminal() || pod.is_to_end() {
            return None;
        }
        let now = facts.clock.now();
        let age = Duration::try_from(now.wall.duration_since(since)).unwrap_or_default();
        let old = facts.clock.reached(now.monotonic + AGE_MIN.saturating_sub(age));
        let ended = history.and_then(|it| it.eviction_ended_at);
        let rested = ended.is_none_or(|at| facts.clock.reached(at + AGE_MIN));
        (old && rested).then_some(since)
    }
}
