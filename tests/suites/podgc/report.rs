//! Tests `kubectl epilogue report` on the real API: several situations, and the figures of each.

use std::process::Output;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, Patch, PatchParams, PostParams};
use lab::Cluster;
use lab::bed::job;
use lab::paths::program;
use serde_json::{Value, json};
use tokio::process::Command;

use super::stage::{Stage, now, pod};

/// Runs it for a time at which the responsible component must have acted.
async fn report(cluster: &Cluster, arguments: &[&str]) -> Output {
    let at = Timestamp::now() + SignedDuration::from_mins(10);
    run(cluster, &[&["report", "--since=1h", &format!("--at={at}")], arguments].concat()).await
}

async fn run(cluster: &Cluster, arguments: &[&str]) -> Output {
    Command::new(program("kubectl-epilogue"))
        .args(arguments)
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig_path())
        .output()
        .await
        .expect("the program must be startable")
}

fn json_of(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no JSON: {error}"))
}

/// The figures above zero: `name seen estimated`.
fn figures(answer: &Value) -> Vec<String> {
    let all = answer["figures"].as_array().into_iter().flatten();
    let counted = all.filter(|figure| figure["unit"] != "seconds");
    let above = counted.filter(|it| it["seen"] != 0 || it["estimated"] != 0);
    let line = |it: &Value| {
        format!("{} {} {}", it["name"].as_str().unwrap_or_default(), it["seen"], it["estimated"])
    };
    above.map(line).collect()
}

/// A Job of another controller that failed with one failure, which a rule would have ignored.
async fn failed_job(stage: &Stage) -> String {
    let jobs: Api<Job> = Api::namespaced(stage.client().clone(), stage.namespace());
    let pattern = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let rules = json!({"rules": [{"action": "Ignore", "onPodConditions": pattern}]});
    let failed = job("failed")
        .spec("managedBy", "example.com/other")
        .spec("backoffLimit", 0)
        .spec("podFailurePolicy", rules)
        .build();
    let made = jobs.create(&PostParams::default(), &failed).await.expect("the API takes it");
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "BackoffLimitExceeded",
               "lastTransitionTime": now()})
    };
    let status = json!({"startTime": now(), "failed": 1,
                        "conditions": [condition("FailureTarget"), condition("Failed")]});
    let patch = Patch::Merge(json!({"status": status}));
    jobs.patch_status("failed", &PatchParams::default(), &patch).await.expect("its status");
    made.metadata.uid.expect("a UID")
}

/// A pod that its node's shutdown failed without a cause, and one that has it.
async fn failed_pods(stage: &Stage, node: &str) {
    let uid = failed_job(stage).await;
    let mut uncaused = pod("uncaused", Some(node));
    uncaused["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job",
        "name": "failed", "uid": uid, "controller": true}]);
    stage.create(uncaused).await;
    stage.status("uncaused", json!({"phase": "Failed", "reason": "Terminated"})).await;
    stage.create(pod("caused", Some(node))).await;
    let target = json!({"type": "DisruptionTarget", "status": "True",
                        "reason": "TerminationByKubelet", "lastTransitionTime": now()});
    stage.status("caused", json!({"phase": "Failed", "conditions": [target]})).await;
    stage.create(pod("own", Some(node))).await;
    stage.status("own", json!({"phase": "Failed"})).await;
}

/// An event of an agent about a pod that the API no longer has.
async fn would_be_disrupted(stage: &Stage) {
    let events: Api<Event> = Api::namespaced(stage.client().clone(), stage.namespace());
    let event = json!({
        "metadata": {"name": "gone.1", "namespace": stage.namespace()},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": stage.namespace(),
                           "name": "gone", "uid": "6a1f0f3e-0000-4000-8000-000000000001"},
        "type": "Warning", "reason": "PodWouldBeDisrupted", "action": "PodWouldBeDisrupted",
        "message": "The node shuts down. <script>alert(1)</script>",
        "eventTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        "reportingComponent": "epilogue.dev/agent", "reportingInstance": "test",
    });
    let event = serde_json::from_value(event).expect("an event");
    events.create(&PostParams::default(), &event).await.expect("the event is created");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_lost_is_counted_from_a_cluster_and_its_dump() {
    let cluster = Cluster::of_tests("podgc").expect("the suite's cluster");
    let stage = Stage::without_controller(&cluster).await;
    let (live, off, gone) =
        (stage.node("live").await, stage.node("off").await, stage.node("gone").await);
    failed_pods(&stage, &live).await;
    stage.run("runs", &live).await;
    stage.run("silent", &off).await;
    stage.node_status(&off, "Unknown", "", "boot-1").await;
    stage.delete("silent").await;
    stage.run("orphan", &gone).await;
    stage.delete_node(&gone).await;
    would_be_disrupted(&stage).await;

    let here = ["-n", stage.namespace()];
    let answer = json_of(&report(&cluster, &[&here[..], &["-o", "json"]].concat()).await);
    let expected = [
        "status-missing-node-gone 1 0",
        "status-missing-node-silent 1 0",
        "status-missing-pod-deleted 0 1",
        "failure-without-disruption-target 1 0",
        "disruption-reported 1 0",
        "epilogue-would-have-acted 2 1",
        "epilogue-no-help 0 1",
        "epilogue-not-needed 1 0",
        "job-failed-by-disruptions 1 0",
    ];
    assert_eq!(figures(&answer), expected, "{answer:#}");
    assert_eq!(answer["jobs"][0]["epilogue"], "would-have-acted", "{answer:#}");
    assert_eq!(answer["events"][0]["reason"], "PodWouldBeDisrupted");

    let dump = cluster.files(stage.namespace()).join("dump.yaml");
    std::fs::create_dir_all(dump.parent().expect("a directory")).expect("the directory");
    let path = dump.to_str().expect("UTF-8");
    let dumped = run(&cluster, &[&["dump"], &here[..], &["-o", path]].concat()).await;
    assert!(dumped.status.success(), "{dumped:?}");
    let at = format!("--at={}", Timestamp::now() + SignedDuration::from_mins(10));
    let of_dump = Command::new(program("kubectl-epilogue"))
        .args(["report", "--since=1h", "-o", "json", &at, "-f", path])
        .output()
        .await
        .expect("the program must be startable");
    assert_eq!(figures(&json_of(&of_dump)), expected);

    let html = report(&cluster, &[&here[..], &["-o", "html"]].concat()).await;
    let html = String::from_utf8_lossy(&html.stdout).into_owned();
    assert!(html.starts_with("<!doctype html>") && html.contains("uncaused"), "{html}");
    assert!(!html.contains("<script"), "{html}");
    stage.stop().await;
}
