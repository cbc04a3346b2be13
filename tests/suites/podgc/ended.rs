//! Tests pods that upstream deletes too: orphans, pods of nodes out of service, pods that never had
//! a node, excess finished pods.

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use lab::eventually;
use serde_json::json;

use super::stage::{SOON, Stage, now, pod, running};

const QUICK: &str = "--pod-gc-quarantine=1s";

const ORPHANED: &str = "Failed deleted ContainersReady=False/PodFailed \
    DisruptionTarget=True/DeletionByPodGC Ready=False/PodFailed epilogue.dev/Ended=True/NodeGone";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pods_of_a_node_that_was_deleted_are_ended_and_others_stay() {
    let stage = Stage::start(&[QUICK]).await;
    let (gone, stays) = (stage.node("gone").await, stage.node("stays").await);
    stage.run("orphan", &gone).await;
    stage.run("other", &stays).await;
    stage.create(pod("succeeded", Some(&gone))).await;
    stage.status("succeeded", json!({"phase": "Succeeded"})).await;
    stage.delete_node(&gone).await;
    assert_eq!(stage.ended("orphan").await, ORPHANED);
    let target = stage.condition("orphan", "DisruptionTarget").await;
    assert_eq!(target, "True DeletionByPodGC: PodGC: node no longer exists");
    let event = stage.event("orphan").await;
    assert_eq!(event, "EndedByPodGC: Failed and deleted: node no longer exists");
    stage.shows("succeeded", |seen| seen == "Succeeded deleted").await;
    let other = stage.shown("other").await;
    assert_eq!(other, "Running ContainersReady=True/ Ready=True/");
    stage.let_go("orphan").await;
    stage.shows("orphan", |seen| seen == "gone").await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_back_within_the_quarantine_keeps_its_pods() {
    let stage = Stage::start(&["--pod-gc-quarantine=3s"]).await;
    let (back, gone) = (stage.node("back").await, stage.node("gone").await);
    stage.run("kept", &back).await;
    stage.run("orphan", &gone).await;
    stage.delete_node(&back).await;
    stage.delete_node(&gone).await;
    stage.node("back").await;
    stage.ended("orphan").await;
    assert_eq!(stage.shown("kept").await, "Running ContainersReady=True/ Ready=True/");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_names_things_twice_is_ended_too() {
    let stage = Stage::start(&[QUICK]).await;
    let mut twice = pod("twice", Some(&stage.node_name("never")));
    let env = json!({"name": "A", "value": "1"});
    let port = json!({"name": "p", "containerPort": 80});
    twice["spec"]["containers"][0]["env"] = json!([env, env, {"name": "A", "value": "2"}]);
    twice["spec"]["containers"][0]["ports"] = json!([port, {"containerPort": 80}]);
    stage.create(twice).await;
    stage.status("twice", running(&now())).await;
    assert_eq!(stage.ended("twice").await, ORPHANED);
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_out_of_service_ends_the_pods_that_are_being_deleted() {
    let stage = Stage::start(&[]).await;
    let (out, ready) = (stage.node("out").await, stage.node("ready").await);
    for (name, node) in [("deleted", &out), ("tainted", &out), ("lives", &out), ("ready", &ready)] {
        stage.run(name, node).await;
    }
    let taint_manager = json!({"type": "DisruptionTarget", "status": "True",
        "reason": "DeletionByTaintManager", "message": "Taint manager: deleting",
        "lastTransitionTime": now()});
    stage.status("tainted", json!({"conditions": [taint_manager]})).await;
    for name in ["deleted", "tainted", "ready"] {
        stage.delete(name).await;
    }
    stage.out_of_service(&ready).await;
    stage.node_status(&out, "Unknown", "", "boot-1").await;
    stage.out_of_service(&out).await;
    let ended = stage.ended("deleted").await;
    assert_eq!(ended, ORPHANED.replace("NodeGone", "OutOfService"));
    let ended = stage.ended("tainted").await;
    assert!(ended.contains("DisruptionTarget=True/DeletionByTaintManager"), "{ended}");
    assert!(ended.contains("epilogue.dev/Ended=True/OutOfService"), "{ended}");
    assert!(stage.shown("lives").await.starts_with("Running Con"), "it is not being deleted");
    assert!(stage.shown("ready").await.starts_with("Running deleting"), "its node is ready");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_was_deleted_before_it_had_a_node_is_no_disruption_target() {
    let stage = Stage::start(&[]).await;
    stage.create(pod("waiting", None)).await;
    stage.create(pod("deleted", None)).await;
    stage.delete("deleted").await;
    let ended = stage.ended("deleted").await;
    assert_eq!(ended, "Failed deleted epilogue.dev/Ended=True/NeverScheduled");
    assert_eq!(stage.shown("waiting").await, "Pending");
    stage.stop().await;
}

async fn names(stage: &Stage) -> Vec<String> {
    let all = stage.pods.list(&ListParams::default()).await.expect("the pods").items;
    let mut names: Vec<String> = all.into_iter().filter_map(|pod: Pod| pod.metadata.name).collect();
    names.sort();
    names
}

async fn finish(stage: &Stage, name: &str, phase: &str, reason: &str) {
    let mut pod = pod(name, Some(&stage.node_name("n")));
    pod["metadata"]["finalizers"] = json!(null);
    stage.create(pod).await;
    stage.status(name, json!({"phase": phase, "reason": reason})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_pods_beyond_the_threshold_go_and_evicted_ones_first() {
    let threshold = ["--pod-gc=instead", "--terminated-pod-gc-threshold=2"];
    let stage = Stage::start(&threshold).await;
    stage.node("n").await;
    stage.run("runs", &stage.node_name("n")).await;
    finish(&stage, "a", "Failed", "").await;
    finish(&stage, "b", "Succeeded", "").await;
    finish(&stage, "evicted", "Failed", "Evicted").await;
    let shown = async || names(&stage).await;
    let left = ["a", "b", "runs"];
    eventually("the evicted pod goes", SOON, shown, |seen| *seen == left).await;
    finish(&stage, "z", "Failed", "").await;
    eventually("the oldest goes", SOON, shown, |seen| seen.len() == 3).await;
    assert!(names(&stage).await.contains(&"z".to_owned()));
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_pods_go_by_reason_and_age_where_that_is_asked_for() {
    let stage = Stage::start(&["--finished-pod-ttl=NodeShutdown=1s"]).await;
    stage.node("n").await;
    finish(&stage, "failed", "Failed", "").await;
    finish(&stage, "rejected", "Failed", "NodeShutdown").await;
    let shown = async || names(&stage).await;
    eventually("the rejected pod goes", SOON, shown, |seen| *seen == ["failed"]).await;
    stage.stop().await;
}
