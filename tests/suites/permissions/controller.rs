//! Tests the rights of the controller's token on pods: create, count and own those of Jobs, and
//! fail those that no kubelet terminates. Every other suite shows that the API allows its work.

use serde_json::{Value, json};

use super::allowed::goes;
use super::call::Call;
use super::refused::{all_are_refused, forbidden, invalid, status};
use super::world::{Token, World, ended, node_path, pod_path, running};

const TRACKING: &str = "batch.kubernetes.io/job-tracking";

fn owner(kind: &str, api_version: &str) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind, "name": "j", "uid": "u", "controller": true,
    })
}

#[tokio::test]
async fn the_controllers_writes_to_pods_are_allowed() {
    let world = World::start(Token::OfNode).await.of_the_controller().await;
    writes_to_pods(&world).await;
    world.finish().await;
}

/// All that the controller writes to a pod; returns the pod as it was last seen.
pub(super) async fn writes_to_pods(world: &World) -> Value {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "of-a-job", "ownerReferences": [owner("Job", "batch/v1")],
                     "finalizers": [TRACKING, "example.com/theirs"]},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    let pod = goes(world, "create a Job's pod", Call::create(world.path("pods"), pod)).await;
    let path = pod_path(&pod);
    let uid = &pod["metadata"]["uid"];
    let disown = json!({"metadata": {"uid": uid, "ownerReferences": [
        {"$patch": "delete", "uid": "u"},
    ]}});
    goes(world, "let it go", Call::patch(&path, disown)).await;
    let adopt = json!({"metadata": {"uid": uid, "ownerReferences": [owner("Job", "batch/v1")]}});
    goes(world, "adopt it", Call::patch(&path, adopt)).await;
    let ended = json!({"status": {"phase": "Failed", "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"},
        {"type": "epilogue.dev/Ended", "status": "True", "reason": "NodeGone"},
    ]}});
    goes(world, "fail it", Call::patch(format!("{path}/status"), ended)).await;
    let release = json!({"metadata": {"uid": uid,
        "$deleteFromPrimitiveList/finalizers": [TRACKING]}});
    let last = goes(world, "release its finalizer", Call::patch(&path, release)).await;
    let options = json!({"preconditions": {"uid": uid}});
    goes(world, "delete it by its UID", Call::delete(&path, options)).await;
    world.done(Call::merge(&path, json!({"metadata": {"finalizers": null}}))).await;
    last
}

#[tokio::test]
async fn the_controller_makes_the_pods_of_jobs_and_no_others() {
    let world = World::start(Token::OfNode).await.of_the_controller().await;
    let make = |metadata: Value| {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        Call::create(world.path("pods"), pod)
    };
    let job = || json!([owner("Job", "batch/v1")]);
    let refusals = vec![
        invalid("a bare pod", make(json!({"name": "bare"})), "creates the pods of Jobs"),
        invalid(
            "a ReplicaSet's",
            make(json!({"name": "a", "ownerReferences": [owner("ReplicaSet", "apps/v1")],
                        "finalizers": [TRACKING]})),
            "creates the pods of Jobs",
        ),
        invalid(
            "one that no Job would count",
            make(json!({"name": "a", "ownerReferences": job()})),
            "metadata.finalizers",
        ),
    ];
    all_are_refused(&world, refusals).await;
    let pod = json!({"name": "of-a-job", "ownerReferences": job(), "finalizers": [TRACKING]});
    let made = make(pod).dry().send(&world.agent).await;
    assert!(made.is_success(), "{}", made.message);
    world.finish().await;
}

#[tokio::test]
async fn of_a_pod_the_controller_changes_finalizer_and_owner_only() {
    let world = World::start(Token::OfNode).await.of_the_controller().await;
    let tracked = json!({"metadata": {"finalizers": [TRACKING, "example.com/theirs"]}});
    let pod = world.pod("pod", &world.here(), tracked, running()).await;
    let metadata = |metadata: Value| Call::merge(pod_path(&pod), json!({"metadata": metadata}));
    let image = json!({"spec": {"containers": [{"name": "main", "image": "other"}]}});
    let label = |key: &str| json!({"labels": {key: "1"}});
    let refusals = vec![
        invalid("an image", Call::patch(pod_path(&pod), image), "a pod's spec"),
        invalid("a label", metadata(json!({"labels": {"app": "b"}})), "labels: the controller"),
        invalid("no labels", metadata(json!({"labels": null})), "change app"),
        invalid(
            "an annotation",
            metadata(json!({"annotations": {"theirs": "2"}})),
            "change theirs",
        ),
        invalid("no annotations", metadata(json!({"annotations": null})), "change theirs"),
        invalid("whose pod it is", metadata(label("job-name")), "change job-name"),
        invalid(
            "which index it has",
            metadata(label("batch.kubernetes.io/job-completion-index")),
            "change batch.kubernetes.io/job-completion-index",
        ),
        invalid(
            "a wish of its Job's",
            metadata(json!({"annotations": {"epilogue.dev/backoff-base": "0s"}})),
            "change epilogue.dev/backoff-base",
        ),
        invalid("another's finalizer", metadata(json!({"finalizers": [TRACKING]})), "no other"),
        invalid(
            "another owner",
            metadata(json!({"ownerReferences": [owner("ReplicaSet", "apps/v1")]})),
            "Jobs, and no others",
        ),
        invalid("whatever has the name", Call::delete(pod_path(&pod), json!({})), "by its UID"),
        forbidden("a secret", Call::get(world.path("secrets")), "cannot"),
    ];
    all_are_refused(&world, refusals).await;
    world.done(metadata(json!({"finalizers": null}))).await;
    world.finish().await;
}

