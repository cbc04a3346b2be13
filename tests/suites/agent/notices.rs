//! Tests that many nodes which get a notice at once end their pods each by itself: no central
//! program works through them; and that a Job may have its pods replaced at a notice.

use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use lab::agent::{Setup, Site, Way};
use lab::controller::{self, Controller};
use lab::{bed, eventually};
use serde_json::json;

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

/// The pods of a Job that are not being deleted: name, and whether it has a mark.
async fn live(site: &Site, job: &str) -> Vec<(String, bool)> {
    let selector = ListParams::default().labels(&format!("job-name={job}"));
    let pods = site.pods().list(&selector).await.expect("the pods").items;
    let is_marked = |pod: &Pod| {
        let conditions = pod.status.iter().filter_map(|status| status.conditions.as_ref());
        conditions.flatten().any(|it| it.type_ == "DisruptionTarget" && it.status == "True")
    };
    let live = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    live.map(|pod| (pod.metadata.name.clone().unwrap_or_default(), is_marked(&pod))).collect()
}

/// The shutdown begins minutes later, so nothing has a mark.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_that_asks_has_its_pod_replaced_at_the_notice_and_keeps_it_if_that_is_withdrawn() {
    if !nix::unistd::geteuid().is_root() {
        return println!("not run: [not-root] the file of a notice must be root's");
    }
    let arguments = vec!["--notices=file".to_owned()];
    let site = Site::start(&cluster(), Setup { pods: 0, arguments, ..Setup::default() }).await;
    let setup = controller::Setup::debug(&cluster().files(site.namespace()))
        .namespace(site.namespace())
        .argument("--metrics-bind-address=127.0.0.1:0");
    let mut controller = Controller::start(&cluster(), &setup).await.expect("our controller");
    for (name, asks) in [("asks", "true"), ("waits", "false")] {
        let job = bed::job(name).script("hang");
        site.create_job(job.metadata("annotations", json!({"epilogue.dev/replace-early": asks})))
            .await;
    }
    let first = site.only_pod_of("asks").await;
    site.until_phase(&first, "Running").await;
    let waits = site.only_pod_of("waits").await;
    site.until_phase(&waits, "Running").await;
    // The API's times are whole seconds: until then it may have come with the notice.
    tokio::time::sleep(Duration::from_secs(2)).await;
    site.give_notice("in=10min\n");
    let see = async || live(&site, "asks").await;
    let pods = eventually("a successor", SOON, see, |pods| pods.len() == 2).await;
    assert!(pods.contains(&(first.clone(), false)), "{pods:?}");
    // The successor came to the same node here, and waits for its mark.
    let replaced = r#"epilogue_disruption_seconds_count{phase="running",source="shutdown"} 1"#;
    let metrics = async || controller.metrics().await.unwrap_or_default();
    eventually("the successor runs", SOON, metrics, |page| page.contains(replaced)).await;
    assert_eq!(live(&site, "asks").await.len(), 2, "of one pod, one successor");
    assert_eq!(live(&site, "waits").await, [(waits, false)]);
    site.withdraw_notice();
    let is_alone = |pods: &Vec<_>| *pods == [(first.clone(), false)];
    eventually("the successor goes", SOON, see, is_alone).await;
    controller.check().expect("our controller runs to the end");
    controller.stop().await;
    site.stop().await;
}
