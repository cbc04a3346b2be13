//! Shares the state between watches and workers, and enqueues what follows from each event.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard};
use std::time::Duration;

use controller_core::job::MemoryUpdate;
use controller_core::orphans::Orphans;
use controller_core::podgc::{NamespaceView, NodeView};
use controller_core::quota_waits::QuotaWaits;
use controller_core::state::{ClusterState, Entry, Event, Now, Reaction, Snapshot};
use controller_core::view::{Job, JobKey, Pod, PodGroup, Uid, Version, WirePod, Workload};
use epilogue_common::outcome::Failure;
use epilogue_runtime::clock::Clock;
use epilogue_runtime::rate_limit::Backlog;
use epilogue_runtime::watch::{Newest, Relist, WatchEvent};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::metrics::Metrics;
use crate::planner::Stopwatch;
use crate::podgc::GcQueues;
use crate::workqueue::Queue;

/// The state, and all queues.
#[derive(Debug)]
pub(crate) struct Dispatch {
    /// A panic in it poisons it: what it holds may be half done, so the next use ends the process.
    state: StdMutex<ClusterState>,
    pub(crate) jobs: Arc<Queue<JobKey>>,
    pub(crate) orphans: Arc<Queue<Orphans>>,
    /// The queues of pod GC; `None` if all its rules are off.
    pub(crate) gc: Option<GcQueues>,
    clock: Clock,
    /// Calls that wait for `--kube-api-qps`.
    backlog: Backlog,
    metrics: Metrics,
    quota_waits: Mutex<QuotaWaits>,
    /// Where new lists are requested, one for each watch.
    relists: Mutex<Vec<Relist>>,
    /// The same of Workloads and of PodGroups.
    group_relists: Mutex<Vec<Relist>>,
    /// The newest known version of Jobs.
    pub(crate) newest_job: Newest,
    /// The newest known version of pods.
    pub(crate) newest_pod: Newest,
    leads: AtomicBool,
    /// A Job asks for a scheduling group, and the API is not known to serve any.
    pub(crate) asks_for_groups: Notify,
}

/// What one event of the watch of pods leads to, other than syncs.
#[derive(Debug, Default)]
pub(crate) struct PodNews {
    /// The Job that rests because its pod cannot be read.
    pub(crate) rests: Option<Arc<Job>>,
    /// Pods that a disruption has ended, and their Jobs. None where another replica leads.
    pub(crate) disrupted: Vec<(Arc<Job>, Arc<Pod>)>,
}

impl Dispatch {
    /// Creates a dispatcher for these queues.
    pub(crate) fn new(
        state: ClusterState,
        (jobs, orphans, gc): (Arc<Queue<JobKey>>, Arc<Queue<Orphans>>, Option<GcQueues>),
        backlog: Backlog,
        metrics: Metrics,
        clock: Clock,
    ) -> Self {
        let (state, relists) = (StdMutex::new(state), Mutex::default());
        let (newest_job, newest_pod) = (Newest::default(), Newest::default());
        Self {
            state,
            jobs,
            orphans,
            gc,
            clock,
            backlog,
            metrics,
            quota_waits: Mutex::default(),
            relists,
            group_relists: Mutex::default(),
            newest_job,
            newest_pod,
            leads: AtomicBool::new(false),
            asks_for_groups: Notify::new(),
        }
    }

    /// A watch begins, which lists again on request.
    pub(crate) fn add_watch(&self, relist: Relist) {
        self.relists.lock().push(relist);
    }

    /// Opens all queues and enqueues everything that the watches have shown. The queues open
    /// first, so that no event in between is lost. A controller that observes `runs_jobs` not: the
    /// queues of Jobs and of orphans stay closed.
    pub(crate) fn open(&self, runs_jobs: bool) {
        self.leads.store(true, Ordering::Relaxed);
        if runs_jobs {
            self.jobs.open();
            self.orphans.open();
        }
        if let Some(gc) = &self.gc {
            gc.open();
        }
        let entries = self.state().everything(&self.now());
        self.enqueue(entries);
    }

    /// The pods are listed next, before any sync.
    pub(crate) fn expect_pods(&self) {
        self.state().expect_pods();
    }

    /// Takes an event of the watch of Jobs.
    pub(crate) fn job(&self, event: WatchEvent<Job>) {
        self.handle(Event::Job(event.map(Arc::new)));
    }

    /// Takes an event of the watch of pods.
    pub(crate) fn pod(&self, event: WatchEvent<WirePod>) -> PodNews {
        self.wake_for_quota(&event);
        let mut reaction = self.state().handle_pod(event, &self.now());
        let disrupted = std::mem::take(&mut reaction.disrupted);
        let is_reported = self.leads.load(Ordering::Relaxed);
        PodNews {
            rests: self.react(reaction),
            disrupted: if is_reported { disrupted } else { Vec::new() },
        }
    }

