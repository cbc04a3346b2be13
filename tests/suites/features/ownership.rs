//! Tests which pods belong to a Job: manualSelector, adoption, release.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams, PostParams};
use lab::bed::{Bed, JobBuilder, SOON, has_finalizer, job};
use lab::{eventually, nodes::SCRIPT_ANNOTATION};
use serde_json::json;

use super::{NO_BACKOFF, bed};

fn selecting(name: &str) -> JobBuilder {
    job(name)
        .spec("manualSelector", true)
        .spec("selector", json!({"matchLabels": {"app": name}}))
        .pod_metadata("labels", json!({"app": name}))
}

/// Creates a pod without an owner that runs until it is terminated.
async fn create_pod(bed: &Bed, name: &str, app: &str) {
    let pod = json!({
        "metadata": {"name": name, "labels": {"app": app},
                     "annotations": {SCRIPT_ANNOTATION: "hang"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]},
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    bed.api::<Pod>().create(&PostParams::default(), &pod).await.expect("the pod is created");
}

/// UID of its controller, and whether it has the finalizer.
fn tie(pod: &Pod) -> (Option<&str>, bool) {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true));
    (owner.map(|owner| owner.uid.as_str()), has_finalizer(pod))
}

/// A pod that is taken from the Job by hand is replaced, and pods that come to match are claimed.
/// ([H7], [H9], [H10])
async fn others_notify_the_job(bed: &Bed, uid: &str) {
    let pods = bed.api::<Pod>();
    let taken = bed.pods_with("app=adopter").await.remove(0).metadata.name.expect("a name");
    let nobodys = json!({"labels": {"app": "other"}, "ownerReferences": null});
    let patch = Patch::Merge(json!({"metadata": nobodys}));
    pods.patch(&taken, &PatchParams::default(), &patch).await.expect("the pod is taken");
    let successors = async || bed.pods_with("app=adopter").await.len();
    eventually("another pod in its place", SOON, successors, |count| *count == 1).await;
    // One that comes to match is one too many: it is claimed, and it or another goes.
    let label = Patch::Merge(json!({"metadata": {"labels": {"app": "adopter"}}}));
    pods.patch("found", &PatchParams::default(), &label).await.expect("the label is changed");
    create_pod(bed, "late", "adopter").await;
    for name in ["found", "late"] {
        let claimed = async || {
            let pod = pods.get_opt(name).await.expect("an answer");
            pod.is_none_or(|pod| {
                tie(&pod).0 == Some(uid) || pod.metadata.deletion_timestamp.is_some()
            })
        };
        eventually(&format!("{name} is claimed"), SOON, claimed, |claimed| *claimed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manual_selector_needs_no_labels_of_the_api_server() {
    let bed = bed(&[]).await;
    bed.create(selecting("manual").spec("parallelism", 2).spec("completions", 2)).await;
    let state = bed.finished("manual", SOON).await;
    assert_eq!((state.succeeded, state.failed), (2, 0));
    let pods = bed.pods_with("app=manual").await;
    assert_eq!(pods.len(), 2);
    assert!(bed.pods("manual").await.is_empty(), "the label of generated selectors");
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_matches_is_adopted_and_one_that_stops_matching_released() {
    let bed = bed(&[NO_BACKOFF]).await;
    create_pod(&bed, "found", "adopter").await;
    // The controller watches pods and Jobs separately. Once it has counted a later pod, it has seen
    // this one.
    bed.create(job("earlier")).await;
    bed.finished("earlier", SOON).await;
    let job = bed.create(selecting("adopter").script("hang")).await;
    let uid = job.metadata.uid.as_deref();
    let pods = bed.api::<Pod>();
    let found = async || pods.get("found").await.expect("the pod");
    eventually("the pod is adopted", SOON, found, |pod| tie(pod) == (uid, true)).await;
    let state = bed.reaches("adopter", SOON, |state| state.ready == Some(1)).await;
    assert_eq!(state.active, 1);
    assert_eq!(bed.pods_with("app=adopter").await.len(), 1, "none was created alongside it");

    let label = Patch::Merge(json!({"metadata": {"labels": {"app": "other"}}}));
    pods.patch("found", &PatchParams::default(), &label).await.expect("the label is changed");
    eventually("the pod is released", SOON, found, |pod| tie(pod) == (None, false)).await;
    let successors = async || bed.pods_with("app=adopter").await.len();
    eventually("another pod in its place", SOON, successors, |count| *count == 1).await;
    let released = found().await;
    assert!(released.metadata.deletion_timestamp.is_none(), "a released pod lives on");
    assert_eq!(bed.state("adopter").await.failed, 0);
    others_notify_the_job(&bed, uid.expect("a UID")).await;
    bed.stop().await;
}
