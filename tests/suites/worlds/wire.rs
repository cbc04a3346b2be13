//! The way of a request from a controller to the model. A request that was sent arrives even if its
//! sender is gone. A sabotage changes requests, so that each verdict is seen to fire.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use epilogue_runtime::rate_limit::{RateLimit, RateLimited};
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use lab::nodes::SCRIPT_ANNOTATION;
use model_api::{Kind, ModelApi, ReplyBody};
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::{BoxError, Service};

use super::namespaces::DOOMED;
use super::node_ledger::TAINT;
use super::shortage_ledger::OOM_KILLED;
use super::update_admission::OTHERS;

/// How `Accept` begins for protobuf.
const PROTOBUF: &[u8] = b"application/vnd.kubernetes.protobuf";
/// How soon a mistake takes a mark back.
const UNMARKED_AFTER: Duration = Duration::from_millis(200);

/// A mistake that a controller could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    /// Counts pods without listing their UIDs first.
    CountAtOnce,
    /// Counts one pod more than has succeeded.
    CountOnceMore,
    /// Tells of each end that the node booted.
    BlameTheNode,
    /// Tells no end.
    TellNothing,
    /// Leaves the tracking finalizers of pods.
    KeepFinalizers,
    /// Creates pods without the tracking finalizer.
    CreateUntracked,
    /// Removes the finalizer of a pod together with the status that lists it first.
    ReleaseFirst,
    /// Creates two pods in place of one.
    CreateTwice,
    /// Creates pods that do not know how often their index failed before.
    ForgetFailures,
    /// Creates a pod for an index that has failed.
    RetryFailedIndex,
    /// Lets Jobs set a backoff of nothing.
    NoBrake,
    /// Creates pods that are not those of the template.
    ChangePods,
    /// Writes a status that the API refuses.
    SpoilStatus,
    /// Fails a Job although it has not reached its backoffLimit.
    FailEarly,
    /// Never fails a Job for its backoffLimit.
    ForgetLimit,
    /// Goes on to write when all is done.
    NeverRest,
    /// Repeats a read without a pause.
    NeverPause,
    /// Never counts fewer pods of a Job than it once did, even if the API has gone back.
    KeepCounts,
    /// Takes the status that it wrote for the one that the API stored.
    BelieveCounts,
    /// Writes the status of a Job without the conditions of others.
    DropConditions,
    /// Removes the taints of others from a node.
    DropTaints,
    /// Leaves the tracking finalizers of pods in a namespace that is deleted.
    HoldNamespace,
    /// Calls pods Failed when it sets DisruptionTarget.
    FailAtOnce,
    /// Never sets DisruptionTarget.
    NeverMark,
    /// Never clears DisruptionTarget.
    NeverClear,
    /// Sets DisruptionTarget by a patch that the API refuses.
    SpoilMark,
    /// Never removes its taint.
    KeepTaint,
    /// Never calls a pod Failed, nor deletes it.
    NeverReport,
    /// The same for pods that users delete under a dead kubelet.
    LeaveStuck,
    /// Is gone as soon as a shutdown is announced.
    LeaveAtOnce,
    /// Evicts the pod that uses least.
    EvictSmallest,
    /// Evicts although memory is not short.
    EvictForNothing,
    /// Evicts although it may only observe.
    EvictAnyway,
    /// Only observes that memory is short.
    OnlyObserve,
    /// Evicts pods without DisruptionTarget.
    EvictUnmarked,
    /// Calls pods Failed when it begins to evict them.
    FailEvicted,
    /// Takes DisruptionTarget back while an evicted pod ends.
    UnmarkEvicted,
    /// Says of evicted pods that the kernel killed them for memory.
    ExplainEvicted,
    /// Never says that a pod was killed for memory.
    NeverExplain,
    /// Says of each pod that was killed for memory that the node had none left.
    BlameNode,
    /// Creates two Workloads in place of one.
    TwoWorkloads,
    /// Creates two PodGroups in place of one.
    TwoPodGroups,
    /// Creates pods outside of their group.
    JoinNone,
    /// Creates pods in a group that is not there.
    JoinOther,
    /// Creates PodGroups that never go.
    HoldPodGroups,
    /// Gives a gang another size than its Job asks for.
    MakeLarger,
}

impl Sabotage {
    /// Whether it is an agent's mistake.
    pub(super) fn is_agents(self) -> bool {
        use Sabotage::{DropTaints, FailAtOnce, LeaveAtOnce, NeverMark, NeverReport, SpoilMark};
        let of_all = matches!(self, FailAtOnce | LeaveAtOnce | NeverMark | NeverReport | SpoilMark);
        of_all || self == DropTaints || self.is_of_cancels() || self.is_of_kubelets()
    }

