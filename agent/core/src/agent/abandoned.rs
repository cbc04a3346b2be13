//! Ends pods that have lost their sandbox and that a live kubelet neither starts again nor reports.
//! ([W21])
//!
//! A kubelet makes no new sandbox for restartPolicy Never, and leaves such a pod `Running` or
//! `Pending` for ever where one of its containers has not ended for good: it has a restart policy
//! of its own, or it was only created when the machine went down, or it never came to be. Nothing
//! of the pod runs, and its Job waits.
//!
//! - It never acts in a shutdown, nor on a pod that is deleted: `stuck.rs` does.
//! - It waits until the kubelet has had time to report, or to make a sandbox, and asks the runtime
//!   twice. A kubelet that does start such pods again is not forestalled.
//! - Nothing here survives a crash, and nothing has to: all evidence is collected anew.
//!
//! DIVERGES(upstream): upstream leaves such a pod as it is, for ever. ([W21])

use std::time::Duration;

use super::calls::{Answer, Part, Verb};
use super::disruptions::Disruptions;
use super::facts::{Facts, Situation};
use super::notices::{POD_FAILED, WOULD_FAIL};
use super::out::Out;
use super::pod_steps::{Goal, Meaning, PROOF_LASTS, Why};
use super::refusals::FORBIDDEN_FOR;
use super::settings::Enforcement;
use super::status::WouldHave;
use crate::pod::{Phase, PodSource, PodUid, PodView, RestartPolicy};
use crate::protocol::action::PodRef;
use crate::protocol::event::{RuntimeContainer, RuntimeState};
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX};
use crate::termination::hanging::KubeletLiveness;
use crate::termination::progress::{PATCH_STATUS, PodTermination, Terminator, would_succeed};

/// How long a kubelet may take to report a pod, or to make it a sandbox; and how long it must then
/// have left the pod as it was.
const WAIT: Duration = Duration::from_secs(30);
/// The longest wait between two checks of a pod that starts slowly.
const PENDING_MAX: Duration = Duration::from_mins(4);

/// Words of the events.
const CAUSE: &str = "it has lost its sandbox, and its kubelet makes no other for restartPolicy \
                     Never; nothing of it runs";

/// A pod that may be abandoned.
#[derive(Clone, Debug)]
pub(super) struct AbandonedPod {
    calls: PodTermination,
    /// When the runtime is asked next, on CLOCK_MONOTONIC.
    due_at: Duration,
    /// The wait after an answer that shows no loss.
    wait: Duration,
    /// What the last answer showed.
    lost: Option<Lost>,
    /// Whether an agent that only observes has reported it.
    reported: bool,
}

/// A pod without a sandbox.
#[derive(Clone, Copy, Debug)]
struct Lost {
    /// Whether its kubelet stopped the sandbox for the pod's own fault.
    own_fault: bool,
}

impl AbandonedPod {
    fn new(pod: &PodView, facts: &Facts) -> Self {
        let now = facts.clock.now();
        let calls = PodTermination::new(PodRef::of(pod), Terminator::None, now.wall);
        Self { calls, due_at: now.monotonic + WAIT, wait: WAIT, lost: None, reported: false }
    }
}

/// Whether the API shows a pod as its kubelet leaves an abandoned one.
fn may_be_abandoned(pod: &PodView, facts: &Facts) -> bool {
    pod.restart_policy == RestartPolicy::Never
        && pod.source == PodSource::Api
        && matches!(pod.phase, Phase::Running | Phase::Pending)
        && pod.running_since.is_none()
        && !pod.is_to_end()
        && !facts.is_own(&pod.uid)
}

/// Whether the runtime shows that the pod has lost its sandbox, and that no kubelet reports an end
/// of it. A kubelet that finds no container makes a sandbox. One that finds that each regular
/// container has ended for good reports that.
fn is_abandoned(pod: &PodView, state: &RuntimeState) -> bool {
    let exited = |name: &String| {
        let mut of_name = state.containers.iter().filter(|each| each.name == *name);
        of_name.any(|each| each.exit_code.is_some())
    };
    let never = pod.restarts_in_place == RestartPolicy::Never;
    let reported = never && pod.containers.iter().all(exited) || would_succeed(pod, state);
    state.sandbox_known && state.nothing_runs() && state.containers_ended() && !reported
}

/// Whether an init container was killed for lack of memory: then its kubelet has stopped the
/// sandbox, whatever the exit code. ([API19])
fn init_was_killed(pod: &PodView, state: &RuntimeState) -> bool {
    let began = state.containers.iter().any(|each| pod.containers.contains(&each.name));
    let killed =
        |each: &RuntimeContainer| each.reason == "OOMKilled" && !pod.sidecars.contains(&each.name);
    !began && state.containers.iter().any(killed)
}

fn enforces(facts: &Facts) -> bool {
    facts.settings.enforce && facts.settings.features.stuck_pods == Enforcement::Enforce
}

