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

fn figures(mut took: Vec<Duration>) -> String {
    took.sort();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100].as_millis();
    format!("{} writes, median {} ms, p99 {} ms, max {} ms", took.len(), at(50), at(99), at(100))
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
    println!("{count} orphans; before: {}", figures(quiet.await.expect("the probe ends")));

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
    println!("meanwhile: {}", figures(busy.await.expect("the probe ends")));
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
    stage.pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await.ok();
    stage.stop().await;
}
