//! The state of the model, and its work on one call: reads, and the order of checks of a write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::access_log::Access;
use crate::call::{Call, PatchFormat, Verb};
use crate::deletion::DeleteOptions;
use crate::faults::{Faults, Flaw, Phase};
use crate::kind::Kind;
use crate::protobuf::PROTOBUF;
use crate::refusal::Refusal;
use crate::store::{Object, Store, version_of};
use crate::{gangs, metadata, patch, pods, rules};

/// The code and the body of an answer.
pub(crate) type Answer = (u16, Value);

/// Everything that the model knows.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) faults: Faults,
    pub(crate) log: Vec<Access>,
    /// Cuts of open watches, by kind.
    pub(crate) cuts: BTreeMap<Kind, Cut>,
    /// Jobs of which the API stores the next write even if it changes nothing.
    pub(crate) unsettled: BTreeSet<String>,
    /// Whether the API has gang scheduling.
    pub(crate) serves_gangs: bool,
    /// How often the server has started anew.
    pub(crate) starts: u64,
    start: Timestamp,
    began: Instant,
    number: u64,
}

/// The cuts of the watches of a kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cut {
    /// How many there were.
    pub(crate) count: u64,
    /// Whether the last one broke the connections, and did not end the streams.
    pub(crate) breaks: bool,
}

