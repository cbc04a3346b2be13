//! Shares the state between watches and workers, and enqueues what follows from each event.

use std::sync::Arc;
use std::time::Duration;

use controller_core::job::MemoryUpdate;
use controller_core::orphans::Orphans;
use controller_core::state::{ClusterState, Entry, Event, Now, Snapshot};
use controller_core::view::{Job, JobKey, Owner, Pod, Uid, WirePod};
use epilogue_runtime::watch::WatchEvent;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::metrics::Metrics;
use crate::workqueue::Queue;

/// The state, and the two queues of Jobs.
#[derive(Debug)]
pub(crate) struct Dispatch {
    state: Mutex<ClusterState>,
    pub(crate) jobs: Arc<Queue<JobKey>>,
    pub(crate) orphans: Arc<Queue<Orphans>>,
    metrics: Metrics,
}

impl Dispatch {
    /// Creates a dispatcher for these queues.
    pub(crate) fn new(
        state: ClusterState,
        jobs: Arc<Queue<JobKey>>,
        orphans: Arc<Queue<Orphans>>,
        metrics: Metrics,
    ) -> Self {
        Self { state: Mutex::new(state), jobs, orphans, metrics }
    }

    /// Opens both queues and enqueues everything that the watches have shown. The queues open
    /// first, so that no event in between is lost.
    pub(crate) fn open(&self) {
        self.jobs.open();
        self.orphans.open();
        let entries = self.state.lock().everything(&self.now());
        self.enqueue(entries);
    }

    /// Takes an event of the watch of Jobs.
    pub(crate) fn job(&self, event: WatchEvent<Job>) {
        self.handle(Event::Job(event.map(Arc::new)));
    }

    /// Takes an event of the watch of pods. Returns the Job that rests because its pod cannot be
    /// read.
    pub(crate) fn pod(&self, event: WatchEvent<WirePod>) -> Option<Arc<Job>> {
        let event = event.map(|pod| self.state.lock().view(pod));
        self.handle(Event::Pod(event))
    }

    fn handle(&self, event: Event) -> Option<Arc<Job>> {
        let reaction = self.state.lock().handle(event, &self.now());
        for event in reaction.tracked_terminal {
            self.metrics.tracked_terminal(event);
        }
        if let Some(controller) = reaction.external {
            self.metrics.external(&controller);
        }
        self.enqueue(reaction.entries);
        reaction.rests
    }

    /// The input of a plan for this Job. `None` if it is unknown or rests.
    pub(crate) fn input(&self, key: &JobKey) -> Option<Snapshot> {
        self.state.lock().input(key)
    }

    /// Updates the memory of a Job.
    pub(crate) fn remember(&self, job: &Job, change: MemoryUpdate) {
        self.state.lock().remember(job, change, Timestamp::now());
    }

    /// Syncs a Job again once the watches show what was written.
    pub(crate) fn await_versions(&self, snapshot: &Snapshot) {
        let (key, written) = (snapshot.job.key.clone(), snapshot.memory.awaited());
        let entries = self.state.lock().await_versions(key, written);
        self.enqueue(entries);
    }

    /// Records the end and the duration of a sync.
    pub(crate) fn synced(&self, key: &JobKey, took: Duration) {
        let ended = self.jobs.now();
        self.state.lock().synced(key, took, ended);
    }

    /// Forgets a Job that no longer exists.
    pub(crate) fn forget(&self, key: &JobKey) {
        self.state.lock().forget(key);
        self.jobs.forget(key);
    }

    /// Syncs a Job again after the time that its plan requested. ([Q3])
    pub(crate) fn wake_after(&self, key: &JobKey, wait: Duration) {
        let entry = self.state.lock().requeue(key, wait);
        self.enqueue([entry]);
    }

    /// An annotation of the Job that an owner reference names, if name and UID match.
    pub(crate) fn job_annotation(
        &self,
        namespace: &Arc<str>,
        owner: &Owner,
        name: &str,
    ) -> Option<String> {
        self.state.lock().job_annotation(namespace, owner, name).map(str::to_owned)
    }

    /// Whether a watch has shown a Job of this name and UID.
    pub(crate) fn knows(&self, key: &JobKey, uid: &Uid) -> bool {
        self.state.lock().knows(key, uid)
    }

    /// Returns the pods whose tracking finalizer may be removed. ([O1], [O2])
    pub(crate) fn orphans(&self, item: &Orphans, manage_all_jobs: bool) -> Vec<Arc<Pod>> {
        self.state.lock().orphans(item, manage_all_jobs)
    }

    /// An empty state, and queues that are closed.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        use controller_core::workqueue::FailureDelay;
        use prometheus::{Histogram, HistogramOpts, Registry};

        let histogram =
            || Histogram::with_opts(HistogramOpts::new("name", "help")).expect("must be valid");
        let delay = FailureDelay { base: Duration::from_secs(1), max: Duration::from_secs(9) };
        let jobs = Arc::new(Queue::new(delay, histogram(), histogram()));
        let orphans = Arc::new(Queue::new(delay, histogram(), histogram()));
        let metrics = Metrics::new(&Registry::new()).expect("must register");
        Self::new(ClusterState::default(), jobs, orphans, metrics)
    }

    fn now(&self) -> Now {
        let (elapsed, has_backlog) = (self.jobs.now(), self.jobs.has_ready());
        Now { time: Timestamp::now(), elapsed, has_backlog }
    }

    fn enqueue(&self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            match entry {
                Entry::Job(key, None) => self.jobs.add(key),
                Entry::Job(key, Some(wait)) => self.jobs.add_after(key, wait),
                Entry::Orphans(orphans, None) => self.orphans.add(orphans),
                Entry::Orphans(orphans, Some(wait)) => self.orphans.add_after(orphans, wait),
            }
        }
    }
}
