//! Defines the flags of `check`.

use std::net::SocketAddr;
use std::path::PathBuf;

use agent_core::agent::Features;
use agent_core::shutdown::priority_groups::PriorityGroups;
use epilogue_runtime::client::ClientOptions;
use epilogue_runtime::rate_limit::RateLimit;

use super::run::{address, kubelet_dir, node_name};
use super::{Output, PressureArgs, PriorityGroupArgs, RunArgsError};
use crate::cri::Endpoint;
use crate::source::pressure::KUBELET_DIR;

/// The flags of `check`.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// Directory that contains the host's files.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// D-Bus address of the system bus. Without it: /run/dbus/system_bus_socket under --root.
    #[arg(long, value_name = "ADDRESS", env = "DBUS_SYSTEM_BUS_ADDRESS")]
    pub bus_address: Option<String>,
    /// The container runtime's socket, as in the kubelet's containerRuntimeEndpoint: unix:///path.
    /// Without it: the socket under --root where containerd, CRI-O, k3s and others listen.
    #[arg(long, value_name = "ENDPOINT")]
    pub runtime_endpoint: Option<Endpoint>,
    /// Kubeconfig file of the agent, to ask the API whether reports would get through. In a pod of
    /// deploy/ the check uses the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Name of this node in the API. Without it: the host's name in lower case.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    /// The kubelet's systemd unit. Of several, separated by commas, the first that is loaded
    /// counts.
    #[arg(long, value_name = "UNIT", default_value = "kubelet.service", value_delimiter = ',')]
    kubelet_unit: Vec<String>,
    /// The kubelet's directory, as in its --root-dir; under --root.
    #[arg(long, value_name = "DIR", default_value = KUBELET_DIR)]
    kubelet_root_dir: PathBuf,
    /// Address at which the kubelet serves /healthz; empty for none.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10248")]
    kubelet_healthz_address: String,
    /// Address at which the kubelet serves /configz; empty for none.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10250")]
    kubelet_address: String,
    /// Form of the output.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub output: Output,
    #[command(flatten)]
    priority_groups: PriorityGroupArgs,
    #[command(flatten)]
    pressure: PressureArgs,
}

/// The configuration that the flags make.
#[derive(Clone, Debug)]
pub struct CheckConfig {
    /// The priority groups; `None` turns the termination of pods off.
    pub priority_groups: Option<PriorityGroups>,
    /// How to reach the API, and the node's name there; `None` if `check` does not ask the API.
    pub api: Option<(ClientOptions, String)>,
    /// Names of the kubelet's unit; the first that is loaded counts.
    pub kubelet_units: Vec<String>,
    /// The kubelet's directory on the host.
    pub kubelet_dir: String,
    /// The address of the kubelet's `/healthz`, if it serves it.
    pub kubelet_healthz: Option<SocketAddr>,
    /// The address of the kubelet's `/configz`, if it serves it.
    pub kubelet_configz: Option<SocketAddr>,
    /// What the agent does outside of shutdowns.
    pub features: Features,
}

impl CheckArgs {
    /// Builds the configuration; fails if a flag is invalid or contradicts another.
    pub fn config(&self) -> Result<CheckConfig, RunArgsError> {
        // The manifests set the node's name in the environment. Without it, this is not an agent's
        // pod.
        let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let api = if self.kubeconfig.is_some() || in_pod && self.node_name.is_some() {
            let options = ClientOptions {
                kubeconfig: self.kubeconfig.clone(),
                user_agent: concat!("epilogue-agent/", env!("CARGO_PKG_VERSION")).to_owned(),
                rate_limit: RateLimit::default(),
            };
            Some((options, node_name(self.node_name.clone(), &self.root)?))
        } else {
            None
        };
        Ok(CheckConfig {
            priority_groups: self.priority_groups.priority_groups()?,
            api,
            kubelet_units: self.kubelet_unit.clone(),
            kubelet_dir: kubelet_dir(&self.kubelet_root_dir)?,
            kubelet_healthz: address("kubelet-healthz-address", &self.kubelet_healthz_address)?,
            kubelet_configz: address("kubelet-address", &self.kubelet_address)?,
            features: self.pressure.clone().features().map_err(RunArgsError::Pressure)?.0,
        })
    }
}
