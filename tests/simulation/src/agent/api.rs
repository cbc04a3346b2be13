//! Models the API server for one node's pods and its Node object: versions, preconditions, merge
//! patches, deletion. Its answers are true; `wire` loses them on the way.

use std::collections::BTreeMap;

use agent_core::pod::{Details, Disruption, Phase, PodRef, PodUid, PodView};
use agent_core::protocol::event::{ActionResult, NodeView};
use epilogue_common::names::pod_condition::{DISRUPTION_TARGET, OOM_KILLED};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::merge::merge;
use super::promises;

/// A pod as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Everything outside `status`.
    fixed: PodView,
    pub(crate) status: Value,
    pub(crate) annotations: Value,
    /// Whether a Job's finalizer keeps the object.
    pub(crate) finalizer: bool,
    pub(crate) active_deadline: Option<i64>,
    deleted_at: Option<Timestamp>,
}

/// What a kubelet reports of containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) running_since: Option<Timestamp>,
    /// By name.
    pub(crate) ids: Vec<(String, String)>,
    pub(crate) restarted: bool,
    /// Containers whose status says `OOMKilled`.
    pub(crate) killed: Vec<String>,
}

/// A change that watches see.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A pod is new or different.
    Pod(Box<Stored>),
    /// A pod's object is gone; this was its last state.
    Gone(Box<Stored>),
    /// The node's object.
    Node,
}

/// The store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Api {
    pub(crate) pods: BTreeMap<PodUid, Stored>,
    pub(crate) node: NodeView,
    /// Every change so far.
    pub(crate) log: Vec<Change>,
    /// The server's own clock.
    pub(crate) clock: Timestamp,
}

impl Stored {
    pub(crate) fn new(fixed: PodView, finalizer: bool) -> Self {
        let status = json!({"phase": "Pending", "conditions": []});
        let annotations = json!({});
        let (active_deadline, deleted_at) = (None, None);
        Self { fixed, status, annotations, finalizer, active_deadline, deleted_at }
    }

    /// The view that the agent's shell reads from the object.
    pub(crate) fn view(&self) -> PodView {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let disruption = self.condition(DISRUPTION_TARGET).map(|condition| Disruption {
            stands: condition["status"] == "True",
            reason: text(&condition["reason"]),
            message: text(&condition["message"]),
            since: condition["lastTransitionTime"].as_str().and_then(|at| at.parse().ok()),
        });
        let deadline_set = self.active_deadline.is_some();
        let cause = self.condition(OOM_KILLED);
        let details = Details {
            deleted_at: self.deleted_at,
            job_finalizer: self.finalizer,
            oom_killed: cause.map(|cause| (cause["status"] == "True", text(&cause["reason"]))),
            ..self.fixed.details.clone()
        };
        PodView { phase: self.phase(), deadline_set, disruption, details, ..self.fixed.clone() }
    }

    /// Applies the kubelet's report of the containers: they have run, and since when they run now.
    pub(crate) fn note_containers(&mut self, shown: Shown) {
        self.fixed.has_run = true;
        self.fixed.running_since = shown.running_since;
        self.fixed.details.container_ids = shown.ids;
        self.fixed.details.restarted = shown.restarted;
        self.fixed.details.oom_reported = shown.killed;
    }

    pub(crate) fn shown(&self) -> Shown {
        let details = &self.fixed.details;
        Shown {
            running_since: self.fixed.running_since,
            ids: details.container_ids.clone(),
            restarted: details.restarted,
            killed: details.oom_reported.clone(),
        }
    }

    pub(crate) fn deleted_at(&self) -> Option<Timestamp> {
        self.deleted_at
    }

    pub(crate) fn uid(&self) -> &PodUid {
        &self.fixed.uid
    }

    pub(crate) fn name(&self) -> &str {
        &self.fixed.name
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.status["phase"].as_str() {
            Some("Running") => Phase::Running,
            Some("Succeeded") => Phase::Succeeded,
            Some("Failed") => Phase::Failed,
            _ => Phase::Pending,
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        matches!(self.phase(), Phase::Succeeded | Phase::Failed)
    }

    pub(crate) fn deletion(&self) -> Option<u32> {
        self.fixed.deletion_grace_seconds
    }

    pub(crate) fn condition(&self, kind: &str) -> Option<&Value> {
        self.status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
    }

    /// Whether `DisruptionTarget` is True.
    pub(crate) fn is_disrupted(&self) -> bool {
        self.condition(DISRUPTION_TARGET).is_some_and(|condition| condition["status"] == "True")
    }

    /// Whether it is True with the reason of a kubelet, or of an agent in its place.
    pub(crate) fn is_ours(&self) -> bool {
        self.condition(DISRUPTION_TARGET).is_some_and(|condition| {
            condition["status"] == "True" && condition["reason"] == promises::REASON
        })
    }

    /// Whether it is True with reason and message of a shutdown.
    pub(crate) fn is_marked(&self) -> bool {
        self.condition(DISRUPTION_TARGET).is_some_and(|condition| {
            condition["status"] == "True"
                && condition["reason"] == promises::REASON
                && condition["message"] == promises::SHUTDOWN_MESSAGE
        })
    }
}

impl Api {
    pub(crate) fn create(&mut self, stored: Stored) {
        self.store(stored);
    }

