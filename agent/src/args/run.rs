//! Defines the flags of `run`.

use std::path::{Path, PathBuf};

use agent_core::agent::Features;
use agent_core::pod::PodUid;
use agent_core::shutdown::candidates::BarePods;
use agent_core::shutdown::priority_groups::{PriorityGroups, PriorityGroupsError};
use clap::{ArgAction, ValueEnum};
use epilogue_runtime::admin::BindAddress;
use epilogue_runtime::client::ClientOptions;
use epilogue_runtime::telemetry::{LogFilter, LogFormat};
use thiserror::Error;

use super::host::{absolute, client, node_name};
use super::{
    HostArgs, KubeletArgs, KubeletPlace, PressureArgs, PressureArgsError, PriorityGroupArgs,
    ScrapeArgs, ScrapeConfig,
};
use crate::cri::Sockets;
use crate::source::notices::Choice;

/// The flags of `run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// Name of this node in the API. Without it: the host's name in lower case.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    /// Kubeconfig file. Without it: the pod's service account, or what kubectl would use.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    host: HostArgs,
    /// Directory of the journal, which must survive a reboot; under --root.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/epilogue-agent")]
    state_dir: PathBuf,
    /// Whether the agent acts: enforce, or observe, which writes events and nothing else. It limits
    /// --shutdown, --pressure and --stuck-pods. An agent that observes uses no container runtime,
    /// unless --runtime-endpoint names it.
    #[arg(long, value_name = "MODE", env = "EPILOGUE_MODE", default_value = "observe")]
    mode: Enforcement,
    /// With --mode=enforce, what to do when the node shuts down: terminate pods and report, or only
    /// say what would be done. Here observe limits the other tasks, too. Default: the mode.
    #[arg(long, value_name = "MODE")]
    shutdown: Option<Enforcement>,
    #[command(flatten)]
    priority_groups: PriorityGroupArgs,
    /// What happens to pods without a controller where the agent terminates pods through the API:
    /// no controller replaces them.
    #[arg(long, value_name = "POLICY", default_value = "leave")]
    bare_pods: BarePodsPolicy,
    /// Whether the node has systemd-logind. Without it (Talos, Alpine) the agent sees no shutdown;
    /// all else works, and the agent is ready.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    logind: bool,
    /// Who is asked for notice of the machine's end, ahead of logind's signal: off, some of file
    /// (/run/epilogue/notice), scheduled (as by `shutdown -r +10`), node (taints and conditions by
    /// which other programs say so), aws, gce and azure, with commas between; or auto: the first
    /// three, and the cloud that the machine is of.
    #[arg(long, value_name = "SOURCES", default_value = "auto")]
    notices: Choice,
    /// Raise logind's delay to what the pods need, by a drop-in below /etc/systemd/logind.conf.d.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
    raise_delay: bool,
    /// The container runtime's socket, as for the kubelet. Without it: with --mode=enforce one of
    /// the usual places under --root. Empty for none; then the agent does nothing for a dead
    /// kubelet.
    #[arg(long, value_name = "ENDPOINT")]
    runtime_endpoint: Option<String>,
    #[command(flatten)]
    kubelet: KubeletArgs,
    /// Address at which the agent serves /livez, /readyz and, to the loopback alone, /metrics; 0
    /// for none.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9465")]
    metrics_bind_address: BindAddress,
    #[command(flatten)]
    scrape: ScrapeArgs,
    /// Format of the log: json, or text for people.
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    pub log_format: LogFormat,
    /// What the agent logs: a level, or target=level, separated by commas.
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log_level: LogFilter,
    /// UID of the agent's own pod, if it runs in one.
    #[arg(long, value_name = "UID", env = "POD_UID", hide = true)]
    pod_uid: Option<String>,
    #[command(flatten)]
    pressure: PressureArgs,
}

/// Whether the agent acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Enforcement {
    /// Acts.
    Enforce,
    /// Reports what it would do.
    Observe,
}

/// What happens to pods without a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BarePodsPolicy {
    /// Leaves them: they end with the node.
    Leave,
    /// Deletes them.
    Delete,
    /// Fails them with reason DeadlineExceeded; they stay in the API.
    DeadlineLever,
}

/// The configuration that the flags make.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node's name.
    pub node: String,
    /// How to reach the API.
    pub client: ClientOptions,
    /// The directory with the host's files.
    pub root: PathBuf,
    /// The journal's directory.
    pub state_dir: PathBuf,
    /// The priority groups; `None` turns the termination of pods off.
    pub priority_groups: Option<PriorityGroups>,
    /// Whether they were given, and are not the default.
    pub priority_groups_given: bool,
    /// Whether the agent acts in a shutdown.
    pub enforce: bool,
    /// What happens to pods without a controller.
    pub bare_pods: BarePods,
    /// Whether the node has a logind.
    pub logind: bool,
    /// Who is asked for notice of the machine's end.
    pub notices: Choice,
    /// Whether logind's drop-in may be written.
    pub raise_delay: bool,
    /// The container runtime's sockets, if the agent may use it.
    pub runtime: Option<Sockets>,
    /// Where the kubelet is.
    pub kubelet: KubeletPlace,
    /// The address of the admin server.
    pub bind: BindAddress,
    /// How metrics are served over the network.
    pub scrape: ScrapeConfig,
    /// The UID of the agent's own pod.
    pub own_pod: Option<PodUid>,
    /// What the agent does outside of shutdowns.
    pub features: Features,
    /// Flags that are probably not meant as given; for the log.
    pub doubts: Vec<String>,
}

