//! A double of an OTLP collector: takes spans by HTTP, and keeps them.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Where OTLP over HTTP expects spans.
const PATH: &str = "/v1/traces";

/// A span as the collector got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenSpan {
    /// `service.name` of its resource.
    pub service: String,
    /// Its trace.
    pub trace: u128,
    /// Its id.
    pub id: Vec<u8>,
    /// Id of its parent; empty for a root.
    pub parent: Vec<u8>,
    /// Its name.
    pub name: String,
    /// When it began, in nanoseconds since 1970.
    pub begun: u64,
    /// When it ended.
    pub ended: u64,
    /// Its attributes that are text.
    pub attributes: BTreeMap<String, String>,
}

/// The collector. It ends when dropped.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<SeenSpan>>>,
    serving: JoinHandle<()>,
}

impl Collector {
    /// Serves on an address of its own. Call it within a runtime.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let spans = Arc::default();
        let serving = tokio::spawn(serve(listener, Arc::clone(&spans)));
        Ok(Self { address, spans, serving })
    }

    /// The value of `--otlp-endpoint`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans of a pod's trace, the earlier end first.
    pub fn spans_of(&self, pod_uid: &str) -> Vec<SeenSpan> {
        let trace = u128::from_str_radix(&pod_uid.replace('-', ""), 16).ok();
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<_> =
            spans.iter().filter(|span| Some(span.trace) == trace).cloned().collect();
        found.sort_by_key(|span| span.ended);
        found
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, spans: Arc<Mutex<Vec<SeenSpan>>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let spans = Arc::clone(&spans);
        let service = service_fn(move |request| take(request, Arc::clone(&spans)));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn take(
    request: Request<Incoming>,
    spans: Arc<Mutex<Vec<SeenSpan>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let is_export = request.uri().path() == PATH;
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    let decoded = body.ok().and_then(|body| ExportTraceServiceRequest::decode(body).ok());
    let mut response = Response::new(Full::default());
    match decoded.filter(|_| is_export) {
        Some(export) => {
            spans.lock().unwrap_or_else(PoisonError::into_inner).extend(seen(export));
        }
        None => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    Ok(response)
}

fn seen(export: ExportTraceServiceRequest) -> Vec<SeenSpan> {
    let mut all = Vec::new();
    for of_resource in export.resource_spans {
        let resource = of_resource.resource.map(|it| texts(it.attributes)).unwrap_or_default();
        let service = resource.get("service.name").cloned().unwrap_or_default();
        for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            all.push(SeenSpan {
                service: service.clone(),
                trace: span.trace_id.try_into().map(u128::from_be_bytes).unwrap_or_default(),
                id: span.span_id,
                parent: span.parent_span_id,
                name: span.name,
                begun: span.start_time_unix_nano,
                ended: span.end_time_unix_nano,
                attributes: texts(span.attributes),
            });
        }
    }
    all
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |attribute: KeyValue| match attribute.value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => Some((attribute.key, text)),
        _ => None,
    };
    attributes.into_iter().filter_map(text).collect()
}
