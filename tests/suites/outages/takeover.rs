//! Tests a leader that is killed among many Jobs, and a standby whose caches are filled.

use std::mem;

use lab::controller::Controller;
use lab::eventually;

use super::stage::{LATER, Stage};

/// The lease of a dead leader is free after 8 s. It is not shorter, because a leader on a busy
/// machine must not lose it.
pub(crate) const ELECTION: [&str; 5] = [
    "--leader-elect=true",
    "--leader-elect-resource-namespace=epilogue-system",
    "--leader-elect-lease-duration=8s",
    "--leader-elect-renew-deadline=6s",
    "--leader-elect-retry-period=500ms",
];

/// Waits until the controller has logged these words in so many lines.
pub(crate) async fn has_logged(controller: &Controller, words: &str, lines: usize) {
    let what = format!("{words} (log: {})", controller.log().display());
    let count = async || {
        let log = std::fs::read_to_string(controller.log()).unwrap_or_default();
        log.lines().filter(|line| line.contains(words)).count()
    };
    eventually(&what, LATER, count, |count| *count >= lines).await;
}

/// Kills the leader so many times while 52 Jobs are under way, each time after some progress of the
/// one before, and starts it again as the standby.
async fn killed(kills: usize) {
    let mut stage = Stage::start(0, &ELECTION).await;
    has_logged(&stage.controller, "leading", 1).await;
    let mut standby = stage.start_standby(&ELECTION).await;
    has_logged(&standby, "caches are filled", 1).await;
    stage.create_jobs(13).await;

    let mut takeovers = [1, 0];
    for _ in 0..kills {
        stage.progress(rand::random_range(10..30)).await;
        stage.controller.kill().await;
        takeovers[1] += 1;
        has_logged(&standby, "working", takeovers[1]).await;
        // What was the leader is the standby from now on.
        stage.controller.kill_and_restart().await.expect("it starts again");
        mem::swap(&mut stage.controller, &mut standby);
        takeovers.swap(0, 1);
    }
    stage.all_are_exact_and_as_scripted().await;
    standby.check().expect("the standby runs to the end");
    standby.stop().await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_through_two_kills_of_the_leader_of_fifty_jobs() {
    Box::pin(killed(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_counts_are_exact_through_eight_kills_of_the_leader_of_fifty_jobs() {
    Box::pin(killed(8)).await;
}
