//! P2: the bands, one after the other, by deletion or through the runtime.
//! (spec/node-agent.md SD13, SD14, §9.4)

use std::time::Duration;

use epilogue_common::outcome::{Failure, Outcome};

use super::Agent;
use super::notices::POD_STOPPED;
use super::outbox::Task;
use super::run::Run;
use crate::ending::attempt::{Attempt, Verdict, verdict};
use crate::ending::clock::Clock;
use crate::ending::progress::{Ending, Way, all_known_exited, would_succeed};
use crate::ending::{patches, patience};
use crate::pod::{PodUid, PodView};
use crate::protocol::action::{Action, Reach};
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::{Intent, Record};
use crate::shutdown::budget::Step;
use crate::shutdown::plan::{KillPlan, Stage};

pub(super) const DELETE: &str = "delete pods";
pub(super) const PATCH_PODS: &str = "patch pods";

/// A band, or several together, under way.
#[derive(Debug)]
pub(super) struct StageRun {
    ends_at: Duration,
    pods: Vec<PodUid>,
}

impl StageRun {
    /// Whether all its pods have ended, or its share is over.
    fn is_over(&self, run: &Run, clock: &Clock) -> bool {
        let ended = |uid| {
            run.endings.get(uid).is_none_or(|ending| {
                let stopped = ending.way == Way::Stop && ending.end.is_done();
                ending.reported || stopped || ending.end.is_given_up() || ending.end.is_held_back()
            })
        };
        self.pods.iter().all(ended) || clock.reached(self.ends_at)
    }
}

/// Whether the agent is to end the pod and has not begun.
fn is_to_end(ending: &Ending) -> bool {
    let by_us = matches!(ending.way, Way::Delete | Way::Deadline | Way::Stop);
    let checked = !ending.exit_check.is_open() || ending.mark.was_sent();
    checked && by_us && !ending.reported && !ending.end.is_wanted()
}

impl Agent {
    /// Goes on with the bands.
    pub(super) fn kill_on(&mut self) {
        let Some(run) = &mut self.run else { return };
        let over = run.stage.as_ref().is_none_or(|stage| stage.is_over(run, &self.clock));
        if over {
            run.stage = None;
            // No kill begins whose report could not be waited for.
            if run.step < Step::LastWrites && run.may_end(&self.clock) {
                self.open_stage();
            }
        }
        let Some(run) = &mut self.run else { return };
        run.kills_over = run.stage.is_none() && run.found.mode != crate::shutdown::Mode::Assist;
        self.send_ends();
    }

    /// Begins the next band. The plan is made anew for the bands still to come, so that what one
    /// left over is the next one's, and a freeze is everyone's.
    fn open_stage(&mut self) {
        let now = self.clock.monotonic();
        let Some(run) = &self.run else { return };
        let Some(bands) = &self.settings.bands else { return };
        let to_end = run.endings.iter().filter(|(_, ending)| is_to_end(ending));
        let pods: Vec<&PodView> = to_end.filter_map(|(uid, _)| self.pods.get(uid)).collect();
        let elapsed = run.elapsed(now);
        let until = if elapsed < run.ends.kill { run.ends.kill } else { run.ends.last_writes };
        let left = until.saturating_sub(elapsed);
        let plan = KillPlan::new(bands, &pods, left);
        let stages = plan.stages.len();
        let Some(stage) = plan.stages.into_iter().next() else { return };
        let text = format!(
            "ends {} pods from priority {} on within {} ms; {} bands left ({:?})",
            stage.stops.len(),
            stage.priority,
            stage.share_ms,
            stages - 1,
            plan.fit,
        );
        self.outbox.say(false, None, text);
        self.start_stage(stage);
        // The intent goes to the disk before, or at least with, what is intended.
        self.write_journal();
    }

