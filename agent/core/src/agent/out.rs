//! Collects what a decision gives: calls, records for the journal, events and the report.

use epilogue_common::outcome::{FailureKind, Outcome};

use super::calls::{Calls, Task, Verb};
use super::facts::Facts;
use super::notices::{NOT_PERMITTED, Notices};
use super::refusals::Refusals;
use super::status::Status;
use super::writer::Writer;
use crate::finding::Finding;
use crate::pod::{PodRef, PodUid};
use crate::protocol::action::{Action, Notice};
use crate::protocol::event::ActionResult;
use crate::termination::attempt::{Attempt, Follow, Pace, REPEATABLE, Refusal};
use crate::termination::clock::Clock;

/// Limit of concurrent events; they share the connection with what matters more.
const EVENTS_AT_ONCE: usize = 4;

/// The results of decisions.
#[derive(Clone, Debug)]
pub(super) struct Out {
    pub(super) calls: Calls,
    pub(super) journal: Writer,
    pub(super) notices: Notices,
    /// Which rights the API refuses.
    pub(super) refusals: Refusals,
    pub(super) status: Status,
}

impl Out {
    /// `open`: whether the journal had records at the start.
    pub(super) fn new(api_max: usize, open: bool) -> Self {
        Self {
            calls: Calls::new(api_max),
            journal: Writer::new(open),
            notices: Notices::default(),
            refusals: Refusals::default(),
            status: Status::default(),
        }
    }

    /// Reports an event about the node.
    pub(super) fn emit_event(
        &mut self,
        warning: bool,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        let message = message.into();
        self.emit_notice(Notice { pod: None, warning, reason, message, annotations: Vec::new() });
    }

    /// Reports a warning about a pod.
    pub(super) fn emit_pod_event(&mut self, pod: PodRef, reason: &'static str, message: &str) {
        let (pod, message) = (Some(pod), message.to_owned());
        let annotations = Vec::new();
        self.emit_notice(Notice { pod, warning: true, reason, message, annotations });
    }

    /// Reports a warning about a pod by an event and in the log.
    pub(super) fn warn_of_pod(&mut self, pod: PodRef, reason: &'static str, message: &str) {
        self.calls.log(true, Some(&pod), message);
        self.emit_pod_event(pod, reason, message);
    }

    /// Reports an event that carries more than a message.
    pub(super) fn emit_notice(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    /// Reports a decision about the node by an event and in the log.
    pub(super) fn announce(&mut self, warning: bool, reason: &'static str, text: String) {
        self.calls.log(warning, None, text.clone());
        self.emit_event(warning, reason, text);
    }

    /// Sends events while nothing else waits for the connection.
    pub(super) fn send_events(&mut self, unacknowledged: bool) {
        let under_way = |calls: &Calls| calls.count(|task| *task == Task::EmitEvent);
        while under_way(&self.calls) < EVENTS_AT_ONCE && self.calls.has_room() {
            let Some(notice) = self.notices.next(unacknowledged) else { return };
            self.calls.send(Task::EmitEvent, Action::EmitEvent(notice));
        }
    }

    /// Writes the journal's records that are due.
    pub(super) fn write_journal(&mut self, clock: &Clock) {
        if let Some(action) = self.journal.next(clock) {
            self.calls.send(Task::Journal, action);
        }
    }

    /// Takes the disk's answer to a write of the journal.
    pub(super) fn journal_written(&mut self, clock: &Clock, result: &Outcome<()>) {
        if let Some(text) = self.journal.finished(clock, result) {
            self.calls.log(true, None, text);
        }
    }

    /// Records whether the API answers.
    pub(super) fn note_reachable(&mut self, result: &ActionResult) {
        let failure = match result {
            ActionResult::Done(Err(failure))
            | ActionResult::Patched(Err(failure))
            | ActionResult::Pod(Err(failure)) => Some(failure),
            _ => None,
        };
        let reachable = failure.is_none_or(|failure| failure.kind != FailureKind::Unknown);
        self.status.api_reachable = reachable;
    }

    /// Counts a write to a pod.
    pub(super) fn count_write(&mut self, verb: Verb, result: &Outcome<()>) {
        let tries = match verb {
            Verb::Patch(purpose) => self.status.patches.entry(purpose).or_default(),
            _ => &mut self.status.deletions,
        };
        match result {
            Ok(()) => tries.done += 1,
            Err(_) => tries.failed += 1,
        }
    }

    /// Records the API's answer about a pod, and returns how to handle a refusal.
    pub(super) fn note_answer(
        &mut self,
        facts: &Facts,
        verb: &'static str,
        uid: &PodUid,
        result: &Outcome<()>,
    ) -> Refusal {
        let now = facts.clock.monotonic();
        let refusal = self.refusals.note(verb, uid, result, now);
        let Err(failure) = result else { return refusal };
        let forbidden = failure.kind == FailureKind::Forbidden && refusal == Refusal::OfPod;
        if (forbidden || failure.is_invalid()) && self.refusals.is_new(verb) {
            let name = facts.pods.get(uid).map(|pod| format!("{}/{}", pod.namespace, pod.name));
            let name = name.unwrap_or_else(|| uid.0.clone());
            let text = format!("the API refuses `{verb}` for pod {name}: {failure}");
            self.emit_event(true, NOT_PERMITTED, text);
        }
        if let Some(why) = self.refusals.lacks(verb).filter(|_| forbidden) {
            self.stop_verb(verb, &why);
        }
        refusal
    }

    /// Takes the API's answer to a write to the node, which any later one repeats.
    pub(super) fn settle_of_node(
        &mut self,
        verb: &'static str,
        attempt: &mut Attempt,
        result: &Outcome<()>,
        pace: Pace,
        facts: &Facts,
    ) -> Follow {
        let now = facts.clock.monotonic();
        let refusal = self.refusals.note_of_node(verb, result, facts.situation, now);
        // A newer value ends the retries; until then, a node with a wrong value misleads others.
        let rule = REPEATABLE.refused(refusal).slowly_without_end();
        let follow = attempt.settle(result, now, pace, rule);
        let Err(failure) = result else { return follow };
        if follow == Follow::Refused && failure.kind == FailureKind::Forbidden {
            self.stop_verb(verb, &failure.to_string());
        } else if follow == Follow::Slowly && self.refusals.is_new(verb) {
            let text = format!("the API refuses `{verb}`, it is tried again slowly: {failure}");
            self.announce(true, NOT_PERMITTED, text);
        }
        follow
    }

    fn stop_verb(&mut self, verb: &'static str, why: &str) {
        if self.refusals.stop(verb) {
            let call = format!("`{verb}`");
            let finding = Finding::Forbidden(&call);
            let remedy = finding.remedy();
            let text = format!("{finding}, and it is not tried again ({why}): {remedy}");
            self.announce(true, NOT_PERMITTED, text);
        }
    }
}