/// Why the flags are invalid.
#[derive(Debug, Error)]
pub enum RunArgsError {
    /// The priority groups are invalid.
    #[error(transparent)]
    PriorityGroups(#[from] PriorityGroupsError),
    /// The thresholds are invalid.
    #[error(transparent)]
    Pressure(#[from] PressureArgsError),
    /// The host's name cannot be read.
    #[error("cannot read the host's name from {path}; give --node-name")]
    HostName {
        /// The file with the name.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// No node can have the name.
    #[error(
        "--node-name {0:?} cannot be a node's name; give the one that `kubectl get nodes` shows"
    )]
    NodeName(String),
    /// The endpoint is not a socket.
    #[error(
        "invalid --runtime-endpoint {0:?}: expected unix:///PATH, or an empty one to leave the \
         runtime alone"
    )]
    RuntimeEndpoint(String),
    /// An address of the kubelet is invalid.
    #[error("invalid --{flag} {text:?}: expected IP:PORT, or an empty one for none")]
    Address {
        /// The flag.
        flag: &'static str,
        /// Its value.
        text: String,
    },
    /// The unit's name is invalid.
    #[error(
        "invalid --kubelet-unit {0:?}: expected the full name of a unit, such as kubelet.service \
         or k3s.service"
    )]
    KubeletUnit(String),
    /// The directory's name is not UTF-8.
    #[error("invalid --kubelet-root-dir {0:?}: expected UTF-8")]
    NoText(PathBuf),
    /// The directory is relative: it would depend on where the program was started.
    #[error("--{flag} {path} must begin with /")]
    Relative {
        /// The flag.
        flag: &'static str,
        /// Its value.
        path: PathBuf,
    },
}

impl RunArgs {
    /// Builds the configuration; fails if a flag is invalid or contradicts another.
    pub fn config(self) -> Result<Config, RunArgsError> {
        let root = self.host.root;
        let (features, mut doubts) = self.pressure.features()?;
        let acts = self.mode == Enforcement::Enforce;
        if !acts {
            let shutdown = self.shutdown == Some(Enforcement::Enforce);
            let pressure = features.pressure == agent_core::agent::Enforcement::Enforce;
            let flags = [("--shutdown=enforce", shutdown), ("--pressure=enforce", pressure)];
            let given = flags.into_iter().filter(|(_, given)| *given);
            doubts.extend(given.map(|(flag, _)| format!("{flag} needs --mode=enforce")));
        }
        Ok(Config {
            node: node_name(self.node_name.as_deref(), &root)?,
            state_dir: root.join(absolute("state-dir", &self.state_dir)?),
            priority_groups: self.priority_groups.priority_groups()?,
            priority_groups_given: self.priority_groups.flags().is_given(),
            enforce: acts && self.shutdown.unwrap_or(self.mode) == Enforcement::Enforce,
            bare_pods: match self.bare_pods {
                BarePodsPolicy::Leave => BarePods::Leave,
                BarePodsPolicy::Delete => BarePods::Delete,
                BarePodsPolicy::DeadlineLever => BarePods::DeadlineLever,
            },
            logind: self.logind,
            notices: self.notices,
            raise_delay: self.raise_delay,
            runtime: runtime(self.runtime_endpoint, acts, &root)?,
            kubelet: self.kubelet.config()?,
            bind: self.metrics_bind_address,
            scrape: self.scrape.config(),
            own_pod: self.pod_uid.filter(|uid| !uid.is_empty()).map(PodUid),
            client: client(self.kubeconfig.as_deref()),
            features,
            doubts,
            root,
        })
    }
}

