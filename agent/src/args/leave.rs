//! Defines the flags of `leave`.

use std::path::PathBuf;

use epilogue_runtime::client::ClientOptions;

use super::host::{absolute, optional_client};
use super::{HostArgs, RunArgsError};

/// The flags of `leave`.
#[derive(Debug, clap::Args)]
pub struct LeaveArgs {
    #[command(flatten)]
    pub host: HostArgs,
    /// The directory of the agent's journal; under --root.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/epilogue-agent")]
    state_dir: PathBuf,
    /// Kubeconfig file of the agent. Without it, and outside of a pod, the node's object stays as
    /// it is.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Name of this node in the API. Without it: the host's name in lower case.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    /// Keep running after everything is removed, until SIGTERM arrives: for a DaemonSet, whose pods
    /// must not exit.
    #[arg(long)]
    pub wait: bool,
}

/// The configuration that the flags make.
#[derive(Clone, Debug)]
pub struct LeaveConfig {
    /// The journal's directory.
    pub state_dir: PathBuf,
    /// How to reach the API, and the node's name there; `None` if `leave` does not use the API.
    pub api: Option<(ClientOptions, String)>,
}

impl LeaveArgs {
    /// Builds the configuration; fails if a flag is invalid.
    pub fn config(&self) -> Result<LeaveConfig, RunArgsError> {
        let state_dir = self.host.root.join(absolute("state-dir", &self.state_dir)?);
        let (kubeconfig, node) = (self.kubeconfig.as_deref(), self.node_name.as_deref());
        let api = optional_client(kubeconfig, node, &self.host.root)?;
        Ok(LeaveConfig { state_dir, api })
    }
}