impl State {
    pub(crate) fn new(start: Timestamp) -> Self {
        let mut state = Self {
            store: Store::new(),
            faults: Faults::default(),
            log: Vec::new(),
            cuts: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            serves_gangs: false,
            starts: 0,
            start,
            began: Instant::now(),
            number: 0,
        };
        for name in ["default", "kube-system"] {
            state.add_namespace(name);
        }
        for (name, value) in
            [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)]
        {
            let class = json!({"metadata": {"name": name}, "value": value});
            state.add(Kind::PriorityClass, name, class);
        }
        state
    }

    fn add_namespace(&mut self, name: &str) {
        let mut object = json!({"metadata": {"name": name}});
        rules::prepare_new(Kind::Namespace, &mut object);
        self.add(Kind::Namespace, name, object);
    }

    fn add(&mut self, kind: Kind, key: &str, mut object: Value) {
        object["kind"] = kind.facts().name.into();
        object["apiVersion"] = kind.api_version().into();
        metadata::fill(kind, &mut object, self.next_number(), self.now());
        self.store.put(kind, key, object);
    }

    /// The time on the model's clock, which goes with that of tokio.
    pub(crate) fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.began.elapsed()).unwrap_or_default();
        self.start.saturating_add(elapsed).unwrap_or(self.start)
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Does the work of any call but a watch.
    pub(crate) fn handle(&mut self, call: &Call, body: Value) -> Result<Answer, Refusal> {
        match call.verb {
            Verb::Get | Verb::Watch => {
                let found = self.find(call)?;
                Ok((200, Value::clone(&found)))
            }
            Verb::List => self.list(call).map(|list| (200, list)),
            Verb::Create if call.subresource == "binding" => self.bind(call, &body),
            Verb::Create => self.create(call, body).map(|object| (201, object)),
            Verb::Update => self.update(call, body),
            Verb::Patch => self.patch(call, &body).map(|object| (200, object)),
            Verb::Delete => {
                let options = DeleteOptions::read(call, &body)?;
                let object = self.delete(call, &call.key(), &call.name, &options)?;
                Ok((200, object))
            }
            Verb::DeleteCollection => self.delete_all(call, &body).map(|list| (200, list)),
        }
    }

    /// The object of the call's path.
    pub(crate) fn find(&self, call: &Call) -> Result<Object, Refusal> {
        let found = self.store.get(call.kind, &call.key());
        found.cloned().ok_or_else(|| Refusal::not_found(call.kind, &call.name))
    }

    fn create(&mut self, call: &Call, mut object: Value) -> Result<Value, Refusal> {
        if call.new_events {
            rules::to_core_event(&mut object);
        }
        metadata::fits_path(call, &mut object)?;
        metadata::prune(&mut object);
        self.check_namespace(call, true)?;
        self.faults.admit(Phase::Mutating, call, &mut object, None)?;
        let has_version = version_of(&object) != 0;
        let generates = object["metadata"]["name"].as_str().is_none_or(str::is_empty);
        loop {
            let mut new = object.clone();
            metadata::fill(call.kind, &mut new, self.next_number(), self.now());
            metadata::of(&mut new).remove("resourceVersion");
            let labels = |object: &Value| object["metadata"].get("labels").is_some();
            let is_labelled = labels(&new) || labels(&new["spec"]["template"]);
            if !self.serves_gangs {
                gangs::drop_fields(call.kind, &mut new);
            }
            rules::prepare_new(call.kind, &mut new);
            metadata::check_new(&new)?;
            rules::check_new(call.kind, &new)?;
            self.review(call, &new, None)?;
            if has_version {
                let message = "resourceVersion should not be set on objects to be created";
                return Err(Refusal::new(500, "", message));
            }
            let name = new["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let key = crate::store::key(call.kind, &call.namespace, &name);
            if self.store.get(call.kind, &key).is_none() {
                if call.kind == Kind::Job && !is_labelled {
                    let uid = new["metadata"]["uid"].as_str().unwrap_or_default();
                    self.unsettled.insert(uid.to_owned());
                }
                return Ok(Value::clone(&self.store.put(call.kind, &key, new)));
            }
            if !generates {
                return Err(Refusal::already_exists(call.kind, &name));
            }
        }
    }

    /// Checks the namespace of a write: it exists, and takes new objects.
    fn check_namespace(&self, call: &Call, creates: bool) -> Result<(), Refusal> {
        if call.namespace.is_empty() {
            return Ok(());
        }
        let Some(namespace) = self.store.get(Kind::Namespace, &call.namespace) else {
            return Err(Refusal::not_found(Kind::Namespace, &call.namespace));
        };
        let ends = namespace["metadata"].get("deletionTimestamp").is_some();
        if creates && (ends || namespace["status"]["phase"] == "Terminating") {
            return Err(Refusal::terminating(&call.namespace));
        }
        Ok(())
    }

    /// Asks validating admission, and the quota of a new object.
    pub(crate) fn review(
        &mut self,
        call: &Call,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Refusal> {
        let kind = call.kind;
        self.faults.admit(Phase::Validating, call, &mut object.clone(), old)?;
        let quota = self.faults.quotas.get(&(kind, call.namespace.clone()));
        let used = || self.store.list(kind, &crate::store::prefix(kind, &call.namespace)).len();
        if old.is_none() && quota.is_some_and(|quota| used() >= *quota) {
            return Err(Refusal::exceeded_quota(kind));
        }
        Ok(())
    }

    fn update(&mut self, call: &Call, mut new: Value) -> Result<Answer, Refusal> {
        if call.new_events {
            rules::to_core_event(&mut new);
        }
        metadata::fits_path(call, &mut new)?;
        metadata::fits_name(call, &new)?;
        metadata::prune(&mut new);
        let facts = call.kind.facts();
        let Ok(old) = self.find(call) else {
            if facts.creates_by_put && new["metadata"]["uid"].is_string() {
                return Err(Refusal::conflict("Precondition failed: UID in precondition"));
            }
            if facts.creates_by_put && call.subresource.is_empty() {
                return self.create(call, new).map(|object| (201, object));
            }
            self.check_namespace(call, false)?;
            return Err(Refusal::not_found(call.kind, &call.name));
        };
        let uid = &new["metadata"]["uid"];
        if uid.is_string() && *uid != old["metadata"]["uid"] {
            return Err(Refusal::conflict("Precondition failed: UID in precondition"));
        }
        self.replace(call, new, &old).map(|object| (200, object))
    }

    fn patch(&mut self, call: &Call, body: &Value) -> Result<Value, Refusal> {
        let format = call.patch_format()?;
        let old = self.find(call)?;
        let mut new = Value::clone(&old);
        match format {
            PatchFormat::Json => patch::json(&mut new, body)?,
            PatchFormat::Merge => patch::merge(&mut new, body),
            PatchFormat::Strategic => patch::strategic(&mut new, body)?,
        }
        metadata::prune(&mut new);
        metadata::fits_path(call, &mut new)?;
        metadata::fits_name(call, &new)?;
        self.replace(call, new, &old)
    }

    /// Writes an object in place of another one.
    fn replace(&mut self, call: &Call, mut new: Value, old: &Object) -> Result<Value, Refusal> {
        let facts = call.kind.facts();
        self.faults.admit(Phase::Mutating, call, &mut new, Some(old))?;
        let version = version_of(&new);
        if version == 0 && !facts.unconditional {
            let problem = "must be specified for an update";
            return Err(Refusal::invalid("metadata.resourceVersion", "FieldValueInvalid", problem));
        }
        let is_old = version != 0 && version != version_of(old);
        if is_old && !self.faults.has(Flaw::IgnoresConflicts) {
            return Err(Refusal::modified(call.kind, &call.name));
        }
        for field in ["resourceVersion", "generation"] {
            match old["metadata"].get(field) {
                Some(value) => new["metadata"][field] = value.clone(),
                None => drop(metadata::of(&mut new).remove(field)),
            }
        }
        if self.faults.has(Flaw::IgnoresUid) {
            new["metadata"]["uid"] = old["metadata"]["uid"].clone();
        }
        if !(call.subresource == "status" && self.faults.has(Flaw::StatusWritesSpec)) {
            keep_the_rest(call, &mut new, old);
        }
        if call.subresource.is_empty() {
            rules::check_update(call.kind, &mut new, old)?;
            if facts.has_generation && new.get("spec") != old.get("spec") {
                let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
                new["metadata"]["generation"] = (generation + 1).into();
            }
        } else {
            rules::check_status(call.kind, &mut new, old)?;
        }
        metadata::check_update(&mut new, old)?;
        metadata::prune(&mut new);
        self.review(call, &new, Some(old))?;
        Ok(self.store_changed(call.kind, &call.key(), new, old))
    }

    /// Stores a changed object. Without a change there is no version; without its last finalizer an
    /// object that is being deleted goes.
    fn store_changed(&mut self, kind: Kind, key: &str, new: Value, old: &Object) -> Value {
        let waits = new["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
        let is_held = metadata::is_held(&new) && !self.faults.has(Flaw::IgnoresFinalizers);
        let is_free = !(is_held || kind == Kind::Namespace && waits);
        if metadata::is_ending(old) && is_free {
            self.store.remove(kind, key);
            return new;
        }
        let uid = new["metadata"]["uid"].as_str().unwrap_or_default();
        let settles = self.unsettled.remove(uid);
        if new == **old && !settles && !self.faults.has(Flaw::ShowsNoChange) {
            return new;
        }
        Value::clone(&self.store.put(kind, key, new))
    }

    fn bind(&mut self, call: &Call, binding: &Value) -> Result<Answer, Refusal> {
        let node = pods::target(binding)?;
        let old = self.find(call)?;
        let mut pod = Value::clone(&old);
        pods::bind(&mut pod, node, &metadata::seconds(self.now()))?;
        self.review(call, &pod, Some(&old))?;
        self.store.put(Kind::Pod, &call.key(), pod);
        let mut done = success(json!({}));
        done["code"] = 201.into();
        Ok((201, done))
    }

    /// Records a call and its answer.
    pub(crate) fn record(
        &mut self,
        call: &Call,
        body: Value,
        answer: &Result<Answer, Refusal>,
        is_lost: bool,
    ) {
        let (code, reason, content) = match answer {
            Ok((code, content)) => (*code, String::new(), content.clone()),
            Err(refusal) => (refusal.code, refusal.reason.clone(), refusal.status()),
        };
        self.log.push(Access {
            at: self.now(),
            agent: call.agent.clone(),
            verb: call.verb,
            kind: call.kind,
            namespace: call.namespace.clone(),
            name: call.name.clone(),
            subresource: call.subresource.clone(),
            query: Arc::new(call.query.clone()),
            body: Arc::new(body),
            is_protobuf: call.protobuf || call.content.starts_with(PROTOBUF),
            code,
            reason,
            answer: Arc::new(content),
            version: self.store.version(),
            is_lost,
        });
    }
}

/// A write of the status keeps everything but it and the metadata; any other write keeps the
/// status.
fn keep_the_rest(call: &Call, new: &mut Value, old: &Value) {
    let kept: &[&str] = match call.subresource.as_str() {
        "status" => &["spec"],
        "finalize" => &["metadata", "status"],
        _ if call.kind.facts().has_status => &["status"],
        _ => &[],
    };
    let Some(fields) = new.as_object_mut() else { return };
    for field in kept {
        match old.get(*field) {
            Some(value) => fields.insert((*field).to_owned(), value.clone()),
            None => fields.remove(*field),
        };
    }
}

/// A Status of success.
pub(crate) fn success(details: Value) -> Value {
    let mut status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if details.as_object().is_some_and(|details| !details.is_empty()) {
        status["details"] = details;
    }
    status
}
