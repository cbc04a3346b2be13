//! Writes the agent's actions to the API: one attempt each, with its result. Retries and chooses
//! nothing.

use std::time::Duration;

use agent_core::pod::PodView;
use agent_core::protocol::action::{Action, PodRef};
use agent_core::protocol::event::ActionResult;
use agent_core::termination::patches;
use epilogue_common::names::node::{READINESS, SHUTTING_DOWN_TAINT, STATE};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use epilogue_runtime::api_error::classify;
use epilogue_runtime::reply;
use epilogue_runtime::watch::Newest;
use http::{HeaderValue, Method, header};
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::calls::{JSON, MERGE, STRATEGIC, is_our_taint, request, within};
use crate::metrics::Metrics;
use crate::source::wire_pod::WirePod;

/// Maximum time of one attempt with all of its round trips.
const ATTEMPT_MAX: Duration = Duration::from_secs(1);
/// The agent's name in `managedFields`.
const MANAGER: &str = "epilogue-agent";
/// A write needs only the metadata of its result.
const BRIEF: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// The newest known versions, from the watches and from the answers to calls. A backup of etcd may
/// be older than an answer, and younger than all that a watch has shown: the watch notices it by
/// these. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct NewestVersions {
    /// Of pods.
    pub pods: Newest,
    /// Of nodes.
    pub nodes: Newest,
}

/// What the agent needs of an answer to a write.
#[derive(Deserialize)]
struct Written {
    metadata: Version,
}

#[derive(Deserialize)]
struct Version {
    #[serde(rename = "resourceVersion")]
    resource_version: String,
}

/// Carries out actions by calls to the API.
#[derive(Clone)]
pub struct ApiSink {
    client: Client,
    node: String,
    metrics: Metrics,
    newest: NewestVersions,
}

impl ApiSink {
    /// A sink for the node of this name, which notes the versions of answers.
    pub fn new(client: Client, node: String, metrics: Metrics, newest: NewestVersions) -> Self {
        Self { client, node, metrics, newest }
    }

    /// Carries out one of the actions that it takes.
    pub async fn carry_out(&self, action: Action) -> ActionResult {
        let verb = verb(&action).unwrap_or("none");
        let begun = Instant::now();
        let result = match &action {
            Action::ReadPod(pod) => ActionResult::Pod(within(ATTEMPT_MAX, self.read(pod)).await),
            Action::PatchStatus { pod, body, .. } => ActionResult::Patched(
                within(ATTEMPT_MAX, self.patch_pod(pod, "/status", body)).await,
            ),
            action => ActionResult::Done(within(ATTEMPT_MAX, self.write(action)).await),
        };
        let failure = match &result {
            ActionResult::Done(Err(failure))
            | ActionResult::Patched(Err(failure))
            | ActionResult::Pod(Err(failure)) => Some(failure),
            _ => None,
        };
        self.metrics.call(verb, failure.map(|failure| failure.kind), begun.elapsed());
        if let Some(failure) = failure {
            tracing::debug!(verb, kind = ?failure.kind, %failure, "call to the API failed");
        }
        result
    }

    async fn write(&self, action: &Action) -> Outcome<()> {
        match action {
            Action::Announce(state) => {
                let body = json!({"metadata": {"annotations": {STATE: state}}});
                self.patch_node("", MERGE, &body).await
            }
            Action::Publish(readiness) => {
                let body = json!({"metadata": {"annotations": {READINESS: readiness}}});
                self.patch_node("", MERGE, &body).await
            }
            Action::Taint { present } => self.taint(*present).await,
            Action::SetNodeCondition { kind, stands, reason, message, since } => {
                let body = patches::node_condition(kind, *stands, reason, message, *since);
                self.patch_node("/status", STRATEGIC, &body).await
            }
            Action::PatchPod { pod, body } => self.patch_pod(pod, "", body).await.map(drop),
            Action::DeletePod { pod, version, grace_seconds } => {
                self.delete(pod, version, *grace_seconds).await
            }
            _ => Err(Failure::new(FailureKind::Other, "not a call to the API")),
        }
    }

