//! What kube-controller-manager does in the worlds: its garbage collector deletes what a Job leaves,
//! and a PodGroup that is being deleted waits for the pods in it.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use model_api::{Kind, ModelApi};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::plots::is_terminal;
use super::world::NAMESPACE;

/// How often it looks.
const LOOK: Duration = Duration::from_secs(2);
/// The finalizer of PodGroups.
const PROTECTION: &str = "scheduling.k8s.io/podgroup-protection";
/// The kinds of gang scheduling, which Jobs leave, too.
pub(super) const OF_GANGS: [(Kind, &str); 2] =
    [(Kind::Workload, "Workload"), (Kind::PodGroup, "PodGroup")];

/// Deletes the pods and the objects of gang scheduling whose owners are gone.
pub(super) async fn collect(api: ModelApi) {
    let pods: Api<Pod> = Api::namespaced(api.client("garbage-collector/1"), NAMESPACE);
    loop {
        sleep(LOOK).await;
        let jobs = uids(&api, Kind::Job, NAMESPACE);
        for pod in api.list(Kind::Pod, NAMESPACE) {
            if is_garbage(&pod, &jobs) {
                // The pod may go at any moment.
                drop(pods.delete(name(&pod), &DeleteParams::default()).await);
            }
        }
        for (kind, plural) in OF_GANGS {
            let owners = uids(&api, Kind::Job, "").into_iter();
            let owners: BTreeSet<_> = owners.chain(uids(&api, Kind::Workload, "")).collect();
            for object in api.list(kind, "").iter().filter(|it| is_garbage(it, &owners)) {
                let all = of_gangs(&api, "garbage-collector/1", plural, object);
                drop(all.delete(name(object), &DeleteParams::default()).await);
            }
        }
        for group in api.list(Kind::PodGroup, "") {
            release(&api, &group).await;
        }
    }
}

/// Removes the finalizer of a PodGroup that is being deleted and has no pods.
async fn release(api: &ModelApi, group: &Value) {
    let metadata = &group["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or_default();
    let uses = |pod: &Value| {
        !is_terminal(pod) && pod["spec"]["schedulingGroup"]["podGroupName"] == metadata["name"]
    };
    let is_used = api.list(Kind::Pod, namespace).iter().any(|pod| uses(pod));
    if metadata.get("deletionTimestamp").is_none() || is_used {
        return;
    }
    let mut finalizers = metadata["finalizers"].as_array().cloned().unwrap_or_default();
    finalizers.retain(|it| it != PROTECTION);
    let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let groups = of_gangs(api, "podgroup-protection/1", "PodGroup", group);
    drop(groups.patch(name(group), &PatchParams::default(), &patch).await);
}

/// Whether owners of the object are named, all of them are gone, and it is not being deleted.
fn is_garbage(object: &Value, existing: &BTreeSet<String>) -> bool {
    let metadata = &object["metadata"];
    let exists = |owner: &Value| owner["uid"].as_str().is_some_and(|uid| existing.contains(uid));
    let owners = metadata["ownerReferences"].as_array();
    let is_owned = owners.is_none_or(|owners| owners.iter().any(exists));
    !is_owned && metadata.get("deletionTimestamp").is_none()
}

fn uids(api: &ModelApi, kind: Kind, namespace: &str) -> BTreeSet<String> {
    let all = api.list(kind, namespace).into_iter();
    all.filter_map(|object| object["metadata"]["uid"].as_str().map(str::to_owned)).collect()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The objects of a kind of gang scheduling, in the namespace of this one.
fn of_gangs(api: &ModelApi, agent: &str, kind: &str, object: &Value) -> Api<DynamicObject> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    Api::namespaced_with(api.client(agent), namespace, &resource(kind))
}

/// A kind of gang scheduling.
pub(super) fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("scheduling.k8s.io", "v1beta1", kind))
}
