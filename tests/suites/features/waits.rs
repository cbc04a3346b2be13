//! Tests that `explain` and `doctor` name what a Job waits for on the real API: a quota, a policy
//! of others, a pod without a node.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{Patch, PatchParams, PostParams};
use lab::bed::{Bed, SOON, job};
use lab::cluster::Cluster;
use lab::paths::program;
use lab::{eventually, install};
use serde_json::{Value, json};
use tokio::process::Command;

use super::bed;
use super::refusals::explained;

/// Refuses the pods of the Job `refused`, and its binding.
fn policy(bed: &Bed) -> [Value; 2] {
    let (api, kind) = ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy");
    let metadata = json!({"name": format!("refuses-{}", bed.namespace())});
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": bed.namespace()}});
    let spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": selector,
            "objectSelector": {"matchLabels": {"job-name": "refused"}},
            "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                               "operations": ["CREATE"], "resources": ["pods"]}],
        },
        "validations": [{"expression": "false", "message": "no pods on a Friday",
                         "reason": "Forbidden"}],
    });
    let bound = json!({"policyName": metadata["name"], "validationActions": ["Deny"]});
    [
        json!({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}),
        json!({"apiVersion": api, "kind": format!("{kind}Binding"), "metadata": metadata,
               "spec": bound}),
    ]
}

async fn refuses(bed: &Bed) -> [Value; 2] {
    let objects = policy(bed);
    for object in &objects {
        install::apply_object(bed.client(), object).await.expect("the policy is installed");
    }
    let pod = json!({
        "metadata": {"name": "asks", "labels": {"job-name": "refused"}},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let is_refused = async || bed.api::<Pod>().create(&dry_run, &pod).await.is_err();
    eventually("the policy is in use", SOON, is_refused, |refused| *refused).await;
    objects
}

/// What `kubectl epilogue doctor` says of the namespace six minutes later.
async fn diagnosed(bed: &Bed) -> String {
    let cluster = Cluster::of_tests("features").expect("the suite's cluster");
    let later = Timestamp::now() + SignedDuration::from_mins(6);
    let output = Command::new(program("kubectl-epilogue"))
        .args(["doctor", "--controller-lease=none", "--namespace", bed.namespace()])
        .args([&format!("--at={later}"), "--kubeconfig"])
        .arg(cluster.kubeconfig_path())
        .output()
        .await
        .expect("the program must start");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_job_waits_for_is_named_by_explain_and_doctor() {
    let bed = bed(&["--default-job-api-backoff=200ms", "--max-job-api-backoff=1s"]).await;
    let policy = refuses(&bed).await;
    bed.create(job("gated").pod("schedulingGates", json!([{"name": "example.com/hold"}]))).await;
    bed.create(job("refused")).await;
    bed.events_say("refused", "FailedCreate: ").await;
    bed.reaches("gated", SOON, |state| state.active == 1).await;

    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}});
    let quota: ResourceQuota = serde_json::from_value(quota).expect("a quota");
    let quotas = bed.api::<ResourceQuota>();
    quotas.create(&PostParams::default(), &quota).await.expect("the quota is created");
    let status = json!({"status": {"hard": {"pods": "1"}, "used": {"pods": "1"}}});
    let (patch, params) = (Patch::Merge(status), PatchParams::default());
    quotas.patch_status("few", &params, &patch).await.expect("the quota's status");
    bed.create(job("blocked").indexed(3)).await;
    bed.events_say("blocked", "FailedCreate: ").await;

    let expected = [
        ("gated", "to be scheduled: Scheduling is blocked", "[pod-unscheduled]"),
        ("refused", "no pods on a Friday", "[pods-refused]"),
        ("blocked", "the quota few to allow its pods: requested: pods=1", "[quota-exceeded]"),
    ];
    let doctor = diagnosed(&bed).await;
    for (name, words, code) in expected {
        let explanation = explained(&bed, name).await;
        let (_, waits) = explanation.split_once("Waits for:\n").expect("waits");
        let (waits, _) = waits.split_once("\n\n").expect("more sections");
        assert!(waits.contains(words) && waits.contains(code), "{explanation}");
        let is_its = |line: &&str| line.contains(&format!("/{name} "));
        let line = doctor.lines().find(is_its).unwrap_or_default();
        assert!(line.contains(words) && line.contains(code), "{name}: {doctor}");
    }
    for object in policy.iter().rev() {
        install::delete_object(bed.client(), object).await.expect("the policy goes");
    }
    bed.stop().await;
}
