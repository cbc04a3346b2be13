//! Deletes objects: grace, preconditions, finalizers, and how dependents are treated.

use jiff::SignedDuration;
use serde_json::{Value, json};

use crate::call::{Call, Verb};
use crate::kind::Kind;
use crate::metadata;
use crate::refusal::Refusal;
use crate::state::{State, success};
use crate::store::{Object, prefix, version_of};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// The options of a deletion.
#[derive(Clone, Debug)]
pub(crate) struct DeleteOptions {
    grace: Option<i64>,
    policy: Option<Policy>,
    uid: Option<String>,
    version: Option<String>,
}

/// What happens to the dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Orphan,
    Background,
    Foreground,
}

/// What a deletion does first.
enum Step {
    /// It waits, with this grace.
    Waits(Value, i64),
    /// It has begun, and nothing changes.
    Pends,
    /// The object goes, if no finalizer holds it.
    Goes,
}

impl State {
    /// Deletes an object, or begins to. Returns what the API answers.
    pub(crate) fn delete(
        &mut self,
        call: &Call,
        key: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Value, Refusal> {
        let kind = call.kind;
        let Some(old) = self.store.get(kind, key).cloned() else {
            return Err(Refusal::not_found(kind, name));
        };
        options.check_preconditions(&old)?;
        self.review(call, &old, Some(&old))?;
        if kind == Kind::Namespace && old["metadata"].get("deletionTimestamp").is_none() {
            return Ok(self.end_namespace(key, &old));
        }
        let waits = old["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        if kind == Kind::Namespace && waits {
            return Ok(Value::clone(&old));
        }
        let step = self.first_step(kind, &old, options);
        if matches!(step, Step::Pends) {
            return Ok(Value::clone(&old));
        }
        let finalizers = options.finalizers(kind, &old);
        let (mut new, grace) = match step {
            Step::Waits(new, grace) => (new, grace),
            _ => (Value::clone(&old), 0),
        };
        new["metadata"]["finalizers"] = finalizers.into();
        metadata::prune(&mut new);
        if matches!(self.first_step(kind, &old, options), Step::Goes) && metadata::is_held(&new) {
            self.hold(&mut new);
        }
        let stays = metadata::is_held(&new) || grace > 0;
        self.unsettled.remove(old["metadata"]["uid"].as_str().unwrap_or_default());
        if new != *old {
            new = Value::clone(&self.store.put(kind, key, new));
        }
        if stays {
            return Ok(new);
        }
        self.store.remove(kind, key);
        if kind.facts().returns_deleted {
            new["metadata"]["resourceVersion"] = self.store.version().to_string().into();
            return Ok(new);
        }
        Ok(gone(kind, name, &new))
    }

    /// Marks an object without grace that a finalizer holds.
    fn hold(&self, object: &mut Value) {
        let metadata = &object["metadata"];
        if metadata.get("deletionTimestamp").is_none() {
            metadata::mark_deleted(object, self.now(), 0);
        } else {
            object["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        }
    }

    fn end_namespace(&mut self, key: &str, old: &Object) -> Value {
        let mut new = Value::clone(old);
        new["metadata"]["deletionTimestamp"] = metadata::seconds(self.now()).into();
        new["status"]["phase"] = "Terminating".into();
        Value::clone(&self.store.put(Kind::Namespace, key, new))
    }

    /// Only pods have grace.
    fn first_step(&self, kind: Kind, old: &Object, options: &DeleteOptions) -> Step {
        if kind != Kind::Pod {
            return Step::Goes;
        }
        let before = &old["metadata"];
        if before.get("deletionTimestamp").is_some() {
            let Some(granted) = before["deletionGracePeriodSeconds"].as_i64().filter(|it| *it > 0)
            else {
                return Step::Goes;
            };
            let Some(grace) = options.grace.filter(|grace| *grace < granted) else {
                return Step::Pends;
            };
            let mut new = Value::clone(old);
            let ends = metadata::time(&before["deletionTimestamp"]).unwrap_or_else(|| self.now());
            let sooner = SignedDuration::from_secs(granted - grace);
            let ends = ends.saturating_sub(sooner).unwrap_or(ends);
            // A grace that has passed meanwhile becomes a second from now.
            let (now, second) = (self.now(), SignedDuration::from_secs(1));
            let has_passed = grace > 0 && ends < now;
            let (grace, ends) = if has_passed {
                (1, now.saturating_add(second).unwrap_or(now))
            } else {
                (grace, ends)
            };
            new["metadata"]["deletionTimestamp"] = metadata::seconds(ends).into();
            new["metadata"]["deletionGracePeriodSeconds"] = grace.into();
            return Step::Waits(new, grace);
        }
        let by_default = old["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
        let has_ended = matches!(old["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let has_node = old["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
        let grace = if has_ended || !has_node { 0 } else { options.grace.unwrap_or(by_default) };
        let mut new = Value::clone(old);
        metadata::mark_deleted(&mut new, self.now(), grace);
        Step::Waits(new, grace)
    }

    /// Deletes all selected objects, one after the other.
    pub(crate) fn delete_all(&mut self, call: &Call, body: &Value) -> Result<Value, Refusal> {
        let selector = call.selector()?;
        let options = DeleteOptions::read(call, body)?;
        let all = self.store.list(call.kind, &prefix(call.kind, &call.namespace));
        let chosen: Vec<_> =
            all.into_iter().filter(|(_, object)| selector.matches(object)).collect();
        let version = self.store.version();
        for (key, object) in &chosen {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let one = Call { verb: Verb::Delete, name: name.to_owned(), ..call.clone() };
            match self.delete(&one, key, name, &options) {
                Err(refusal) if refusal.code != 404 => return Err(refusal),
                _ => {}
            }
        }
        let objects = chosen.into_iter().map(|(_, object)| object);
        Ok(crate::list::of(call.kind, objects, version))
    }
}

impl DeleteOptions {
    /// Reads the options from the body and the parameters of a call.
    pub(crate) fn read(call: &Call, body: &Value) -> Result<Self, Refusal> {
        let grace = body["gracePeriodSeconds"].as_i64();
        let grace = grace.or_else(|| call.parameter("gracePeriodSeconds").parse().ok());
        let word = body["propagationPolicy"].as_str();
        let policy = match word.unwrap_or(call.parameter("propagationPolicy")) {
            "" => body["orphanDependents"]
                .as_bool()
                .map(|orphans| if orphans { Policy::Orphan } else { Policy::Background }),
            "Orphan" => Some(Policy::Orphan),
            "Background" => Some(Policy::Background),
            "Foreground" => Some(Policy::Foreground),
            other => {
                let problem = format!("Invalid value: {other:?}");
                return Err(Refusal::invalid("propagationPolicy", "FieldValueInvalid", &problem));
            }
        };
        let text = |field: &str| body["preconditions"][field].as_str().map(str::to_owned);
        let grace = grace.map(|grace| if grace < 0 { 1 } else { grace });
        Ok(Self { grace, policy, uid: text("uid"), version: text("resourceVersion") })
    }

    fn check_preconditions(&self, old: &Value) -> Result<(), Refusal> {
        let uid = old["metadata"]["uid"].as_str().unwrap_or_default();
        if self.uid.as_ref().is_some_and(|it| it != uid) {
            return Err(Refusal::conflict("Precondition failed: UID in precondition"));
        }
        let version = version_of(old).to_string();
        if self.version.as_ref().is_some_and(|it| *it != version) {
            let message = "Precondition failed: ResourceVersion in precondition";
            return Err(Refusal::conflict(message));
        }
        Ok(())
    }

    /// The finalizers of the object once it is being deleted.
    fn finalizers(&self, kind: Kind, old: &Value) -> Vec<Value> {
        let known = old["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let has = |name: &str| known.iter().any(|it| it == name);
        // For compatibility, `batch/v1` leaves the pods of a Job alone.
        let default = if kind == Kind::Job { Policy::Orphan } else { Policy::Background };
        let policy = match self.policy {
            Some(policy) => policy,
            None if has(ORPHAN) => Policy::Orphan,
            None if has(FOREGROUND) => Policy::Foreground,
            None => default,
        };
        let wanted = match policy {
            Policy::Orphan => Some(ORPHAN),
            Policy::Foreground => Some(FOREGROUND),
            Policy::Background => None,
        };
        if kind == Kind::Event || wanted.is_some_and(has) && !(has(ORPHAN) && has(FOREGROUND)) {
            return known;
        }
        let others = known.into_iter().filter(|it| *it != ORPHAN && *it != FOREGROUND);
        others.chain(wanted.map(Value::from)).collect()
    }
}

/// The Status of a deletion that is done.
fn gone(kind: Kind, name: &str, object: &Value) -> Value {
    let facts = kind.facts();
    let mut details = json!({"name": name, "kind": facts.plural, "uid": object["metadata"]["uid"]});
    if !facts.group.is_empty() {
        details["group"] = facts.group.into();
    }
    success(details)
}