    /// Changes a pod without a precondition, as its kubelet does. An equal pod is no change.
    pub(crate) fn update(&mut self, uid: &PodUid, change: impl FnOnce(&mut Stored)) {
        let Some(stored) = self.pods.get(uid) else { return };
        let mut next = stored.clone();
        change(&mut next);
        let same = next.status == stored.status
            && next.annotations == stored.annotations
            && next.fixed == stored.fixed
            && next.finalizer == stored.finalizer
            && next.active_deadline == stored.active_deadline
            && next.deleted_at == stored.deleted_at;
        if !same {
            self.store(next);
        }
    }

    fn store(&mut self, mut stored: Stored) {
        // A count of each object's own writes: which of two objects was written first does not
        // matter to anybody.
        let before = stored.fixed.resource_version.parse::<u64>().unwrap_or(0);
        stored.fixed.resource_version = (before + 1).to_string();
        self.log.push(Change::Pod(Box::new(stored.clone())));
        if stored.fixed.deletion_grace_seconds == Some(0) && !stored.finalizer {
            self.pods.remove(&stored.fixed.uid);
            self.log.push(Change::Gone(Box::new(stored)));
        } else {
            self.pods.insert(stored.fixed.uid.clone(), stored);
        }
    }

    /// PATCH of `pods/status`.
    pub(crate) fn patch_status(&mut self, name: &str, body: &Value) -> Outcome<()> {
        let stored = self.checked(name, body)?;
        let uid = stored.fixed.uid.clone();
        self.update(&uid, |stored| {
            if let Some(status) = body.get("status") {
                merge(&mut stored.status, status);
            }
            if let Some(annotations) = body["metadata"].get("annotations") {
                merge(&mut stored.annotations, annotations);
            }
        });
        Ok(())
    }

    /// PATCH of the pod itself; the model knows only the deadline.
    pub(crate) fn patch_pod(&mut self, name: &str, body: &Value) -> Outcome<()> {
        let uid = self.checked(name, body)?.fixed.uid.clone();
        let deadline = body["spec"]["activeDeadlineSeconds"].as_i64();
        self.update(&uid, |stored| {
            if deadline.is_some() && stored.active_deadline != deadline {
                stored.active_deadline = deadline;
                stored.fixed.generation += 1;
            }
        });
        Ok(())
    }

    /// The version of a pod; empty if it is gone.
    pub(crate) fn version_of(&self, uid: &PodUid) -> String {
        self.pods.get(uid).map_or_else(String::new, |it| it.fixed.resource_version.clone())
    }

    /// What a patch of a pod gives.
    pub(crate) fn patched(&self, uid: &PodUid, outcome: Outcome<()>) -> ActionResult {
        ActionResult::Patched(outcome.map(|()| Some(self.version_of(uid))))
    }

    fn checked(&self, name: &str, body: &Value) -> Outcome<&Stored> {
        let stored = self.pods.values().find(|stored| stored.fixed.name == name);
        let Some(stored) = stored else { return Err(failure(FailureKind::NotFound)) };
        let metadata = &body["metadata"];
        if metadata["uid"].as_str().is_some_and(|uid| uid != stored.fixed.uid.0) {
            return Err(failure(FailureKind::Invalid));
        }
        let version = metadata["resourceVersion"].as_str();
        if version.is_some_and(|version| version != stored.fixed.resource_version) {
            return Err(failure(FailureKind::Conflict));
        }
        Ok(stored)
    }

    /// DELETE with a UID and a version as preconditions. ([AP9])
    pub(crate) fn delete_at(&mut self, pod: &PodRef, version: &str, grace: u32) -> Outcome<()> {
        let known = self.pods.get(&pod.uid).map(|stored| &stored.fixed.resource_version);
        if known.is_some_and(|known| known != version) {
            return Err(failure(FailureKind::Conflict));
        }
        self.delete(&pod.name, &pod.uid, grace)
    }

    /// DELETE with a UID as precondition.
    pub(crate) fn delete(&mut self, name: &str, uid: &PodUid, grace: u32) -> Outcome<()> {
        let stored = self.pods.values().find(|stored| stored.fixed.name == name);
        let Some(stored) = stored else { return Err(failure(FailureKind::NotFound)) };
        if stored.fixed.uid != *uid {
            return Err(failure(FailureKind::Conflict));
        }
        let grace = if stored.is_terminal() { 0 } else { grace };
        let first = stored.deletion().is_none();
        let over = self.clock + SignedDuration::from_secs(grace.into());
        self.update(uid, |stored| {
            let before = stored.fixed.deletion_grace_seconds.unwrap_or(u32::MAX);
            stored.fixed.deletion_grace_seconds = Some(before.min(grace));
            stored.deleted_at = Some(stored.deleted_at.map_or(over, |at| at.min(over)));
            stored.fixed.generation += i64::from(first);
        });
        Ok(())
    }

    /// Changes the node's object.
    pub(crate) fn update_node(&mut self, change: impl FnOnce(&mut NodeView)) {
        let mut next = self.node.clone();
        change(&mut next);
        if next != self.node {
            self.node = next;
            self.log.push(Change::Node);
        }
    }
}

fn failure(kind: FailureKind) -> Failure {
    Failure::new(kind, format!("{kind:?}"))
}