    async fn read(&self, pod: &PodRef) -> Outcome<Option<Box<PodView>>> {
        match self.get::<WirePod>(&pod_path(pod)).await {
            Ok(found) if found.is(&pod.uid) => {
                let found = found.view();
                note(&self.newest.pods, &found.resource_version);
                Ok(Some(Box::new(found)))
            }
            // A pod of the same name with another UID: the agent's pod is gone.
            Ok(_) => Ok(None),
            Err(failure) if failure.kind == FailureKind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Returns the version that the write has made, if the answer says it.
    async fn patch_pod(&self, pod: &PodRef, of: &str, body: &Value) -> Outcome<Option<String>> {
        let path = format!("{}{of}?fieldManager={MANAGER}", pod_path(pod));
        self.send(Method::PATCH, &path, (STRATEGIC, body), &self.newest.pods).await
    }

    async fn delete(&self, pod: &PodRef, version: &str, grace_seconds: u32) -> Outcome<()> {
        let options = json!({
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {"uid": pod.uid, "resourceVersion": version},
            "gracePeriodSeconds": grace_seconds.max(1),
        });
        let newest = &self.newest.pods;
        self.send(Method::DELETE, &pod_path(pod), (JSON, &options), newest).await.map(drop)
    }

    /// Adds or removes the taint. The API has one list of taints, so the agent reads and writes it
    /// as a whole, only at the version that it read. Changes of others stay, and this attempt then
    /// fails as a conflict.
    async fn taint(&self, present: bool) -> Outcome<()> {
        let node: Value = self.get(&self.node_path()).await?;
        // As they are: the taints of others go back with all their fields.
        let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        if taints.iter().any(is_our_taint) == present {
            return Ok(());
        }
        if present {
            taints.push(json!({"key": SHUTTING_DOWN_TAINT, "effect": "NoSchedule"}));
        } else {
            taints.retain(|taint| !is_our_taint(taint));
        }
        let body = json!({
            "metadata": {"resourceVersion": node["metadata"]["resourceVersion"]},
            "spec": {"taints": taints},
        });
        self.patch_node("", MERGE, &body).await
    }

    fn node_path(&self) -> String {
        format!("/api/v1/nodes/{}", self.node)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Outcome<T> {
        let request = request(Method::GET, path, None)?;
        reply::read(&self.client, request).await.map_err(classify)
    }

    async fn patch_node(&self, of: &str, kind: &str, body: &Value) -> Outcome<()> {
        let path = format!("{}{of}?fieldManager={MANAGER}", self.node_path());
        self.send(Method::PATCH, &path, (kind, body), &self.newest.nodes).await.map(drop)
    }

    /// Returns the version of the written object, if the answer says it, and notes it as the newest
    /// of its kind.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: (&str, &Value),
        newest: &Newest,
    ) -> Outcome<Option<String>> {
        let mut request = request(method, path, Some(body))?;
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(BRIEF));
        let answer = self.client.request_text(request).await.map_err(classify)?;
        let written = serde_json::from_str::<Written>(&answer);
        let version = written.ok().map(|written| written.metadata.resource_version);
        note(newest, version.as_deref().unwrap_or_default());
        Ok(version)
    }
}

/// Notes the version of an object in an answer.
fn note(newest: &Newest, version: &str) {
    newest.reached(version.parse().unwrap_or(0));
}

fn pod_path(pod: &PodRef) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

/// The action's name in metrics; `None` if it is not a call to the API.
fn verb(action: &Action) -> Option<&'static str> {
    match action {
        Action::Announce(_) => Some("announce"),
        Action::Publish(_) => Some("publish"),
        Action::Taint { .. } => Some("taint"),
        Action::SetNodeCondition { .. } => Some("patch-node-status"),
        Action::PatchStatus { .. } => Some("patch-status"),
        Action::PatchPod { .. } => Some("patch-pod"),
        Action::DeletePod { .. } => Some("delete-pod"),
        Action::ReadPod(_) => Some("read-pod"),
        _ => None,
    }
}
