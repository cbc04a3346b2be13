//! Tests refusals: a quota refuses pods, our admission policy refuses Jobs, no component refuses
//! Jobs of other controllers, and another policy alters the counts of a status. ([P8], [S3])

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{Patch, PatchParams, PostParams};
use lab::bed::{Bed, JobBuilder, JobState, SOON, has_finalizer, job};
use lab::cluster::Cluster;
use lab::kubernetes::Feature;
use lab::paths::program;
use lab::{eventually, install};
use serde_json::{Value, json};
use tokio::process::Command;

use super::bed;

/// Writes the status that a quota controller would write: none runs here, and admission uses the
/// status.
async fn set_quota(bed: &Bed, pods_max: u32, used: u32) {
    let status =
        json!({"hard": {"pods": pods_max.to_string()}, "used": {"pods": used.to_string()}});
    let patch = Patch::Merge(json!({"status": status}));
    let quotas = bed.api::<ResourceQuota>();
    quotas.patch_status("few", &PatchParams::default(), &patch).await.expect("the quota's status");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_a_quota_refuses_come_when_it_allows_them() {
    let bed = bed(&["--default-job-api-backoff=200ms", "--max-job-api-backoff=1s"]).await;
    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}});
    let quota: ResourceQuota = serde_json::from_value(quota).expect("a quota");
    let quotas = bed.api::<ResourceQuota>();
    quotas.create(&PostParams::default(), &quota).await.expect("the quota is created");
    set_quota(&bed, 1, 0).await;
    bed.create(job("crowd").indexed(3).script("hang times=1; succeed")).await;
    let state = bed.reaches("crowd", SOON, |state| state.ready == Some(1)).await;
    assert_eq!((state.active, state.failed), (1, 0));
    let event = bed.events_say("crowd", "FailedCreate: Error creating: ").await;
    assert!(event.contains("exceeded quota: few"), "{event}");
    set_quota(&bed, 3, 1).await;
    bed.reaches("crowd", SOON, |state| state.ready == Some(3)).await;
    bed.stop().await;
}

/// A policy of others, and its binding: it drops what the Job controller remembers of ended pods
/// in the status.
fn dropping_policy(namespace: &str) -> [Value; 2] {
    let metadata = json!({"name": format!("drops-counts-{namespace}")});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [{
                    "apiGroups": ["batch"], "apiVersions": ["v1"],
                    "operations": ["UPDATE"], "resources": ["jobs/status"],
                }],
            },
            "matchConditions": [{
                "name": "has-some", "expression": "has(object.status.uncountedTerminatedPods)",
            }],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {
                "expression": "[JSONPatch{op: 'remove', path: '/status/uncountedTerminatedPods'}]",
            }}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": metadata, "spec": {"policyName": metadata["name"]},
    });
    [policy, binding]
}