/// The runtime's sockets: those that the flag names, else the usual ones of an agent that acts.
/// They give more rights on the node than observing needs.
fn runtime(
    endpoint: Option<String>,
    acts: bool,
    root: &Path,
) -> Result<Option<Sockets>, RunArgsError> {
    let Some(text) = endpoint else { return Ok(acts.then(|| Sockets::new(None, root))) };
    if text.is_empty() {
        return Ok(None);
    }
    let endpoint = text.parse().map_err(|_| RunArgsError::RuntimeEndpoint(text))?;
    Ok(Some(Sockets::new(Some(endpoint), root)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::host::HOSTNAME_FILE;
    use crate::args::{Args, Command};
    use clap::Parser as _;

    fn config(flags: &[&str]) -> Result<Config, String> {
        let line = ["epilogue-agent", "run"].iter().chain(flags);
        let args = Args::try_parse_from(line).map_err(|error| error.to_string())?;
        let Command::Run(args) = args.command else { panic!("must be run") };
        args.config().map_err(|error| error.to_string())
    }

    #[test]
    fn without_flags_the_agent_observes_and_uses_no_runtime() {
        let config = config(&["--node-name=n1"]).expect("must be valid");
        assert!(!config.enforce && config.runtime.is_none());
        assert_eq!(config.doubts, [""; 0]);
    }

    #[test]
    fn what_the_mode_keeps_from_acting_is_named() {
        let flags = ["--node-name=n1", "--shutdown=enforce", "--pressure=enforce"];
        let observes = config(&flags).expect("must be valid");
        assert!(!observes.enforce);
        for flag in ["--shutdown=enforce", "--pressure=enforce"] {
            let doubt = format!("{flag} needs --mode=enforce");
            assert!(observes.doubts.contains(&doubt), "{:?}", observes.doubts);
        }
        let acts = config(&[&flags[..], &["--mode=enforce"]].concat()).expect("must be valid");
        assert!(acts.enforce && !acts.doubts.iter().any(|doubt| doubt.contains("--mode")));
        let named = config(&["--node-name=n1", "--runtime-endpoint=/run/crio/crio.sock"]);
        assert!(named.expect("must be valid").runtime.is_some(), "the flag names it");
    }

    #[test]
    fn with_one_word_the_agent_acts_and_keeps_to_itself() {
        let config = config(&["--node-name=n1", "--mode=enforce"]).expect("must be valid");
        assert!(config.enforce && config.raise_delay);
        assert_eq!(config.node, "n1");
        assert_eq!(config.bare_pods, BarePods::Leave);
        assert!(config.logind);
        assert_eq!(config.state_dir, Path::new("/var/lib/epilogue-agent"));
        assert!(format!("{:?}", config.runtime).contains("/run/containerd/containerd.sock"));
        assert_eq!(config.bind.to_string(), "127.0.0.1:9465");
    }

    #[test]
    fn given_values_arrive() {
        let config = config(&[
            "--node-name=n1",
            "--root=/host",
            "--mode=enforce",
            "--shutdown=observe",
            "--bare-pods=deadline-lever",
            "--raise-delay=false",
            "--runtime-endpoint=/run/crio/crio.sock",
            "--kubelet-healthz-address=",
            "--kubelet-root-dir=/var/lib/k0s/kubelet",
            "--shutdown-grace-period=0",
            "--metrics-bind-address=0",
        ])
        .expect("must be valid");
        assert!(!config.enforce && !config.raise_delay && config.priority_groups.is_none());
        assert_eq!(config.bare_pods, BarePods::DeadlineLever);
        assert!(format!("{:?}", config.runtime).contains("[\"/run/crio/crio.sock\"]"));
        assert!(config.kubelet.healthz.is_none() && config.bind == BindAddress::Off);
        assert_eq!(config.state_dir, Path::new("/host/var/lib/epilogue-agent"));
        assert_eq!(config.kubelet.dir, "/var/lib/k0s/kubelet");
    }

    #[test]
    fn the_node_is_named_as_its_host() {
        let root = tempfile::tempdir().expect("must be creatable");
        let path = root.path().join(HOSTNAME_FILE);
        let name = || node_name(None, root.path());
        assert!(name().expect_err("must fail").to_string().contains("give --node-name"));
        std::fs::create_dir_all(path.parent().expect("must have one")).expect("must be creatable");
        std::fs::write(path, "Node-7.Example\n").expect("must be writable");
        assert_eq!(name().expect("must be read"), "node-7.example");
    }

    #[test]
    fn what_means_nothing_names_the_flag_and_the_remedy() {
        let table: [(&[&str], &[&str]); 12] = [
            (&["--node-name=N 1"], &["--node-name", "kubectl get nodes"]),
            (&["--runtime-endpoint=tcp://x"], &["--runtime-endpoint", "unix:///PATH"]),
            (&["--kubelet-address=x"], &["--kubelet-address", "IP:PORT"]),
            (&["--kubelet-unit=k3s"], &["--kubelet-unit", "k3s.service"]),
            (&["--kubelet-root-dir=kubelet"], &["--kubelet-root-dir", "begin with /"]),
            (&["--state-dir=state"], &["--state-dir", "begin with /"]),
            (&["--shutdown=enforced"], &["enforce", "observe"]),
            (&["--mode=off"], &["enforce", "observe"]),
            (&["--bare-pods=kill"], &["--bare-pods", "deadline-lever"]),
            (&["--metrics-bind-address=9465"], &["--metrics-bind-address", ":PORT"]),
            (&["--otlp-endpoint="], &["unexpected argument '--otlp-endpoint'"]),
            (&["--shutdown-grace-perod=1s"], &["--shutdown-grace-period"]),
        ];
        for (flags, words) in table {
            let flags: Vec<_> =
                ["--node-name=n1"].into_iter().chain(flags.iter().copied()).collect();
            let flags = if flags[1].starts_with("--node-name") { &flags[1..] } else { &flags };
            let error = config(flags).expect_err("must be refused");
            for word in words {
                assert!(error.contains(word), "{flags:?}: {error}");
            }
        }
    }
}
