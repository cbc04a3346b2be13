//! Pod GC and disruption: the cluster as the watches show it, and the queues of what in it is
//! worth a look. What is to be done is decided in the core; `work` looks, `execute` writes.

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

use controller_core::podgc::{Cluster, Item, Lane, Settings, Wake, WireNode};
use controller_core::queue_core::FailureDelay;
use controller_core::view::WirePod;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::metrics::QueueHistograms;
use crate::queue::Queue;
use crate::watch::{RawNamespace, Seen, Unreadable};

pub(crate) use metrics::Metrics;
pub(crate) use work::Worker;

/// Delays after failures. The first is short: a pod that was changed meanwhile is shown at once.
const RETRY: FailureDelay =
    FailureDelay { base: Duration::from_millis(250), max: Duration::from_mins(1) };

/// The cluster and its queues.
pub(crate) struct PodGc {
    cluster: Mutex<Cluster>,
    /// Where somebody may wait.
    pub(crate) ending: Queue<Item>,
    /// Where only room is won.
    pub(crate) tidying: Queue<Item>,
}

impl PodGc {
    /// An empty cluster.
    pub(crate) fn new(settings: Settings, histograms: &QueueHistograms) -> Arc<Self> {
        let queue = |name| {
            let (waited, worked) = histograms.of(name);
            Queue::new(RETRY, waited, worked)
        };
        Arc::new(Self {
            cluster: Mutex::new(Cluster::new(settings)),
            ending: queue("pod_gc_ending"),
            tidying: queue("pod_gc_tidying"),
        })
    }

    /// Takes in what the watch of pods tells.
    pub(crate) fn pods(&self, seen: &Seen<WirePod>) {
        let mut cluster = self.cluster.lock();
        let mut wakes = Vec::new();
        match seen {
            Seen::ListBegins => cluster.pods_begin(),
            Seen::ListEnds(_) => cluster.pods_end(),
            Seen::Shown(pod) => wakes = cluster.pod_shown(pod, Timestamp::now()),
            Seen::Gone(pod) => {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                cluster.pod_gone(&uid.into());
            }
            // Nothing may be done to a pod by a wrong idea of it.
            Seen::Unreadable(pod) => cluster.pod_gone(&pod.uid.as_str().into()),
            Seen::UpTo(_) => {}
        }
        drop(cluster);
        self.wake(wakes);
    }

    /// Takes in what the watch of nodes tells.
    pub(crate) fn nodes(&self, seen: &Seen<WireNode>) {
        let now = Timestamp::now();
        let mut cluster = self.cluster.lock();
        let mut wakes = Vec::new();
        match seen {
            Seen::ListBegins => cluster.nodes_begin(),
            Seen::ListEnds(_) => wakes = cluster.nodes_end(now),
            Seen::Shown(node) => wakes = cluster.node_shown(node, now),
            Seen::Gone(node) => wakes = cluster.node_gone(node.name(), now),
            Seen::Unreadable(node) if node.gone => wakes = cluster.node_gone(&node.name, now),
            Seen::Unreadable(node) => tell_unreadable("node", node),
            Seen::UpTo(_) => {}
        }
        drop(cluster);
        self.wake(wakes);
    }

    /// Takes in what the watch of namespaces tells.
    pub(crate) fn namespaces(&self, seen: &Seen<RawNamespace>) {
        let mut cluster = self.cluster.lock();
        match seen {
            Seen::ListBegins => cluster.namespaces_begin(),
            Seen::ListEnds(_) => cluster.namespaces_end(),
            Seen::Shown(namespace) => {
                cluster.namespace_shown(namespace.name(), namespace.annotations());
            }
            Seen::Gone(namespace) => cluster.namespace_gone(namespace.name()),
            Seen::Unreadable(namespace) if namespace.gone => {
                cluster.namespace_gone(&namespace.name);
            }
            Seen::Unreadable(namespace) => tell_unreadable("namespace", namespace),
            Seen::UpTo(_) => {}
        }
    }

    /// Begins to work: what the watches have shown before is looked at, and what they show from now
    /// on.
    pub(crate) fn open(&self) {
        self.ending.open();
        self.tidying.open();
        let wakes = self.cluster.lock().look_at_everything(Timestamp::now());
        self.wake(wakes);
    }

    fn wake(&self, wakes: Vec<Wake>) {
        for wake in wakes {
            self.queue(wake.lane).add_after(wake.item, wake.after);
        }
    }

    fn queue(&self, lane: Lane) -> &Queue<Item> {
        match lane {
            Lane::Ending => &self.ending,
            Lane::Tidying => &self.tidying,
        }
    }
}

/// What was known of it stays, and of one that is new nothing is.
fn tell_unreadable(kind: &str, object: &Unreadable) {
    tracing::error!(kind, name = object.name, error = object.why, "an object cannot be read");
}

impl fmt::Debug for PodGc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("PodGc").finish_non_exhaustive()
    }
}
