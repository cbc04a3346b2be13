//! The model as a service beneath a client, and the handle by which tests steer it.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Bytes;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::{BoxError, Service, ServiceExt as _};

use crate::access_log::Access;
use crate::call::{Call, Verb};
use crate::documents::Document;
use crate::faults::{Fate, Fault, FaultId, Flaw};
use crate::kind::Kind;
use crate::protobuf::{self, PROTOBUF};
use crate::refusal::Refusal;
use crate::rules;
use crate::state::{Answer, State};
use crate::store::{Object, Snapshot, key, prefix};
use crate::watch::{Next, Stream};

/// The body of a reply.
pub type ReplyBody = UnsyncBoxBody<Bytes, BoxError>;

/// The model of the API. Clones share it.
#[derive(Clone)]
pub struct ModelApi {
    state: Arc<Mutex<State>>,
    /// Wakes watches, in the order in which they wait.
    stirred: Arc<Notify>,
}

/// A connection that broke.
const BROKEN: &str = "the connection broke (a fault of the model)";

impl ModelApi {
    /// A cluster with the namespaces `default` and `kube-system`, at this time. Its clock goes with
    /// that of tokio.
    pub fn new(start: Timestamp) -> Self {
        let state = Arc::new(Mutex::new(State::new(start)));
        Self { state, stirred: Arc::default() }
    }

    /// A client with this user agent.
    pub fn client(&self, agent: &str) -> Client {
        let agent = HeaderValue::from_str(agent).expect("the caller must give a header's value");
        let service = self.clone().map_request(move |mut request: Request<Body>| {
            request.headers_mut().insert(header::USER_AGENT, agent.clone());
            request
        });
        Client::new(service, "default")
    }

    /// The time on the model's clock.
    pub fn now(&self) -> Timestamp {
        self.state.lock().now()
    }

    /// The newest version.
    pub fn version(&self) -> u64 {
        self.state.lock().store.version()
    }

    /// An object as stored. The namespace is empty for kinds without.
    pub fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<Object> {
        self.state.lock().store.get(kind, &key(kind, namespace, name)).cloned()
    }

    /// The objects of a namespace, or of all if it is empty, in the order of their names.
    pub fn list(&self, kind: Kind, namespace: &str) -> Vec<Object> {
        let all = self.state.lock().store.list(kind, &prefix(kind, namespace));
        all.into_iter().map(|(_, object)| object).collect()
    }

    /// All calls up to now, in the order of their work.
    pub fn log(&self) -> Vec<Access> {
        self.state.lock().log.clone()
    }

    /// How many calls there were up to now.
    pub fn calls(&self) -> usize {
        self.state.lock().log.len()
    }

    /// The calls since the last time, so that a long test need not keep all.
    pub fn take_log(&self) -> Vec<Access> {
        std::mem::take(&mut self.state.lock().log)
    }

    /// Switches a fault on.
    pub fn inject(&self, fault: Fault) -> FaultId {
        self.state.lock().faults.add(fault)
    }

    /// Switches a fault off.
    pub fn lift(&self, fault: FaultId) {
        self.state.lock().faults.lift(fault);
    }

    /// Limits the objects of a kind in a namespace; `None` lifts the limit.
    pub fn set_quota(&self, kind: Kind, namespace: &str, max: Option<usize>) {
        let mut state = self.state.lock();
        let of = (kind, namespace.to_owned());
        match max {
            Some(max) => state.faults.quotas.insert(of, max),
            None => state.faults.quotas.remove(&of),
        };
    }

    /// Breaks a rule on purpose; `None` keeps all.
    pub fn set_flaw(&self, flaw: Option<Flaw>) {
        self.state.lock().faults.flaw = flaw;
    }

    /// Shows changes of a kind to its watches only after this time.
    pub fn set_watch_lag(&self, kind: Kind, lag: Duration) {
        self.state.lock().faults.lags.insert(kind, lag);
        self.stirred.notify_waiters();
    }

    /// Limits the objects of each page, whatever limit a list asks for; `None` lifts it. The API
    /// may always give fewer.
    pub fn set_page_max(&self, max: Option<usize>) {
        self.state.lock().faults.page_max = max;
    }

    /// Whether the server answers in protobuf who asks for it, as a real one always does.
    pub fn set_speaks_protobuf(&self, speaks: bool) {
        self.state.lock().faults.denies_protobuf = !speaks;
    }

