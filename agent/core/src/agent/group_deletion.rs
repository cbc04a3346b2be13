//! Runs P2: terminates the priority groups in sequence, by deletion or through the runtime.
//! ([SD13], [SD14])

use std::time::Duration;

use epilogue_common::outcome::Failure;

use super::Agent;
use super::calls::Part;
use super::notices::POD_STOPPED;
use super::shutdown::ActiveStage;
use crate::pod::{PodUid, PodView};
use crate::protocol::action::Reach;
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::budget::Step;
use crate::shutdown::plan::{Stage, TerminationPlan};
use crate::termination::attempt::Attempt;
use crate::termination::progress::{PodTermination, Terminator, all_known_exited, would_succeed};
use crate::termination::stop_timeout;

/// Whether the agent has to terminate the pod and has not begun.
fn is_to_end(termination: &PodTermination) -> bool {
    let by_us = matches!(
        termination.terminator,
        Terminator::Delete | Terminator::Deadline | Terminator::Stop
    );
    let checked = !termination.exit_check.is_open() || termination.mark.was_sent();
    checked && by_us && !termination.reported && !termination.end.is_wanted()
}

impl Agent {
    /// Advances the priority groups.
    pub(super) fn advance_group_deletion(&mut self) {
        let Some(shutdown) = &mut self.shutdown else { return };
        let over = shutdown.stage.as_ref().is_none_or(|stage| stage.is_over(shutdown, &self.clock));
        if over {
            shutdown.stage = None;
            // No termination begins unless its report can still arrive in time.
            if shutdown.step < Step::LastWrites && shutdown.may_end(&self.clock) {
                self.open_stage();
            }
        }
        let Some(shutdown) = &mut self.shutdown else { return };
        shutdown.deletions_over =
            shutdown.stage.is_none() && shutdown.found.mode != crate::shutdown::Mode::Assist;
        self.send_ends();
    }