/// Advances the checks and the writes.
pub(super) fn advance(facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
    let Situation { runs, journaled, .. } = facts.situation;
    let features = &facts.settings.features;
    let liveness = facts.kubelet.liveness(facts.clock.monotonic(), &features.stuck_times);
    let acts = features.stuck_pods != Enforcement::Off
        && facts.settings.runtime
        && facts.pods.is_listed()
        && liveness == Some(KubeletLiveness::Lives)
        && !(runs || journaled || facts.stop_at.is_some());
    let suspect = |pod: &&PodView| may_be_abandoned(pod, facts);
    for entry in disruptions.iter_mut() {
        let pod = entry.abandoned.as_ref().and_then(|it| facts.pods.get(&it.calls.pod.uid));
        if !acts || !pod.as_ref().is_some_and(suspect) {
            entry.abandoned = None;
        }
    }
    if !acts {
        return;
    }
    for pod in facts.pods.iter().filter(suspect) {
        let new = || Box::new(AbandonedPod::new(pod, facts));
        let entry = disruptions.entry(PodRef::of(pod));
        entry.abandoned.get_or_insert_with(new).advance(pod, facts, out);
    }
}

/// Takes an answer about a pod.
pub(super) fn answered(
    verb: Verb,
    uid: &PodUid,
    answer: Answer<'_>,
    facts: &Facts,
    out: &mut Out,
    disruptions: &mut Disruptions,
) {
    let entry = disruptions.get_mut(uid);
    let Some(case) = entry.and_then(|entry| entry.abandoned.as_mut()) else { return };
    match answer {
        Answer::Runtime(result) if case.calls.report.inspect.is_in_flight() => {
            case.calls.report.inspect.done();
            case.was_inspected(result.as_ref().ok(), facts, out);
        }
        Answer::Written(..) if case.calls.report.write.is_in_flight() => {
            case.was_written(verb, answer, facts, out);
        }
        _ => {}
    }
}

impl AbandonedPod {
    fn advance(&mut self, pod: &PodView, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        let calls = &mut self.calls;
        let under_way = calls.report.inspect.is_in_flight() || calls.report.write.is_in_flight();
        if under_way || out.calls.is_busy_with(&pod.uid) {
            return;
        }
        if let Some((at, lost)) = calls.report.proven_at.zip(self.lost) {
            if out.refusals.forbids_for(PATCH_STATUS, &pod.uid) {
                calls.report.proven_at = None;
                self.due_at = now + FORBIDDEN_FOR;
            } else if facts.clock.reached(at + PROOF_LASTS) {
                calls.report.proven_at = None;
            } else if out.calls.has_room() && out.refusals.may_ask(PATCH_STATUS, &facts.clock) {
                calls.report.proven_at = None;
                let why = Why::Abandoned { disrupted: !lost.own_fault };
                calls.send_fail(pod, why, &facts.clock, out);
                return;
            } else {
                return;
            }
        }
        if facts.clock.reached(self.due_at) && out.calls.has_room_to_inspect() {
            calls.report.inspect.sent();
            out.calls.ask_runtime(Part::Abandoned, Verb::Inspect, calls.pod.clone());
        }
    }

    /// Takes what the runtime shows; `None` without an answer.
    fn was_inspected(&mut self, state: Option<&RuntimeState>, facts: &Facts, out: &mut Out) {
        let now = facts.clock.monotonic();
        self.due_at = now + self.wait;
        let Some(state) = state else { return };
        let Some(pod) = facts.pods.get(&self.calls.pod.uid) else { return };
        if !is_abandoned(pod, state) {
            self.lost = None;
            self.wait = (self.wait * 2).min(PENDING_MAX);
            return;
        }
        self.due_at = now + WAIT;
        let lost = Lost { own_fault: init_was_killed(pod, state) };
        if self.lost.replace(lost).is_none() {
            return;
        }
        if enforces(facts) {
            self.calls.report.proven_at = Some(now);
        } else if !std::mem::replace(&mut self.reported, true) {
            *out.status.would_have.entry(WouldHave::FailStuck).or_default() += 1;
            let text = format!("Would be failed if the agent were set to enforce: {CAUSE}.");
            out.warn_of_pod(self.calls.pod.clone(), WOULD_FAIL, &text);
        }
    }

    /// Takes the API's answer to the phase. What it did not take is written again on new proof.
    fn was_written(&mut self, verb: Verb, answer: Answer<'_>, facts: &Facts, out: &mut Out) {
        let pace = Pace { wait_max: WAIT_MAX, latest: None, salt: 0 };
        let goal = Goal { why: Why::Abandoned { disrupted: true }, pace };
        let meaning = self.calls.answered(verb, answer, &goal, facts, out);
        let wait = match meaning {
            Meaning::Done => {
                let text = format!("Failed by the agent: {CAUSE}.");
                out.warn_of_pod(self.calls.pod.clone(), POD_FAILED, &text);
                WAIT
            }
            Meaning::Refused => FORBIDDEN_FOR,
            _ => WAIT / 4,
        };
        self.due_at = facts.clock.monotonic() + wait;
        (self.calls.report.write, self.calls.report.inspect) =
            (Attempt::default(), Attempt::default());
        self.calls.read = Attempt::default();
    }
}
