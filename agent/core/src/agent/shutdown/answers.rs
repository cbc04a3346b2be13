//! Takes the answers of the API and the runtime about the pods of a shutdown.

use epilogue_common::outcome::{Failure, Outcome};

use super::super::calls::{Answer, Verb};
use super::super::facts::Facts;
use super::super::notices::POD_STOPPED;
use super::super::out::Out;
use super::Shutdown;
use crate::pod::PodUid;
use crate::protocol::action::Purpose;
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::{Intent, Record};
use crate::termination::attempt::{END, Follow, MARK, REPORT, Refusal};
use crate::termination::progress::{PATCH_STATUS, Terminator, all_known_exited, would_succeed};

impl Shutdown {
    /// Takes an answer about a pod.
    pub(super) fn answered(
        &mut self,
        verb: Verb,
        uid: &PodUid,
        answer: Answer<'_>,
        facts: &Facts,
        out: &mut Out,
    ) {
        match (answer, verb) {
            (Answer::Written(result), _) => self.was_written(verb, uid, result, facts, out),
            (Answer::Read(result), _) => self.was_read(uid, result, facts),
            (Answer::Runtime(result), Verb::ExitCheck) => {
                self.exit_checked(uid, result, facts, out);
            }
            (Answer::Runtime(result), Verb::Stop) => self.was_stopped(uid, result, facts, out),
            (Answer::Runtime(result), _) => self.was_inspected(uid, result, facts, out),
        }
    }

    /// Takes the API's answer to a pod's mark, termination or phase.
    fn was_written(
        &mut self,
        verb: Verb,
        uid: &PodUid,
        result: &Outcome<()>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let (now, pace) = (facts.clock.monotonic(), self.pace(uid));
        let Some(termination) = self.terminations.get_mut(uid) else { return };
        let right =
            if verb == Verb::End { termination.terminator.right() } else { Some(PATCH_STATUS) };
        let refusal = right.map(|right| out.hear_of_right(facts, right, uid, result));
        // The mode has changed since: now the runtime terminates the pod.
        if verb == Verb::End && termination.terminator == Terminator::Stop {
            return;
        }
        let (attempt, rule, refused) = match verb {
            Verb::Patch(Purpose::Mark) => {
                let refused = "the API refuses its DisruptionTarget; it is terminated without";
                (&mut termination.mark, MARK, refused)
            }
            Verb::End => {
                let refused = "the API refuses its termination, which is given up";
                (&mut termination.end, END, refused)
            }
            _ => (&mut termination.fail, REPORT, "the API refuses its phase"),
        };
        let rule = rule.refused(refusal.unwrap_or(Refusal::Final));
        match (attempt.settle(result, now, pace, rule), verb) {
            (Follow::Done, Verb::Patch(Purpose::Mark)) => self.note_mark(uid, out),
            (Follow::Done, Verb::End) => {
                self.note_ended(uid, "Terminated by the agent: the node shuts down.", out);
            }
            (Follow::Done, _) => {
                termination.acknowledge();
                out.journal.append([Record::acknowledged(uid, Intent::Fail)]);
            }
            (Follow::Gone, _) => termination.acknowledge(),
            (Follow::Reread, _) => {
                termination.read.want_again();
                // The runtime's proof is older than the attempt.
                if verb == Verb::Patch(Purpose::Fail) {
                    termination.inspect.want_again();
                }
            }
            (Follow::Retry, _) => {}
            (Follow::Refused, _) => out.calls.log_refusal(&termination.pod, refused, result),
        }
    }

    /// Records that the pod's termination has an effect.
    fn note_ended(&mut self, uid: &PodUid, text: &str, out: &mut Out) {
        out.journal.append([Record::acknowledged(uid, Intent::End)]);
        let Some(termination) = self.terminations.get_mut(uid) else { return };
        if !std::mem::replace(&mut termination.event_sent, true) {
            out.emit_pod_event(termination.pod.clone(), POD_STOPPED, text);
        }
    }

    /// Takes the runtime's answer to a stop.
    fn was_stopped(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let (now, pace) = (facts.clock.monotonic(), self.pace(uid));
        let Some(termination) = self.terminations.get_mut(uid) else { return };
        match result {
            Ok(state) if state.nothing_runs() => {
                termination.end.done();
                self.note_ended(uid, "Stopped by the agent: the node shuts down.", out);
                self.is_proven(uid, state, facts, out);
            }
            Ok(_) => {
                termination.end.failed(now, pace, None);
                let text = "it still runs after its stop; it is stopped again";
                out.calls.log(true, Some(&termination.pod), text);
            }
            Err(failure) => {
                termination.end.failed(now, pace, Some(failure));
                let text = format!("the runtime does not stop it: {failure}");
                out.calls.log(true, Some(&termination.pod), text);
            }
        }
        // Under another mode than at the start, another component goes on with the pod.
        if let Some(pod) = facts.pods.get(uid) {
            self.enlist(pod, facts);
        }
    }

    fn was_inspected(
        &mut self,
        uid: &PodUid,
        result: &Result<RuntimeState, Failure>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let (now, pace) = (facts.clock.monotonic(), self.pace(uid));
        let Some(termination) = self.terminations.get_mut(uid) else { return };
        match result {
            Ok(state) if state.nothing_runs() => {
                termination.inspect.done();
                if termination.terminator == Terminator::Stop {
                    termination.end.done();
                }
                self.is_proven(uid, state, facts, out);
            }
            Ok(_) => {
                termination.fail.drop_it();
                termination.inspect.failed(now, pace, None);
            }
            Err(failure) => termination.inspect.failed(now, pace, Some(failure)),
        }
    }

    /// Decides whether `Failed` is true, after the runtime has proved that nothing of the pod runs.
    fn is_proven(&mut self, uid: &PodUid, state: &RuntimeState, facts: &Facts, out: &mut Out) {
        let (Some(termination), Some(pod)) = (self.terminations.get_mut(uid), facts.pods.get(uid))
        else {
            return;
        };
        let stopped_by_us = termination.terminator == Terminator::Stop;
        if would_succeed(pod, state) {
            termination.succeeds = true;
            let text = "all its containers exited with 0; its result is left to the kubelet";
            out.calls.log(false, Some(&termination.pod), text);
        } else if !state.proves_end(pod.has_run) {
            termination.fail.give_up();
            let text = "the runtime does not know it though it has run: nothing is written; is \
                        --runtime-endpoint the kubelet's?";
            out.calls.log(true, Some(&termination.pod), text);
        } else if stopped_by_us || all_known_exited(pod, state) {
            termination.fail.want();
        }
        termination.proven_at = Some(facts.clock.monotonic());
    }
}
