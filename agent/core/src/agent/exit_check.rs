//! Before the agent marks a pod in place of a dead kubelet, it asks the runtime whether the pod had
//! ended by itself: the API may show it running long after, for nobody was there to report.

use std::time::Duration;

use epilogue_common::outcome::Failure;
use jiff::{SignedDuration, Timestamp};

use super::Agent;
use super::marks::record;
use super::origin::CLOCKS_DIFFER;
use super::outbox::Task;
use crate::ending::progress::Way;
use crate::pod::{PodUid, PodView};
use crate::protocol::action::Action;
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::Intent;

/// Whether all containers of the pod had exited when the shutdown came, by the runtime's clock. Its
/// sandbox may be there yet: only a kubelet takes it down.
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
        let Some(run) = &mut self.run else { return };
        for (uid, ending) in &mut run.endings {
            let due = !ending.reported && ending.exit_check.is_due(&self.clock);
            if !due || !self.outbox.has_room_to_inspect() {
                continue;
            }
            ending.exit_check.sent();
            let action = Action::InspectPod(ending.pod.clone());
            self.outbox.send(Task::ExitCheck(uid.clone()), action);
        }
    }

    pub(super) fn exit_checked(&mut self, uid: &PodUid, result: &Result<RuntimeState, Failure>) {
        let now: Duration = self.clock.monotonic();
        let Some(run) = &mut self.run else { return };
        let (since, pace) = (run.since, run.pace(uid));
        let Some(ending) = run.endings.get_mut(uid) else { return };
        let state = match result {
            Ok(state) => state,
            Err(failure) => return ending.exit_check.failed(now, pace, Some(failure)),
        };
        ending.exit_check.done();
        let Some(pod) = self.pods.get(uid) else { return };
        let untouched = !ending.mark.was_sent() && !ending.end.was_sent();
        if !untouched || ending.way != Way::Stop || !had_exited(pod, state, since) {
            return;
        }
        ending.had_exited = true;
        ending.way = Way::Nobody;
        ending.mark.give_up();
        self.writer.append([record(&ending.pod, Intent::LeaveExited, since)]);
        let text = "all its containers had exited before the shutdown; its kubelet reports it";
        self.outbox.say(false, Some(&ending.pod), text);
    }
}
