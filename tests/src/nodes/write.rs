//! Sends one write of a simulated kubelet and classifies the answer. Decides nothing.

use epilogue_runtime::clock::Clock;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::machine::Need;
use super::pod::PodObject;
use super::status::seconds;
use super::world::{Write, WriteKind, WriteResult};

pub(super) async fn send(client: Client, write: Write, clock: Clock) -> (Write, WriteResult) {
    let pods: Api<PodObject> = Api::namespaced(client.clone(), &write.namespace);
    let sent = match &write.kind {
        WriteKind::Bind { node, unless_tainted: true } => match tainted(client, node).await {
            Ok(false) => bind(&pods, &write, node).await,
            // The turn passes to another node.
            Ok(true) => return (write, WriteResult::Retry),
            Err(error) => Err(error),
        },
        WriteKind::Bind { node, unless_tainted: false } => bind(&pods, &write, node).await,
        WriteKind::Pod(Need::Status(patch)) => {
            let params = PatchParams::default();
            pods.patch_status(&write.name, &params, &Patch::Strategic(patch)).await.map(drop)
        }
        WriteKind::Pod(Need::Delete) => delete(&pods, &write).await,
        WriteKind::Pod(Need::Event { reason, message }) => {
            complain(client, &write, (reason, message), clock).await
        }
    };
    let result = match sent {
        Ok(()) => WriteResult::Done,
        Err(error) => classify(&write.kind, &error),
    };
    (write, result)
}

async fn bind(pods: &Api<PodObject>, write: &Write, node: &str) -> Result<(), kube::Error> {
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": write.name, "namespace": write.namespace, "uid": &*write.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let params = PostParams::default();
    pods.create_subresource::<Value, IgnoredAny>("binding", &write.name, &params, &binding)
        .await
        .map(drop)
}

async fn tainted(client: Client, node: &str) -> Result<bool, kube::Error> {
    let node = Api::<Node>::all(client).get_opt(node).await?;
    // A removed node takes no pods either.
    Ok(node.is_none_or(|node| {
        node.spec.is_some_and(|spec| !spec.taints.unwrap_or_default().is_empty())
    }))
}

async fn delete(pods: &Api<PodObject>, write: &Write) -> Result<(), kube::Error> {
    let uid = Some(write.uid.to_string());
    let preconditions = Preconditions { uid, resource_version: None };
    let params = DeleteParams::default().grace_period(0).preconditions(preconditions);
    pods.delete(&write.name, &params).await.map(drop)
}

async fn complain(
    client: Client,
    write: &Write,
    (reason, message): (&str, &str),
    clock: Clock,
) -> Result<(), kube::Error> {
    let now = seconds(clock.now());
    let event: Event = serde_json::from_value(json!({
        "metadata": {"generateName": format!("{}.", write.name), "namespace": write.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": write.namespace,
            "name": write.name,
            "uid": &*write.uid,
        },
        "type": "Warning",
        "reason": reason,
        "message": message,
        "source": {"component": "simulated-kubelet"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }))
    .map_err(kube::Error::SerdeError)?;
    let events: Api<Event> = Api::namespaced(client, &write.namespace);
    events.create(&PostParams::default(), &event).await.map(drop)
}

fn classify(kind: &WriteKind, error: &kube::Error) -> WriteResult {
    let kube::Error::Api(status) = error else { return WriteResult::Retry };
    match (status.code, kind) {
        (404, WriteKind::Pod(Need::Event { .. })) => WriteResult::Done,
        // A conflict on DELETE is one of uids: another pod has the name by now.
        (404, _) | (409, WriteKind::Pod(Need::Delete)) => WriteResult::Gone,
        (400 | 403 | 422, _) => WriteResult::Refused(status.message.clone()),
        _ => WriteResult::Retry,
    }
}
