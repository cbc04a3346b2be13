//! Tests refusals: a quota refuses pods, our admission policy refuses Jobs, and no component
//! refuses Jobs of other controllers. ([P8], [S3])

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{Patch, PatchParams, PostParams};
use lab::bed::{Bed, JobBuilder, JobState, SOON, job};
use lab::{eventually, install};
use serde_json::json;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn annotations_that_could_not_be_acted_on_are_refused() {
    let bed = bed(&[]).await;
    install::apply_policy(bed.client()).await.expect("the policy is installed");
    let with = |annotations: serde_json::Value| job("draft").metadata("annotations", annotations);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let jobs = bed.api::<Job>();
    let answer = async |job: JobBuilder| match jobs.create(&dry_run, &job.build()).await {
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    };
    // The API server takes a moment to apply a new policy.
    let unknown = with(json!({"epilogue.dev/backof-base": "5s"}));
    eventually("the refusal", SOON, async || answer(unknown.clone()).await, Option::is_some).await;
    let refused = [
        (json!({"epilogue.dev/backof-base": "5s"}), "unknown epilogue.dev/backof-base"),
        (json!({"epilogue.dev/backoff-base": "5"}), "must be durations"),
        (
            json!({"epilogue.dev/backoff-base": "2m", "epilogue.dev/backoff-max": "90s"}),
            "must not be longer than",
        ),
        (json!({"epilogue.dev/disruption-limit": "1"}), "add a rule with action Ignore"),
        (json!({"epilogue.dev/avoid-failed-nodes": "yes"}), "must be true or false"),
    ];
    for (annotations, words) in refused {
        let refusal = answer(with(annotations)).await.unwrap_or_default();
        assert!(refusal.contains(words), "{words}: {refusal}");
    }
    let good = json!({"epilogue.dev/backoff-base": "500ms", "epilogue.dev/backoff-max": "1m30s"});
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
