//! Passes the result of an action to the part of the agent that it belongs to.

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::Agent;
use super::abandoned;
use super::calls::{Answer, Part, Task, Verb};
use super::eviction::holds;
use crate::pod::{PodUid, PodView};
use crate::protocol::action::ActionId;
use crate::protocol::event::ActionResult;

/// The content of a result of this kind. One of another kind is an error of the shell, treated as
/// no response.
macro_rules! content {
    ($result:expr, $kind:ident) => {
        match $result {
            ActionResult::$kind(content) => content,
            ActionResult::Done(Err(failure)) => Err(failure),
            _ => Err(strange()),
        }
    };
}

fn strange() -> Failure {
    Failure::new(FailureKind::Unknown, "the result is of another kind than the action")
}

fn done(result: ActionResult) -> Outcome<()> {
    if let ActionResult::Done(outcome) = result { outcome } else { Err(strange()) }
}

impl Agent {
    /// Takes a result. The result of an action that is no longer under way is ignored.
    pub(super) fn finished(&mut self, id: ActionId, result: ActionResult) {
        let Self { facts, out, .. } = self;
        let Some(task) = out.calls.finish(id) else { return };
        if task.is_api() {
            out.note_reachable(&result);
        }
        self.disruptions.note_written(&task, &result, facts);
        match task {
            Task::TakeLock => self.lock.taken(&result, facts, out),
            Task::ReleaseLock => self.lock.released(&result, out),
            Task::RaiseDelay => {
                let result = content!(result, Delay);
                facts.endings.granted = result.as_ref().ok().copied().or(facts.endings.granted);
                self.lock.delay_raised(&result, facts, out);
            }
            Task::Journal => out.journal_written(&facts.clock, &done(result)),
            Task::Announce | Task::Publish | Task::Taint => {
                self.node.written(&task, &done(result), facts, out);
                if task == Task::Announce && !self.shutdowns.is_drained() {
                    self.node.drop_drained();
                }
            }
            Task::EmitEvent => {}
            Task::EndSignal(uid) => self.end_signals.settle(&uid, &done(result), facts, out),
            Task::ListRuntimePods => {
                let result = content!(result, RuntimePods);
                if let Some(shutdown) = &mut self.shutdowns.current {
                    shutdown.runtime_pods_listed(&result, facts, out, &self.disruptions);
                }
            }
            Task::Measure => {
                let holds = holds(&self.disruptions);
                self.evictions.measured(content!(result, Measured), &holds, facts, out);
            }
            Task::MeasurePods(of) => {
                let figures = content!(result, Figures);
                self.evictions.pods_measured(of, figures, facts, out, &mut self.disruptions);
            }
            Task::NodeCondition(kind) => {
                let result = done(result);
                if !self.node_conditions.settle(kind, &result, facts, out) {
                    self.evictions.node_condition_set(kind, &result, facts, out);
                }
            }
            Task::Pod(part, verb, uid) => match verb {
                Verb::Read => self.was_read(part, &uid, &content!(result, Pod)),
                Verb::ExitCheck | Verb::Stop | Verb::Inspect => {
                    self.answered(part, verb, &uid, Answer::Runtime(&content!(result, Runtime)));
                }
                Verb::Patch(_) => self.was_written(part, verb, &uid, content!(result, Patched)),
                Verb::End => self.was_written(part, verb, &uid, done(result).map(|()| None)),
            },
        }
    }

    fn was_written(
        &mut self,
        part: Part,
        verb: Verb,
        uid: &PodUid,
        mut written: Outcome<Option<String>>,
    ) {
        let version = written.as_mut().ok().and_then(Option::take);
        let result = written.map(drop);
        self.out.count_write(verb, &result);
        self.answered(part, verb, uid, Answer::Written(&result, version.as_deref()));
    }

    /// Takes the pod as the API has it. A read for the removal of a mark serves a shutdown that has
    /// begun since.
    fn was_read(&mut self, part: Part, uid: &PodUid, result: &Outcome<Option<Box<PodView>>>) {
        match result {
            Ok(Some(pod)) => drop(self.facts.pods.observe((**pod).clone())),
            // No watch shows the end of a pod that the cache does not have any more.
            Ok(None) => self.see_pod_gone(uid.clone()),
            Err(_) => {}
        }
        let serves_shutdown = part != Part::Eviction && self.disruptions.covering(uid).is_some();
        let part = if serves_shutdown { Part::Shutdown } else { part };
        self.answered(part, Verb::Read, uid, Answer::Read(result));
    }

    fn answered(&mut self, part: Part, verb: Verb, uid: &PodUid, answer: Answer<'_>) {
        let Self { facts, out, shutdowns, disruptions, stuck, .. } = self;
        match (part, answer) {
            // A check that was under way at a cancel says nothing of a stop that still is.
            (Part::Shutdown, Answer::Runtime(result))
                if verb == Verb::Stop && disruptions.covering(uid).is_none() =>
            {
                disruptions.was_stopped_late(uid, result, facts);
            }
            (Part::Shutdown, answer) => {
                if let Some(shutdown) = &mut shutdowns.current {
                    shutdown.answered(verb, uid, answer, facts, out, disruptions);
                }
            }
            (Part::OwnMarks, answer) => disruptions.answered(verb, uid, answer, facts, out),
            (Part::Survivors, Answer::Runtime(result)) => {
                disruptions.survivor_inspected(uid, result, facts, out);
            }
            (Part::Eviction, answer) => {
                let victim = disruptions.victim_mut(uid);
                if victim.is_some_and(|victim| victim.answered(verb, answer, facts, out)) {
                    self.see_pod_gone(uid.clone());
                }
            }
            (Part::Stuck, answer) => stuck.answered(verb, uid, answer, facts, out, disruptions),
            (Part::Abandoned, answer) => {
                abandoned::answered(verb, uid, answer, facts, out, disruptions);
            }
            (Part::Oom, answer) => self.oom.answered(uid, answer, facts, out),
            (Part::Survivors, _) => {}
        }
    }
}
