//! Tests objects by which a tenant could hold up others, on the real API: whatever such an object
//! contains, other Jobs run.

mod objects;
mod tenant;
mod waiting;
mod worked;

use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use lab::bed::{Bed, JobBuilder, SOON, job};
use serde_json::{Value, json};

const SUITE: &str = "hostile";
/// Deeper than any JSON parser here goes by default.
const LEVELS: usize = 130;

/// Where the depth goes in the text of a body.
const HOLE: &str = "\"hole\"";

/// `managedFields` of an author who writes arbitrary fields.
fn managed_fields(fields: &Value) -> Value {
    json!([{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "time": "2026-01-01T00:00:00Z", "fieldsV1": fields}])
}

/// Sends a body that no `Value` can hold, and returns the answer.
async fn send(bed: &Bed, method: &str, path: &str, body: Vec<u8>) -> Result<String, kube::Error> {
    let request = Request::builder().method(method).uri(path);
    let request = request.header("content-type", "application/json").body(body);
    bed.client().request_text(request.expect("must be a request")).await
}

/// Creates the Job with `managedFields` in its template that are nested too deep.
async fn create_deep(bed: &Bed, job: JobBuilder) {
    let deep = job.pod_metadata("managedFields", managed_fields(&"hole".into())).raw();
    let levels = format!("{}{{}}{}", "{\"f:a\":".repeat(LEVELS), "}".repeat(LEVELS));
    let body = deep.to_string().replace(HOLE, &levels);
    let path = format!("/apis/batch/v1/namespaces/{}/jobs", bed.namespace());
    let stored = send(bed, "POST", &path, body.into_bytes()).await.expect("the API takes it");
    assert!(stored.matches("\"f:a\"").count() >= LEVELS, "the API keeps it: {stored}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_nested_too_deep_holds_up_no_other() {
    let mut bed = Bed::start(SUITE, &[]).await;
    create_deep(&bed, job("foreign").spec("managedBy", "example.com/other")).await;
    create_deep(&bed, job("deep")).await;
    bed.create(job("healthy")).await;
    assert_eq!(bed.finished("healthy", SOON).await.succeeded, 1);
    // Its own depth delays nothing, though most clients cannot read it.
    bed.events_say("deep", "Completed").await;
    // The first list contains it, too.
    bed.kill_and_restart().await;
    bed.create(job("later")).await;
    assert_eq!(bed.finished("later", SOON).await.succeeded, 1);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_no_text_in_a_pod_hold_up_no_other() {
    let mut bed = Bed::start(SUITE, &[]).await;
    let pod = json!({"metadata": {"name": "odd", "managedFields": managed_fields(&json!({}))},
                     "spec": {"containers": [{"name": "main", "image": "none"}],
                              "nodeName": "nowhere"}});
    let pod = serde_json::from_value(pod).expect("must be a pod");
    let pod = bed.api::<Pod>().create(&PostParams::default(), &pod).await.expect("a pod");
    let mut body = serde_json::to_value(&pod).expect("must be JSON");
    body["metadata"]["managedFields"] = managed_fields(&json!({"f:metadata": {"f:hole": {}}}));
    let text = body.to_string().into_bytes();
    let at = text.windows(6).position(|window| window == b"f:hole").expect("must be there");
    let body = [&text[..at], b"f:h\xff\xfe", &text[at + 6..]].concat();
    let path = format!("/api/v1/namespaces/{}/pods/odd", bed.namespace());
    // Its answer is not text either.
    let answer = send(&bed, "PUT", &path, body).await;
    assert!(matches!(answer, Err(kube::Error::FromUtf8(_))), "the API keeps it: {answer:?}");

    // The simulated nodes cannot read it either; the test requires only that pods are created.
    bed.create(job("healthy").spec("parallelism", 2)).await;
    bed.reaches("healthy", SOON, |state| state.active == 2).await;
    bed.kill_and_restart().await;
    bed.create(job("later")).await;
    bed.reaches("later", SOON, |state| state.active == 1).await;
    let deleted = send(&bed, "DELETE", &path, Vec::new()).await;
    assert!(matches!(deleted, Err(kube::Error::FromUtf8(_))), "{deleted:?}");
    bed.stop().await;
}

/// Only an administrator can write this: a time in the status that no calendar here has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_cannot_be_read_is_reported_and_rests_until_it_can() {
    let bed = Bed::start(SUITE, &[]).await;
    bed.create(job("odd").spec("suspend", true)).await;
    bed.reaches("odd", SOON, |state| state.conditions == ["Suspended"]).await;
    let path = format!("/apis/batch/v1/namespaces/{}/jobs/odd", bed.namespace());
    let patch = async |path: &str, body: Value| {
        let request = Request::patch(path).header("content-type", "application/merge-patch+json");
        let request = request.body(body.to_string().into_bytes()).expect("must be a request");
        bed.client().request_text(request).await.expect("the API takes it")
    };
    let condition = json!({"type": "example.com/Odd", "status": "True",
                           "lastTransitionTime": "9999-12-31T23:59:59Z"});
    patch(&format!("{path}/status"), json!({"status": {"conditions": [condition]}})).await;
    let message = bed.events_say("odd", "Unreadable").await;
    assert!(message.contains("status.conditions[0].lastTransitionTime"), "{message}");
    patch(&path, json!({"spec": {"suspend": false}})).await;
    bed.create(job("healthy")).await;
    bed.finished("healthy", SOON).await;
    assert!(bed.pods("odd").await.is_empty(), "nothing is done by a wrong idea of it");
    patch(&format!("{path}/status"), json!({"status": {"conditions": []}})).await;
    assert_eq!(bed.finished("odd", SOON).await.succeeded, 1);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_beyond_the_calendar_hold_up_neither_others_nor_the_job_itself() {
    let bed = Bed::start(SUITE, &[]).await;
    bed.create(job("odd").script("hang")).await;
    bed.reaches("odd", SOON, |state| state.active == 1).await;
    let name = bed.pods("odd").await.remove(0).metadata.name.expect("a pod has a name");
    let far = "9999-12-31T23:59:59Z";
    let condition = json!({"type": "example.com/Odd", "status": "True", "lastTransitionTime": far});
    let terminated = json!({"exitCode": 0, "startedAt": far, "finishedAt": far});
    let container = json!({"name": "main", "image": "none", "imageID": "", "ready": false,
                           "restartCount": 0, "state": {"terminated": terminated}});
    let status = json!({"status": {"phase": "Succeeded", "startTime": far,
                                   "conditions": [condition], "containerStatuses": [container]}});
    let patch = Patch::Strategic(&status);
    let pods = bed.api::<Pod>();
    pods.patch_status(&name, &PatchParams::default(), &patch)
        .await
        .expect_err("kube cannot read it");
    bed.create(job("healthy").spec("parallelism", 2)).await;
    bed.reaches("healthy", SOON, |state| state.active == 2 || state.is_finished()).await;
    assert_eq!(bed.finished("odd", SOON).await.succeeded, 1);
    bed.stop().await;
}
