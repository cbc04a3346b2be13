//! Carries out the agent's actions: one attempt of each against the model of the world.

use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::action::{Action, ActionId, PodRef, Purpose, Reach};
use agent_core::protocol::event::{ActionResult, NodeCondition, RuntimePod};
use agent_core::shutdown::Mode;
use epilogue_common::outcome::{Failure, FailureKind};

use super::api::Stored;
use super::logind::Stage;
use super::situations::Met;
use super::wire::Verb;
use super::world::{Life, World, name_of};
use crate::controller::agenda::Moment;

/// How long a stop continues after the grace: the time that the runtime gets for SIGKILL.
const STOP_MARGIN: Duration = Duration::from_secs(2);

/// A stop under way in the runtime.
#[derive(Debug)]
pub(super) struct Stop {
    id: ActionId,
    uid: PodUid,
    run: u64,
    reach: Reach,
}

/// What the agent knew when it sent a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Issued {
    pub(super) at: Moment,
    pub(super) mode: Option<Mode>,
    pub(super) in_shutdown: bool,
}

impl World {
    /// Carries out an action of the agent.
    pub(super) fn dispatch(&mut self, id: ActionId, action: Action) {
        let patches = matches!(action, Action::PatchStatus { .. });
        let Some(action) = self.sabotaged(action) else {
            let done = ActionResult::Done(Ok(()));
            let result = if patches { ActionResult::Patched(Ok(None)) } else { done };
            return self.finish_after(Duration::from_millis(1), id, result);
        };
        self.carry_out(id, action);
    }

    /// Carries out an action that a broken agent would give besides its own: the agent does not
    /// hear of its end.
    pub(super) fn forge(&mut self, action: Action) {
        self.forged += 1;
        self.carry_out(ActionId(u64::MAX - self.forged), action);
    }

    pub(super) fn is_forged(&self, id: ActionId) -> bool {
        id.0 >= u64::MAX - self.forged
    }

    fn carry_out(&mut self, id: ActionId, action: Action) {
        self.log(|_| format!("  ACTION  {}", super::print::action(id, &action)));
        self.judge_action(id, &action);
        if matches!(action, Action::Log(_)) {
            return;
        }
        if let Some(process) = &mut self.process {
            process.in_flight.insert(id, super::print::is_call(&action));
        }
        self.judge_in_flight();
        match action {
            Action::TakeLock => self.take_lock(id),
            Action::ReleaseLock => self.release_lock(id),
            Action::RaiseDelay { wanted } => self.raise_delay(id, wanted),
            Action::Journal(records) => self.append(id, records),
            Action::CloseJournal => self.close_journal(id),
            Action::StopPod { pod, grace_seconds, reach, .. } => {
                self.stop_pod(id, &pod.uid, grace_seconds, reach);
            }
            Action::InspectPod(pod) => self.inspect_pod(id, &pod.uid),
            Action::ListRuntimePods => self.list_runtime_pods(id),
            Action::Measure => self.measure(id),
            Action::MeasurePods { of, pods } => self.measure_pods(id, of, &pods),
            Action::Log(_) => {}
            call => self.dispatch_call(id, call),
        }
    }

    /// Whether a stop of the pod by the agent is under way.
    pub(super) fn is_being_stopped(&self, uid: &PodUid) -> bool {
        self.stops.iter().any(|stop| stop.uid == *uid)
    }