    /// Whether watches may begin with a list, as they may since Kubernetes 1.34.
    pub fn set_streams_lists(&self, streams: bool) {
        self.state.lock().faults.denies_streamed_lists = !streams;
    }

    /// Whether the API has gang scheduling: it serves Workloads and PodGroups, and Jobs have
    /// `spec.scheduling`. At first it has not.
    pub fn set_serves_gangs(&self, serves: bool) {
        self.state.lock().serves_gangs = serves;
    }

    /// Ends all open watches of a kind; or breaks their connections.
    pub fn cut_watches(&self, kind: Kind, breaks: bool) {
        let mut state = self.state.lock();
        let cut = state.cuts.entry(kind).or_default();
        cut.count += 1;
        cut.breaks = breaks;
        drop(state);
        self.stirred.notify_waiters();
    }

    /// Forgets all changes up to now: older watches and pages get 410.
    pub fn forget_history(&self) {
        self.state.lock().store.forget();
    }

    /// Skips so many versions, as if the rest of a cluster wrote objects of other kinds.
    pub fn skip_versions(&self, versions: u64) {
        self.state.lock().store.skip(versions);
    }

    /// The objects and versions as they are.
    pub fn snapshot(&self) -> Snapshot {
        self.state.lock().store.snapshot()
    }

    /// Puts back the objects and versions of a snapshot, as a restored backup of etcd does. The
    /// server starts anew: all watches break, and all calls under way.
    pub fn restore(&self, snapshot: &Snapshot) {
        let mut state = self.state.lock();
        state.store.restore(snapshot);
        state.starts += 1;
        drop(state);
        for kind in Kind::ALL {
            self.cut_watches(kind, true);
        }
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<ReplyBody>, BoxError> {
        let (parts, body) = request.into_parts();
        let serves_gangs = self.state.lock().serves_gangs;
        let document = Document::of(&parts.method, parts.uri.path()).filter(|_| serves_gangs);
        if let Some(document) = document {
            return self.document(document, &parts.headers).await;
        }
        let call = match Call::read(&parts.method, &parts.uri, &parts.headers) {
            Ok(call) if call.kind.is_of_gangs() && !serves_gangs => {
                return respond(404, &Refusal::no_such_path().status(), None, false);
            }
            Ok(call) => call,
            Err(refusal) => return respond(refusal.code, &refusal.status(), None, false),
        };
        let call = Call { protobuf: call.protobuf && self.speaks_protobuf(call.kind), ..call };
        let (fate, starts) = self.begin(&call);
        if !fate.delay.is_zero() {
            tokio::time::sleep(fate.delay).await;
        }
        let has_restarted = || self.state.lock().starts != starts;
        if fate.lose_request || has_restarted() {
            return Err(BROKEN.into());
        }
        let bytes = body.collect_bytes().await?;
        let body = call.body(&bytes);
        let stream = match &fate.refuse {
            None if call.verb == Verb::Watch => Some(self.watch(&call)),
            _ => None,
        };
        let done = self.work(&call, body, fate.refuse, stream.as_ref(), fate.lose_reply);
        self.stirred.notify_waiters();
        if !fate.delay_reply.is_zero() {
            tokio::time::sleep(fate.delay_reply).await;
        }
        if fate.lose_reply || has_restarted() {
            return Err(BROKEN.into());
        }
        match (stream, done) {
            (Some(Ok(stream)), Ok(_)) => streaming(stream, call),
            (_, done) => reply(&call, done),
        }
    }

    /// Answers what concerns no kind. No log has it.
    async fn document(
        self,
        document: Document,
        headers: &HeaderMap,
    ) -> Result<Response<ReplyBody>, BoxError> {
        let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let fate = self.state.lock().faults.fate_of_document(agent.unwrap_or_default());
        tokio::time::sleep(fate.delay + fate.delay_reply).await;
        if fate.lose_request || fate.lose_reply {
            return Err(BROKEN.into());
        }
        match fate.refuse {
            Some(refusal) => respond(refusal.code, &refusal.status(), refusal.retry_after, false),
            None => respond(document.code(), &document.content(), None, false),
        }
    }

    fn speaks_protobuf(&self, kind: Kind) -> bool {
        !self.state.lock().faults.denies_protobuf && protobuf::knows(kind.facts().name)
    }

    /// What will happen to a call, and how often the server had started when it came.
    fn begin(&self, call: &Call) -> (Fate, u64) {
        let mut state = self.state.lock();
        (state.faults.fate(call), state.starts)
    }

    /// Does the work of a call whose watch, if it is one, is open. Records it.
    fn work(
        &self,
        call: &Call,
        body: Result<Value, Refusal>,
        refuse: Option<Refusal>,
        stream: Option<&Result<Stream, Refusal>>,
        is_lost: bool,
    ) -> Result<Answer, Refusal> {
        let mut state = self.state.lock();
        let done = match (refuse, stream, &body) {
            (Some(refusal), ..) => Err(refusal),
            (_, Some(Ok(_)), _) => Ok((200, Value::Null)),
            (_, Some(Err(refusal)), _) | (_, None, Err(refusal)) => Err(refusal.clone()),
            (_, None, Ok(body)) => state.handle(call, body.clone()),
        };
        state.record(call, body.unwrap_or_default(), &done, is_lost);
        done
    }

    fn watch(&self, call: &Call) -> Result<Stream, Refusal> {
        Stream::open(&self.state, Arc::clone(&self.stirred), call)
    }
}

fn reply(call: &Call, done: Result<Answer, Refusal>) -> Result<Response<ReplyBody>, BoxError> {
    match done {
        Ok((code, object)) => respond(code, &as_asked(call, object), None, call.protobuf),
        Err(refusal) => {
            respond(refusal.code, &refusal.status(), refusal.retry_after, call.protobuf)
        }
    }
}

/// An object or a list in the form that the caller asked for.
fn as_asked(call: &Call, mut object: Value) -> Value {
    if object["kind"] == "Status" {
        return object;
    }
    if call.new_events {
        rules::to_new_event(&mut object);
    }
    if !call.brief {
        return object;
    }
    let brief = |object: &Value| {
        json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": object["metadata"],
        })
    };
    match object["items"].as_array() {
        None => brief(&object),
        Some(items) => {
            let items: Vec<Value> = items.iter().map(brief).collect();
            json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"],
                // Unlike a list of whole objects, an empty one is null.
                "items": if items.is_empty() { Value::Null } else { items.into() },
            })
        }
    }
}

