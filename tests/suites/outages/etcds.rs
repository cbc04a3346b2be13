//! Tests pods and Jobs in different etcds, whose versions do not compare: no Job waits for them.

use std::mem;
use std::time::{Duration, Instant};

use lab::Options;
use lab::bed::job;
use lab::paths::program;

use super::stage::{Ground, Stage};
use super::takeover::{ELECTION, has_logged};

/// The lease of a dead leader is free after 8 s. Versions that do not come are awaited for 5 min.
const GOES_ON_WITHIN: Duration = Duration::from_mins(1);
const NAME: &str = "goes-on";

/// One pod after the other.
async fn create(stage: &Stage) {
    let one = job(NAME).spec("parallelism", 1).spec("completions", 10);
    stage.create(one.script("succeed after=1s")).await;
}

/// A Job with successes goes on soon after a restart of the controller, a start with a free lease,
/// and a takeover by a standby; and all Jobs count each pod once.
async fn jobs_go_on_with(resource: &str) {
    let ground = Ground::lay_on(Options::unique("outages").apart(resource)).await;
    let mut stage = ground.stage(0, &[]).await;
    create(&stage).await;
    stage.create_jobs(2).await;
    stage.succeeded(NAME, 1, GOES_ON_WITHIN).await;
    stage.controller.kill_and_restart().await.expect("our controller");
    // The controller before may have created the next one.
    goes_on(&stage, "a restart", 3).await;

    stage.controller.kill().await;
    stage.controller = stage.start_standby(&ELECTION).await;
    goes_on(&stage, "a start with a free lease", 5).await;
    let binary = program("epilogue-controller");
    let mut standby = stage.start_alongside("second", &binary, &ELECTION).await;
    has_logged(&standby, "caches are filled", 1).await;
    // It sees counts of another process.
    goes_on(&stage, "nothing", 6).await;
    stage.controller.kill().await;
    mem::swap(&mut stage.controller, &mut standby);
    goes_on(&stage, "a takeover", 8).await;
    stage.all_are_exact().await;
    assert!(!stage.log().contains("the API has gone back"), "{}", stage.log());
    stage.stop().await;
}

async fn goes_on(stage: &Stage, after: &str, pods: i32) {
    let begun = Instant::now();
    stage.succeeded(NAME, pods, GOES_ON_WITHIN).await;
    println!("after {after}, {pods} pods have succeeded within {:?}", begun.elapsed());
}

/// The versions of pods are far behind those of Jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_rests_where_pods_have_an_etcd_of_their_own() {
    Box::pin(jobs_go_on_with("/pods")).await;
}

/// The versions of Jobs are far behind those of pods.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_job_rests_where_jobs_have_an_etcd_of_their_own() {
    Box::pin(jobs_go_on_with("batch/jobs")).await;
}
