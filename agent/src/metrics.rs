//! Defines the agent's metrics. What the core counts comes from its status at each scrape; the rest
//! is counted where it happens.

use std::time::Duration;

use epilogue_common::outcome::FailureKind;
use prometheus::{
    HistogramVec, IntCounter, IntCounterVec, Registry, register_histogram_vec_with_registry,
    register_int_counter_vec_with_registry, register_int_counter_with_registry,
};

mod rows;
mod status;
mod token;
mod values;

pub use status::StatusCollector;
pub use token::TokenCollector;

/// Upper bounds of a call's time, in seconds: from a reply on the same machine to the limit of an
/// attempt.
const CALL_SECONDS: [f64; 9] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];

/// The metrics that are counted where they happen.
#[derive(Clone, Debug)]
pub struct Metrics {
    calls: IntCounterVec,
    call_seconds: HistogramVec,
    notices: IntCounter,
    events: IntCounterVec,
}

impl Metrics {
    /// Registers them.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            calls: register_int_counter_vec_with_registry!(
                "epilogue_agent_api_calls_total",
                "Attempts to write to the API, by action and result (ok, or the class of the \
                 failure).",
                &["action", "result"],
                registry
            )?,
            call_seconds: register_histogram_vec_with_registry!(
                "epilogue_agent_api_call_duration_seconds",
                "Time that attempts to write to the API took, by action.",
                &["action"],
                CALL_SECONDS.to_vec(),
                registry
            )?,
            notices: register_int_counter_with_registry!(
                "epilogue_agent_shutdown_notices_total",
                "Shutdowns that logind announced.",
                registry
            )?,
            events: register_int_counter_vec_with_registry!(
                "epilogue_agent_events_total",
                "Events, by what became of them (written, failed).",
                &["result"],
                registry
            )?,
        })
    }

    /// Counts a call to the API that has ended, with its failure if any.
    pub fn call(&self, action: &str, failure: Option<FailureKind>, took: Duration) {
        let result = failure.map_or("ok", class);
        self.calls.with_label_values(&[action, result]).inc();
        self.call_seconds.with_label_values(&[action]).observe(took.as_secs_f64());
    }

    /// Counts a shutdown that logind has announced.
    pub fn notice(&self) {
        self.notices.inc();
    }

    /// Counts the result of an event for people.
    pub fn event(&self, written: bool) {
        let result = if written { "written" } else { "failed" };
        self.events.with_label_values(&[result]).inc();
    }
}

fn class(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::NotFound => "not-found",
        FailureKind::AlreadyExists => "already-exists",
        FailureKind::Conflict => "conflict",
        FailureKind::Invalid => "invalid",
        FailureKind::Forbidden | FailureKind::NamespaceTerminating => "forbidden",
        FailureKind::TooManyRequests => "too-many-requests",
        FailureKind::ServerError => "server-error",
        FailureKind::Unknown => "no-answer",
        FailureKind::Other => "other",
    }
}
