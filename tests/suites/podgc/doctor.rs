//! Tests `kubectl epilogue doctor` on the real API, where no component terminates pods.

use std::process::Output;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, Patch, PatchParams, PostParams};
use lab::Cluster;
use lab::bed::job;
use lab::paths::program;
use serde_json::{Value, json};
use tokio::process::Command;

use super::stage::{Stage, pod};

/// Runs it for a time at which the responsible component must have acted.
async fn doctor(cluster: &Cluster, arguments: &[&str]) -> Output {
    let at = Timestamp::now() + SignedDuration::from_mins(10);
    Command::new(program("kubectl-epilogue"))
        .arg("doctor")
        .arg(format!("--at={at}"))
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig_path())
        .args(arguments)
        .output()
        .await
        .expect("the program must be startable")
}

fn json_of(output: &Output) -> Value {
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no JSON: {error}"))
}

async fn subjects(cluster: &Cluster, stage: &Stage) -> (Vec<(String, String)>, Value) {
    let output = doctor(cluster, &["-n", stage.namespace(), "-o", "json"]).await;
    let answer = json_of(&output);
    let found = answer["findings"].as_array().cloned().unwrap_or_default();
    assert_eq!(output.status.code(), Some(i32::from(!found.is_empty())), "{answer:#}");
    let text = |each: &Value, field: &str| each[field].as_str().unwrap_or_default().to_owned();
    let findings = found.iter().map(|each| (text(each, "rule"), text(each, "subject")));
    // Nodes have no namespace: those of other tests carry theirs in their names.
    let findings = findings.filter(|(_, subject)| subject.contains(stage.namespace())).collect();
    (findings, answer)
}

/// A succeeded pod whose Job is gone, with the tracking finalizer. No node has to release it when
/// the garbage collector deletes it.
async fn leftover(stage: &Stage) {
    let mut left = pod("left", None);
    left["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
    left["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job",
        "name": "gone", "uid": "6a1f0f3e-0000-4000-8000-000000000000", "controller": true}]);
    stage.create(left).await;
    stage.status("left", json!({"phase": "Succeeded"})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_still_is_found_and_the_printed_patch_frees_it() {
    let cluster = Cluster::of_tests("podgc").expect("the suite's cluster");
    let stage = Stage::without_controller(&cluster).await;
    let node = stage.node("off").await;
    stage.run("stuck", &node).await;
    stage.node_status(&node, "Unknown", "", "boot-1").await;
    stage.delete("stuck").await;
    leftover(&stage).await;
    let jobs: Api<Job> = Api::namespaced(stage.client().clone(), stage.namespace());
    let typo = job("typo").spec("managedBy", "epilogue.dev/job-controler").build();
    jobs.create(&PostParams::default(), &typo).await.expect("the API takes any value");

    let (findings, answer) = subjects(&cluster, &stage).await;
    let of = |rule: &str, subject: &str, name: &str| {
        (rule.to_owned(), format!("{subject}/{}/{name}", stage.namespace()))
    };
    let expected = [
        of("stuck-pod", "pod", "stuck"),
        of("leftover-finalizer", "pod", "left"),
        of("unserved-job", "job", "typo"),
    ];
    assert_eq!(findings, expected, "{answer:#}");
    assert_eq!(answer["not_judged"], json!([]));

    let remedies = answer["findings"][1]["remedies"].as_array().expect("a list of remedies");
    let mut remedies = remedies.iter().filter_map(Value::as_str);
    let remedy = remedies.find(|remedy| remedy.contains("--type=json")).unwrap_or_default();
    let patch = remedy.split('\'').nth(1).unwrap_or_default();
    let patch = Patch::Json::<()>(serde_json::from_str(patch).expect("a JSON patch"));
    stage.pods.patch("left", &PatchParams::default(), &patch).await.expect("the pod is freed");
    let (findings, _) = subjects(&cluster, &stage).await;
    assert_eq!(findings, [expected[0].clone(), expected[2].clone()]);

    let output = doctor(&cluster, &[&node, "-o", "json"]).await;
    let report = json_of(&output);
    assert_eq!((output.status.code(), &report["verdict"]), (Some(1), &json!("fail")));
    assert_eq!(report["findings"][0]["subject"], expected[0].1, "{report:#}");
    stage.delete_node(&node).await;
    let (_, answer) = subjects(&cluster, &stage).await;
    let problem = answer["findings"][0]["problem"].as_str().unwrap_or_default();
    assert_eq!(problem, "Terminating: node no longer exists", "{answer:#}");
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_without_rights_is_refused_by_name() {
    let cluster = Cluster::of_tests("podgc").expect("the suite's cluster");
    let stage = Stage::without_controller(&cluster).await;
    let dir = cluster.files(stage.namespace());
    let path = dir.join("doctor.kubeconfig");
    std::fs::create_dir_all(&dir).expect("the directory");
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::namespaced(stage.client().clone(), stage.namespace());
    let account = serde_json::from_value(json!({"metadata": {"name": "stranger"}}));
    accounts.create(&PostParams::default(), &account.expect("an account")).await.expect("it");
    cluster
        .write_service_account_kubeconfig(stage.namespace(), "stranger", &path)
        .await
        .expect("its kubeconfig");
    let stranger = Cluster::new(path, None);
    let output = doctor(&stranger, &["-n", stage.namespace()]).await;
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("neither pods nor Jobs that may be read"), "{error}");
    stage.stop().await;
}
