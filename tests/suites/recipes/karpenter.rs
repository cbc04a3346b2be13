//! Karpenter removes a node under a Job: Karpenter's own code drains it.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::discovery::ApiResource;
use lab::bed::{Bed, SOON};
use lab::process::{Process, Program};
use lab::{Cluster, eventually, go_module};
use serde_json::json;

use super::autoscalers::{delete, ends_elsewhere, nodes, patch, running};
use super::{bed, node};

const FINALIZER: &str = "karpenter.sh/termination";
/// The label of the nodes that its provider for tests has.
const NODE_CLASS: &str = "karpenter.kwok.sh/kwoknodeclass";
/// Until when a node may be drained.
const TERMINATION_AT: &str = "karpenter.sh/nodeclaim-termination-timestamp";

/// Starts Karpenter's drain; dropping it ends it.
async fn start() -> Process {
    let program = go_module::program("karpenter", ".").await.expect("Karpenter's drain");
    let cluster = Cluster::of_tests("recipes").expect("the suite's cluster");
    let dir = cluster.files("karpenter");
    std::fs::create_dir_all(&dir).expect("its directory");
    let arguments: [&str; 0] = [];
    let program = Program::new("karpenter", &program, arguments, &dir.join("karpenter.log"))
        .env("KUBECONFIG", cluster.kubeconfig_path());
    Process::spawn_program(&program).expect("Karpenter's drain starts")
}

fn provider_id(node: &str) -> String {
    format!("kwok://{node}")
}

/// Makes a node one of Karpenter's.
async fn adopt(bed: &Bed, node: &str) {
    let metadata = json!({"labels": {NODE_CLASS: "default"}, "finalizers": [FINALIZER]});
    let spec = json!({"providerID": provider_id(node)});
    patch(bed, node, json!({"metadata": metadata, "spec": spec})).await;
}

/// Gives a node a NodeClaim, which says until when it may be drained.
async fn claim(bed: &Bed, node: &str, until: Timestamp) {
    let object = json!({
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {
            "name": node,
            "finalizers": [FINALIZER],
            "annotations": {TERMINATION_AT: format!("{until:.0}")},
        },
        "spec": {
            "nodeClassRef": {
                "group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default",
            },
            "requirements": [],
        },
    });
    let claim: DynamicObject = serde_json::from_value(object).expect("must be an object");
    let claims = claims(bed);
    // Karpenter's drain brings the kind itself, as it starts.
    let create = async || match claims.create(&PostParams::default(), &claim).await {
        Ok(_) => "created".to_owned(),
        Err(error) => error.to_string(),
    };
    eventually("the NodeClaim is accepted", SOON, create, |answer| answer == "created").await;
    let status = Patch::Merge(json!({"status": {"providerID": provider_id(node)}}));
    let patched = claims.patch_status(node, &PatchParams::default(), &status).await;
    patched.expect("its status is written");
}

fn claims(bed: &Bed) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "karpenter.sh".to_owned(),
        version: "v1".to_owned(),
        api_version: "karpenter.sh/v1".to_owned(),
        kind: "NodeClaim".to_owned(),
        plural: "nodeclaims".to_owned(),
    };
    Api::all_with(bed.client().clone(), &resource)
}

/// Takes Karpenter's finalizer from a NodeClaim, which all of Karpenter would do.
async fn release(bed: &Bed, node: &str) {
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let released = claims(bed).patch(node, &PatchParams::default(), &patch).await;
    released.expect("the NodeClaim is released");
}

async fn gone(bed: &Bed, node: &str) {
    let gone = async || nodes(bed).get_opt(node).await.expect("an answer").is_none();
    eventually("the node is gone", SOON, gone, |gone| *gone).await;
}

/// Karpenter, and the recipe's first pod, which runs by this script on a node of Karpenter's.
async fn on_its_node(script: &str) -> (Process, Bed, Pod) {
    let karpenter = start().await;
    let bed = bed().await;
    let pod = running(&bed, script).await;
    adopt(&bed, node(&pod)).await;
    (karpenter, bed, pod)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_karpenter_drains_costs_no_try() {
    let (karpenter, bed, pod) = on_its_node("hang").await;
    // Karpenter's finalizer holds the Node; its deletion begins the drain.
    delete(&bed, node(&pod)).await;
    ends_elsewhere(&bed, &pod).await;
    gone(&bed, node(&pod)).await;
    karpenter.stop(SOON).await;
    bed.stop().await;
}

/// A node whose time is nearly up: Karpenter deletes its pods, with what is left of it as their
/// grace, and evicts them all the same. The API then sets DisruptionTarget on a pod that terminates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_karpenter_deletes_by_force_costs_no_try() {
    let (karpenter, bed, pod) = on_its_node("on-term=143 after=4s").await;
    claim(&bed, node(&pod), Timestamp::now() + SignedDuration::from_secs(30)).await;
    delete(&bed, node(&pod)).await;
    let deleted = async || bed.pods("autoscaled").await;
    let shortened = |pods: &Vec<Pod>| {
        pods.iter().any(|pod| pod.metadata.deletion_grace_period_seconds.is_some_and(|it| it < 60))
    };
    eventually("its grace is what is left", SOON, deleted, shortened).await;
    ends_elsewhere(&bed, &pod).await;
    gone(&bed, node(&pod)).await;
    release(&bed, node(&pod)).await;
    karpenter.stop(SOON).await;
    bed.stop().await;
}
