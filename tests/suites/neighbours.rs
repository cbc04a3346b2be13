//! Tests Jobs of ours that belong to a real controller of another project, built from its Go
//! module. Each has an API of its own, because their webhooks concern all namespaces.

mod job_set;
mod job_set_e2e;
mod kueue;
mod ledger;
mod upstream_jobs;

use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use lab::bed::{Bed, SOON};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::neighbour::Neighbour;
use lab::nodes::Bind;
use lab::{ControlPlane, Options, Process, eventually};
use serde_json::Value;

/// An API, a controller of another project on it, and a bed with ours.
struct Stage {
    control_plane: ControlPlane,
    neighbour: Process,
    bed: Bed,
}

impl Stage {
    async fn start(neighbour: &Neighbour, configuration: &Value, arguments: &[&str]) -> Self {
        let options = Options::unique(neighbour.name).controller_manager(QUIET_CONTROLLERS);
        let control_plane = ControlPlane::start(options).await.expect("a control plane");
        let cluster = control_plane.cluster();
        let neighbour = neighbour.start(cluster, configuration).await.expect("its controller");
        let bed = Bed::on(cluster, arguments, Bind::Untainted).await;
        Self { control_plane, neighbour, bed }
    }

    async fn stop(mut self) {
        self.neighbour.check().expect("the other controller runs to the end");
        self.bed.stop().await;
        self.neighbour.stop(SOON).await;
        self.control_plane.stop().await.expect("the control plane ends");
    }
}

/// The objects of a kind, in a namespace or in the cluster.
fn objects(client: &kube::Client, object: &Value, namespace: Option<&str>) -> Api<DynamicObject> {
    let text = |name: &str| object[name].as_str().expect("text");
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", "v1"));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("kind")));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Creates an object as soon as the API and its webhooks take it.
async fn create(api: &Api<DynamicObject>, object: &Value) {
    let object: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
    let create = async || match api.create(&PostParams::default(), &object).await {
        Ok(_) => "created".to_owned(),
        Err(error) => error.to_string(),
    };
    eventually("the object is created", SOON, create, |answer| answer == "created").await;
}

async fn change(api: &Api<DynamicObject>, name: &str, patch: Value) {
    let patch = Patch::Merge(patch);
    api.patch(name, &PatchParams::default(), &patch).await.expect("the object is changed");
}

/// An object's true conditions: `type reason`.
fn conditions(object: &DynamicObject) -> Vec<String> {
    let all = object.data["status"]["conditions"].as_array().into_iter().flatten();
    let text = |condition: &Value, name: &str| condition[name].as_str().unwrap_or("").to_owned();
    all.filter(|it| it["status"] == "True")
        .map(|it| format!("{} {}", text(it, "type"), text(it, "reason")))
        .collect()
}
