//! Sets up two nodes with pods on each, the agent's pod on one of them, and clients with its
//! tokens.

use std::path::Path;
use std::time::Duration;

use agent_core::pod::{Asks, Details, Owner, Phase, PodSource, PodUid, PodView, RestartPolicy};
use k8s_openapi::api::authentication::v1::BoundObjectReference;
use kube::Client;
use lab::install::{self, AGENT, AGENTS_NAMESPACE, CONTROLLER};
use lab::{Cluster, Namespace, eventually};
use serde_json::{Value, json};

use super::call::Call;

/// Time for the API server to learn of a policy.
const SOON: Duration = Duration::from_mins(1);

/// Whose token a call carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// Projected into the DaemonSet's pod.
    OfPod,
    /// Bound to the Node: an agent that is a service of the host.
    OfNode,
    /// Not bound to an object.
    Unbound,
}

/// The shared setup of this suite.
pub(crate) struct World {
    namespace: Namespace,
    cluster: Cluster,
    pub(crate) admin: Client,
    pub(crate) agent: Client,
    /// Whose token it is.
    who: &'static str,
    /// The agent's token.
    pub(crate) token: String,
}

impl World {
    /// Installs all of it, as `deploy/` says.
    pub(crate) async fn start(token: Token) -> Self {
        Self::on(Cluster::of_tests("permissions").expect("the suite's cluster"), token).await
    }

    /// The same on another cluster.
    pub(crate) async fn on(cluster: Cluster, token: Token) -> Self {
        let admin = cluster.admin_client().await.expect("a client");
        install::apply_rights(&admin).await.expect("the rights");
        let default = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"},
        });
        // A controller makes it, sooner or later.
        let accounts = "/api/v1/namespaces/kube-system/serviceaccounts";
        let _ = Call::create(accounts, default).send(&admin).await;
        let namespace = Namespace::create(&cluster).await.expect("a namespace");
        let (agent, token_text) = (admin.clone(), String::new());
        let who = if token == Token::Unbound { "agent without a node" } else { "agent" };
        let mut world = Self { namespace, cluster, agent, who, admin, token: token_text };
        for node in [world.here(), world.there()] {
            let taints = json!([{"key": "foreign", "effect": "NoSchedule"}]);
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": node, "labels": {"zone": "a"}},
                "spec": {"taints": taints},
            });
            world.done(Call::create("/api/v1/nodes", node)).await;
        }
        world.token = world.token_of(token).await;
        world.agent = world.cluster.token_client(&world.token).await.expect("a client");
        world.policies_hold().await;
        world
    }

    /// Removes what does not go with the namespace.
    pub(crate) async fn finish(self) {
        let now = json!({"gracePeriodSeconds": 0});
        let pod = format!("/api/v1/namespaces/{AGENTS_NAMESPACE}/pods/{}", self.agent_pod());
        let _ = Call::delete(pod, now.clone()).send(&self.admin).await;
        for node in [self.here(), self.there()] {
            self.done(Call::delete(node_path(&node), now.clone())).await;
        }
        self.namespace.finish().await.expect("the namespace goes");
    }

    /// The agent's node.
    pub(crate) fn here(&self) -> String {
        format!("{}-here", self.namespace.name())
    }

    /// The cluster of the suite.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Whose token the calls carry.
    pub(crate) fn who(&self) -> &'static str {
        self.who
    }

    /// Another node.
    pub(crate) fn there(&self) -> String {
        format!("{}-there", self.namespace.name())
    }

    /// The namespace of the pods.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.name()
    }

    /// The path of the lease of the agent's node, which exists.
    pub(crate) async fn lease(&self) -> String {
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": self.here()},
        });
        self.done(Call::create(leases, lease)).await;
        format!("{leases}/{}", self.here())
    }

    /// A resource of the namespace.
    pub(crate) fn path(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace.name())
    }

    /// Makes the call as an administrator; returns the object.
    pub(crate) async fn done(&self, call: Call) -> Value {
        let answer = call.send(&self.admin).await;
        assert!(answer.is_success(), "{call}: {} {}", answer.code, answer.message);
        answer.object()
    }

    /// Creates a pod on a node, with `change` over its fields, and gives it a kubelet's status.
    pub(crate) async fn pod(&self, name: &str, node: &str, change: Value, status: Value) -> Value {
        self.pod_in(self.namespace.name(), name, node, change, status).await
    }

    /// The same in another namespace.
    pub(crate) async fn pod_in(
        &self,
        namespace: &str,
        name: &str,
        node: &str,
        change: Value,
        status: Value,
    ) -> Value {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": "a"}, "annotations": {"theirs": "1"}},
            "spec": {
                "automountServiceAccountToken": false, "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 30, "nodeName": node,
                "containers": [{"name": "main", "image": "none"}],
            },
        });
        overlay(&mut pod, change);
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        self.done(Call::create(&pods, pod)).await;
        let status = json!({"status": status});
        self.done(Call::patch(format!("{pods}/{name}/status"), status)).await
    }

    /// A running pod of the agent's node.
    pub(crate) async fn running(&self, name: &str) -> Value {
        self.pod(name, &self.here(), json!({}), running()).await
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        self.cluster.kubeconfig_path()
    }

    async fn token_of(&self, token: Token) -> String {
        let bound = |kind: &str, name: &str, object: &Value| BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some(kind.to_owned()),
            name: Some(name.to_owned()),
            uid: object["metadata"]["uid"].as_str().map(str::to_owned),
        };
        let bound_to = match token {
            Token::Unbound => None,
            Token::OfNode => {
                let node = self.done(Call::get(node_path(&self.here()))).await;
                Some(bound("Node", &self.here(), &node))
            }
            Token::OfPod => {
                let pods = format!("/api/v1/namespaces/{AGENTS_NAMESPACE}/pods");
                let pod = agent_pod(&self.agent_pod(), &self.here());
                let pod = self.done(Call::create(pods, pod)).await;
                Some(bound("Pod", &self.agent_pod(), &pod))
            }
        };
        let token = self.cluster.bound_token(AGENTS_NAMESPACE, AGENT, bound_to).await;
        token.expect("a token")
    }

    fn agent_pod(&self) -> String {
        format!("agent-of-{}", self.namespace.name())
    }

    /// The same with the controller's token, once its policies hold.
    pub(crate) async fn of_the_controller(mut self) -> Self {
        self.token =
            self.cluster.bound_token(install::NAMESPACE, CONTROLLER, None).await.expect("a token");
        self.agent = self.cluster.token_client(&self.token).await.expect("a client");
        self.who = "controller";
        let probe = self.running("probe-of-controller").await;
        let labels = json!({"metadata": {"labels": {"epilogue.dev/probe": "1"}}});
        let bare = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        let probes = [
            Call::patch(format!("{}/status", pod_path(&probe)), labels.clone()).dry(),
            Call::patch(node_path(&self.here()), labels.clone()).dry(),
            Call::patch(pod_path(&probe), labels).dry(),
            Call::delete(pod_path(&probe), json!({})).dry(),
            Call::create(self.path("pods"), bare).dry(),
        ];
        for probe in probes {
            let answer = async || probe.send(&self.agent).await;
            eventually("the policy refuses", SOON, answer, |answer| !answer.is_success()).await;
        }
        self
    }

    /// Waits until each policy refuses something.
    async fn policies_hold(&self) {
        let probe = self.pod("probe", &self.here(), json!({}), running()).await;
        let other = self.pod("probe-there", &self.there(), json!({}), running()).await;
        let (pod, other) = (pod_path(&probe), pod_path(&other));
        let labels = json!({"metadata": {"labels": {"epilogue.dev/probe": "1"}}});
        let probes = [
            Call::patch(format!("{other}/status"), labels.clone()).dry(),
            Call::patch(format!("{pod}/status"), labels.clone()).dry(),
            Call::patch(pod.clone(), labels.clone()).dry(),
            Call::delete(pod, json!({"gracePeriodSeconds": 1})).dry(),
            Call::patch(node_path(&self.here()), labels.clone()).dry(),
            Call::patch(format!("{}/status", node_path(&self.here())), labels).dry(),
            Call::create("/apis/events.k8s.io/v1/namespaces/default/events", foreign_event()).dry(),
        ];
        for probe in probes {
            let answer = async || probe.send(&self.agent).await;
            eventually("the policy refuses", SOON, answer, |answer| !answer.is_success()).await;
        }
    }
}

