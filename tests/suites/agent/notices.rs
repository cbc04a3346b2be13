//! Tests that many nodes which get a notice at once end their pods each by itself: no central
//! program works through them.

use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt as _, stream};
use lab::agent::{Setup, Site, Way};
use lab::eventually;

use super::{SOON, TAINT, cluster};

const NODES: usize = 50;
const PODS: usize = 3;
/// As many as a client of client-go has without flags.
const REQUESTS_PER_SECOND: f64 = 5.0;
/// How many start at once.
const STARTING: usize = 10;
/// All get their notice within this time.
const NOTICES_WITHIN: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_nodes_that_get_a_notice_within_a_second_all_end_their_pods_in_time() {
    if !nix::unistd::geteuid().is_root() {
        return println!("not run: [not-root] the file of a notice must be root's");
    }
    let cluster = cluster();
    let setup = || Setup {
        pods: PODS,
        way: Way::PerSecond(REQUESTS_PER_SECOND),
        arguments: vec![
            "--notices=file".to_owned(),
            // The groups take so long that the shutdown begins at once.
            "--shutdown-grace-period=100s".to_owned(),
        ],
        ..Setup::default()
    };
    let starting = stream::iter(0..NODES).map(|_| Site::start(&cluster, setup()));
    let sites: Vec<Site> = starting.buffer_unordered(STARTING).collect().await;
    let begun = Instant::now();
    let mut given = Vec::new();
    for site in &sites {
        given.push(Instant::now());
        site.give_notice("in=2min\n");
    }
    assert!(begun.elapsed() < NOTICES_WITHIN, "the notices took {:?}", begun.elapsed());
    let ends = sites.iter().map(|site| site.until("all have ended", |ends| ends.ended == PODS));
    let ends = join_all(ends).await;
    let mut waits = Vec::new();
    for (ends, given) in ends.iter().zip(given) {
        assert_eq!((ends.disrupted, ends.ended_unmarked), (PODS, 0), "{ends:?}");
        waits.push(ends.marked_at.expect("all are marked").saturating_duration_since(given));
    }
    // At so few requests a second, the taint may come after the last end.
    for site in &sites {
        let taints = async || site.node().await.0;
        eventually("the node is tainted", SOON, taints, |taints| *taints == [TAINT]).await;
    }
    waits.sort();
    println!(
        "{NODES} of {NODES} nodes: all pods marked {:?} after the notice (median), {:?} (p99), \
         at {REQUESTS_PER_SECOND} requests a second each",
        waits[NODES / 2],
        waits[NODES * 99 / 100]
    );
    join_all(sites.into_iter().map(Site::stop)).await;
}