    fn dispatch_call(&mut self, id: ActionId, action: Action) {
        let (at, mode) = (self.now(), self.mode());
        let issued = Issued { at, mode, in_shutdown: self.ledger.shutdown.is_some() };
        match action {
            Action::Announce(text) => self.call(id, (Verb::PatchNode, None), done, move |w| {
                w.api.update_node(|node| node.announced = Some(text));
                ActionResult::Done(Ok(()))
            }),
            Action::Publish(text) => self.call(id, (Verb::PatchNode, None), done, move |w| {
                w.api.update_node(|node| node.readiness = Some(text));
                ActionResult::Done(Ok(()))
            }),
            Action::Taint { present } => self.call(id, (Verb::PatchNode, None), done, move |w| {
                w.api.update_node(|node| node.tainted = present);
                ActionResult::Done(Ok(()))
            }),
            Action::PatchStatus { pod, purpose, body } => {
                self.call(id, (Verb::PatchStatus, Some(&pod.uid.clone())), done, move |w| {
                    w.commit_status(&pod.uid, &pod.name, purpose, &body, issued)
                });
            }
            Action::PatchPod { pod, body } => {
                self.call(id, (Verb::PatchPod, Some(&pod.uid.clone())), done, move |w| {
                    w.judge_end(&pod.uid);
                    ActionResult::Done(w.api.patch_pod(&pod.name, &body))
                });
            }
            Action::DeletePod { pod, version, grace_seconds } => {
                self.call(id, (Verb::DeletePod, Some(&pod.uid.clone())), done, move |w| {
                    w.judge_end(&pod.uid);
                    if w.api.version_of(&pod.uid) == version {
                        w.judge_delete(&pod.uid);
                    }
                    ActionResult::Done(w.api.delete_at(&pod, &version, grace_seconds))
                });
            }
            Action::ReadPod(pod) => {
                self.call(
                    id,
                    (Verb::ReadPod, Some(&pod.uid.clone())),
                    |failure| ActionResult::Pod(Err(failure)),
                    move |w| {
                        let stored = w.api.pods.get(&pod.uid);
                        ActionResult::Pod(Ok(stored.map(|stored| Box::new(stored.view()))))
                    },
                );
            }
            Action::SetNodeCondition { kind, stands, .. } => {
                self.call(id, (Verb::PatchNode, None), done, move |w| {
                    w.api.update_node(|node| {
                        node.conditions.retain(|known| known.kind != kind);
                        node.conditions.push(NodeCondition::ours(kind, stands));
                    });
                    ActionResult::Done(Ok(()))
                });
            }
            Action::EmitEvent(_) => {
                self.call(id, (Verb::CreateEvent, None), done, |_| ActionResult::Done(Ok(())));
            }
            _ => {}
        }
    }

    fn commit_status(
        &mut self,
        uid: &PodUid,
        name: &str,
        purpose: Purpose,
        body: &serde_json::Value,
        issued: Issued,
    ) -> ActionResult {
        let before = self.api.pods.get(uid).cloned();
        if before.as_ref().is_some_and(Stored::is_terminal) {
            self.met(match purpose {
                Purpose::Mark => Met::MarkAfterEnd,
                Purpose::Clear => Met::ClearAfterEnd,
                Purpose::Fail | Purpose::Cause => Met::StatusAfterEnd,
            });
        }
        let result = self.api.patch_status(name, body);
        let after = self.api.pods.get(uid).cloned();
        if let (Ok(()), Some(before), Some(after)) = (&result, before, after) {
            self.judge_status(purpose, &before, &after, body, issued);
        }
        self.api.patched(uid, result)
    }

    fn take_lock(&mut self, id: ActionId) {
        let Some(run) = self.agent_run() else { return };
        let pause = self.random.millis(1, 8);
        self.after(pause, Life::Agent(run), move |w| {
            if w.logind.down {
                let failure = Failure::new(FailureKind::Other, "no owner");
                return w.finish(id, ActionResult::Done(Err(failure)));
            }
            if w.logind.stage != Stage::Idle {
                return w.finish(id, ActionResult::LockRefusedInProgress);
            }
            w.logind.agent_lock = Some(run);
            w.ledger.lock_taken(w.agenda.now());
            w.finish(id, ActionResult::Locked);
        });
    }

    fn release_lock(&mut self, id: ActionId) {
        self.judge_release();
        self.finish_after(Duration::from_millis(1), id, ActionResult::Done(Ok(())));
        if self.logind.agent_lock.take().is_some() {
            self.ledger.lock_lost();
            self.after(Duration::ZERO, Life::Boot(self.boot), World::locks_changed);
        }
    }

