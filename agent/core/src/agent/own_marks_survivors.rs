//! Decides which boot a pod's containers belong to. For pods in the journal, the boot id decides
//! it. For all others the clock is only a hint: it is set and it jumps. A container's start also
//! has the node's clock, but the agent's time has the API's clock. So the clock alone never makes a
//! pod lost. A survivor is found by the runtime, or by a kubelet that has had enough time. ([AP19],
//! [W5])

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use epilogue_common::outcome::Failure;
use jiff::{SignedDuration, Timestamp};

use super::Agent;
use super::calls::{Part, Verb};
use crate::pod::{PodUid, PodView};
use crate::protocol::action::PodRef;
use crate::protocol::event::RuntimeState;
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX, salt};
use crate::termination::patches::stands;

/// Container runtimes stamp by the node's clock, which may differ from the API's.
pub(super) const CLOCKS_DIFFER: Duration = Duration::from_secs(10);
/// A kubelet that has lived for this long has reported what it did not find. ([AP19])
const VOUCHES: Duration = Duration::from_mins(1);

/// How long after a stop without an answer the runtime may still carry it out.
const STOP_LATE: Duration = Duration::from_secs(10);

/// Runtime checks of pods that live on under a mark of ours.
#[derive(Debug, Default)]
pub(super) struct Survivors {
    inspections: BTreeMap<PodUid, Inspection>,
    /// Pods whose stop was under way at a cancel, and then did not stop them.
    doubted: BTreeSet<PodUid>,
    /// Conditions already handled: the agent removes each condition once.
    sought: BTreeSet<(PodUid, i64)>,
}

#[derive(Debug)]
struct Inspection {
    attempt: Attempt,
    /// The earliest time of the next check, on CLOCK_MONOTONIC.
    due_at: Duration,
}

impl Survivors {
    pub(super) fn pod_gone(&mut self, uid: &PodUid) {
        self.inspections.remove(uid);
        self.doubted.remove(uid);
        self.sought.retain(|(other, _)| other != uid);
    }
}

/// Whether the runtime shows that a container of the pod may run.
fn may_run(state: &RuntimeState) -> bool {
    state.containers.iter().any(|container| !container.exited)
}

impl Agent {
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

    /// Times after this are in this boot, by all known clocks.
    pub(super) fn surely_after_boot(&self) -> Option<Timestamp> {
        let (_, latest) = self.boot_began()?;
        latest.checked_add(SignedDuration::try_from(CLOCKS_DIFFER).ok()?).ok()
    }

    /// Finds pods that show containers running since before this boot. They cannot run any more.
    /// The agent marks them before the kubelet notices and reports them as failures of their own.
    /// ([W5])
    ///
    /// DIVERGES(upstream): upstream does not distinguish them from containers that failed.
    pub(super) fn find_lost(&mut self) {
        // The agent asks the runtime before the mark. Without a runtime it needs a clock that was
        // recorded at the boot. By today's clock alone, each jump would make living pods lost.
        let witness = self.settings.runtime || self.settings.booted_at.is_some();
        if !self.settings.enforce || !witness {
            return;
        }
        let now = self.clock.now();
        let Some(boot) = self.surely_before_boot() else { return };
        let before = |pod: &&PodView| pod.running_since.is_some_and(|since| since < boot);
        let lost: Vec<PodView> = self.pods.iter().filter(before).cloned().collect();
        for pod in lost {
            if self.boot_recovery.add_lost(&pod, now, self.settings.runtime) {
                let text = "by the clock it ran before this boot: its node was lost";
                self.calls.log(true, Some(&PodRef::of(&pod)), text);
            }
        }
    }

