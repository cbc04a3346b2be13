//! Reads from a cluster what `doctor` judges and `dump` writes. It leaves out a kind that RBAC
//! forbids, and the answer says so.

use crate::kind::Kind;
use crate::lease::LeaseName;
use serde_json::Value;

use crate::list::list;
use crate::source::SourceError;

/// The part of the cluster that is read.
pub(crate) enum Scope<'a> {
    /// One namespace, or all.
    Namespace { namespace: Option<&'a str>, lease: Option<&'a LeaseName> },
    /// The same, with events.
    Dump { namespace: Option<&'a str>, lease: Option<&'a LeaseName> },
    /// One node.
    Node(&'a str),
}

/// Returns the kinds that it could read, and their objects.
pub(crate) async fn cluster(
    client: &kube::Client,
    scope: &Scope<'_>,
) -> Result<(Vec<Kind>, Vec<Value>), SourceError> {
    let (mut read, mut objects) = (Vec::new(), Vec::new());
    for (kind, path, query) in paths(scope) {
        if let Some(found) = list(client, kind.name(), &path, &query).await? {
            objects.extend(found);
            read.push(kind);
        }
    }
    // Leases that could only be read in part count as not read.
    let leases = |kind: &Kind| *kind == Kind::Lease;
    let wanted = paths(scope).iter().filter(|(kind, ..)| leases(kind)).count();
    if read.iter().filter(|kind| leases(kind)).count() < wanted {
        read.retain(|kind| !leases(kind));
    }
    read.dedup();
    Ok((read, objects))
}

/// Returns kind, path and field selector of each request.
fn paths(scope: &Scope<'_>) -> Vec<(Kind, String, String)> {
    const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces";
    const POLICIES: &str = "/apis/admissionregistration.k8s.io";
    const BINDINGS: &str = "mutatingadmissionpolicybindings";
    let all = String::new;
    match scope {
        Scope::Namespace { namespace, lease } => {
            let of = namespace.map_or_else(all, |name| format!("namespaces/{name}/"));
            let one = namespace.map_or_else(all, |name| format!("/{name}"));
            let mut paths = vec![
                (Kind::Pod, format!("/api/v1/{of}pods"), all()),
                (Kind::Job, format!("/apis/batch/v1/{of}jobs"), all()),
                (Kind::Node, "/api/v1/nodes".to_owned(), all()),
                (Kind::Namespace, format!("/api/v1/namespaces{one}"), all()),
                (Kind::Lease, format!("{LEASES}/kube-node-lease/leases"), all()),
            ];
            // Kubernetes 1.34 and 1.35 may serve v1beta1. A version that is not served has none.
            paths.extend(["v1", "v1beta1"].map(|version| {
                (Kind::PolicyBinding, format!("{POLICIES}/{version}/{BINDINGS}"), all())
            }));
            paths.extend(lease.map(|lease| (Kind::Lease, lease.path(), all())));
            // What keeps pods of Jobs from being made, and from starting.
            let about = [
                "kind=Job,reason=FailedCreate",
                "kind=Pod,reason=FailedMount",
                "kind=Pod,reason=FailedAttachVolume",
            ];
            paths.extend(about.into_iter().map(|about| {
                (Kind::Event, format!("/api/v1/{of}events"), format!("involvedObject.{about}"))
            }));
            paths
        }
        Scope::Dump { namespace, lease } => {
            let mut paths = paths(&Scope::Namespace { namespace: *namespace, lease: *lease });
            paths.retain(|(kind, ..)| *kind != Kind::Event);
            let events = events(*namespace).into_iter();
            paths.extend(events.map(|(path, query)| (Kind::Event, path, query)));
            paths
        }
        Scope::Node(node) => {
            let events = format!("involvedObject.kind=Node,involvedObject.name={node}");
            vec![
                (Kind::Node, format!("/api/v1/nodes/{node}"), all()),
                (Kind::Pod, "/api/v1/pods".to_owned(), format!("spec.nodeName={node}")),
                (Kind::Job, "/apis/batch/v1/jobs".to_owned(), all()),
                (Kind::Namespace, "/api/v1/namespaces".to_owned(), all()),
                (Kind::Lease, format!("{LEASES}/kube-node-lease/leases/{node}"), all()),
                (Kind::Event, "/api/v1/namespaces/default/events".to_owned(), events),
            ]
        }
    }
}

/// The kinds of which a dump has objects, or an empty list.
pub(crate) fn kinds(objects: &[Value]) -> Vec<Kind> {
    let is_there = |kind: &Kind| {
        let names = [kind.name().to_owned(), kind.list_name()];
        objects.iter().any(|object| names.iter().any(|name| object["kind"] == *name))
    };
    Kind::ALL.into_iter().filter(is_there).collect()
}

/// Returns path and field selector of the requests for the events of a namespace, or of all. Events
/// of nodes are in `default`.
pub(crate) fn events(namespace: Option<&str>) -> Vec<(String, String)> {
    let Some(namespace) = namespace else {
        return vec![("/api/v1/events".to_owned(), String::new())];
    };
    let mut paths = vec![(format!("/api/v1/namespaces/{namespace}/events"), String::new())];
    if namespace != "default" {
        let nodes = "involvedObject.kind=Node".to_owned();
        paths.push(("/api/v1/namespaces/default/events".to_owned(), nodes));
    }
    paths
}