    /// A pod that ends frees quota, for which Jobs of its namespace may wait.
    fn wake_for_quota(&self, event: &WatchEvent<WirePod>) {
        let pod = match event {
            WatchEvent::Shown(pod) if pod.is_terminal() => pod,
            WatchEvent::Gone(pod) => pod,
            _ => return,
        };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let (jobs, wait) = self.quota_waits.lock().pod_ended(namespace, self.jobs.now());
        for job in jobs {
            self.jobs.add_after(job, wait);
        }
    }

    /// Quota refused a pod of this Job, whose sync is repeated by its backoff, or sooner.
    pub(crate) fn over_quota(&self, key: &JobKey) {
        if let Some(wait) = self.quota_waits.lock().refused(key, self.jobs.now()) {
            self.jobs.add_after(key.clone(), wait);
        }
    }

    /// Quota refused nothing to this Job, or it is gone.
    pub(crate) fn within_quota(&self, key: &JobKey) {
        let next = self.quota_waits.lock().passed(key);
        for job in next {
            self.jobs.add(job);
        }
    }

    /// Takes an event of the watch of nodes.
    pub(crate) fn node(&self, event: WatchEvent<NodeView>) {
        self.handle(Event::Node(event));
    }

    /// Takes an event of the watch of namespaces.
    pub(crate) fn namespace(&self, event: WatchEvent<NamespaceView>) {
        self.handle(Event::Namespace(event));
    }

    /// Takes an event of the watch of Workloads.
    pub(crate) fn workload(&self, event: WatchEvent<Workload>) {
        self.handle(Event::Workload(event.map(Arc::new)));
    }

    /// Takes an event of the watch of PodGroups.
    pub(crate) fn pod_group(&self, event: WatchEvent<PodGroup>) {
        self.handle(Event::PodGroup(event.map(Arc::new)));
    }

    /// From now on the API serves Workloads and PodGroups to us, or does not.
    pub(crate) fn serve_groups(&self, served: bool) {
        let now = self.now();
        let entries = self.state().serve_groups(served, &now);
        self.enqueue(entries);
    }

    /// Workloads and PodGroups are listed again before the next sync, if the API serves them.
    pub(crate) fn expect_groups(&self) {
        self.state().expect_groups();
        for relist in &*self.group_relists.lock() {
            // The state waits for the lists.
            drop(relist.fresh());
        }
    }

    /// The watches of Workloads and of PodGroups begin, which list again on request.
    pub(crate) fn set_group_watches(&self, relists: impl Into<Vec<Relist>>) {
        *self.group_relists.lock() = relists.into();
    }

    /// Takes the version of a Job in an answer, which must be this one or newer.
    pub(crate) fn job_answered(&self, floor: Version, version: Version) {
        if self.newest_job.answered(floor.0, version.0) {
            self.job(WatchEvent::Restored);
        }
    }

    /// Takes the version of a pod in an answer, which must be this one or newer.
    pub(crate) fn pod_answered(&self, floor: Version, version: Version) {
        if self.newest_pod.answered(floor.0, version.0) {
            self.pod(WatchEvent::Restored);
        }
    }

    fn handle(&self, event: Event) {
        let reaction = self.state().handle(event, &self.now());
        self.react(reaction);
    }

    fn react(&self, reaction: Reaction) -> Option<Arc<Job>> {
        for event in reaction.tracked_terminal {
            self.metrics.tracked_terminal(event);
        }
        // Every replica watches, and one measures.
        if self.leads.load(Ordering::Relaxed) {
            self.metrics.disrupted(&reaction.disruption_times);
        }
        if let Some(controller) = reaction.external {
            self.metrics.external(&controller);
        }
        if let Some(namespace) = reaction.template_budget {
            tracing::warn!(
                %namespace,
                "templates of Jobs exceed the memory of a namespace: some are read at each use, \
                 and large selectors adopt and disown no pod"
            );
        }
        if reaction.asks_for_group {
            self.asks_for_groups.notify_one();
        }
        if reaction.relist {
            tracing::warn!("the API has gone back to an earlier version: everything is read anew");
            for relist in &*self.relists.lock() {
                // The lists come without a wait for them.
                drop(relist.fresh());
            }
        }
        self.enqueue(reaction.entries);
        reaction.rests
    }

    /// The input of a plan for this Job. `None` if it is unknown or rests.
    pub(crate) fn input(&self, key: &JobKey) -> Option<Snapshot> {
        let now = self.now();
        self.state().take_input(key, &now)
    }

    /// The Job of this key.
    pub(crate) fn job_of(&self, key: &JobKey) -> Option<Arc<Job>> {
        self.state().job(key).cloned()
    }

