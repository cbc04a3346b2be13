//! Carries out single steps against the API. Only this file writes Jobs and pods; it decides nothing
//! and retries nothing.

use std::fmt;
use std::sync::Arc;

use controller_core::job::{
    Answer, LiveJob, Step, WrittenPod, claim_patch, delete_options, fail_pending_patch, pod_body,
    remove_finalizer_patch, status_body,
};
use controller_core::view::{Job, JobKey, Pod, Version, WireJob};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use epilogue_runtime::api_error::classify;
use epilogue_runtime::reply;
use futures::{StreamExt as _, stream};
use http::{Method, Request, header};
use jiff::Timestamp;
use kube::Client;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

/// Maximum number of concurrent calls of the process. A larger burst only queues up in the API
/// server.
const CALLS_MAX: usize = 64;
/// Maximum size of the pod bodies that one sync holds at once, in bytes: a template may have 1.5
/// MB.
const BODIES_MAX: usize = 4 << 20;

const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
const JSON: &str = "application/json";

/// Carries out the controller's writes.
pub(crate) struct Executor {
    client: Client,
    calls: Semaphore,
}

/// The fields that are read from the reply to a write.
#[derive(Debug, Deserialize)]
struct PodReply {
    metadata: ReplyMeta,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReplyMeta {
    uid: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    resource_version: String,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
}

impl Executor {
    /// Creates an executor on this client.
    pub(crate) fn new(client: Client) -> Self {
        Self { client, calls: Semaphore::new(CALLS_MAX) }
    }

    /// How many calls one sync of a Job makes at once. A call builds its body when it starts:
    /// hundreds of large bodies take too much memory.
    pub(crate) fn at_once(&self, job: &Job, creates: bool) -> usize {
        let bodies = BODIES_MAX / job.spec.template.as_str().len().max(1);
        if creates { bodies.clamp(1, CALLS_MAX) } else { CALLS_MAX }
    }

    /// Carries out one step for a Job, based on the Job that the last write returned.
    pub(crate) async fn execute(&self, job: &Job, step: &Step) -> Outcome<Answer> {
        match step {
            Step::ConfirmJob => self.live_job(&job.key).await.map(Answer::Live),
            Step::Claim(claim) => {
                self.patch(&claim.pod, claim_patch(job, claim)).await.map(Answer::Pod)
            }
            Step::Create(draft) => {
                let path = pods_path(&job.key.namespace);
                self.create(&path, &pod_body(job, draft)).await.map(Answer::Pod)
            }
            Step::Strip(pod) | Step::RemoveFinalizer(pod) => {
                self.patch(pod, remove_finalizer_patch(pod)).await.map(Answer::Pod)
            }
            Step::Delete(pod) => self.delete(pod).await,
            Step::FailPending(pod) => self.fail_pending(pod).await.map(Answer::Pod),
            Step::WriteStatus(status) => match status_body(job, status) {
                Ok(body) => self.write_status(&job.key, &body).await.map(Answer::Job),
                Err(error) => Err(unwritable(&error)),
            },
        }
    }

    /// Removes the tracking finalizer from these pods.
    pub(crate) async fn remove_finalizers(&self, pods: &[Arc<Pod>]) -> Vec<Outcome<WrittenPod>> {
        let calls: Vec<_> =
            pods.iter().map(|pod| self.patch(pod, remove_finalizer_patch(pod))).collect();
        stream::iter(calls).buffered(CALLS_MAX).collect().await
    }

    /// Reads the Job of this name live from the API.
    pub(crate) async fn live_job(&self, key: &JobKey) -> Outcome<LiveJob> {
        let reply: PodReply =
            self.call(Method::GET, &job_path(key, ""), JSON, None::<&Value>).await?;
        let deleting = reply.metadata.deletion_timestamp.is_some();
        Ok(LiveJob { uid: reply.metadata.uid.into(), deleting })
    }

    async fn create(&self, path: &str, body: &RawValue) -> Outcome<WrittenPod> {
        let reply: PodReply = self.call(Method::POST, path, JSON, Some(body)).await?;
        Ok(reply.into())
    }

    async fn patch(&self, pod: &Pod, body: Value) -> Outcome<WrittenPod> {
        let path = pod_path(pod);
        let reply: PodReply = self.call(Method::PATCH, &path, STRATEGIC_MERGE, Some(&body)).await?;
        Ok(reply.into())
    }

    async fn delete(&self, pod: &Pod) -> Outcome<Answer> {
        let options = delete_options(pod);
        let _: Value = self.call(Method::DELETE, &pod_path(pod), JSON, Some(&options)).await?;
        Ok(Answer::Deleted)
    }

    async fn fail_pending(&self, pod: &Pod) -> Outcome<WrittenPod> {
        let path = format!("{}/status", pod_path(pod));
        let body = fail_pending_patch(pod, Timestamp::now());
        let reply: PodReply = self.call(Method::PATCH, &path, STRATEGIC_MERGE, Some(&body)).await?;
        Ok(reply.into())
    }

    async fn write_status(&self, key: &JobKey, body: &RawValue) -> Outcome<Arc<Job>> {
        let path = job_path(key, "/status");
        // A `Value` would limit the nesting to 128 levels.
        let reply: WireJob = self.call(Method::PUT, &path, JSON, Some(body)).await?;
        let job = reply.complete().and_then(WireJob::view);
        // The write succeeded, but its version is unknown: the caller must read the Job again.
        job.map(Arc::new).map_err(|error| {
            Failure::new(FailureKind::Unknown, format!("cannot read the reply: {error}"))
        })
    }

    async fn call<T: DeserializeOwned, B: Serialize + ?Sized>(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&B>,
    ) -> Outcome<T> {
        let body = match body {
            None => Vec::new(),
            Some(body) => serde_json::to_vec(body).map_err(|error| unwritable(&error))?,
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content)
            .header(header::ACCEPT, JSON)
            .body(body)
            .map_err(|error| classify(kube::Error::HttpError(error)))?;
        let _permit = self.calls.acquire().await;
        reply::read(&self.client, request).await.map_err(classify)
    }
}

fn unwritable(error: &serde_json::Error) -> Failure {
    Failure::new(FailureKind::Other, format!("cannot write the request: {error}"))
}

// Names of API objects need no escaping: they are DNS names.
fn pods_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

fn pod_path(pod: &Pod) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

fn job_path(key: &JobKey, subresource: &str) -> String {
    format!("/apis/batch/v1/namespaces/{}/jobs/{}{subresource}", key.namespace, key.name)
}

impl From<PodReply> for WrittenPod {
    fn from(reply: PodReply) -> Self {
        Self {
            uid: reply.metadata.uid.into(),
            name: reply.metadata.name.into(),
            version: Version::parse(&reply.metadata.resource_version),
        }
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Executor").finish_non_exhaustive()
    }
}
