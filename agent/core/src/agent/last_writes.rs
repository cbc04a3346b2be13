//! P4, and the phase wherever it is ours to write. (spec/node-agent.md §7.9)

use std::time::Duration;

use epilogue_common::outcome::{Failure, Outcome};

use super::Agent;
use super::marks::{PATCH_STATUS, record};
use super::outbox::Task;
use super::release::Release;
use crate::ending::attempt::{Verdict, verdict};
use crate::ending::patches;
use crate::ending::progress::Way;
use crate::pod::PodUid;
use crate::protocol::action::{Action, Purpose};
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::budget::Step;

/// So long nothing is started of a pod that was seen to be stopped: a kubelet needs more.
const PROOF_LASTS: Duration = Duration::from_millis(500);

impl Agent {
    /// Asks the runtime about every pod whose report did not come: where it proves that all has
    /// exited, the report is written in the kubelet's place.
    pub(super) fn look_at_the_rest(&mut self) {
        if !self.settings.runtime {
            return;
        }
        let Some(run) = &mut self.run else { return };
        if !matches!(run.release, Release::Holding) {
            return;
        }
        if std::mem::replace(&mut run.inspected, true) {
            return;
        }
        for ending in run.endings.values_mut() {
            if ending.is_awaited() && !ending.fail.is_wanted() {
                ending.inspect.want();
            }
        }
    }

    /// Sends the looks into the runtime that are due.
    pub(super) fn send_inspects(&mut self) {
        let Some(run) = &mut self.run else { return };
        for (uid, ending) in &mut run.endings {
            let due = !ending.reported && ending.inspect.is_due(&self.clock);
            if !due || !self.outbox.has_room_to_inspect() {
                continue;
            }
            ending.inspect.sent();
            self.outbox.send(Task::Inspect(uid.clone()), Action::InspectPod(ending.pod.clone()));
        }
    }

    pub(super) fn inspect_finished(&mut self, uid: &PodUid, result: Result<RuntimeState, Failure>) {
        if self.farewell_inspected(uid, &result) || self.past_inspected(uid, &result) {
            return;
        }
        let now = self.clock.monotonic();
        let Some(run) = &mut self.run else { return };
        let pace = run.pace(uid);
        let Some(ending) = run.endings.get_mut(uid) else { return };
        match result {
            Ok(state) if state.nothing_runs() => {
                ending.inspect.done();
                if ending.way == Way::Stop {
                    ending.end.done();
                }
                self.verified(uid, state);
            }
            Ok(_) => {
                ending.fail.drop_it();
                ending.inspect.failed(now, pace, None);
            }
            Err(failure) => ending.inspect.failed(now, pace, Some(&failure)),
        }
    }

    /// Writes the phases that are ours: under a dead kubelet as soon as the end is verified;
    /// beside a live one with the lever, and only at the end of the time there is.
    pub(super) fn send_fails(&mut self) {
        let now = self.clock.now();
        let lives = self.kubelet.lives();
        let Some(run) = &mut self.run else { return };
        // After the release a live kubelet is left to itself.
        let at_the_end = run.step >= Step::LastWrites && !run.is_released();
        let mut stale = false;
        for (uid, ending) in &mut run.endings {
            let looking = ending.read.is_open() || ending.inspect.is_open();
            if ending.reported || looking || !ending.fail.is_due(&self.clock) {
                continue;
            }
            if lives && !at_the_end {
                continue;
            }
            if !self.outbox.has_room() {
                break;
            }
            let Some(pod) = self.pods.get(uid) else {
                ending.acknowledge();
                continue;
            };
            // The phase is there; how the containers ended is the kubelet's to say.
            if pod.is_terminal() {
                ending.fail.give_up();
                continue;
            }
            // A kubelet that lives, or came and went, may have started containers since.
            let fresh = ending.proven_at.is_some_and(|at| now.monotonic < at + PROOF_LASTS);
            if !fresh {
                ending.inspect.want_again();
                stale = true;
                continue;
            }
            // A kubelet that came back starts what we stopped, unless it can't run again.
            let restarts = !pod.is_terminating() && !pod.cannot_run_again();
            if lives && ending.way == Way::Stop && restarts {
                continue;
            }
            if self.refusals.forbids(PATCH_STATUS) {
                ending.fail.give_up();
                continue;
            }
            if !self.refusals.may_ask(PATCH_STATUS, &self.clock) {
                break;
            }
            let body = patches::failed(pod, now.wall);
            ending.fail.sent();
            self.writer.append([record(&ending.pod, Intent::Fail, now.wall)]);
            let pod = ending.pod.clone();
            let action = Action::PatchStatus { pod, purpose: Purpose::Fail, body };
            self.outbox.send(Task::Fail(uid.clone()), action);
        }
        if stale {
            self.send_inspects();
        }
    }

    pub(super) fn fail_finished(&mut self, uid: &PodUid, result: &Outcome<()>) {
        self.count_patch(Purpose::Fail, result);
        let refusal = self.hear_of_right(PATCH_STATUS, uid, result);
        let now = self.clock.monotonic();
        let Some(run) = &mut self.run else { return };
        let pace = run.pace(uid);
        let Some(ending) = run.endings.get_mut(uid) else { return };
        let pod = ending.pod.clone();
        let Err(failure) = result else {
            ending.fail.done();
            ending.acknowledge();
            self.writer.append([Record::Acknowledged { uid: uid.clone(), intent: Intent::Fail }]);
            return;
        };
        match verdict(failure) {
            Verdict::Gone => {
                ending.fail.give_up();
                ending.acknowledge();
            }
            // An attempt without an answer may have been carried out, and what was proven of the
            // runtime is of before it: looks at both come first.
            Verdict::ReadAgain => {
                ending.fail.met_change();
                ending.read.want_again();
                ending.inspect.want_again();
            }
            Verdict::Retry => {
                ending.fail.failed(now, pace, Some(failure));
                ending.read.want_again();
                ending.inspect.want_again();
            }
            Verdict::Skip => {
                ending.fail.give_up();
                let text = format!("the API refuses its phase: {failure}");
                self.outbox.say(true, Some(&pod), text);
            }
            Verdict::Refused => {
                if ending.fail.refused(now, pace, refusal) {
                    let text = format!("the API refuses its phase: {failure}");
                    self.outbox.say(true, Some(&pod), text);
                }
            }
        }
    }
}
