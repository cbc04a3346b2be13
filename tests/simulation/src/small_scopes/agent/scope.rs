//! Defines what a scope contains: the pods, the kubelet, and how many faults may happen.

use std::time::Duration;

use agent_core::agent::{Features, Settings};
use agent_core::shutdown::candidates::BarePods;
use agent_core::shutdown::priority_groups::PriorityGroupFlags;
use jiff::Timestamp;

use super::sabotage::Sabotage;

/// The delay that logind grants: more than the agent wants.
pub(super) const DELAY: Duration = Duration::from_secs(20);
/// The time that the agent, or its kubelet, gives all pods of a shutdown.
pub(super) const PERIOD: Duration = Duration::from_secs(4);
/// A graceful container exits this long after SIGTERM.
pub(super) const EXITS_AFTER: Duration = Duration::from_secs(1);
/// When the agent starts, on CLOCK_MONOTONIC.
pub(super) const STARTS_AT: Duration = Duration::from_secs(100);
/// When the pods started.
const EPOCH_SECONDS: i64 = 1_795_000_000;

/// What a scope contains.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// A name for the command line.
    pub name: &'static str,
    /// The pods of the node.
    pub pods: &'static [PodKind],
    /// What the kubelet does.
    pub kubelet: Kubelet,
    /// Whether another program holds a delay lock until the delay is over. Otherwise the end of the
    /// agent's process lets the machine go.
    pub other_lock: bool,
    /// Whether the agent may hear of more before it decides.
    pub decides_later: bool,
    /// How many faults of each kind may happen.
    pub faults: Faults,
    /// How many states it has; a change of the code may change that.
    pub states: usize,
    /// Break the agent or the API, to check the checks.
    pub sabotage: Option<Sabotage>,
}

/// What sets a pod apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodKind {
    /// A controller's pod that always restarts; otherwise a Job's that never does.
    pub restarts: bool,
    /// Whether its container ignores SIGTERM.
    pub hangs: bool,
    /// Whether somebody else has set its DisruptionTarget.
    pub disrupted: bool,
    /// Whether it has a native sidecar, which runs on when its container ends by itself.
    pub sidecar: bool,
}

impl PodKind {
    /// A Job's pod that exits when it is asked to.
    pub const JOB: Self = Self { restarts: false, hangs: false, disrupted: false, sidecar: false };
    /// A Job's pod that has to be killed.
    pub const HANGING_JOB: Self = Self { hangs: true, ..Self::JOB };
    /// A pod that always restarts.
    pub const SERVICE: Self = Self { restarts: true, ..Self::JOB };
    /// A pod that always restarts and has to be killed.
    pub const HANGING_SERVICE: Self = Self { restarts: true, ..Self::HANGING_JOB };
    /// A Job's pod with a native sidecar, whose container has to be killed.
    pub const MESH_JOB: Self = Self { sidecar: true, ..Self::HANGING_JOB };
    /// A Job's pod that is evicted by somebody else.
    pub const DISRUPTED_JOB: Self = Self { disrupted: true, ..Self::JOB };
}

/// What the kubelet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubelet {
    /// It lives, without a graceful shutdown of its own.
    Lives,
    /// It was stopped before.
    Stopped,
    /// It lives, and shuts its pods down itself.
    ShutsDown,
}

/// How many faults of each kind may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Shutdowns that are cancelled.
    pub cancels: u8,
    /// Further shutdowns, after a cancelled one.
    pub again: u8,
    /// Agents that die; another process takes their place at once.
    pub restarts: u8,
    /// Writes to pods that the API refuses (403).
    pub refusals: u8,
    /// Calls about pods whose reply is lost, or that are lost themselves.
    pub lost_replies: u8,
    /// Pods whose container exits with 0 by itself.
    pub ends: u8,
    /// Kubelets that die.
    pub kubelet_ends: u8,
}

impl Faults {
    /// No fault.
    pub const NONE: Self = Self {
        cancels: 0,
        again: 0,
        restarts: 0,
        refusals: 0,
        lost_replies: 0,
        ends: 0,
        kubelet_ends: 0,
    };
}

/// The time of the API server.
pub(super) fn wall(now: Duration) -> Timestamp {
    let seconds = i64::try_from(now.as_secs()).unwrap_or(0);
    let nanos = i32::try_from(now.subsec_nanos()).unwrap_or(0);
    Timestamp::new(EPOCH_SECONDS + seconds, nanos).expect("a scope must be short")
}

/// The program's settings: it acts, and gives all pods the same time.
pub(super) fn settings() -> Settings {
    let list = format!("0={}", PERIOD.as_secs());
    let flags = PriorityGroupFlags { by_priority: Some(list), ..PriorityGroupFlags::default() };
    Settings {
        boot_id: "boot".to_owned(),
        booted_at: Some(wall(Duration::ZERO)),
        own_pod: None,
        priority_groups: flags.priority_groups().expect("the list must be one of groups"),
        priority_groups_given: true,
        priority_max: 2_000_000_000,
        bare_pods: BarePods::Leave,
        runtime: true,
        logind: true,
        notices: std::collections::BTreeSet::new(),
        raise_delay: false,
        enforce: true,
        tries_policies: false,
        in_flight_max: 16,
        features: Features::default(),
    }
}
