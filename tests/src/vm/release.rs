//! Installs what a release has on a node, as a user does: the image of `deploy/image/build`, and
//! the chart with its default values. Helm is built from upstream's module.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use tokio::process::Command;

use super::disk;
use super::error::VmError;
use super::node::Node;
use crate::cluster::Cluster;
use crate::controller::Setup;
use crate::error::LabError;
use crate::eventually::observe_costly_until;
use crate::go_module;
use crate::install::{AGENTS_NAMESPACE, CONTROLLER, NAMESPACE};
use crate::inventory::{inventory, is_of_release};
use crate::paths::{LabDir, target_dir, workspace_root};
use crate::process::Program;

/// The release's name, and the namespace in which Helm keeps it: those of README.md.
const RELEASE: [&str; 3] = ["epilogue", "--namespace", "kube-system"];
/// `repository` and `tag` of the chart's default values are the image that `deploy/image/build`
/// makes.
const IMAGE_FILE: &str = "image.tar";
/// Five times what an emulated machine takes.
const WITHIN: Duration = Duration::from_mins(3);

/// The image of both programs as released, built if it is missing or stale. Takes minutes.
pub async fn image() -> Result<PathBuf, VmError> {
    let dir = target_dir().join("image");
    std::fs::create_dir_all(&dir).map_err(LabError::file("create", &dir))?;
    let (image, log) = (dir.join("lab.tar"), dir.join("build.log"));
    let build = workspace_root().join("deploy/image/build");
    disk::run_program(&Program::new("image/build", &build, [image.clone()], &log)).await?;
    Ok(image)
}

/// A program of the image, for use without a container.
pub(super) async fn program(name: &str) -> Result<PathBuf, VmError> {
    image().await?;
    Ok(programs().join(name))
}

/// The programs of the image by themselves.
fn programs() -> PathBuf {
    target_dir().join("image/programs")
}

/// A replica of the controller on another node than the one that ends: the program of the image,
/// under the lease of the release.
#[must_use]
pub fn replica(setup: Setup) -> Setup {
    let binary = programs().join(CONTROLLER);
    let lease = format!("--leader-elect-resource-namespace={NAMESPACE}");
    Setup { binary, ..setup }.argument("--leader-elect=true").argument(&lease)
}

/// Helm, built if it is missing.
pub async fn helm() -> Result<PathBuf, LabError> {
    go_module::program("helm", "helm.sh/helm/v4/cmd/helm").await
}

/// Puts the image where the node's disk takes it from.
pub(super) async fn prepare(files: &Path) -> Result<(), VmError> {
    let image = image().await?;
    let to = files.join(IMAGE_FILE);
    std::fs::copy(&image, &to).map_err(LabError::file("copy", image))?;
    Ok(())
}

/// Installs the chart with its default values, and then lets it act by the one word that says so.
/// Returns when the controller's pods are available.
pub(super) async fn install(node: &Node, cluster: &Cluster, flags: &[&str]) -> Result<(), VmError> {
    let import = format!(
        "ctr -n k8s.io images import /opt/run/agent/{IMAGE_FILE} && \
         ctr -n k8s.io images list -q | grep epilogue \
         | xargs -I% ctr -n k8s.io images label % io.cri-containerd.pinned=pinned"
    );
    node.run(&import).await?;
    let chart = workspace_root().join("deploy/chart").display().to_string();
    let mut arguments = vec!["install", RELEASE[0], &chart, RELEASE[1], RELEASE[2]];
    let extra = format!("agent.extraArgs={}", serde_json::json!(flags));
    arguments.extend(["--set", "mode=enforce", "--set-json", &extra]);
    run_helm(cluster, &arguments).await?;
    controllers_are_available(node, cluster).await
}

/// Asks by `helm test` whether the installation works; returns what Helm prints. Fails if it does
/// not.
pub async fn test(cluster: &Cluster) -> Result<String, VmError> {
    let arguments = ["test", RELEASE[0], RELEASE[1], RELEASE[2], "--timeout=5m"];
    run_helm(cluster, &arguments).await
}

/// The names of the release's objects that the API has.
pub async fn objects(cluster: &Cluster) -> Result<Vec<String>, VmError> {
    let client = cluster.admin_client().await?;
    let all = inventory(&client).await.map_err(LabError::api("list all objects"))?;
    let ours = all.into_iter().filter(|(name, it)| is_of_release(name, it, &[RELEASE[0]]));
    Ok(ours.map(|(name, _)| name).collect())
}

/// Removes the release as a user does, and waits until its namespaces are gone.
pub async fn uninstall(node: &Node, cluster: &Cluster) -> Result<String, VmError> {
    let said =
        run_helm(cluster, &["uninstall", RELEASE[0], RELEASE[1], RELEASE[2], "--timeout=5m"])
            .await?;
    let namespaces: Api<Namespace> = Api::all(cluster.admin_client().await?);
    let left = async || {
        let mut left = Vec::new();
        for name in [NAMESPACE, AGENTS_NAMESPACE] {
            match namespaces.get_opt(name).await {
                Ok(None) => {}
                Ok(Some(_)) => left.push(name.to_owned()),
                Err(error) => left.push(error.to_string()),
            }
        }
        left
    };
    let seen = observe_costly_until(WITHIN, left, Vec::is_empty).await;
    seen.map_err(|last| late(node, "the release's namespaces are gone", format!("{last:?}")))?;
    Ok(said)
}

/// Runs Helm as the lab's administrator; returns what it prints.
async fn run_helm(cluster: &Cluster, arguments: &[&str]) -> Result<String, VmError> {
    let home = LabDir::of_workspace().bin().join("helm-home");
    let output = Command::new(helm().await?)
        .args(arguments)
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig_path())
        // Not the user's plugins and repositories.
        .env("HELM_CONFIG_HOME", &home)
        .env("HELM_CACHE_HOME", &home)
        .env("HELM_DATA_HOME", &home)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| LabError::Spawn { program: "helm".into(), source })?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if !output.status.success() {
        let command = format!("helm {}", arguments.join(" "));
        return Err(VmError::Command { command, status: output.status, stderr: said });
    }
    Ok(said)
}

/// Waits until each replica of the controller is available.
pub async fn controllers_are_available(node: &Node, cluster: &Cluster) -> Result<(), VmError> {
    let deployments: Api<Deployment> = Api::namespaced(cluster.admin_client().await?, NAMESPACE);
    let observe = async || match deployments.get(CONTROLLER).await {
        Ok(deployment) => {
            let wanted = deployment.spec.and_then(|spec| spec.replicas);
            let status = deployment.status.unwrap_or_default();
            (wanted.is_some() && wanted == status.available_replicas, format!("{status:?}"))
        }
        Err(error) => (false, error.to_string()),
    };
    let seen = observe_costly_until(WITHIN, observe, |(available, _)| *available).await;
    seen.map(drop).map_err(|(_, last)| late(node, "the controller is available", last))
}

/// The logs of the controller's containers on the node, also of those that have ended.
pub async fn controller_logs(node: &Node) -> Result<String, VmError> {
    node.run(&format!("cat /var/log/pods/{NAMESPACE}_*/*/*.log")).await
}

fn late(node: &Node, what: &str, last: String) -> VmError {
    let dir = node.machine().dir().to_owned();
    VmError::Late { what: what.to_owned(), within: WITHIN, last, dir }
}
