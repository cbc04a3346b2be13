//! Carries spans to a collector by OTLP. One trace tells how one pod was disrupted and replaced.
//!
//! Agent and controller share no connection. Both derive the trace's id from the pod's UID, so
//! their spans meet in one trace without a write to the API.

#[cfg(not(feature = "traces"))]
#[path = "traces/absent.rs"]
mod exporter;
#[cfg(feature = "traces")]
#[path = "traces/otlp.rs"]
mod exporter;
pub mod ids;

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use jiff::Timestamp;
use prometheus::{IntCounter, Registry};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use crate::tasks::TaskGroup;

/// Maximum number of queued spans: four times those of a full node, at about 1 KiB each.
const QUEUE_MAX: usize = 2_048;

/// The root span of a trace.
pub const ROOT: &str = "pod disruption";

/// Names of attributes. Those of `k8s.` are OpenTelemetry's semantic conventions.
pub mod attribute {
    /// Name of the disrupted pod.
    pub const POD_NAME: &str = "k8s.pod.name";
    /// UID of the disrupted pod.
    pub const POD_UID: &str = "k8s.pod.uid";
    /// Namespace of the disrupted pod.
    pub const NAMESPACE: &str = "k8s.namespace.name";
    /// Node of the disrupted pod.
    pub const NODE: &str = "k8s.node.name";
    /// Job of the disrupted pod.
    pub const JOB: &str = "k8s.job.name";
    /// What disrupts the pod: `shutdown`, an eviction signal such as `memory.available`, or the
    /// reason of `DisruptionTarget`.
    pub const CAUSE: &str = "epilogue.cause";
    /// Who proves that nothing of the pod runs: `runtime` or `kubelet`.
    pub const PROOF: &str = "epilogue.proof";
    /// Who reported the terminal phase: `agent` or `kubelet`; `deletion` if the pod is gone.
    pub const REPORTER: &str = "epilogue.reporter";
    /// How the controller matched the replacement: by completion `index`, or by `count`.
    pub const REPLACEMENT: &str = "epilogue.replacement";
    /// Name of the pod that replaces the disrupted one.
    pub const REPLACEMENT_NAME: &str = "epilogue.replacement.pod.name";
    /// UID of that pod.
    pub const REPLACEMENT_UID: &str = "epilogue.replacement.pod.uid";
}

/// Where traces go, and which.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceOptions {
    /// The address for spans, with its path.
    pub(crate) endpoint: String,
    /// The part of all traces that is exported.
    pub(crate) ratio: f64,
}

/// Why traces cannot be exported.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The program was built without the feature `traces`.
    #[error(
        "--otlp-endpoint {0:?} has no effect: this build exports no traces; leave the flag out, or \
         build the program with --features traces"
    )]
    NotBuilt(String),
    /// The endpoint is not an address.
    #[error(
        "invalid --otlp-endpoint {0:?}: expected http://HOST:PORT of a collector, such as \
         http://127.0.0.1:4318, or an empty one for none"
    )]
    Endpoint(String),
    /// The ratio is not a part.
    #[error("invalid --trace-sample-ratio {0}: expected a number from 0 to 1, such as 0.1")]
    Ratio(f64),
    /// The exporter refuses its settings, which may come from `OTEL_` variables.
    #[error("cannot export traces to {endpoint}: {why}")]
    Exporter {
        /// The address for spans.
        endpoint: String,
        /// The exporter's reason.
        why: String,
    },
    /// The metrics are there already.
    #[error("cannot register the metrics of traces")]
    Metrics(#[from] prometheus::Error),
}

/// One step of a pod's disruption, from its begin to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// UID of the disrupted pod, which selects the trace.
    pub pod_uid: String,
    /// The step; [`ROOT`] for the span that holds all others.
    pub name: &'static str,
    /// When it began.
    pub begun: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// What is known of it.
    pub attributes: Vec<(&'static str, String)>,
    /// Why it did not succeed.
    pub error: Option<&'static str>,
}

/// The spans that were exported, and those that were lost.
#[derive(Clone, Debug)]
pub(crate) struct TraceMetrics {
    pub(crate) exported: IntCounter,
    pub(crate) dropped: IntCounter,
}

/// Takes spans and never waits. Without an endpoint it ignores them.
#[derive(Clone, Debug, Default)]
pub struct Tracer {
    on: Option<Arc<On>>,
}

/// What a tracer passes to its exporter.
#[derive(Debug)]
pub enum Message {
    /// A span to export.
    Span(Box<Span>),
    /// Asks for an answer after the export of all spans before it.
    Flush(oneshot::Sender<()>),
}

#[derive(Debug)]
struct On {
    queue: mpsc::Sender<Message>,
    ratio: f64,
    metrics: TraceMetrics,
}

impl TraceOptions {
    /// Checks the flags; `None` if no endpoint is given.
    pub fn new(endpoint: Option<&str>, ratio: f64) -> Result<Option<Self>, TraceError> {
        if !(0.0..=1.0).contains(&ratio) {
            return Err(TraceError::Ratio(ratio));
        }
        let Some(text) = endpoint.filter(|text| !text.is_empty()) else { return Ok(None) };
        let uri: Uri = text.parse().map_err(|_| TraceError::Endpoint(text.to_owned()))?;
        // A span tells names of pods; TLS to other machines is the collector's on this one.
        if uri.scheme_str() != Some("http") || uri.host().is_none() || uri.query().is_some() {
            return Err(TraceError::Endpoint(text.to_owned()));
        }
        if !cfg!(feature = "traces") {
            return Err(TraceError::NotBuilt(text.to_owned()));
        }
        let endpoint = format!("{}/v1/traces", text.trim_end_matches('/'));
        Ok(Some(Self { endpoint, ratio }))
    }
}

