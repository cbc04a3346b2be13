//! Manages the Node and Lease objects of simulated nodes: creates, renews, marks and removes them.

use std::collections::HashSet;
use std::time::Duration;

use epilogue_runtime::clock::Clock;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::status::{host_address, seconds};
use crate::vm::agent::PLACED_LABEL;

/// The label of every simulated node.
pub const SIMULATED_LABEL: &str = "lab.epilogue.dev/simulated";

pub(crate) const LEASE_NAMESPACE: &str = "kube-node-lease";
const LEASE_SECONDS: u32 = 40;
const REQUESTS_MAX: usize = 16;

/// Creates the nodes, or adopts existing ones.
pub(super) async fn create(
    client: &Client,
    names: &[String],
    reserved: bool,
    clock: Clock,
) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    stream::iter(names.iter().enumerate())
        .map(|(ordinal, name)| create_node(&nodes, (ordinal, name), reserved, clock))
        .buffer_unordered(REQUESTS_MAX)
        .try_collect()
        .await
}

/// Removes the nodes and their leases; missing ones are fine.
pub(super) async fn remove(client: &Client, names: &[String]) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let params = DeleteParams::default();
    stream::iter(names)
        .map(async |name| {
            missing_is_fine(nodes.delete(name, &params).await)?;
            missing_is_fine(leases.delete(name, &params).await)
        })
        .buffer_unordered(REQUESTS_MAX)
        .try_collect()
        .await
}

/// Writes the node's Ready condition.
pub(super) async fn mark(
    client: &Client,
    name: &str,
    ready: Ready,
    clock: Clock,
) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = json!({"status": {"conditions": [ready_condition(ready, clock.now())]}});
    let params = PatchParams::default();
    missing_is_fine(nodes.patch_status(name, &params, &Patch::Strategic(patch)).await)
}

/// State of a node in its Ready condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    Yes,
    ShuttingDown,
}

/// Renews the leases of all nodes that are not silent, until the stop signal.
pub(super) async fn keep_leases(
    client: Client,
    names: Vec<String>,
    every: Duration,
    silent: watch::Receiver<HashSet<usize>>,
    (stop, clock): (CancellationToken, Clock),
) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let mut ticks = tokio::time::interval(every);
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let quiet = silent.borrow().clone();
        let answering = names.iter().enumerate().filter(|(n, _)| !quiet.contains(n));
        let renewals = stream::iter(answering)
            .for_each_concurrent(REQUESTS_MAX, async |(_, name)| renew(&leases, name, clock).await);
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = renewals => {}
        }
    }
}

/// Creates the namespace of the leases if needed: without a controller manager no other component
/// does.
pub(crate) async fn create_lease_namespace(client: &Client) -> Result<(), kube::Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(LEASE_NAMESPACE.to_owned());
    match namespaces.create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

async fn renew(leases: &Api<Lease>, name: &str, clock: Clock) {
    // The next renewal makes up for a lost one, as with a real kubelet.
    drop(write_lease(leases, name, clock.now()).await);
}

/// Writes a lease whose last renewal is this old.
pub(super) async fn age_lease(
    client: &Client,
    name: &str,
    age: Duration,
    clock: Clock,
) -> Result<(), kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    write_lease(&leases, name, clock.now() - age).await
}

async fn write_lease(leases: &Api<Lease>, name: &str, at: Timestamp) -> Result<(), kube::Error> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": format!("{at:.6}"),
        },
    });
    match leases.patch(name, &PatchParams::default(), &Patch::Merge(&lease)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
            leases.create(&PostParams::default(), &lease).await.map(drop)
        }
        other => other.map(drop),
    }
}

async fn create_node(
    nodes: &Api<Node>,
    (ordinal, name): (usize, &str),
    reserved: bool,
    clock: Clock,
) -> Result<(), kube::Error> {
    let mut node = node_object(ordinal, name, clock.now());
    if reserved {
        // From the beginning: nothing would end an agent that was scheduled there before.
        node["metadata"]["labels"][PLACED_LABEL] = json!("none");
    }
    let node: Node = serde_json::from_value(node).map_err(kube::Error::SerdeError)?;
    let created = nodes.create(&PostParams::default(), &node).await;
    let params = PatchParams::default();
    match created {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let status = json!({"status": node.status});
            nodes.patch_status(name, &params, &Patch::Strategic(status)).await?;
        }
        other => drop(other?),
    }
    // Admission taints every new node as not ready. No node lifecycle controller may be there to
    // remove the taint, and a real scheduler would wait for it.
    let own = json!([{"key": SIMULATED_LABEL, "effect": "NoSchedule"}]);
    let untaint = json!({"spec": {"taints": reserved.then_some(own)}});
    nodes.patch(name, &params, &Patch::Merge(untaint)).await.map(drop)
}

fn node_object(ordinal: usize, name: &str, now: Timestamp) -> Value {
    let quantities = json!({
        "cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "10000",
    });
    let pressure = |kind: &str| {
        condition(kind, ("False", &format!("KubeletHasNo{kind}")), "simulated: there is none", now)
    };
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                SIMULATED_LABEL: "true",
            },
        },
        "status": {
            "capacity": quantities,
            "allocatable": quantities,
            "addresses": [
                {"type": "InternalIP", "address": host_address(ordinal)},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [
                ready_condition(Ready::Yes, now),
                pressure("MemoryPressure"),
                pressure("DiskPressure"),
                pressure("PIDPressure"),
            ],
        },
    })
}

fn ready_condition(ready: Ready, now: Timestamp) -> Value {
    match ready {
        Ready::Yes => {
            let message = "kubelet is posting ready status";
            condition("Ready", ("True", "KubeletReady"), message, now)
        }
        Ready::ShuttingDown => {
            condition("Ready", ("False", "KubeletNotReady"), "node is shutting down", now)
        }
    }
}

fn condition(kind: &str, (status, reason): (&str, &str), message: &str, now: Timestamp) -> Value {
    let now = seconds(now);
    json!({
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    })
}

fn missing_is_fine<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}