fn respond(
    code: u16,
    content: &Value,
    retry_after: Option<u32>,
    protobuf: bool,
) -> Result<Response<ReplyBody>, BoxError> {
    let (format, bytes) = if protobuf {
        (PROTOBUF, protobuf::object(content))
    } else {
        ("application/json", content.to_string().into_bytes())
    };
    let mut response = Response::builder().status(code).header(header::CONTENT_TYPE, format);
    if let Some(seconds) = retry_after {
        response = response.header(header::RETRY_AFTER, seconds);
    }
    let body = Full::new(Bytes::from(bytes));
    let body = body.map_err(|never: Infallible| match never {}).boxed_unsync();
    Ok(response.body(body)?)
}

/// The reply of a watch: one line for each event, or one frame.
fn streaming(stream: Stream, call: Call) -> Result<Response<ReplyBody>, BoxError> {
    let protobuf = call.protobuf;
    let lines = futures::stream::unfold(Some((stream, call)), async |open| {
        let (mut stream, call) = open?;
        match stream.next().await {
            Next::Event(mut event) => {
                if event["type"] != "ERROR" && event["type"] != "BOOKMARK" {
                    event["object"] = as_asked(&call, event["object"].take());
                }
                let bytes = if call.protobuf {
                    protobuf::frame(&event)
                } else {
                    format!("{event}\n").into_bytes()
                };
                Some((Ok(Frame::data(Bytes::from(bytes))), Some((stream, call))))
            }
            Next::End => None,
            Next::Break => Some((Err(BoxError::from(BROKEN)), None)),
        }
    });
    let format =
        if protobuf { format!("{PROTOBUF};stream=watch") } else { "application/json".to_owned() };
    let response = Response::builder().header(header::CONTENT_TYPE, format);
    Ok(response.body(StreamBody::new(lines).boxed_unsync())?)
}

impl Service<Request<Body>> for ModelApi {
    type Response = Response<ReplyBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}

impl fmt::Debug for ModelApi {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ModelApi").finish_non_exhaustive()
    }
}
