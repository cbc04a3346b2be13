//! Passes the result of an action to its module.

use std::time::Duration;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::Agent;
use super::outbox::Task;
use crate::pod::{PodUid, PodView};
use crate::protocol::action::{ActionId, Purpose};
use crate::protocol::event::{ActionResult, RuntimeState};
use crate::protocol::pressure::{Figures, Measured};

impl Agent {
    /// Takes a result. The result of an action that is no longer under way is ignored.
    pub(super) fn finished(&mut self, id: ActionId, result: ActionResult) {
        let Some(task) = self.outbox.finish(id) else { return };
        if task.is_api() {
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
                    self.outbox.log(true, None, text);
                }
            }
            Task::Announce => self.announced(&done(result)),
            Task::Publish => self.published(&done(result)),
            Task::Taint => self.tainted(&done(result)),
            Task::EmitEvent => {}
            Task::Mark(uid) => self.mark_result(&uid, &done(result)),
            Task::Read(uid) => self.read_result(&uid, &pod(result)),
            Task::End(uid) => self.end_finished(&uid, &done(result)),
            Task::Stop(uid) => self.stop_finished(&uid, runtime(result)),
            Task::Inspect(uid) => self.inspect_finished(&uid, runtime(result)),
            Task::ExitCheck(uid) => self.exit_checked(&uid, &runtime(result)),
            Task::Fail(uid) => self.fail_finished(&uid, &done(result)),
            Task::Clear(uid) => self.revocation_result(&uid, &done(result)),
            Task::Cause(uid) => self.oom_condition_finished(&uid, &done(result)),
            Task::OomInspect(uid) => self.oom_inspected(&uid, &runtime(result)),
            Task::Measure => self.measured(measured(result)),
            Task::MeasurePods(of) => self.pods_measured(of, figures(result)),
            Task::NodeCondition(kind) => self.node_condition_set(kind, &done(result)),
            Task::Evict(step, uid) => self.evict_result(step, &uid, result),
            Task::StuckInspect(uid) | Task::StuckStop(uid) => {
                self.stuck_seen(&uid, &runtime(result));
            }
            Task::RecoveryInspect(uid) => self.recovery_inspected(&uid, &runtime(result)),
            Task::SurvivorInspect(uid) => self.survivor_inspected(&uid, &runtime(result)),
            Task::StuckFail(uid) => self.stuck_failed(&uid, &done(result)),
        }
    }

    fn mark_result(&mut self, uid: &PodUid, result: &Outcome<()>) {
        if self.is_in_shutdown(uid) {
            self.mark_finished(uid, result);
        } else {
            self.count_patch(Purpose::Mark, result);
            self.recovery_patched(uid, result);
        }
    }

    fn read_result(&mut self, uid: &PodUid, result: &Outcome<Option<Box<PodView>>>) {
        if self.is_in_shutdown(uid) {
            self.read_finished(uid, result);
        } else if self.revoked_marks.is_reading(uid) {
            self.revocation_read(uid, result);
        } else {
            self.recovery_read(uid, result);
        }
    }

    fn revocation_result(&mut self, uid: &PodUid, result: &Outcome<()>) {
        self.count_patch(Purpose::Clear, result);
        if self.revoked_marks.is_revoking(uid) {
            self.revocation_finished(uid, result);
        } else {
            self.recovery_patched(uid, result);
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

    pub(super) fn count_patch(&mut self, purpose: Purpose, result: &Outcome<()>) {
        let tries = self.status.patches.entry(purpose).or_default();
        match result {
            Ok(()) => tries.done += 1,
            Err(_) => tries.failed += 1,
        }
    }

    pub(super) fn write_journal(&mut self) {
        if let Some(action) = self.writer.next(&self.clock) {
            self.outbox.send(Task::Journal, action);
        }
    }
}

/// The result of another kind than the action's: an error of the shell, treated as no response.
fn strange() -> Failure {
    Failure::new(FailureKind::Unknown, "the result is of another kind than the action")
}

pub(super) fn done(result: ActionResult) -> Outcome<()> {
    if let ActionResult::Done(outcome) = result { outcome } else { Err(strange()) }
}

fn delay(result: ActionResult) -> Outcome<Duration> {
    match result {
        ActionResult::Delay(outcome) => outcome,
        ActionResult::Done(Err(failure)) => Err(failure),
        _ => Err(strange()),
    }
}

pub(super) fn pod(result: ActionResult) -> Outcome<Option<Box<PodView>>> {
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

pub(super) fn runtime(result: ActionResult) -> Result<RuntimeState, Failure> {
    match result {
        ActionResult::Runtime(outcome) => outcome,
        ActionResult::Done(Err(failure)) => Err(failure),
        _ => Err(strange()),
    }
}