    fn start_stage(&mut self, stage: Stage) {
        let now = self.clock.now();
        let Some(run) = &mut self.run else { return };
        let pods = stage.stops.iter().map(|stop| stop.uid.clone()).collect();
        let mut intents = Vec::new();
        for stop in stage.stops {
            let Some(ending) = run.endings.get_mut(&stop.uid) else { continue };
            ending.end = Attempt::wanted();
            ending.grace_seconds = stop.grace_seconds;
            intents.push(super::marks::record(&ending.pod, Intent::End, now.wall));
        }
        run.stage =
            Some(StageRun { ends_at: now.monotonic + Duration::from_millis(stage.share_ms), pods });
        run.mode_is_final = true;
        self.writer.append(intents);
    }

    /// Sends the ends that are due. A pod's mark goes before: an end through the API waits until
    /// the API has settled it, since where a mark does not get through a deletion would not, or
    /// would leave an end without its cause. The runtime's stop waits for it no longer than the
    /// time for marks, because its mark goes with the phase once more.
    fn send_ends(&mut self) {
        let Some(run) = &mut self.run else { return };
        let marks_over = self.clock.reached(run.at(run.ends.pre_mark));
        let may_end = run.may_end(&self.clock);
        for uid in &run.order {
            let Some(ending) = run.endings.get_mut(uid) else { continue };
            let enough = ending.way == Way::Stop && marks_over && ending.mark.was_sent();
            // Its mark had no time; a deletion without one would tell nothing of the reason.
            if ending.end.is_open() && !ending.end.was_sent() && !may_end {
                ending.end.give_up();
                continue;
            }
            let marked = !ending.mark.is_open() || enough;
            if ending.reported || !marked || !ending.end.is_due(&self.clock) {
                continue;
            }
            let Some(pod) = self.pods.get(uid) else {
                ending.acknowledge();
                continue;
            };
            let (task, action) = match ending.way {
                Way::Delete if is_ending_already(pod, ending) => {
                    ending.end.done();
                    continue;
                }
                Way::Delete | Way::Deadline if !self.outbox.has_room() => return,
                Way::Delete | Way::Deadline if self.refusals.forbids(verb_of(ending)) => {
                    ending.end.give_up();
                    continue;
                }
                Way::Delete | Way::Deadline
                    if !self.refusals.may_ask(verb_of(ending), &self.clock) =>
                {
                    return;
                }
                Way::Delete => (Task::End(uid.clone()), deletion(ending)),
                Way::Deadline => {
                    let body = patches::deadline(pod);
                    let action = Action::PatchPod { pod: ending.pod.clone(), body };
                    (Task::End(uid.clone()), action)
                }
                Way::Stop => (Task::Stop(uid.clone()), stop(ending, pod)),
                Way::Kubelet | Way::Nobody => continue,
            };
            ending.end.sent();
            self.outbox.send(task, action);
        }
    }

    pub(super) fn end_finished(&mut self, uid: &PodUid, result: &Outcome<()>) {
        let now = self.clock.monotonic();
        match result {
            Ok(()) => self.status.deletions.done += 1,
            Err(_) => self.status.deletions.failed += 1,
        }
        let Some(ending) = self.run.as_ref().and_then(|run| run.endings.get(uid)) else { return };
        if ending.way == Way::Stop {
            // The mode has changed since: now the runtime is asked.
            return;
        }
        let refusal = self.hear_of_right(verb_of(ending), uid, result);
        let Some(run) = &mut self.run else { return };
        let pace = run.pace(uid);
        let Some(ending) = run.endings.get_mut(uid) else { return };
        let pod = ending.pod.clone();
        match result {
            Ok(()) => {
                ending.end.done();
                let tell = !std::mem::replace(&mut ending.told, true);
                self.writer
                    .append([Record::Acknowledged { uid: uid.clone(), intent: Intent::End }]);
                if tell {
                    self.tell_pod(pod, POD_STOPPED, "Ended by the agent: the node shuts down.");
                }
            }
            Err(failure) => match verdict(failure) {
                // A conflict is the UID's: the pod that was meant is gone. (§9.6)
                Verdict::Gone | Verdict::ReadAgain => {
                    ending.end.give_up();
                    ending.acknowledge();
                }
                Verdict::Skip => {
                    ending.end.give_up();
                    let text = format!("the API refuses its end, it is left: {failure}");
                    self.outbox.say(true, Some(&pod), text);
                }
                Verdict::Refused => {
                    if ending.end.refused(now, pace, refusal) {
                        let text = format!("the API refuses its end, it is left: {failure}");
                        self.outbox.say(true, Some(&pod), text);
                    }
                }
                Verdict::Retry => ending.end.failed(now, pace, Some(failure)),
            },
        }
    }

