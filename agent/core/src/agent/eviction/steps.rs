//! Takes the next step of an eviction: its mark, its end, its proof, its phase.

use std::time::Duration;

use super::super::calls::Verb;
use super::super::facts::Facts;
use super::super::notices::{EVICTED, EVICTION_SLOW};
use super::super::out::Out;
use super::super::pod_steps::Why;
use super::choice::{LATE_LASTS, REFUSED_LASTS};
use super::effective_mode::{EffectiveMode, effective_mode};
use super::victim::Victim;
use crate::pod::{Disruption, PodView, TERMINATION_BY_KUBELET};
use crate::pressure::message::Description;
use crate::protocol::action::Notice;
use crate::termination::attempt::Attempt;
use crate::termination::progress::{PATCH_STATUS, Terminator};

/// The time beyond its grace to stop or delete a victim. After it, a victim that was not reached
/// lives on and must not bear our mark. A victim that was stopped but still runs is reported.
const END_MARGIN: Duration = Duration::from_secs(30);

/// The outcome of one round for a victim.
pub(super) enum Fate {
    /// The eviction continues.
    GoesOn,
    /// The pod is terminal in the API, or gone.
    Over,
    /// The agent cannot terminate it, and excludes it from the choice for this time.
    GivenUp(String, Duration),
    /// The eviction is not needed any more, and nothing was sent.
    Dropped,
}

impl Victim {
    /// Takes the next step, if one is due.
    pub(super) fn advance(&mut self, pod: &PodView, facts: &Facts, out: &mut Out) -> Fate {
        if out.calls.is_busy_with(&pod.uid) {
            return Fate::GoesOn;
        }
        if let Some(why) = self.refused.take() {
            return Fate::GivenUp(why, REFUSED_LASTS);
        }
        if self.termination.mark.write.is_open() && self.is_shown_as_ours(pod) {
            // The watch is faster than the read.
            self.termination.read.drop_it();
        }
        if self.termination.read.is_open() {
            let why = Why::Eviction(&self.description.message);
            self.termination.ask(Verb::Read, why, &facts.clock, out);
            return Fate::GoesOn;
        }
        if let Some(fate) = self.mark(pod, facts, out) {
            return fate;
        }
        let is_ours = self.termination.end.by != Terminator::Stop
            || self.termination.end.call.may_have_applied();
        if !is_ours && pod.is_to_end() {
            // The kubelet terminates the pod for another client, with our mark.
            self.termination.end.call = Attempt::done_by_others();
            self.termination.event_sent = true;
            self.by_others = true;
        }
        if !std::mem::replace(&mut self.termination.event_sent, true) {
            self.report_evicted(out);
        }
        match self.termination.end.by {
            Terminator::Stop => self.stop(pod, facts, out),
            _ => self.delete(pod, facts, out),
        }
    }

    /// Sends the mark; returns `None` when it stands. The agent stops nothing of the pod before the
    /// API has the mark.
    fn mark(&mut self, pod: &PodView, facts: &Facts, out: &mut Out) -> Option<Fate> {
        let ours = self.is_shown_as_ours(pod);
        let termination = &mut self.termination;
        if !termination.mark.write.is_wanted() || termination.mark.write.is_done() {
            return None;
        }
        let sent = termination.mark.write.may_have_applied();
        if sent && ours {
            termination.mark.write = Attempt::done_before();
            return None;
        }
        if pod.is_to_end() && !sent {
            // A deletion by another client has its own reason, and its own end.
            termination.mark.write.drop_it();
            termination.end.call = Attempt::done_by_others();
            termination.event_sent = true;
            self.by_others = true;
            return None;
        }
        if !sent && effective_mode(facts) != EffectiveMode::Enforce {
            return Some(Fate::Dropped);
        }
        let foreign = |disruption: &Disruption| {
            disruption.stands && disruption.reason != TERMINATION_BY_KUBELET
        };
        if pod.disruption.as_ref().is_some_and(foreign) && !sent {
            // Another writer's reason is more specific than ours.
            termination.mark.write = Attempt::done_by_others();
            return None;
        }
        if out.refusals.forbids(PATCH_STATUS) {
            let why = "the API forbids its DisruptionTarget".to_owned();
            return Some(Fate::GivenUp(why, REFUSED_LASTS));
        }
        if termination.mark.write.is_given_up() {
            let why = format!("the API refuses its DisruptionTarget: {}", self.words);
            return Some(Fate::GivenUp(why, REFUSED_LASTS));
        }
        if facts.clock.reached(self.mark_until) {
            let why = "the API does not accept its DisruptionTarget in time".to_owned();
            return Some(Fate::GivenUp(why, LATE_LASTS));
        }
        if termination.mark.write.is_due(&facts.clock) && out.calls.has_room() {
            termination.send_mark(pod, Why::Eviction(&self.description.message), None, out);
        }
        Some(Fate::GoesOn)
    }

