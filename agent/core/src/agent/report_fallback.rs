//! Runs P4, and writes the phase wherever the agent has to. ([AP2], [AP3])

use std::time::Duration;

use epilogue_common::outcome::Failure;

use super::Agent;
use super::calls::{Part, Verb};
use super::shutdown::Release;
use crate::pod::PodUid;
use crate::protocol::action::Purpose;
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::budget::Step;
use crate::termination::patches;
use crate::termination::progress::{PATCH_STATUS, Terminator};

/// How long a stopped pod certainly has no new container: a kubelet takes longer to start one.
const PROOF_LASTS: Duration = Duration::from_millis(500);

impl Agent {
    /// Asks the runtime about every pod without a report. Where it proves that all containers have
    /// exited, the agent writes the report in the kubelet's place.
    pub(super) fn inspect_the_rest(&mut self) {
        if !self.settings.runtime {
            return;
        }
        let Some(shutdown) = &mut self.shutdown else { return };
        if !matches!(shutdown.release, Release::Holding) {
            return;
        }
        if std::mem::replace(&mut shutdown.inspected, true) {
            return;
        }
        for termination in shutdown.terminations.values_mut() {
            if termination.is_awaited() && !termination.fail.is_wanted() {
                termination.inspect.want();
            }
        }
    }

    /// Sends the runtime checks that are due.
    pub(super) fn send_inspects(&mut self) {
        let Some(shutdown) = &mut self.shutdown else { return };
        for termination in shutdown.terminations.values_mut() {
            if !termination.reported {
                let (what, inspect) = ((Part::Shutdown, Verb::Inspect), &mut termination.inspect);
                self.calls.inspect(what, &termination.pod, inspect, &self.clock);
            }
        }
    }

    pub(super) fn inspect_finished(&mut self, uid: &PodUid, result: Result<RuntimeState, Failure>) {
        let now = self.clock.monotonic();
        let Some((termination, pace)) = self.termination(uid) else { return };
        match result {
            Ok(state) if state.nothing_runs() => {
                termination.inspect.done();
                if termination.terminator == Terminator::Stop {
                    termination.end.done();
                }
                self.verified(uid, state);
            }
            Ok(_) => {
                termination.fail.drop_it();
                termination.inspect.failed(now, pace, None);
            }
            Err(failure) => termination.inspect.failed(now, pace, Some(&failure)),
        }
    }

    /// Writes the phases that are ours. Under a dead kubelet the agent writes as soon as the end is
    /// verified. Alongside a live kubelet it writes only at the end of the available time.
    pub(super) fn send_fails(&mut self) {
        let now = self.clock.now();
        let lives = self.kubelet.lives();
        let Some(shutdown) = &mut self.shutdown else { return };
        // After the release the agent leaves a live kubelet alone.
        let at_the_end = shutdown.step >= Step::LastWrites && !shutdown.is_released();
        let mut stale = false;
        for uid in &self.refusals.in_turn(&[PATCH_STATUS], shutdown.terminations.keys()) {
            let Some(termination) = shutdown.terminations.get_mut(uid) else { continue };
            let reading = termination.read.is_open() || termination.inspect.is_open();
            if termination.reported || reading || !termination.fail.is_due(&self.clock) {
                continue;
            }
            if lives && !at_the_end {
                continue;
            }
            if !self.calls.has_room() {
                break;
            }
            let Some(pod) = self.pods.get(uid) else {
                termination.acknowledge();
                continue;
            };
            // The phase is there; only the kubelet reports how the containers ended.
            if pod.is_terminal() {
                termination.fail.give_up();
                continue;
            }
            // A kubelet that lives, or came and went, may have started containers since.
            let fresh = termination.proven_at.is_some_and(|at| now.monotonic < at + PROOF_LASTS);
            if !fresh {
                termination.inspect.want_again();
                stale = true;
                continue;
            }
            // A kubelet that came back restarts what we stopped, unless the pod can't run again.
            let restarts = !pod.is_terminating() && !pod.cannot_run_again();
            if lives && termination.terminator == Terminator::Stop && restarts {
                continue;
            }
            if self.refusals.forbids(PATCH_STATUS) {
                termination.fail.give_up();
                continue;
            }
            if !self.refusals.may_ask(PATCH_STATUS, &self.clock) {
                break;
            }
            let body = patches::failed(pod, now.wall);
            termination.fail.sent();
            self.writer.append([Record::intent(&termination.pod, Intent::Fail, now.wall)]);
            self.calls.patch(Part::Shutdown, Purpose::Fail, &termination.pod, body);
        }
        if stale {
            self.send_inspects();
        }
    }
}
