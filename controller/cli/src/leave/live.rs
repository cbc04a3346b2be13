//! Reads from a cluster what `leave` lists.

use serde_json::Value;

use super::{Arguments, Scope};
use crate::list::{labelled, list};
use crate::source::SourceError;

/// The label of every object of the installation.
const PART_OF: &str = "app.kubernetes.io/part-of=epilogue";

/// Kinds of which the installation has objects.
const INSTALLED: [(&str, &str); 14] = [
    ("Deployment", "/apis/apps/v1/deployments"),
    ("DaemonSet", "/apis/apps/v1/daemonsets"),
    ("Service", "/api/v1/services"),
    ("ServiceAccount", "/api/v1/serviceaccounts"),
    ("Role", "/apis/rbac.authorization.k8s.io/v1/roles"),
    ("RoleBinding", "/apis/rbac.authorization.k8s.io/v1/rolebindings"),
    ("ClusterRole", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ("ClusterRoleBinding", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    (
        "ValidatingAdmissionPolicy",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    ),
    (
        "ValidatingAdmissionPolicyBinding",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    ),
    ("FlowSchema", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"),
    (
        "PriorityLevelConfiguration",
        "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
    ),
    ("MutatingAdmissionPolicy", "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"),
    (
        "MutatingAdmissionPolicyBinding",
        "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
    ),
];

/// What was read.
pub(super) struct Live {
    pub(super) objects: Vec<Value>,
    /// Kinds that RBAC forbids to read.
    pub(super) not_read: Vec<&'static str>,
}

impl Live {
    fn add(&mut self, kind: &'static str, found: Option<Vec<Value>>) {
        match found {
            Some(found) => self.objects.extend(found),
            None => self.not_read.push(kind),
        }
    }
}

/// Reads everything in scope. Pods come before Jobs, so that a new pod's Job is not missing.
pub(super) async fn read(
    client: &kube::Client,
    arguments: &Arguments,
) -> Result<Live, SourceError> {
    let mut live = Live { objects: Vec::new(), not_read: Vec::new() };
    let of =
        arguments.namespace.as_ref().map_or_else(String::new, |it| format!("namespaces/{it}/"));
    for (kind, path) in [
        ("Pod", format!("/api/v1/{of}pods")),
        ("Job", format!("/apis/batch/v1/{of}jobs")),
        ("CronJob", format!("/apis/batch/v1/{of}cronjobs")),
    ] {
        live.add(kind, list(client, kind, &path, "").await?);
    }
    if live.not_read.contains(&"Job") {
        // Without the Jobs, each pod's Job seems to be gone.
        live.objects.retain(|object| object["kind"] != "Pod");
    }
    if arguments.namespace.is_some() {
        return Ok(live);
    }
    live.add("Namespace", list(client, "Namespace", "/api/v1/namespaces", "").await?);
    if let Some(lease) = &arguments.controller_lease.0 {
        live.add("Lease", list(client, "Lease", &lease.path(), "").await?);
    }
    if arguments.scope == Scope::All {
        live.add("Node", list(client, "Node", "/api/v1/nodes", "").await?);
        for (kind, path) in INSTALLED {
            live.add(kind, labelled(client, kind, path, PART_OF).await?);
        }
    }
    Ok(live)
}

/// Reads the Jobs in scope.
pub(super) async fn jobs(
    client: &kube::Client,
    arguments: &Arguments,
) -> anyhow::Result<Vec<Value>> {
    let of =
        arguments.namespace.as_ref().map_or_else(String::new, |it| format!("namespaces/{it}/"));
    let path = format!("/apis/batch/v1/{of}jobs");
    let found = list(client, "Job", &path, "").await?;
    anyhow::Context::context(
        found,
        "the Jobs may not be read; use an account that may list them, or another namespace",
    )
}
