//! Runs the host of a simulated node: its logind on a bus of its own, and our agent, the real
//! program. The agent talks to that logind, to the API under its own service account, and to
//! nothing else.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use doubles::bus::PrivateBus;
use doubles::login1::{Down, Login1, State};
use k8s_openapi::api::authentication::v1::BoundObjectReference;
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use crate::cluster::Cluster;
use crate::eventually::observe_until;
use crate::install::{AGENT, AGENTS_NAMESPACE};
use crate::paths::program;
use crate::process::{Process, Program};
use crate::{install, kubeconfig};

const READY_WITHIN: Duration = Duration::from_secs(20);
/// The delay that logind grants.
const DELAY_SECONDS: u64 = 60;
const STOP_GRACE: Duration = Duration::from_secs(5);

/// A running host.
pub(super) struct Host {
    login1: Login1,
    agent: Process,
    _bus: PrivateBus,
}

/// Path of the agent's binary.
fn agent_binary() -> PathBuf {
    program("epilogue-agent")
}

impl Host {
    /// Starts logind and the agent of `node`, with their files in `dir`, and waits until the agent
    /// holds its lock.
    pub(super) async fn start(cluster: &Cluster, dir: &Path, node: &str) -> anyhow::Result<Self> {
        let root = dir.join(node);
        let boot_id = root.join("proc/sys/kernel/random/boot_id");
        std::fs::create_dir_all(boot_id.parent().unwrap_or(&root)).context("make the host")?;
        std::fs::write(&boot_id, format!("{:032x}\n", rand::random::<u128>()))?;
        let bus = PrivateBus::start(&root);
        let login1 = Login1::start(&bus.address, &root, DELAY_SECONDS).await;
        let kubeconfig = root.join("agent.kubeconfig");
        write_kubeconfig(cluster, node, &kubeconfig).await?;
        let client = kubeconfig::client(kubeconfig::read(&kubeconfig)?, &kubeconfig).await?;
        install::policies_bind(client, node).await?;
        let args = [
            "run".to_owned(),
            format!("--node-name={node}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--root={}", root.display()),
            "--shutdown-grace-period=20s".to_owned(),
            "--shutdown-grace-period-critical-pods=5s".to_owned(),
            // A simulated kubelet has neither of these.
            "--runtime-endpoint=".to_owned(),
            "--kubelet-healthz-address=".to_owned(),
            "--kubelet-address=".to_owned(),
            "--metrics-bind-address=0".to_owned(),
            "--log-format=text".to_owned(),
        ];
        let log = root.join("agent.log");
        let program = Program::new(AGENT, &agent_binary(), args, &log)
            .env("DBUS_SYSTEM_BUS_ADDRESS", &bus.address);
        let mut agent = Process::spawn_program(&program)?;
        let observe = async || login1.state();
        let held = |logind: &State| logind.holders().contains(&AGENT);
        tokio::select! {
            ended = agent.ended() => return Err(ended.into()),
            seen = observe_until(READY_WITHIN, observe, held) => {
                seen.map_err(|_| anyhow::anyhow!("the agent takes no lock: {}", log.display()))?;
            }
        }
        Ok(Self { login1, agent, _bus: bus })
    }

    /// Powers it off, as far as logind goes: returns when no lock delays it any more.
    pub(super) async fn power_off(self) -> anyhow::Result<()> {
        self.login1.shut_down("poweroff").await;
        let logind = self.login1.until("down", |logind| logind.down.is_some()).await;
        if logind.down == Some(Down::TimedOut) {
            anyhow::bail!("the shutdown was delayed to the end, by {:?}", logind.holders());
        }
        self.agent.stop(STOP_GRACE).await;
        Ok(())
    }
}

/// A token bound to the node, as a service of the host has it.
async fn write_kubeconfig(cluster: &Cluster, node: &str, path: &Path) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(cluster.admin_client().await?);
    let bound_to = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: nodes.get(node).await?.metadata.uid,
    };
    let token = cluster.bound_token(AGENTS_NAMESPACE, AGENT, Some(bound_to)).await?;
    let admin = kubeconfig::read(cluster.kubeconfig_path())?;
    kubeconfig::write(path, &kubeconfig::with_token(admin, &token))?;
    Ok(())
}
