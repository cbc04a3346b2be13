//! Makes one run: one scenario by one contender. Applies the load, waits for its end, checks the
//! outcome, and measures meanwhile.

use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, ListParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use tokio::time::{Instant, sleep, timeout};

use crate::nodes::Stats;

use super::contender::{Bed, Contender};
use super::figures::Figures;
use super::requests::{Others, Requests};
use super::scenario::{self, Scenario, is_finished};
use super::usage::{self, Machine, Usage};

const NAMESPACE: &str = "bench";
const WARM_UP_NAMESPACE: &str = "bench-warm-up";
const WARM_UP_MAX: Duration = Duration::from_mins(1);
/// Far beyond what the slowest contender needs on a busy machine.
const LENGTH_MAX: Duration = Duration::from_mins(10);
/// Concurrent creations of Jobs: more than either contender processes.
const CREATIONS_MAX: usize = 16;
/// The controllers write some events later than the Complete; ours takes up to 10 s.
const EVENTS_MAX: Duration = Duration::from_secs(11);
/// A controller is at rest if it has used at most [`REST_CPU`] in this time.
const REST: Duration = Duration::from_millis(500);
const REST_CPU: Duration = Duration::from_millis(10);
const REST_WITHIN: Duration = Duration::from_mins(3);
const FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// Resources used up to a moment.
struct Reading {
    controller: Usage,
    api_server: Usage,
    nodes: Usage,
    /// Used by all processes of the bench.
    ours: Duration,
    machine: Machine,
    requests: Requests,
    stats: Stats,
}

/// Runs a scenario on a bed that is ready, and measures.
pub(super) async fn measure(
    bed: &Bed,
    scenario: Scenario,
    contender: Contender,
) -> anyhow::Result<Figures> {
    let client = bed.control_plane.admin_client().await?;
    warm_up(&client, contender).await.context("the warm-up Job, before the load")?;
    create_namespace(&client, NAMESPACE).await?;
    rest(bed, Duration::ZERO).await?;
    let load = scenario.load(contender.managed_by());
    let before = read(bed, &client).await?;
    let begun = Instant::now();
    let finished = timeout(LENGTH_MAX, run_load(&client, load, scenario.end())).await;
    let wall = begun.elapsed();
    let finished =
        finished.with_context(|| format!("not all Jobs ended within {LENGTH_MAX:?}"))??;
    rest(bed, EVENTS_MAX).await?;
    let after = read(bed, &client).await?;
    check(&client, scenario, &finished).await?;
    figures(scenario, wall, &before, &after)
}

async fn read(bed: &Bed, client: &kube::Client) -> anyhow::Result<Reading> {
    // Read before the metrics, whose rendering costs the API server more than a pod does.
    let mut reading = Reading {
        controller: usage::of(bed.controller_pid())?,
        api_server: usage::of(bed.api_server_pid())?,
        nodes: usage::of(std::process::id())?,
        ours: Duration::ZERO,
        machine: usage::of_machine()?,
        requests: Requests::default(),
        stats: bed.nodes.stats(),
    };
    for pid in bed.pids() {
        reading.ours += usage::of(pid)?.cpu;
    }
    let request = http::Request::get("/metrics").body(Vec::new()).expect("must be a request");
    let text = client.request_text(request).await.context("read the API server's metrics")?;
    reading.requests = Requests::parse(&text);
    Ok(reading)
}

/// Runs a first Job: afterwards the controller is at work, with its caches filled.
async fn warm_up(client: &kube::Client, contender: Contender) -> anyhow::Result<()> {
    create_namespace(client, WARM_UP_NAMESPACE).await?;
    let jobs = vec![scenario::warm_up(contender.managed_by())];
    let run = run_jobs(client, (WARM_UP_NAMESPACE, "Complete"), jobs);
    let finished = timeout(WARM_UP_MAX, run).await;
    finished.with_context(|| format!("did not end within {WARM_UP_MAX:?}"))??;
    Ok(())
}

async fn run_load(
    client: &kube::Client,
    load: Vec<Job>,
    end: &str,
) -> anyhow::Result<HashMap<String, JobStatus>> {
    run_jobs(client, (NAMESPACE, end), load).await
}

/// Creates the Jobs and waits until each has this end; returns their last statuses by name.
pub(super) async fn run_jobs(
    client: &kube::Client,
    (namespace, end): (&str, &str),
    load: Vec<Job>,
) -> anyhow::Result<HashMap<String, JobStatus>> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
    let count = load.len();
    let params = PostParams::default();
    let creation = stream::iter(&load)
        .map(async |job| jobs.create(&params, job).await.map(drop))
        .buffer_unordered(CREATIONS_MAX)
        .try_collect::<()>();
    let created = async { creation.await.context("create the Jobs") };
    let (finished, ()) = tokio::try_join!(ends(jobs.clone(), count, end), created)?;
    Ok(finished)
}

