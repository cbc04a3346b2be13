//! Passes the result of an action to its module.

use std::time::Duration;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::Agent;
use super::calls::{Part, Task, Verb};
use crate::pod::{PodUid, PodView};
use crate::protocol::action::{ActionId, Purpose};
use crate::protocol::event::{ActionResult, RuntimeState};
use crate::protocol::journal::{Intent, Record};
use crate::protocol::pressure::{Figures, Measured};
use crate::termination::attempt::{END, Follow, MARK, REPORT, Refusal};
use crate::termination::progress::{PATCH_STATUS, Terminator};

impl Agent {
    /// Takes a result. The result of an action that is no longer under way is ignored.
    pub(super) fn finished(&mut self, id: ActionId, result: ActionResult) {
        let Some(task) = self.calls.finish(id) else { return };
        // The shell queues an event, and answers before the API does.
        if task.is_api() && task != Task::EmitEvent {
            self.note_reachable(&result);
        }
        self.note_written(&task, &result);
        match task {
            Task::TakeLock => self.lock_taken(&result),
            Task::ReleaseLock => self.lock_released(&result),
            Task::RaiseDelay => self.delay_raised(&delay(result)),
            Task::Journal => {
                let warning = self.writer.finished(&self.clock, &done(result));
                if let Some(text) = warning {
                    self.calls.log(true, None, text);
                }
            }
            Task::Announce | Task::Publish | Task::Taint => {
                self.node_written(&task, &done(result));
            }
            Task::EmitEvent => {}
            Task::Measure => self.measured(measured(result)),
            Task::MeasurePods(of) => self.pods_measured(of, figures(result)),
            Task::NodeCondition(kind) => self.node_condition_set(kind, &done(result)),
            Task::Pod(part, verb, uid) => match verb {
                Verb::Read => self.pod_read(part, &uid, &pod(result)),
                Verb::ExitCheck | Verb::Stop | Verb::Inspect => {
                    self.runtime_answered(part, verb, &uid, runtime(result));
                }
                Verb::Patch(_) | Verb::End => {
                    self.written(part, verb, &uid, &done(result));
                }
            },
        }
    }

    /// Takes the result of a write to a pod.
    fn written(&mut self, part: Part, verb: Verb, uid: &PodUid, result: &Outcome<()>) {
        let tries = match verb {
            Verb::Patch(purpose) => self.status.patches.entry(purpose).or_default(),
            _ => &mut self.status.deletions,
        };
        match result {
            Ok(()) => tries.done += 1,
            Err(_) => tries.failed += 1,
        }
        let right = self.right(part, verb, uid);
        let refusal = right.map(|right| self.hear_of_right(right, uid, result));
        let refusal = refusal.unwrap_or(Refusal::Final);
        match part {
            Part::Shutdown => self.termination_written(verb, uid, result, refusal),
            Part::Eviction => self.victim_written(verb, uid, result),
            Part::Revocation => self.revocation_finished(uid, result),
            Part::BootRecovery => self.recovery_patched(uid, result),
            Part::Stuck => self.stuck_failed(uid, result),
            Part::Oom => self.oom_condition_finished(uid, result),
            Part::Drained | Part::Journaled | Part::Survivors => {}
        }
    }

    /// Takes the API's answer to a pod's mark, termination or phase in a shutdown.
    fn termination_written(
        &mut self,
        verb: Verb,
        uid: &PodUid,
        result: &Outcome<()>,
        refusal: Refusal,
    ) {
        let now = self.clock.monotonic();
        let Some((termination, pace)) = self.termination(uid) else { return };
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
        match (attempt.settle(result, now, pace, rule.refused(refusal)), verb) {
            (Follow::Done, Verb::Patch(Purpose::Mark)) => self.note_mark(uid),
            (Follow::Done, Verb::End) => {
                self.note_ended(uid, "Terminated by the agent: the node shuts down.");
            }
            (Follow::Done, _) => {
                termination.acknowledge();
                self.writer.append([Record::acknowledged(uid, Intent::Fail)]);
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
            (Follow::Refused, _) => {
                let pod = termination.pod.clone();
                self.calls.log_refusal(&pod, refused, result);
            }
        }
    }

    /// The right that a refusal of the call concerns; `None` if it concerns only the call.
    fn right(&self, part: Part, verb: Verb, uid: &PodUid) -> Option<&'static str> {
        let termination = match part {
            Part::Shutdown => self.shutdown.as_ref().and_then(|it| it.terminations.get(uid)),
            Part::Eviction => self.evictions.termination(uid),
            _ => None,
        };
        match (part, verb) {
            (Part::Shutdown, Verb::Patch(Purpose::Mark)) => termination.map(|_| PATCH_STATUS),
            (Part::Shutdown | Part::Eviction | Part::Stuck, Verb::Patch(_)) => Some(PATCH_STATUS),
            (_, Verb::End) => termination?.terminator.right(),
            _ => None,
        }
    }

