//! Tests what follows while admission of others refuses a deletion of pods, or the removal of their
//! finalizer, and pods end or turn meanwhile. The test writes the pods' status.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams};
use lab::bed::{Bed, JobBuilder, SOON, has_finalizer, is_active, job};
use lab::{eventually, install};
use serde_json::{Value, json};

use super::bed;

/// A policy that refuses one verb on pods with the label `hold`, whoever asks.
struct Hold<'a> {
    bed: &'a Bed,
    objects: [Value; 2],
}

impl<'a> Hold<'a> {
    /// Installs it, and waits until it refuses what is done to this pod.
    async fn start(bed: &'a Bed, verb: &str, pod: &str) -> Self {
        let api_version = "admissionregistration.k8s.io/v1";
        let metadata = json!({"name": format!("hold-{}", bed.namespace())});
        let namespace = json!({"matchLabels": {"kubernetes.io/metadata.name": bed.namespace()}});
        let policy = json!({
            "apiVersion": api_version, "kind": "ValidatingAdmissionPolicy", "metadata": metadata,
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "namespaceSelector": namespace,
                    "objectSelector": {"matchLabels": {"hold": "yes"}},
                    "resourceRules": [{
                        "apiGroups": [""], "apiVersions": ["v1"], "operations": [verb],
                        "resources": ["pods"],
                    }],
                },
                "validations": [{"expression": "false", "message": "held by a test",
                                 "reason": "Forbidden"}],
            },
        });
        let binding = json!({
            "apiVersion": api_version, "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": {"policyName": metadata["name"], "validationActions": ["Deny"]},
        });
        let hold = Self { bed, objects: [binding, policy] };
        for object in hold.objects.iter().rev() {
            install::apply_object(bed.client(), object).await.expect("the policy is installed");
        }
        let refused = async || hold.refuses(verb, pod).await;
        eventually("the policy is in use", SOON, refused, |refused| *refused).await;
        hold
    }

    async fn refuses(&self, verb: &str, pod: &str) -> bool {
        let pods = self.bed.api::<Pod>();
        if verb == "DELETE" {
            let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
            return pods.delete(pod, &dry_run).await.is_err();
        }
        let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"example.com/a": "b"}}}));
        pods.patch(pod, &dry_run, &patch).await.is_err()
    }

    async fn end(self) {
        for object in &self.objects {
            install::delete_object(self.bed.client(), object).await.expect("the policy goes");
        }
    }
}

/// A Job whose pods no scheduler binds, so that only the test writes their status.
fn by_hand(name: &str) -> JobBuilder {
    job(name)
        .pod_metadata("labels", json!({"hold": "yes"}))
        .pod("schedulingGates", json!([{"name": "example.com/by-hand"}]))
        .spec("backoffLimit", 0)
}

async fn set_status(bed: &Bed, pod: &str, status: Value) {
    let patch = Patch::Merge(json!({"status": status}));
    let pods = bed.api::<Pod>();
    pods.patch_status(pod, &PatchParams::default(), &patch).await.expect("the pod's status");
}

/// The names of a Job's pods once there are so many, in the order of their indexes.
async fn pods_of(bed: &Bed, job: &str, count: usize) -> Vec<String> {
    let index = |pod: &Pod| {
        let annotations = pod.metadata.annotations.clone().unwrap_or_default();
        annotations.get("batch.kubernetes.io/job-completion-index").cloned()
    };
    let see = |pods: &[Pod]| {
        let active = pods.iter().filter(|pod| is_active(pod));
        let mut names: Vec<_> =
            active.map(|pod| (index(pod), pod.metadata.name.clone().unwrap_or_default())).collect();
        names.sort();
        names.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
    };
    bed.pods_reach(job, see, |names: &Vec<String>| names.len() == count).await
}

async fn is_released(bed: &Bed, pod: &str) {
    let held = async || has_finalizer(&bed.api::<Pod>().get(pod).await.expect("the pod"));
    eventually("the finalizer goes", SOON, held, |held| !held).await;
}