impl Tracer {
    /// Starts to export, if there is an endpoint. `service` names the program in traces, unless
    /// `OTEL_SERVICE_NAME` does.
    pub fn start(
        options: Option<&TraceOptions>,
        service: &'static str,
        registry: &Registry,
        group: &mut TaskGroup,
    ) -> Result<Self, TraceError> {
        let Some(options) = options else { return Ok(Self::default()) };
        let metrics = TraceMetrics::new(registry)?;
        let (queue, messages) = mpsc::channel(QUEUE_MAX);
        exporter::start(options, service, (messages, metrics.clone()), group)?;
        Ok(Self::to(queue, options.ratio, metrics))
    }

    /// A tracer that exports nothing: its messages are left in the channel.
    pub fn recorded(queue_max: usize) -> prometheus::Result<(Self, mpsc::Receiver<Message>)> {
        let (queue, messages) = mpsc::channel(queue_max);
        Ok((Self::to(queue, 1.0, TraceMetrics::new(&Registry::new())?), messages))
    }

    fn to(queue: mpsc::Sender<Message>, ratio: f64, metrics: TraceMetrics) -> Self {
        Self { on: Some(Arc::new(On { queue, ratio, metrics })) }
    }

    /// Whether spans go anywhere.
    pub fn is_on(&self) -> bool {
        self.on.is_some()
    }

    /// Queues a span, unless its trace is not in the sample. Drops it if the queue is full.
    pub fn send(&self, span: Span) {
        let Some(on) = &self.on else { return };
        let is_sampled = ids::is_sampled(ids::trace_id(&span.pod_uid), on.ratio);
        if is_sampled && on.queue.try_send(Message::Span(Box::new(span))).is_err() {
            on.metrics.dropped.inc();
        }
    }

    /// Counts a disruption that is not followed, because too many are.
    pub fn overflow(&self) {
        if let Some(on) = &self.on {
            on.metrics.dropped.inc();
        }
    }

    /// Waits until the collector has the spans that were queued before, at most this long.
    pub async fn flush(self, limit: Duration) {
        let Some(on) = self.on else { return };
        let (done, wait) = oneshot::channel();
        if on.queue.try_send(Message::Flush(done)).is_ok() {
            // What the collector does not have by then is exported afterwards, or is lost.
            let _ = tokio::time::timeout(limit, wait).await;
        }
    }
}

impl TraceMetrics {
    fn new(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            exported: IntCounter::new(
                "epilogue_trace_spans_exported_total",
                "Spans that the collector took.",
            )?,
            dropped: IntCounter::new(
                "epilogue_trace_spans_dropped_total",
                "Spans that were lost: the queue was full, or the collector did not take them.",
            )?,
        };
        registry.register(Box::new(metrics.exported.clone()))?;
        registry.register(Box::new(metrics.dropped.clone()))?;
        Ok(metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_endpoint_means_no_traces() {
        for none in [None, Some("")] {
            assert_eq!(TraceOptions::new(none, 1.0).expect("must be valid"), None);
        }
        assert!(!Tracer::default().is_on());
    }

    #[test]
    fn an_endpoint_is_an_address_of_a_collector() {
        for bad in ["127.0.0.1:4318", "https://a:4318", "grpc://a", "http://", "http://a/?b", "x y"]
        {
            let error = TraceOptions::new(Some(bad), 1.0).expect_err(bad).to_string();
            assert!(error.contains(bad) && error.contains("http://127.0.0.1:4318"), "{error}");
        }
    }

    #[test]
    fn a_sample_ratio_is_a_part() {
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            let error = TraceOptions::new(None, bad).expect_err("must be refused").to_string();
            assert!(error.contains("from 0 to 1"), "{error}");
        }
    }

    fn span(name: &'static str) -> Span {
        let pod_uid = "0b7c3f5e-1f52-4a39-9a3e-6f1f5b1d0c7a".to_owned();
        let (begun, ended) = (Timestamp::UNIX_EPOCH, Timestamp::MAX);
        Span { pod_uid, name, begun, ended, attributes: Vec::new(), error: None }
    }

    #[test]
    fn a_full_queue_drops_spans_and_counts_them() {
        let (tracer, mut messages) = Tracer::recorded(2).expect("must be valid");
        for name in ["a", "b", "c", "d"] {
            tracer.send(span(name));
        }
        let mut kept = Vec::new();
        while let Ok(Message::Span(span)) = messages.try_recv() {
            kept.push(span.name);
        }
        assert_eq!(kept, ["a", "b"]);
        let dropped = |tracer: &Tracer| tracer.on.as_ref().map(|on| on.metrics.dropped.get());
        assert_eq!(dropped(&tracer), Some(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_waits_no_longer_than_its_limit() {
        let (tracer, mut messages) = Tracer::recorded(2).expect("must be valid");
        let begun = tokio::time::Instant::now();
        tracer.clone().flush(Duration::from_millis(200)).await;
        assert_eq!(begun.elapsed(), Duration::from_millis(200));
        let flush = tokio::spawn(tracer.flush(Duration::from_millis(200)));
        messages.recv().await.expect("the first flush");
        let Some(Message::Flush(done)) = messages.recv().await else { panic!("must be a flush") };
        done.send(()).expect("must wait");
        flush.await.expect("must end");
        assert_eq!(begun.elapsed(), Duration::from_millis(200));
    }

    #[cfg(not(feature = "traces"))]
    #[test]
    fn a_build_without_traces_says_so() {
        let error = TraceOptions::new(Some("http://127.0.0.1:4318"), 1.0).expect_err("must fail");
        assert!(error.to_string().contains("--features traces"), "{error}");
    }
}
