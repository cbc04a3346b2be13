//! Defines the flags of `leave-status`.

use std::path::PathBuf;

use agent_core::time_span::TimeSpan;
use epilogue_runtime::client::ClientOptions;

/// The flags of `leave-status`.
#[derive(Debug, clap::Args)]
pub struct LeaveStatusArgs {
    /// Namespace of the DaemonSets.
    #[arg(long, value_name = "NAME", default_value = "epilogue-agents")]
    pub namespace: String,
    /// Name of a DaemonSet that runs `leave`. May be given several times.
    #[arg(long, value_name = "NAME", default_value = "epilogue-agent")]
    pub daemon_set: Vec<String>,
    /// Maximum time to wait, such as 90s or 5min.
    #[arg(long, value_name = "DURATION", default_value = "2min")]
    pub timeout: TimeSpan,
    /// Kubeconfig file. Without it: the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl LeaveStatusArgs {
    /// How to reach the API.
    pub fn client(&self) -> ClientOptions {
        super::host::client(self.kubeconfig.as_deref())
    }
}
