//! Describes what a scenario left behind, without values that differ each time: times, random
//! names, UIDs.

use epilogue_common::names::GANG_ATTEMPT;
use lab::nodes::SCRIPT_ANNOTATION;
use serde_json::{Map, Value, json};

use super::gangs;

/// The compared state.
#[derive(Debug, PartialEq)]
pub(crate) struct Seen {
    /// The Job's status; null if the Job is gone.
    status: Value,
    /// Each pod as it was created, sorted.
    created: Vec<Value>,
    /// The remaining pods: name, owners, finalizers, labels, phase; sorted.
    left: Vec<Value>,
    /// Its Workloads and PodGroups, sorted.
    groups: Vec<Value>,
}

/// The texts of one side that have a meaning, and their meanings.
#[derive(Debug, Default)]
pub(crate) struct Names(Vec<(String, String)>);

impl Names {
    /// Replaces `text` by `meaning` from now on.
    pub(crate) fn add(&mut self, text: &str, meaning: &str) {
        self.0.push((text.to_owned(), meaning.to_owned()));
    }

    fn normalize(&self, value: &Value) -> Value {
        let mut text = value.to_string();
        for (from, to) in &self.0 {
            text = text.replace(from, to);
        }
        serde_json::from_str(&text).expect("names must hold no quotes")
    }
}

impl Seen {
    /// From a status, pods and objects of gang scheduling as the API shows them.
    pub(crate) fn new(
        status: &Value,
        created: &[Value],
        left: &[Value],
        groups: &[Value],
        names: &Names,
    ) -> Self {
        let sorted = |all: &[Value], slim: fn(&Value) -> Value| {
            let mut all: Vec<Value> = all.iter().map(|pod| names.normalize(&slim(pod))).collect();
            all.sort_by_key(Value::to_string);
            all
        };
        Self {
            status: names.normalize(&timeless(status)),
            created: sorted(created, as_created),
            left: sorted(left, as_left),
            groups: sorted(groups, gangs::as_made),
        }
    }

    /// Type and reason of the condition that ended the Job, such as `Complete CompletionsReached`;
    /// or that it is in progress.
    pub(crate) fn end(&self) -> String {
        let conditions = self.status["conditions"].as_array().into_iter().flatten();
        let mut ends = conditions.filter(|it| it["type"] == "Complete" || it["type"] == "Failed");
        let text = |end: &Value, field: &str| end[field].as_str().unwrap_or_default().to_owned();
        let end = ends.next().map(|end| text(end, "type") + " " + &text(end, "reason"));
        end.unwrap_or_else(|| "in progress".to_owned())
    }

    /// What its PodGroups have.
    pub(crate) fn grouped(&self) -> impl Iterator<Item = &'static str> {
        let has = |path: &&str| self.groups.iter().any(|group| group.pointer(path).is_some());
        gangs::PARTS.into_iter().filter(has)
    }

    /// Both sides of the difference.
    pub(crate) fn difference(&self, reference: &Self) -> Option<String> {
        let mut text = String::new();
        let mut compare = |what: &str, ours: &Value, theirs: &Value| {
            if ours != theirs {
                text.extend([what, "\n  ours      ", &ours.to_string()]);
                text.extend(["\n  reference ", &theirs.to_string(), "\n"]);
            }
        };
        let status = without_facts(&self.status, &reference.status);
        compare("status", &status, &reference.status);
        for (what, ours, theirs) in [
            ("pods created", &self.created, &reference.created),
            ("pods left", &self.left, &reference.left),
            ("groups", &self.groups, &reference.groups),
        ] {
            compare(what, &json!(ours.len()), &json!(theirs.len()));
            ours.iter().zip(theirs).for_each(|(ours, theirs)| compare(what, ours, theirs));
        }
        (!text.is_empty()).then_some(text)
    }
}

/// Replaces times by their presence, and those of a condition by whether both are the same. ([C5])
fn timeless(status: &Value) -> Value {
    let mut status = status.clone();
    for field in ["startTime", "completionTime"] {
        if let Some(time) = status.get_mut(field) {
            *time = json!("a time");
        }
    }
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let (probe, transition) = (&condition["lastProbeTime"], &condition["lastTransitionTime"]);
        let is_one_time = probe.is_string() && probe == transition;
        remove(condition, &["lastProbeTime", "lastTransitionTime"]);
        condition["times"] = json!(if is_one_time { "the same" } else { "differ" });
    }
    status
}

/// Our status with upstream's messages where ours begin with them and go on with facts, on purpose.
fn without_facts(ours: &Value, theirs: &Value) -> Value {
    let mut ours = ours.clone();
    let theirs = theirs["conditions"].as_array().into_iter().flatten();
    let conditions = ours.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten();
    for (condition, theirs) in conditions.zip(theirs) {
        let fails = ["FailureTarget", "Failed"].into_iter().any(|kind| condition["type"] == kind);
        let (said, words) = (condition["message"].as_str(), theirs["message"].as_str());
        let more = said.zip(words).and_then(|(said, words)| said.strip_prefix(words));
        if fails && more.is_some_and(|more| more.len() > 1 && more.starts_with([':', ';', ' '])) {
            condition["message"] = theirs["message"].clone();
        }
    }
    ours
}

