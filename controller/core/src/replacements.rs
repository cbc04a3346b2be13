//! Matches each disrupted pod of a Job with the pod that replaces it, from what the watch shows.
//!
//! The API has no field for it. A completion index is exact. Without one, the first pod that the
//! Job gets after a loss counts as the replacement; of several losses, the first is matched first.

use std::collections::{HashMap, HashSet, VecDeque};

use epilogue_common::names::{COMPLETION_INDEX, pod_condition::DISRUPTION_TARGET};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::view::{Phase, Uid, WirePod};

/// Maximum number of losses without a replacement; a Job that finishes needs none. The oldest goes
/// first.
const LOSSES_MAX: usize = 4_096;
/// Maximum number of replacements that have not started. Those beyond are not followed.
const STARTING_MAX: usize = 4_096;

/// A pod that was disrupted: it terminates or is terminal, with `DisruptionTarget=True`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The pod's UID.
    pub uid: Uid,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: Option<String>,
    /// Name of its Job.
    pub job: String,
    /// Reason of its `DisruptionTarget`.
    pub reason: String,
    /// When the watch first showed it so.
    pub seen: Timestamp,
    job_uid: String,
    index: Option<String>,
}

/// The pod that replaces a lost one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// The pod that it replaces.
    pub loss: Loss,
    /// Its UID.
    pub uid: Uid,
    /// Its name.
    pub name: String,
    /// Whether the completion index matches; otherwise the count does.
    pub by_index: bool,
    /// When the watch first showed it.
    pub created: Timestamp,
}

/// A step of a replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The replacement exists.
    Created(Replacement),
    /// The replacement runs, or has already finished.
    Started(Replacement),
}

/// The pods of Jobs, as far as losses and replacements need them.
#[derive(Debug, Default)]
pub struct Replacements {
    /// Pods of Jobs that are neither lost nor terminal; as many as the cache has.
    live: HashSet<Uid>,
    losses: VecDeque<Loss>,
    starting: HashMap<Uid, Replacement>,
    /// Pods of the list that the watch is reading.
    listed: Option<HashSet<Uid>>,
}

impl Replacements {
    /// A list of all pods begins.
    pub fn list_begins(&mut self) {
        self.listed = Some(HashSet::new());
    }

    /// The list is complete; a pod that it lacks is gone.
    pub fn list_ends(&mut self) {
        let Some(listed) = self.listed.take() else { return };
        self.live.retain(|uid| listed.contains(uid));
        self.starting.retain(|uid, _| listed.contains(uid));
    }

    /// A pod is gone.
    pub fn gone(&mut self, pod: &WirePod) {
        let Some(uid) = uid(pod) else { return };
        self.live.remove(&uid);
        self.starting.remove(&uid);
    }

    /// The watch shows a pod. Returns what follows, in order.
    pub fn shown(&mut self, pod: &WirePod, now: Timestamp) -> Vec<Step> {
        let (Some(uid), Some(job)) = (uid(pod), job(pod)) else { return Vec::new() };
        if let Some(listed) = &mut self.listed {
            listed.insert(uid.clone());
        }
        let mut steps = Vec::new();
        let phase = Phase::parse(pod.status.phase.as_deref().unwrap_or_default());
        let is_terminal = matches!(phase, Phase::Succeeded | Phase::Failed);
        if is_terminal || (is_deleted(pod) && disruption(pod).is_some()) {
            // A pod that was lost before this process saw it was replaced before, too.
            if self.live.remove(&uid) {
                self.lost(pod, &uid, job, now);
            }
        } else if self.live.insert(uid.clone()) && !is_deleted(pod) {
            steps.extend(self.replaces(pod, &uid, job, now).map(Step::Created));
        }
        if phase != Phase::Pending {
            steps.extend(self.starting.remove(&uid).map(Step::Started));
        }
        steps
    }

    fn lost(&mut self, pod: &WirePod, uid: &Uid, job: &OwnerReference, now: Timestamp) {
        let Some(reason) = disruption(pod) else { return };
        if self.losses.len() >= LOSSES_MAX {
            self.losses.pop_front();
        }
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        self.losses.push_back(Loss {
            uid: uid.clone(),
            namespace: text(&pod.metadata.namespace),
            name: text(&pod.metadata.name),
            node: pod.spec.node_name.clone(),
            job: job.name.clone(),
            reason,
            seen: now,
            job_uid: job.uid.clone(),
            index: index(pod),
        });
    }

    fn replaces(
        &mut self,
        pod: &WirePod,
        uid: &Uid,
        job: &OwnerReference,
        now: Timestamp,
    ) -> Option<Replacement> {
        let index = index(pod);
        let matches = |loss: &Loss| loss.job_uid == job.uid && loss.index == index;
        let at = self.losses.iter().position(matches)?;
        let replacement = Replacement {
            loss: self.losses.remove(at)?,
            uid: uid.clone(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            by_index: index.is_some(),
            created: now,
        };
        if self.starting.len() < STARTING_MAX {
            self.starting.insert(uid.clone(), replacement.clone());
        }
        Some(replacement)
    }
}

fn uid(pod: &WirePod) -> Option<Uid> {
    pod.metadata.uid.as_deref().map(Uid::from)
}

/// The Job that controls the pod.
fn job(pod: &WirePod) -> Option<&OwnerReference> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true)).filter(|owner| owner.kind == "Job")
}

