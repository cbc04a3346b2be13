//! A machine that is a node: its kubelet joined a control plane of the laboratory with an identity
//! of its own, so the Node authorizer and NodeRestriction apply to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::Api;

use super::error::VmError;
use super::kit::Kit;
use super::kubelet::KubeletConfig;
use super::machine::{Boot, Machine};
use super::record::NODES;
use crate::cluster::Cluster;
use crate::error::LabError;
use crate::eventually::observe_costly_until;

/// Five times what an emulated machine takes.
const READY_WITHIN: Duration = Duration::from_mins(3);

/// If emulation fails before a test has used the machine, another machine may replace it.
const STARTS_MAX: u32 = 2;

/// A running node.
#[derive(Debug)]
pub struct Node {
    name: String,
    cluster: Cluster,
    machine: Machine,
}

impl Node {
    /// Starts the machine and its kubelet, and returns when the node is Ready. Its files are in
    /// `nodes/NAME` of `lab_dir`.
    pub async fn start(
        kit: &Kit,
        cluster: &Cluster,
        lab_dir: &Path,
        name: &str,
        boot: Boot,
        kubelet: &KubeletConfig,
    ) -> Result<Self, VmError> {
        let dir = lab_dir.join(NODES).join(name);
        let payload = write_payload(cluster, &dir, name, kubelet)?;
        let mut attempt = 1;
        loop {
            let machine = Machine::start(kit, &dir, boot, &payload).await?;
            let mut node = Self { name: name.to_owned(), cluster: cluster.clone(), machine };
            let joined = node.join().await;
            if joined.is_ok() {
                return Ok(node);
            }
            if attempt == STARTS_MAX || !node.machine.has_locked_up() {
                return joined.map(|()| node);
            }
            eprintln!("{name}: the emulator's processors wait for each other; started anew");
            node.machine.cut().await;
            attempt += 1;
        }
    }

    async fn join(&mut self) -> Result<(), VmError> {
        self.start_kubelet().await?;
        self.ready(READY_WITHIN).await
    }

    async fn start_kubelet(&mut self) -> Result<(), VmError> {
        // The guest may have read the disk before the snapshot, when it was another one.
        let command = "blockdev --flushbufs /dev/vdc && mkdir -p /opt/run && \
                       mount -o ro /dev/vdc /opt/run && cp /opt/run/kubernetes/* /etc/kubernetes/ \
                       && systemctl enable --now --quiet kubelet";
        self.machine.shell().run(command).await.map(drop)
    }

    /// Starts its stopped kubelet with another configuration; returns at once.
    pub async fn start_kubelet_with(&self, kubelet: &KubeletConfig) -> Result<(), VmError> {
        let start = "cat > /etc/kubernetes/kubelet.yaml && systemctl start --no-block kubelet";
        self.machine.shell().run_with(start, kubelet.render().as_bytes()).await.map(drop)
    }

    /// Its name in the API.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The machine, to wait for its end or to end it.
    pub fn machine_mut(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Runs a command on it.
    pub async fn run(&self, command: &str) -> Result<String, VmError> {
        self.machine.shell().run(command).await
    }

    /// Starts its machine again after its end, and waits until the API says that it is Ready in the
    /// new boot.
    pub async fn start_again(&mut self) -> Result<(), VmError> {
        self.machine.start_again().await?;
        let boot_id = self.machine.boot_id().await?;
        let nodes: Api<v1::Node> = Api::all(self.cluster.admin_client().await?);
        // The API may call it Ready from before.
        let observe = async || match nodes.get(&self.name).await {
            Ok(node) if boot_id_of(&node) == Some(&boot_id) => ready_condition(&node),
            Ok(_) => "its kubelet has not reported the new boot".to_owned(),
            Err(error) => error.to_string(),
        };
        let seen = observe_costly_until(READY_WITHIN, observe, |ready| ready == "True").await;
        seen.map(drop).map_err(|last| self.not_ready(READY_WITHIN, last))
    }

    /// Waits until the API says that it is Ready.
    pub async fn ready(&self, within: Duration) -> Result<(), VmError> {
        let nodes: Api<v1::Node> = Api::all(self.cluster.admin_client().await?);
        let observe = async || match nodes.get(&self.name).await {
            Ok(node) => ready_condition(&node),
            Err(error) => error.to_string(),
        };
        let seen = observe_costly_until(within, observe, |ready| ready == "True").await;
        seen.map(drop).map_err(|last| self.not_ready(within, last))
    }

    fn not_ready(&self, within: Duration, last: String) -> VmError {
        VmError::Late {
            what: format!("node {} is Ready", self.name),
            within,
            last,
            dir: self.machine.dir().to_owned(),
        }
    }
}

fn boot_id_of(node: &v1::Node) -> Option<&String> {
    Some(&node.status.as_ref()?.node_info.as_ref()?.boot_id)
}

/// Status, and the message if it is not True.
pub fn ready_condition(node: &v1::Node) -> String {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    match conditions.into_iter().find(|condition| condition.type_ == "Ready") {
        Some(ready) if ready.status == "True" => "True".to_owned(),
        Some(ready) => format!("{} {:?} {:?}", ready.status, ready.reason, ready.message),
        None => "unknown".to_owned(),
    }
}

fn write_payload(
    cluster: &Cluster,
    dir: &Path,
    name: &str,
    kubelet: &KubeletConfig,
) -> Result<PathBuf, VmError> {
    let payload = dir.join("payload");
    let files = payload.join("kubernetes");
    std::fs::create_dir_all(&files).map_err(LabError::file("create", &files))?;
    let kubeconfig = files.join("kubelet.kubeconfig");
    cluster.write_node_kubeconfig(name, &kubeconfig)?;
    let text = std::fs::read_to_string(&kubeconfig).map_err(LabError::file("read", &kubeconfig))?;
    // QEMU's network leads this address to the loopback of this machine.
    let text = text.replace("https://127.0.0.1:", "https://10.0.2.2:");
    let port = text
        .split_once("https://10.0.2.2:")
        .map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect::<String>())
        .unwrap_or_default();
    let env = format!("NODE_NAME={name}\nAPI_PORT={port}\n");
    let contents =
        [("kubelet.kubeconfig", text), ("kubelet.yaml", kubelet.render()), ("kubelet.env", env)];
    for (file, content) in contents {
        let path = files.join(file);
        std::fs::write(&path, content).map_err(LabError::file("write", path))?;
    }
    Ok(payload)
}
