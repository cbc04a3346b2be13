//! Defines the flags of `leave`.

use std::path::PathBuf;

use epilogue_runtime::client::ClientOptions;
use epilogue_runtime::rate_limit::RateLimit;

use super::RunArgsError;
use super::run::{absolute, node_name};

/// The flags of `leave`.
#[derive(Debug, clap::Args)]
pub struct LeaveArgs {
    /// Directory that contains the host's files.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// D-Bus address of the system bus. Without it: /run/dbus/system_bus_socket under --root.
    #[arg(long, value_name = "ADDRESS", env = "DBUS_SYSTEM_BUS_ADDRESS")]
    pub bus_address: Option<String>,
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
        let state_dir = self.root.join(absolute("state-dir", &self.state_dir)?);
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
        Ok(LeaveConfig { state_dir, api })
    }
}
