//! Applies the manifests of `deploy/` to a cluster, as a user would. So our programs run in the
//! laboratory with exactly their installed rights.

use epilogue_deploy::{manifests, objects};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use serde_json::Value;

use crate::error::LabError;
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

/// Kinds that the laboratory leaves out: it runs the programs itself, and no controller fills in
/// quota status.
const WORKLOADS: [&str; 4] = ["Deployment", "DaemonSet", "PodDisruptionBudget", "ResourceQuota"];

/// Applies namespace, service accounts and RBAC. Idempotent.
pub async fn apply_rights(client: &kube::Client) -> Result<(), LabError> {
    create_lease_namespace(client)
        .await
        .map_err(LabError::api("create the namespace of leases".to_owned()))?;
    let manifests = manifests().map_err(unreadable)?;
    for manifest in &manifests {
        let types = types(manifest);
        if !WORKLOADS.contains(&types.kind.as_str()) {
            apply(client, &types, manifest).await?;
        }
    }
    Ok(())
}

/// The agents' DaemonSet, as in the base.
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

/// Applies the policy that only warns about Jobs. Idempotent.
pub async fn apply_lint_policy(client: &kube::Client) -> Result<(), LabError> {
    apply_directory(client, "deploy/policy/lint").await
}

/// Applies the policies by which a namespace opts in. Idempotent.
pub async fn apply_opt_in_policies(client: &kube::Client) -> Result<(), LabError> {
    apply_directory(client, "deploy/policy/opt-in").await
}

async fn apply_directory(client: &kube::Client, directory: &str) -> Result<(), LabError> {
    let directory = workspace_root().join(directory);
    let policy = objects(&directory).map_err(|source| LabError::Document {
        what: directory.display().to_string(),
        source: source.into(),
    })?;
    for object in &policy {
        apply(client, &types(object), object).await?;
    }
    Ok(())
}

/// Applies one object.
pub async fn apply_object(client: &kube::Client, object: &Value) -> Result<(), LabError> {
    apply(client, &types(object), object).await
}

fn unreadable(source: epilogue_deploy::ManifestError) -> LabError {
    LabError::Document { what: "a manifest in deploy/".to_owned(), source: source.into() }
}

async fn apply(client: &kube::Client, types: &TypeMeta, object: &Value) -> Result<(), LabError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let (group, version) =
        types.api_version.rsplit_once('/').unwrap_or(("", types.api_version.as_str()));
    let kind = GroupVersionKind::gvk(group, version, &types.kind);
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    api.patch(name, &PatchParams::apply("epilogue-lab").force(), &Patch::Apply(object))
        .await
        .map(drop)
        .map_err(LabError::api(format!("apply {} {name}", types.kind)))
}

fn types(object: &Value) -> TypeMeta {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    TypeMeta { api_version: text("apiVersion"), kind: text("kind") }
}
