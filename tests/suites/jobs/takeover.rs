//! Tests a leader killed in the middle of its work, and a standby whose pod watch has long shown
//! nothing: no pod is created twice.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use lab::bed::{JobBuilder, JobState, SOON, job};
use lab::controller::{Controller, Setup};
use lab::proxy::Proxy;
use lab::{Cluster, Namespace, eventually, install};
use tokio_util::task::AbortOnDropHandle;

use super::proxied;

/// Pairs side by side; each waits for a lease most of its time.
const LANES: usize = 4;
/// The lease of a dead leader is free after this. It is not shorter, because a leader on a busy
/// machine must not lose it.
const LEASE: Duration = Duration::from_secs(8);

/// Two replicas: the leader, and one behind a proxy.
struct Pair {
    namespace: Namespace,
    leader: Controller,
    standby: Controller,
    proxy: Proxy,
    client: kube::Client,
    /// All pods that ever existed.
    seen: Arc<Mutex<HashSet<String>>>,
    _watch: AbortOnDropHandle<()>,
}

impl Pair {
    async fn start() -> Self {
        let cluster = Cluster::of_tests("jobs").expect("the suite's cluster");
        let client = cluster.admin_client().await.expect("a client");
        let namespace = Namespace::create(&cluster).await.expect("a namespace");
        let name = namespace.name().to_owned();
        let dir = cluster.files(&name);
        let setup = |replica: &str| {
            let setup = Setup::debug(&dir.join(replica)).namespace(&name);
            setup
                .argument("--leader-elect=true")
                .argument(&format!("--leader-elect-resource-namespace={name}"))
                .argument(&format!("--leader-elect-lease-duration={}s", LEASE.as_secs()))
                .argument("--leader-elect-renew-deadline=6s")
                .argument("--leader-elect-retry-period=500ms")
        };
        // Each pair has a lease of its own.
        install::grant_lease(&client, &name).await.expect("the right to the lease");
        let leader = Controller::start(&cluster, &setup("leader")).await.expect("a leader");
        let leases: Api<Lease> = Api::namespaced(client.clone(), &name);
        let held =
            async || leases.list(&ListParams::default()).await.expect("the leases").items.len();
        eventually("the first leads", SOON, held, |count| *count == 1).await;
        let (standby, proxy) = proxied::start(&cluster, setup("standby")).await;
        let seen = Arc::new(Mutex::default());
        let watch = tokio::spawn(keep(Api::namespaced(client.clone(), &name), Arc::clone(&seen)));
        let watch = AbortOnDropHandle::new(watch);
        Self { namespace, leader, standby, proxy, client, seen, _watch: watch }
    }

    fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }

    async fn create(&self, job: JobBuilder) {
        self.jobs().create(&PostParams::default(), &job.build()).await.expect("the Job");
    }

    async fn reaches(&self, name: &str, holds: impl Fn(&JobState) -> bool) {
        let jobs = self.jobs();
        let state = async || JobState::of(&jobs.get(name).await.expect("the Job"));
        let what = format!("{name} as awaited (log: {})", self.standby.log().display());
        eventually(&what, SOON, state, holds).await;
    }

    fn seen(&self) -> usize {
        self.seen.lock().expect("no holder panics").len()
    }

    async fn stop(mut self) {
        self.standby.check().expect("the standby runs to the end");
        self.leader.stop().await;
        self.standby.stop().await;
        self.namespace.finish().await.expect("the namespace goes");
    }
}

/// Keeps the name of each pod that the watch shows, however soon it goes again.
async fn keep(pods: Api<Pod>, seen: Arc<Mutex<HashSet<String>>>) {
    let events = watcher(pods, watcher::Config::default()).default_backoff().touched_objects();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let name = event.ok().and_then(|pod| pod.metadata.name).unwrap_or_default();
        seen.lock().expect("no holder panics").insert(name);
    }
}

/// Kills the leader when this many of the Job's pods exist.
async fn killed_after(created: usize, pods: usize) {
    let mut pair = Pair::start().await;
    assert_eq!(pair.proxy.hold_watches("pods"), 1, "the standby watches pods");
    let size = u32::try_from(pods).expect("must fit");
    pair.create(job("large").indexed(size)).await;
    let count = async || pair.seen();
    eventually("the leader's work", SOON, count, |count| *count >= created).await;
    pair.leader.kill().await;
    pair.reaches("large", |state| state.active == i32::try_from(pods).unwrap_or(0)).await;
    // If the controller had created more, the watch would show them before this one.
    pair.create(job("later")).await;
    pair.reaches("later", |state| state.active == 1).await;
    let count = async || pair.seen();
    eventually("the last pod in the watch", SOON, count, |count| *count > pods).await;
    assert_eq!(pair.seen(), pods + 1, "after {created}: none was made twice");
    pair.stop().await;
}

/// Kills leaders at this many moments, spread over their work.
async fn killed_at_moments(runs_of_each: usize, pods: usize) {
    let lane = async |lane: usize| {
        for run in 0..runs_of_each {
            let created = 1 + (run * LANES + lane) * pods / (LANES * runs_of_each);
            killed_after(created, pods).await;
        }
    };
    tokio::join!(lane(0), lane(1), lane(2), lane(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_pod_is_made_twice_by_a_standby_whose_watch_stood_still() {
    Box::pin(killed_at_moments(1, 200)).await;
}

/// Twenty moments, up to the last of 500 creations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_no_pod_of_five_hundred_is_made_twice_at_twenty_moments() {
    Box::pin(killed_at_moments(5, 500)).await;
}

/// Tests a Job without events, and a Job that the leader left in the middle of its work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_job_is_worked_on_as_soon_as_the_lease_is_got() {
    let mut pair = Pair::start().await;
    pair.leader.kill().await;
    // No controller syncs it, and nothing in it changes, until the standby leads.
    pair.create(job("quiet")).await;
    pair.reaches("quiet", |state| state.active == 1).await;
    let leases: Api<Lease> = Api::namespaced(pair.client.clone(), pair.namespace.name());
    let lease = leases.list(&ListParams::default()).await.expect("the leases").items.remove(0);
    let acquired = lease.spec.and_then(|spec| spec.acquire_time).expect("a time").0;
    let after_s = jiff::Timestamp::now().duration_since(acquired).as_secs_f64();
    println!("{after_s:.2} s after the standby got the lease");
    // A tenth of a second on an idle machine; a resync would take minutes.
    assert!(after_s < 10.0, "{after_s}");
    let params = DeleteParams::background();
    pair.jobs().delete("quiet", &params).await.expect("the Job is deleted");
    pair.stop().await;
}
