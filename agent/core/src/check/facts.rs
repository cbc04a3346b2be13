//! Facts that `epilogue-agent check` collects about a node, before any verdict.

use super::api::ApiFacts;
use super::pressure::PressureFacts;
use super::runtime::RuntimeFacts;
use crate::protocol::node::KubeletFacts;
use crate::shutdown::logind_conf::ConfFile;
use crate::shutdown::priority_groups::PriorityGroups;
use crate::time_span::TimeSpan;

/// An answer of logind or of the bus; without one, the error's message.
pub type Answer<T> = Result<T, String>;

/// All facts of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Address of the system bus.
    pub bus_address: String,
    /// Answers of the bus and of logind.
    pub bus: Bus,
    /// Answers of the container runtime.
    pub runtime: RuntimeFacts,
    /// Facts of the kubelet, except its lock; `None` if the check did not query them.
    pub kubelet: Option<KubeletFacts>,
    /// Answers of the API; `None` if the check did not query it.
    pub api: Option<ApiFacts>,
    /// logind's configuration files.
    pub conf_files: Vec<ConfFile>,
    /// Priority groups of the command line; `None` if graceful termination is off.
    pub priority_groups: Option<PriorityGroups>,
    /// Whether the agent here only observes: it needs neither a runtime nor rights to write.
    pub observes: bool,
    /// Facts of the node's pressure; `None` if the check did not collect them.
    pub pressure: Option<PressureFacts>,
}

/// How far the system bus and logind answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bus {
    /// The bus cannot be reached.
    Unreachable(String),
    /// The bus did not report the owner of logind's name.
    Mute(String),
    /// No connection owns logind's name.
    WithoutLogind,
    /// A connection owns logind's name.
    WithLogind(Box<LogindFacts>),
}

/// What logind reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogindFacts {
    /// Unique bus name of logind's connection.
    pub owner: String,
    /// `InhibitDelayMaxUSec`.
    pub delay: Answer<TimeSpan>,
    /// `PreparingForShutdown`.
    pub preparing: Answer<bool>,
    /// `ScheduledShutdown`; `None` if no shutdown is scheduled.
    pub scheduled: Answer<Option<ScheduledShutdown>>,
    /// `ListInhibitors`, before the check takes its own lock.
    pub inhibitors: Answer<Vec<Inhibitor>>,
    /// Name of the process that holds the kubelet's lock, if both exist.
    pub kubelet_process: Option<String>,
    /// Result of taking our own lock.
    pub trial: Trial,
}

/// A shutdown that is scheduled for later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledShutdown {
    /// `poweroff`, `reboot`, ….
    pub kind: String,
    /// Time of the shutdown, in µs since 1970.
    pub at_micros: u64,
}

/// A lock, as `ListInhibitors` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inhibitor {
    /// Operations that the lock inhibits, separated by colons.
    pub what: String,
    /// Name of the holder, as the holder reports it.
    pub who: String,
    /// Reason for the lock, as the holder reports it.
    pub why: String,
    /// `block` or `delay`.
    pub mode: String,
    /// User ID of the holder.
    pub uid: u32,
    /// Process ID of the holder.
    pub pid: u32,
}

/// Why logind refuses a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A shutdown is in progress. ([LD5])
    ShuttingDown,
    /// The bus policy, polkit or AppArmor refuses. ([LD10])
    NotPermitted,
    /// logind has reached its maximum of locks. ([LD6])
    TooManyLocks,
    /// Another reason.
    Other,
}

/// Result of taking and releasing a delay lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trial {
    /// logind refused the lock.
    Refused {
        /// Why, as far as the agent knows logind's errors.
        why: Refusal,
        /// Message for people.
        message: String,
    },
    /// logind granted the lock.
    Taken {
        /// Whether `ListInhibitors` listed the lock while it was held.
        listed: Answer<bool>,
        /// Whether `ListInhibitors` no longer listed the lock after its release.
        released: Answer<bool>,
    },
}

/// The holder that the agent's locks name.
pub const OUR_HOLDER: &str = "epilogue-agent";

impl Inhibitor {
    /// Whether the lock inhibits a shutdown in this mode.
    pub fn holds_shutdown(&self, mode: &str) -> bool {
        self.mode == mode && self.what.split(':').any(|what| what == "shutdown")
    }

    /// Whether this is the kubelet's lock for its own graceful shutdown, by the lock's own fields.
    /// ([SD24])
    pub fn is_kubelets(&self) -> bool {
        self.holds_shutdown("delay") && self.who == "kubelet"
    }

    /// Whether this is the lock of an agent that enforces.
    pub fn is_agents(&self) -> bool {
        self.holds_shutdown("delay") && self.who == OUR_HOLDER
    }
}

/// Finds the kubelet's lock for its own graceful shutdown; prefers root's if several match.
pub fn kubelets_lock(list: &[Inhibitor]) -> Option<&Inhibitor> {
    list.iter().filter(|lock| lock.is_kubelets()).min_by_key(|lock| lock.uid)
}