    /// Finds pods that live on under a mark of ours, whatever the clocks say, and removes the mark.
    /// A live kubelet has already reported what does not run, and the runtime shows what does. A
    /// pod whose stop failed waits for no kubelet: nothing terminates it any more. ([ST7])
    pub(super) fn find_survivors(&mut self) {
        let ready = self.settings.enforce
            && self.shutdown.is_none()
            && self.journaled.is_none()
            && self.pods.is_listed();
        let suspects = if ready { self.suspects() } else { BTreeMap::new() };
        self.survivors.inspections.retain(|uid, inspection| {
            suspects.contains_key(uid) || inspection.attempt.is_in_flight()
        });
        let vouches = !suspects.is_empty() && self.kubelet_vouches();
        for (uid, (pod, at)) in suspects {
            if !vouches && !self.survivors.doubted.contains(&uid) {
                continue;
            }
            if !self.settings.runtime {
                self.survives(pod, at);
                continue;
            }
            let due_at = self.clock.monotonic();
            let inspection = self.survivors.inspections.entry(uid.clone());
            let inspection =
                inspection.or_insert_with(|| Inspection { attempt: Attempt::wanted(), due_at });
            let due =
                inspection.attempt.is_due(&self.clock) && self.clock.reached(inspection.due_at);
            if due && self.calls.has_room_to_inspect() {
                inspection.attempt.sent();
                self.calls.ask_runtime(Part::Survivors, Verb::Inspect, pod);
            }
        }
    }

    /// Pods that live under a mark of ours in the API, and that no other part of the agent handles.
    fn suspects(&self) -> BTreeMap<PodUid, (PodRef, Timestamp)> {
        let suspect = |pod: &PodView| {
            let at = pod.disruption.as_ref()?.since?;
            let known = self.survivors.sought.contains(&(pod.uid.clone(), at.as_second()))
                || self.revoked_marks.has(&pod.uid)
                || self.boot_recovery.has(&pod.uid)
                || self.evictions.has(&pod.uid);
            let lives = stands(pod, at) && pod.running_since.is_some();
            (lives && !known).then(|| (pod.uid.clone(), (PodRef::of(pod), at)))
        };
        self.pods.iter().filter_map(suspect).collect()
    }

    /// Takes the answer to a stop that was under way at a cancel. The mark was kept for it.
    pub(super) fn kept_stop_finished(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
    ) {
        let stopped = result.as_ref().is_ok_and(|state| !may_run(state));
        if stopped || self.shutdown.is_some() || !self.revoked_marks.keeps(uid) {
            return;
        }
        let wait = if result.is_ok() { Duration::ZERO } else { STOP_LATE };
        let due_at = self.clock.monotonic() + wait;
        self.survivors.doubted.insert(uid.clone());
        let inspection = Inspection { attempt: Attempt::wanted(), due_at };
        self.survivors.inspections.insert(uid.clone(), inspection);
    }

    fn kubelet_vouches(&self) -> bool {
        self.kubelet.lives_since.is_some_and(|at| self.clock.reached(at + VOUCHES))
    }

    /// Takes the runtime's response about a pod under a mark.
    pub(super) fn survivor_inspected(
        &mut self,
        uid: &PodUid,
        state: &Result<RuntimeState, Failure>,
    ) {
        let now = self.clock.monotonic();
        let Some(inspection) = self.survivors.inspections.get_mut(uid) else { return };
        let state = match state {
            Ok(state) => state,
            Err(failure) => {
                let pace = Pace { wait_max: WAIT_MAX, latest: None, salt: salt(&uid.0) };
                return inspection.attempt.failed(now, pace, Some(failure));
            }
        };
        self.survivors.doubted.remove(uid);
        // The kubelet has to report what does not run; it may be late.
        *inspection = Inspection { attempt: Attempt::wanted(), due_at: now + VOUCHES };
        if may_run(state)
            && let Some((pod, at)) = self.suspects().remove(uid)
        {
            self.survives(pod, at);
        }
    }

    fn survives(&mut self, pod: PodRef, at: Timestamp) {
        let text = "it runs under a condition of ours, which is taken back";
        self.calls.log(true, Some(&pod), text);
        self.survivors.inspections.remove(&pod.uid);
        self.survivors.sought.insert((pod.uid.clone(), at.as_second()));
        self.revoked_marks.add(pod, at);
    }
}
