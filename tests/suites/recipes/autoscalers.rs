//! cluster-autoscaler removes a node under a Job. A double makes its calls: taint, eviction, deletion
//! of the Node.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use lab::bed::{Bed, SOON, is_terminating};
use serde_json::{Value, json};

use super::{bed, ending, evict, job, name, node};

const CLUSTER_AUTOSCALER: &str = "ToBeDeletedByClusterAutoscaler";

pub(super) fn nodes(bed: &Bed) -> Api<Node> {
    Api::all(bed.client().clone())
}

pub(super) async fn patch(bed: &Bed, node: &str, patch: Value) {
    let patch = Patch::Merge(patch);
    nodes(bed).patch(node, &PatchParams::default(), &patch).await.expect("the node is changed");
}

async fn taint(bed: &Bed, node: &str, key: &str) {
    let taint = json!({"key": key, "effect": "NoSchedule"});
    patch(bed, node, json!({"spec": {"taints": [taint]}})).await;
}

pub(super) async fn delete(bed: &Bed, node: &str) {
    nodes(bed).delete(node, &DeleteParams::default()).await.expect("the node is deleted");
}

/// The Job's only pod, once it is ready. The pods after it succeed.
pub(super) async fn running(bed: &Bed, first: &str) -> Pod {
    bed.create(job("autoscaled-job").script(&format!("{first} times=1; succeed"))).await;
    bed.reaches("autoscaled", SOON, |state| state.ready == Some(1)).await;
    let mut pods = bed.pods("autoscaled").await;
    assert_eq!(pods.len(), 1);
    pods.remove(0)
}

/// The Job is complete, on another node, and the loss of the first cost no try.
pub(super) async fn ends_elsewhere(bed: &Bed, first: &Pod) {
    let state = bed.finished("autoscaled", SOON).await;
    assert_eq!(ending(&state), (Some("Complete"), 1, 0));
    let conditions = bed.conditions("autoscaled").await;
    let ignored = |line: &String| line.starts_with("epilogue.dev/DisruptionsIgnored=True");
    assert!(conditions.iter().any(ignored), "{conditions:?}");
    let pods = bed.pods("autoscaled").await;
    let second = pods.iter().find(|pod| name(pod) != name(first)).expect("a second pod");
    assert_ne!(node(second), node(first));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_cluster_autoscaler_removes_costs_no_try() {
    let bed = bed().await;
    let pod = running(&bed, "hang").await;
    taint(&bed, node(&pod), CLUSTER_AUTOSCALER).await;
    evict(&bed, name(&pod)).await;
    ends_elsewhere(&bed, &pod).await;
    delete(&bed, node(&pod)).await;
    bed.stop().await;
}

/// The machine goes while the pod terminates. No kubelet reports the pod any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_goes_too_early_is_proof_once_its_node_is_gone() {
    let bed = bed().await;
    let pod = running(&bed, "hang").await;
    bed.nodes().vanish(node(&pod)).await.expect("the machine goes");
    taint(&bed, node(&pod), CLUSTER_AUTOSCALER).await;
    evict(&bed, name(&pod)).await;
    bed.reaches("autoscaled", SOON, |state| state.terminating == Some(1)).await;
    let pods = bed.pods("autoscaled").await;
    assert!(pods.len() == 1 && is_terminating(&pods[0]), "no second pod before the proof");
    delete(&bed, node(&pod)).await;
    let state = bed.finished("autoscaled", SOON).await;
    assert_eq!(ending(&state), (Some("Complete"), 1, 0));
    bed.stop().await;
}

/// What resists for too long is deleted by a plain deletion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_cluster_autoscaler_deletes_by_force_counts() {
    let bed = bed().await;
    let pod = running(&bed, "hang").await;
    taint(&bed, node(&pod), CLUSTER_AUTOSCALER).await;
    bed.delete_pod(name(&pod)).await;
    let state = bed.finished("autoscaled", SOON).await;
    assert_eq!(ending(&state), (Some("Failed"), 0, 1));
    bed.stop().await;
}