fn index(pod: &WirePod) -> Option<String> {
    pod.metadata.annotations.as_ref()?.get(COMPLETION_INDEX).cloned()
}

fn is_deleted(pod: &WirePod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// The reason of `DisruptionTarget`, if it is True.
fn disruption(pod: &WirePod) -> Option<String> {
    let mut conditions = pod.status.conditions.iter().flatten();
    let is_true = |kind: &str, status: &str| kind == DISRUPTION_TARGET && status == "True";
    let found = conditions.find(|each| is_true(&each.kind, &each.status))?;
    Some(found.reason.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("must be a time")
    }

    fn pod(name: &str, change: &Value) -> WirePod {
        let mut pod = json!({
            "metadata": {
                "name": name, "namespace": "a", "uid": format!("uid-{name}"),
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j",
                                     "uid": "job", "controller": true}],
            },
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Pending"},
        });
        merge(&mut pod, change);
        serde_json::from_value(pod).expect("must be a pod")
    }

    fn merge(into: &mut Value, change: &Value) {
        let (Some(into), Some(change)) = (into.as_object_mut(), change.as_object()) else {
            *into = change.clone();
            return;
        };
        for (name, value) in change {
            merge(into.entry(name).or_insert(Value::Null), value);
        }
    }

    fn phase(phase: &str) -> Value {
        json!({"status": {"phase": phase}})
    }

    fn disrupted(phase: &str) -> Value {
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "R"});
        json!({"status": {"phase": phase, "conditions": [condition]}})
    }

    fn of_index(index: &str, mut change: Value) -> Value {
        merge(&mut change, &json!({"metadata": {"annotations": {COMPLETION_INDEX: index}}}));
        change
    }

    /// What follows from these pods, shown one second after the other.
    fn steps(pods: &[(&str, Value)]) -> Vec<String> {
        let mut replacements = Replacements::default();
        let mut steps = Vec::new();
        for (second, (name, change)) in pods.iter().enumerate() {
            for step in replacements.shown(&pod(name, change), at(second as i64)) {
                let (what, it) = match &step {
                    Step::Created(it) => ("created", it),
                    Step::Started(it) => ("started", it),
                };
                let by = if it.by_index { "index" } else { "count" };
                steps.push(format!("{} {what} for {} by {by}", it.name, it.loss.name));
            }
        }
        steps
    }

    #[test]
    fn the_first_new_pod_after_a_loss_replaces_it() {
        let found = steps(&[
            ("a", phase("Running")),
            ("a", disrupted("Running")),
            ("a", disrupted("Failed")),
            ("a", disrupted("Failed")),
            ("b", phase("Pending")),
            ("b", phase("Pending")),
            ("b", phase("Running")),
            ("b", phase("Running")),
            ("c", phase("Pending")),
        ]);
        assert_eq!(found, ["b created for a by count", "b started for a by count"]);
    }

    #[test]
    fn an_index_is_replaced_by_the_same_index() {
        let found = steps(&[
            ("a", of_index("0", phase("Running"))),
            ("b", of_index("1", phase("Running"))),
            ("a", of_index("0", disrupted("Failed"))),
            ("b", of_index("1", disrupted("Failed"))),
            ("d", of_index("1", phase("Pending"))),
            ("e", of_index("2", phase("Pending"))),
            ("c", of_index("0", phase("Succeeded"))),
        ]);
        assert_eq!(found, ["d created for b by index"], "a pod never seen alive is not replaced");
    }

    #[test]
    fn a_pod_that_terminates_may_be_replaced_at_once() {
        let mut terminating = disrupted("Running");
        merge(
            &mut terminating,
            &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        );
        let found = steps(&[
            ("a", phase("Running")),
            ("a", terminating),
            ("b", phase("Running")),
            ("a", disrupted("Failed")),
            ("c", phase("Running")),
        ]);
        assert_eq!(found, ["b created for a by count", "b started for a by count"]);
    }

    #[test]
    fn a_failure_without_a_disruption_is_no_loss() {
        let found = steps(&[
            ("a", phase("Running")),
            ("a", phase("Failed")),
            ("b", phase("Running")),
            ("b", phase("Succeeded")),
            ("c", phase("Running")),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn what_was_lost_before_the_first_list_counts_as_replaced() {
        let found = steps(&[("a", disrupted("Failed")), ("b", phase("Running"))]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_list_removes_what_it_lacks() {
        let mut replacements = Replacements::default();
        let running = |name| pod(name, &phase("Running"));
        replacements.shown(&running("a"), at(0));
        replacements.shown(&running("b"), at(0));
        replacements.list_begins();
        replacements.shown(&running("b"), at(1));
        replacements.list_ends();
        assert_eq!(replacements.live.len(), 1);
        replacements.gone(&running("b"));
        assert!(replacements.live.is_empty());
    }

    #[test]
    fn losses_are_limited_and_the_oldest_goes() {
        let mut replacements = Replacements::default();
        for (change, second) in [(phase("Running"), 0), (disrupted("Failed"), 1)] {
            for number in 0..=LOSSES_MAX {
                replacements.shown(&pod(&number.to_string(), &change), at(second));
            }
        }
        assert_eq!(replacements.losses.len(), LOSSES_MAX);
        assert_eq!(replacements.losses[0].name, "1");
    }
}
