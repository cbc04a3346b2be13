//! Sets up a namespace with our controller for it, nodes that are only objects, and pods on them
//! that no kubelet runs.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lab::controller::{Controller, Setup};
use lab::{Cluster, Namespace, eventually};
use serde_json::{Value, json};

/// Enough for quick steps on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(40);
/// Keeps a pod in the API so that a test can read it.
pub(crate) const HELD: &str = "example.com/held";

/// The namespace and its pods.
pub(crate) struct Stage {
    namespace: Namespace,
    controller: Option<Controller>,
    client: Client,
    pub(crate) pods: Api<Pod>,
    nodes: Api<Node>,
}

/// A pod of this name on this node; with `HELD`.
pub(crate) fn pod(name: &str, node: Option<&str>) -> Value {
    json!({
        "metadata": {"name": name, "finalizers": [HELD]},
        "spec": {"nodeName": node, "restartPolicy": "Never", "automountServiceAccountToken": false,
                 "terminationGracePeriodSeconds": 1,
                 "containers": [{"name": "main", "image": "none"}]},
    })
}

/// The status of a pod that has been running since this time.
pub(crate) fn running(since: &str) -> Value {
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    json!({
        "phase": "Running",
        "conditions": [condition("Ready"), condition("ContainersReady")],
        "containerStatuses": [{"name": "main", "image": "none", "imageID": "", "ready": true,
                               "restartCount": 0, "state": {"running": {"startedAt": since}}}],
    })
}

