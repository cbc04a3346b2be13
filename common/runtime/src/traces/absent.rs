//! Stands for the exporter in a build without the feature `traces`.

use tokio::sync::mpsc;

use super::{Message, TraceError, TraceMetrics, TraceOptions};
use crate::tasks::TaskGroup;

/// Fails: the flags accept no endpoint in this build.
pub(super) fn start(
    options: &TraceOptions,
    _: &'static str,
    _: (mpsc::Receiver<Message>, TraceMetrics),
    _: &mut TaskGroup,
) -> Result<(), TraceError> {
    Err(TraceError::NotBuilt(options.endpoint.clone()))
}
