//! Tests refusals on the real API: of one pod by admission, and of everything by RBAC that comes
//! late. ([AP14])

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use lab::agent::{Setup, Site};
use lab::install::{AGENT, AGENTS_NAMESPACE};
use serde_json::json;

use super::cluster;

const PODS: usize = 30;

/// Protects the pods for which the expression is false from deletion, and from changes by an agent;
/// returns the policy's name.
async fn protect(client: &kube::Client, namespace: &str, allowed: &str) -> String {
    let name = format!("protect-{namespace}");
    let agent = format!("system:serviceaccount:{AGENTS_NAMESPACE}:{AGENT}");
    let policy = json!({
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                    "operations": ["DELETE", "UPDATE"], "resources": ["pods", "pods/status"]}],
            },
            "matchConditions": [{"name": "whose", "expression":
                format!("request.operation == 'DELETE' || request.userInfo.username == '{agent}'")}],
            "validations": [{"expression": allowed,
                "message": "this pod is protected", "reason": "Forbidden"}],
        },
    });
    let policy = serde_json::from_value(policy).expect("must be a policy");
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    policies.create(&PostParams::default(), &policy).await.expect("the policy");
    let binding = json!({
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    let binding = serde_json::from_value(binding).expect("must be a binding");
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    bindings.create(&PostParams::default(), &binding).await.expect("the binding");
    name
}

async fn unprotect(client: &kube::Client, name: &str) {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    bindings.delete(name, &DeleteParams::default()).await.expect("the binding goes");
    policies.delete(name, &DeleteParams::default()).await.expect("the policy goes");
}

/// Waits until the policy works: the server then refuses.
async fn is_protected(client: &kube::Client, namespace: &str, pod: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let dry = DeleteParams { dry_run: true, ..DeleteParams::default() };
    let see = async || match pods.delete(pod, &dry).await {
        Err(kube::Error::Api(status)) => status.code,
        _ => 0,
    };
    lab::eventually("the pod is protected", super::SOON, see, |code| *code == 403).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_protected_pod_leaves_the_others_to_be_reported() {
    let site = Site::start(&cluster(), Setup { pods: PODS, ..Setup::default() }).await;
    let (client, namespace) = (site.client(), site.namespace().to_owned());
    let others = "request.operation != 'DELETE' || oldObject.metadata.name != 'work-007'";
    let policy = protect(&client, &namespace, others).await;
    is_protected(&client, &namespace, "work-007").await;
    site.shut_down().await;
    site.released().await;
    let ends = site.until("the others have ended", |ends| ends.ended == PODS - 1).await;
    unprotect(&client, &policy).await;
    assert_eq!(ends.ended_unmarked, 0);
    assert_eq!(ends.disrupted, PODS);
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_that_refuses_all_for_three_seconds_costs_no_pod() {
    let site = Site::start(&cluster(), Setup { pods: PODS, ..Setup::default() }).await;
    let (client, namespace) = (site.client(), site.namespace().to_owned());
    let policy = protect(&client, &namespace, "false").await;
    is_protected(&client, &namespace, "work-000").await;
    site.shut_down().await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let ends = site.record.ends();
    assert_eq!((ends.disrupted, ends.deleted), (0, 0), "nothing was let through");
    unprotect(&client, &policy).await;
    site.released().await;
    let ends = site.until("all have ended", |ends| ends.ended == PODS).await;
    assert_eq!((ends.ended_unmarked, ends.disrupted), (0, PODS));
    site.stop().await;
}
