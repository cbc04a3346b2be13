//! A hook's pod, where no kubelet runs it: the test runs its program with the rights of its
//! account, and reports how it ended.

use std::process::{Output, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use lab::paths::program;
use lab::{ControlPlane, eventually};
use serde_json::{Value, json};
use tokio::process::Command;

const SOON: Duration = Duration::from_mins(2);

/// The pod of a hook, whose account has its name.
pub(crate) struct Hook<'a> {
    pub(crate) control_plane: &'a ControlPlane,
    pub(crate) client: kube::Client,
    pub(crate) namespace: &'static str,
    pub(crate) name: &'static str,
}

impl Hook<'_> {
    /// The pods of its namespace.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace)
    }

    /// Writes the status of a pod, as its kubelet.
    pub(crate) async fn report(&self, pod: &str, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        let params = PatchParams::default();
        self.pods().patch_status(pod, &params, &patch).await.expect("the pod's status");
    }

    /// Waits for its pod; returns the arguments of the program.
    pub(crate) async fn args(&self) -> Vec<String> {
        let hook = async || {
            let pod = self.pods().get_opt(self.name).await.expect("an answer")?;
            // Helm deletes the pod of an earlier run before it creates this one.
            let phase = &json!(pod.status)["phase"];
            let ended = phase == "Failed" || phase == "Succeeded";
            let alive = pod.metadata.deletion_timestamp.is_none() && !ended;
            alive.then(|| pod.spec.expect("a spec"))
        };
        let spec = eventually("the hook's pod", SOON, hook, Option::is_some).await.expect("a pod");
        spec.containers[0].args.clone().expect("arguments")
    }

    /// Runs its program by its account.
    pub(crate) async fn run(&self, args: &[String]) -> Output {
        let kubeconfig = self.control_plane.dir().join(format!("{}.kubeconfig", self.name));
        let cluster = self.control_plane.cluster();
        cluster
            .write_service_account_kubeconfig(self.namespace, self.name, &kubeconfig)
            .await
            .expect("a kubeconfig");
        Command::new(program("epilogue-agent"))
            .args(args)
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .stdin(Stdio::null())
            .output()
            .await
            .expect("the program must start")
    }
}
