//! Applies watch events to the cluster view of pod GC and disruption, and enqueues what to check.
//! The core decides; `work` checks items and `execute` writes.

pub(crate) mod args;
mod events;
pub(crate) mod execute;
mod metrics;
#[cfg(test)]
mod tests;
mod work;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use controller_core::podgc::{
    Cluster, Item, Mode, Observed, PodWrite, Priority, Settings, Wake, WireNode,
};
use controller_core::view::WirePod;
use controller_core::workqueue::FailureDelay;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::informers::watch::{RawNamespace, Unreadable, WatchEvent};
use crate::metrics::QueueHistograms;
use crate::workqueue::Queue;

pub(crate) use metrics::Metrics;
pub(crate) use work::Worker;

/// Backoff after failures. The first delay is short, because the watch soon shows a pod that
/// changed in between.
const RETRY: FailureDelay =
    FailureDelay { base: Duration::from_millis(250), max: Duration::from_mins(1) };

/// The cluster view and its queues.
pub(crate) struct PodGc {
    cluster: Mutex<Cluster>,
    /// What was reported, where pod GC only observes.
    observed: Option<Mutex<Observed>>,
    /// Pods whose termination others may wait for.
    pub(crate) ending: Queue<Item>,
    /// Finished pods, whose deletion only frees space.
    pub(crate) tidying: Queue<Item>,
}

impl PodGc {
    /// Creates an empty cluster view.
    pub(crate) fn new(settings: Settings, histograms: &QueueHistograms) -> Arc<Self> {
        let queue = |name| {
            let (waited, worked) = histograms.of(name);
            Queue::new(RETRY, waited, worked)
        };
        Arc::new(Self {
            observed: (settings.mode == Mode::Observe).then(Mutex::default),
            cluster: Mutex::new(Cluster::new(settings)),
            ending: queue("pod_gc_ending"),
            tidying: queue("pod_gc_tidying"),
        })
    }

    /// Applies an event of the pod watch.
    pub(crate) fn pods(&self, event: &WatchEvent<WirePod>) {
        let mut cluster = self.cluster.lock();
        let mut wakes = Vec::new();
        match event {
            WatchEvent::ListBegins => cluster.pods_begin(),
            WatchEvent::ListEnds(_) => {
                cluster.pods_end();
                if let Some(observed) = &self.observed {
                    observed.lock().retain(|uid| cluster.pod(uid).is_some());
                }
            }
            WatchEvent::Shown(pod) => wakes = cluster.pod_shown(pod, Timestamp::now()),
            WatchEvent::Gone(pod) => {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                cluster.pod_gone(&uid.into());
                if let Some(observed) = &self.observed {
                    observed.lock().forget(&uid.into());
                }
            }
            // Pod GC must not write to a pod based on an outdated view.
            WatchEvent::Unreadable(pod) => cluster.pod_gone(&pod.uid.as_str().into()),
            WatchEvent::UpTo(_) => {}
        }
        drop(cluster);
        self.wake(wakes);
    }

    /// Applies an event of the node watch.
    pub(crate) fn nodes(&self, event: &WatchEvent<WireNode>) {
        let now = Timestamp::now();
        let mut cluster = self.cluster.lock();
        let mut wakes = Vec::new();
        match event {
            WatchEvent::ListBegins => cluster.nodes_begin(),
            WatchEvent::ListEnds(_) => wakes = cluster.nodes_end(now),
            WatchEvent::Shown(node) => wakes = cluster.node_shown(node, now),
            WatchEvent::Gone(node) => wakes = cluster.node_gone(node.name(), now),
            WatchEvent::Unreadable(node) if node.gone => wakes = cluster.node_gone(&node.name, now),
            WatchEvent::Unreadable(node) => report_unreadable("node", node),
            WatchEvent::UpTo(_) => {}
        }
        drop(cluster);
        self.wake(wakes);
    }

    /// Applies an event of the namespace watch.
    pub(crate) fn namespaces(&self, event: &WatchEvent<RawNamespace>) {
        let mut cluster = self.cluster.lock();
        match event {
            WatchEvent::ListBegins => cluster.namespaces_begin(),
            WatchEvent::ListEnds(_) => cluster.namespaces_end(),
            WatchEvent::Shown(namespace) => {
                cluster.namespace_shown(namespace.name(), namespace.annotations());
            }
            WatchEvent::Gone(namespace) => cluster.namespace_gone(namespace.name()),
            WatchEvent::Unreadable(namespace) if namespace.gone => {
                cluster.namespace_gone(&namespace.name);
            }
            WatchEvent::Unreadable(namespace) => report_unreadable("namespace", namespace),
            WatchEvent::UpTo(_) => {}
        }
    }

    /// Whether pod GC only observes.
    fn observes(&self) -> bool {
        self.observed.is_some()
    }

    /// Whether this write is to be reported in place of being carried out, for the first time.
    fn is_new(&self, write: &PodWrite) -> bool {
        self.observed.as_ref().is_some_and(|observed| observed.lock().is_new(write))
    }

    /// Opens the queues, and enqueues all that the watches have shown so far.
    pub(crate) fn open(&self) {
        self.ending.open();
        self.tidying.open();
        let wakes = self.cluster.lock().check_everything(Timestamp::now());
        self.wake(wakes);
    }

    fn wake(&self, wakes: Vec<Wake>) {
        for wake in wakes {
            self.queue(wake.priority).add_after(wake.item, wake.after);
        }
    }

    fn queue(&self, priority: Priority) -> &Queue<Item> {
        match priority {
            Priority::Ending => &self.ending,
            Priority::Tidying => &self.tidying,
        }
    }
}

/// Logs an unreadable object. The last readable version stays in the view; a new object is ignored.
fn report_unreadable(kind: &str, object: &Unreadable) {
    tracing::error!(kind, name = object.name, error = object.why, "an object cannot be read");
}

impl fmt::Debug for PodGc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PodGc").finish_non_exhaustive()
    }
}
