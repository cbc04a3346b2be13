//! Asks the API, without a change, what a shutdown would need: the agent's permissions, and whether
//! the API would accept DisruptionTarget on a pod of the node. That is a dry run, so all admission
//! sees it.

use std::net::IpAddr;
use std::time::Duration;

use agent_core::check::api::{ApiAnswers, ApiFacts, MarkTrial};
use agent_core::termination::patches::mark;
use epilogue_common::outcome::{FailureKind, Outcome};
use http::{Method, Uri};
use jiff::Timestamp;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::calls::{JSON, STRATEGIC, send, some_pod, within};

/// Maximum time for all questions together.
const ASK_MAX: Duration = Duration::from_secs(10);
/// A pod that changes between read and write is read again, up to this many attempts.
const TRIALS_MAX: usize = 3;
/// Maximum number of pods that are searched for static ones; a node has a few hundred.
const PODS_MAX: usize = 500;
/// The annotation of a static pod's mirror.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The permissions from the manifests: group, resource, the namespace if not all, verbs.
const RIGHTS: [(&str, &str, &str, &[&str]); 8] = [
    ("", "pods", "", &["get", "list", "watch", "delete", "patch"]),
    ("", "pods/status", "", &["patch"]),
    ("", "nodes", "", &["get", "list", "watch", "patch"]),
    ("", "nodes/status", "", &["patch"]),
    ("", "nodes/configz", "", &["get"]),
    ("", "nodes/healthz", "", &["get"]),
    ("coordination.k8s.io", "leases", "kube-node-lease", &["get"]),
    ("events.k8s.io", "events", "", &["create"]),
];

/// Asks the API for the node of this name.
pub(super) async fn ask(config: &Config, node: &str) -> ApiFacts {
    let server = config.cluster_url.to_string();
    let error = match Client::try_from(config.clone()) {
        Ok(client) => match within(ASK_MAX, answers(&client, &server, node)).await {
            Ok(answers) => return ApiFacts::Answers(Box::new(answers)),
            Err(failure) => failure.message,
        },
        Err(error) => error.to_string(),
    };
    ApiFacts::Silent { server, error }
}

async fn answers(client: &Client, server: &str, node: &str) -> Outcome<ApiAnswers> {
    let mut denied = Vec::new();
    for (group, resource, namespace, verbs) in RIGHTS {
        for verb in verbs {
            if !may(client, group, resource, namespace, verb).await? {
                denied.push(format!("{verb} {resource}"));
            }
        }
    }
    // The connection is warm now, so this measures one round trip.
    let begun = Instant::now();
    let node_exists = match send(client, Method::GET, &format!("/api/v1/nodes/{node}"), None).await
    {
        Ok(_) => true,
        Err(failure) if failure.kind == FailureKind::NotFound => false,
        // The list of denied permissions already shows it.
        Err(failure) if failure.kind == FailureKind::Forbidden => true,
        Err(failure) => return Err(failure),
    };
    let read = begun.elapsed();
    let (trial, latency) = if denied.is_empty() && node_exists {
        try_mark(client, node).await?
    } else {
        (MarkTrial::NoPod, None)
    };
    let on_the_way =
        if is_loopback(server) { static_pods(client, node).await? } else { Vec::new() };
    let (server, node) = (server.to_owned(), node.to_owned());
    let latency = latency.unwrap_or(read);
    Ok(ApiAnswers { server, node, node_exists, denied, trial, on_the_way, latency })
}

/// Whether the address is on the loopback of this machine.
fn is_loopback(server: &str) -> bool {
    let url = server.parse::<Uri>().ok();
    let host = url.as_ref().and_then(Uri::host).unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The node's static pods in the host's network, as `NAMESPACE/NAME`.
async fn static_pods(client: &Client, node: &str) -> Outcome<Vec<String>> {
    let path = format!("/api/v1/pods?limit={PODS_MAX}&fieldSelector=spec.nodeName%3D{node}");
    let list = match send(client, Method::GET, &path, None).await {
        // The list of denied permissions already shows it.
        Err(failure) if failure.kind == FailureKind::Forbidden => return Ok(Vec::new()),
        list => list?,
    };
    let pods = list["items"].as_array().into_iter().flatten();
    let is_static = |pod: &&Value| {
        let mirror = &pod["metadata"]["annotations"][MIRROR];
        mirror.is_string() && pod["spec"]["hostNetwork"] == true
    };
    let name = |pod: &Value| {
        let name = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
        format!("{}/{}", name("namespace"), name("name"))
    };
    Ok(pods.filter(is_static).map(name).collect())
}

async fn may(
    client: &Client,
    group: &str,
    resource: &str,
    namespace: &str,
    verb: &str,
) -> Outcome<bool> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"group": group, "resource": resource,
                                        "subresource": subresource, "namespace": namespace,
                                        "verb": verb}},
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = send(client, Method::POST, path, Some((JSON, review))).await?;
    Ok(answer["status"]["allowed"] == true)
}

/// The result of the trial write, and how long it took.
async fn try_mark(client: &Client, node: &str) -> Outcome<(MarkTrial, Option<Duration>)> {
    for _ in 0..TRIALS_MAX {
        let Some(pod) = some_pod(client, node).await? else { break };
        let name = format!("{}/{}", pod.namespace, pod.name);
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/status?dryRun=All&fieldManager=epilogue-agent",
            pod.namespace, pod.name
        );
        let body = mark(&pod, Timestamp::now());
        let begun = Instant::now();
        let answer = send(client, Method::PATCH, &path, Some((STRATEGIC, body))).await;
        let took = Some(begun.elapsed());
        match answer {
            Ok(_) => return Ok((MarkTrial::Taken { pod: name }, took)),
            Err(failure) => match failure.kind {
                FailureKind::Forbidden | FailureKind::Invalid => {
                    let error = failure.message;
                    return Ok((MarkTrial::Refused { pod: name, error }, took));
                }
                FailureKind::Conflict | FailureKind::NotFound => {}
                _ => return Err(failure),
            },
        }
    }
    Ok((MarkTrial::NoPod, None))
}