/// Waits until this many Jobs have this end, by a watch, so that waiting costs next to nothing.
async fn ends(
    jobs: Api<Job>,
    count: usize,
    end: &str,
) -> anyhow::Result<HashMap<String, JobStatus>> {
    let mut events = pin!(watcher(jobs, watcher::Config::default()).default_backoff());
    let mut finished = HashMap::new();
    while finished.len() < count {
        let event = events.next().await.context("the watch of the Jobs ended")?;
        // The watcher backs off and relists by itself.
        let Ok(watcher::Event::Apply(job) | watcher::Event::InitApply(job)) = event else {
            continue;
        };
        let (name, status) =
            (job.metadata.name.unwrap_or_default(), job.status.unwrap_or_default());
        let mut ends = ["Complete", "Failed"].into_iter();
        if let Some(seen) = ends.find(|kind| is_finished(&status, kind)) {
            ensure!(seen == end, "the Job {name} is {seen}: {status:?}");
            finished.insert(name, status);
        }
    }
    Ok(finished)
}

/// Waits until the controller is at rest, but at least this long.
pub(super) async fn rest(bed: &Bed, at_least: Duration) -> anyhow::Result<()> {
    let begun = Instant::now();
    let pid = bed.controller_pid();
    let mut last = usage::of(pid)?.cpu;
    loop {
        sleep(REST).await;
        let now = usage::of(pid)?.cpu;
        if now.saturating_sub(last) <= REST_CPU && begun.elapsed() >= at_least {
            return Ok(());
        }
        ensure!(begun.elapsed() < REST_WITHIN, "the controller works on without anything to do");
        last = now;
    }
}

/// Checks the outcome: a fast controller that counts wrongly gets no figures.
async fn check(
    client: &kube::Client,
    scenario: Scenario,
    finished: &HashMap<String, JobStatus>,
) -> anyhow::Result<()> {
    for (name, status) in finished {
        let faults = scenario.faults(status);
        ensure!(faults.is_empty(), "the Job {name} did not end as it has to: {faults:?}");
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let pods = pods.list_metadata(&ListParams::default()).await.context("list the pods")?;
    let held = pods.iter().filter(|pod| {
        pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
    });
    let (count, held) = (pods.items.len(), held.count());
    if count != scenario.pods() as usize || held > 0 {
        bail!("there are {count} pods instead of {}, {held} of them not released", scenario.pods());
    }
    Ok(())
}

fn figures(
    scenario: Scenario,
    wall: Duration,
    before: &Reading,
    after: &Reading,
) -> anyhow::Result<Figures> {
    let requests = &after.requests - &before.requests;
    let (then, now) = (&before.stats, &after.stats);
    ensure!(then.watch_errors == now.watch_errors, "the nodes lost their watch: {now:?}");
    let others = Others {
        jobs_created: u64::from(scenario.jobs()),
        pods_bound: now.bound - then.bound,
        statuses_written: now.statuses_written - then.statuses_written,
        pods_deleted: now.deleted - then.deleted,
        uncertain: now.retries + now.refused - then.retries - then.refused,
    };
    let machine = after.machine.all.saturating_sub(before.machine.all);
    let busy = after.machine.busy.saturating_sub(before.machine.busy);
    let foreign = busy.saturating_sub(after.ours.saturating_sub(before.ours));
    Ok(Figures {
        pods: scenario.pods(),
        wall,
        writes: requests.writes(&others)?,
        reads: requests.reads(),
        failed: requests.failed(),
        controller_cpu: after.controller.cpu.saturating_sub(before.controller.cpu),
        api_server_cpu: after.api_server.cpu.saturating_sub(before.api_server.cpu),
        nodes_cpu: after.nodes.cpu.saturating_sub(before.nodes.cpu),
        rss_before_kib: before.controller.rss_kib,
        rss_peak_kib: after.controller.rss_peak_kib,
        rss_after_kib: after.controller.rss_kib,
        foreign_cpu_share: foreign.as_secs_f64() / machine.as_secs_f64().max(f64::EPSILON),
    })
}

pub(super) async fn create_namespace(client: &kube::Client, name: &str) -> anyhow::Result<()> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .with_context(|| format!("create the namespace {name}"))?;
    crate::control_plane::default_service_account(client, name).await?;
    Ok(())
}
