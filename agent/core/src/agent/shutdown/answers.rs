//! Takes the answers of the API and the runtime about the pods of a shutdown.

use super::super::calls::{Answer, Verb};
use super::super::disruptions::Disruptions;
use super::super::facts::Facts;
use super::super::notices::{POD_MARKED, POD_STOPPED};
use super::super::out::Out;
use super::super::pod_steps::{Goal, Meaning, Why};
use super::Shutdown;
use crate::pod::PodUid;
use crate::protocol::action::Purpose;
use crate::protocol::journal::{Intent, Record};
use crate::termination::attempt::Attempt;
use crate::termination::patches;
use crate::termination::progress::{PodTermination, Terminator};

const BY_STOP: &str = "Stopped by the agent: the node shuts down.";
const BY_API: &str = "Terminated by the agent: the node shuts down.";
const BY_OTHERS: &str = "DisruptionTarget set: the node shuts down.";

impl Shutdown {
    /// What the shutdown wants of a pod.
    pub(super) fn goal(&self, uid: &PodUid) -> Goal<'static> {
        Goal { why: Why::Shutdown, pace: self.pace(uid) }
    }

    /// Takes an answer about a pod.
    pub(in super::super) fn answered(
        &mut self,
        verb: Verb,
        uid: &PodUid,
        answer: Answer<'_>,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        if let (Answer::Runtime(result), Verb::ExitCheck) = (answer, verb) {
            return self.exit_checked(uid, result, facts, out, disruptions);
        }
        let goal = self.goal(uid);
        let Some(entry) = disruptions.get_mut(uid) else { return };
        let Some(termination) = &mut entry.shutdown else { return };
        let meaning = termination.answered(verb, answer, &goal, facts, out);
        let ended = matches!(meaning, Meaning::Ended | Meaning::Unproven);
        match (verb, meaning) {
            (_, Meaning::Gone) => termination.acknowledge(),
            (Verb::Patch(Purpose::Mark), Meaning::Done) => {
                out.journal.append([Record::acknowledged(uid, Intent::Mark)]);
                // If the agent does not terminate the pod, this is what it reports.
                if matches!(termination.end.by, Terminator::Kubelet | Terminator::None) {
                    report(termination, POD_MARKED, BY_OTHERS, out);
                }
            }
            (Verb::Patch(_), Meaning::Done) => {
                termination.acknowledge();
                out.journal.append([Record::acknowledged(uid, Intent::Fail)]);
            }
            (Verb::End, Meaning::Done) => note_ended(termination, BY_API, out),
            (Verb::Stop, _) if ended => note_ended(termination, BY_STOP, out),
            _ => {}
        }
        if meaning == Meaning::Unproven {
            termination.report.write.give_up();
            let text = "the runtime does not know it though it has run: nothing is written; is \
                        --runtime-endpoint the kubelet's?";
            out.calls.log(true, Some(&termination.pod), text);
        }
        let Some(pod) = facts.pods.get(uid) else { return };
        if verb == Verb::Read && meaning == Meaning::Done {
            let taken_over = entry.was_read();
            if let (Some(at), Some(termination)) = (taken_over, &mut entry.shutdown)
                && pod.disruption.as_ref().is_some_and(|d| patches::is_ours(d, at))
            {
                termination.mark.write = Attempt::done_before();
            }
            self.enlist(pod, facts, disruptions);
        } else if verb == Verb::Stop {
            // Under another mode than at the start, another component goes on with the pod.
            self.enlist(pod, facts, disruptions);
        }
    }
}

/// Takes a termination that the API shows: ours, whose answer was lost, or another client's.
pub(super) fn note_shown(termination: &mut PodTermination, out: &mut Out) {
    termination.end.call.done();
    if termination.end.call.may_have_applied() {
        return note_ended(termination, BY_API, out);
    }
    out.journal.append([Record::acknowledged(&termination.pod.uid, Intent::End)]);
    if termination.mark.write.may_have_applied() {
        report(termination, POD_MARKED, BY_OTHERS, out);
    }
}

/// Records that the pod's termination has an effect.
fn note_ended(termination: &mut PodTermination, text: &str, out: &mut Out) {
    out.journal.append([Record::acknowledged(&termination.pod.uid, Intent::End)]);
    report(termination, POD_STOPPED, text, out);
}

/// Reports what the shutdown did to the pod, once.
fn report(termination: &mut PodTermination, reason: &'static str, text: &str, out: &mut Out) {
    if !std::mem::replace(&mut termination.event_sent, true) {
        out.emit_pod_event(termination.pod.clone(), reason, text);
    }
}
