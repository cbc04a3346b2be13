//! Runs P4, and writes the phase wherever the agent has to. ([AP2], [AP3])

use super::super::calls::Verb;
use super::super::disruptions::Disruptions;
use super::super::facts::Facts;
use super::super::out::Out;
use super::super::pod_steps::Why;
use super::{Release, Shutdown};
use crate::pod::PodView;
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::budget::Step;
use crate::termination::progress::{PATCH_STATUS, PodTermination, Terminator};

impl Shutdown {
    /// Asks the runtime about every pod without a report. Where it proves that all containers have
    /// exited, the agent writes the report in the kubelet's place.
    pub(super) fn inspect_the_rest(&mut self, facts: &Facts, disruptions: &mut Disruptions) {
        let may = facts.settings.runtime && matches!(self.release, Release::Holding);
        if !may || std::mem::replace(&mut self.work.inspected, true) {
            return;
        }
        for entry in disruptions.iter_mut() {
            let had_exited = entry.had_exited;
            let Some(termination) = &mut entry.shutdown else { continue };
            let ours = !had_exited && !termination.report.write.is_wanted();
            if termination.is_awaited() && ours {
                termination.report.inspect.want();
            }
        }
    }

    /// Writes the phases that are ours. Under a dead kubelet the agent writes as soon as the end is
    /// verified. Alongside a live kubelet it writes only at the end of the available time.
    pub(super) fn send_fails(
        &mut self,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        let lives = facts.kubelet.lives();
        // After the release the agent leaves a live kubelet alone.
        let at_the_end = self.work.step >= Step::LastWrites && !self.is_released();
        let mut stale = false;
        let uids = disruptions.covered().map(|termination| &termination.pod.uid);
        for uid in &out.refusals.in_turn(&[PATCH_STATUS], uids) {
            let Some(termination) = disruptions.covering_mut(uid) else { continue };
            let reading = termination.read.is_open() || termination.report.inspect.is_open();
            if termination.is_reported()
                || reading
                || !termination.report.write.is_due(&facts.clock)
            {
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
                termination.report.write.give_up();
                continue;
            }
            // A kubelet that lives, or came and went, may have started containers since.
            if !termination.may_fail(&facts.clock) {
                stale = true;
                continue;
            }
            if lives && restarts(pod, termination) {
                continue;
            }
            if out.refusals.forbids_for(PATCH_STATUS, uid) {
                termination.report.write.give_up();
                continue;
            }
            if !out.refusals.may_ask(PATCH_STATUS, &facts.clock) {
                break;
            }
            let at = facts.clock.now().wall;
            out.journal.append([Record::intent(&termination.pod, Intent::Fail, at)]);
            termination.send_fail(pod, Why::Shutdown, &facts.clock, out);
        }
        if stale {
            send_inspects(facts, out, disruptions);
        }
    }
}

/// Sends the runtime checks that are due.
pub(super) fn send_inspects(facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
    for termination in disruptions.covered_mut().filter(|termination| !termination.is_reported()) {
        termination.ask(Verb::Inspect, Why::Shutdown, &facts.clock, out);
    }
}

/// Whether a kubelet that lives starts the pod's containers again: it was only stopped, or the API
/// did not take its end.
fn restarts(pod: &PodView, termination: &PodTermination) -> bool {
    let ends = match termination.end.by {
        Terminator::Stop => false,
        Terminator::Delete | Terminator::Deadline => termination.end.call.is_done(),
        Terminator::Kubelet | Terminator::None => true,
    };
    !ends && !pod.is_to_end() && !pod.ends_with_its_sandbox()
}
