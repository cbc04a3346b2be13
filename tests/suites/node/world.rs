//! Sets up the tests of upstream's behaviour: a scene without an agent, and its pods.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lab::Options;
use lab::control_plane::flags::{ALL_CONTROLLERS, QUIET_CONTROLLERS};
use lab::paths::LabDir;
use lab::vm::{Kit, KubeletConfig, Scene, Seen, Setting, TestPod};
use serde_json::{Value, json};

/// Five times what an emulated machine takes for a dozen pods.
pub(crate) const RUNNING_WITHIN: Duration = Duration::from_mins(6);

/// A scene and its pods.
pub(crate) struct World {
    pub(crate) scene: Scene,
    pub(crate) pods: Api<Pod>,
}

pub(crate) async fn kit() -> Kit {
    Kit::ensure(&LabDir::of_workspace()).await.unwrap_or_else(|error| panic!("{error}: {error:?}"))
}

impl World {
    /// Without any controller that acts on pods or nodes.
    pub(crate) async fn new(name: &str, kubelet: KubeletConfig) -> Self {
        let options = Options::unique(name).controller_manager(QUIET_CONTROLLERS);
        Self::on(options, name, kubelet).await
    }

    /// With all controllers, for tests of their view of the node.
    pub(crate) async fn with_controllers(name: &str, kubelet: KubeletConfig) -> Self {
        let options = Options::unique(name)
            .controller_manager(ALL_CONTROLLERS)
            .controller_manager_flag("--node-monitor-grace-period=20s");
        Self::on(options, name, kubelet).await
    }

    async fn on(options: Options, name: &str, kubelet: KubeletConfig) -> Self {
        let (kit, kubelet) = (kit().await, &kubelet);
        let setting = Setting { options, node: name, kubelet, agent: None, commands: Vec::new() };
        let scene = Scene::set(&kit, setting).await.unwrap_or_else(|error| panic!("{error:?}"));
        Self { pods: scene.api(), scene }
    }

    pub(crate) fn pod(&self, name: &str, command: &[&str]) -> TestPod {
        TestPod::new(name, self.scene.node.name(), command)
    }

    pub(crate) async fn create(&self, pod: &TestPod) {
        self.pods.create(&PostParams::default(), &pod.build()).await.expect("create");
    }

    /// Creates the pods and waits until each one runs.
    pub(crate) async fn run(&self, pods: &[TestPod]) {
        for pod in pods {
            self.create(pod).await;
        }
        for pod in pods {
            let name = pod.build().metadata.name.expect("a name");
            let runs = |history: &[Seen]| {
                history
                    .last()
                    .is_some_and(|last| last.container == "running" && last.phase == "Running")
            };
            self.scene.watcher.until(&name, "runs", RUNNING_WITHIN, runs).await;
        }
    }

    /// A strategic merge patch of `pods/status`.
    pub(crate) async fn patch_status(&self, pod: &str, patch: &Value) {
        let patch = Patch::Strategic(patch);
        self.pods.patch_status(pod, &PatchParams::default(), &patch).await.expect("patch status");
    }

    pub(crate) async fn patch(&self, pod: &str, patch: &Value) {
        let patch = Patch::Strategic(patch);
        self.pods.patch(pod, &PatchParams::default(), &patch).await.expect("patch");
    }

    pub(crate) async fn delete(&self, pod: &str) {
        self.pods.delete(pod, &DeleteParams::default()).await.expect("delete");
    }

    /// Removes all pods, and waits until the kubelet has terminated them.
    pub(crate) async fn clear(&self) {
        let soon = DeleteParams::default().grace_period(1);
        self.pods.delete_collection(&soon, &ListParams::default()).await.expect("delete");
        let left = async || {
            let list = self.pods.list(&ListParams::default()).await.expect("list");
            list.items.into_iter().filter_map(|pod| pod.metadata.name).collect::<Vec<_>>()
        };
        lab::eventually("no pod is left", RUNNING_WITHIN, left, Vec::is_empty).await;
    }

    /// Stops everything in order. A test that panics leaves it to the drops.
    pub(crate) async fn end(self) {
        self.scene.strike().await.expect("the scene ends");
    }
}

/// The condition that an agent next to the kubelet writes.
pub(crate) fn disruption(status: &str) -> Value {
    json!({
        "type": "DisruptionTarget", "status": status, "reason": "LabTest",
        "message": "written by a test", "lastTransitionTime": jiff::Timestamp::now().to_string(),
    })
}

/// The status that an agent next to the kubelet would write when a pod ends.
pub(crate) fn failed() -> Value {
    json!({"status": {
        "phase": "Failed", "reason": "LabTest", "message": "written by a test",
        "conditions": [disruption("True")],
    }})
}

/// Seconds between two states.
pub(crate) fn since(first: &Seen, last: &Seen) -> f64 {
    last.at.duration_since(first.at).as_secs_f64()
}
