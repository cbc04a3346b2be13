//! Defines the flags of `install-status`.

use std::path::PathBuf;

use agent_core::install_status::Place;
use agent_core::time_span::TimeSpan;
use epilogue_runtime::client::ClientOptions;

/// The flags of `install-status`.
#[derive(Debug, clap::Args)]
pub struct InstallStatusArgs {
    /// Name of an admission policy, which is also that of its binding. May be given several times.
    #[arg(long, value_name = "NAME", required = true)]
    pub policy: Vec<String>,
    /// A DaemonSet of agents. May be given several times.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = place)]
    pub daemon_set: Vec<Place>,
    /// The controller's Deployment, which has the name of its lease.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = place)]
    pub controller: Option<Place>,
    /// Maximum time to wait, such as 90s or 5min.
    #[arg(long, value_name = "DURATION", default_value = "2min")]
    pub timeout: TimeSpan,
    /// Kubeconfig file. Without it: the pod's service account.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl InstallStatusArgs {
    /// How to reach the API.
    pub fn client(&self) -> ClientOptions {
        super::host::client(self.kubeconfig.as_deref())
    }
}

fn place(text: &str) -> Result<Place, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(Place { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err("expected NAMESPACE/NAME, such as epilogue-agents/epilogue-agent".to_owned()),
    }
}
