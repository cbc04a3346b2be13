//! Starts and stops the controller's parts in order. ([Q7])

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use controller_core::checks::verify;
use controller_core::job::SyncInput;
use controller_core::state::ClusterState;
use controller_core::workqueue::Key;
use epilogue_runtime::admin::Admin;
use epilogue_runtime::clock::Clock;
use epilogue_runtime::health::Checks;
use epilogue_runtime::process;
use epilogue_runtime::signals::Signals;
use epilogue_runtime::tasks::TaskGroup;
use epilogue_runtime::watch::{Signs, Watches};
use kube::Client;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::admin_args::AdminConfig;
use crate::args::Config;
use crate::dispatch::Dispatch;
use crate::election::{Election, release};
use crate::environment::Environment;
use crate::events::Recorder;
use crate::execute::Executor;
use crate::informers::{self, HasSynced, Informers};
use crate::metrics::{Metrics, QueueCollector, QueueHistograms, ReadFigures};
use crate::orphan_finalizers::Cleaner;
use crate::planner::{Check, Planner};
use crate::podgc::{self, GcQueues};
use crate::readiness::Readiness;
use crate::scheduling_api::SchedulingApi;
use crate::sync::Syncer;
use crate::wake_ups::{CallsOnTheWay, WakeUps};
use crate::workqueue::{Process, Queue};

/// How long syncs in progress may take at the end.
const END_MAX: Duration = Duration::from_secs(10);
/// One worker in this many deletes finished pods; they are not urgent.
const CLEANUP_SHARE: usize = 5;
/// Source revision of the build, if the build knows it.
const REVISION: &str = match option_env!("EPILOGUE_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// The parts of the program.
struct Parts {
    client: Client,
    registry: Registry,
    metrics: Metrics,
    dispatch: Arc<Dispatch>,
    executor: Arc<Executor>,
    recorder: Arc<Recorder>,
    /// `None` if all its rules are off.
    pod_gc: Option<Arc<podgc::Worker>>,
    clock: Clock,
    /// From this number of pods on, a plan is made on another thread.
    many_pods: usize,
}

/// Runs the controller until SIGTERM or SIGINT.
pub fn run(config: Config) -> anyhow::Result<()> {
    let calls = CallsOnTheWay::default();
    let wake_ups = Mutex::new(WakeUps::new(Instant::now(), calls.clone()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || {
            let sleep = wake_ups.lock().take(Instant::now());
            if !sleep.is_zero() {
                std::thread::sleep(sleep);
            }
        })
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let signals = Signals::install()?;
        let token = CancellationToken::new();
        let program = async {
            let environment = Environment::of_process(&config, calls).await?;
            work(config, environment, token.clone()).await
        };
        Box::pin(signals.guard(&token, program)).await
    })
}

/// Runs the controller until `token` is cancelled, the lease is lost, or a part fails.
pub async fn work(
    config: Config,
    environment: Environment,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let parts = Parts::new(&config, &environment)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        revision = REVISION,
        manage_all_jobs = config.settings.manage_all_jobs,
        workers = config.workers,
        enforce = config.enforce,
        "starting"
    );
    if !config.enforce {
        let remedy = "set --mode=enforce, or EPILOGUE_MODE=enforce in the environment";
        tracing::warn!(remedy, "only observes: writes events, runs no Job, and acts on no pod");
    }
    let recording = CancellationToken::new();
    let recorder = Arc::clone(&parts.recorder);
    // A run that is dropped leaves nothing behind.
    let events = AbortOnDropHandle::new(tokio::spawn({
        let recording = recording.clone();
        async move { recorder.run(recording).await }
    }));
    let result = lead(&config, parts, environment, token).await;
    // The events of the last syncs are written before the process ends.
    recording.cancel();
    events.await.context("the recorder of events failed")?;
    tracing::info!("ended");
    result
}

