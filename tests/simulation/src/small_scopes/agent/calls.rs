//! Carries out the actions of the agent at the API, the runtime, logind and the disk.

use std::rc::Rc;
use std::time::Duration;

use agent_core::pod::{PodRef, TERMINATION_BY_KUBELET};
use agent_core::protocol::action::{Action, ActionId, Reach};
use agent_core::protocol::event::{ActionResult, Event, NodeCondition, RuntimePod};
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use serde_json::{Value, json};

use super::model::{Fate, State};
use super::node::Pod;
use super::process::Flight;
use super::sabotage::{Changed, Sabotage};
use super::scope::Scope;
use super::verdicts::Judged;

/// When the agent's sink gives up waiting for an answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// How long a stop lasts beyond its grace.
const STOP_MARGIN: Duration = Duration::from_secs(2);

/// How the agent's warning begins that it releases its lock and leaves pods.
const SAYS_LEFT: &str = "released after";

/// Whether the action writes to a pod, so that it may be refused or lost.
pub(super) fn writes_pod(action: &Action) -> bool {
    matches!(
        action,
        Action::PatchStatus { .. } | Action::PatchPod { .. } | Action::DeletePod { .. }
    )
}

impl State {
    /// Takes an action of the agent. Writes to the node and events matter to no pod, so they happen
    /// at once.
    pub(super) fn dispatch(&mut self, id: ActionId, action: Action, scope: &Scope) -> Judged {
        let action = match scope.sabotage.map(|it| it.change(action.clone())) {
            None => action,
            Some(Changed::To(action)) => action,
            Some(Changed::Believed) => {
                let patches = matches!(action, Action::PatchStatus { .. });
                let result = if patches { ActionResult::Patched(Ok(None)) } else { done(Ok(())) };
                self.answered(id, result);
                return Ok(());
            }
        };
        match action {
            Action::Log(line) => {
                self.history.says_left |= line.warning && line.text.starts_with(SAYS_LEFT);
                return Ok(());
            }
            Action::Announce(text) => self.api.update_node(|node| node.announced = Some(text)),
            Action::Publish(text) => self.api.update_node(|node| node.readiness = Some(text)),
            Action::Taint { present } => self.api.update_node(|node| node.tainted = present),
            Action::SetNodeCondition { kind, stands, .. } => self.api.update_node(|node| {
                node.conditions.retain(|known| known.kind != kind);
                node.conditions.push(NodeCondition::ours(kind, stands));
            }),
            Action::EmitEvent(_) => {}
            Action::ReleaseLock => {
                self.judge_release()?;
                self.logind.agent_lock = None;
            }
            action => {
                if let Some(process) = &mut self.process {
                    let process = Rc::make_mut(process);
                    process.in_flight.insert(id, Flight::Sent(action));
                }
                return Ok(());
            }
        }
        self.answered(id, done(Ok(())));
        Ok(())
    }

    /// The answer to an action that needs no time. The caller lets the agent decide again.
    fn answered(&mut self, id: ActionId, result: ActionResult) {
        self.observe();
        self.learn(Event::Finished { id, result });
    }

    /// An action meets its fate.
    pub(super) fn call(&mut self, id: ActionId, fate: Fate, scope: &Scope) -> Judged {
        let Some(process) = &mut self.process else { return Ok(()) };
        let process = Rc::make_mut(process);
        let Some(Flight::Sent(action)) = process.in_flight.remove(&id) else { return Ok(()) };
        if writes_pod(&action) || matches!(action, Action::ReadPod(_)) {
            // What a dead process had sent arrives before the calls of its successor, or not at
            // all.
            self.wire.clear();
        }
        match fate {
            Fate::Answered => {}
            Fate::Refused => {
                self.left.refusals -= 1;
                if let Some(number) = self.target(&action) {
                    self.history.pods[number].refused = true;
                }
                let failure = Failure::new(FailureKind::Forbidden, "refused by a policy");
                return self.finish(id, done(Err(failure)), scope);
            }
            Fate::Lost | Fate::ReplyLost => {
                self.left.lost_replies -= 1;
                process.in_flight.insert(id, Flight::Unanswered(self.now + TIMEOUT));
                if fate == Fate::ReplyLost {
                    let _ = self.write(&action, scope)?;
                }
                return Ok(());
            }
        }
        if let Action::StopPod { pod, grace_seconds, reach, .. } = &action {
            return self.stop(id, pod, *grace_seconds, *reach);
        }
        let result = match &action {
            Action::TakeLock => self.take_lock(scope),
            Action::Journal(records) => {
                self.disk.extend(records.iter().cloned());
                if scope.sabotage == Some(Sabotage::ReleaseFirst) {
                    self.judge_release()?;
                    self.logind.agent_lock = None;
                }
                if scope.sabotage == Some(Sabotage::Overwrite) {
                    self.overwrite(scope)?;
                }
                done(Ok(()))
            }
            Action::CloseJournal => {
                self.disk.clear();
                done(Ok(()))
            }
            Action::ReadPod(pod) => {
                let stored = self.api.pods.get(&pod.uid);
                ActionResult::Pod(Ok(stored.map(|stored| Box::new(stored.view()))))
            }
            Action::InspectPod(pod) => {
                let state = self.number(pod).map(|number| self.pods[number].runtime());
                ActionResult::Runtime(Ok(state.unwrap_or_default()))
            }
            Action::ListRuntimePods => ActionResult::RuntimePods(Ok(self.runtime_pods())),
            Action::PatchStatus { pod, .. } => {
                let outcome = self.write(&action, scope)?;
                self.api.patched(&pod.uid, outcome)
            }
            write => done(self.write(write, scope)?),
        };
        self.finish(id, result, scope)
    }