    /// The runtime has stopped the pod, or says why not.
    pub(super) fn stop_finished(&mut self, uid: &PodUid, result: Result<RuntimeState, Failure>) {
        let now = self.clock.monotonic();
        let Some(run) = &mut self.run else { return };
        let pace = run.pace(uid);
        let Some(ending) = run.endings.get_mut(uid) else { return };
        let pod = ending.pod.clone();
        match result {
            Ok(state) if state.nothing_runs() => {
                ending.end.done();
                let tell = !std::mem::replace(&mut ending.told, true);
                self.writer
                    .append([Record::Acknowledged { uid: uid.clone(), intent: Intent::End }]);
                if tell {
                    self.tell_pod(pod, POD_STOPPED, "Stopped by the agent: the node shuts down.");
                }
                self.verified(uid, state);
            }
            Ok(_) => {
                ending.end.failed(now, pace, None);
                let text = "it runs on after its stop; it is stopped again";
                self.outbox.say(true, Some(&pod), text);
            }
            Err(failure) => {
                ending.end.failed(now, pace, Some(&failure));
                self.outbox.say(
                    true,
                    Some(&pod),
                    format!("the runtime does not stop it: {failure}"),
                );
            }
        }
        // Under another mode than at its beginning somebody else goes on with it.
        if let Some(pod) = self.pods.get(uid).cloned() {
            self.enlist(&pod);
        }
    }

    /// The runtime proves that nothing of the pod runs: is `Failed` true of it?
    pub(super) fn verified(&mut self, uid: &PodUid, state: RuntimeState) {
        let now = self.clock.monotonic();
        let Some(run) = &mut self.run else { return };
        let (Some(ending), Some(pod)) = (run.endings.get_mut(uid), self.pods.get(uid)) else {
            return;
        };
        let stopped_by_us = ending.way == Way::Stop;
        if would_succeed(pod, &state) {
            ending.succeeds = true;
            let text = "all its containers exited with 0; its result is left to the kubelet";
            self.outbox.say(false, Some(&ending.pod), text);
        } else if !state.proves_end(pod.has_run) {
            ending.fail.give_up();
            let text = "the runtime knows nothing of it though it has run: nothing is written; \
                        is --runtime-endpoint the kubelet's?";
            self.outbox.say(true, Some(&ending.pod), text);
        } else if stopped_by_us || all_known_exited(pod, &state) {
            ending.fail.want();
        }
        ending.proven_at = Some(now);
        ending.runtime = Some(state);
    }
}

/// The verb by which the API ends the pod.
fn verb_of(ending: &Ending) -> &'static str {
    if ending.way == Way::Deadline { PATCH_PODS } else { DELETE }
}

/// Deleted by somebody with a grace that is no longer: nothing to shorten. (SD14)
fn is_ending_already(pod: &PodView, ending: &Ending) -> bool {
    pod.deletion_grace_seconds.is_some_and(|grace| grace <= ending.grace_seconds)
}

fn deletion(ending: &Ending) -> Action {
    Action::DeletePod { pod: ending.pod.clone(), grace_seconds: ending.grace_seconds }
}

fn stop(ending: &Ending, pod: &PodView) -> Action {
    Action::StopPod {
        pod: ending.pod.clone(),
        grace_seconds: ending.grace_seconds,
        sidecars: pod.sidecars.clone(),
        reach: Reach::Pod,
        patience: patience::in_haste(&ending.end),
    }
}