#[tokio::test]
async fn of_a_node_the_controller_removes_the_agents_taint_and_changes_nothing_else() {
    let world = World::start(Token::OfNode).await.of_the_controller().await;
    let path = node_path(&world.here());
    let foreign = json!({"key": "foreign", "effect": "NoSchedule"});
    let ours = json!({"key": "epilogue.dev/shutting-down", "effect": "NoSchedule"});
    let tainted = json!({"spec": {"taints": [foreign, ours]}});
    world.done(Call::merge(&path, tainted)).await;
    let spec = |spec: Value| Call::merge(&path, json!({"spec": spec}));
    let metadata = |metadata: Value| Call::merge(&path, json!({"metadata": metadata}));
    let status = json!({"status": {"capacity": {"cpu": "1000"}}});
    let refusals = vec![
        invalid("another's taint", spec(json!({"taints": [ours]})), "nothing else"),
        invalid("all taints", spec(json!({"taints": []})), "nothing else"),
        invalid(
            "a new taint",
            spec(json!({"taints": [foreign, {"key": "a", "effect": "NoSchedule"}]})),
            "nothing else",
        ),
        invalid(
            "a cordon",
            spec(json!({"taints": [foreign], "unschedulable": true})),
            "unschedulable",
        ),
        invalid("a node's label", metadata(json!({"labels": {"zone": "b"}})), "change zone"),
        invalid(
            "what only kubelets say",
            metadata(json!({"labels": {"node-role.kubernetes.io/master": ""}})),
            "change node-role.kubernetes.io/master",
        ),
        invalid(
            "an agent's annotation",
            metadata(json!({"annotations": {"epilogue.dev/state": "idle"}})),
            "change epilogue.dev/state",
        ),
        forbidden("a node's status", Call::merge(format!("{path}/status"), status), "cannot"),
        forbidden("a node", Call::delete(&path, json!({})), "cannot"),
    ];
    all_are_refused(&world, refusals).await;
    goes(&world, "take the taint away", spec(json!({"taints": [foreign]}))).await;
    world.finish().await;
}

#[tokio::test]
async fn of_a_status_the_controller_writes_the_failure_and_its_evidence() {
    let world = World::start(Token::OfNode).await.of_the_controller().await;
    let here = world.here();
    let gate = json!({"spec": {"readinessGates": [{"conditionType": "example.com/open"}]}});
    let pod = world.pod("pod", &here, gate, running()).await;
    let done = world.pod("done", &here, json!({}), ended("Succeeded")).await;
    let write = |body: Value| status(&pod, json!({"status": body}));
    let condition = |kind: &str, value: &str| {
        write(json!({"conditions": [{"type": kind, "status": value, "reason": "R"}]}))
    };
    let mut statuses = pod["status"]["containerStatuses"].clone();
    statuses[0]["restartCount"] = 7.into();
    let label = json!({"metadata": {"labels": {"app": "b"}}});
    let finalizer = json!({"metadata": {"finalizers": ["a/b"]}});
    let refusals = vec![
        invalid("success", write(json!({"phase": "Succeeded"})), "to Failed only"),
        invalid(
            "a failure of what succeeded",
            status(&done, json!({"status": {"phase": "Failed"}})),
            "has not ended",
        ),
        invalid("a reason alone", write(json!({"reason": "R"})), "with the phase"),
        invalid(
            "statuses of containers",
            write(json!({"containerStatuses": statuses})),
            "change containerStatuses",
        ),
        invalid("a foreign condition", condition("PodScheduled", "False"), "no others"),
        invalid("Ready, of a pod that lives", condition("Ready", "False"), "to False only"),
        invalid("a readiness gate", condition("example.com/open", "True"), "no others"),
        invalid("a label", status(&pod, label), "labels: the controller"),
        invalid("a finalizer", status(&pod, finalizer), "finalizers by the status"),
    ];
    all_are_refused(&world, refusals).await;
    world.finish().await;
}
