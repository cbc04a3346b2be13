//! Asks the runtime whether a pod had already exited, before the agent marks it in place of a dead
//! kubelet. Without a kubelet, the API may show an exited pod as running.

use std::time::Duration;

use epilogue_common::outcome::Failure;
use jiff::{SignedDuration, Timestamp};

use super::Agent;
use super::calls::{Part, Verb};
use super::own_marks_survivors::CLOCKS_DIFFER;
use crate::pod::{PodUid, PodView};
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::{Intent, Record};
use crate::termination::progress::Terminator;

/// Whether all containers of the pod had exited before the shutdown, by the runtime's clock. The
/// sandbox may still exist, because only a kubelet removes it.
fn had_exited(pod: &PodView, state: &RuntimeState, since: Timestamp) -> bool {
    let margin = SignedDuration::try_from(CLOCKS_DIFFER).unwrap_or(SignedDuration::ZERO);
    let before = |at: Option<Timestamp>| {
        at.is_some_and(|at| at.saturating_add(margin).is_ok_and(|at| at < since))
    };
    let known = |name: &String| state.containers.iter().any(|each| each.name == *name);
    let all_known = pod.containers.iter().all(known);
    all_known
        && state.containers_ended()
        && state.containers.iter().all(|each| before(each.finished_at))
}

impl Agent {
    pub(super) fn send_exit_checks(&mut self) {
        let Some(shutdown) = &mut self.shutdown else { return };
        for termination in shutdown.terminations.values_mut() {
            if !termination.reported {
                let (what, check) =
                    ((Part::Shutdown, Verb::ExitCheck), &mut termination.exit_check);
                self.calls.inspect(what, &termination.pod, check, &self.clock);
            }
        }
    }

    pub(super) fn exit_checked(&mut self, uid: &PodUid, result: &Result<RuntimeState, Failure>) {
        let now: Duration = self.clock.monotonic();
        let Some(shutdown) = &mut self.shutdown else { return };
        let (since, pace) = (shutdown.since, shutdown.pace(uid));
        let Some(termination) = shutdown.terminations.get_mut(uid) else { return };
        let state = match result {
            Ok(state) => state,
            Err(failure) => return termination.exit_check.failed(now, pace, Some(failure)),
        };
        termination.exit_check.done();
        let Some(pod) = self.pods.get(uid) else { return };
        let untouched = !termination.mark.was_sent() && !termination.end.was_sent();
        if !untouched
            || termination.terminator != Terminator::Stop
            || !had_exited(pod, state, since)
        {
            return;
        }
        termination.had_exited = true;
        termination.terminator = Terminator::None;
        termination.mark.give_up();
        self.writer.append([Record::intent(&termination.pod, Intent::LeaveExited, since)]);
        let text = "all its containers had exited before the shutdown; its kubelet reports it";
        self.calls.log(false, Some(&termination.pod), text);
    }
}