    /// Reports a victim that still runs. The mark stays: the pod's end will come from our stop, and
    /// must not count as its own failure. If another victim was needed, it has already been chosen.
    fn report_stubborn(&self, out: &mut Out) {
        let pod = &self.termination.pod;
        let seconds = end_time(self.termination.end.grace_seconds).as_secs();
        let text = format!(
            "it was stopped and still runs, after {seconds} s; it is stopped again and again"
        );
        out.calls.log(true, Some(pod), text);
        let text = format!(
            "It was stopped, and still runs after {seconds} s: see the container runtime's log. \
             {}",
            self.description.message
        );
        out.emit_pod_event(pod.clone(), EVICTION_SLOW, text.trim_end());
    }

    fn report_evicted(&self, out: &mut Out) {
        let Description { message, annotations } = self.description.clone();
        let pod = Some(self.termination.pod.clone());
        out.emit_notice(Notice { pod, warning: true, reason: EVICTED, message, annotations });
    }

    /// Stops the pod through the runtime, and then writes the phase. The object stays, as after a
    /// kubelet's eviction. ([AP3])
    fn stop(&mut self, pod: &PodView, facts: &Facts, out: &mut Out) -> Fate {
        let now = facts.clock.monotonic();
        let termination = &mut self.termination;
        if termination.end.call.is_done() {
            if termination.report.write.is_open() || termination.report.inspect.is_open() {
                self.fail(pod, facts, out);
            }
            return Fate::GoesOn;
        }
        let late = self.end_until.is_some_and(|at| facts.clock.reached(at));
        if termination.end.call.is_given_up() || late && !self.was_stopped {
            let why = "the container runtime does not stop it".to_owned();
            return Fate::GivenUp(why, REFUSED_LASTS);
        }
        if late && !std::mem::replace(&mut self.reported_late, true) {
            self.report_stubborn(out);
        }
        let termination = &mut self.termination;
        termination.end.call.want();
        if termination.end.call.is_due(&facts.clock) {
            self.end_until.get_or_insert(now + end_time(termination.end.grace_seconds));
            termination.send_end(pod, Why::Eviction(&self.description.message), out);
        }
        Fate::GoesOn
    }

    /// Writes the phase of a pod of which nothing runs, by a fresh proof.
    fn fail(&mut self, pod: &PodView, facts: &Facts, out: &mut Out) {
        let why = Why::Eviction(&self.description.message);
        let termination = &mut self.termination;
        let proven = termination.may_fail(&facts.clock);
        if termination.report.inspect.is_open() {
            return termination.ask(Verb::Inspect, why, &facts.clock, out);
        }
        // If another client has deleted the pod meanwhile, the kubelet tears it down and reports.
        if out.refusals.forbids(PATCH_STATUS) || pod.is_to_end() {
            return termination.report.write.give_up();
        }
        // A phase without its reason would count as the pod's own failure.
        let marked = self.cause.is_none() || pod.is_disrupted();
        if !marked && !std::mem::replace(&mut self.mark_sought, true) {
            termination.read.want_again();
            termination.ask(Verb::Read, why, &facts.clock, out);
        } else if !marked {
            let text = "others removed its DisruptionTarget; the kubelet reports its phase";
            out.calls.log(true, Some(&termination.pod), text);
            termination.report.write.give_up();
        } else if proven && out.calls.has_room() {
            termination.send_fail(pod, why, &facts.clock, out);
        }
    }

    /// Terminates the pod through the API: the kubelet stops it and reports. ([API17], [API18])
    fn delete(&mut self, pod: &PodView, facts: &Facts, out: &mut Out) -> Fate {
        let now = facts.clock.monotonic();
        let termination = &mut self.termination;
        let lever = termination.end.by == Terminator::Deadline;
        let deleted =
            pod.deletion_grace_seconds.is_some_and(|it| it <= termination.end.grace_seconds);
        if deleted || lever && pod.is_to_end() {
            if !termination.end.call.is_done() {
                self.by_others = !termination.end.call.may_have_applied();
                termination.end.call.done();
            }
            return Fate::GoesOn;
        }
        if termination.end.call.is_done() {
            return Fate::GoesOn;
        }
        let right = termination.end.by.right().filter(|right| out.refusals.forbids(right));
        if let Some(right) = right {
            return Fate::GivenUp(format!("the API forbids `{right}`"), REFUSED_LASTS);
        }
        if termination.end.call.is_given_up() {
            let why = format!("the API refuses its termination: {}", self.words);
            return Fate::GivenUp(why, REFUSED_LASTS);
        }
        if self.end_until.is_some_and(|at| facts.clock.reached(at)) {
            let why = "the API does not accept its termination in time".to_owned();
            return Fate::GivenUp(why, REFUSED_LASTS);
        }
        termination.end.call.want();
        if termination.end.call.is_due(&facts.clock) && out.calls.has_room() {
            self.end_until.get_or_insert(now + END_MARGIN);
            termination.send_end(pod, Why::Eviction(&self.description.message), out);
        }
        Fate::GoesOn
    }
}

/// The time limit for the proof of a stop through the runtime.
fn end_time(grace_seconds: u32) -> Duration {
    Duration::from_secs(u64::from(grace_seconds)) + END_MARGIN
}