/// Starts caches, then the lease, then the workers, and stops them in reverse order.
async fn lead(
    config: &Config,
    parts: Parts,
    environment: Environment,
    token: CancellationToken,
) -> anyhow::Result<()> {
    let watches = Watches::new(&parts.registry)?;
    // A kind that is not watched has no age.
    let has_pod_gc = parts.pod_gc.is_some();
    let of_pod_gc = |kind| if has_pod_gc { watches.of(kind) } else { Signs::unread(kind) };
    let readiness = Readiness {
        jobs: HasSynced::new(watches.of("jobs")),
        pods: HasSynced::new(watches.of("pods")),
        nodes: HasSynced::new(of_pod_gc("nodes")),
        namespaces: HasSynced::new(of_pod_gc("namespaces")),
    };
    let mut base = TaskGroup::new(token.child_token());
    let parts = &parts;
    let reviews = environment.clients.lease.clone();
    serve(config, parts, reviews, &readiness, &mut base).await?;
    let election = match &config.lease {
        Some(options) => Some(Election::begin(environment, options, &readiness).await?),
        None => None,
    };
    parts.watch(config, &readiness, &mut base);
    parts.watch_groups(config, watches, &mut base);
    let base_token = base.token();
    let working = async {
        let result = workers(config, parts, &readiness, election, &base_token).await;
        base_token.cancel();
        result
    };
    let (based, worked) = tokio::join!(base.run(END_MAX), working);
    based?;
    worked
}

/// Serves probes and metrics. `reviews` asks the API server about scrapers.
async fn serve(
    config: &Config,
    parts: &Parts,
    reviews: Client,
    readiness: &Readiness,
    group: &mut TaskGroup,
) -> anyhow::Result<()> {
    let live = Checks::new().with("ping", || Ok(()));
    let ready = readiness.checks(parts.pod_gc.is_some());
    let AdminConfig { metrics, probes, scrapers, certificate } = &config.admin;
    let admin = Admin::bind(metrics, live, ready, parts.registry.clone()).await?;
    let admin = admin.probed(probes).await?.scraped(scrapers, certificate, reviews).await?;
    if let Some(address) = admin.local_addr() {
        tracing::info!(%address, "serving /livez, /readyz and, to the loopback, /metrics");
    }
    if let Some(address) = admin.probe_addr() {
        tracing::info!(%address, "serving /livez and /readyz");
    }
    if let Some(address) = admin.scrape_addr() {
        tracing::info!(%address, "serving /metrics over HTTPS to bearers with the right");
    }
    group.spawn("admin", admin.serve(group.token()));
    Ok(())
}

/// Waits for the caches and the lease, works until `token` is cancelled or the lease is lost, and
/// releases the lease.
async fn workers(
    config: &Config,
    parts: &Parts,
    readiness: &Readiness,
    election: Option<Election<'_>>,
    token: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(election) = election else {
        tokio::select! {
            biased;
            () = token.cancelled() => return Ok(()),
            () = readiness.filled() => {}
        }
        return parts.work(config, token.child_token()).await;
    };
    let Some(leadership) = election.lead(readiness, &parts.dispatch, token).await? else {
        return Ok(());
    };
    parts.executor.set_fence(leadership.fence());
    if let Some(pod_gc) = &parts.pod_gc {
        pod_gc.executor.set_fence(leadership.fence());
    }
    let working = token.child_token();
    let result = tokio::select! {
        biased;
        loss = leadership.lost() => {
            working.cancel();
            Err(anyhow::Error::new(loss).context("no longer leading"))
        }
        result = parts.work(config, working.clone()) => result,
    };
    if let Err(error) = &result {
        // A call that did not complete may still reach the server.
        tracing::warn!(%error, "the lease is not given back");
        return result;
    }
    release(leadership).await;
    result
}

