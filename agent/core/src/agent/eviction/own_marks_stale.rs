//! Removes stale conditions of pressure from live pods. An earlier agent was killed between the
//! mark and the end. No kubelet shows such a condition before the pod's end. ([ST7])

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::super::Agent;
use crate::pod::{PodUid, PodView, TERMINATION_BY_KUBELET};
use crate::protocol::action::PodRef;
use crate::termination::patches;

/// A younger condition may be that of a pod whose end is not reported yet.
const AGE_MIN: Duration = Duration::from_mins(1);

/// Conditions and victims that were already handled.
#[derive(Debug, Default)]
pub(super) struct StaleMarks {
    /// Conditions already handled: the agent removes each condition once.
    sought: BTreeSet<(PodUid, i64)>,
    /// Victims that have ended: a kubelet may revert the phase for a moment. ([API16])
    ended: BTreeMap<PodUid, Duration>,
}

impl StaleMarks {
    pub(super) fn pod_gone(&mut self, uid: &PodUid) {
        self.sought.retain(|(other, _)| other != uid);
        self.ended.remove(uid);
    }

    /// Records that the condition of that time is being removed.
    pub(super) fn is_seen_to(&mut self, uid: PodUid, at: Timestamp) -> bool {
        self.sought.insert((uid, at.as_second()))
    }

    pub(super) fn victim_ended(&mut self, uid: PodUid, now: Duration) {
        self.ended.insert(uid, now);
    }
}

impl Agent {
    pub(super) fn revoke_stale_marks(&mut self) {
        // Under a dead kubelet a stopped pod appears to be alive.
        let ready = self.settings.enforce
            && self.kubelet.facts.is_some()
            && self.kubelet.lives()
            && self.pods.is_listed();
        if !ready {
            return;
        }
        let stale: Vec<(PodRef, Timestamp)> = self
            .pods
            .iter()
            .filter_map(|pod| self.stale_mark(pod).map(|at| (PodRef::of(pod), at)))
            .collect();
        for (pod, at) in stale {
            if self.evictions.stale_marks.is_seen_to(pod.uid.clone(), at) {
                let text = "a condition of an eviction that was not carried out is taken back";
                self.calls.log(true, Some(&pod), text);
                self.revoked_marks.add(pod, at);
            }
        }
    }

    /// The time of a stale condition of pressure.
    fn stale_mark(&self, pod: &PodView) -> Option<Timestamp> {
        let ours = pod.disruption.as_ref().filter(|disruption| {
            disruption.stands
                && disruption.reason == TERMINATION_BY_KUBELET
                && patches::is_of_pressure(disruption)
        })?;
        let since = ours.since?;
        let evictions = &self.evictions;
        // A pod that ran before this boot has ended with the machine, and its condition states why.
        let boot = self.surely_before_boot();
        let cut = pod.running_since.zip(boot).is_some_and(|(since, boot)| since < boot);
        if cut && pod.cannot_run_again() {
            return None;
        }
        let known = evictions.victims.contains_key(&pod.uid)
            || evictions.stale_marks.sought.contains(&(pod.uid.clone(), since.as_second()));
        if known || pod.is_terminal() || pod.is_to_end() {
            return None;
        }
        let now = self.clock.now();
        let age = Duration::try_from(now.wall.duration_since(since)).unwrap_or_default();
        let old = self.clock.reached(now.monotonic + AGE_MIN.saturating_sub(age));
        let ended = evictions.stale_marks.ended.get(&pod.uid);
        let rested = ended.is_none_or(|at| self.clock.reached(*at + AGE_MIN));
        (old && rested).then_some(since)
    }
}
