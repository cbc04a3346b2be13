//! The way of a request from a controller to the model. A request that was sent arrives even if its
//! sender is gone. A sabotage changes requests, so that each verdict is seen to fire.

use std::task::{Context, Poll};

use epilogue_runtime::rate_limit::{RateLimit, RateLimited};
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response, header};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use lab::nodes::SCRIPT_ANNOTATION;
use model_api::{Kind, ModelApi, ReplyBody};
use serde_json::{Value, json};
use tower::{BoxError, Service};

/// A mistake that a controller could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    /// Counts pods without listing their UIDs first.
    CountAtOnce,
    /// Counts one pod more than has succeeded.
    CountOnceMore,
    /// Leaves the tracking finalizers of pods.
    KeepFinalizers,
    /// Creates pods without the tracking finalizer.
    CreateUntracked,
    /// Removes the finalizer of a pod together with the status that lists it first.
    ReleaseFirst,
    /// Creates two pods in place of one.
    CreateTwice,
    /// Creates pods that are not those of the template.
    ChangePods,
    /// Writes a status that the API refuses.
    SpoilStatus,
    /// Goes on to write when all is done.
    NeverRest,
}

/// A connection to the model, with a user agent.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    api: ModelApi,
    agent: HeaderValue,
    sabotage: Option<Sabotage>,
}

impl Wire {
    pub(super) fn new(api: &ModelApi, agent: &str, sabotage: Option<Sabotage>) -> Self {
        let agent = HeaderValue::from_str(agent).expect("must be a header's value");
        Self { api: api.clone(), agent, sabotage }
    }

    /// A client with the program's own handling of 429 and of replies that do not come.
    pub(super) fn client(self) -> Client {
        let limited = RateLimited::new(self, RateLimit::default());
        ClientBuilder::new(limited, "default").build()
    }

    async fn send(self, request: Request<Body>) -> Result<Response<ReplyBody>, BoxError> {
        let (mut parts, body) = request.into_parts();
        parts.headers.insert(header::USER_AGENT, self.agent.clone());
        let bytes = body.collect_bytes().await?.to_vec();
        let (mut body, mut before) = (bytes.clone(), None);
        if let Some(sabotage) = self.sabotage
            && let Ok(mut object) = serde_json::from_slice::<Value>(&bytes)
        {
            before = self.alter(sabotage, &mut parts, &mut object);
            body = object.to_string().into_bytes();
        }
        let mut api = self.api;
        let sent = tokio::spawn(async move {
            if let Some(before) = before {
                api.call(before).await?;
            }
            api.call(Request::from_parts(parts, Body::from(body))).await
        });
        sent.await?
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
        let counts = parts.method == Method::PUT && path.ends_with("/status");
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
            Sabotage::SpoilStatus if counts => object["status"]["active"] = (-1).into(),
            Sabotage::KeepFinalizers if releases => parts.method = Method::GET,
            Sabotage::CreateUntracked if creates => object["metadata"]["finalizers"] = json!([]),
            Sabotage::ChangePods if creates => {
                let annotations = &mut object["metadata"]["annotations"];
                annotations[SCRIPT_ANNOTATION] = "succeed after=1s".into();
            }
            Sabotage::CreateTwice if creates => {
                let mut twin = object.clone();
                twin["metadata"]["name"] = Value::Null;
                twin["metadata"]["generateName"] = "twin-".into();
                return Some(copy(parts, &path, &twin));
            }
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
            _ => {}
        }
        None
    }
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
