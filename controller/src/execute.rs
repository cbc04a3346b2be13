//! Carries out steps against the API. Only this file writes Jobs and pods; it decides nothing and
//! retries nothing.

use std::fmt;
use std::sync::Arc;

use controller_core::job::{
    Body, LiveJob, PodDeletion, Step, StepOutcome, WrittenPod, claim_patch, delete_options,
    fail_pending_patch, pod_body, remove_finalizer_patch, status_body,
};
use controller_core::view::{Job, JobKey, Pod, Reply, Version, WireJob};
use epilogue_common::names::media_type::JSON;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use epilogue_runtime::api_error::classify;
use epilogue_runtime::reply;
use epilogue_runtime::watch::Read;
use futures::{StreamExt as _, stream};
use http::{Method, Request, header};
use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use tokio::sync::Semaphore;

/// Maximum number of concurrent calls of the process. A larger burst only queues up in the API
/// server.
const CALLS_MAX: usize = 64;
/// Maximum size of the pod bodies that one sync holds at once, in bytes: a template may have 1.5
/// MB.
const BODIES_MAX: usize = 4 << 20;

const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

/// What is read of the reply to a write.
const REPLY: Read<Reply> = Read { json: Reply::read, protobuf: Some(Reply::decode) };
/// The Job in the reply to a status write.
const JOB: Read<Job> = Read {
    json: |text| WireJob::read(text)?.view(),
    protobuf: Some(|message| Job::decode(message).map(|(job, _)| job)),
};
/// A reply that says no more than that the call succeeded.
const NOTHING: Read<()> = Read { json: |_| Ok(()), protobuf: Some(|_| Ok(())) };

/// Carries out the controller's writes.
pub(crate) struct Executor {
    client: Client,
    calls: Semaphore,
}

impl Executor {
    /// Creates an executor on this client.
    pub(crate) fn new(client: Client) -> Self {
        Self { client, calls: Semaphore::new(CALLS_MAX) }
    }

    /// Carries out one step for a Job, based on the Job that the last write returned.
    pub(crate) async fn execute(&self, job: &Job, step: Step) -> StepOutcome {
        match step {
            Step::ConfirmJob => StepOutcome::Confirmed(self.live_job(&job.key).await),
            Step::Claim(claims) => {
                let calls: Vec<_> = claims
                    .iter()
                    .map(|claim| self.patch(&claim.pod, claim_patch(job, claim)))
                    .collect();
                StepOutcome::Written(all(calls).await)
            }
            Step::Create(drafts) => {
                let path = pods_path(&job.key.namespace);
                // Each body is built when its call starts: hundreds of large bodies take too much
                // memory.
                let create = async |draft| self.create(&path, pod_body(job, draft)).await;
                let calls: Vec<_> = drafts.iter().map(create).collect();
                let at_once = BODIES_MAX / job.source.template_size().max(1);
                StepOutcome::Written(at_once_at_most(at_once.clamp(1, CALLS_MAX), calls).await)
            }
            Step::Delete(deletions) => {
                let calls: Vec<_> = deletions.iter().map(|each| self.delete(each)).collect();
                StepOutcome::Deleted(all(calls).await)
            }
            Step::FailPending(pods) => {
                let calls: Vec<_> = pods.iter().map(|pod| self.fail_pending(pod)).collect();
                StepOutcome::Written(all(calls).await)
            }
            Step::WriteStatus(status) => {
                let written = match status_body(job, &status) {
                    Ok(body) => self.write_status(&job.key, body).await,
                    Err(error) => Err(unwritable(&error)),
                };
                StepOutcome::Status(Box::new(written))
            }
            Step::RemoveFinalizer(pods) => {
                StepOutcome::Written(self.remove_finalizers(&pods).await)
            }
        }
    }

    /// Removes the tracking finalizer from these pods.
    pub(crate) async fn remove_finalizers(&self, pods: &[Arc<Pod>]) -> Vec<Outcome<WrittenPod>> {
        let calls: Vec<_> =
            pods.iter().map(|pod| self.patch(pod, remove_finalizer_patch(pod))).collect();
        all(calls).await
    }

    /// Reads the Job of this name live from the API.
    pub(crate) async fn live_job(&self, key: &JobKey) -> Outcome<LiveJob> {
        let reply = self.call(Method::GET, &job_path(key, ""), JSON, Vec::new(), &REPLY).await?;
        Ok(LiveJob { uid: reply.uid.into(), deleting: reply.deleting })
    }

    async fn create(&self, path: &str, body: Body) -> Outcome<WrittenPod> {
        let content = body.content_type();
        let reply = self.call(Method::POST, path, content, body.into_bytes(), &REPLY).await?;
        Ok(written(reply))
    }

    async fn patch(&self, pod: &Pod, body: Value) -> Outcome<WrittenPod> {
        self.patch_at(&pod_path(pod), &body).await
    }

    async fn patch_at(&self, path: &str, body: &Value) -> Outcome<WrittenPod> {
        let body = body.to_string().into_bytes();
        let reply = self.call(Method::PATCH, path, STRATEGIC_MERGE, body, &REPLY).await?;
        Ok(written(reply))
    }

    /// Removes the finalizer first, so that a pod that we delete does not count as failed. ([P14])
    async fn delete(&self, deletion: &PodDeletion) -> Outcome<()> {
        if deletion.strip {
            self.patch(&deletion.pod, remove_finalizer_patch(&deletion.pod)).await?;
        }
        self.delete_now(&deletion.pod).await
    }

    async fn delete_now(&self, pod: &Pod) -> Outcome<()> {
        let options = delete_options(pod).to_string().into_bytes();
        self.call(Method::DELETE, &pod_path(pod), JSON, options, &NOTHING).await
    }

    /// Sets the condition first, so that it is there when the pod turns Failed.
    async fn fail_pending(&self, pod: &Pod) -> Outcome<WrittenPod> {
        let path = format!("{}/status", pod_path(pod));
        let written = self.patch_at(&path, &fail_pending_patch(pod, Timestamp::now())).await?;
        if pod.node.is_some() {
            self.delete_now(pod).await?;
        }
        Ok(written)
    }

    async fn write_status(&self, key: &JobKey, body: Body) -> Outcome<Arc<Job>> {
        let (path, content) = (job_path(key, "/status"), body.content_type());
        self.call(Method::PUT, &path, content, body.into_bytes(), &JOB).await.map(Arc::new)
    }

    /// Sends a request. A reply that cannot be read is an unknown outcome: the write succeeded, but
    /// the caller must read the object again.
    async fn call<T>(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Vec<u8>,
        read: &Read<T>,
    ) -> Outcome<T> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, content)
            .header(header::ACCEPT, read.accept())
            .body(body)
            .map_err(|error| classify(kube::Error::HttpError(error)))?;
        let _permit = self.calls.acquire().await;
        reply::read_as(&self.client, request, read).await.map_err(classify)
    }
}

/// Runs independent calls concurrently; results are in the order of the calls.
async fn all<T>(calls: Vec<impl Future<Output = T>>) -> Vec<T> {
    at_once_at_most(CALLS_MAX, calls).await
}

async fn at_once_at_most<T>(count: usize, calls: Vec<impl Future<Output = T>>) -> Vec<T> {
    stream::iter(calls).buffered(count).collect().await
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

fn written(reply: Reply) -> WrittenPod {
    WrittenPod {
        uid: reply.uid.into(),
        name: reply.name.into(),
        version: Version::parse(&reply.version),
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Executor").finish_non_exhaustive()
    }
}
