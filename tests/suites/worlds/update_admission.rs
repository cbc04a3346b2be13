//! Admission of others on UPDATE: policies that add to each write of a pod, a Job, a node or their
//! statuses. What they add once must be there for good, whatever our programs write after that.

use std::collections::{BTreeMap, BTreeSet};

use model_api::{Access, Effect, Fault, Kind, Matcher, ModelApi, Verb, Webhook};
use serde_json::{Value, json};

use super::host::AGENT;
use super::ledger::{CONTROLLER, has_written};
use super::node_ledger::TAINT;

/// How everything is named that the policies add.
pub(super) const OTHERS: &str = "audit.example.com/";
/// A label and an annotation of each object.
const SEEN: &str = "audit.example.com/seen";
/// An annotation that changes whenever conditions do.
const CONDITIONS: &str = "audit.example.com/conditions";
/// Annotations that say what was added already.
const HAS_CONDITION: &str = "audit.example.com/has-condition";
const HAS_TAINT: &str = "audit.example.com/has-taint";
/// The type of a condition, and the key of a taint and of a toleration.
const REVIEWED: &str = "audit.example.com/reviewed";

/// What must be met, by all worlds of one kind.
pub(super) const OF_JOBS: [&str; 3] =
    ["patched pods", "statuses of Jobs", "statuses of Jobs with a condition of others"];
pub(super) const OF_NODES: [&str; 4] =
    ["patched nodes", "nodes with a taint of others", "statuses of pods", "marked pods"];

/// Puts all policies into use for good.
pub(super) fn begin(api: &ModelApi) {
    for policy in all() {
        api.inject(policy);
    }
}

/// All policies: nothing changes an object without them.
pub(super) fn all() -> Vec<Fault> {
    let on = |kind, subresource: &str, change: fn(&mut Value, Option<&Value>)| {
        let subresource = Some(subresource.to_owned());
        let verbs = vec![Verb::Update, Verb::Patch];
        let matcher = Matcher { verbs, kind: Some(kind), subresource, ..Matcher::default() };
        Fault::of(matcher, Effect::Mutate(Webhook::changing(change)))
    };
    let mut all = vec![on(Kind::Pod, "", tolerate), on(Kind::Node, "", taint)];
    for kind in [Kind::Pod, Kind::Job, Kind::Node] {
        all.push(on(kind, "", label));
        all.push(on(kind, "status", label));
        all.push(on(kind, "status", review));
    }
    all
}

fn label(object: &mut Value, _: Option<&Value>) {
    let count = object["status"]["conditions"].as_array().map_or(0, Vec::len);
    let metadata = &mut object["metadata"];
    metadata["labels"][SEEN] = "true".into();
    metadata["annotations"][SEEN] = "true".into();
    metadata["annotations"][CONDITIONS] = count.to_string().into();
}

/// Adds to a list what this names, once in the life of an object.
fn add_once(object: &mut Value, added: &str, (part, list): (&str, &str), item: Value) {
    let annotation = &mut object["metadata"]["annotations"][added];
    if annotation.is_string() {
        return;
    }
    *annotation = "true".into();
    let list = &mut object[part][list];
    match list.as_array_mut() {
        Some(list) => list.push(item),
        None => *list = json!([item]),
    }
}

fn review(object: &mut Value, _: Option<&Value>) {
    let condition = json!({"type": REVIEWED, "status": "True", "reason": "Audited"});
    add_once(object, HAS_CONDITION, ("status", "conditions"), condition);
}

fn tolerate(pod: &mut Value, _: Option<&Value>) {
    let toleration = json!({"key": REVIEWED, "operator": "Exists"});
    let tolerations = &mut pod["spec"]["tolerations"];
    match tolerations.as_array_mut() {
        Some(all) if all.contains(&toleration) => {}
        Some(all) => all.push(toleration),
        None => *tolerations = json!([toleration]),
    }
}

/// Adds a taint with the agent's: one that came sooner would keep all pods away.
fn taint(node: &mut Value, _: Option<&Value>) {
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    if taints.any(|it| it["key"] == TAINT) {
        let taint = json!({"key": REVIEWED, "effect": "PreferNoSchedule"});
        add_once(node, HAS_TAINT, ("spec", "taints"), taint);
    }
}

/// What others have added to an object.
fn added(object: &Value) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for field in ["labels", "annotations"] {
        let names = object["metadata"][field].as_object().into_iter().flatten();
        all.extend(names.map(|(name, _)| format!("{field} {name}")));
    }
    for (part, list, key) in [
        ("status", "conditions", "type"),
        ("spec", "taints", "key"),
        ("spec", "tolerations", "key"),
    ] {
        let items = object[part][list].as_array().into_iter().flatten();
        let names = items.filter_map(|item| item[key].as_str());
        all.extend(names.map(|name| format!("{list} {name}")));
    }
    all.retain(|name| name.contains(OTHERS));
    all
}

/// The violations of a whole run: writes of ours that lose what others had added.
pub(super) fn judge(log: &[Access]) -> Vec<String> {
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut found = Vec::new();
    for access in log.iter().filter(|it| has_written(it)) {
        let object = &*access.answer;
        let Some(uid) = object["metadata"]["uid"].as_str() else { continue };
        let now = added(object);
        let before = known.insert(uid.to_owned(), now.clone()).unwrap_or_default();
        let Access { at, agent, verb, kind, name, .. } = access;
        for lost in before.difference(&now) {
            found.push(format!("{at} {agent} {verb:?} {kind:?} {name} loses {lost} of others"));
        }
    }
    found
}

/// How often each was met.
pub(super) fn met(log: &[Access]) -> BTreeMap<&'static str, usize> {
    let mut met = BTreeMap::new();
    for access in log.iter().filter(|it| has_written(it)) {
        let object = &*access.answer;
        let is_changed = matches!(access.verb, Verb::Update | Verb::Patch)
            && object["metadata"]["labels"][SEEN] == "true";
        let is_of = |agent, kind, subresource| {
            let is_its = access.agent.starts_with(agent) && access.kind == kind;
            is_changed && is_its && access.subresource == subresource
        };
        let has = |field: &str| added(object).contains(&format!("{field} {REVIEWED}"));
        let marks = access.body["status"]["conditions"].as_array().into_iter().flatten();
        let marks = marks.into_iter().any(|it| it["type"] == "DisruptionTarget");
        for (what, is_met) in [
            (OF_JOBS[0], is_of(CONTROLLER, Kind::Pod, "") && has("tolerations")),
            (OF_JOBS[1], is_of(CONTROLLER, Kind::Job, "status")),
            (OF_JOBS[2], is_of(CONTROLLER, Kind::Job, "status") && has("conditions")),
            (OF_NODES[0], is_of(AGENT, Kind::Node, "")),
            (OF_NODES[1], is_of(AGENT, Kind::Node, "") && has("taints")),
            (OF_NODES[2], is_of(AGENT, Kind::Pod, "status") && has("conditions")),
            (OF_NODES[3], is_of(AGENT, Kind::Pod, "status") && marks),
        ] {
            *met.entry(what).or_default() += usize::from(is_met);
        }
    }
    met
}
