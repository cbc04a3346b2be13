//! Sends requests that test what the API would answer, and change nothing.

use agent_core::pod::{PodSource, PodView};
use epilogue_common::outcome::{Failure, Outcome};
use epilogue_runtime::api_error::classify;
use http::{Method, Request, header};
use kube::Client;
use serde::Deserialize;
use serde_json::Value;

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
    let request = Request::get(path).body(Vec::new()).map_err(malformed)?;
    let list: PodList = client.request(request).await.map_err(classify)?;
    let pods = list.items.into_iter().map(WirePod::view);
    let mut pods = pods.filter(|pod| pod.source != PodSource::Static && !pod.is_terminal());
    Ok(pods.next())
}

/// Sends a request with a body of a content type; returns the answer.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: Option<(&str, Value)>,
) -> Outcome<Value> {
    let mut request = Request::builder().method(method).uri(path);
    let mut bytes = Vec::new();
    if let Some((kind, body)) = body {
        request = request.header(header::CONTENT_TYPE, kind);
        bytes = body.to_string().into_bytes();
    }
    let request = request.body(bytes).map_err(malformed)?;
    client.request(request).await.map_err(classify)
}

fn malformed(error: http::Error) -> Failure {
    classify(kube::Error::HttpError(error))
}