    /// Whether it is an agent's mistake under a kubelet that fails.
    pub(super) fn is_of_kubelets(self) -> bool {
        self == Self::LeaveStuck
    }

    /// Whether it is an agent's mistake when memory is short.
    pub(super) fn is_of_memory(self) -> bool {
        use Sabotage::{
            BlameNode, EvictAnyway, EvictForNothing, EvictSmallest, EvictUnmarked, ExplainEvicted,
            FailEvicted, NeverExplain, OnlyObserve, UnmarkEvicted,
        };
        let chooses = matches!(self, EvictSmallest | EvictForNothing | EvictAnyway | OnlyObserve);
        let explains = matches!(self, ExplainEvicted | NeverExplain | BlameNode);
        chooses || explains || matches!(self, EvictUnmarked | FailEvicted | UnmarkEvicted)
    }

    /// Whether it is a mistake in a namespace that is deleted.
    pub(super) fn is_of_namespaces(self) -> bool {
        matches!(self, Self::HoldNamespace | Self::HoldPodGroups)
    }

    /// Whether it is a mistake under admission of others.
    pub(super) fn is_of_admission(self) -> bool {
        self == Self::BelieveCounts
    }

    /// Whether it is a mistake where others change each update.
    pub(super) fn is_of_updates(self) -> bool {
        matches!(self, Self::DropConditions | Self::DropTaints)
    }

    /// Whether it is a mistake about pods that fail again and again.
    pub(super) fn is_of_brakes(self) -> bool {
        matches!(self, Self::ForgetFailures | Self::RetryFailedIndex | Self::NoBrake)
    }

    /// Whether it is a mistake about gangs.
    pub(super) fn is_of_gangs(self) -> bool {
        use Sabotage::{JoinNone, JoinOther, TwoPodGroups, TwoWorkloads};
        let creates = matches!(self, TwoWorkloads | TwoPodGroups | JoinNone | JoinOther);
        creates || self.is_of_changed_gangs() || self == Self::HoldPodGroups
    }

    /// Whether it is a mistake about gangs that users change.
    pub(super) fn is_of_changed_gangs(self) -> bool {
        self == Self::MakeLarger
    }

    /// Whether it is a mistake after a restore of etcd.
    pub(super) fn is_of_restores(self) -> bool {
        self == Self::KeepCounts
    }

    /// Whether it is an agent's mistake after a cancelled shutdown.
    pub(super) fn is_of_cancels(self) -> bool {
        matches!(self, Self::NeverClear | Self::KeepTaint | Self::DropTaints)
    }
}

/// A connection to the model, with a user agent.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    api: ModelApi,
    agent: HeaderValue,
    sabotage: Option<Sabotage>,
    /// The most pods of each Job that were counted as succeeded, for a sabotage.
    most: Arc<Mutex<BTreeMap<String, i64>>>,
}

impl Wire {
    pub(super) fn new(api: &ModelApi, agent: &str, sabotage: Option<Sabotage>) -> Self {
        let agent = HeaderValue::from_str(agent).expect("must be a header's value");
        Self { api: api.clone(), agent, sabotage, most: Arc::default() }
    }

    /// Whether its controller lets Jobs set a backoff of nothing.
    pub(super) fn has_no_brake(&self) -> bool {
        self.sabotage == Some(Sabotage::NoBrake)
    }

    /// A client with the program's own handling of 429, which is none, and of replies that do not
    /// come.
    pub(super) fn client(self) -> Client {
        let limit = RateLimit { retries_max: 0, ..RateLimit::default() };
        let limited = RateLimited::new(self, limit);
        ClientBuilder::new(limited, "default").build()
    }

    /// A client without any handling of its own, as the agent's.
    pub(super) fn plain_client(self) -> Client {
        ClientBuilder::new(self, "default").build()
    }

