//! Mistakes that an agent could make under pressure and with pods that hang: in its actions, its
//! events, and the answers it gets.

use std::time::Duration;

use agent_core::pod::{PodUid, PodView, RestartPolicy};
use agent_core::protocol::action::{Action, PodRef, Purpose, Reach};
use agent_core::protocol::event::{ActionResult, Event, RuntimeState, VolumesInUse};
use epilogue_common::names::oom_reason::{CONTAINER_LIMIT, NODE_OUT_OF_MEMORY};
use epilogue_common::names::pod_condition::OOM_KILLED;
use serde_json::{Value, json};

use super::sabotage::Sabotage;
use super::world::{Life, World};

fn is_of_pressure(body: &Value) -> bool {
    let conditions = body["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        condition["message"].as_str().is_some_and(|text| text.starts_with("The node was low on"))
    })
}

impl World {
    /// The action that replaces this one; `None` if the agent only believes that it acts.
    pub(super) fn sabotaged_under_strain(
        &mut self,
        sabotage: Sabotage,
        action: Action,
    ) -> Option<Action> {
        match (sabotage, action) {
            (
                Sabotage::NeverMarkVictims,
                Action::PatchStatus { purpose: Purpose::Mark, body, .. },
            ) if is_of_pressure(&body) => None,
            (
                Sabotage::FailVictimFirst,
                Action::PatchStatus { pod, purpose: Purpose::Mark, mut body },
            ) if is_of_pressure(&body) => {
                body["status"]["phase"] = "Failed".into();
                body["status"]["reason"] = "Evicted".into();
                body["status"]["message"] = "The node was low on resource: memory. ".into();
                Some(Action::PatchStatus { pod, purpose: Purpose::Fail, body })
            }
            (Sabotage::KeepSilent, Action::PatchStatus { purpose: Purpose::Cause, .. })
            | (Sabotage::KeepStall, Action::SetNodeCondition { stands: false, .. }) => None,
            (
                Sabotage::BlameWrongly,
                Action::PatchStatus { pod, purpose: Purpose::Cause, mut body },
            ) => {
                swap_reasons(&mut body);
                Some(Action::PatchStatus { pod, purpose: Purpose::Cause, body })
            }
            (sabotage, action @ (Action::DeletePod { .. } | Action::StopPod { .. })) => {
                self.sabotaged_end(sabotage, action)
            }
            (Sabotage::ActInObservation, Action::EmitEvent(notice)) => {
                self.act_on_observation(&notice.message, notice.pod.clone());
                Some(Action::EmitEvent(notice))
            }
            (sabotage, Action::PatchStatus { pod, purpose: Purpose::Fail, body }) => {
                self.sabotaged_fail(sabotage, pod, body)
            }
            (_, action) => Some(action),
        }
    }

    fn sabotaged_end(&mut self, sabotage: Sabotage, action: Action) -> Option<Action> {
        let (Action::DeletePod { pod, .. } | Action::StopPod { pod, .. }) = &action else {
            return Some(action);
        };
        let victim = self.victim(&pod.uid).is_some();
        let pod = pod.clone();
        match sabotage {
            Sabotage::KeepVictims if victim => None,
            Sabotage::EvictCritical if victim => {
                let other = self.another(&pod.uid, true)?;
                let version = self.api.version_of(&other.uid);
                Some(Action::DeletePod { pod: other, version, grace_seconds: 1 })
            }
            Sabotage::StopVictims if victim => {
                let (sidecars, reach) = (Vec::new(), Reach::Pod);
                let stop_timeout = Duration::ZERO;
                Some(Action::StopPod { pod, grace_seconds: 1, sidecars, reach, stop_timeout })
            }
            Sabotage::EvictTwo if victim => {
                self.evict_another(&pod.uid);
                Some(action)
            }
            Sabotage::MarkOwnLimits if self.ledger.pressure.beyond_own.contains(&pod.uid) => {
                let body = self.mark_body("Container a exceeded its limit. ");
                self.forge(Action::PatchStatus { pod, purpose: Purpose::Mark, body });
                Some(action)
            }
            _ => Some(action),
        }
    }

