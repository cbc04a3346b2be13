//! Handles the responses of the API and the runtime about an eviction.

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::super::calls::Verb;
use super::super::facts::Facts;
use super::super::out::Out;
use super::victim::Victim;
use crate::pod::PodView;
use crate::protocol::action::Purpose;
use crate::protocol::event::RuntimeState;
use crate::termination::attempt::{Attempt, END, EVICTION, Follow, REPEATABLE};
use crate::termination::progress::{PATCH_STATUS, would_succeed};

impl Victim {
    /// Takes the API's answer to the mark, the termination or the phase; returns whether the pod is
    /// gone.
    pub(super) fn was_written(
        &mut self,
        verb: Verb,
        result: &Outcome<()>,
        facts: &Facts,
        out: &mut Out,
    ) -> bool {
        let (now, pace) = (facts.clock.monotonic(), self.pace());
        let termination = &mut self.termination;
        let right = match verb {
            Verb::End => termination.terminator.right(),
            _ => Some(PATCH_STATUS),
        };
        if let Some(right) = right {
            out.hear_of_right(facts, right, &termination.pod.uid, result);
        }
        let (attempt, rule) = match verb {
            Verb::Patch(Purpose::Mark) => (&mut termination.mark, EVICTION),
            Verb::End => (&mut termination.end, END),
            _ => (&mut termination.fail, EVICTION),
        };
        match attempt.settle(result, now, pace, rule) {
            Follow::Gone => return true,
            // The runtime's proof is older than this write: the agent checks both first.
            Follow::Reread => {
                termination.read.want_again();
                termination.proven_at = None;
            }
            Follow::Refused if verb == Verb::Patch(Purpose::Fail) => {
                let text = "the API refuses its phase, the kubelet reports it";
                out.calls.log_refusal(&termination.pod, text, result);
            }
            Follow::Done | Follow::Retry | Follow::Refused => {}
        }
        false
    }

    /// Takes the pod as the API has it; returns whether it is gone.
    pub(super) fn was_read(
        &mut self,
        result: &Outcome<Option<Box<PodView>>>,
        facts: &Facts,
    ) -> bool {
        let (now, pace) = (facts.clock.monotonic(), self.pace());
        self.termination.read.settle(result, now, pace, REPEATABLE) == Follow::Gone
    }

    pub(super) fn was_stopped(
        &mut self,
        result: &Result<RuntimeState, Failure>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let (now, pace) = (facts.clock.monotonic(), self.pace());
        self.was_stopped |= match result {
            Ok(state) => !state.containers.is_empty(),
            // A stop without a response may have been carried out.
            Err(failure) => !is_final(failure),
        };
        let was_stopped = self.was_stopped;
        let termination = &mut self.termination;
        match result {
            Ok(state) if has_ended(state) => {
                termination.end.done();
                self.is_proven(state, facts, out);
            }
            Ok(_) => {
                termination.end.failed(now, pace, None);
                let text = "it still runs after its stop; it is stopped again";
                out.calls.log(true, Some(&termination.pod), text);
            }
            Err(failure) => {
                if is_final(failure) && !was_stopped {
                    termination.end.give_up();
                } else {
                    termination.end.failed(now, pace, Some(failure));
                }
                let text = format!("the runtime does not stop it: {failure}");
                out.calls.log(true, Some(&termination.pod), text);
            }
        }
    }

    pub(super) fn was_inspected(
        &mut self,
        result: &Result<RuntimeState, Failure>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let (now, pace) = (facts.clock.monotonic(), self.pace());
        let termination = &mut self.termination;
        match result {
            Ok(state) if has_ended(state) => {
                termination.inspect.done();
                self.is_proven(state, facts, out);
            }
            // The pod was started again, so the stop had no effect.
            Ok(_) => {
                termination.inspect.done();
                termination.fail.drop_it();
                termination.end = Attempt::done_before();
                termination.end.want_again();
            }
            Err(failure) => termination.inspect.failed(now, pace, Some(failure)),
        }
    }

    /// Decides whether `Failed` is true, after the runtime has shown that nothing of the victim
    /// runs.
    fn is_proven(&mut self, state: &RuntimeState, facts: &Facts, out: &mut Out) {
        let termination = &mut self.termination;
        let Some(pod) = facts.pods.get(&termination.pod.uid) else { return };
        if would_succeed(pod, state) {
            // Exit code 0 within the grace: the pod succeeds, and the kubelet reports it. ([EV16])
            termination.succeeds = true;
            termination.fail.drop_it();
            let text = "all its containers exited with 0; its result is left to the kubelet";
            out.calls.log(false, Some(&termination.pod), text);
        } else if state.containers_ended() || state.proves_end(pod.has_run) {
            termination.fail.want();
        } else if self.was_stopped {
            // The containers were removed meanwhile: whoever removed them has seen the end.
            termination.fail.give_up();
            let text = "the runtime does not know it any more; the kubelet reports its phase";
            out.calls.log(true, Some(&termination.pod), text);
        } else {
            let text = "the runtime does not know it though it has run; is --runtime-endpoint the \
                        kubelet's?";
            self.refused = Some(text.to_owned());
        }
        self.termination.proven_at = Some(facts.clock.monotonic());
    }
}

/// Whether nothing of the victim runs. A pod that we stop through the runtime cannot run again, so
/// its remaining sandbox does not matter.
fn has_ended(state: &RuntimeState) -> bool {
    state.containers_ended() || state.nothing_runs()
}

/// Whether the runtime would respond the same again.
fn is_final(failure: &Failure) -> bool {
    use FailureKind::{Forbidden, Invalid, NotFound, Other};
    matches!(failure.kind, Forbidden | Invalid | NotFound | Other)
}
