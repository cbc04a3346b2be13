//! Carries out single calls against the API, for syncs of Jobs and for checks of pod GC. Only this
//! file writes Jobs, pods and nodes; it decides and retries nothing.

use std::fmt;
use std::sync::{Arc, OnceLock};

use controller_core::job::{
    Answer, Body, GroupStep, LiveJob, PodDraft, Resize, Resized, Step, WrittenPod, claim_patch,
    delete_options, fail_pending_patch, mark_fault_patch, pod_body, pod_group_body,
    remove_finalizer_patch, resize_patch, status_body, strip_patch, whole_status_body,
    workload_body,
};
use controller_core::podgc::{self, Call, PodWrite};
use controller_core::view::{
    Job, JobKey, Pod, PodGroup, Reply, Version, WholeJob, WireJob, Workload,
};
use epilogue_common::names::media_type::JSON;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use epilogue_runtime::api_error::classify;
use epilogue_runtime::clock::Clock;
use epilogue_runtime::lease::Fence;
use epilogue_runtime::reply;
use epilogue_runtime::watch::Read;
use futures::{StreamExt as _, stream};
use http::{Method, Request, header};
use kube::Client;
use serde_json::Value;

use crate::dispatch::Dispatch;
use crate::permits::Permits;
use crate::pod_pages::{Page, PodPages};
use crate::scheduling_api::{POD_GROUPS, SCHEDULING, WORKLOADS};
use crate::wake_ups::CallsOnTheWay;

/// Maximum number of concurrent calls of the process. A larger burst only queues up in the API
/// server, and a connection carries 100 of them.
const CALLS_MAX: usize = 88;
/// Maximum number of concurrent calls of a namespace while others make calls, too. More of them
/// finish no sooner where the API server is busy, and each call of a neighbour waits behind them.
const CALLS_OF_NAMESPACE_MAX: usize = 16;
/// Maximum number of concurrent calls of one sync.
const CALLS_OF_SYNC_MAX: usize = 64;
/// Maximum size of the pod bodies that one sync holds at once, in bytes: a template may have 1.5
/// MB.
const BODIES_MAX: usize = 4 << 20;

/// Why a write was not sent.
const FENCED: &str = "not sent: the lease was not renewed in time";

const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

/// What is read of the reply to a write.
const REPLY: Read<Reply> = Read { json: Reply::read, protobuf: Some(Reply::decode) };
/// The Job in the reply to a status write.
const JOB: Read<Job> = Read {
    json: |text| WireJob::read(text)?.view(),
    protobuf: Some(|message| Job::decode(message).map(|(job, _)| job)),
};
/// The Job in the reply to a read, with its spec.
const WHOLE_JOB: Read<WholeJob> = Read { json: WholeJob::read, protobuf: Some(WholeJob::decode) };
/// A Workload in a reply.
const WORKLOAD: Read<Workload> = Read { json: Workload::read, protobuf: None };
/// A PodGroup in a reply.
const POD_GROUP: Read<PodGroup> = Read { json: PodGroup::read, protobuf: None };
/// The Node in the reply to a read.
const NODE: Read<Value> = Read { json: |text| serde_json::from_str(text), protobuf: None };
/// A reply that says no more than that the call succeeded.
const NOTHING: Read<()> = Read { json: |_| Ok(()), protobuf: Some(|_| Ok(())) };

/// Carries out the controller's writes.
pub(crate) struct Executor {
    client: Client,
    /// Knows how new an answer must be, and hears of one that is older.
    dispatch: Arc<Dispatch>,
    clock: Clock,
    calls: Permits,
    on_the_way: CallsOnTheWay,
    /// That of the lease; none without leader election.
    fence: OnceLock<Fence>,
}

impl Executor {
    /// Creates an executor on this client.
    pub(crate) fn new(client: Client, dispatch: Arc<Dispatch>, clock: Clock) -> Self {
        Self::counted(client, dispatch, clock, CallsOnTheWay::default())
    }

    /// Creates an executor on this client, whose calls are counted.
    pub(crate) fn counted(
        client: Client,
        dispatch: Arc<Dispatch>,
        clock: Clock,
        on_the_way: CallsOnTheWay,
    ) -> Self {
        let (calls, fence) = (Permits::new(CALLS_MAX, CALLS_OF_NAMESPACE_MAX), OnceLock::new());
        Self { client, dispatch, clock, calls, on_the_way, fence }
    }

    /// From now on, sends a write only while this fence is open.
    pub(crate) fn set_fence(&self, fence: Fence) {
        // A process leads at most once.
        let _ = self.fence.set(fence);
    }

