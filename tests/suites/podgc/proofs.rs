//! Tests pods that hang on a silent node, and what proves that they do not run.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, Patch, PatchParams, PostParams};
use lab::eventually;
use serde_json::{Value, json};

use super::stage::{Stage, now, pod, running};

/// Creates a pod on a silent node, and deletes it.
async fn hang(stage: &Stage, name: &str) -> String {
    let node = stage.node(name).await;
    stage.run(name, &node).await;
    stage.node_status(&node, "Unknown", "", "boot-1").await;
    stage.delete(name).await;
    node
}

/// Waits for the controller to terminate a later pod, so that it has judged all earlier ones.
async fn later_ones_are_ended(stage: &Stage) {
    let node = hang(stage, "later").await;
    stage.out_of_service(&node).await;
    stage.ended("later").await;
}

async fn hangs(stage: &Stage, name: &str) {
    let seen = stage.shown(name).await;
    assert_eq!(seen, "Running deleting ContainersReady=True/ Ready=True/", "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_proof_a_pod_that_hangs_stays() {
    let stage = Stage::start(&[]).await;
    hang(&stage, "unreachable").await;
    let ready = hang(&stage, "ready").await;
    stage.node_status(&ready, "True", "", "boot-1").await;
    let broken = hang(&stage, "broken").await;
    stage.node_status(&broken, "False", "runtime is down", "boot-1").await;
    let mut unheard = hang(&stage, "unheard").await;
    stage.announce(&unheard, "drained;boot=boot-1;at=whenever").await;
    unheard = hang(&stage, "announced").await;
    stage.announce(&unheard, &format!("shutting-down;boot=boot-1;since={}", now())).await;
    later_ones_are_ended(&stage).await;
    for name in ["unreachable", "ready", "broken", "unheard", "announced"] {
        hangs(&stage, name).await;
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_boot_after_the_deletion_ends_it_once_its_kubelet_is_silent() {
    let stage = Stage::start(&[]).await;
    let node = hang(&stage, "a").await;
    let deleted = Timestamp::now();
    let speaks = hang(&stage, "speaks").await;
    let clock = async || Timestamp::now().duration_since(deleted);
    let long_enough = |age: &SignedDuration| *age > SignedDuration::from_secs(31);
    let within = Duration::from_mins(1);
    eventually("a boot takes longer than half a minute", within, clock, long_enough).await;
    hangs(&stage, "a").await;
    stage.node_status(&speaks, "True", "", "boot-2").await;
    stage.node_status(&node, "Unknown", "", "boot-2").await;
    let ended = stage.ended("a").await;
    assert!(ended.contains("DisruptionTarget=True/DeletionByPodGC"), "{ended}");
    let evidence = "node has booted since the pod was deleted (boot boot-1 then, boot-2 now)";
    let condition = stage.condition("a", "epilogue.dev/Ended").await;
    assert_eq!(condition, format!("True NodeRebooted: {evidence}"));
    let target = stage.condition("a", "DisruptionTarget").await;
    assert_eq!(target, format!("True DeletionByPodGC: PodGC: {evidence}"));
    let event = stage.event("a").await;
    assert_eq!(event, format!("EndedByPodGC: Failed and deleted: {evidence}"));
    later_ones_are_ended(&stage).await;
    hangs(&stage, "speaks").await;
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_drained_record_fails_it() {
    let stage = Stage::start(&[]).await;
    let node = hang(&stage, "a").await;
    stage.announce(&node, &format!("drained;boot=boot-1;at={}", now())).await;
    let ended = stage.ended("a").await;
    assert!(ended.contains("epilogue.dev/Ended=True/NodeDrained"), "{ended}");
    assert!(stage.event("a").await.contains("agent saw nothing of the pod running"));
    // A controller that starts later needs no memory for it.
    let node = hang(&stage, "b").await;
    stage.announce(&node, &format!("shutting-down;boot=boot-1;since={}", now())).await;
    stage.node_status(&node, "Unknown", "", "boot-2").await;
    let ended = stage.ended("b").await;
    assert!(ended.contains("epilogue.dev/Ended=True/NodeRebooted"), "{ended}");
    stage.stop().await;
}

/// Creates a Job that no controller runs in this test.
async fn job(stage: &Stage, name: &str, annotations: Value) -> Value {
    let job = json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never",
                 "containers": [{"name": "main", "image": "none"}]}}},
    });
    let job: Job = serde_json::from_value(job).expect("a Job");
    let jobs: Api<Job> = Api::namespaced(stage.client().clone(), stage.namespace());
    let job = jobs.create(&PostParams::default(), &job).await.expect("the Job is created");
    json!([{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job.metadata.uid,
            "controller": true}])
}

async fn hang_of(stage: &Stage, name: &str, owners: Value) {
    let node = stage.node(name).await;
    let mut pod = pod(name, Some(&node));
    pod["metadata"]["ownerReferences"] = owners;
    stage.create(pod).await;
    stage.status(name, running(&now())).await;
    stage.node_status(&node, "Unknown", "", "boot-1").await;
    stage.delete(name).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_agent_and_kubelet_only_force_fail_after_fails_it() {
    let stage = Stage::start(&[]).await;
    let given = json!({"epilogue.dev/force-fail-after": "1s"});
    let owners = job(&stage, "accepts", given).await;
    hang_of(&stage, "accepted", owners).await;
    let refused = json!({"epilogue.dev/force-fail-after": "0"});
    let owners = job(&stage, "refuses", refused).await;
    hang_of(&stage, "refused", owners).await;
    let owners = job(&stage, "silent", json!({})).await;
    hang_of(&stage, "silent", owners).await;
    hang(&stage, "bare").await;
    let ended = stage.ended("accepted").await;
    assert!(ended.contains("epilogue.dev/Ended=True/ForceFail"), "{ended}");
    let condition = stage.condition("accepted", "epilogue.dev/Ended").await;
    assert!(condition.contains("of Job accepts accepts a double run"), "{condition}");
    for name in ["refused", "silent", "bare"] {
        hangs(&stage, name).await;
    }

    let patch = json!({"metadata": {"annotations": {"epilogue.dev/force-fail-after": "1s"}}});
    let namespaces: Api<Namespace> = Api::all(stage.client().clone());
    let params = PatchParams::default();
    namespaces
        .patch(stage.namespace(), &params, &Patch::Merge(patch))
        .await
        .expect("the namespace is annotated");
    stage.ended("silent").await;
    for name in ["refused", "bare"] {
        hangs(&stage, name).await;
    }
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_force_fail_after_that_is_not_a_duration_is_refused_by_admission() {
    let stage = Stage::start(&[]).await;
    lab::install::apply_policy(stage.client()).await.expect("the policy is installed");
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let namespaces: Api<Namespace> = Api::all(stage.client().clone());
    let answer = async || {
        let patch = json!({"metadata": {"annotations": {"epilogue.dev/force-fail-after": "soon"}}});
        let answer = namespaces.patch(stage.namespace(), &dry_run, &Patch::Merge(patch)).await;
        answer.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let refused = |answer: &String| answer.contains("must be a duration, for example 10m");
    eventually("the policy is in force", super::stage::SOON, answer, refused).await;
    for text in ["0", "0s", "10m", "1h30m", "1.5h"] {
        let patch = json!({"metadata": {"annotations": {"epilogue.dev/force-fail-after": text}}});
        let answer = namespaces.patch(stage.namespace(), &dry_run, &Patch::Merge(patch)).await;
        answer.expect("a duration is taken");
    }
    stage.stop().await;
}
