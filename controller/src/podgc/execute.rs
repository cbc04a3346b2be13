//! Carries out the writes of pod GC and of disruption, and reads nodes live. It decides nothing and
//! retries nothing.

use std::fmt;

use controller_core::podgc::{PodWrite, untaint_patch};
use controller_core::view::Version;
use epilogue_common::outcome::{FailureKind, Outcome};
use epilogue_runtime::api_error::classify;
use epilogue_runtime::reply;
use http::{Method, Request, header};
use jiff::Timestamp;
use kube::Client;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Value, json};

const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

/// Carries out pod GC's calls. It has a client of its own, with a rate limit.
pub(crate) struct Executor {
    client: Client,
}

/// The fields that are read from the reply to a patch.
#[derive(Debug, Deserialize)]
struct PodReply {
    metadata: ReplyMeta,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReplyMeta {
    #[serde(default)]
    resource_version: String,
}

impl Executor {
    /// Creates an executor on this client.
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Reads live whether the API has a node of this name. ([GC7])
    pub(crate) async fn node_exists(&self, name: &str) -> Outcome<bool> {
        let path = format!("/api/v1/nodes/{name}");
        match self.call::<IgnoredAny>(Method::GET, &path, JSON, None).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.kind == FailureKind::NotFound => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Removes the agent's taint from a node, based on a live read. Returns whether it was there.
    pub(crate) async fn untaint(&self, name: &str) -> Outcome<bool> {
        let path = format!("/api/v1/nodes/{name}");
        let node: Value = match self.call(Method::GET, &path, JSON, None).await {
            Err(failure) if failure.kind == FailureKind::NotFound => return Ok(false),
            node => node?,
        };
        let Some(patch) = untaint_patch(&node, Timestamp::now()) else { return Ok(false) };
        let patched = self.call::<IgnoredAny>(Method::PATCH, &path, MERGE, Some(&patch)).await;
        patched.map(|_| true)
    }

    /// Patches a pod's status, and returns the new version.
    pub(crate) async fn patch(&self, write: &PodWrite, patch: &Value) -> Outcome<Version> {
        let path = format!("{}/status", path(write));
        let reply: PodReply = self.call(Method::PATCH, &path, STRATEGIC_MERGE, Some(patch)).await?;
        Ok(Version::parse(&reply.metadata.resource_version))
    }

    /// Deletes a pod with a grace period of 0.
    ///
    /// DIVERGES(upstream): the deletion has the pod's UID as a precondition. Without it, a new pod
    /// of the same name would be deleted. ([GC2])
    pub(crate) async fn delete(&self, write: &PodWrite) -> Outcome<()> {
        let options = json!({
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": write.uid.as_str()},
        });
        let path = path(write);
        self.call::<IgnoredAny>(Method::DELETE, &path, JSON, Some(&options)).await.map(drop)
    }

    /// Writes an Event.
    pub(crate) async fn create_event(&self, namespace: &str, event: &Value) -> Outcome<()> {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        self.call::<IgnoredAny>(Method::POST, &path, JSON, Some(event)).await.map(drop)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Outcome<T> {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content)
            .header(header::ACCEPT, JSON)
            .body(body)
            .map_err(|error| classify(kube::Error::HttpError(error)))?;
        reply::read(&self.client, request).await.map_err(classify)
    }
}

// Names of API objects need no escaping: they are DNS names.
fn path(write: &PodWrite) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", write.namespace, write.name)
}

impl fmt::Debug for Executor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Executor").finish_non_exhaustive()
    }
}
