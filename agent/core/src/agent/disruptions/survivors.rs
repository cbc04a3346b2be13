//! Finds pods that live on under a mark of ours. The runtime tells, or a kubelet that has had time
//! enough. ([AP19], [ST7])

use std::collections::BTreeMap;
use std::time::Duration;

use epilogue_common::outcome::Failure;
use jiff::Timestamp;

use super::super::calls::{Part, Verb};
use super::super::facts::Facts;
use super::super::out::Out;
use super::{Disruptions, PastMark, PodDisruption, Why};
use crate::pod::{PodUid, PodView};
use crate::protocol::action::PodRef;
use crate::protocol::event::RuntimeState;
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX, salt};
use crate::termination::patches::stands;

/// A kubelet that has lived for this long has reported what it did not find. ([AP19])
const REPORTED_WITHIN: Duration = Duration::from_mins(1);

/// How long after a stop without an answer the runtime may still carry it out.
const STOP_LATE: Duration = Duration::from_secs(10);

/// A runtime check of a pod that lives on under a mark of ours.
#[derive(Clone, Debug)]
pub(super) struct Inspection {
    attempt: Attempt,
    /// The earliest time of the next check, on CLOCK_MONOTONIC.
    due_at: Duration,
}

/// Whether the runtime shows that a container of the pod may run.
fn may_run(state: &RuntimeState) -> bool {
    state.containers.iter().any(|container| !container.exited)
}

impl Disruptions {
    /// Finds pods that live on under a mark of ours, whatever the clocks say, and removes the mark.
    /// A live kubelet has already reported what does not run, and the runtime shows what does.
    /// ([ST7])
    pub(super) fn find_survivors(&mut self, facts: &Facts, out: &mut Out) {
        let ready = facts.settings.enforce
            && !facts.situation.runs
            && !facts.situation.journaled
            && facts.pods.is_listed();
        let suspects = if ready { self.suspects(facts) } else { BTreeMap::new() };
        for (uid, entry) in &mut self.pods {
            let inspection = &mut entry.history.inspection;
            inspection.take_if(|it| !suspects.contains_key(uid) && !it.attempt.is_in_flight());
        }
        if suspects.is_empty() || !kubelet_has_reported(facts) {
            return;
        }
        for (pod, at) in suspects.into_values() {
            if !facts.settings.runtime {
                self.survives(pod, at, out);
                continue;
            }
            let due_at = facts.clock.monotonic();
            let inspection = &mut self.entry(pod.clone()).history.inspection;
            let inspection =
                inspection.get_or_insert_with(|| Inspection { attempt: Attempt::wanted(), due_at });
            let due =
                inspection.attempt.is_due(&facts.clock) && facts.clock.reached(inspection.due_at);
            if due && out.calls.has_room_to_inspect() {
                inspection.attempt.sent();
                out.calls.ask_runtime(Part::Survivors, Verb::Inspect, pod);
            }
        }
    }

    /// Pods that live under a mark of ours in the API, and that no other part of the agent handles.
    fn suspects(&self, facts: &Facts) -> BTreeMap<PodUid, (PodRef, Timestamp)> {
        let suspect = |pod: &PodView| {
            let at = pod.disruption.as_ref()?.since?;
            let is_handled = |entry: &PodDisruption| {
                let is_found = entry.history.found.contains(&at.as_second());
                is_found || entry.case().is_some() || entry.eviction.is_some()
            };
            let known = self.get(&pod.uid).is_some_and(is_handled);
            let lives = stands(pod, at) && pod.running_since.is_some();
            (lives && !known).then(|| (pod.uid.clone(), (PodRef::of(pod), at)))
        };
        facts.pods.iter().filter_map(suspect).collect()
    }

    /// Takes the answer to a stop that was under way at a cancel. The mark was kept for it. If the
    /// stop fails, the runtime is asked what became of the pod: no kubelet is awaited, because
    /// nothing terminates the pod any more.
    pub(in super::super) fn was_stopped_late(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
        facts: &Facts,
    ) {
        let stopped = result.as_ref().is_ok_and(|state| !may_run(state));
        if stopped || facts.situation.runs {
            return;
        }
        let Some(entry) = self.get_mut(uid) else { return };
        let PastMark::Kept(mark) = entry.past_mark else { return };
        let wait = if result.is_ok() { Duration::ZERO } else { STOP_LATE };
        let from = facts.clock.monotonic() + wait;
        entry.question(mark, Why::Undecided(from), None);
    }

    /// Takes the runtime's response about a pod under a mark.
    pub(in super::super) fn survivor_inspected(
        &mut self,
        uid: &PodUid,
        state: &Result<RuntimeState, Failure>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let now = facts.clock.monotonic();
        let entry = self.get_mut(uid);
        let Some(inspection) = entry.and_then(|entry| entry.history.inspection.as_mut()) else {
            return;
        };
        let state = match state {
            Ok(state) => state,
            Err(failure) => {
                let pace = Pace { wait_max: WAIT_MAX, latest: None, salt: salt(&uid.0) };
                return inspection.attempt.failed(now, pace, Some(failure));
            }
        };
        // The kubelet has to report what does not run; it may be late.
        *inspection = Inspection { attempt: Attempt::wanted(), due_at: now + REPORTED_WITHIN };
        if may_run(state)
            && let Some((pod, at)) = self.suspects(facts).remove(uid)
        {
            self.survives(pod, at, out);
        }
    }

    fn survives(&mut self, pod: PodRef, at: Timestamp, out: &mut Out) {
        let text = "it runs under a condition of ours, which is taken back";
        out.calls.log(true, Some(&pod), text);
        let history = &mut self.entry(pod.clone()).history;
        history.inspection = None;
        history.note_found(at);
        self.remove(pod, at);
    }
}

fn kubelet_has_reported(facts: &Facts) -> bool {
    facts.kubelet.lives_since.is_some_and(|at| facts.clock.reached(at + REPORTED_WITHIN))
}
