//! One side of the comparison: sends requests, and fills in what only this side knows.

use std::collections::HashMap;

use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use http::Request;
use kube::Client;
use kube::client::Body;
use model_api::{PROTOBUF, protobuf};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// A request, the same for both sides.
///
/// In its body `{"@object": PATH, "back": N, "merge": PATCH}` stands for an object as it was N
/// answers ago, with this merge patch; the strings `@uid PATH` and `@version PATH N` stand for its
/// UID and its version.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) content: &'static str,
    pub(crate) accept: &'static str,
    pub(crate) body: Value,
}

/// The code and the body of an answer.
pub(crate) type Answer = (u16, Value);

/// A client, and what it has seen.
pub(crate) struct Side {
    client: Client,
    seen: HashMap<String, Vec<Value>>,
    /// The token of the last page, and its version.
    token: String,
    page: String,
}

impl Side {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, seen: HashMap::new(), token: String::new(), page: String::new() }
    }

    /// Sends a request.
    pub(crate) async fn send(&mut self, step: &Step) -> Answer {
        let query = step.query.replace("@token", &self.token).replace("@page", &self.page);
        let version = self.version_of(&step.path, 0);
        let query = query.replace("@version", &version);
        let uri =
            if query.is_empty() { step.path.clone() } else { format!("{}?{query}", step.path) };
        let body = if step.body.is_null() {
            Vec::new()
        } else if step.content == PROTOBUF {
            let mut object = self.filled(&step.body);
            let job = step.path.starts_with("/apis/batch/");
            let (kind, version) = if job { ("Job", "batch/v1") } else { ("Pod", "v1") };
            merge(&mut object, &json!({"kind": kind, "apiVersion": version}));
            protobuf(&object)
        } else {
            self.filled(&step.body).to_string().into_bytes()
        };
        let request = Request::builder().method(step.method).uri(uri);
        let request = request.header("content-type", step.content).header("accept", step.accept);
        let request = request.body(Body::from(body)).expect("must be a request");
        let response = self.client.send(request).await.expect("an answer");
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await.expect("a whole answer");
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        self.learn(step, &answer);
        (code, answer)
    }

    fn learn(&mut self, step: &Step, answer: &Value) {
        if let Some(token) = answer["metadata"]["continue"].as_str().filter(|it| !it.is_empty()) {
            token.clone_into(&mut self.token);
            // A refusal with a token has no version.
            if let Some(version) = answer["metadata"]["resourceVersion"].as_str() {
                version.clone_into(&mut self.page);
            }
        }
        let metadata = &answer["metadata"];
        let (Some(name), Some(_)) = (metadata["name"].as_str(), metadata["uid"].as_str()) else {
            return;
        };
        let path = step.path.trim_end_matches("/status");
        let is_named = path.ends_with(&format!("/{name}"));
        let path = if is_named { path.to_owned() } else { format!("{path}/{name}") };
        self.seen.entry(path).or_default().push(answer.clone());
    }

    /// An object as it was `back` answers ago.
    fn seen(&self, path: &str, back: usize) -> Value {
        let all = self.seen.get(path).map(Vec::as_slice).unwrap_or_default();
        all.iter().rev().nth(back).or(all.first()).cloned().unwrap_or_else(|| {
            let name = path.rsplit('/').next().unwrap_or_default();
            json!({"metadata": {"name": name}})
        })
    }

    fn version_of(&self, path: &str, back: usize) -> String {
        let object = self.seen(path, back);
        object["metadata"]["resourceVersion"].as_str().unwrap_or("1").to_owned()
    }

    fn filled(&self, body: &Value) -> Value {
        match body {
            Value::Object(fields) => {
                if let Some(path) = fields.get("@object").and_then(Value::as_str) {
                    let back = fields["back"].as_u64().unwrap_or(0) as usize;
                    let mut object = self.seen(path, back);
                    // Older ones would be a change.
                    merge(&mut object, &json!({"metadata": {"managedFields": null}}));
                    merge(&mut object, &self.filled(&fields["merge"]));
                    return object;
                }
                fields.iter().map(|(name, value)| (name.clone(), self.filled(value))).collect()
            }
            Value::Array(items) => items.iter().map(|item| self.filled(item)).collect(),
            Value::String(text) => {
                let words: Vec<&str> = text.split(' ').collect();
                match words[..] {
                    ["@uid", path] => match self.seen(path, 0)["metadata"]["uid"].take() {
                        Value::Null => "none".into(),
                        uid => uid,
                    },
                    ["@version", path, back] => {
                        self.version_of(path, back.parse().unwrap_or(0)).into()
                    }
                    _ => body.clone(),
                }
            }
            _ => body.clone(),
        }
    }

    /// Opens a watch, and collects its events until one fits.
    pub(crate) async fn watch(
        &self,
        uri: String,
        is_last: fn(&Value) -> bool,
    ) -> JoinHandle<Vec<Value>> {
        let request = Request::get(&uri).body(Vec::new()).expect("must be a request");
        let stream = self.client.request_stream(request).await.expect("a watch");
        tokio::spawn(async move {
            let mut lines = stream.lines();
            let mut events = Vec::new();
            while let Some(line) = lines.try_next().await.expect("an event") {
                let event: Value = serde_json::from_str(&line).expect("must be an event");
                let is_end = is_last(&event) || event["type"] == "ERROR";
                if event["type"] != "BOOKMARK" || has_end(&event) {
                    events.push(event);
                }
                if is_end {
                    break;
                }
            }
            events
        })
    }
}

/// Whether it is the bookmark that ends the initial events.
fn has_end(event: &Value) -> bool {
    event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"
}

/// Merges by RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    for (field, value) in patch {
        if value.is_null() {
            target.as_object_mut().map(|fields| fields.remove(field));
        } else {
            merge(&mut target[field.as_str()], value);
        }
    }
}