impl Parts {
    fn new(config: &Config, environment: &Environment) -> anyhow::Result<Self> {
        let Environment { clients, identity, calls, many_pods } = environment;
        let registry = Registry::new();
        process::register(&registry, env!("CARGO_PKG_VERSION"), REVISION)?;
        let metrics = Metrics::new(&registry)?;
        let metrics = metrics.with_external_controllers(&config.external_job_controllers);
        let histograms = QueueHistograms::new(&registry)?;
        let (waited, worked) = histograms.of("job");
        let jobs = Arc::new(Queue::new(config.api_backoff, waited, worked));
        let (waited, worked) = histograms.of("job_orphan_pod");
        let orphans = Arc::new(Queue::new(config.api_backoff, waited, worked));
        let settings = Some(&config.pod_gc.settings).filter(|settings| !settings.is_idle());
        let gc_queues = settings.map(|_| GcQueues::new(|name| histograms.of(name)));
        let mut queues = vec![("job", figures(&jobs)), ("job_orphan_pod", figures(&orphans))];
        if let Some(gc) = &gc_queues {
            queues.push(("pod_gc_ending", figures(&gc.ending)));
            queues.push(("pod_gc_tidying", figures(&gc.tidying)));
        }
        let manages_all = config.settings.manage_all_jobs;
        let state = ClusterState::new(config.batching, settings.cloned()).managing(manages_all);
        let backlog = clients.backlog.clone();
        let clock = identity.clock;
        let dispatch =
            Dispatch::new(state, (jobs, orphans, gc_queues), backlog, metrics.clone(), clock);
        let dispatch = Arc::new(dispatch);
        let pod_gc = pod_gc(environment, &dispatch, &registry)?;
        let events = clients.events.clone();
        let executor =
            Executor::counted(clients.jobs.clone(), Arc::clone(&dispatch), clock, calls.clone());
        registry.register(Box::new(QueueCollector::new(queues)?))?;
        Ok(Self {
            pod_gc,
            dispatch,
            executor: Arc::new(executor),
            recorder: Recorder::new(events, identity.clone(), metrics.clone()),
            client: clients.jobs.clone(),
            registry,
            metrics,
            clock,
            many_pods: *many_pods,
        })
    }

    /// Starts the watches.
    fn watch(&self, config: &Config, readiness: &Readiness, group: &mut TaskGroup) {
        let informers = Informers {
            client: self.client.clone(),
            namespace: config.namespace.clone(),
            dispatch: Arc::clone(&self.dispatch),
            recorder: Arc::clone(&self.recorder),
            manage_all_jobs: config.settings.manage_all_jobs,
        };
        if self.pod_gc.is_some() {
            let (client, dispatch) = (self.client.clone(), Arc::clone(&self.dispatch));
            let nodes = informers::nodes(client, dispatch, group.token(), readiness.nodes.clone());
            group.spawn("watch of nodes", endless(nodes));
            let (client, dispatch) = (self.client.clone(), Arc::clone(&self.dispatch));
            let synced = readiness.namespaces.clone();
            let namespaces = informers::namespaces(client, dispatch, group.token(), synced);
            group.spawn("watch of namespaces", endless(namespaces));
        }
        let jobs = informers.clone().jobs(group.token(), readiness.jobs.clone());
        group.spawn("watch of jobs", endless(jobs));
        let (listed, token) = (readiness.jobs.clone(), group.token());
        let pods = informers.pods(token.clone(), readiness.pods.clone());
        // Pods that are listed after the Jobs are as any Job counts them.
        let pods = async move {
            if token.run_until_cancelled(listed.wait()).await.is_some() {
                pods.await;
            }
        };
        group.spawn("watch of pods", endless(pods));
    }

