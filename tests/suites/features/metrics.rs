//! Tests the metrics that upstream's Job controller has, too: Jobs bring about each reason and each
//! action, and a scrape shows each one counted. ([M1] to [M9])
//!
//! `stale_sync_skips_total` ([M10]) needs a watch that lags; it has a unit test.

use k8s_openapi::api::core::v1::ResourceQuota;
use kube::api::{Patch, PatchParams, PostParams};
use lab::bed::{Bed, JobBuilder, SOON, job};
use lab::eventually;
use serde_json::{Value, json};

use super::{NO_BACKOFF, bed};

/// The series of a metric and their values.
type Series = (&'static str, &'static [(&'static str, u64)]);

/// Jobs that end.
const ENDING: [&str; 10] =
    ["done", "over", "late", "policy", "ignored", "counted", "again", "index", "many", "led"];

/// What the Jobs of [`create_all`] count, each of them exactly once.
const COUNTED: [Series; 6] = [
    (
        "jobs_finished_total",
        &[
            (r#"completion_mode="NonIndexed",reason="CompletionsReached",result="succeeded""#, 4),
            (r#"completion_mode="NonIndexed",reason="BackoffLimitExceeded",result="failed""#, 1),
            (r#"completion_mode="NonIndexed",reason="DeadlineExceeded",result="failed""#, 1),
            (r#"completion_mode="NonIndexed",reason="PodFailurePolicy",result="failed""#, 1),
            (r#"completion_mode="Indexed",reason="FailedIndexes",result="failed""#, 1),
            (r#"completion_mode="Indexed",reason="MaxFailedIndexesExceeded",result="failed""#, 1),
            (r#"completion_mode="Indexed",reason="SuccessPolicy",result="succeeded""#, 1),
        ],
    ),
    (
        "job_pods_finished_total",
        &[
            // Of done, ignored, counted and again.
            (r#"completion_mode="NonIndexed",result="succeeded""#, 4),
            // Of over, late, policy, counted and again: an ignored failure does not count.
            (r#"completion_mode="NonIndexed",result="failed""#, 5),
            // One each of index, many and led.
            (r#"completion_mode="Indexed",result="succeeded""#, 3),
            // One of index, two of many.
            (r#"completion_mode="Indexed",result="failed""#, 3),
        ],
    ),
    (
        "job_finished_indexes_total",
        &[
            (r#"backoffLimit="perIndex",status="succeeded""#, 2),
            (r#"backoffLimit="perIndex",status="failed""#, 3),
            (r#"backoffLimit="global",status="succeeded""#, 1),
        ],
    ),
    (
        "job_pods_creation_total",
        &[
            // One each of done, over, late, policy, counted and again; two each of ignored, index,
            // led and sized; three of many.
            (r#"reason="new",status="succeeded""#, 17),
            (r#"reason="recreate_failed",status="succeeded""#, 1),
            (r#"reason="recreate_terminating_or_failed",status="succeeded""#, 1),
        ],
    ),
    (
        "pod_failures_handled_by_failure_policy_total",
        &[
            (r#"action="FailJob""#, 1),
            (r#"action="FailIndex""#, 1),
            (r#"action="Ignore""#, 1),
            (r#"action="Count""#, 1),
        ],
    ),
    (
        "jobs_by_external_controller_total",
        &[
            (r#"controller_name="kueue.x-k8s.io/multikueue""#, 1),
            // Listed by --external-job-controllers.
            (r#"controller_name="example.com/listed""#, 1),
            // A name that the controller does not know makes no series of its own.
            (r#"controller_name="other""#, 1),
        ],
    ),
];

/// Syncs that happened; their number depends on the order of events.
const SYNCED: [&str; 5] = [
    r#"action="reconciling",completion_mode="NonIndexed",result="success""#,
    r#"action="tracking",completion_mode="Indexed",result="success""#,
    r#"action="pods_created",completion_mode="NonIndexed",result="success""#,
    r#"action="pods_deleted",completion_mode="Indexed",result="success""#,
    r#"action="pods_created",completion_mode="NonIndexed",result="error""#,
];

/// A policy that matches one exit code.
fn on_exit(action: &str, code: i32) -> Value {
    json!({"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": [code]}}]})
}

fn with_policy(name: &str, action: &str, script: &str) -> JobBuilder {
    job(name).spec("podFailurePolicy", on_exit(action, 42)).script(script)
}

async fn create_all(bed: &Bed) {
    let by_index = |name: &str, indexes: u32, failures: u32, script: &str| {
        job(name).indexed(indexes).spec("backoffLimitPerIndex", failures).script(script)
    };
    for job in [
        job("done"),
        job("over").spec("backoffLimit", 0).script("fail"),
        job("late").spec("activeDeadlineSeconds", 2).script("hang"),
        // The label has the reason without the name.
        with_policy("policy", "FailJob", "fail exit=42")
            .metadata("annotations", json!({"epilogue.dev/pod-failure-policy-names": "Named"})),
        with_policy("ignored", "Ignore", "fail exit=42 times=1; succeed").spec("backoffLimit", 0),
        with_policy("counted", "Count", "fail exit=42 times=1; succeed"),
        job("again").script("fail times=1; succeed"),
        by_index("index", 2, 1, "index=0: fail exit=42; succeed")
            .spec("podFailurePolicy", on_exit("FailIndex", 42)),
        // Index 0 is counted before the others fail the Job.
        by_index("many", 3, 0, "index=0: succeed; fail after=3s").spec("maxFailedIndexes", 1),
        job("led")
            .indexed(2)
            .spec("successPolicy", json!({"rules": [{"succeededIndexes": "0"}]}))
            .script("index=0: succeed after=2s; hang"),
        job("sized").indexed(2).script("hang"),
        job("multi").spec("managedBy", "kueue.x-k8s.io/multikueue"),
        job("foreign").spec("managedBy", "example.com/other"),
        job("listed").spec("managedBy", "example.com/listed"),
    ] {
        bed.create(job).await;
    }
}

/// The value of a series; `None` if the page lacks it.
fn value(page: &str, metric: &str, labels: &str) -> Option<u64> {
    let series = format!("job_controller_{metric}{{{labels}}} ");
    page.lines().find_map(|line| line.strip_prefix(&series))?.trim().parse().ok()
}

/// The series of [`COUNTED`] with another value than expected.
fn differing(page: &str) -> Vec<String> {
    let all = COUNTED.iter().flat_map(|(metric, series)| {
        series.iter().map(move |(labels, expected)| (*metric, *labels, *expected))
    });
    all.filter_map(|(metric, labels, expected)| {
        let found = value(page, metric, labels);
        (found != Some(expected))
            .then(|| format!("{metric}{{{labels}}}: {found:?}, not {expected}"))
    })
    .collect()
}

/// The series of [`SYNCED`] that one of both metrics of syncs has not counted.
fn unsynced(page: &str) -> Vec<&'static str> {
    let both = ["job_syncs_total", "job_sync_duration_seconds_count"];
    let is_missing =
        |labels: &&str| both.iter().any(|metric| value(page, metric, labels) < Some(1));
    SYNCED.into_iter().filter(is_missing).collect()
}

/// Sets how many pods with a deadline of their own the quota allows. No quota controller runs here,
/// and admission uses the status.
async fn allow(bed: &Bed, pods_max: u32) {
    let status = json!({"hard": {"pods": pods_max.to_string()}, "used": {"pods": "0"}});
    let patch = Patch::Merge(json!({"status": status}));
    let quotas = bed.api::<ResourceQuota>();
    quotas.patch_status("few", &PatchParams::default(), &patch).await.expect("the quota's status");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_reason_and_action_is_counted_under_upstream_s_names() {
    let backoff = ["--default-job-api-backoff=200ms", "--max-job-api-backoff=1s"];
    let listed = "--external-job-controllers=example.com/listed";
    let address = "--metrics-bind-address=127.0.0.1:0";
    let bed = bed(&[NO_BACKOFF, address, backoff[0], backoff[1], listed]).await;
    let quota = json!({"metadata": {"name": "few"},
                       "spec": {"hard": {"pods": "0"}, "scopes": ["Terminating"]}});
    let quota: ResourceQuota = serde_json::from_value(quota).expect("a quota");
    let quotas = bed.api::<ResourceQuota>();
    quotas.create(&PostParams::default(), &quota).await.expect("the quota is created");
    allow(&bed, 0).await;

    create_all(&bed).await;
    bed.reaches("sized", SOON, |state| state.ready == Some(2)).await;
    bed.change("sized", json!({"parallelism": 1, "completions": 1})).await;
    for name in ENDING {
        bed.finished(name, SOON).await;
    }
    bed.reaches("sized", SOON, |state| (state.active, state.terminating) == (1, Some(0))).await;
    let scrape = async || differing(&bed.metrics().await);
    eventually("the counts", SOON, scrape, Vec::is_empty).await;

    // Each of its creations fails, and so does the sync.
    bed.create(job("crowd").pod("activeDeadlineSeconds", 600)).await;
    bed.events_say("crowd", "FailedCreate: Error creating: ").await;
    let failed = async || {
        let labels = r#"reason="new",status="failed""#;
        value(&bed.metrics().await, "job_pods_creation_total", labels).unwrap_or_default()
    };
    eventually("a failed creation", SOON, failed, |count| *count > 0).await;
    let missing = async || unsynced(&bed.metrics().await);
    eventually("each result and action of a sync", SOON, missing, Vec::is_empty).await;
    allow(&bed, 9).await;
    bed.finished("crowd", SOON).await;

    // Pods that end with the finalizer lose it.
    let tracked = async || {
        let page = bed.metrics().await;
        let of = |event: &str| {
            let labels = format!("event=\"{event}\"");
            value(&page, "terminated_pods_tracking_finalizer_total", &labels).unwrap_or_default()
        };
        (of("add"), of("delete"))
    };
    let done = |(added, deleted): &(u64, u64)| *added >= 16 && added == deleted;
    eventually("the finalizers that went", SOON, tracked, done).await;
    bed.stop().await;
}