    fn mark_body(&self, message: &str) -> Value {
        let at = self.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        json!({"status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
            "message": message, "lastTransitionTime": at,
        }]}})
    }

    /// Another running pod.
    fn another(&self, uid: &PodUid, critical: bool) -> Option<PodRef> {
        let mut others = self.api.pods.iter().filter(|(other, stored)| {
            *other != uid
                && self.is_critical(other) == critical
                && self.runtime.running(other) > 0
                && stored.deletion().is_none()
                && self.victim(other).is_none()
        });
        let (uid, stored) = others.next()?;
        let view = stored.view();
        Some(PodRef { namespace: view.namespace, name: view.name, uid: uid.clone() })
    }

    /// Evicts a second pod in the same way, at once.
    fn evict_another(&mut self, uid: &PodUid) {
        let Some(pod) = self.another(uid, false) else { return };
        let Some(words) = self.api.pods.get(uid).and_then(|stored| {
            stored.condition("DisruptionTarget")?["message"].as_str().map(str::to_owned)
        }) else {
            return;
        };
        let body = self.mark_body(&words);
        self.forge(Action::PatchStatus { pod: pod.clone(), purpose: Purpose::Mark, body });
        // The mark is set by then, and the first pod is not terminated yet.
        let Some(run) = self.agent_run() else { return };
        self.after(Duration::from_millis(100), Life::Agent(run), move |w| {
            let version = w.api.version_of(&pod.uid);
            w.forge(Action::DeletePod { pod, version, grace_seconds: 1 });
        });
    }

    fn act_on_observation(&mut self, message: &str, pod: Option<PodRef>) {
        let words = message.strip_prefix("It would be evicted: ");
        if let (Some(words), Some(pod)) = (words, pod) {
            let body = self.mark_body(words);
            self.forge(Action::PatchStatus { pod, purpose: Purpose::Mark, body });
        }
    }

    fn sabotaged_fail(&mut self, sabotage: Sabotage, pod: PodRef, body: Value) -> Option<Action> {
        let stored = self.api.pods.get(&pod.uid).cloned();
        let stuck = stored
            .as_ref()
            .is_some_and(|stored| Self::is_of_stuck(stored, &body, self.ledger.shutdown.is_some()));
        match sabotage {
            Sabotage::NeverUnstick if stuck => return None,
            Sabotage::FailOften if stuck => {
                let mut body = body.clone();
                if let Some(metadata) = body["metadata"].as_object_mut() {
                    metadata.remove("resourceVersion");
                }
                for _ in 0..4 * self.runs {
                    let (pod, body) = (pod.clone(), body.clone());
                    self.forge(Action::PatchStatus { pod, purpose: Purpose::Fail, body });
                }
            }
            _ => {}
        }
        Some(Action::PatchStatus { pod, purpose: Purpose::Fail, body })
    }

    /// The event that the agent receives instead of this one.
    pub(super) fn misheard(&self, event: Event) -> Event {
        match (self.options.sabotage, event) {
            (Some(Sabotage::IgnorePressure), Event::NodeObserved(mut node)) => {
                node.kubelet_pressure.clear();
                Event::NodeObserved(node)
            }
            (Some(Sabotage::LeaveVolumes), Event::NodeObserved(mut node)) => {
                node.volumes_in_use = VolumesInUse::default();
                Event::NodeObserved(node)
            }
            (Some(Sabotage::MournChildren), Event::OomKilled(mut kill)) => {
                kill.container_lives = Some(false);
                Event::OomKilled(kill)
            }
            (Some(Sabotage::TrustRestarts), Event::PodsListed(mut pods)) => {
                pods.iter_mut().for_each(trust_restarts);
                Event::PodsListed(pods)
            }
            (Some(Sabotage::TrustRestarts), Event::PodObserved(mut pod)) => {
                trust_restarts(&mut pod);
                Event::PodObserved(pod)
            }
            (_, event) => event,
        }
    }

    /// The answer that the agent receives instead of this one.
    pub(super) fn misanswered(&self, result: ActionResult) -> ActionResult {
        match (self.options.sabotage, result) {
            (Some(Sabotage::BlindToPressure), ActionResult::Measured(Ok(mut sample))) => {
                sample.signals.clear();
                sample.stall = None;
                ActionResult::Measured(Ok(sample))
            }
            (Some(Sabotage::SeePressure), ActionResult::Measured(Ok(mut sample))) => {
                for measured in sample.signals.values_mut() {
                    measured.observation.available = 1;
                }
                ActionResult::Measured(Ok(sample))
            }
            (Some(Sabotage::FailBlindly), ActionResult::Runtime(Ok(mut state))) => {
                state.sandbox_ready = false;
                for container in &mut state.containers {
                    container.exited = true;
                    container.exit_code.get_or_insert(1);
                }
                ActionResult::Runtime(Ok::<RuntimeState, _>(state))
            }
            (_, result) => result,
        }
    }
}

fn trust_restarts(pod: &mut PodView) {
    if !pod.sidecars.is_empty() || pod.restarts_in_place != pod.restart_policy {
        (pod.restarts_in_place, pod.restarts_all) = (RestartPolicy::Always, true);
    }
}

fn swap_reasons(body: &mut Value) {
    let conditions = body["status"]["conditions"].as_array_mut();
    for condition in conditions.into_iter().flatten() {
        if condition["type"] == OOM_KILLED {
            let node = condition["reason"] == NODE_OUT_OF_MEMORY;
            condition["reason"] = if node { CONTAINER_LIMIT } else { NODE_OUT_OF_MEMORY }.into();
        }
    }
}
