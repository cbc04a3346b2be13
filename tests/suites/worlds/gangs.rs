//! Draws what Jobs say about their scheduling.

use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use model_api::ModelApi;
use serde_json::{Value, json};
use simulation::controller::Random;

use super::plots::{DELETED, Plot, SUSPENDED};

/// How the names of Jobs begin whose users change how many pods run at once: whatever number that
/// is, they end as their scripts say.
const RESIZED: [&str; 3] = ["succeed", SUSPENDED, DELETED];

/// Gives each Job a `spec.scheduling`, or none.
pub(super) fn draw_all(random: &mut Random, plots: &mut [Plot]) {
    for plot in plots {
        draw(random, &mut plot.job);
    }
}

/// Gives the Job a `spec.scheduling`, or none. No Job asks for a group that is disrupted as a whole:
/// then more pods end than its script says.
fn draw(random: &mut Random, job: &mut Value) {
    let spec = &mut job["spec"];
    let parallelism = spec["parallelism"].as_i64().unwrap_or(1);
    let parallelism = i32::try_from(parallelism).expect("must be small");
    let policy = match random.below(5) {
        0 => return,
        1 => json!({"basic": {}}),
        2 => json!({"gang": {"minCount": random.between(1, parallelism.max(1))}}),
        _ => json!({"gang": {}}),
    };
    let scheduling = &mut spec["scheduling"];
    *scheduling = json!({"schedulingPolicy": policy});
    if random.percent(30) {
        let zone = json!({"key": "topology.kubernetes.io/zone"});
        scheduling["schedulingConstraints"] = json!({"topology": [zone]});
    }
    if random.percent(30) {
        scheduling["disruptionMode"] = json!({"single": {}});
    }
    if random.percent(30) {
        let claim = json!({"name": "gpu", "resourceClaimTemplateName": "gpus"});
        scheduling["resourceClaims"] = json!([claim]);
    }
}

/// Another number of pods at once, for a gang that follows it.
pub(super) fn resize(random: &mut Random, job: &Value) -> Option<Value> {
    let name = job["metadata"]["name"].as_str().unwrap_or_default();
    let gang = job["spec"]["scheduling"]["schedulingPolicy"].get("gang")?;
    let follows = RESIZED.iter().any(|it| name.starts_with(it)) && gang.get("minCount").is_none();
    (follows && random.percent(80)).then(|| json!({"spec": {"parallelism": random.between(1, 4)}}))
}

/// A user creates a Job, whatever fields it has.
pub(super) async fn create(api: &ModelApi, namespace: &str, job: &Value) {
    let resource = ApiResource::erase::<Job>(&());
    let jobs: Api<DynamicObject> = Api::namespaced_with(api.client("user/1"), namespace, &resource);
    let job = serde_json::from_value(job.clone()).expect("must be a Job");
    jobs.create(&PostParams::default(), &job).await.expect("must be created");
}