    async fn send(self, request: Request<Body>) -> Result<Response<ReplyBody>, BoxError> {
        let (mut parts, body) = request.into_parts();
        parts.headers.insert(header::USER_AGENT, self.agent.clone());
        let accept = parts.headers.get(header::ACCEPT).map(HeaderValue::as_bytes);
        if self.sabotage.is_some() && accept.is_some_and(|it| it.starts_with(PROTOBUF)) {
            // A mistake changes what it can read.
            parts.headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        }
        if parts.uri.query().is_some_and(|query| query.contains("dryRun=All")) {
            return Ok(forbidden());
        }
        let bytes = body.collect_bytes().await?.to_vec();
        let (mut body, mut before) = (bytes.clone(), None);
        if let Some(sabotage) = self.sabotage
            && let Ok(mut object) = serde_json::from_slice::<Value>(&bytes)
        {
            retell(sabotage, &mut parts, &mut object);
            before = self.alter(sabotage, &mut parts, &mut object);
            body = object.to_string().into_bytes();
        }
        let believes = self.sabotage == Some(Sabotage::BelieveCounts);
        let believed = (believes && is_status(&parts)).then(|| body.clone());
        let mut api = self.api;
        let sent = tokio::spawn(async move {
            if let Some(before) = before {
                api.call(before).await?;
            }
            api.call(Request::from_parts(parts, Body::from(body))).await
        });
        let response = sent.await??;
        match believed {
            Some(written) if response.status().is_success() => believe(response, &written).await,
            _ => Ok(response),
        }
    }

    /// Changes a request as a mistake would. May return one to send before it.
    fn alter(
        &self,
        sabotage: Sabotage,
        parts: &mut http::request::Parts,
        object: &mut Value,
    ) -> Option<Request<Body>> {
        let path = parts.uri.path().to_owned();
        let creates = parts.method == Method::POST && path.ends_with("/pods");
        let counts = is_status(parts);
        let releases = object["metadata"].get("$deleteFromPrimitiveList/finalizers").is_some();
        match sabotage {
            Sabotage::CountAtOnce if counts => {
                let listed = object["status"]["uncountedTerminatedPods"].take();
                for field in ["succeeded", "failed"] {
                    let more = listed[field].as_array().map_or(0, Vec::len) as i64;
                    let count = object["status"][field].as_i64().unwrap_or(0);
                    object["status"][field] = (count + more).into();
                }
            }
            Sabotage::CountOnceMore if counts => {
                let succeeded = object["status"]["succeeded"].as_i64().unwrap_or(0);
                object["status"]["succeeded"] = (succeeded + 1).into();
            }
            Sabotage::KeepCounts if counts => {
                let mut all = self.most.lock().expect("no one panicked");
                let most = all.entry(path).or_default();
                *most = object["status"]["succeeded"].as_i64().unwrap_or(0).max(*most);
                object["status"]["succeeded"] = (*most).into();
            }
            Sabotage::FailEarly if counts => {
                let has_active = object["status"]["active"].as_i64() > Some(0);
                if let Some(conditions) = conditions(object).filter(|_| has_active) {
                    conditions.push(json!({
                        "type": "FailureTarget", "status": "True",
                        "reason": "BackoffLimitExceeded",
                    }));
                }
            }
            Sabotage::ForgetLimit if counts => {
                let of_limit = |it: &Value| it["reason"] == "BackoffLimitExceeded";
                conditions(object)?.retain(|it| !of_limit(it));
            }
            Sabotage::SpoilStatus if counts => object["status"]["active"] = (-1).into(),
            Sabotage::HoldNamespace if releases && path.contains(DOOMED) => {
                parts.method = Method::GET;
            }
            Sabotage::KeepFinalizers if releases => parts.method = Method::GET,
            Sabotage::CreateUntracked if creates => object["metadata"]["finalizers"] = json!([]),
            Sabotage::ForgetFailures if creates => forget_failures(object),
            Sabotage::RetryFailedIndex if counts => return self.retry(parts, object),
            Sabotage::ChangePods if creates => {
                let annotations = &mut object["metadata"]["annotations"];
                annotations[SCRIPT_ANNOTATION] = "succeed after=1s".into();
            }
            Sabotage::CreateTwice if creates => return Some(twin(parts, object)),
            Sabotage::ReleaseFirst if counts => {
                let listed = &object["status"]["uncountedTerminatedPods"];
                let uids = ["succeeded", "failed"].map(|field| listed[field].as_array());
                let uid = uids.into_iter().flatten().flatten().next()?;
                let pods = self.api.list(Kind::Pod, "");
                let pod = pods.iter().find(|pod| pod["metadata"]["uid"] == *uid)?;
                let path = path.split("/namespaces/").nth(1)?.split('/').next()?;
                let name = pod["metadata"]["name"].as_str()?;
                let path = format!("/api/v1/namespaces/{path}/pods/{name}");
                let patch = json!({"metadata": {"finalizers": null}});
                let mut request = copy(parts, &path, &patch);
                *request.method_mut() = Method::PATCH;
                let merge = HeaderValue::from_static("application/merge-patch+json");
                request.headers_mut().insert(header::CONTENT_TYPE, merge);
                return Some(request);
            }
            Sabotage::FailAtOnce | Sabotage::FailEvicted if marks(object, "True") => {
                object["status"]["phase"] = "Failed".into();
            }
            Sabotage::NeverMark | Sabotage::EvictUnmarked if marks(object, "True") => {
                let conditions = object["status"]["conditions"].as_array_mut()?;
                conditions.retain(|it| it["type"] != "DisruptionTarget");
            }
            Sabotage::NeverClear if marks(object, "False") => parts.method = Method::GET,
            Sabotage::SpoilMark if marks(object, "True") => {
                let unknown = HeaderValue::from_static("application/unknown");
                parts.headers.insert(header::CONTENT_TYPE, unknown);
            }
            Sabotage::KeepTaint => {
                let taints = object["spec"]["taints"].as_array();
                if taints.is_some_and(|taints| taints.iter().all(|it| it["key"] != TAINT)) {
                    parts.method = Method::GET;
                }
            }
            Sabotage::NeverReport | Sabotage::LeaveStuck
                if object["status"]["phase"] == "Failed" =>
            {
                parts.method = Method::GET;
            }
            Sabotage::NeverReport if parts.method == Method::DELETE => parts.method = Method::GET,
            Sabotage::DropConditions if counts => {
                conditions(object)?.retain(|it| !is_of_others(it));
            }
            _ if sabotage.is_of_gangs() => return alter_gangs(sabotage, parts, object),
            _ => self.alter_of_memory(sabotage, parts, object),
        }
        None
    }

