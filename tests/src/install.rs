//! Applies the manifests of `deploy/` to a cluster, as a user would. So our programs run in the
//! laboratory with exactly their installed rights.

use std::time::Duration;

use epilogue_deploy::{gang_scheduling, manifests, objects, observers};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use serde_json::{Value, json};

use crate::error::LabError;
use crate::eventually::{eventually, observe_until};
use crate::nodes::objects::create_lease_namespace;
use crate::paths::workspace_root;

/// The namespace of the installation.
pub const NAMESPACE: &str = "epilogue-system";
/// The service account of the controller in it.
pub const CONTROLLER: &str = "epilogue-controller";
/// The namespace of the agents.
pub const AGENTS_NAMESPACE: &str = "epilogue-agents";
/// The service account of the agents in it.
pub const AGENT: &str = "epilogue-agent";
/// What the name of an account that only observes has after that of one that acts.
pub const OBSERVER: &str = "-observer";

/// The controller's Role for its lease, and the binding of it.
const LEASE_ROLE: &str = "epilogue-controller-lease";
/// The policy of deploy/policy/agent that is bound last.
const LAST_POLICY: &str = "'epilogue-agent-node-status'";
/// The API server learns of a right or a policy by a watch.
const KNOWN_WITHIN: Duration = Duration::from_mins(1);

/// Kinds that the laboratory leaves out: it runs the programs itself, and no controller fills in
/// quota status.
const WORKLOADS: [&str; 4] = ["Deployment", "DaemonSet", "PodDisruptionBudget", "ResourceQuota"];

/// Applies namespace, service accounts and RBAC of both modes. Idempotent.
pub async fn apply_rights(client: &kube::Client) -> Result<(), LabError> {
    create_lease_namespace(client)
        .await
        .map_err(LabError::api("create the namespace of leases".to_owned()))?;
    let manifests = [manifests().map_err(unreadable)?, observers().map_err(unreadable)?];
    for manifest in manifests.iter().flatten() {
        let types = types(manifest);
        if !WORKLOADS.contains(&types.kind.as_str()) {
            apply(client, &types, manifest).await?;
        }
    }
    Ok(())
}

/// Applies the rights and policies of gang scheduling, after [`apply_rights`]. Idempotent.
pub async fn apply_gang_scheduling(client: &kube::Client) -> Result<(), LabError> {
    for manifest in &gang_scheduling().map_err(unreadable)? {
        apply_object(client, manifest).await?;
    }
    Ok(())
}

/// Gives the controller its right to a lease in this namespace, too, as installed for its own.
/// Returns once the API server knows.
pub async fn grant_lease(client: &kube::Client, namespace: &str) -> Result<(), LabError> {
    for mut manifest in manifests().map_err(unreadable)? {
        if manifest["metadata"]["name"] == LEASE_ROLE {
            manifest["metadata"]["namespace"] = namespace.into();
            apply_object(client, &manifest).await?;
        }
    }
    let question = json!({"metadata": {}, "spec": {
        "user": format!("system:serviceaccount:{NAMESPACE}:{CONTROLLER}"),
        "resourceAttributes": {"group": "coordination.k8s.io", "resource": "leases",
                               "namespace": namespace, "name": CONTROLLER, "verb": "update"},
    }});
    let question = serde_json::from_value(question).expect("must be a review");
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let allowed = async || {
        let review = reviews.create(&PostParams::default(), &question).await;
        review.is_ok_and(|review| review.status.is_some_and(|status| status.allowed))
    };
    eventually("the right to the lease", KNOWN_WITHIN, allowed, |allowed| *allowed).await;
    Ok(())
}

/// The agents' DaemonSet, which acts.
pub fn daemon_set() -> Result<Value, LabError> {
    let manifests = manifests().map_err(unreadable)?;
    let is_it =
        |object: &Value| object["kind"] == "DaemonSet" && object["metadata"]["name"] == AGENT;
    Ok(manifests.into_iter().find(is_it).expect("the base must have the agents' DaemonSet"))
}