/// Metadata and spec, without what only the API server sets.
fn as_created(pod: &Value) -> Value {
    let mut metadata = pod["metadata"].clone();
    remove(
        &mut metadata,
        &[
            "creationTimestamp",
            "generation",
            "managedFields",
            "namespace",
            "resourceVersion",
            "uid",
        ],
    );
    without_attempt(&mut metadata["annotations"]);
    json!({"metadata": metadata, "spec": with_index_variables_last(&pod["spec"])})
}

/// The index variable stands first with us and last with upstream, on purpose.
fn with_index_variables_last(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if let Some(env) = container.get_mut("env").and_then(Value::as_array_mut) {
                let is_ours = |it: &Value| {
                    it["name"] == "JOB_COMPLETION_INDEX" && it.get("valueFrom").is_some()
                };
                env.sort_by_key(is_ours);
            }
        }
    }
    spec
}

fn as_left(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    let mut annotations = metadata["annotations"].clone();
    remove(&mut annotations, &[SCRIPT_ANNOTATION]);
    without_attempt(&mut annotations);
    json!({
        "name": metadata["name"],
        "annotations": annotations,
        "labels": metadata["labels"],
        "finalizers": metadata["finalizers"],
        "ownerReferences": metadata["ownerReferences"],
        "phase": pod["status"]["phase"],
    })
}

/// Pods of ours have the attempt of a group that is disrupted as a whole: here the first, as no pod
/// of such a group is lost.
fn without_attempt(annotations: &mut Value) {
    if annotations.get(GANG_ATTEMPT).is_some_and(|attempt| attempt == "0") {
        remove(annotations, &[GANG_ATTEMPT]);
    }
}

fn remove(value: &mut Value, fields: &[&str]) {
    let mut nothing = Map::new();
    let object = value.as_object_mut().unwrap_or(&mut nothing);
    for field in fields {
        object.remove(*field);
    }
}

#[test]
fn only_the_place_of_the_index_variable_may_differ() {
    let index = json!({"name": "JOB_COMPLETION_INDEX", "valueFrom": {}});
    let spec = |env: &[&Value]| json!({"containers": [{"env": env}]});
    let (a, b) = (&json!({"name": "A"}), &json!({"name": "B"}));
    let compared = |env: &[&Value]| with_index_variables_last(&spec(env));
    assert_eq!(compared(&[&index, a, b]), compared(&[a, b, &index]));
    assert_ne!(compared(&[&index, a, b]), compared(&[b, a, &index]));
}

#[test]
fn only_a_failure_s_message_may_go_on() {
    let status =
        |kind: &str, message: &str| json!({"conditions": [{"type": kind, "message": message}]});
    let words = status("Failed", "Job has failed indexes");
    for (kind, message, is_same) in [
        ("Failed", "Job has failed indexes: 1 of 3", true),
        ("Failed", "Job has failed indexesome", false),
        ("Failed", "Job: has failed indexes", false),
        ("Complete", "Job has failed indexes: 1 of 3", false),
    ] {
        assert_eq!(without_facts(&status(kind, message), &words) == words, is_same, "{message}");
    }
}

#[test]
fn only_what_is_always_random_may_differ() {
    let seen = |pod: &str, phase: &str, failed: u32| {
        let status = json!({"failed": failed, "startTime": pod, "conditions": [
            {"type": "Failed", "message": format!("{pod} failed"), "lastProbeTime": pod}]});
        let metadata = json!({"name": pod, "generateName": "j-", "uid": pod});
        let pods = [json!({"metadata": metadata, "status": {"phase": phase}})];
        let mut names = Names::default();
        names.add(pod, "POD OF j-");
        Seen::new(&status, &pods, &pods, &pods[..0], &names)
    };
    let one = seen("j-a1", "Failed", 1);
    assert_eq!(one.difference(&seen("j-b2", "Failed", 1)), None);
    assert!(one.difference(&seen("j-b2", "Failed", 2)).is_some_and(|it| it.starts_with("status")));
    let sized = |size: i64| {
        let spec = json!({"schedulingPolicy": {"gang": {"minCount": size}}});
        let group = json!({"kind": "PodGroup", "metadata": {"name": "g"}, "spec": spec});
        Seen::new(&json!({}), &[], &[], &[group], &Names::default())
    };
    assert!(sized(1).grouped().eq(["/spec/schedulingPolicy/gang"]));
    assert_eq!(sized(1).difference(&sized(1)), None);
    assert!(sized(1).difference(&sized(2)).is_some_and(|it| it.starts_with("groups")));
    let left = one.difference(&seen("j-b2", "Succeeded", 1));
    assert!(left.is_some_and(|it| it.starts_with("pods left")));
}
