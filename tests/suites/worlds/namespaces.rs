//! A namespace that a user deletes while Jobs run in it, and the namespace controller that empties
//! it, as kube-controller-manager's does.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, PostParams, PropagationPolicy};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use model_api::{Kind, ModelApi};
use serde_json::json;
use simulation::controller::Random;
use tokio::time::sleep;

use super::plots::Plot;
use super::{gangs, garbage};

/// The namespace that is deleted.
pub(super) const DOOMED: &str = "doomed";
/// How often the namespace controller looks.
const LOOK: Duration = Duration::from_secs(1);

/// Creates the namespace, later its Jobs, and deletes it while they run.
pub(super) async fn doom(api: ModelApi, mut random: Random, plots: Vec<Plot>, has_gangs: bool) {
    let client = api.client("user/1");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": DOOMED}}));
    let namespace = namespace.expect("must be a namespace");
    namespaces.create(&PostParams::default(), &namespace).await.expect("must be created");
    let of_controller = Random::new(random.below(1 << 30) as u64);
    tokio::spawn(empty(api.clone(), of_controller, has_gangs));
    for plot in plots {
        sleep(random.millis(0, 8_000)).await;
        gangs::create(&api, DOOMED, &plot.job).await;
    }
    sleep(random.millis(0, 40_000)).await;
    let deleted = namespaces.delete(DOOMED, &DeleteParams::default()).await;
    deleted.expect("a user's deletion must be taken");
}

/// Deletes what a namespace has once that is being deleted, kind by kind, and then lets it go.
async fn empty(api: ModelApi, mut random: Random, has_gangs: bool) {
    let is_doomed = || {
        let namespace = api.get(Kind::Namespace, "", DOOMED);
        namespace.map(|it| it["metadata"].get("deletionTimestamp").is_some())
    };
    while is_doomed() != Some(true) {
        sleep(LOOK).await;
    }
    // Other controllers see the deletion first, or later.
    sleep(random.millis(0, 15_000)).await;
    let resource = |group, name| ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", name));
    let mut kinds = vec![
        (Kind::Pod, resource("", "Pod")),
        (Kind::Job, resource("batch", "Job")),
        (Kind::Event, resource("", "Event")),
    ];
    if random.percent(50) {
        kinds.swap(0, 1);
    }
    let of_gangs = garbage::OF_GANGS.map(|(kind, name)| (kind, garbage::resource(name)));
    kinds.extend(of_gangs.into_iter().filter(|_| has_gangs));
    let client = api.client("namespace-controller/1");
    while is_doomed().is_some() {
        for (kind, resource) in &kinds {
            let all: Api<DynamicObject> = Api::namespaced_with(client.clone(), DOOMED, resource);
            for object in api.list(*kind, DOOMED) {
                let metadata = &object["metadata"];
                if metadata.get("deletionTimestamp").is_none() {
                    let name = metadata["name"].as_str().unwrap_or_default();
                    let background = PropagationPolicy::Background;
                    let params =
                        DeleteParams { propagation_policy: Some(background), ..Default::default() };
                    // It may go at any moment.
                    drop(all.delete(name, &params).await);
                }
            }
            sleep(random.millis(0, 3_000)).await;
        }
        if Kind::ALL.iter().all(|kind| !is_in(*kind) || api.list(*kind, DOOMED).is_empty()) {
            let namespaces: Api<Namespace> = Api::all(client.clone());
            let free = json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": DOOMED}, "spec": {"finalizers": []},
            });
            let params = PostParams::default();
            drop(namespaces.replace_subresource("finalize", DOOMED, &params, &free).await);
        }
        sleep(LOOK).await;
    }
}

/// Whether objects of a kind are in namespaces.
fn is_in(kind: Kind) -> bool {
    let is_of_gangs = garbage::OF_GANGS.iter().any(|(it, _)| *it == kind);
    is_of_gangs || matches!(kind, Kind::Pod | Kind::Job | Kind::Event | Kind::Lease)
}

/// What is left of the namespace.
pub(super) fn remains(api: &ModelApi) -> Vec<String> {
    let Some(_) = api.get(Kind::Namespace, "", DOOMED) else { return Vec::new() };
    let mut found = vec![format!("the namespace {DOOMED} is not gone")];
    for kind in Kind::ALL.into_iter().filter(|kind| is_in(*kind)) {
        let names = api.list(kind, DOOMED).into_iter().map(|it| it["metadata"]["name"].to_string());
        let names: Vec<String> = names.collect();
        if !names.is_empty() {
            found.push(format!("{kind:?} {names:?} remain in {DOOMED}"));
        }
    }
    found
}