/// Applies the admission policies. Idempotent.
pub async fn apply_policy(client: &kube::Client) -> Result<(), LabError> {
    apply_directory(client, "deploy/policy").await
}

/// Deletes the admission policies.
pub async fn remove_policy(client: &kube::Client) -> Result<(), LabError> {
    for object in &objects_of("deploy/policy")? {
        delete_object(client, object).await?;
    }
    Ok(())
}

/// Returns once the API server enforces the agent's policies on this client, an agent's. It takes
/// new ones into use a moment after they were applied; before, an agent would not act for half a
/// minute.
pub async fn policies_bind(agent: kube::Client, node: &str) -> Result<(), LabError> {
    let nodes: Api<Node> = Api::all(agent);
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let patch = json!({"metadata": {"labels": {"epilogue.dev/policy-trial": "1"}}});
    let patch = Patch::Strategic(patch);
    let observe = async || nodes.patch_status(node, &dry_run, &patch).await.err();
    let refuses = |refusal: &Option<kube::Error>| match refusal {
        Some(kube::Error::Api(status)) => status.message.contains(LAST_POLICY),
        _ => false,
    };
    let seen = observe_until(KNOWN_WITHIN, observe, refuses).await;
    let unbound = |last: Option<kube::Error>| LabError::Unbound {
        node: node.to_owned(),
        last: last.map_or("a write was allowed".to_owned(), |error| error.to_string()),
    };
    seen.map(drop).map_err(unbound)
}

/// Applies the policy that only warns about Jobs. Idempotent.
pub async fn apply_lint_policy(client: &kube::Client) -> Result<(), LabError> {
    apply_directory(client, "deploy/policy/lint").await
}

/// Applies the policies by which a namespace opts in. Idempotent.
pub async fn apply_opt_in_policies(client: &kube::Client) -> Result<(), LabError> {
    apply_directory(client, "deploy/policy/opt-in").await
}

async fn apply_directory(client: &kube::Client, directory: &str) -> Result<(), LabError> {
    for object in &objects_of(directory)? {
        apply(client, &types(object), object).await?;
    }
    Ok(())
}

fn objects_of(directory: &str) -> Result<Vec<Value>, LabError> {
    let directory = workspace_root().join(directory);
    objects(&directory).map_err(|source| LabError::Document {
        what: directory.display().to_string(),
        source: source.into(),
    })
}

/// Applies one object.
pub async fn apply_object(client: &kube::Client, object: &Value) -> Result<(), LabError> {
    apply(client, &types(object), object).await
}

/// Deletes one object.
pub async fn delete_object(client: &kube::Client, object: &Value) -> Result<(), LabError> {
    let (types, name) = (types(object), name_of(object));
    api_of(client, &types, object)
        .delete(name, &DeleteParams::default())
        .await
        .map(drop)
        .map_err(LabError::api(format!("delete {} {name}", types.kind)))
}

fn unreadable(source: epilogue_deploy::ManifestError) -> LabError {
    LabError::Document { what: "a manifest in deploy/".to_owned(), source: source.into() }
}

async fn apply(client: &kube::Client, types: &TypeMeta, object: &Value) -> Result<(), LabError> {
    let name = name_of(object);
    api_of(client, types, object)
        .patch(name, &PatchParams::apply("epilogue-lab").force(), &Patch::Apply(object))
        .await
        .map(drop)
        .map_err(LabError::api(format!("apply {} {name}", types.kind)))
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The objects of the same kind, in the same namespace if it has one.
fn api_of(client: &kube::Client, types: &TypeMeta, object: &Value) -> Api<DynamicObject> {
    let (group, version) =
        types.api_version.rsplit_once('/').unwrap_or(("", types.api_version.as_str()));
    let kind = GroupVersionKind::gvk(group, version, &types.kind);
    let resource = ApiResource::from_gvk(&kind);
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn types(object: &Value) -> TypeMeta {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    TypeMeta { api_version: text("apiVersion"), kind: text("kind") }
}