    /// Watches Workloads and PodGroups while the API serves them. Until that is known, no Job is
    /// synced: its pods might start outside of their group.
    fn watch_groups(&self, config: &Config, watches: Watches, group: &mut TaskGroup) {
        if !config.enforce {
            return;
        }
        self.dispatch.serve_groups(true);
        let scheduling_api = SchedulingApi {
            client: self.client.clone(),
            namespace: config.namespace.clone(),
            dispatch: Arc::clone(&self.dispatch),
            watches,
            annotations: config.lease.as_ref().map(|lease| lease.annotations.clone()),
        };
        group.spawn("watch of scheduling groups", endless(scheduling_api.run(group.token())));
    }

    /// Runs the workers of all queues until the token is cancelled.
    async fn work(&self, config: &Config, token: CancellationToken) -> anyhow::Result<()> {
        let check = config.check_plans.then_some(check_plan as Check);
        let syncer = Arc::new(Syncer {
            dispatch: Arc::clone(&self.dispatch),
            executor: Arc::clone(&self.executor),
            recorder: Arc::clone(&self.recorder),
            metrics: self.metrics.clone(),
            planner: Planner::new(config.settings.clone(), check, self.many_pods),
            clock: self.clock,
        });
        let cleaner = Arc::new(Cleaner {
            dispatch: Arc::clone(&self.dispatch),
            executor: Arc::clone(&self.executor),
            recorder: Arc::clone(&self.recorder),
            manage_all_jobs: config.settings.manage_all_jobs,
        });
        // The queues were closed until now: a waiting replica only keeps its caches.
        self.dispatch.open(config.enforce);
        let mut group = TaskGroup::new(token);
        if config.enforce {
            let (jobs, orphans) = (&self.dispatch.jobs, &self.dispatch.orphans);
            staff(&mut group, "sync", config.workers, jobs, &syncer);
            staff(&mut group, "orphan", config.workers, orphans, &cleaner);
        }
        if let Some((queues, worker)) = self.dispatch.gc.as_ref().zip(self.pod_gc.as_ref()) {
            let workers = config.pod_gc.workers;
            let tidying = (workers / CLEANUP_SHARE).max(1);
            staff(&mut group, "pod gc ending", workers, &queues.ending, worker);
            staff(&mut group, "pod gc tidying", tidying, &queues.tidying, worker);
        }
        tracing::info!("working");
        Ok(group.run(END_MAX).await?)
    }
}

/// The worker of pod GC, if it has any rule.
fn pod_gc(
    environment: &Environment,
    dispatch: &Arc<Dispatch>,
    registry: &Registry,
) -> anyhow::Result<Option<Arc<podgc::Worker>>> {
    if dispatch.gc.is_none() {
        return Ok(None);
    }
    let clock = environment.identity.clock;
    Ok(Some(Arc::new(podgc::Worker {
        dispatch: Arc::clone(dispatch),
        executor: Executor::new(environment.clients.pod_gc.clone(), Arc::clone(dispatch), clock),
        clock,
        metrics: podgc::Metrics::new(registry)?,
        instance: environment.identity.name.clone(),
    })))
}

/// Works on the keys of a queue, on this many at once.
fn staff<K, P>(
    group: &mut TaskGroup,
    name: &str,
    workers: usize,
    queue: &Arc<Queue<K>>,
    process: &Arc<P>,
) where
    K: Key + Send + Sync + 'static,
    P: Process<K> + Send + Sync + 'static,
{
    let (queue, process, token) = (Arc::clone(queue), Arc::clone(process), group.token());
    let work = async move { queue.work(&*process, workers, token).await };
    group.spawn(format!("{name} workers"), endless(work));
}

fn figures<K: Key + Send + 'static>(queue: &Arc<Queue<K>>) -> ReadFigures {
    let queue = Arc::clone(queue);
    Box::new(move || queue.figures())
}

/// Adapts a task that ends on cancellation and cannot fail.
async fn endless(task: impl Future<Output = ()>) -> Result<(), Infallible> {
    task.await;
    Ok(())
}

fn check_plan(input: &SyncInput<'_>) -> Result<(), String> {
    verify(input).map_err(|failure| failure.message)
}
