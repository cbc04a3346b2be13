//! Writes as kubelets and agents do, each with its own identity.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::BoundObjectReference;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Kind;
use crate::bench::run::create_namespace;
use crate::cluster::Cluster;
use crate::eventually::eventually;
use crate::install::{self, AGENT, AGENTS_NAMESPACE};
use crate::nodes::objects::LEASE_NAMESPACE;

/// A policy sees one write after the other: what it costs does not depend on how many nodes there
/// are, but on how often they write. So these write for as many as are asked for.
const NODES: u32 = 100;
/// The pods of each node, by its kubelet and by its agent in turns.
const PODS: u32 = 5;
const NAMESPACE: &str = "bench";
/// What a kubelet reports of its images, by default.
const IMAGES: usize = 50;
const REQUESTS_MAX: usize = 16;
const GONE_WITHIN: Duration = Duration::from_mins(1);

/// All who write.
pub(super) struct Writers {
    nodes: Vec<Writer>,
}

struct Writer {
    name: String,
    lease: Mutex<Lease>,
    leases: Api<Lease>,
    node: Api<Node>,
    pods: Api<Pod>,
    agent: kube::Client,
    pods_of_agent: Api<Pod>,
}

impl Writers {
    /// Creates nodes with their leases and pods, and clients with the certificate of each kubelet
    /// and a token of each agent.
    pub(super) async fn create(cluster: &Cluster) -> anyhow::Result<Self> {
        let admin = cluster.admin_client().await?;
        create_namespace(&admin, NAMESPACE).await?;
        let nodes = stream::iter(0..NODES)
            .map(|number| Writer::create(cluster, &admin, number))
            .buffered(REQUESTS_MAX)
            .try_collect()
            .await?;
        Ok(Self { nodes })
    }

    /// Returns once the policies are enforced.
    pub(super) async fn policies_bind(&self) -> anyhow::Result<()> {
        let first = &self.nodes[0];
        Ok(install::policies_bind(first.agent.clone(), &first.name).await?)
    }

    /// Returns once no policy is enforced any more.
    pub(super) async fn policies_are_gone(&self) -> anyhow::Result<()> {
        let first = &self.nodes[0];
        let nodes: Api<Node> = Api::all(first.agent.clone());
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let refused = Patch::Strategic(json!({"metadata": {"labels": {"example.com/x": "1"}}}));
        let try_it = async || nodes.patch_status(&first.name, &params, &refused).await.is_ok();
        eventually("no policy refuses", GONE_WITHIN, try_it, |allowed| *allowed).await;
        Ok(())
    }

    /// Makes a write, and returns how long it took; `None` if its connection was lost.
    pub(super) async fn write(&self, kind: Kind, number: u32) -> anyhow::Result<Option<Duration>> {
        let writer = &self.nodes[(number % NODES) as usize];
        let round = number / NODES;
        let written = match kind {
            Kind::Lease => writer.renew_the_lease().await,
            Kind::NodeStatus => writer.report_the_node().await,
            Kind::PodStatus => writer.report_a_pod(round).await,
            Kind::AgentPodStatus => writer.mark_a_pod(round).await,
        };
        match written {
            Ok(took) => Ok(Some(took)),
            Err(error) if !matches!(error.downcast_ref(), Some(kube::Error::Api(_))) => Ok(None),
            Err(refused) => Err(refused.context(format!("{kind:?} of {}", writer.name))),
        }
    }
}