/// Now, in the API's form.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Stage {
    /// Starts it for a test, the controller with these arguments.
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let cluster = Cluster::of_tests("podgc").expect("the suite's cluster");
        let mut stage = Self::without_controller(&cluster).await;
        stage.start_controller(&cluster, arguments).await;
        stage
    }

    /// Starts our controller for the namespace.
    pub(crate) async fn start_controller(&mut self, cluster: &Cluster, arguments: &[&str]) {
        let dir = cluster.files(self.namespace.name());
        let setup = Setup::debug(&dir).namespace(self.namespace.name());
        let setup = arguments.iter().fold(setup, |setup, argument| setup.argument(argument));
        let controller = Controller::start(cluster, &setup).await.expect("our controller");
        self.controller = Some(controller);
    }

    /// A namespace of a cluster in which other controllers act.
    pub(crate) async fn without_controller(cluster: &Cluster) -> Self {
        let namespace = Namespace::create(cluster).await.expect("a namespace");
        let client = cluster.admin_client().await.expect("a client");
        let pods = Api::namespaced(client.clone(), namespace.name());
        let nodes = Api::all(client.clone());
        Self { namespace, controller: None, client, pods, nodes }
    }

    /// Stops the controller and removes the finalizers of all pods.
    pub(crate) async fn stop(mut self) {
        for pod in self.pods.list(&ListParams::default()).await.expect("the pods").items {
            self.let_go(pod.metadata.name.as_deref().unwrap_or_default()).await;
        }
        if let Some(mut controller) = self.controller.take() {
            controller.check().expect("our controller runs to the end");
            controller.stop().await;
        }
        self.namespace.finish().await.expect("the namespace goes");
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn namespace(&self) -> &str {
        self.namespace.name()
    }

    /// A name for a node of this test alone.
    pub(crate) fn node_name(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace.name())
    }

    /// Creates a node that is ready, in `boot-1`.
    pub(crate) async fn node(&self, name: &str) -> String {
        let name = self.node_name(name);
        let node = json!({"metadata": {"name": name}});
        let node = serde_json::from_value(node).expect("a node");
        self.nodes.create(&PostParams::default(), &node).await.expect("the node is created");
        let untaint = Patch::Merge(json!({"spec": {"taints": null}}));
        let params = PatchParams::default();
        self.nodes.patch(&name, &params, &untaint).await.expect("the node is untainted");
        self.node_status(&name, "True", "", "boot-1").await;
        name
    }

    /// Writes a node's Ready condition and boot id.
    pub(crate) async fn node_status(&self, name: &str, ready: &str, message: &str, boot: &str) {
        self.node_status_since(name, ready, message, boot, &now()).await;
    }

    /// The same, with the transition time of the condition.
    pub(crate) async fn node_status_since(
        &self,
        name: &str,
        ready: &str,
        message: &str,
        boot: &str,
        since: &str,
    ) {
        let condition = json!({"type": "Ready", "status": ready, "reason": "Test",
                               "message": message, "lastTransitionTime": since,
                               "lastHeartbeatTime": now()});
        let info = json!({"bootID": boot, "machineID": "", "systemUUID": "", "kernelVersion": "",
                          "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "",
                          "kubeProxyVersion": "", "operatingSystem": "", "architecture": ""});
        let patch = json!({"status": {"conditions": [condition], "nodeInfo": info}});
        let patch = Patch::Strategic(patch);
        let params = PatchParams::default();
        self.nodes.patch_status(name, &params, &patch).await.expect("the node's status");
    }

    /// Writes the announcement of a node's agent.
    pub(crate) async fn announce(&self, node: &str, text: &str) {
        let patch = json!({"metadata": {"annotations": {"epilogue.dev/state": text}}});
        self.change_node(node, patch).await;
    }

    /// Sets the out-of-service taint.
    pub(crate) async fn out_of_service(&self, node: &str) {
        let taint = json!({"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown",
                           "effect": "NoExecute"});
        self.change_node(node, json!({"spec": {"taints": [taint]}})).await;
    }

    /// Sets a foreign taint, and an agent's taint.
    pub(crate) async fn taint(&self, node: &str) {
        let taint = |key: &str| json!({"key": key, "effect": "NoSchedule"});
        let taints = [taint("foreign"), taint("epilogue.dev/shutting-down")];
        self.change_node(node, json!({"spec": {"taints": taints}})).await;
    }

    /// The keys of a node's taints.
    pub(crate) async fn taints(&self, node: &str) -> Vec<String> {
        let node = self.nodes.get(node).await.expect("the node is there");
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.into_iter().map(|taint| taint.key).collect()
    }

    async fn change_node(&self, node: &str, patch: Value) {
        let params = PatchParams::default();
        self.nodes.patch(node, &params, &Patch::Merge(patch)).await.expect("the node is changed");
    }

    /// Deletes a node.
    pub(crate) async fn delete_node(&self, name: &str) {
        self.nodes.delete(name, &DeleteParams::default()).await.expect("the node is deleted");
    }

    /// Creates a pod.
    pub(crate) async fn create(&self, pod: Value) {
        let pod = serde_json::from_value(pod).expect("a pod");
        self.pods.create(&PostParams::default(), &pod).await.expect("the pod is created");
    }

    /// Writes fields of a pod's status.
    pub(crate) async fn status(&self, name: &str, status: Value) {
        let patch = Patch::Strategic(json!({"status": status}));
        let params = PatchParams::default();
        self.pods.patch_status(name, &params, &patch).await.expect("the pod's status");
    }

    /// Creates a pod that runs on a node.
    pub(crate) async fn run(&self, name: &str, node: &str) {
        self.create(pod(name, Some(node))).await;
        self.status(name, running(&now())).await;
    }

    /// Deletes a pod with its grace.
    pub(crate) async fn delete(&self, name: &str) {
        self.pods.delete(name, &DeleteParams::default()).await.expect("the pod is deleted");
    }

    /// Removes the finalizers of a pod.
    pub(crate) async fn let_go(&self, name: &str) {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        match self.pods.patch(name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            answer => drop(answer.expect("the pod is released")),
        }
    }

    /// The state of a pod in one line: phase, whether it is deleted without grace, conditions.
    pub(crate) async fn shown(&self, name: &str) -> String {
        let pod = self.pods.get_opt(name).await.expect("an answer");
        pod.map_or_else(|| "gone".to_owned(), |pod| words(&pod))
    }

    /// Waits until the state line holds.
    pub(crate) async fn shows(&self, name: &str, holds: impl Fn(&str) -> bool) -> String {
        let shown = async || self.shown(name).await;
        eventually(&format!("{name} as awaited"), SOON, shown, |seen| holds(seen)).await
    }

    /// Waits until a pod is Failed and deleted for good, except for its finalizers.
    pub(crate) async fn ended(&self, name: &str) -> String {
        self.shows(name, |seen| seen.starts_with("Failed deleted")).await
    }

    /// A condition of a pod: `status reason: message`.
    pub(crate) async fn condition(&self, name: &str, kind: &str) -> String {
        let pod = self.pods.get(name).await.expect("the pod");
        condition(&pod, kind)
    }

    /// Waits for an event on a pod: `reason: message`.
    pub(crate) async fn event(&self, pod: &str) -> String {
        let events: Api<Event> = Api::namespaced(self.client.clone(), self.namespace.name());
        let selector = ListParams::default().fields(&format!("involvedObject.name={pod}"));
        let shown = async || {
            let all = events.list(&selector).await.expect("the events").items;
            let line = |event: Event| {
                let (reason, message) = (event.reason, event.message);
                format!("{}: {}", reason.unwrap_or_default(), message.unwrap_or_default())
            };
            all.into_iter().map(line).collect::<Vec<String>>()
        };
        let all = eventually("an event on the pod", SOON, shown, |all| !all.is_empty()).await;
        all.join("; ")
    }
}

/// Phase, deletion, and the conditions in order of their types.
pub(crate) fn words(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let mut text = status.phase.unwrap_or_default();
    match pod.metadata.deletion_grace_period_seconds {
        Some(0) => text += " deleted",
        Some(_) => text += " deleting",
        None => {}
    }
    let mut conditions = status.conditions.unwrap_or_default();
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    for each in conditions {
        let reason = each.reason.unwrap_or_default();
        text.extend([" ", &each.type_, "=", &each.status, "/", &reason]);
    }
    text
}

fn condition(pod: &Pod, kind: &str) -> String {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found = conditions.into_iter().find(|each| each.type_ == kind);
    found.map_or_else(
        || "none".to_owned(),
        |each| {
            let reason = each.reason.as_deref().unwrap_or_default();
            let message = each.message.as_deref().unwrap_or_default();
            format!("{} {reason}: {message}", each.status)
        },
    )
}

impl Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}
