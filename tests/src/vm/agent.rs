//! Installs our agent on a node from the files of `deploy/`, as a user would: as a service of the
//! host, as the DaemonSet's pod, or by the chart together with the controller. It does not control
//! the agent afterwards.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::BoundObjectReference;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::config::AuthInfo;
use serde_json::{Value, json};

use super::disk;
use super::error::VmError;
use super::kit::Kit;
use super::node::Node;
use super::programs::{self, Libc};
use super::record::NODES;
use super::release;
use crate::cluster::Cluster;
use crate::error::LabError;
use crate::eventually::observe_costly_until;
use crate::install::{self, AGENT, AGENTS_NAMESPACE};
use crate::kubeconfig;
use crate::paths::workspace_root;
use crate::process::Program;

/// How the agent is installed on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Install {
    /// As a service of the host.
    Host,
    /// As a service of the host, with the program of the release.
    ReleasedHost,
    /// As a DaemonSet's pod.
    DaemonSet,
    /// By the chart, with the release's image and the controller.
    Chart,
}

/// Five times what an emulated machine takes.
const READY_WITHIN: Duration = Duration::from_mins(3);

/// The unit's file.
const UNIT: &str = "epilogue-agent.service";

/// The DaemonSet leaves out a node with this label.
pub(crate) const PLACED_LABEL: &str = "epilogue.dev/agent";

/// Puts the agent's files where [`Node::start`] finds them for the node's disk; call it before
/// that.
pub async fn prepare(
    install: Install,
    kit: &Kit,
    lab_dir: &Path,
    node: &str,
) -> Result<(), VmError> {
    let dir = lab_dir.join(NODES).join(node);
    let files = dir.join("payload/agent");
    std::fs::create_dir_all(&files).map_err(LabError::file("create", &files))?;
    match install {
        Install::Host | Install::ReleasedHost => {
            if install == Install::Host {
                program(Libc::of(kit)?, &files).await?;
            } else {
                let (source, to) = (release::program(AGENT).await?, files.join(AGENT));
                std::fs::copy(&source, to).map_err(LabError::file("copy", source))?;
            }
            let unit = workspace_root().join("deploy/systemd").join(UNIT);
            std::fs::copy(&unit, files.join(UNIT)).map_err(LabError::file("copy", unit))?;
            Ok(())
        }
        Install::DaemonSet => {
            // Its image contains only the program.
            let program = program(Libc::None, &files).await?;
            let image = image(&install::daemon_set()?);
            let archive = files.join("image.tar").into_os_string();
            let arguments = [archive, image.into(), program.into_os_string()];
            let log = dir.join("pack.log");
            let pack = workspace_root().join("deploy/image/pack");
            disk::run_program(&Program::new("pack", &pack, arguments, &log)).await
        }
        Install::Chart => release::prepare(&files).await,
    }
}

/// Copies the agent there; the image has the program under the name of its file.
async fn program(libc: Libc, files: &Path) -> Result<PathBuf, VmError> {
    let source = programs::agent(libc).await?;
    let program = files.join(AGENT);
    std::fs::copy(&source, &program).map_err(LabError::file("copy", source))?;
    Ok(program)
}

/// Installs it on a running, prepared node, and waits until it is ready.
pub async fn install(
    install: Install,
    node: &Node,
    cluster: &Cluster,
    flags: &[&str],
) -> Result<(), VmError> {
    if install != Install::Chart {
        install::apply_rights(&cluster.admin_client().await?).await?;
    }
    match install {
        Install::Host | Install::ReleasedHost => host_service(node, cluster, flags).await?,
        Install::DaemonSet => daemon_set(node, cluster, flags).await?,
        Install::Chart => release::install(node, cluster, flags).await?,
    }
    ready(node).await
}

/// Follows `deploy/systemd/README.md`.
async fn host_service(node: &Node, cluster: &Cluster, flags: &[&str]) -> Result<(), VmError> {
    let nodes: Api<v1::Node> = Api::all(cluster.admin_client().await?);
    let label = json!({"metadata": {"labels": {PLACED_LABEL: "host"}}});
    let object = nodes.patch(node.name(), &PatchParams::default(), &Patch::Merge(label)).await;
    let bound_to = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.name().to_owned()),
        uid: object.map_err(LabError::api("label the node"))?.metadata.uid,
    };
    let token = cluster.bound_token(AGENTS_NAMESPACE, AGENT, Some(bound_to)).await?;
    let mut kubeconfig = kubeconfig::read(cluster.kubeconfig_path())?;
    for user in &mut kubeconfig.auth_infos {
        let token_file = Some("/etc/epilogue/token".to_owned());
        user.auth_info = Some(AuthInfo { token_file, ..AuthInfo::default() });
    }
    let text = serde_json::to_string(&kubeconfig).expect("a kubeconfig must be JSON");
    // QEMU's network leads this address to the loopback of this machine.
    let text = text.replace("https://127.0.0.1:", "https://10.0.2.2:");
    for (file, content) in [("token", &token), ("agent.kubeconfig", &text)] {
        let put = format!("umask 077 && mkdir -p /etc/epilogue && cat > /etc/epilogue/{file}");
        node.machine().shell().run_with(&put, content.as_bytes()).await?;
    }
    let unit = format!(
        "install -m 755 /opt/run/agent/{AGENT} /usr/local/bin/ && \
         install -m 644 /opt/run/agent/{UNIT} /etc/systemd/system/ && \
         printf 'NODE_NAME={}\nEPILOGUE_MODE=enforce\nEPILOGUE_AGENT_FLAGS={}\n' \
         > /etc/epilogue/agent.env && \
         systemctl daemon-reload && systemctl enable --now --quiet {UNIT}",
        node.name(),
        flags.join(" "),
    );
    node.run(&unit).await.map(drop)
}

/// The base with an overlay's arguments; the image is imported, without a registry.
async fn daemon_set(node: &Node, cluster: &Cluster, flags: &[&str]) -> Result<(), VmError> {
    let mut set = install::daemon_set()?;
    let image = image(&set);
    let import = format!(
        "ctr -n k8s.io images import /opt/run/agent/image.tar && \
         ctr -n k8s.io images label {image} io.cri-containerd.pinned=pinned"
    );
    node.run(&import).await?;
    let arguments = set["spec"]["template"]["spec"]["containers"][0]["args"].as_array_mut();
    arguments
        .expect("the DaemonSet's container must have arguments")
        .extend(flags.iter().map(|flag| json!(flag)));
    install::apply_object(&cluster.admin_client().await?, &set).await?;
    Ok(())
}

fn image(set: &Value) -> String {
    let image = set["spec"]["template"]["spec"]["containers"][0]["image"].as_str();
    image.expect("the DaemonSet's container must have an image").to_owned()
}

/// Waits until it reports ready: it holds its lock, and knows the node's pods.
pub async fn ready(node: &Node) -> Result<(), VmError> {
    let ask = "systemd-inhibit --list --no-legend; \
               busybox wget -qO- http://127.0.0.1:9465/readyz 2>&1 && echo READY";
    let observe = async || match node.machine().shell().try_run(ask, &[]).await {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => error.to_string(),
    };
    let is_ready = |said: &String| said.contains(AGENT) && said.ends_with("READY\n");
    let seen = observe_costly_until(READY_WITHIN, observe, is_ready).await;
    seen.map(drop).map_err(|last| VmError::Late {
        what: format!("the agent on {} is ready", node.name()),
        within: READY_WITHIN,
        last,
        dir: node.machine().dir().to_owned(),
    })
}
