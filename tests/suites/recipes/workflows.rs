//! A step of Argo Workflows and a task of Airflow wait for a Job. Doubles evaluate its status as
//! these programs do, at every change that they could see.

use k8s_openapi::api::batch::v1::Job;
use kube::api::PostParams;
use lab::bed::{Bed, JobBuilder, SOON};
use lab::eventually;
use serde_json::Value;

use super::{bed, job, only};

/// What a waiting program concludes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Waits,
    Succeeded,
    Failed,
}

/// Argo: a condition such as `status.succeeded > 1`. A missing field is no number, so it fails.
fn holds(condition: &str, job: &Value) -> bool {
    let words: Vec<&str> = condition.split_whitespace().collect();
    let [path, ">", number] = words[..] else { panic!("another condition: {condition}") };
    let value = path.split('.').fold(job, |value, key| &value[key]);
    let number: i64 = number.parse().expect("a number");
    value.as_i64().is_some_and(|value| value > number)
}

/// Airflow: a condition of one of two types ends the wait. Its status is read as a text that is
/// not empty, so `False` would count as `True`.
fn airflow(job: &Value) -> Outcome {
    let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let has = |kind: &str| {
        let of_kind = |each: &&Value| each["type"] == kind;
        conditions.iter().find(of_kind).is_some_and(|each| each["status"] != "")
    };
    match (has("Complete"), has("Failed")) {
        (false, false) => Outcome::Waits,
        (_, true) => Outcome::Failed,
        (true, false) => Outcome::Succeeded,
    }
}

async fn create(bed: &Bed, job: JobBuilder) -> String {
    let job = bed.api::<Job>().create(&PostParams::default(), &job.build()).await;
    job.expect("the Job is created").metadata.name.expect("a name")
}

/// The first outcome, of observations at short intervals.
async fn outcome(bed: &Bed, job: &str, judge: impl Fn(&Value) -> Outcome) -> Outcome {
    let seen = async || {
        let job = serde_json::to_value(bed.job(job).await).expect("JSON");
        judge(&job)
    };
    eventually("an outcome", SOON, seen, |outcome| *outcome != Outcome::Waits).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_of_argo_does_not_fail_because_of_a_disruption() {
    let bed = bed().await;
    let resource = only("argo-workflow")["spec"]["templates"][0]["resource"].clone();
    let text = |field: &str| resource[field].as_str().expect(field).to_owned();
    let (success, failure) = (text("successCondition"), text("failureCondition"));
    let manifest: Value = serde_yaml_ng::from_str(&text("manifest")).expect("a Job");
    let judge = |job: &Value| match (holds(&success, job), holds(&failure, job)) {
        (_, true) => Outcome::Failed,
        (true, false) => Outcome::Succeeded,
        (false, false) => Outcome::Waits,
    };
    for (script, expected) in
        [("disrupt times=1; succeed", Outcome::Succeeded), ("fail exit=3", Outcome::Failed)]
    {
        let name = create(&bed, JobBuilder::from(manifest.clone()).script(script)).await;
        assert_eq!(outcome(&bed, &name, &judge).await, expected, "{script}");
    }
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_of_airflow_waits_through_disruptions_and_failures() {
    let bed = bed().await;
    for (name, script, expected) in [
        ("disrupted", "disrupt times=2; succeed", Outcome::Succeeded),
        ("second-try", "fail exit=3 times=1; succeed", Outcome::Succeeded),
        ("failed", "fail exit=3", Outcome::Failed),
    ] {
        let name = create(&bed, job("airflow-job").metadata("name", name).script(script)).await;
        assert_eq!(outcome(&bed, &name, airflow).await, expected, "{name}");
        let conditions = bed.conditions(&name).await;
        let unclear = conditions.iter().any(|line| line.contains("=False"));
        assert!(!unclear, "Airflow would take it for True: {conditions:?}");
    }
    bed.stop().await;
}