impl Writer {
    async fn create(cluster: &Cluster, admin: &kube::Client, number: u32) -> anyhow::Result<Self> {
        let name = format!("node-{number}");
        let nodes: Api<Node> = Api::all(admin.clone());
        let node = create(&nodes, node(&name)).await?;
        nodes.patch_status(&name, &PatchParams::default(), &Patch::Strategic(report())).await?;
        let kubelet = cluster.node_client(&name).await?;
        let leases: Api<Lease> = Api::namespaced(kubelet.clone(), LEASE_NAMESPACE);
        let lease = create(&leases, lease(&name)).await?;
        let pods: Api<Pod> = Api::namespaced(admin.clone(), NAMESPACE);
        for pod_number in 0..PODS {
            create(&pods, pod(&pod_name(&name, pod_number), &name)).await?;
        }
        let bound_to = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(name.clone()),
            uid: node.metadata.uid,
        };
        let token = cluster.bound_token(AGENTS_NAMESPACE, AGENT, Some(bound_to)).await?;
        let agent = cluster.token_client(&token).await?;
        Ok(Self {
            name,
            lease: Mutex::new(lease),
            leases,
            node: Api::all(kubelet.clone()),
            pods: Api::namespaced(kubelet, NAMESPACE),
            pods_of_agent: Api::namespaced(agent.clone(), NAMESPACE),
            agent,
        })
    }

    /// The kubelet's PUT of its lease.
    async fn renew_the_lease(&self) -> anyhow::Result<Duration> {
        let mut lease = self.lease.lock().await;
        if let Some(spec) = &mut lease.spec {
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        let begun = Instant::now();
        match self.leases.replace(&self.name, &PostParams::default(), &lease).await {
            Ok(renewed) => *lease = renewed,
            Err(error) => {
                // It may have been written, and then the next one needs its version.
                *lease = self.leases.get(&self.name).await?;
                return Err(error.into());
            }
        }
        Ok(begun.elapsed())
    }

    /// The kubelet's patch of its node.
    async fn report_the_node(&self) -> anyhow::Result<Duration> {
        let conditions: Vec<Value> = node_conditions().collect();
        let patch = Patch::Strategic(json!({"status": {"conditions": conditions}}));
        let begun = Instant::now();
        self.node.patch_status(&self.name, &PatchParams::default(), &patch).await?;
        Ok(begun.elapsed())
    }

    /// The kubelet's patch of a pod that becomes ready, or is not so any more.
    async fn report_a_pod(&self, round: u32) -> anyhow::Result<Duration> {
        let ready = (round / PODS).is_multiple_of(2);
        let patch = Patch::Strategic(json!({"status": pod_status(ready)}));
        self.patch(&self.pods, round, &patch).await
    }

    /// The agent's patch before it terminates a pod.
    async fn mark_a_pod(&self, round: u32) -> anyhow::Result<Duration> {
        let message = format!("The node shuts down, {round}");
        let disruption = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
            "message": message, "lastTransitionTime": now(),
        });
        let patch = Patch::Strategic(json!({"status": {"conditions": [disruption]}}));
        self.patch(&self.pods_of_agent, round, &patch).await
    }

    async fn patch(
        &self,
        pods: &Api<Pod>,
        round: u32,
        patch: &Patch<Value>,
    ) -> anyhow::Result<Duration> {
        let name = pod_name(&self.name, round % PODS);
        let begun = Instant::now();
        pods.patch_status(&name, &PatchParams::default(), patch).await?;
        Ok(begun.elapsed())
    }
}

async fn create<K>(api: &Api<K>, object: Value) -> anyhow::Result<K>
where
    K: Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    let object: K = serde_json::from_value(object)?;
    Ok(api.create(&PostParams::default(), &object).await?)
}

fn pod_name(node: &str, number: u32) -> String {
    format!("{node}-pod-{number}")
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "a",
        }},
    })
}

fn node_conditions() -> impl Iterator<Item = Value> {
    let condition = |(name, status): (&str, &str)| {
        json!({
            "type": name, "status": status, "reason": format!("Kubelet{name}"),
            "message": "the kubelet has sufficient resources available",
            "lastHeartbeatTime": now(), "lastTransitionTime": "2026-11-01T00:00:00Z",
        })
    };
    [("MemoryPressure", "False"), ("DiskPressure", "False"), ("PIDPressure", "False")]
        .into_iter()
        .chain([("Ready", "True")])
        .map(condition)
}

/// A whole report of a node, with its images.
fn report() -> Value {
    let images = (0..IMAGES).map(|number| {
        let name = format!("registry.example.com/team/service-{number}");
        json!({"names": [format!("{name}@sha256:{number:064x}"), format!("{name}:v1.{number}")],
               "sizeBytes": 123_456_789})
    });
    let images: Vec<Value> = images.collect();
    let conditions: Vec<Value> = node_conditions().collect();
    let quantities = json!({"cpu": "16", "memory": "64Gi", "pods": "110"});
    json!({"status": {
        "capacity": quantities, "allocatable": quantities, "images": images,
        "conditions": conditions,
    }})
}

fn lease(node: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": node},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40},
    })
}

/// A pod with two containers, bound to the node.
fn pod(name: &str, node: &str) -> Value {
    let env = |number: usize| json!({"name": format!("SETTING_{number}"), "value": "some text"});
    let env: Vec<Value> = (0..10).map(env).collect();
    let container = |name: &str| {
        json!({
            "name": name, "image": format!("registry.example.com/team/{name}:v1.2.3"),
            "args": ["--verbose", "--port=8080"], "env": env,
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "service", "pod-template-hash": "5f6c"}},
        "spec": {
            "automountServiceAccountToken": false, "nodeName": node,
            "containers": [container("main"), container("proxy")],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    })
}

fn pod_status(ready: bool) -> Value {
    let truth = |holds: bool| if holds { "True" } else { "False" };
    let conditions = [("Initialized", true), ("Ready", ready), ("ContainersReady", ready)];
    let conditions = conditions.map(
        |(name, holds)| json!({"type": name, "status": truth(holds), "lastTransitionTime": now()}),
    );
    let container = |name: &str| {
        json!({
            "name": name, "image": format!("registry.example.com/team/{name}:v1.2.3"),
            "imageID": format!("registry.example.com/team/{name}@sha256:{:064x}", 7),
            "containerID": format!("containerd://{:064x}", 9),
            "ready": ready, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-11-01T00:00:00Z"}}, "lastState": {},
        })
    };
    json!({
        "phase": "Running", "startTime": "2026-11-01T00:00:00Z", "conditions": conditions,
        "hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}],
        "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
        "containerStatuses": [container("main"), container("proxy")],
    })
}
