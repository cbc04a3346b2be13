//! Takes the answers of the API and the runtime about an eviction.

use epilogue_common::outcome::{Failure, FailureKind};

use super::super::calls::{Answer, Verb};
use super::super::facts::Facts;
use super::super::out::Out;
use super::super::pod_steps::{Goal, Meaning, Why};
use super::victim::Victim;
use crate::termination::attempt::Attempt;

impl Victim {
    /// Takes an answer; returns whether the pod is gone.
    pub(in super::super) fn answered(
        &mut self,
        verb: Verb,
        answer: Answer<'_>,
        facts: &Facts,
        out: &mut Out,
    ) -> bool {
        let refused = matches!(answer, Answer::Runtime(Err(failure)) if is_final(failure));
        if verb == Verb::Stop {
            self.was_stopped |= match answer {
                Answer::Runtime(Ok(state)) => !state.containers.is_empty(),
                // A stop without a response may have been carried out.
                _ => !refused,
            };
        }
        if let Answer::Written(Err(failure), _) = answer {
            self.words = failure.to_string();
        }
        let was_stopped = self.was_stopped;
        let goal = Goal { why: Why::Eviction(&self.description.message), pace: self.pace() };
        let termination = &mut self.termination;
        match termination.answered(verb, answer, &goal, facts, out) {
            Meaning::Gone => return true,
            Meaning::Again if verb == Verb::Stop && refused && !was_stopped => {
                termination.end.call.give_up();
            }
            Meaning::Again if verb == Verb::Read => self.api_is_silent = true,
            // The pod was started again, so the stop had no effect.
            Meaning::Runs if verb == Verb::Inspect => {
                termination.report.inspect.done();
                termination.end.call = Attempt::done_before();
                termination.end.call.want_again();
            }
            // The containers were removed meanwhile: whoever removed them has seen the end.
            Meaning::Unproven if was_stopped => {
                termination.report.write.give_up();
                let text = "the runtime does not know it any more; the kubelet reports its phase";
                out.calls.log(true, Some(&termination.pod), text);
            }
            Meaning::Unproven => {
                let text = "the runtime does not know it though it has run; is \
                            --runtime-endpoint the kubelet's?";
                self.refused = Some(text.to_owned());
            }
            Meaning::Done | Meaning::Ended | Meaning::Refused | Meaning::Again | Meaning::Runs => {}
        }
        false
    }
}

/// Whether the runtime would respond the same again.
fn is_final(failure: &Failure) -> bool {
    use FailureKind::{Forbidden, Invalid, NotFound, Other};
    matches!(failure.kind, Forbidden | Invalid | NotFound | Other)
}
