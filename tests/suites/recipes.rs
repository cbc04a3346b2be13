//! Tests the manifests of `examples/recipes` on the real API: next to the real part where the
//! laboratory has it, else next to a double that makes the part's calls. Each page of
//! `docs/recipes` says which.

mod autoscalers;
mod cron_job;
mod karpenter;
mod opt_in;
mod spark;
mod workflows;

use k8s_openapi::api::core::v1::Pod;
use kube::api::EvictParams;
use lab::Cluster;
use lab::bed::{Bed, JobBuilder, JobState};
use lab::nodes::Bind;
use lab::paths::workspace_root;
use serde::Deserialize as _;
use serde_json::Value;

/// Failures are not what these tests wait for.
const ARGUMENTS: [&str; 3] = [
    "--check-plans",
    "--default-job-pod-failure-backoff=10ms",
    // A node that is gone counts soon.
    "--pod-gc-quarantine=1s",
];

/// A bed in the suite's cluster. Its nodes take no pods while they have a taint.
async fn bed() -> Bed {
    let cluster = Cluster::of_tests("recipes").expect("the suite's cluster");
    Bed::on(&cluster, &ARGUMENTS, Bind::Untainted).await
}

/// The objects of a manifest in `examples/recipes`.
fn recipe(name: &str) -> Vec<Value> {
    let path = workspace_root().join(format!("examples/recipes/{name}.yaml"));
    let text = std::fs::read_to_string(&path).expect("a recipe");
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    documents.map(|it| Value::deserialize(it).expect("YAML")).collect()
}

/// The only object of a manifest.
pub(crate) fn only(name: &str) -> Value {
    let mut objects = recipe(name);
    assert_eq!(objects.len(), 1, "{name}");
    objects.remove(0)
}

/// The Job of a manifest.
pub(crate) fn job(name: &str) -> JobBuilder {
    let object = only(name);
    assert_eq!(object["kind"], "Job", "{name}");
    object.into()
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().expect("a name")
}

fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).expect("a node")
}

/// Evicts a pod through the API, as drains do.
pub(crate) async fn evict(bed: &Bed, pod: &str) {
    bed.api::<Pod>().evict(pod, &EvictParams::default()).await.expect("the pod is evicted");
}

/// The last condition, succeeded and failed pods.
fn ending(state: &JobState) -> (Option<&str>, i32, i32) {
    (state.conditions.last().map(String::as_str), state.succeeded, state.failed)
}

#[test]
fn each_recipe_has_a_page() {
    let directory = |path: &str| {
        let entries = std::fs::read_dir(workspace_root().join(path)).expect("a directory");
        entries.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
    };
    let pages = directory("docs/recipes");
    let pages: Vec<String> =
        pages.iter().map(|page| std::fs::read_to_string(page).expect("a page")).collect();
    let recipes = directory("examples/recipes");
    assert!(recipes.len() >= 8, "{recipes:?}");
    for recipe in recipes {
        let file = recipe.file_name().and_then(|name| name.to_str()).expect("a name");
        let link = format!("examples/recipes/{file})");
        assert!(pages.iter().any(|page| page.contains(&link)), "no page links to {file}");
    }
}
