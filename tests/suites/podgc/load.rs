//! Tests very many orphans at once: the controller deletes them at the requested rate, and the API
//! answers others as before.
//!
//! `EPILOGUE_ORPHANS=10000` sets their number; the figures go to stdout.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lab::{Cluster, observe_until};
use serde_json::json;

use super::stage::{Stage, pod};

const ORPHANS: &str = "EPILOGUE_ORPHANS";
const NODES: u32 = 100;
const WITHIN: Duration = Duration::from_mins(10);

/// What the times of another client's writes may be meanwhile: the percentile, how many times the
/// time before, and the ms that count as the time before if it was shorter. A client that has to
/// wait for the orphans takes seconds.
const LIMITS: [(&str, f64, f64); 2] = [("p50", 10.0, 10.0), ("p99", 20.0, 25.0)];

/// Writes and reads of another client, with the time of each.
async fn probe(maps: Api<ConfigMap>, until: tokio_util::sync::CancellationToken) -> Vec<Duration> {
    let mut took = Vec::new();
    while !until.is_cancelled() {
        let begun = Instant::now();
        let patch = Patch::Merge(json!({"data": {"beat": took.len().to_string()}}));
        maps.patch("probe", &PatchParams::default(), &patch).await.expect("the probe is written");
        took.push(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    took
}

/// The median and the 99th percentile in ms: the slowest one, if there are fewer than a hundred.
fn figures(when: &str, mut took: Vec<Duration>) -> [f64; 2] {
    took.sort();
    let at = |percent: usize| took[(took.len() * percent).div_ceil(100) - 1].as_secs_f64() * 1e3;
    let (median, p99, max) = (at(50), at(99), at(100));
    println!("{when}: {} writes, p50 {median:.1} ms, p99 {p99:.1} ms, max {max:.1} ms", took.len());
    [median, p99]
}

/// Requests that the API rejected, and those it answered with 429.
async fn turned_away(client: &kube::Client) -> (f64, f64) {
    let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
    let text = client.request_text(request).await.expect("the API's metrics");
    let sum = |name: &str, has: &str| {
        let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(has));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum::<f64>()
    };
    let rejected = sum("apiserver_flowcontrol_rejected_requests_total", "");
    (rejected, sum("apiserver_request_total", "code=\"429\""))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphans_by_the_thousand_are_ended_without_a_burst() {
    let count = std::env::var(ORPHANS).map_or(300_u32, |text| text.parse().expect("a number"));
    let cluster = Cluster::of_tests("podgc").expect("the suite's cluster");
    let mut stage = Stage::without_controller(&cluster).await;
    let maps: Api<ConfigMap> = Api::namespaced(stage.client().clone(), stage.namespace());
    let map = serde_json::from_value(json!({"metadata": {"name": "probe"}})).expect("a map");
    maps.create(&PostParams::default(), &map).await.expect("the probe is created");
    stream::iter(0..count)
        .for_each_concurrent(50, async |n| {
            let node = stage.node_name(&format!("lost-{}", n % NODES));
            let mut pod = pod(&format!("orphan-{n}"), Some(&node));
            pod["metadata"]["finalizers"] = serde_json::Value::Null;
            stage.create(pod).await;
        })
        .await;

    let before = tokio_util::sync::CancellationToken::new();
    let quiet = tokio::spawn(probe(maps.clone(), before.clone()));
    tokio::time::sleep(Duration::from_secs(5)).await;
    before.cancel();
    println!("{count} orphans");
    let quiet = figures("before", quiet.await.expect("the probe ends"));

    let (rejected, throttled) = turned_away(stage.client()).await;
    let during = tokio_util::sync::CancellationToken::new();
    let busy = tokio::spawn(probe(maps, during.clone()));
    let begun = Instant::now();
    stage.start_controller(&cluster, &["--pod-gc-quarantine=1s"]).await;
    let one = ListParams::default().limit(1);
    let left = async || {
        // Reading is a load of its own.
        tokio::time::sleep(Duration::from_millis(250)).await;
        let page = stage.pods.list_metadata(&one).await.expect("the pods");
        let more = page.metadata.remaining_item_count.unwrap_or(0);
        page.items.len() + more as usize
    };
    let done = observe_until(WITHIN, left, |left| *left == 0).await;
    let took = begun.elapsed();
    during.cancel();
    let busy = figures("meanwhile", busy.await.expect("the probe ends"));
    done.unwrap_or_else(|left| panic!("{left} are left"));
    let rate = f64::from(3 * count) / took.as_secs_f64();
    let (rejected_now, throttled_now) = turned_away(stage.client()).await;
    println!(
        "ended in {:.1} s, {rate:.0} requests/s; rejected {}, answered 429 {}",
        took.as_secs_f64(),
        rejected_now - rejected,
        throttled_now - throttled,
    );
    assert_eq!((rejected_now, throttled_now), (rejected, throttled), "no request was rejected");
    assert!(rate < 260.0, "{rate} requests/s, of 200 that may be");
    for ((percentile, times, at_least), (busy, quiet)) in
        LIMITS.into_iter().zip(busy.into_iter().zip(quiet))
    {
        println!("{percentile}: {:.2} of the time before", busy / quiet);
        assert!(busy < times * quiet.max(at_least), "{percentile}: {busy} ms, before {quiet} ms");
    }
    stage.pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await.ok();
    stage.stop().await;
}
