//! Runs the checks of pod GC and of disruption. The core decides; `work` makes the calls.

pub(crate) mod args;
mod events;
mod metrics;
#[cfg(test)]
mod tests;
mod work;

use std::sync::Arc;
use std::time::Duration;

use controller_core::podgc::{Item, Priority};
use controller_core::workqueue::FailureDelay;
use prometheus::Histogram;

use crate::workqueue::Queue;

pub(crate) use metrics::Metrics;
pub(crate) use work::Worker;

/// Backoff after failures. The first delay is short, because the watch soon shows a pod that
/// changed in between.
const RETRY: FailureDelay =
    FailureDelay { base: Duration::from_millis(250), max: Duration::from_mins(1) };

/// The queues of pod GC.
#[derive(Clone, Debug)]
pub(crate) struct GcQueues {
    /// Pods whose termination others may wait for.
    pub(crate) ending: Arc<Queue<Item>>,
    /// Finished pods, whose deletion only frees space.
    pub(crate) tidying: Arc<Queue<Item>>,
}

impl GcQueues {
    /// Closed queues. `histograms` gives those of a queue by its name.
    pub(crate) fn new(histograms: impl Fn(&str) -> (Histogram, Histogram)) -> Self {
        let queue = |name| {
            let (waited, worked) = histograms(name);
            Arc::new(Queue::new(RETRY, waited, worked))
        };
        Self { ending: queue("pod_gc_ending"), tidying: queue("pod_gc_tidying") }
    }

    /// Accepts items from now on.
    pub(crate) fn open(&self) {
        self.ending.open();
        self.tidying.open();
    }

    /// The queue of this priority.
    pub(crate) fn of(&self, priority: Priority) -> &Arc<Queue<Item>> {
        match priority {
            Priority::Ending => &self.ending,
            Priority::Tidying => &self.tidying,
        }
    }
}
