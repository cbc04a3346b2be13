//! Handles the responses of the API and the runtime about an eviction.

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::super::Agent;
use super::super::calls::Verb;
use crate::pod::{PodUid, PodView};
use crate::protocol::action::Purpose;
use crate::protocol::event::RuntimeState;
use crate::termination::attempt::{Attempt, END, EVICTION, Follow, REPEATABLE};
use crate::termination::progress::would_succeed;

impl Agent {
    /// Takes the API's answer to the mark, the termination or the phase.
    pub(in super::super) fn victim_written(
        &mut self,
        verb: Verb,
        uid: &PodUid,
        result: &Outcome<()>,
    ) {
        let now = self.clock.monotonic();
        let Some(victim) = self.evictions.victims.get_mut(uid) else { return };
        let pace = victim.pace();
        let termination = &mut victim.termination;
        let (attempt, rule) = match verb {
            Verb::Patch(Purpose::Mark) => (&mut termination.mark, EVICTION),
            Verb::End => (&mut termination.end, END),
            _ => (&mut termination.fail, EVICTION),
        };
        match attempt.settle(result, now, pace, rule) {
            Follow::Gone => victim.gone = true,
            // The runtime's proof is older than this write: the agent checks both first.
            Follow::Reread => {
                termination.read.want_again();
                termination.proven_at = None;
            }
            Follow::Refused if verb == Verb::Patch(Purpose::Fail) => {
                let text = "the API refuses its phase, the kubelet reports it";
                self.calls.log_refusal(&termination.pod, text, result);
            }
            Follow::Done | Follow::Retry | Follow::Refused => {}
        }
    }

    pub(in super::super) fn victim_read(
        &mut self,
        uid: &PodUid,
        result: &Outcome<Option<Box<PodView>>>,
    ) {
        let now = self.clock.monotonic();
        let Some(victim) = self.evictions.victims.get_mut(uid) else { return };
        let pace = victim.pace();
        let follow = victim.termination.read.settle(result, now, pace, REPEATABLE);
        victim.gone |= follow == Follow::Gone || matches!(result, Ok(None));
    }

    pub(in super::super) fn victim_stopped(
        &mut self,
        uid: &PodUid,
        result: Result<RuntimeState, Failure>,
    ) {
        let now = self.clock.monotonic();
        let Some(victim) = self.evictions.victims.get_mut(uid) else { return };
        let pace = victim.pace();
        victim.was_stopped |= match &result {
            Ok(state) => !state.containers.is_empty(),
            // A stop without a response may have been carried out.
            Err(failure) => !is_final(failure),
        };
        let was_stopped = victim.was_stopped;
        let termination = &mut victim.termination;
        match result {
            Ok(state) if has_ended(&state) => {
                termination.end.done();
                self.victim_proven(uid, state);
            }
            Ok(_) => {
                termination.end.failed(now, pace, None);
                let text = "it still runs after its stop; it is stopped again";
                self.calls.log(true, Some(&termination.pod), text);
            }
            Err(failure) => {
                if is_final(&failure) && !was_stopped {
                    termination.end.give_up();
                } else {
                    termination.end.failed(now, pace, Some(&failure));
                }
                let text = format!("the runtime does not stop it: {failure}");
                self.calls.log(true, Some(&termination.pod), text);
            }
        }
    }

    pub(in super::super) fn victim_inspected(
        &mut self,
        uid: &PodUid,
        result: Result<RuntimeState, Failure>,
    ) {
        let now = self.clock.monotonic();
        let Some(victim) = self.evictions.victims.get_mut(uid) else { return };
        let pace = victim.pace();
        let termination = &mut victim.termination;
        match result {
            Ok(state) if has_ended(&state) => {
                termination.inspect.done();
                self.victim_proven(uid, state);
            }
            // The pod was started again, so the stop had no effect.
            Ok(_) => {
                termination.inspect.done();
                termination.fail.drop_it();
                termination.end = Attempt::done_before();
                termination.end.want_again();
            }
            Err(failure) => termination.inspect.failed(now, pace, Some(&failure)),
        }
    }

    /// Decides whether `Failed` is true, after the runtime has shown that nothing of the victim
    /// runs.
    fn victim_proven(&mut self, uid: &PodUid, state: RuntimeState) {
        let now = self.clock.monotonic();
        let (Some(victim), Some(pod)) = (self.evictions.victims.get_mut(uid), self.pods.get(uid))
        else {
            return;
        };
        let termination = &mut victim.termination;
        if would_succeed(pod, &state) {
            // Exit code 0 within the grace: the pod succeeds, and the kubelet reports it. ([EV16])
            termination.succeeds = true;
            termination.fail.drop_it();
            let text = "all its containers exited with 0; its result is left to the kubelet";
            self.calls.log(false, Some(&termination.pod), text);
        } else if state.containers_ended() || state.proves_end(pod.has_run) {
            termination.fail.want();
        } else if victim.was_stopped {
            // The containers were removed meanwhile: whoever removed them has seen the end.
            termination.fail.give_up();
            let text = "the runtime does not know it any more; the kubelet reports its phase";
            self.calls.log(true, Some(&termination.pod), text);
        } else {
            let text = "the runtime does not know it though it has run; is --runtime-endpoint the \
                        kubelet's?";
            victim.refused = Some(text.to_owned());
        }
        let termination = &mut victim.termination;
        termination.proven_at = Some(now);
        termination.runtime = Some(state);
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