    /// How many calls one sync of a Job makes at once. A call builds its body when it starts:
    /// hundreds of large bodies take too much memory.
    pub(crate) fn at_once(job: &Job, creates: bool) -> usize {
        let bodies = BODIES_MAX / job.source.template_size().max(1);
        if creates { bodies.clamp(1, CALLS_OF_SYNC_MAX) } else { CALLS_OF_SYNC_MAX }
    }

    /// Carries out one step for a Job, based on the Job that the last write returned.
    pub(crate) async fn execute(&self, job: &Job, step: &Step) -> Outcome<Answer> {
        match step {
            Step::ConfirmJob => self.live_job(&job.key).await.map(Answer::Live),
            Step::ConfirmPods => self.newest_pod(job).await.map(Answer::Newest),
            Step::Claim(claim) => {
                self.patch(&claim.pod, claim_patch(job, claim)).await.map(Answer::Pod)
            }
            Step::Group(step) => self.group(job, step).await,
            Step::Create(draft) => self.create(job, draft).await.map(Answer::Pod),
            Step::Strip(pod) => self.patch(pod, strip_patch(pod)).await.map(Answer::Pod),
            Step::RemoveFinalizer(pod) => {
                self.patch(pod, remove_finalizer_patch(pod)).await.map(Answer::Pod)
            }
            Step::Delete(pod, version) => self.delete(pod, *version).await,
            Step::FailPending(pod) => {
                let patch = fail_pending_patch(pod, self.clock.now());
                self.patch_pod_status(pod, &patch).await.map(Answer::Pod)
            }
            Step::MarkFault(fault) => {
                let patch = mark_fault_patch(fault, self.clock.now());
                self.patch_pod_status(&fault.pod, &patch).await.map(Answer::Pod)
            }
            Step::WriteStatus(status) => {
                self.write_status(job, || status_body(job, status)).await.map(Answer::Job)
            }
            Step::WriteWholeStatus(status) => {
                let whole = self.get(&job_path(&job.key, ""), &WHOLE_JOB).await?;
                self.is_planned(job, &whole.job)?;
                self.write_status(job, || whole_status_body(&whole, status)).await.map(Answer::Job)
            }
        }
    }

    /// Carries out one call of a check of pod GC.
    pub(crate) async fn check(&self, call: &Call) -> Outcome<podgc::Answer> {
        match call {
            Call::FindNode(name) => {
                self.get(&node_path(name), &NOTHING).await.map(|()| podgc::Answer::Done)
            }
            Call::GetNode(name) => self.get(&node_path(name), &NODE).await.map(podgc::Answer::Node),
            Call::GetJob(key) => {
                let job = self.get(&job_path(key, ""), &JOB).await?;
                Ok(podgc::Answer::Job(Arc::new(job)))
            }
            Call::PatchNode(name, patch) => {
                let (path, body) = (node_path(name), patch.to_string().into_bytes());
                self.call(Method::PATCH, &path, MERGE, body, &NOTHING).await?;
                Ok(podgc::Answer::Done)
            }
            Call::PatchPod(PodWrite { namespace, name, patch, .. }) => {
                let path = format!("{}/status", pod_path(namespace, name));
                let patch = patch.as_ref().unwrap_or(&Value::Null);
                let pod = self.patch_at(&path, patch, Version::default()).await?;
                Ok(podgc::Answer::Patched(pod.version))
            }
            Call::DeletePod(write) => {
                let path = pod_path(&write.namespace, &write.name);
                self.delete_at(&path, &podgc::delete_options(write)).await?;
                Ok(podgc::Answer::Done)
            }
        }
    }

    /// Writes an Event.
    pub(crate) async fn create_event(&self, namespace: &str, event: &Value) -> Outcome<()> {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let body = event.to_string().into_bytes();
        self.call(Method::POST, &path, JSON, body, &NOTHING).await
    }

    /// Removes the tracking finalizer from these pods, unless they changed since they were read.
    pub(crate) async fn remove_finalizers(&self, pods: &[Arc<Pod>]) -> Vec<Outcome<WrittenPod>> {
        let calls: Vec<_> = pods.iter().map(|pod| self.patch(pod, strip_patch(pod))).collect();
        stream::iter(calls).buffered(CALLS_OF_SYNC_MAX).collect().await
    }

