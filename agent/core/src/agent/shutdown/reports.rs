//! Runs P4, and writes the phase wherever the agent has to. ([AP2], [AP3])

use std::time::Duration;

use super::super::calls::{Part, Verb};
use super::super::facts::Facts;
use super::super::out::Out;
use super::{Release, Shutdown};
use crate::protocol::action::Purpose;
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::budget::Step;
use crate::termination::patches;
use crate::termination::progress::{PATCH_STATUS, Terminator};

/// How long a stopped pod certainly has no new container: a kubelet takes longer to start one.
const PROOF_LASTS: Duration = Duration::from_millis(500);

impl Shutdown {
    /// Asks the runtime about every pod without a report. Where it proves that all containers have
    /// exited, the agent writes the report in the kubelet's place.
    pub(super) fn inspect_the_rest(&mut self, facts: &Facts) {
        let may = facts.settings.runtime && matches!(self.release, Release::Holding);
        if !may || std::mem::replace(&mut self.inspected, true) {
            return;
        }
        for termination in self.terminations.values_mut() {
            if termination.is_awaited() && !termination.fail.is_wanted() {
                termination.inspect.want();
            }
        }
    }

    /// Sends the runtime checks that are due.
    pub(super) fn send_inspects(&mut self, facts: &Facts, out: &mut Out) {
        for termination in self.terminations.values_mut() {
            if !termination.reported {
                let (what, inspect) = ((Part::Shutdown, Verb::Inspect), &mut termination.inspect);
                out.calls.inspect(what, &termination.pod, inspect, &facts.clock);
            }
        }
    }

    /// Writes the phases that are ours. Under a dead kubelet the agent writes as soon as the end is
    /// verified. Alongside a live kubelet it writes only at the end of the available time.
    pub(super) fn send_fails(&mut self, facts: &Facts, out: &mut Out) {
        let now = facts.clock.now();
        let lives = facts.kubelet.lives();
        // After the release the agent leaves a live kubelet alone.
        let at_the_end = self.step >= Step::LastWrites && !self.is_released();
        let mut stale = false;
        for uid in &out.refusals.in_turn(&[PATCH_STATUS], self.terminations.keys()) {
            let Some(termination) = self.terminations.get_mut(uid) else { continue };
            let reading = termination.read.is_open() || termination.inspect.is_open();
            if termination.reported || reading || !termination.fail.is_due(&facts.clock) {
                continue;
            }
            if lives && !at_the_end {
                continue;
            }
            if !out.calls.has_room() {
                break;
            }
            let Some(pod) = facts.pods.get(uid) else {
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
            if out.refusals.forbids_for(PATCH_STATUS, uid) {
                termination.fail.give_up();
                continue;
            }
            if !out.refusals.may_ask(PATCH_STATUS, &facts.clock) {
                break;
            }
            let body = patches::failed(pod, now.wall);
            termination.fail.sent();
            out.journal.append([Record::intent(&termination.pod, Intent::Fail, now.wall)]);
            out.calls.patch(Part::Shutdown, Purpose::Fail, &termination.pod, body);
        }
        if stale {
            self.send_inspects(facts, out);
        }
    }
}
