//! Runs P2: terminates the priority groups in sequence, by deletion or through the runtime.
//! ([SD13], [SD14])

use std::time::Duration;

use super::super::disruptions::Disruptions;
use super::super::facts::Facts;
use super::super::out::Out;
use super::super::pod_steps::Why;
use super::super::writer::Recorded;
use super::answers::note_shown;
use super::{ActiveStage, Shutdown};
use crate::pod::PodView;
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::Mode;
use crate::shutdown::budget::Step;
use crate::shutdown::plan::{Stage, TerminationPlan};
use crate::termination::attempt::Attempt;
use crate::termination::progress::{PodTermination, Terminator};

/// Whether the agent has to terminate the pod and has not begun.
fn is_to_end(termination: &PodTermination) -> bool {
    let by_us =
        matches!(termination.end.by, Terminator::Delete | Terminator::Deadline | Terminator::Stop);
    let checked =
        !termination.mark.exit_check.is_open() || termination.mark.write.may_have_applied();
    checked && by_us && !termination.is_reported() && !termination.end.call.is_wanted()
}

impl Shutdown {
    /// Advances the priority groups. What is given up ends its group at once.
    pub(super) fn advance_groups(
        &mut self,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        loop {
            if self.stage_is_over(facts, disruptions) {
                self.work.stage = None;
                // No termination begins unless its report can still arrive in time.
                if self.work.step < Step::LastWrites && self.may_end(&facts.clock) {
                    self.open_stage(facts, out, disruptions);
                }
            }
            self.work.deletions_over =
                self.work.stage.is_none() && self.mode.found.mode != Mode::Assist;
            self.send_ends(facts, out, disruptions);
            if self.work.stage.is_none() || !self.stage_is_over(facts, disruptions) {
                return;
            }
        }
    }

    /// Whether no group is under way, or only one that is over.
    fn stage_is_over(&self, facts: &Facts, disruptions: &Disruptions) -> bool {
        let stage = self.work.stage.as_ref();
        stage.is_none_or(|stage| stage.is_over(disruptions, &facts.clock))
    }

    /// Begins the next priority group. It plans the remaining groups anew. So they share the time
    /// that one group left over, and the time that a freeze cost.
    fn open_stage(&mut self, facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
        let now = facts.clock.monotonic();
        let Some(priority_groups) = facts.priority_groups() else { return };
        let to_end = disruptions.covered().filter(|termination| is_to_end(termination));
        let pods: Vec<&PodView> = to_end.filter_map(|it| facts.pods.get(&it.pod.uid)).collect();
        let elapsed = self.window.elapsed(now);
        let until = if elapsed < self.window.ends.kill {
            self.window.ends.kill
        } else {
            self.window.ends.last_writes
        };
        let left = until.saturating_sub(elapsed);
        let plan = TerminationPlan::new(priority_groups, &pods, left);
        let stages = plan.stages.len();
        let Some(stage) = plan.stages.into_iter().next() else { return };
        let text = format!(
            "terminates {} pods from priority {} on within {} ms; {} priority groups left ({:?})",
            stage.stops.len(),
            stage.priority,
            stage.share_ms,
            stages - 1,
            plan.fit,
        );
        out.calls.log(false, None, text);
        self.start_stage(stage, facts, out, disruptions);
        // The intent goes to the disk before a stop, and at the latest with a write to the API.
        out.write_journal(&facts.clock);
    }

    fn start_stage(
        &mut self,
        stage: Stage,
        facts: &Facts,
        out: &mut Out,
        disruptions: &mut Disruptions,
    ) {
        let now = facts.clock.now();
        let pods = stage.stops.iter().map(|stop| stop.uid.clone()).collect();
        let mut intents = Vec::new();
        for stop in stage.stops {
            let Some(termination) = disruptions.covering_mut(&stop.uid) else { continue };
            termination.end.call = Attempt::wanted();
            termination.end.grace_seconds = stop.grace_seconds;
            intents.push(Record::intent(&termination.pod, Intent::End, now.wall));
        }
        self.work.stage = Some(ActiveStage {
            ends_at: now.monotonic + Duration::from_millis(stage.share_ms),
            recorded: Recorded {
                at: now.wall,
                since: now.monotonic,
                until: out.journal.append(intents),
            },
            pods,
        });
        self.mode.is_final = true;
    }

    /// Sends the terminations that are due, after each pod's mark. A termination through the API
    /// waits until the API has settled the mark. If the mark fails, a deletion would fail too, or
    /// would lack its cause. The runtime's stop waits only for the time for marks, because the mark
    /// is repeated with the phase.
    ///
    /// A stop also waits for its record: the API shows nothing of it. After a cancel the next
    /// process would take the mark back from a pod of which only we knew that it was stopped. A
    /// disk that was too slow for the shutdown's first record, or that refuses, holds up no stop.
    /// ([AP17])
    fn send_ends(&mut self, facts: &Facts, out: &mut Out, disruptions: &mut Disruptions) {
        let marks_over = facts.clock.reached(self.window.at(self.window.ends.pre_mark));
        let may_end = self.may_end(&facts.clock);
        let disk_works = out.journal.is_durable(self.intent_mark);
        let unrecorded =
            self.work.stage.as_ref().filter(|_| may_end && disk_works).is_some_and(|stage| {
                stage.recorded.is_awaited(self.window.ends.intent, &facts.clock, &out.journal)
            });
        let rights = [Terminator::Delete, Terminator::Deadline].map(Terminator::right);
        let rights: Vec<_> = rights.into_iter().flatten().collect();
        for uid in &out.refusals.in_turn(&rights, self.order.iter()) {
            let Some(termination) = disruptions.covering_mut(uid) else { continue };
            let enough = termination.end.by == Terminator::Stop
                && marks_over
                && (termination.mark.write.failures() > 0
                    || termination.mark.write.may_have_applied());
            // There was no time for the mark; a deletion without it would not state the reason.
            if termination.end.call.is_open()
                && !termination.end.call.may_have_applied()
                && !may_end
            {
                termination.end.call.give_up();
                continue;
            }
            let marked = !termination.mark.write.is_awaited() || enough;
            let reads = termination.end.by != Terminator::Stop && termination.read.is_open();
            if termination.is_reported()
                || !marked
                || reads
                || !termination.end.call.is_due(&facts.clock)
            {
                continue;
            }
            let Some(pod) = facts.pods.get(uid) else {
                termination.acknowledge();
                continue;
            };
            let right = termination.end.by.right();
            match (termination.end.by, right) {
                (Terminator::Delete, _) if is_terminating_already(pod, termination) => {
                    note_shown(termination, out);
                }
                (Terminator::Delete | Terminator::Deadline, Some(right)) => {
                    if !out.calls.has_room() {
                        return;
                    }
                    if out.refusals.forbids_for(right, uid) {
                        termination.end.call.give_up();
                        continue;
                    }
                    if !out.refusals.may_ask(right, &facts.clock) {
                        return;
                    }
                    termination.send_end(pod, Why::Shutdown, out);
                }
                (Terminator::Stop, _) if unrecorded => {}
                (Terminator::Stop, _) => termination.send_end(pod, Why::Shutdown, out),
                _ => {}
            }
        }
    }
}

/// Whether the agent or another client deleted the pod with a grace that is not longer. ([SD14])
fn is_terminating_already(pod: &PodView, termination: &PodTermination) -> bool {
    pod.deletion_grace_seconds.is_some_and(|grace| grace <= termination.end.grace_seconds)
}