    /// Reads a Job whose source is not kept. A failure if it is not at this version any more: the
    /// plan is for this one.
    pub(crate) async fn whole_job(&self, job: &Job) -> Outcome<Arc<Job>> {
        let live = self.get(&job_path(&job.key, ""), &JOB).await?;
        self.is_planned(job, &live)?;
        Ok(Arc::new(live))
    }

    /// A failure if a Job as it was read is not the one of the plan.
    fn is_planned(&self, job: &Job, live: &Job) -> Outcome<()> {
        self.dispatch.job_answered(job.version, live.version);
        if live.uid == job.uid && live.version == job.version {
            return Ok(());
        }
        let (key, read, planned) = (&job.key, live.version, job.version);
        let message = format!("Job {key} was read at version {read}, the plan is for {planned}");
        Err(Failure::new(FailureKind::Conflict, message))
    }

    /// Reads the Job of this name live from the API.
    pub(crate) async fn live_job(&self, key: &JobKey) -> Outcome<LiveJob> {
        let reply = self.get(&job_path(key, ""), &REPLY).await?;
        Ok(LiveJob { uid: reply.uid.into(), deleting: reply.deleting })
    }

    /// The newest version among the Job's pods, as the API itself lists them.
    async fn newest_pod(&self, job: &Job) -> Outcome<Version> {
        let (mut newest, mut pages) = (Version::default(), PodPages::of(job));
        loop {
            let request = pages.request().map_err(unrequested)?;
            let _on_the_way = self.on_the_way.begin();
            let _permit = self.calls.acquire(&job.key.namespace).await;
            let page = reply::read_up_to::<Page>(&self.client, request, pages.bytes_max()).await;
            let Some(page) = page.map_err(classify)? else {
                pages.shrink();
                continue;
            };
            let (version, is_last) = pages.take(&page);
            newest = newest.max(version);
            if is_last {
                self.dispatch.pod_answered(Version::default(), newest);
                return Ok(newest);
            }
        }
    }

    async fn get<T>(&self, path: &str, read: &Read<T>) -> Outcome<T> {
        self.call(Method::GET, path, JSON, Vec::new(), read).await
    }

    /// A new pod is newer than all that is known. Its body, which may be large, is made when the
    /// call may go, and a call that waits for its answer has none.
    async fn create(&self, job: &Job, draft: &PodDraft) -> Outcome<WrittenPod> {
        let path = pods_path(&job.key.namespace);
        let _permit = self.calls.acquire(&job.key.namespace).await;
        let (body, floor) = (pod_body(job, draft), Version(self.dispatch.newest_pod.get()));
        let content = body.content_type();
        let reply = self.send(Method::POST, &path, content, body.into_bytes(), &REPLY).await?;
        Ok(self.written(reply, floor))
    }

    async fn group(&self, job: &Job, step: &GroupStep) -> Outcome<Answer> {
        match step {
            GroupStep::CreateWorkload(draft) => {
                let (path, body) = (group_path(WORKLOADS, job, None), workload_body(job, draft));
                let created = self.call(Method::POST, &path, JSON, body, &WORKLOAD).await?;
                Ok(Answer::Workload(Arc::new(created), true))
            }
            GroupStep::FindWorkload(name) => {
                let found = self.get(&group_path(WORKLOADS, job, Some(name)), &WORKLOAD).await?;
                Ok(Answer::Workload(Arc::new(found), false))
            }
            GroupStep::CreatePodGroup(draft) => {
                let (path, body) = (group_path(POD_GROUPS, job, None), pod_group_body(job, draft));
                let created = self.call(Method::POST, &path, JSON, body, &POD_GROUP).await?;
                Ok(Answer::PodGroup(Arc::new(created), true))
            }
            GroupStep::FindPodGroup(name) => {
                let found = self.get(&group_path(POD_GROUPS, job, Some(name)), &POD_GROUP).await?;
                Ok(Answer::PodGroup(Arc::new(found), false))
            }
            GroupStep::Resize(resize) => self.resize(job, resize).await,
        }
    }

    async fn resize(&self, job: &Job, resize: &Resize) -> Outcome<Answer> {
        let (name, body) = (Some(&*resize.key.1), resize_patch(resize).to_string().into_bytes());
        match resize.object {
            Resized::Workload => {
                let path = group_path(WORKLOADS, job, name);
                let written = self.call(Method::PATCH, &path, JSON_PATCH, body, &WORKLOAD).await?;
                Ok(Answer::Workload(Arc::new(written), false))
            }
            Resized::PodGroup => {
                let path = group_path(POD_GROUPS, job, name);
                let written = self.call(Method::PATCH, &path, JSON_PATCH, body, &POD_GROUP).await?;
                Ok(Answer::PodGroup(Arc::new(written), false))
            }
        }
    }