/// What `kubectl epilogue explain` says of a Job.
pub(super) async fn explained(bed: &Bed, name: &str) -> String {
    let cluster = Cluster::of_tests("features").expect("the suite's cluster");
    let output = Command::new(program("kubectl-epilogue"))
        .args(["explain", name, "--namespace", bed.namespace(), "--kubeconfig"])
        .arg(cluster.kubeconfig_path())
        .output()
        .await
        .expect("the program must start");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_that_a_policy_drops_release_no_pod_until_it_goes() {
    if Feature::MutatingPolicies.is_missing() {
        return;
    }
    let bed = bed(&["--default-job-api-backoff=200ms", "--max-job-api-backoff=1s"]).await;
    let three = job("altered").spec("completions", 3).spec("parallelism", 3);
    bed.create(three.spec("suspend", true)).await;
    let [policy, binding] = dropping_policy(bed.namespace());
    for object in [&policy, &binding] {
        install::apply_object(bed.client(), object).await.expect("the policy is installed");
    }
    let jobs = bed.api::<Job>();
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let some = json!({"status": {"uncountedTerminatedPods": {"succeeded": ["some-uid"]}}});
    let some = Patch::Merge(some);
    let drops = async || {
        let answer = jobs.patch_status("altered", &dry_run, &some).await.expect("an answer");
        answer.status.expect("a status").uncounted_terminated_pods.is_none()
    };
    eventually("the policy is in use", SOON, drops, |drops| *drops).await;

    bed.change("altered", json!({"suspend": false})).await;
    let event = bed.events_say("altered", "StatusAltered: ").await;
    assert!(event.contains("jobs/status"), "{event}");
    let explanation = explained(&bed, "altered").await;
    let (_, warnings) = explanation.split_once("Warnings:\n").expect("warnings");
    assert!(warnings.trim_start().starts_with("StatusAltered ("), "{explanation}");
    assert!(warnings.contains("jobs/status"), "{explanation}");
    let pods = bed.pods("altered").await;
    assert!(pods.iter().all(has_finalizer), "{pods:?}");
    assert!(!bed.state("altered").await.is_finished());
    for object in [&binding, &policy] {
        install::delete_object(bed.client(), object).await.expect("the policy goes");
    }
    let state = bed.finished("altered", SOON).await;
    assert_eq!((state.succeeded, state.failed), (3, 0));
    bed.no_pod_has_the_finalizer("altered", SOON).await;
    assert_eq!(bed.pods("altered").await.len(), 3, "no pod ran twice");
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn annotations_that_could_not_be_acted_on_are_refused() {
    let bed = bed(&[]).await;
    install::apply_policy(bed.client()).await.expect("the policy is installed");
    let with = |annotations: Value| job("draft").metadata("annotations", annotations);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let jobs = bed.api::<Job>();
    let answer = async |job: JobBuilder| match jobs.create(&dry_run, &job.build()).await {
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    };
    // The API server takes a moment to apply a new policy.
    let unknown = with(json!({"epilogue.dev/backof-base": "5s"}));
    eventually("the refusal", SOON, async || answer(unknown.clone()).await, Option::is_some).await;
    let names = |names: &str| json!({"epilogue.dev/pod-failure-policy-names": names});
    let refused = [
        (json!({"epilogue.dev/backof-base": "5s"}), "unknown epilogue.dev/backof-base"),
        (json!({"epilogue.dev/backoff-base": "5"}), "must be durations"),
        (json!({"epilogue.dev/backoff-base": "500ms"}), "must be at least 1s"),
        (json!({"epilogue.dev/pending-timeout": "1ms"}), "must be at least 1s"),
        (
            json!({"epilogue.dev/backoff-base": "2m", "epilogue.dev/backoff-max": "90s"}),
            "must not be longer than",
        ),
        (json!({"epilogue.dev/disruption-limit": "1"}), "add a rule with action Ignore"),
        (json!({"epilogue.dev/avoid-failed-nodes": "yes"}), "must be true or false"),
        (json!({"epilogue.dev/finished-pods-kept": "-1"}), "must be a number from 0 to"),
        (json!({"epilogue.dev/replace-early": "1"}), "must be true or false"),
        (names("A"), "at most one name for each rule"),
    ];
    for (annotations, words) in refused {
        let refusal = answer(with(annotations)).await.unwrap_or_default();
        assert!(refusal.contains(words), "{words}: {refusal}");
    }
    let early = || with(json!({"epilogue.dev/replace-early": "true"}));
    assert_eq!(answer(early().spec("podReplacementPolicy", "TerminatingOrFailed")).await, None);
    let late = early().spec("podReplacementPolicy", "Failed");
    let refusal = answer(late).await.unwrap_or_default();
    assert!(refusal.contains("lets two pods of one place run"), "{refusal}");
    // What the core's tests refuse, and take.
    let fail = json!({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}});
    let policy = json!({"rules": [fail, fail]});
    let named = |text: &str| with(names(text)).spec("podFailurePolicy", policy.clone());
    let long = "n".repeat(112);
    for (text, words) in [
        ("Exit-10", "must be names in the order of the rules"),
        ("Exit10, Exit11", "must be names in the order of the rules"),
        ("Exit10:", "must be names in the order of the rules"),
        (&long, "must be names in the order of the rules"),
        (&"n".repeat(2240), "at most one name for each rule"),
        ("A,,B", "at most one name for each rule"),
        ("A,A", "a name of its own"),
        ("1,A", "a number only to the rule at that index"),
        ("00,A", "a number only to the rule at that index"),
    ] {
        let refusal = answer(named(text)).await.unwrap_or_default();
        assert!(refusal.contains(words), "{text}: {refusal}");
    }
    for text in ["", "A", ",B", "a:b,c_", "0,1", &long[1..]] {
        assert_eq!(answer(named(text)).await, None, "{text}");
    }
    let good = json!({"epilogue.dev/backoff-base": "1s500ms", "epilogue.dev/backoff-max": "1m30s"});
    assert_eq!(answer(with(good)).await, None);
    let foreign = with(json!({"epilogue.dev/nonsense": ""})).spec("managedBy", json!(null));
    assert_eq!(answer(foreign).await, None, "it covers only Jobs of this controller");
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_others_are_not_touched_also_when_they_are_changed() {
    let bed = bed(&[]).await;
    let others = [json!("example.com/other"), json!("kubernetes.io/job-controller"), json!(null)];
    let names = ["foreign", "reserved", "unmanaged"];
    for (name, managed_by) in names.into_iter().zip(others) {
        bed.create(job(name).spec("managedBy", managed_by)).await;
        bed.change(name, json!({"suspend": true})).await;
        bed.change(name, json!({"suspend": false, "parallelism": 3})).await;
    }
    bed.create(job("ours")).await;
    bed.finished("ours", SOON).await;
    for name in names {
        assert_eq!(bed.state(name).await, JobState::default(), "{name}");
        assert!(bed.pods(name).await.is_empty() && bed.events(name).await.is_empty(), "{name}");
    }
    bed.stop().await;
}