    fn runtime_pods(&self) -> Vec<RuntimePod> {
        let listed = |pod: &Pod| RuntimePod {
            pod: PodRef { namespace: "a".into(), name: String::new(), uid: pod.uid() },
            is_static: false,
            may_run: !pod.runtime().nothing_runs(),
        };
        self.pods.iter().map(listed).collect()
    }

    /// Writes to a pod, and has that judged.
    pub(super) fn write(&mut self, action: &Action, scope: &Scope) -> Result<Outcome<()>, String> {
        let reply = match action {
            Action::PatchStatus { pod, body, .. } => self.patch_status(pod, body, scope)?,
            Action::PatchPod { pod, body } => {
                self.judge_end_of(pod)?;
                self.api.patch_pod(&pod.name, body)
            }
            Action::DeletePod { pod, version, grace_seconds } => {
                self.judge_end_of(pod)?;
                self.api.delete_at(pod, version, *grace_seconds)
            }
            other => return Err(format!("the model does not know {other:?}")),
        };
        Ok(reply)
    }

    fn patch_status(
        &mut self,
        pod: &PodRef,
        body: &Value,
        scope: &Scope,
    ) -> Result<Outcome<()>, String> {
        let before = self.api.pods.get(&pod.uid).cloned();
        let reply = self.api.patch_status(&pod.name, body);
        if let (Ok(()), Some(before), Some(number)) = (&reply, before, self.number(pod)) {
            self.judge_patch(number, &before, scope)?;
        }
        Ok(reply)
    }

    fn judge_end_of(&mut self, pod: &PodRef) -> Judged {
        match self.number(pod) {
            Some(number) => self.judge_end(number, false),
            None => Ok(()),
        }
    }

    fn take_lock(&mut self, scope: &Scope) -> ActionResult {
        if self.logind.until.is_some() {
            return ActionResult::LockRefusedInProgress;
        }
        let again = self.history.announced_at.is_some();
        if !(again && scope.sabotage == Some(Sabotage::NeverLock)) {
            self.logind.agent_lock = self.process.as_ref().map(|process| process.number);
        }
        ActionResult::Locked
    }

    /// The runtime begins to stop a pod; the caller waits.
    fn stop(&mut self, id: ActionId, pod: &PodRef, grace_seconds: u32, reach: Reach) -> Judged {
        let Some(number) = self.number(pod) else { return Ok(()) };
        self.judge_end(number, true)?;
        let grace = Duration::from_secs(grace_seconds.into());
        let kind = self.kinds[number];
        let stopped = &mut self.pods[number];
        stopped.term(kind, self.now);
        if stopped.running {
            stopped.agent_kills_at = Some(self.now + grace);
        }
        if let Some(process) = &mut self.process {
            let until = self.now + grace + STOP_MARGIN;
            Rc::make_mut(process).in_flight.insert(id, Flight::Stops(number, reach, until));
        }
        Ok(())
    }

    /// Whether an action under way ends without another call.
    pub(super) fn ends(&self, flight: &Flight) -> bool {
        match flight {
            Flight::Sent(_) => false,
            Flight::Unanswered(until) => self.now >= *until,
            Flight::Stops(number, _, until) => self.now >= *until || !self.pods[*number].running,
        }
    }

    /// The action ends.
    pub(super) fn reply(&mut self, id: ActionId, scope: &Scope) -> Judged {
        let Some(process) = &mut self.process else { return Ok(()) };
        let result = match Rc::make_mut(process).in_flight.remove(&id) {
            Some(Flight::Stops(number, reach, _)) => {
                let pod = &mut self.pods[number];
                if reach == Reach::Pod {
                    pod.stop_sandbox();
                }
                ActionResult::Runtime(Ok(pod.runtime()))
            }
            _ => done(Err(Failure::new(FailureKind::Unknown, "no answer"))),
        };
        self.finish(id, result, scope)
    }

    fn number(&self, pod: &PodRef) -> Option<usize> {
        self.pods.iter().position(|known| known.uid() == pod.uid)
    }

    fn target(&self, action: &Action) -> Option<usize> {
        match action {
            Action::PatchStatus { pod, .. }
            | Action::PatchPod { pod, .. }
            | Action::DeletePod { pod, .. } => self.number(pod),
            _ => None,
        }
    }

    /// Sabotage: writes a DisruptionTarget over each pod's.
    fn overwrite(&mut self, scope: &Scope) -> Judged {
        let ours = json!({
            "type": DISRUPTION_TARGET, "status": "True", "reason": TERMINATION_BY_KUBELET,
        });
        let body = json!({"status": {"conditions": [ours]}});
        let pods: Vec<PodRef> =
            self.api.pods.values().map(|stored| PodRef::of(&stored.view())).collect();
        for pod in pods {
            // A pod that is gone has nothing to lose.
            let _ = self.patch_status(&pod, &body, scope)?;
        }
        Ok(())
    }
}

fn done(outcome: Outcome<()>) -> ActionResult {
    ActionResult::Done(outcome)
}