/// An event of another reporter.
fn foreign_event() -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"generateName": "probe-"},
        "type": "Normal", "reason": "Probe", "note": "n", "action": "Probe",
        "eventTime": "2026-11-21T14:05:06.000000Z",
        "reportingController": "other", "reportingInstance": "other",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "n"},
    })
}

/// A pod as the DaemonSet of `deploy/` makes it, for a node.
pub(crate) fn agent_pod(name: &str, node: &str) -> Value {
    let manifests = epilogue_deploy::manifests().expect("the manifests");
    let set = manifests.iter().find(|object| object["kind"] == "DaemonSet").expect("a DaemonSet");
    let mut pod = set["spec"]["template"].clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = name.into();
    pod["spec"]["nodeName"] = node.into();
    pod
}

/// The path of a node.
pub(crate) fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

/// The path of a pod.
pub(crate) fn pod_path(pod: &Value) -> String {
    let (namespace, name) = (&pod["metadata"]["namespace"], &pod["metadata"]["name"]);
    let text = |value: &Value| value.as_str().expect("must be a name").to_owned();
    format!("/api/v1/namespaces/{}/pods/{}", text(namespace), text(name))
}

/// The status that a kubelet gives a running pod.
pub(crate) fn running() -> Value {
    let since = "2026-11-21T14:00:00Z";
    let condition =
        |name: &str| json!({"type": name, "status": "True", "lastTransitionTime": since});
    json!({
        "phase": "Running", "startTime": since,
        "hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}],
        "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
        "conditions": [
            condition("PodScheduled"), condition("Ready"), condition("ContainersReady"),
            condition("example.com/gate"),
        ],
        "containerStatuses": [{
            "name": "main", "image": "none", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": since}},
        }],
    })
}

/// The status of a pod that has ended.
pub(crate) fn ended(phase: &str) -> Value {
    let exit_code = i32::from(phase == "Failed");
    json!({
        "phase": phase,
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{
            "name": "main", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": exit_code}},
        }],
    })
}

/// The agent's own view of a pod, as far as the patches depend on it.
pub(crate) fn view(pod: &Value) -> PodView {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &pod["metadata"];
    PodView {
        uid: PodUid(text(&metadata["uid"])),
        namespace: text(&metadata["namespace"]),
        name: text(&metadata["name"]),
        generation: metadata["generation"].as_i64().unwrap_or_default(),
        resource_version: text(&metadata["resourceVersion"]),
        source: PodSource::Api,
        owner: Owner::None,
        restart_policy: RestartPolicy::Never,
        restarts_in_place: RestartPolicy::Never,
        restarts_all: false,
        sidecars: Vec::new(),
        priority: 0,
        grace_seconds: Some(30),
        deletion_grace_seconds: None,
        deadline_set: false,
        phase: Phase::Running,
        has_run: true,
        containers: Vec::new(),
        running_since: None,
        disruption: None,
        asks: Asks::default(),
        details: Details::default(),
    }
}

fn overlay(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}