    /// Begins the next priority group. It plans the remaining groups anew. So they share the time
    /// that one group left over, and the time that a freeze cost.
    fn open_stage(&mut self) {
        let now = self.clock.monotonic();
        let Some(shutdown) = &self.shutdown else { return };
        let Some(priority_groups) = &self.settings.priority_groups else { return };
        let to_end = shutdown.terminations.iter().filter(|(_, termination)| is_to_end(termination));
        let pods: Vec<&PodView> = to_end.filter_map(|(uid, _)| self.pods.get(uid)).collect();
        let elapsed = shutdown.elapsed(now);
        let until = if elapsed < shutdown.ends.kill {
            shutdown.ends.kill
        } else {
            shutdown.ends.last_writes
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
        self.calls.log(false, None, text);
        self.start_stage(stage);
        // The intent goes to the disk before the write, or at the latest with it.
        self.write_journal();
    }

    fn start_stage(&mut self, stage: Stage) {
        let now = self.clock.now();
        let Some(shutdown) = &mut self.shutdown else { return };
        let pods = stage.stops.iter().map(|stop| stop.uid.clone()).collect();
        let mut intents = Vec::new();
        for stop in stage.stops {
            let Some(termination) = shutdown.terminations.get_mut(&stop.uid) else { continue };
            termination.end = Attempt::wanted();
            termination.grace_seconds = stop.grace_seconds;
            intents.push(Record::intent(&termination.pod, Intent::End, now.wall));
        }
        shutdown.stage = Some(ActiveStage {
            ends_at: now.monotonic + Duration::from_millis(stage.share_ms),
            pods,
        });
        shutdown.mode_is_final = true;
        self.writer.append(intents);
    }

    /// Sends the terminations that are due, after each pod's mark. A termination through the API
    /// waits until the API has settled the mark. If the mark fails, a deletion would fail too, or
    /// would lack its cause. The runtime's stop waits only for the time for marks, because the mark
    /// is repeated with the phase.
    fn send_ends(&mut self) {
        let Some(shutdown) = &mut self.shutdown else { return };
        let marks_over = self.clock.reached(shutdown.at(shutdown.ends.pre_mark));
        let may_end = shutdown.may_end(&self.clock);
        let rights = [Terminator::Delete, Terminator::Deadline].map(Terminator::right);
        let rights: Vec<_> = rights.into_iter().flatten().collect();
        for uid in &self.refusals.in_turn(&rights, shutdown.order.iter()) {
            let Some(termination) = shutdown.terminations.get_mut(uid) else { continue };
            let enough = termination.terminator == Terminator::Stop
                && marks_over
                && termination.mark.was_sent();
            // There was no time for the mark; a deletion without it would not state the reason.
            if termination.end.is_open() && !termination.end.was_sent() && !may_end {
                termination.end.give_up();
                continue;
            }
            let marked = !termination.mark.is_open() || enough;
            if termination.reported || !marked || !termination.end.is_due(&self.clock) {
                continue;
            }
            let Some(pod) = self.pods.get(uid) else {
                termination.acknowledge();
                continue;
            };
            let right = termination.terminator.right();
            match (termination.terminator, right) {
                (Terminator::Delete, _) if is_terminating_already(pod, termination) => {
                    termination.end.done();
                }
                (Terminator::Delete | Terminator::Deadline, Some(right)) => {
                    if !self.calls.has_room() {
                        return;
                    }
                    if self.refusals.forbids(right) {
                        termination.end.give_up();
                        continue;
                    }
                    if !self.refusals.may_ask(right, &self.clock) {
                        return;
                    }
                    self.calls.end(Part::Shutdown, termination, pod);
                }
                (Terminator::Stop, _) => {
                    let wait = stop_timeout::in_haste(&termination.end);
                    let grace = termination.grace_seconds;
                    termination.end.sent();
                    self.calls.stop(Part::Shutdown, pod, grace, Reach::Pod, wait);
                }
                _ => {}
            }
        }
    }

    /// Records that the pod's termination has an effect.
    pub(super) fn note_ended(&mut self, uid: &PodUid, text: &str) {
        self.writer.append([Record::acknowledged(uid, Intent::End)]);
        let Some((termination, _)) = self.termination(uid) else { return };
        if !std::mem::replace(&mut termination.event_sent, true) {
            let pod = termination.pod.clone();
            self.emit_pod_event(pod, POD_STOPPED, text);
        }
    }

    /// Takes the runtime's response to a stop.
    pub(super) fn stop_finished(&mut self, uid: &PodUid, result: Result<RuntimeState, Failure>) {
        let now = self.clock.monotonic();
        let Some((termination, pace)) = self.termination(uid) else {
            return self.kept_stop_finished(uid, &result);
        };
        let pod = termination.pod.clone();
        let trouble = match result {
            Ok(state) if state.nothing_runs() => {
                termination.end.done();
                self.note_ended(uid, "Stopped by the agent: the node shuts down.");
                self.verified(uid, state);
                None
            }
            Ok(_) => {
                termination.end.failed(now, pace, None);
                Some("it still runs after its stop; it is stopped again".to_owned())
            }
            Err(failure) => {
                termination.end.failed(now, pace, Some(&failure));
                Some(format!("the runtime does not stop it: {failure}"))
            }
        };
        if let Some(text) = trouble {
            self.calls.log(true, Some(&pod), text);
        }
        // Under another mode than at the start, another component goes on with the pod.
        if let Some(pod) = self.pods.get(uid).cloned() {
            self.enlist(&pod);
        }
    }

    /// Decides whether `Failed` is true, after the runtime has proved that nothing of the pod runs.
    pub(super) fn verified(&mut self, uid: &PodUid, state: RuntimeState) {
        let now = self.clock.monotonic();
        let Some(shutdown) = &mut self.shutdown else { return };
        let (Some(termination), Some(pod)) =
            (shutdown.terminations.get_mut(uid), self.pods.get(uid))
        else {
            return;
        };
        let stopped_by_us = termination.terminator == Terminator::Stop;
        if would_succeed(pod, &state) {
            termination.succeeds = true;
            let text = "all its containers exited with 0; its result is left to the kubelet";
            self.calls.log(false, Some(&termination.pod), text);
        } else if !state.proves_end(pod.has_run) {
            termination.fail.give_up();
            let text = "the runtime does not know it though it has run: nothing is written; is \
                        --runtime-endpoint the kubelet's?";
            self.calls.log(true, Some(&termination.pod), text);
        } else if stopped_by_us || all_known_exited(pod, &state) {
            termination.fail.want();
        }
        termination.proven_at = Some(now);
        termination.runtime = Some(state);
    }
}

/// Whether another client deleted the pod with a grace that is not longer. ([SD14])
fn is_terminating_already(pod: &PodView, termination: &PodTermination) -> bool {
    pod.deletion_grace_seconds.is_some_and(|grace| grace <= termination.grace_seconds)
}