    /// Takes the pod as the API has it. A read for the removal of a mark serves a shutdown that has
    /// begun since.
    fn pod_read(&mut self, part: Part, uid: &PodUid, result: &Outcome<Option<Box<PodView>>>) {
        match result {
            Ok(Some(pod)) => drop(self.pods.observe((**pod).clone())),
            Ok(None) => self.pods.gone(uid),
            Err(_) => {}
        }
        match part {
            Part::Eviction => self.victim_read(uid, result),
            _ if self.is_in_shutdown(uid) => self.read_finished(uid, result),
            Part::Revocation => self.revocation_read(uid, result),
            _ => self.recovery_read(uid, result),
        }
    }

    /// Takes the runtime's answer about a pod.
    fn runtime_answered(
        &mut self,
        part: Part,
        verb: Verb,
        uid: &PodUid,
        result: Result<RuntimeState, Failure>,
    ) {
        match (part, verb) {
            (Part::Shutdown, Verb::ExitCheck) => self.exit_checked(uid, &result),
            (Part::Shutdown, Verb::Stop) => self.stop_finished(uid, result),
            (Part::Shutdown, _) => self.inspect_finished(uid, result),
            (Part::Eviction, Verb::Stop) => self.victim_stopped(uid, result),
            (Part::Eviction, _) => self.victim_inspected(uid, result),
            (Part::Drained, _) => self.drained_inspected(uid, &result),
            (Part::Journaled, _) => self.journaled_inspected(uid, &result),
            (Part::BootRecovery | Part::Revocation, _) => self.recovery_inspected(uid, &result),
            (Part::Survivors, _) => self.survivor_inspected(uid, &result),
            (Part::Stuck, _) => self.stuck_seen(uid, &result),
            (Part::Oom, _) => self.oom_inspected(uid, &result),
        }
    }

    fn is_in_shutdown(&self, uid: &PodUid) -> bool {
        self.shutdown.as_ref().is_some_and(|shutdown| shutdown.terminations.contains_key(uid))
    }

    fn note_reachable(&mut self, result: &ActionResult) {
        let failure = match result {
            ActionResult::Done(Err(failure)) | ActionResult::Pod(Err(failure)) => Some(failure),
            _ => None,
        };
        let reachable = failure.is_none_or(|failure| failure.kind != FailureKind::Unknown);
        self.status.api_reachable = reachable;
    }

    pub(super) fn write_journal(&mut self) {
        if let Some(action) = self.writer.next(&self.clock) {
            self.calls.send(Task::Journal, action);
        }
    }
}

/// The result of another kind than the action's: an error of the shell, treated as no response.
fn strange() -> Failure {
    Failure::new(FailureKind::Unknown, "the result is of another kind than the action")
}

fn done(result: ActionResult) -> Outcome<()> {
    if let ActionResult::Done(outcome) = result { outcome } else { Err(strange()) }
}

fn delay(result: ActionResult) -> Outcome<Duration> {
    match result {
        ActionResult::Delay(outcome) => outcome,
        ActionResult::Done(Err(failure)) => Err(failure),
        _ => Err(strange()),
    }
}

fn pod(result: ActionResult) -> Outcome<Option<Box<PodView>>> {
    match result {
        ActionResult::Pod(outcome) => outcome,
        ActionResult::Done(Err(failure)) => Err(failure),
        _ => Err(strange()),
    }
}

fn measured(result: ActionResult) -> Measured {
    match result {
        ActionResult::Measured(measured) => measured,
        ActionResult::Done(Err(failure)) => Err(failure),
        _ => Err(strange()),
    }
}

fn figures(result: ActionResult) -> Result<Figures, Failure> {
    match result {
        ActionResult::Figures(figures) => figures,
        ActionResult::Done(Err(failure)) => Err(failure),
        _ => Err(strange()),
    }
}

fn runtime(result: ActionResult) -> Result<RuntimeState, Failure> {
    match result {
        ActionResult::Runtime(outcome) => outcome,
        ActionResult::Done(Err(failure)) => Err(failure),
        _ => Err(strange()),
    }
}
