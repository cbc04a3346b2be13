//! Defines the flags that several subcommands share: where the host, its kubelet and the API are.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use epilogue_runtime::client::ClientOptions;
use epilogue_runtime::rate_limit::RateLimit;

use super::RunArgsError;
use crate::source::pressure::KUBELET_DIR;

/// The kernel's file with the host's name.
pub(super) const HOSTNAME_FILE: &str = "proc/sys/kernel/hostname";
/// Maximum length of an object's name.
const NAME_CHARS_MAX: usize = 253;

/// The flags that name the host.
#[derive(Clone, Debug, clap::Args)]
pub struct HostArgs {
    /// Directory that contains the host's files and the socket of its system bus, unless
    /// DBUS_SYSTEM_BUS_ADDRESS in the environment names another bus.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
}

/// The flags that name the kubelet.
#[derive(Clone, Debug, clap::Args)]
#[expect(clippy::struct_field_names, reason = "they are the flags' names")]
pub struct KubeletArgs {
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
    /// Address at which the kubelet serves /configz and the health of its sync loop; empty for
    /// none.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:10250")]
    kubelet_address: String,
}

/// Where the kubelet is.
#[derive(Clone, Debug)]
pub struct KubeletPlace {
    /// Names of its unit in systemd, such as `kubelet.service`. Distributions use several, and k3s
    /// has one for servers and one for workers. The first that is loaded counts.
    pub units: Vec<String>,
    /// Its directory on the host. Text, because its paths contain the names of pods.
    pub dir: String,
    /// The address of its `/healthz`, on the loopback, if it serves it.
    pub healthz: Option<SocketAddr>,
    /// Its main port on the loopback, which serves `/configz` and a `/healthz` that checks its sync
    /// loop; `None` if it is not asked.
    pub configz: Option<SocketAddr>,
}

impl KubeletArgs {
    pub(super) fn config(&self) -> Result<KubeletPlace, RunArgsError> {
        let is_unit = |unit: &&String| unit.ends_with(".service") && !unit.contains('/');
        if let Some(other) = self.kubelet_unit.iter().find(|unit| !is_unit(unit)) {
            return Err(RunArgsError::KubeletUnit(other.clone()));
        }
        let dir = &self.kubelet_root_dir;
        absolute("kubelet-root-dir", dir)?;
        let dir = dir.to_str().ok_or_else(|| RunArgsError::NoText(dir.clone()))?;
        Ok(KubeletPlace {
            units: self.kubelet_unit.clone(),
            dir: dir.to_owned(),
            healthz: address("kubelet-healthz-address", &self.kubelet_healthz_address)?,
            configz: address("kubelet-address", &self.kubelet_address)?,
        })
    }
}

/// How the agent reaches the API.
pub(super) fn client(kubeconfig: Option<&Path>) -> ClientOptions {
    ClientOptions {
        kubeconfig: kubeconfig.map(Path::to_owned),
        user_agent: concat!("epilogue-agent/", env!("CARGO_PKG_VERSION")).to_owned(),
        rate_limit: RateLimit::default(),
    }
}

/// How a subcommand that may do without the API reaches it, and the node's name there; `None` if it
/// does not use the API.
pub(super) fn optional_client(
    kubeconfig: Option<&Path>,
    node: Option<&str>,
    root: &Path,
) -> Result<Option<(ClientOptions, String)>, RunArgsError> {
    // The manifests set the node's name in the environment. Without it, this is not an agent's pod.
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && node.is_some();
    if kubeconfig.is_none() && !in_pod {
        return Ok(None);
    }
    Ok(Some((client(kubeconfig), node_name(node, root)?)))
}

pub(super) fn absolute<'a>(flag: &'static str, path: &'a Path) -> Result<&'a Path, RunArgsError> {
    path.strip_prefix("/").map_err(|_| RunArgsError::Relative { flag, path: path.to_owned() })
}

/// A kubelet registers the host's name, or the one from its flag, in lower case.
pub(super) fn node_name(given: Option<&str>, root: &Path) -> Result<String, RunArgsError> {
    let name = match given {
        Some(name) => name.to_lowercase(),
        None => host_name(root)?.to_lowercase(),
    };
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(good) {
        return Err(RunArgsError::NodeName(name));
    }
    Ok(name)
}

fn host_name(root: &Path) -> Result<String, RunArgsError> {
    let path = root.join(HOSTNAME_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(RunArgsError::HostName { path, source }),
    }
}

fn address(flag: &'static str, text: &str) -> Result<Option<SocketAddr>, RunArgsError> {
    if text.is_empty() {
        return Ok(None);
    }
    let bad = |_| RunArgsError::Address { flag, text: text.to_owned() };
    text.parse().map(Some).map_err(bad)
}
