//! Defines the flags of `check`.

use std::path::PathBuf;

use agent_core::agent::Features;
use agent_core::shutdown::priority_groups::PriorityGroups;
use epilogue_runtime::client::ClientOptions;

use super::host::optional_client;
use super::run::Enforcement;
use super::{
    HostArgs, KubeletArgs, KubeletPlace, Output, PressureArgs, PriorityGroupArgs, RunArgsError,
};
use crate::cri::Endpoint;

/// The flags of `check`.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub host: HostArgs,
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
    #[command(flatten)]
    kubelet: KubeletArgs,
    /// The mode of the agent here. One that observes needs no right to write, and no runtime.
    #[arg(long, value_name = "MODE", env = "EPILOGUE_MODE", default_value = "enforce")]
    mode: Enforcement,
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
    /// Where the kubelet is.
    pub kubelet: KubeletPlace,
    /// Whether the agent here only observes.
    pub observes: bool,
    /// What the agent does outside of shutdowns.
    pub features: Features,
}

impl CheckArgs {
    /// Builds the configuration; fails if a flag is invalid or contradicts another.
    pub fn config(&self) -> Result<CheckConfig, RunArgsError> {
        let (kubeconfig, node) = (self.kubeconfig.as_deref(), self.node_name.as_deref());
        Ok(CheckConfig {
            priority_groups: self.priority_groups.priority_groups()?,
            api: optional_client(kubeconfig, node, &self.host.root)?,
            kubelet: self.kubelet.config()?,
            observes: self.mode == Enforcement::Observe,
            features: self.pressure.clone().features().map_err(RunArgsError::Pressure)?.0,
        })
    }
}