    fn raise_delay(&mut self, id: ActionId, wanted: Duration) {
        let pause = self.random.millis(100, 1_500);
        let Some(run) = self.agent_run() else { return };
        self.after(pause, Life::Agent(run), move |w| {
            if w.behaviour.raise_works && !w.logind.down {
                w.logind.delay = w.logind.delay.max(wanted);
            }
            let delay = w.logind.delay;
            w.finish(id, ActionResult::Delay(Ok(delay)));
        });
    }

    fn inspect_pod(&mut self, id: ActionId, uid: &PodUid) {
        if !self.runtime.answers {
            return self.finish_after(Duration::from_secs(2), id, silent());
        }
        if self.runtime.ended_well(uid) {
            self.met(Met::EndedWell);
        }
        let account = self.runtime.account(uid);
        let pause = self.random.millis(2, 30);
        self.finish_after(pause, id, ActionResult::Runtime(Ok(account)));
    }

    fn list_runtime_pods(&mut self, id: ActionId) {
        if !self.runtime.answers {
            return self.finish_after(Duration::from_secs(2), id, silent());
        }
        let listed = |uid: &PodUid| RuntimePod {
            pod: PodRef { namespace: "a".into(), name: name_of(uid).into(), uid: uid.clone() },
            is_static: self.ledger.is_static(uid),
            may_run: self.runtime.is_up(uid),
        };
        let pods = self.runtime.pods().map(listed).collect();
        let pause = self.random.millis(2, 30);
        self.finish_after(pause, id, ActionResult::RuntimePods(Ok(pods)));
    }

    fn stop_pod(&mut self, id: ActionId, uid: &PodUid, grace_seconds: u32, reach: Reach) {
        let Some(run) = self.agent_run() else { return };
        self.judge_end(uid);
        if !self.runtime.answers {
            return self.finish_after(Duration::from_secs(2), id, silent());
        }
        self.term_pod(uid);
        let grace = Duration::from_secs(grace_seconds.into());
        let life = Life::Agent(run);
        let victim = uid.clone();
        self.after(grace, life, move |w| {
            if w.runtime.answers {
                w.kill(&victim);
            }
        });
        self.after(grace + STOP_MARGIN, life, move |w| w.stop_ends(id, true));
        self.stops.push(Stop { id, uid: uid.clone(), run, reach });
        self.stops_progress(uid);
    }

    /// A container of the pod has exited.
    pub(super) fn stops_progress(&mut self, uid: &PodUid) {
        if self.runtime.running(uid) > 0 {
            return;
        }
        let ended: Vec<(u64, ActionId)> =
            self.stops.iter().filter(|s| s.uid == *uid).map(|s| (s.run, s.id)).collect();
        for (run, id) in ended {
            let pause = self.random.millis(5, 60);
            self.after(pause, Life::Agent(run), move |w| w.stop_ends(id, false));
        }
    }

    fn stop_ends(&mut self, id: ActionId, late: bool) {
        let run = self.agent_run();
        let ours = |stop: &Stop| stop.id == id && Some(stop.run) == run;
        let Some(position) = self.stops.iter().position(ours) else { return };
        if !late && self.runtime.running(&self.stops[position].uid) > 0 {
            return;
        }
        let stop = self.stops.remove(position);
        if !self.runtime.answers {
            return self.finish(id, silent());
        }
        if stop.reach == Reach::Pod {
            self.stop_sandbox(&stop.uid);
        }
        let account = self.runtime.account(&stop.uid);
        self.finish(id, ActionResult::Runtime(Ok(account)));
    }
}

fn done(failure: Failure) -> ActionResult {
    ActionResult::Done(Err(failure))
}

fn silent() -> ActionResult {
    ActionResult::Runtime(Err(Failure::new(FailureKind::Unknown, "the runtime does not answer")))
}
