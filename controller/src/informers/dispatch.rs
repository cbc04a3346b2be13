//! Enqueues what follows from events, after the delay that the core decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use controller_core::batching::{BatchInput, Batching, LastSync, Load};
use controller_core::event_handlers::Enqueue;
use controller_core::orphans::Orphans;
use controller_core::view::JobKey;
use parking_lot::Mutex;

use crate::cache::{Entry, Reaction};
use crate::metrics::Metrics;
use crate::workqueue::Queue;

/// The two queues, and what their delays depend on.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) jobs: Arc<Queue<JobKey>>,
    pub(crate) orphans: Arc<Queue<Orphans>>,
    batching: Batching,
    recent: Mutex<Recent>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Recent {
    load: Load,
    last: HashMap<JobKey, LastSync>,
}

impl Dispatch {
    /// Creates a dispatcher for these queues.
    pub(crate) fn new(
        jobs: Arc<Queue<JobKey>>,
        orphans: Arc<Queue<Orphans>>,
        batching: Batching,
        metrics: Metrics,
    ) -> Self {
        Self { jobs, orphans, batching, recent: Mutex::default(), metrics }
    }

    /// Opens both queues and enqueues `everything`. The queues open first, so that no event in
    /// between is lost.
    pub(crate) fn open(&self, everything: impl FnOnce() -> Reaction) {
        self.jobs.open();
        self.orphans.open();
        everything().entries.into_iter().for_each(|entry| self.enqueue(entry));
    }

    /// Enqueues and counts what follows from an event.
    pub(crate) fn dispatch(&self, reaction: Reaction) {
        for event in reaction.tracked_terminal {
            self.metrics.tracked_terminal(event);
        }
        if let Some(controller) = reaction.external {
            self.metrics.external(&controller);
        }
        reaction.entries.into_iter().for_each(|entry| self.enqueue(entry));
    }

    /// Records the end and the duration of a sync.
    pub(crate) fn synced(&self, key: &JobKey, took: Duration) {
        let ended = self.jobs.now();
        let mut recent = self.recent.lock();
        recent.load.synced(ended);
        recent.last.insert(key.clone(), LastSync { ended, took });
    }

    /// Forgets a Job that no longer exists.
    pub(crate) fn forget(&self, key: &JobKey) {
        self.recent.lock().last.remove(key);
        self.jobs.forget(key);
    }

    /// Syncs a Job again after the time that its plan requested. ([Q3])
    pub(crate) fn wake_after(&self, key: &JobKey, wait: Duration) {
        self.jobs.add_after(key.clone(), self.batching.floor(wait));
    }

    fn enqueue(&self, entry: Entry) {
        match entry.enqueue {
            Enqueue::Sync(key) => self.jobs.add(key),
            Enqueue::SyncAfter(key, wait) => self.jobs.add_after(key, wait),
            Enqueue::Orphans(orphans) => self.orphans.add(orphans),
            Enqueue::OrphansAfter(orphans, wait) => self.orphans.add_after(orphans, wait),
            Enqueue::Batch(key, change) => {
                let Some((job, counts)) = entry.facts else { return };
                let now = self.jobs.now();
                let recent = self.recent.lock();
                let busy = recent.load.is_busy(now) || self.jobs.has_ready();
                let last = recent.last.get(&key).copied();
                drop(recent);
                let input = BatchInput { change, job: &job, counts, last, busy, now };
                self.jobs.add_after(key, self.batching.delay(&input));
            }
        }
    }
}
