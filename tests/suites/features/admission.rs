//! Tests that the admission of others stops no Job: what it adds to the controller's writes passes,
//! and what it refuses is reported.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use lab::bed::{Bed, SOON, has_finalizer, job};
use lab::kubernetes::Feature;
use lab::{eventually, install};
use serde_json::{Value, json};

use super::bed;

const SEEN: &str = "audit.example.com/seen";

/// A policy of others on these resources of the bed's namespace, and its binding.
fn policy(bed: &Bed, kind: &str, resources: &Value, rules: &Value) -> [Value; 2] {
    let metadata = json!({"name": format!("others-{}", bed.namespace())});
    let api = "admissionregistration.k8s.io/v1";
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": bed.namespace()}});
    let mut spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": selector,
            "resourceRules": [{
                "apiGroups": ["", "batch"], "apiVersions": ["v1"], "operations": ["UPDATE"],
                "resources": resources,
            }],
        },
    });
    for (field, value) in rules.as_object().expect("fields of the spec") {
        spec[field] = value.clone();
    }
    let mut bound = json!({"policyName": metadata["name"]});
    if kind == "ValidatingAdmissionPolicy" {
        bound["validationActions"] = json!(["Deny"]);
    }
    let policy = json!({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec});
    let binding = json!({
        "apiVersion": api, "kind": format!("{kind}Binding"), "metadata": metadata, "spec": bound,
    });
    [policy, binding]
}

async fn applied(bed: &Bed, objects: &[Value]) {
    for object in objects {
        install::apply_object(bed.client(), object).await.expect("the policy is installed");
    }
}

async fn removed(bed: &Bed, objects: &[Value]) {
    for object in objects.iter().rev() {
        install::delete_object(bed.client(), object).await.expect("the policy goes");
    }
}

/// Adds a label and an annotation to each pod that is changed.
async fn labels_pods(bed: &Bed) -> [Value; 2] {
    let added = format!(
        "Object{{metadata: Object.metadata{{labels: {{'{SEEN}': 'yes'}}, \
         annotations: {{'{SEEN}': 'yes'}}}}}}"
    );
    let rules = json!({
        "reinvocationPolicy": "Never",
        "mutations": [{
            "patchType": "ApplyConfiguration", "applyConfiguration": {"expression": added},
        }],
    });
    let objects = policy(bed, "MutatingAdmissionPolicy", &json!(["pods"]), &rules);
    applied(bed, &objects).await;
    let pods = bed.api::<Pod>();
    create_pod(bed, "asked", "asked").await;
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let label = Patch::Merge(json!({"metadata": {"labels": {"probe": "1"}}}));
    let adds = async || {
        let pod = pods.patch("asked", &dry_run, &label).await.expect("an answer");
        pod.metadata.labels.is_some_and(|labels| labels.contains_key(SEEN))
    };
    eventually("the policy is in use", SOON, adds, |adds| *adds).await;
    objects
}

/// A pod without an owner that a Job with this label selects.
async fn create_pod(bed: &Bed, name: &str, app: &str) {
    let pod = json!({
        "metadata": {"name": name, "labels": {"app": app}},
        "spec": {"restartPolicy": "Never", "automountServiceAccountToken": false,
                 "containers": [{"name": "main", "image": "none"}]},
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    bed.api::<Pod>().create(&PostParams::default(), &pod).await.expect("the pod is created");
}

/// A Job whose pods have this label, and no others.
fn selecting(name: &str) -> lab::bed::JobBuilder {
    job(name)
        .spec("manualSelector", true)
        .spec("selector", json!({"matchLabels": {"app": name}}))
        .pod_metadata("labels", json!({"app": name}))
}

fn is_seen(pod: &Pod) -> bool {
    pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(SEEN))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_add_to_changed_pods_stops_no_job() {
    if Feature::MutatingPolicies.is_missing() {
        return;
    }
    let bed = bed(&[]).await;
    for name in ["suspended", "deleted"] {
        bed.create(job(name).script("hang")).await;
        bed.reaches(name, SOON, |state| state.ready == Some(1)).await;
    }
    let policy = labels_pods(&bed).await;
    // The release.
    bed.create(job("stamp").spec("backoffLimit", 0)).await;
    let state = bed.finished("stamp", SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 0));
    bed.pods_are_released("stamp", 1).await;
    assert!(bed.pods("stamp").await.iter().all(is_seen));
    // The strip, before a deletion.
    bed.change("suspended", json!({"suspend": true})).await;
    bed.reaches("suspended", SOON, |state| state.active == 0).await;
    bed.no_pod_has_the_finalizer("suspended", SOON).await;
    // The pods of a Job that is gone.
    bed.delete("deleted", DeleteParams::background()).await;
    bed.no_pod_has_the_finalizer("deleted", SOON).await;
    // The claim.
    create_pod(&bed, "stray", "adopts").await;
    bed.create(selecting("adopts")).await;
    let state = bed.finished("adopts", SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 0));
    let stray = bed.api::<Pod>().get("stray").await.expect("the pod");
    assert!(is_seen(&stray) && stray.metadata.owner_references.is_some());
    assert!(!has_finalizer(&stray));
    removed(&bed, &policy).await;
    bed.stop().await;
}

