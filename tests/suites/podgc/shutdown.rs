//! Tests `DisruptionTarget` on the pods of a node that shuts down, and what is left of it
//! afterwards.

use serde_json::json;

use lab::eventually;

use super::stage::{SOON, Stage, now, pod, running};

const MARKED: &str = "Running ContainersReady=True/ DisruptionTarget=True/TerminationByKubelet \
    Ready=True/";
const RESET: &str = "Running ContainersReady=True/ DisruptionTarget=False/ Ready=True/";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_node_that_shuts_down_are_marked_where_its_agent_had_no_time() {
    let stage = Stage::start(&[]).await;
    let (announced, reported, other) =
        (stage.node("announced").await, stage.node("reported").await, stage.node("other").await);
    stage.run("a", &announced).await;
    stage.run("b", &reported).await;
    stage.run("c", &other).await;
    stage.announce(&announced, &format!("shutting-down;boot=boot-1;since={}", now())).await;
    stage.announce(&other, &format!("shutting-down;boot=boot-0;since={}", now())).await;
    stage.node_status(&reported, "False", "node is shutting down", "boot-1").await;
    stage.shows("a", |seen| seen == MARKED).await;
    stage.shows("b", |seen| seen == MARKED).await;
    assert!(stage.event("a").await.contains("its node shuts down"));
    let unmarked = "Running ContainersReady=True/ Ready=True/";
    assert_eq!(stage.shown("c").await, unmarked, "that was another boot");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_that_turned_out_to_be_wrong_are_reset() {
    let quick = ["--stale-disruption-timeout=2s", "--stale-disruption-reset=all"];
    let stage = Stage::start(&quick).await;
    let node = stage.node("n").await;
    let by = |reason: &str| {
        json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason,
                               "message": "x", "lastTransitionTime": now()}]})
    };
    for name in ["scheduler", "kubelet", "deleted", "failed"] {
        stage.run(name, &node).await;
    }
    stage.status("scheduler", by("PreemptionByScheduler")).await;
    stage.status("kubelet", by("TerminationByKubelet")).await;
    stage.status("deleted", by("EvictionByEvictionAPI")).await;
    stage.delete("deleted").await;
    stage.status("failed", by("TerminationByKubelet")).await;
    stage.status("failed", json!({"phase": "Failed"})).await;
    stage.shows("scheduler", |seen| seen == RESET).await;
    stage.shows("kubelet", |seen| seen == RESET).await;
    assert_eq!(stage.condition("kubelet", "DisruptionTarget").await, "False : ");
    for name in ["deleted", "failed"] {
        let target = stage.condition(name, "DisruptionTarget").await;
        assert!(target.starts_with("True"), "{name}: {target}");
    }
    stage.stop().await;
}

/// Long before a condition is too old. ([ST10])
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_condition_of_an_earlier_boot_goes_once_the_pod_runs_again() {
    let stage = Stage::start(&[]).await;
    let node = stage.node("n").await;
    let at = |seconds: i64| {
        let at = jiff::Timestamp::now() - jiff::SignedDuration::from_secs(seconds);
        at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    };
    let marked = json!({"type": "DisruptionTarget", "status": "True", "message": "x",
        "reason": "TerminationByKubelet", "lastTransitionTime": at(30)});
    for (name, began) in [("again", 10), ("still", 60)] {
        stage.create(pod(name, Some(&node))).await;
        stage.status(name, running(&at(began))).await;
        stage.status(name, json!({"conditions": [marked]})).await;
    }
    // Says so also to a controller that has not seen the former boot.
    stage.announce(&node, &format!("shutting-down;boot=boot-1;since={}", at(30))).await;
    stage.node_status(&node, "True", "", "boot-2").await;
    stage.shows("again", |seen| seen == RESET).await;
    assert_eq!(stage.shown("still").await, MARKED);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_taint_of_an_agent_that_is_gone_goes_once_the_node_is_back() {
    let stage = Stage::start(&[]).await;
    let long_ago = "2026-01-01T00:00:00Z";
    let (left, ready, same) =
        (stage.node("left").await, stage.node("ready").await, stage.node("same").await);
    for node in [&left, &ready, &same] {
        stage.taint(node).await;
        stage.announce(node, &format!("shutting-down;boot=boot-1;since={long_ago}")).await;
    }
    // One node is back just now; the other has long been ready in the boot that the announcement
    // names.
    stage.node_status(&ready, "True", "", "boot-2").await;
    stage.node_status_since(&same, "True", "", "boot-1", long_ago).await;
    stage.node_status_since(&left, "True", "", "boot-2", long_ago).await;
    let taints = async || stage.taints(&left).await;
    eventually("our taint goes", SOON, taints, |taints| *taints == ["foreign"]).await;
    for node in [&ready, &same] {
        assert_eq!(stage.taints(node).await, ["foreign", "epilogue.dev/shutting-down"]);
    }
    stage.stop().await;
}
