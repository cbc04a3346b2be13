//! Tests the optional admission policy `epilogue-lint`: it warns about Jobs and CronJobs, and
//! refuses none.

use http::{Method, Request};
use kube::client::Body;
use lab::bed::{JobBuilder, SOON, job};
use lab::{eventually, install};
use serde_json::{Value, json};

use super::bed;

/// Creates an object as a dry run; returns the warnings of the policy.
pub(crate) async fn warnings(client: &kube::Client, path: &str, object: &Value) -> Vec<String> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("{path}?dryRun=All"))
        .header("Content-Type", "application/json")
        .body(Body::from(object.to_string().into_bytes()))
        .expect("a path must make a request");
    let response = client.send(request).await.expect("the API must answer");
    assert!(response.status().is_success(), "{}: {object}", response.status());
    let all = response.headers().get_all("Warning").into_iter();
    let all = all.map(|value| value.to_str().expect("text").to_owned());
    all.filter(|warning| warning.contains("'epilogue-lint'")).collect()
}

fn with_condition(kind: &str, status: &str) -> JobBuilder {
    let rule = json!({"action": "Ignore", "onPodConditions": [{"type": kind, "status": status}]});
    job("draft").spec("podFailurePolicy", json!({"rules": [rule]}))
}

/// The admission policies refuse unknown annotations on Jobs of ours, so these are of others.
fn of_another(managed_by: Value, annotation: &str) -> JobBuilder {
    job("draft").spec("managedBy", managed_by).metadata("annotations", json!({annotation: "5m"}))
}

fn cron_job(template: &Value) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "CronJob",
        "metadata": {"name": "draft", "annotations": {"epilogue.dev/backoff-max": "5m"}},
        "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": template["spec"]}},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_that_the_api_accepts_get_a_warning() {
    let bed = bed(&[]).await;
    install::apply_lint_policy(bed.client()).await.expect("the policy is installed");
    let jobs = format!("/apis/batch/v1/namespaces/{}/jobs", bed.namespace());
    let of = async |job: JobBuilder| warnings(bed.client(), &jobs, &job.raw()).await;
    // The API server takes a moment to apply a new policy.
    let misspelled = with_condition("Disruption-target", "True");
    let first = async || of(misspelled.clone()).await;
    eventually("the warning", SOON, first, |warnings| !warnings.is_empty()).await;
    let found = [
        (misspelled.clone(), "Disruption-target; did you mean DisruptionTarget?"),
        (with_condition("OOMKilled", "True"), "did you mean epilogue.dev/OOMKilled?"),
        (with_condition("DisruptionTarget", "False"), "[disruption-target-not-true]"),
        (job("draft").spec("activeDeadlineSeconds", 29), "[deadline-below-grace]"),
        (of_another(json!(null), "epilogue.dev/backof-max"), "unknown epilogue.dev/backof-max"),
        (
            of_another(json!("example.com/other"), "epilogue.dev/backoff-max"),
            "[annotation-without-effect]",
        ),
    ];
    for (job, words) in found {
        let warnings = of(job).await;
        let [warning] = &warnings[..] else { panic!("{words}: {warnings:?}") };
        assert!(warning.contains(words), "{warning}");
    }
    let clean = [
        job("draft"),
        with_condition("DisruptionTarget", "True"),
        with_condition("epilogue.dev/OOMKilled", "True"),
        with_condition("example.com/ConfigIssue", "False"),
        job("draft").spec("activeDeadlineSeconds", 30),
        of_another(json!(null), "epilogue.dev/backoff-max"),
        of_another(json!("example.com/other"), "epilogue.dev/force-fail-after"),
    ];
    for job in clean {
        let text = job.clone().raw().to_string();
        assert_eq!(of(job).await, [] as [String; 0], "{text}");
    }
    let cron_jobs = format!("/apis/batch/v1/namespaces/{}/cronjobs", bed.namespace());
    let found = warnings(bed.client(), &cron_jobs, &cron_job(&misspelled.raw())).await;
    let has = |words: &str| found.iter().any(|warning| warning.contains(words));
    assert!(has("spec.jobTemplate.spec.podFailurePolicy.rules: unknown condition"), "{found:?}");
    assert!(has("not those of the CronJob") && found.len() == 2, "{found:?}");
    bed.stop().await;
}