    /// Creates a pod of the first index again, if that has failed.
    fn retry(&self, parts: &http::request::Parts, job: &Value) -> Option<Request<Body>> {
        let index = job["status"]["failedIndexes"].as_str().filter(|index| *index == "0")?;
        let pods = self.api.list(Kind::Pod, "");
        let mut pods = pods.iter().filter(|pod| {
            let metadata = &pod["metadata"];
            metadata["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
                && metadata["annotations"]["batch.kubernetes.io/job-completion-index"] == index
        });
        let mut pod = Value::clone(pods.next()?);
        let path = format!("/api/v1/namespaces/{}/pods", pod["metadata"]["namespace"].as_str()?);
        for field in ["name", "uid", "resourceVersion", "deletionTimestamp"] {
            pod["metadata"][field] = Value::Null;
        }
        pod["metadata"]["generateName"] = "again-".into();
        (pod["status"], pod["spec"]["nodeName"]) = (json!({}), Value::Null);
        let mut request = copy(parts, &path, &pod);
        *request.method_mut() = Method::POST;
        Some(request)
    }

    /// Changes a request as a mistake would when memory is short, or of an agent's taint.
    fn alter_of_memory(
        &self,
        sabotage: Sabotage,
        parts: &mut http::request::Parts,
        object: &mut Value,
    ) {
        match sabotage {
            Sabotage::UnmarkEvicted if marks(object, "True") => {
                let unmarked = json!({"type": "DisruptionTarget", "status": "False"});
                let patch = json!({"status": {"conditions": [unmarked]}});
                let (request, mut api) = (copy(parts, parts.uri.path(), &patch), self.api.clone());
                tokio::spawn(async move {
                    sleep(UNMARKED_AFTER).await;
                    drop(api.call(request).await);
                });
            }
            Sabotage::ExplainEvicted if marks(object, "True") => {
                let killed = json!({"type": OOM_KILLED, "status": "True"});
                let conditions = object["status"]["conditions"].as_array_mut();
                conditions.expect("it has the mark").push(killed);
            }
            Sabotage::DropTaints => {
                if let Some(taints) = object["spec"]["taints"].as_array_mut() {
                    taints.retain(|it| it["key"] == TAINT);
                }
            }
            Sabotage::NeverExplain if explains(object).is_some() => parts.method = Method::GET,
            Sabotage::BlameNode => {
                if let Some(condition) = explains(object) {
                    condition["reason"] = "NodeOutOfMemory".into();
                }
            }
            _ => {}
        }
    }
}

/// Changes a request as a mistake about gangs would. May return one to send before it.
fn alter_gangs(
    sabotage: Sabotage,
    parts: &http::request::Parts,
    object: &mut Value,
) -> Option<Request<Body>> {
    let path = parts.uri.path();
    let creates = |plural| parts.method == Method::POST && path.ends_with(plural);
    match sabotage {
        Sabotage::TwoWorkloads if creates("/workloads") => return Some(twin(parts, object)),
        Sabotage::TwoPodGroups if creates("/podgroups") => return Some(twin(parts, object)),
        Sabotage::JoinNone if creates("/pods") => object["spec"]["schedulingGroup"] = Value::Null,
        Sabotage::JoinOther if creates("/pods") => {
            object["spec"]["schedulingGroup"]["podGroupName"] = "other".into();
        }
        Sabotage::HoldPodGroups if creates("/podgroups") => {
            object["metadata"]["finalizers"] = json!(["example.com/held"]);
        }
        Sabotage::MakeLarger if parts.method == Method::PATCH => {
            let operations = object.as_array_mut().into_iter().flatten();
            for operation in operations.filter(|it| it["op"] == "replace") {
                operation["value"] = 99.into();
            }
        }
        _ => {}
    }
    None
}

/// The request that creates the same object under another name.
fn twin(parts: &http::request::Parts, object: &Value) -> Request<Body> {
    let mut twin = object.clone();
    twin["metadata"]["name"] = Value::Null;
    twin["metadata"]["generateName"] = "twin-".into();
    copy(parts, parts.uri.path(), &twin)
}

/// Takes away how often the index of a new pod failed before.
fn forget_failures(pod: &mut Value) {
    let annotations = pod["metadata"]["annotations"].as_object_mut();
    for (name, count) in annotations.into_iter().flatten() {
        if name.ends_with("failure-count") {
            *count = "0".into();
        }
    }
}

/// The conditions of a status, as an array.
fn conditions(object: &mut Value) -> Option<&mut Vec<Value>> {
    let conditions = &mut object["status"]["conditions"];
    if conditions.is_null() {
        *conditions = json!([]);
    }
    conditions.as_array_mut()
}

/// Whether admission of others has added this condition.
fn is_of_others(condition: &Value) -> bool {
    condition["type"].as_str().is_some_and(|kind| kind.contains(OTHERS))
}

/// Changes an event about the end of a pod as a mistake would.
fn retell(sabotage: Sabotage, parts: &mut http::request::Parts, object: &mut Value) {
    // An index would add what is not there, and null removes it from the object.
    let cause = object.pointer_mut("/metadata/annotations/epilogue.dev~1cause");
    let Some(cause) = cause else { return };
    match sabotage {
        Sabotage::BlameTheNode => *cause = "LostByNode".into(),
        Sabotage::TellNothing => parts.method = Method::GET,
        _ => {}
    }
}

/// Whether a request writes the status of a Job.
fn is_status(parts: &http::request::Parts) -> bool {
    parts.method == Method::PUT && parts.uri.path().ends_with("/status")
}

/// The answer to a status write, as if the API had stored what was written.
async fn believe(
    response: Response<ReplyBody>,
    written: &[u8],
) -> Result<Response<ReplyBody>, BoxError> {
    let bytes = response.into_body().collect().await?.to_bytes();
    let (mut job, written): (Value, Value) =
        (serde_json::from_slice(&bytes)?, serde_json::from_slice(written)?);
    job["status"] = written["status"].clone();
    Ok(reply(StatusCode::OK, &job))
}

/// Whether a patch sets DisruptionTarget to this.
fn marks(patch: &Value, status: &str) -> bool {
    let mut conditions = patch["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|it| it["type"] == "DisruptionTarget" && it["status"] == status)
}

/// The condition of a patch that says why a pod was killed for memory.
fn explains(patch: &mut Value) -> Option<&mut Value> {
    let mut conditions = patch["status"]["conditions"].as_array_mut()?.iter_mut();
    conditions.find(|it| it["type"] == OOM_KILLED)
}

/// The answer of the agent's policies, which the model has not: the agent tries them by dry runs.
fn forbidden() -> Response<ReplyBody> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "denied by a policy", "reason": "Forbidden", "code": 403,
    });
    reply(StatusCode::FORBIDDEN, &status)
}

fn reply(code: StatusCode, body: &Value) -> Response<ReplyBody> {
    let body = Full::new(body.to_string().into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response
}

fn copy(parts: &http::request::Parts, path: &str, body: &Value) -> Request<Body> {
    let mut request = Request::new(Body::from(body.to_string().into_bytes()));
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = path.parse().expect("must be a path");
    *request.headers_mut() = parts.headers.clone();
    request
}

impl Service<Request<Body>> for Wire {
    type Response = Response<ReplyBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