    async fn patch(&self, pod: &Pod, body: Value) -> Outcome<WrittenPod> {
        self.patch_at(&pod_path(&pod.namespace, &pod.name), &body, pod.version).await
    }

    /// Patches a pod that has this version or a newer one. A patch that changes nothing makes none.
    async fn patch_at(&self, path: &str, body: &Value, floor: Version) -> Outcome<WrittenPod> {
        let body = body.to_string().into_bytes();
        let reply = self.call(Method::PATCH, path, STRATEGIC_MERGE, body, &REPLY).await?;
        Ok(self.written(reply, floor))
    }

    fn written(&self, reply: Reply, floor: Version) -> WrittenPod {
        let version = Version::parse(&reply.version);
        self.dispatch.pod_answered(floor, version);
        WrittenPod { uid: reply.uid.into(), name: reply.name.into(), version }
    }

    async fn delete(&self, pod: &Pod, version: Option<Version>) -> Outcome<Answer> {
        let path = pod_path(&pod.namespace, &pod.name);
        self.delete_at(&path, &delete_options(pod, version)).await?;
        Ok(Answer::Deleted)
    }

    async fn delete_at(&self, path: &str, options: &Value) -> Outcome<()> {
        let options = options.to_string().into_bytes();
        self.call(Method::DELETE, path, JSON, options, &NOTHING).await
    }

    async fn patch_pod_status(&self, pod: &Pod, patch: &Value) -> Outcome<WrittenPod> {
        let path = format!("{}/status", pod_path(&pod.namespace, &pod.name));
        self.patch_at(&path, patch, pod.version).await
    }

    /// A status that is new is newer than all that is known. The API takes it only from whoever
    /// names the Job's version, which stays if nothing is new.
    async fn write_status(
        &self,
        job: &Job,
        body: impl FnOnce() -> Result<Body, serde_json::Error>,
    ) -> Outcome<Arc<Job>> {
        let path = job_path(&job.key, "/status");
        let _permit = self.calls.acquire(&job.key.namespace).await;
        let body = body().map_err(|error| unwritable(&error))?;
        let (content, newest) = (body.content_type(), Version(self.dispatch.newest_job.get()));
        let written = self.send(Method::PUT, &path, content, body.into_bytes(), &JOB).await?;
        let floor = if written.version == job.version { job.version } else { newest };
        self.dispatch.job_answered(floor, written.version);
        Ok(Arc::new(written))
    }

    /// Waits for a permit, then sends a request.
    async fn call<T>(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Vec<u8>,
        read: &Read<T>,
    ) -> Outcome<T> {
        let _permit = self.calls.acquire(namespace_of(path)).await;
        self.send(method, path, content, body, read).await
    }

    /// Sends a request. A reply that cannot be read is an unknown outcome: the write succeeded, but
    /// the caller must read the object again.
    async fn send<T>(
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
        let _on_the_way = self.on_the_way.begin();
        let is_write = request.method() != Method::GET;
        if is_write && !self.fence.get().is_none_or(Fence::is_open) {
            return Err(Failure { unsent: true, ..Failure::new(FailureKind::Other, FENCED) });
        }
        reply::read_as(&self.client, request, read).await.map_err(classify)
    }
}

fn unrequested(error: kube::core::request::Error) -> Failure {
    classify(kube::Error::BuildRequest(error))
}

fn unwritable(error: &serde_json::Error) -> Failure {
    Failure::new(FailureKind::Other, format!("cannot write the request: {error}"))
}

/// The namespace in a path; empty outside of namespaces.
fn namespace_of(path: &str) -> &str {
    let after = path.split_once("/namespaces/").map_or("", |(_, after)| after);
    after.split('/').next().unwrap_or_default()
}

// Names of API objects need no escaping: they are DNS names.
fn pods_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

/// Of this name, or of all.
fn group_path(plural: &str, job: &Job, name: Option<&str>) -> String {
    let all = format!("{SCHEDULING}/namespaces/{}/{plural}", job.key.namespace);
    name.map_or_else(|| all.clone(), |name| format!("{all}/{name}"))
}

fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

fn job_path(key: &JobKey, subresource: &str) -> String {
    format!("/apis/batch/v1/namespaces/{}/jobs/{}{subresource}", key.namespace, key.name)
}

impl fmt::Debug for Executor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Executor").finish_non_exhaustive()
    }
}