    /// Observes how long the decisions about a key took.
    pub(crate) fn planned(&self, work: &str, key: &impl fmt::Debug, plans: &Stopwatch) {
        self.metrics.planned(work, key, plans);
    }

    /// Reports that work on a key panicked. All other keys go on.
    pub(crate) fn panicked(&self, work: &str, key: &impl fmt::Debug, failure: &Failure) {
        tracing::error!(work, ?key, error = %failure, "a panic: only this key is repeated");
        self.metrics.panics.inc();
    }

    #[cfg(test)]
    pub(crate) fn panics(&self) -> u64 {
        self.metrics.panics.get()
    }

    /// Whether the API has gone back to an earlier version since this snapshot.
    pub(crate) fn is_void(&self, snapshot: &Snapshot) -> bool {
        self.state().restores() != snapshot.restores
    }

    /// Updates the memory of a Job.
    pub(crate) fn remember(&self, job: &Job, change: MemoryUpdate) {
        self.state().remember(job, change, self.clock.now());
    }

    /// Syncs a Job again once the watches show what was written.
    pub(crate) fn await_versions(&self, snapshot: &Snapshot) {
        let (key, written) = (snapshot.job.key.clone(), snapshot.memory.awaited());
        let entries = self.state().await_versions(key, written);
        self.enqueue(entries);
    }

    /// Records the end and the duration of a sync.
    pub(crate) fn synced(&self, key: &JobKey, took: Duration) {
        let ended = self.jobs.now();
        self.state().synced(key, took, ended);
    }

    /// Forgets a Job that no longer exists.
    pub(crate) fn forget(&self, key: &JobKey) {
        self.state().forget(key);
        self.jobs.forget(key);
        self.within_quota(key);
    }

    /// Syncs a Job again after the time that its plan requested. ([Q3])
    pub(crate) fn wake_after(&self, key: &JobKey, wait: Duration) {
        let entry = self.state().requeue(key, wait);
        self.enqueue([entry]);
    }

    /// The state, locked: for a call that enqueues nothing, or whose entries go to
    /// [`Self::enqueue`].
    pub(crate) fn state(&self) -> MutexGuard<'_, ClusterState> {
        self.state.lock().expect("the state must be whole: a panic has left it half changed")
    }

    /// Whether a watch has shown a Job of this name and UID.
    pub(crate) fn knows(&self, key: &JobKey, uid: &Uid) -> bool {
        self.state().knows(key, uid)
    }

    /// Returns the pods whose tracking finalizer may be removed. ([O1], [O2])
    pub(crate) fn orphans(&self, item: &Orphans, manage_all_jobs: bool) -> Vec<Arc<Pod>> {
        self.state().orphans(item, manage_all_jobs)
    }

    /// An empty state, and queues that are closed; with pod GC if there are settings of it.
    #[cfg(test)]
    pub(crate) fn for_tests(gc: Option<controller_core::podgc::Settings>) -> Self {
        use controller_core::batching::Batching;
        use controller_core::workqueue::FailureDelay;
        use prometheus::{Histogram, HistogramOpts, Registry};

        let histogram =
            || Histogram::with_opts(HistogramOpts::new("name", "help")).expect("must be valid");
        let delay = FailureDelay { base: Duration::from_secs(1), max: Duration::from_secs(9) };
        let jobs = Arc::new(Queue::new(delay, histogram(), histogram()));
        let orphans = Arc::new(Queue::new(delay, histogram(), histogram()));
        let metrics = Metrics::new(&Registry::new()).expect("must register");
        let queues = gc.is_some().then(|| GcQueues::new(|_| (histogram(), histogram())));
        let (state, backlog) = (ClusterState::new(Batching::default(), gc), Backlog::default());
        Self::new(state, (jobs, orphans, queues), backlog, metrics, Clock::MACHINE)
    }

    fn now(&self) -> Now {
        let (elapsed, has_backlog) = (self.jobs.now(), self.jobs.has_ready());
        let is_limited = self.backlog.has_waiting();
        Now { time: self.clock.now(), elapsed, has_backlog, is_limited }
    }

    /// Puts entries into their queues.
    pub(crate) fn enqueue(&self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            match entry {
                Entry::Job(key, None) => self.jobs.add(key),
                Entry::Job(key, Some(wait)) => self.jobs.add_after(key, wait),
                Entry::Orphans(orphans, None) => self.orphans.add(orphans),
                Entry::Orphans(orphans, Some(wait)) => self.orphans.add_after(orphans, wait),
                Entry::Check(wake) => {
                    if let Some(gc) = &self.gc {
                        gc.of(wake.priority).add_after(wake.item, wake.after);
                    }
                }
            }
        }
    }
}