/// Refuses the controller's changes of pods.
async fn holds_pods(bed: &Bed) -> [Value; 2] {
    let rules = json!({
        "matchConditions": [{
            "name": "of-the-controller",
            "expression":
                "request.userInfo.username.startsWith('system:serviceaccount:epilogue-system')",
        }],
        "validations": [{
            "expression": "false", "reason": "Forbidden",
            "message": "allowPrivilegeEscalation must be false",
        }],
    });
    let objects = policy(bed, "ValidatingAdmissionPolicy", &json!(["pods"]), &rules);
    applied(bed, &objects).await;
    objects
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_release_is_reported_and_goes_on_once_it_is_allowed() {
    const WORDS: &str = "allowPrivilegeEscalation must be false";
    let bed = bed(&["--default-job-api-backoff=200ms", "--max-job-api-backoff=1s"]).await;
    // The API server takes a moment to apply a new policy: the first Jobs may be released before.
    let policy = holds_pods(&bed).await;
    let mut held = None;
    for number in 0..30 {
        let name = format!("audited-{number}");
        bed.create(job(&name)).await;
        let seen = async || {
            let reported =
                bed.events(&name).await.iter().any(|it| it.starts_with("FailedRelease: "));
            (reported, bed.state(&name).await.is_finished())
        };
        let (reported, _) =
            eventually("it is reported, or ends", SOON, seen, |(reported, ended)| {
                *reported || *ended
            })
            .await;
        if reported {
            held = Some(name);
            break;
        }
    }
    let held = held.expect("the policy is in use");
    let event = bed.events_say(&held, "FailedRelease: ").await;
    assert!(event.contains(WORDS), "{event}");
    let explanation = super::refusals::explained(&bed, &held).await;
    assert!(explanation.contains(WORDS), "{explanation}");
    assert!(explanation.contains("[finalizer-not-removed]"), "{explanation}");
    assert!(!bed.state(&held).await.is_finished());
    // The events of a Job that is gone are not read.
    bed.create(job("gone")).await;
    bed.events_say("gone", "FailedRelease: ").await;
    let pods = bed.pods("gone").await;
    let name = pods[0].metadata.name.clone().expect("a name");
    bed.delete("gone", DeleteParams::background()).await;
    let event = bed.events_say(&name, "FailedRelease: ").await;
    assert!(event.contains(WORDS), "{event}");
    removed(&bed, &policy).await;
    let state = bed.finished(&held, SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 0));
    bed.no_pod_has_the_finalizer("gone", SOON).await;
    bed.stop().await;
}

/// Its own pod does the work meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_goes_on_without_a_pod_that_it_may_not_adopt() {
    const WORDS: &str = "the pod stays alone";
    let bed = bed(&["--default-job-api-backoff=200ms", "--max-job-api-backoff=1s"]).await;
    create_pod(&bed, "stray", "refused").await;
    let rules = json!({"validations": [{
        "expression": "object.metadata.name != 'stray' || !has(object.metadata.ownerReferences)",
        "reason": "Forbidden", "message": WORDS,
    }]});
    let objects = policy(&bed, "ValidatingAdmissionPolicy", &json!(["pods"]), &rules);
    applied(&bed, &objects).await;
    let pods = bed.api::<Pod>();
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "a"});
    let probe = Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}));
    let refuses = async || pods.patch("stray", &dry_run, &probe).await.is_err();
    eventually("the policy is in use", SOON, refuses, |refuses| *refuses).await;

    bed.create(selecting("refused").spec("completions", 2).script("succeed")).await;
    let event = bed.events_say("refused", "FailedAdoption: ").await;
    assert!(event.contains(WORDS), "{event}");
    let state = bed.finished("refused", SOON).await;
    assert_eq!((state.succeeded, state.failed), (2, 0));
    let stray = pods.get("stray").await.expect("the pod");
    assert!(stray.metadata.owner_references.is_none() && !has_finalizer(&stray));
    let explanation = super::refusals::explained(&bed, "refused").await;
    assert!(explanation.contains(WORDS), "{explanation}");
    removed(&bed, &objects).await;
    bed.stop().await;
}

/// Mutating admission sees a status as it is sent, before the API server gives it the spec.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_on_the_status_may_read_the_spec() {
    if Feature::MutatingPolicies.is_missing() {
        return;
    }
    let bed = bed(&[]).await;
    let added = format!(
        "Object{{metadata: Object.metadata{{annotations: {{'{SEEN}': \
         object.spec.template.spec.containers[0].image}}}}}}"
    );
    let rules = json!({
        "reinvocationPolicy": "Never",
        "mutations": [{
            "patchType": "ApplyConfiguration", "applyConfiguration": {"expression": added},
        }],
    });
    let objects = policy(&bed, "MutatingAdmissionPolicy", &json!(["jobs/status"]), &rules);
    applied(&bed, &objects).await;
    bed.create(job("asked").spec("managedBy", "example.com/x")).await;
    let jobs = bed.api::<k8s_openapi::api::batch::v1::Job>();
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let probe = Patch::Merge(json!({"status": {"ready": 0}}));
    let adds = async || {
        let job = jobs.patch_status("asked", &dry_run, &probe).await.expect("an answer");
        job.metadata.annotations.is_some_and(|annotations| annotations.contains_key(SEEN))
    };
    eventually("the policy is in use", SOON, adds, |adds| *adds).await;
    let mut bare = bed.job("asked").await;
    bare.spec = None;
    let refused = jobs.replace_status("asked", &PostParams::default(), &bare).await;
    let refused = refused.expect_err("a status without the spec is refused").to_string();
    assert!(refused.contains("spec"), "{refused}");
    bed.create(job("reads").spec("completions", 2).script("succeed")).await;
    let state = bed.finished("reads", SOON).await;
    assert_eq!((state.succeeded, state.failed), (2, 0));
    assert!(!bed.log().contains("sync failed"), "{}", bed.log());
    let seen = bed.job("reads").await.metadata.annotations.expect("annotations");
    assert!(seen.contains_key(SEEN), "{seen:?}");
    removed(&bed, &objects).await;
    bed.stop().await;
}
