//! Defines the flags of `run` for traces.

use epilogue_runtime::traces::{TraceError, TraceOptions};

/// The flags for traces.
#[derive(Clone, Debug, clap::Args)]
pub struct TraceArgs {
    /// Address of a collector that takes traces by OTLP over HTTP, such as http://127.0.0.1:4318;
    /// empty for none. Needs a build with the feature traces.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    otlp_endpoint: Option<String>,
    /// The part of all traces that is exported, from 0 to 1. The pod's UID decides, so give agent
    /// and controller the same ratio.
    #[arg(long, value_name = "RATIO", default_value_t = 1.0)]
    trace_sample_ratio: f64,
}

impl TraceArgs {
    pub(super) fn options(&self) -> Result<Option<TraceOptions>, TraceError> {
        TraceOptions::new(self.otlp_endpoint.as_deref(), self.trace_sample_ratio)
    }
}
