//! What `epilogue-agent check` learns of a node, before anything is made of it.

use super::api::ApiFacts;
use super::pressure::PressureFacts;
use super::runtime::RuntimeFacts;
use crate::protocol::node::KubeletFacts;
use crate::shutdown::logind_conf::ConfFile;
use crate::shutdown::priority_groups::PriorityGroups;
use crate::time_span::TimeSpan;

/// Why a call over D-Bus brought no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The D-Bus name of the error; empty where no reply came.
    pub name: String,
    /// What was said, for people.
    pub message: String,
}

/// What a call brought.
pub type Answer<T> = Result<T, CallError>;

/// All that is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The address of the system bus.
    pub bus_address: String,
    /// How far the bus answered.
    pub bus: Bus,
    /// How far the container runtime answered.
    pub runtime: RuntimeFacts,
    /// What is known of the kubelet beside its lock, if it was asked.
    pub kubelet: Option<KubeletFacts>,
    /// How far the API answered, if it was asked.
    pub api: Option<ApiFacts>,
    /// logind's configuration files.
    pub conf_files: Vec<ConfFile>,
    /// The priority groups of the command line.
    pub priority_groups: Option<PriorityGroups>,
    /// What can be seen of the node's pressure, if it was looked at.
    pub pressure: Option<PressureFacts>,
}

/// How far the bus answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bus {
    /// Not at all.
    Unreachable(CallError),
    /// It did not say who owns the name of logind.
    Mute(CallError),
    /// Nobody owns the name of logind.
    WithoutLogind,
    /// Somebody does.
    WithLogind(Box<LogindFacts>),
}

/// What logind said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogindFacts {
    /// The unique name of its connection.
    pub owner: String,
    /// `InhibitDelayMaxUSec`.
    pub delay: Answer<TimeSpan>,
    /// `PreparingForShutdown`.
    pub preparing: Answer<bool>,
    /// `ScheduledShutdown`, if there is one.
    pub scheduled: Answer<Option<ScheduledShutdown>>,
    /// `ListInhibitors`, before our own lock was tried.
    pub inhibitors: Answer<Vec<Inhibitor>>,
    /// The name of the process that holds the kubelet's lock, if there is both.
    pub kubelet_process: Option<String>,
    /// How taking a lock of our own went.
    pub trial: Trial,
}

/// A shutdown that somebody announced for later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledShutdown {
    /// `poweroff`, `reboot`, ….
    pub kind: String,
    /// When, in µs since 1970.
    pub at_micros: u64,
}

/// A lock, as `ListInhibitors` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inhibitor {
    /// What it is about: words separated by colons.
    pub what: String,
    /// Whose it is, in its holder's words.
    pub who: String,
    /// What it is for, in its holder's words.
    pub why: String,
    /// `block` or `delay`.
    pub mode: String,
    /// The holder's user.
    pub uid: u32,
    /// The holder's process.
    pub pid: u32,
}

/// How taking a delay lock, and giving it back, went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// logind gave none.
    Refused(CallError),
    /// logind gave one.
    Taken {
        /// Whether `ListInhibitors` showed it while it was held.
        listed: Answer<bool>,
        /// Whether `ListInhibitors` stopped to show it after it was given back.
        released: Answer<bool>,
    },
}

impl Inhibitor {
    /// Whether it holds up a shutdown in this mode.
    pub fn holds_shutdown(&self, mode: &str) -> bool {
        self.mode == mode && self.what.split(':').any(|what| what == "shutdown")
    }

    /// Whether it is the one that the kubelet takes for its own graceful shutdown, by what it
    /// says of itself. ([SD24])
    pub fn is_kubelets(&self) -> bool {
        self.holds_shutdown("delay") && self.who == "kubelet"
    }
}

/// The lock that the kubelet takes for its own graceful shutdown; where several say so, root's.
pub fn kubelets_lock(list: &[Inhibitor]) -> Option<&Inhibitor> {
    list.iter().filter(|lock| lock.is_kubelets()).min_by_key(|lock| lock.uid)
}
