//! Tests by dry runs whether the API refuses what the agent's admission policies must refuse: at
//! the start, and every hour. RBAC gives all agents one role for the whole cluster. Only the
//! policies of deploy/policy/agent limit it to one node.

use std::time::Duration;

use agent_core::pod::PodView;
use agent_core::protocol::event::Event;
use epilogue_common::outcome::{FailureKind, Outcome};
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::tell;
use crate::calls::{JSON, STRATEGIC, send, some_pod, within};

/// Time between two rounds that find the policies in place.
const PERIOD: Duration = Duration::from_hours(1);
/// Time after a round that finds a policy missing, has no answer, or had no pod for some trials.
const AGAIN: Duration = Duration::from_secs(30);
/// Maximum time of a round.
const ROUND_MAX: Duration = Duration::from_secs(20);
const OPTIONS: &str = "?dryRun=All&fieldManager=epilogue-agent";

/// A write that a policy must refuse.
struct Trial {
    policy: &'static str,
    method: Method,
    path: String,
    kind: &'static str,
    body: Value,
}

/// What a round has found.
pub struct Round {
    /// The policy that allows what it must refuse, if there is one.
    pub missing: Option<&'static str>,
    /// Whether all policies were tried: some need a pod on the node.
    pub all_tried: bool,
}

/// Reports each round to the core.
pub async fn run(client: Client, node: String, events: mpsc::Sender<Event>) {
    loop {
        let found = within(ROUND_MAX, round(&client, &node)).await;
        let again = match found {
            Ok(Round { missing, all_tried }) => {
                let again = if missing.is_none() && all_tried { PERIOD } else { AGAIN };
                tell(&events, Event::PoliciesTried(missing.map(str::to_owned))).await;
                again
            }
            Err(failure) => {
                tracing::debug!(%failure, "the policies could not be tried");
                AGAIN
            }
        };
        sleep(again).await;
    }
}

/// Tries all policies, until one allows what it must refuse.
pub async fn round(client: &Client, node: &str) -> Outcome<Round> {
    let pod = some_pod(client, node).await?;
    let all_tried = pod.is_some();
    let other = other_node(client, node).await?;
    let mut unanswered = None;
    for trial in trials(node, pod.as_ref(), other.as_deref()) {
        let Trial { policy, method, path, kind, body } = trial;
        match send(client, method, &path, Some((kind, body))).await {
            Ok(_) => return Ok(Round { missing: Some(policy), all_tried }),
            Err(failure) => match failure.kind {
                FailureKind::Forbidden
                | FailureKind::Invalid
                // The object has changed, or is gone: the next round tries another pod.
                | FailureKind::Conflict
                | FailureKind::NotFound => {}
                // A webhook that fails concerns one kind of object: try the others anyway.
                _ => unanswered = Some(failure),
            },
        }
    }
    unanswered.map_or(Ok(Round { missing: None, all_tried }), Err)
}

async fn other_node(client: &Client, node: &str) -> Outcome<Option<String>> {
    let list = send(client, Method::GET, "/api/v1/nodes?limit=2", None).await?;
    let names = list["items"].as_array().into_iter().flatten();
    let mut names = names.filter_map(|item| item["metadata"]["name"].as_str());
    Ok(names.find(|name| *name != node).map(str::to_owned))
}

fn trials(node: &str, pod: Option<&PodView>, other: Option<&str>) -> Vec<Trial> {
    let label = || json!({"metadata": {"labels": {"epilogue.dev/policy-trial": "1"}}});
    let patch = |policy, path: &str, body| {
        let path = format!("{path}{OPTIONS}");
        Trial { policy, method: Method::PATCH, path, kind: STRATEGIC, body }
    };
    let own = format!("/api/v1/nodes/{node}");
    let mut trials = vec![
        patch("epilogue-agent-node", &own, label()),
        patch("epilogue-agent-node-status", &format!("{own}/status"), label()),
        Trial {
            policy: "epilogue-agent-events",
            method: Method::POST,
            path: format!("/apis/events.k8s.io/v1/namespaces/default/events{OPTIONS}"),
            kind: JSON,
            body: foreign_event(node),
        },
    ];
    if let Some(other) = other {
        // Every agent may write this on its own node, and only there.
        let state = json!({"metadata": {"annotations": {"epilogue.dev/state": "idle"}}});
        trials.push(patch("epilogue-agent-own-node", &format!("/api/v1/nodes/{other}"), state));
    }
    if let Some(pod) = pod {
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        trials.push(patch("epilogue-agent-pod-status", &format!("{path}/status"), label()));
        trials.push(patch("epilogue-agent-pods", &path, label()));
        trials.push(Trial {
            policy: "epilogue-agent-deletion",
            method: Method::DELETE,
            // The server reads the options of the body; the audit shows those of the path.
            path: format!("{path}?dryRun=All"),
            kind: JSON,
            body: json!({
                "apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"],
                "preconditions": {"uid": pod.uid}, "gracePeriodSeconds": 0,
            }),
        });
    }
    trials
}

/// An event in the name of another reporter.
fn foreign_event(node: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"namespace": "default", "generateName": "policy-trial-"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "epilogue.dev/policy-trial", "reportingInstance": "other",
        "action": "Trial", "reason": "Trial", "type": "Normal", "note": "never written",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
    })
}