const FAST: [&str; 2] = ["--default-job-api-backoff=200ms", "--max-job-api-backoff=1s"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_ends_while_its_deletion_is_refused_is_counted() {
    for is_suspended in [true, false] {
        let bed = bed(&FAST).await;
        bed.create(by_hand("ends").spec("completions", 2)).await;
        let pod = pods_of(&bed, "ends", 1).await.remove(0);
        set_status(&bed, &pod, json!({"phase": "Running"})).await;
        let hold = Hold::start(&bed, "DELETE", &pod).await;
        if is_suspended {
            bed.change("ends", json!({"suspend": true})).await;
        } else {
            bed.change("ends", json!({"parallelism": 0})).await;
        }
        // As excess, it has the finalizer again for a moment before each attempt.
        is_released(&bed, &pod).await;
        set_status(&bed, &pod, json!({"phase": "Succeeded"})).await;
        let state = bed.reaches("ends", SOON, |state| state.succeeded == 1).await;
        assert_eq!(state.failed, 0, "{state:?}");
        hold.end().await;
        bed.no_pod_has_the_finalizer("ends", SOON).await;
        assert_eq!(bed.state("ends").await.succeeded, 1);
        bed.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_succeeded_and_turns_failed_before_its_release_has_succeeded() {
    for (indexed, restarts) in [(false, false), (true, false), (true, true)] {
        let mut bed = bed(&FAST).await;
        let two = by_hand("flip").indexed(2);
        bed.create(if indexed { two } else { two.spec("completionMode", "NonIndexed") }).await;
        let pods = pods_of(&bed, "flip", 2).await;
        for pod in &pods {
            set_status(&bed, pod, json!({"phase": "Running"})).await;
        }
        let hold = Hold::start(&bed, "UPDATE", &pods[0]).await;
        set_status(&bed, &pods[0], json!({"phase": "Succeeded"})).await;
        let listed = async || {
            let status = bed.job("flip").await.status.unwrap_or_default();
            let lists = status.uncounted_terminated_pods.and_then(|lists| lists.succeeded);
            (status.completed_indexes, lists)
        };
        let is_counted = |(indexes, list): &(Option<String>, Option<Vec<String>>)| {
            indexes.as_deref() == Some("0") || list.as_ref().is_some_and(|list| list.len() == 1)
        };
        eventually("the success is stored", SOON, listed, is_counted).await;
        let refused = json!({"phase": "Failed", "reason": "UnexpectedAdmissionError",
            "message": "Allocate failed", "containerStatuses": null, "conditions": null});
        set_status(&bed, &pods[0], refused).await;
        let objects = hold.objects.clone();
        if restarts {
            bed.kill_and_restart().await;
        }
        Hold { bed: &bed, objects }.end().await;
        is_released(&bed, &pods[0]).await;
        set_status(&bed, &pods[1], json!({"phase": "Succeeded"})).await;
        let state = bed.finished("flip", SOON).await;
        assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"], "{indexed} {restarts}");
        assert_eq!((state.succeeded, state.failed), (2, 0), "{indexed} {restarts}");
        bed.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_job_cannot_move_before_its_pods_are_gone() {
    let bed = bed(&FAST).await;
    let two = by_hand("move").spec("parallelism", 2).spec("completions", 2);
    bed.create(two.pod("nodeSelector", json!({"pool": "a"}))).await;
    let pods = pods_of(&bed, "move", 2).await;
    bed.reaches("move", SOON, |state| state.started).await;
    let hold = Hold::start(&bed, "DELETE", &pods[0]).await;
    bed.change("move", json!({"suspend": true})).await;
    let state = bed.reaches("move", SOON, |state| state.conditions == ["Suspended"]).await;
    assert_eq!((state.active, state.started), (2, true), "{state:?}");
    let moved = json!({"spec": {"suspend": false,
        "template": {"spec": {"nodeSelector": {"pool": "b"}}}}});
    let jobs = bed.api::<Job>();
    let moves = async || {
        let patch = Patch::Merge(moved.clone());
        jobs.patch("move", &PatchParams::default(), &patch).await.map_err(|it| it.to_string())
    };
    let refusal = moves().await.expect_err("its pods are still there");
    assert!(refusal.contains("immutable"), "{refusal}");
    hold.end().await;
    let state = bed.reaches("move", SOON, |state| !state.started).await;
    assert_eq!((state.active, state.conditions.as_slice()), (0, &["Suspended".to_owned()][..]));
    moves().await.expect("its pods are gone");
    pods_of(&bed, "move", 2).await;
    let selected = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_selector.clone());
    for pod in bed.pods("move").await.iter().filter(|pod| is_active(pod)) {
        assert_eq!(selected(pod).unwrap_or_default().get("pool").map(String::as_str), Some("b"));
    }
    bed.stop().await;
}
