//! Builds pods for tests on a real node: one container of the laboratory's image. Pure.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::kit::CONTAINER_IMAGE;

/// A pod to create, bound to its node from the start: no scheduler is needed.
#[derive(Clone, Debug)]
pub struct TestPod(Value);

impl TestPod {
    /// A pod whose container runs a command of tests/node/container/main.go, never restarted,
    /// with a grace period of 30 seconds.
    pub fn new(name: &str, node: &str, command: &[&str]) -> Self {
        Self(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "terminationGracePeriodSeconds": 30,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{
                    "name": "main",
                    "image": CONTAINER_IMAGE,
                    "imagePullPolicy": "Never",
                    "args": command,
                }],
            },
        }))
    }

    /// Sets any field of the spec.
    #[must_use]
    pub fn spec(mut self, field: &str, value: Value) -> Self {
        self.0["spec"][field] = value;
        self
    }

    /// `Never`, `OnFailure` or `Always`.
    #[must_use]
    pub fn restart_policy(self, policy: &str) -> Self {
        self.spec("restartPolicy", json!(policy))
    }

    /// Another grace period.
    #[must_use]
    pub fn grace_seconds(self, seconds: u32) -> Self {
        self.spec("terminationGracePeriodSeconds", json!(seconds))
    }

    /// Uses the node's own network: its sandbox starts in half the time.
    #[must_use]
    pub fn host_network(self) -> Self {
        self.spec("hostNetwork", json!(true))
    }

    /// Adds a readiness gate that never opens.
    #[must_use]
    pub fn readiness_gate(self) -> Self {
        self.spec("readinessGates", json!([{"conditionType": "lab.local/gate"}]))
    }

    /// Another image, pulled if it is not there.
    #[must_use]
    pub fn image(mut self, image: &str) -> Self {
        self.0["spec"]["containers"][0]["image"] = json!(image);
        self.0["spec"]["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
        self
    }

    /// Adds a finalizer that only a test removes, as a Job's controller would.
    #[must_use]
    pub fn finalizer(mut self, finalizer: &str) -> Self {
        self.0["metadata"]["finalizers"] = json!([finalizer]);
        self
    }

    /// Adds an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(value);
        self
    }

    /// Mounts one of its volumes.
    #[must_use]
    pub fn mount(mut self, volume: &str, path: &str) -> Self {
        self.0["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": volume, "mountPath": path}]);
        self
    }

    /// The object.
    pub fn build(&self) -> Pod {
        serde_json::from_value(self.0.clone()).expect("a pod of ours must be one of the API's")
    }
}
