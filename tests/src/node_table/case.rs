//! Names a case: how the node ends, how its kubelet and the agent are installed, who runs the Jobs.
//! Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::vm::agent::Install;

/// A way to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// `systemctl poweroff`.
    Poweroff,
    /// `systemctl reboot`.
    Reboot,
    /// A shutdown that logind forgets: it restarts while locks delay it.
    Forgotten,
    /// A shutdown that fails at its very end: its target cannot be started any more.
    Refused,
    /// `kill -9` of the agent in the middle of a reboot.
    AgentKilled,
    /// The kubelet is stopped in the middle of a power-off.
    KubeletStopped,
    /// The kubelet is frozen by SIGSTOP just before a reboot: the node is still Ready, and nothing
    /// says that the kubelet hangs.
    KubeletFrozen,
    /// The kubelet is stopped just before a reboot: the node is still Ready.
    KubeletGone,
    /// The kubelet is killed as a reboot begins; systemd starts it again two seconds later.
    KubeletKilled,
    /// A reboot that logind neither announces nor delays: its target is started.
    Unannounced,
    /// No end at all: the node is drained by the Eviction API, and lives on.
    Drained,
    /// `systemctl soft-reboot`: all of user space restarts, and the kernel stays.
    SoftReboot,
    /// The power is cut without warning, and comes back.
    PowerCut,
    /// The power is cut in the middle of a shutdown, and comes back.
    PowerCutDuring,
    /// The power is cut without warning, and stays away.
    PowerLost,
}

impl Scenario {
    /// All scenarios, in the order of the table.
    pub const ALL: [Self; 15] = [
        Self::Poweroff,
        Self::Reboot,
        Self::Forgotten,
        Self::Refused,
        Self::AgentKilled,
        Self::KubeletStopped,
        Self::KubeletFrozen,
        Self::KubeletGone,
        Self::KubeletKilled,
        Self::Unannounced,
        Self::Drained,
        Self::SoftReboot,
        Self::PowerCut,
        Self::PowerCutDuring,
        Self::PowerLost,
    ];

    /// Whether the machine stays off.
    pub fn leaves_off(self) -> bool {
        matches!(self, Self::Poweroff | Self::KubeletStopped | Self::PowerLost)
    }

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poweroff => "poweroff",
            Self::Reboot => "reboot",
            Self::Forgotten => "forgotten",
            Self::Refused => "refused",
            Self::AgentKilled => "agent-killed",
            Self::KubeletStopped => "kubelet-stopped",
            Self::KubeletFrozen => "kubelet-frozen",
            Self::KubeletGone => "kubelet-gone",
            Self::KubeletKilled => "kubelet-killed",
            Self::Unannounced => "unannounced",
            Self::Drained => "drained",
            Self::SoftReboot => "soft-reboot",
            Self::PowerCut => "power-cut",
            Self::PowerCutDuring => "power-cut-during",
            Self::PowerLost => "power-lost",
        }
    }
}

/// Who runs the Jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobController {
    /// kube-controller-manager.
    Upstream,
    /// Our controller: each Job names it in `managedBy`.
    Ours,
}

/// How the kubelet is installed on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kubelet {
    /// It is its unit's main process, and the runtime has its usual socket.
    #[default]
    Usual,
    /// It is the child of its unit's main process, and names a socket of its own for the runtime.
    Wrapped,
}

/// Moves the runtime's socket, and puts a shell between the kubelet and its unit.
const WRAP: &str = r#"
set -e
mkdir -p /etc/systemd/system/kubelet.service.d /run/own
sed -i '1a [grpc]\n  address = "/run/own/runtime.sock"' /etc/containerd/config.toml
sed -i 's#/run/containerd/containerd.sock#/run/own/runtime.sock#' /etc/kubernetes/kubelet.yaml
start=$(sed -n '/^ExecStart=/,/[^\]$/p' /etc/systemd/system/kubelet.service | tr -d '\\\n')
cat > /etc/systemd/system/kubelet.service.d/wrapped.conf <<EOF
[Service]
KillMode=mixed
ExecStart=
ExecStart=/bin/sh -c '${start#ExecStart=} ; true'
EOF
systemctl daemon-reload
systemctl stop kubelet
systemctl restart containerd
systemctl start kubelet
"#;

impl Kubelet {
    /// The command lines that make it so on a node.
    pub(super) fn commands(self) -> Vec<String> {
        match self {
            Self::Usual => Vec::new(),
            Self::Wrapped => vec![WRAP.to_owned()],
        }
    }
}

/// Seconds of the kubelet for regular pods, and then for critical ones. The stubborn pod takes all
/// of the first. Nothing waits for the rest of the second period once all pods are reported. A
/// machine emulated alongside other work needs this long for nine reports.
pub(super) const REGULAR_SECONDS: u32 = 20;
pub(super) const CRITICAL_SECONDS: u32 = 65;

/// The agent's flags in the stories of the tests: the same periods as the kubelet, and termination
/// of bare pods, too, so that each kind of pod ends.
pub const STORY_FLAGS: [&str; 3] = [
    "--shutdown-grace-period=85s",
    "--shutdown-grace-period-critical-pods=65s",
    "--bare-pods=deadline-lever",
];

/// One cell of the table.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// How the node ends.
    pub scenario: Scenario,
    /// How the kubelet is installed.
    pub kubelet: Kubelet,
    /// Whether the kubelet's own graceful shutdown is on.
    pub graceful: bool,
    /// How the agent is installed, if it is.
    pub agent: Option<Install>,
    /// The agent's flags besides its mode; without any it runs with its defaults.
    pub flags: &'static [&'static str],
    /// Who runs the Jobs.
    pub jobs: JobController,
}

impl Case {
    /// A story of the tests: a node whose kubelet is installed as usual, with its graceful shutdown
    /// off or on, and with the Jobs of our controller. A release keeps its defaults.
    pub fn of(scenario: Scenario, graceful: bool, agent: Option<Install>) -> Self {
        let flags: &[&str] = match agent {
            Some(Install::Host | Install::DaemonSet) => &STORY_FLAGS,
            Some(Install::ReleasedHost | Install::Chart) | None => &[],
        };
        let (kubelet, jobs) = (Kubelet::Usual, JobController::Ours);
        Self { scenario, kubelet, graceful, agent, flags, jobs }
    }

    /// Whether one machine can play both, one after the other.
    pub fn shares_machine(&self, other: &Self) -> bool {
        let of = |case: &Self| (case.kubelet, case.graceful, case.agent, case.flags, case.jobs);
        of(self) == of(other)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let graceful = if self.graceful { "on" } else { "off" };
        let agent = match self.agent {
            None => "without agent",
            Some(Install::Host) => "agent as host service",
            Some(Install::ReleasedHost) => "released agent as host service",
            Some(Install::DaemonSet) => "agent as DaemonSet",
            Some(Install::Chart) => "release by the chart",
        };
        let jobs = match self.jobs {
            JobController::Upstream => "kube-controller-manager",
            JobController::Ours => "our controller",
        };
        let scenario = self.scenario.name();
        let wrapped = if self.kubelet == Kubelet::Wrapped { ", kubelet in a wrapper" } else { "" };
        write!(
            formatter,
            "{scenario}{wrapped}, kubelet's graceful shutdown {graceful}, {agent}, Jobs by {jobs}"
        )?;
        self.flags.iter().try_for_each(|flag| write!(formatter, " {flag}"))
    }
}
