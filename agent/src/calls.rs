//! Makes calls to the API: requests with JSON bodies, and what several callers need of the answers.

use std::time::Duration;

use agent_core::pod::{PodSource, PodView};
use epilogue_common::names::node::SHUTTING_DOWN_TAINT;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use epilogue_runtime::api_error::classify;
use http::{Method, Request, header};
use kube::Client;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use crate::source::wire_pod::WirePod;

/// Maximum number of pods. A node has a few hundred; one is enough.
const PODS_MAX: usize = 50;
pub(crate) const JSON: &str = "application/json";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";

#[derive(Deserialize)]
struct PodList {
    items: Vec<WirePod>,
}

/// A pod of the node on which a shutdown could set DisruptionTarget.
pub(crate) async fn some_pod(client: &Client, node: &str) -> Outcome<Option<PodView>> {
    let path = format!("/api/v1/pods?limit={PODS_MAX}&fieldSelector=spec.nodeName%3D{node}");
    let request = request(Method::GET, &path, None)?;
    let list: PodList = client.request(request).await.map_err(classify)?;
    let pods = list.items.into_iter().map(WirePod::view);
    let mut pods = pods.filter(|pod| pod.source != PodSource::Static && !pod.is_terminal());
    Ok(pods.next())
}

/// A request; a body comes with its content type.
pub(crate) fn request(
    method: Method,
    path: &str,
    body: Option<(&str, &Value)>,
) -> Outcome<Request<Vec<u8>>> {
    let mut request = Request::builder().method(method).uri(path);
    let mut bytes = Vec::new();
    if let Some((kind, body)) = body {
        request = request.header(header::CONTENT_TYPE, kind);
        bytes = body.to_string().into_bytes();
    }
    request.body(bytes).map_err(|error| classify(kube::Error::HttpError(error)))
}

/// Sends a request, and returns the answer.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<(&str, Value)>,
) -> Outcome<Value> {
    let request = request(method, path, body.as_ref().map(|(kind, body)| (*kind, body)))?;
    client.request(request).await.map_err(classify)
}

/// The outcome of calls, or that no answer came within this time.
pub(crate) async fn within<T>(
    time: Duration,
    calls: impl Future<Output = Outcome<T>>,
) -> Outcome<T> {
    timeout(time, calls).await.unwrap_or_else(|_| {
        let words = format!("no answer within {} s", time.as_secs());
        Err(Failure::new(FailureKind::Unknown, words))
    })
}

/// Whether the taint is the agent's.
pub(crate) fn is_our_taint(taint: &Value) -> bool {
    taint["key"] == SHUTTING_DOWN_TAINT && taint["effect"] == "NoSchedule"
}
