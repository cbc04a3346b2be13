//! Exports spans by OTLP over HTTP. Neither a slow collector nor a full queue delays the caller.

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, Key, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Message, ROOT, Span, TraceError, TraceMetrics, TraceOptions, ids};
use crate::tasks::TaskGroup;

/// Maximum number of spans in one request; collectors take at least 4 MiB.
const BATCH_MAX: usize = 512;
/// How long the first span of a request waits for others: the pods of a node end together.
const LINGER: Duration = Duration::from_millis(100);
/// How long an export may go on when the program ends.
const LAST_EXPORT_MAX: Duration = Duration::from_secs(1);

const SERVICE_NAME: Key = Key::from_static_str("service.name");

struct Worker {
    receiver: mpsc::Receiver<Message>,
    exporter: SpanExporter,
    scope: InstrumentationScope,
    metrics: TraceMetrics,
    /// Whether the last export failed, which is logged once.
    is_failing: bool,
}

/// Starts the exporter's task.
pub(super) fn start(
    options: &TraceOptions,
    service: &'static str,
    (receiver, metrics): (mpsc::Receiver<Message>, TraceMetrics),
    group: &mut TaskGroup,
) -> Result<(), TraceError> {
    let endpoint = options.endpoint.clone();
    let built = SpanExporter::builder().with_http().with_endpoint(endpoint.clone()).build();
    let mut exporter =
        built.map_err(|error| TraceError::Exporter { endpoint, why: error.to_string() })?;
    exporter.set_resource(&resource(service));
    let scope =
        InstrumentationScope::builder("epilogue").with_version(env!("CARGO_PKG_VERSION")).build();
    let worker = Worker { receiver, exporter, scope, metrics, is_failing: false };
    let token = group.token();
    group.spawn("traces", async move {
        worker.run(token).await;
        Ok::<_, Infallible>(())
    });
    Ok(())
}

/// The program as the source of spans. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win.
fn resource(service: &'static str) -> Resource {
    let given = Resource::builder().build();
    let name = given.get(&SERVICE_NAME).map(|name| name.to_string()).unwrap_or_default();
    if name.starts_with("unknown_service") {
        return Resource::builder().with_attribute(KeyValue::new(SERVICE_NAME, service)).build();
    }
    given
}

impl Worker {
    /// Exports until `token` is cancelled, then what is left.
    async fn run(mut self, token: CancellationToken) {
        while !token.is_cancelled() {
            let mut messages = Vec::new();
            tokio::select! {
                () = token.cancelled() => break,
                _ = self.receiver.recv_many(&mut messages, BATCH_MAX) => {}
            }
            let is_urgent = messages.iter().any(|each| matches!(each, Message::Flush(_)));
            if !is_urgent {
                tokio::select! {
                    () = token.cancelled() => {}
                    () = tokio::time::sleep(LINGER) => {}
                }
            }
            self.take_more(&mut messages);
            self.export(messages, &token).await;
        }
        self.receiver.close();
        let mut rest = Vec::new();
        while let Ok(message) = self.receiver.try_recv() {
            rest.push(message);
        }
        self.export(rest, &token).await;
    }

    fn take_more(&mut self, messages: &mut Vec<Message>) {
        while messages.len() < BATCH_MAX {
            let Ok(message) = self.receiver.try_recv() else { return };
            messages.push(message);
        }
    }

    async fn export(&mut self, messages: Vec<Message>, token: &CancellationToken) {
        let (mut batch, mut flushes) = (Vec::new(), Vec::new());
        for message in messages {
            match message {
                Message::Span(span) => batch.push(self.data(*span)),
                Message::Flush(done) => flushes.push(done),
            }
        }
        if !batch.is_empty() {
            let count = batch.len() as u64;
            let late = async {
                token.cancelled().await;
                tokio::time::sleep(LAST_EXPORT_MAX).await;
            };
            let failure = tokio::select! {
                result = self.exporter.export(batch) => result.err().map(|error| error.to_string()),
                () = late => Some("the program ends".to_owned()),
            };
            self.record(count, failure);
        }
        for done in flushes {
            // The caller waits no longer.
            let _ = done.send(());
        }
    }

    fn record(&mut self, count: u64, failure: Option<String>) {
        let was_failing = std::mem::replace(&mut self.is_failing, failure.is_some());
        match failure {
            None => self.metrics.exported.inc_by(count),
            Some(error) => {
                self.metrics.dropped.inc_by(count);
                if !was_failing {
                    tracing::warn!(count, error, "the collector did not take spans");
                }
            }
        }
    }

    fn data(&self, span: Span) -> SpanData {
        let trace = TraceId::from_bytes(ids::trace_id(&span.pod_uid));
        let id = SpanId::from_bytes(ids::span_id(&span.pod_uid, span.name, span.begun));
        let root = SpanId::from_bytes(ids::span_id(&span.pod_uid, ROOT, span.begun));
        let state = TraceState::default();
        let attributes = span.attributes.into_iter();
        SpanData {
            span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, state),
            parent_span_id: if span.name == ROOT { SpanId::INVALID } else { root },
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: span.name.into(),
            start_time: SystemTime::from(span.begun),
            end_time: SystemTime::from(span.ended),
            attributes: attributes.map(|(key, value)| KeyValue::new(key, value)).collect(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: span.error.map_or(Status::Unset, Status::error),
            instrumentation_scope: self.scope.clone(),
        }
    }
}
