//! Defines the operator's configuration.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use crate::pod::PodUid;
use crate::pressure::stall::StallConfig;
use crate::pressure::watch::EvictionConfig;
use crate::protocol::ending::Source;
use crate::shutdown::candidates::BarePods;
use crate::shutdown::priority_groups::PriorityGroups;
use crate::termination::hanging::StuckTimes;

/// The operator's configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// The node's wall clock at the start of this boot, if it was recorded then.
    pub booted_at: Option<Timestamp>,
    /// The agent's own pod, if the agent runs as one.
    pub own_pod: Option<PodUid>,
    /// The priority groups; `None` turns pod termination off.
    pub priority_groups: Option<PriorityGroups>,
    /// Whether the operator has set them; otherwise a kubelet's own come first.
    pub priority_groups_given: bool,
    /// Replace does not terminate pods of a higher priority.
    pub priority_max: i32,
    /// What Replace does with pods that have no controller.
    pub bare_pods: BarePods,
    /// Whether the agent may use the container runtime's socket.
    pub runtime: bool,
    /// Whether the node runs logind; without it the agent detects no shutdowns but does everything
    /// else.
    pub logind: bool,
    /// The sources that are asked for notice of the machine's end.
    pub notices: BTreeSet<Source>,
    /// Whether the agent may write logind's drop-in.
    pub raise_delay: bool,
    /// Whether the agent may act; otherwise it observes.
    pub enforce: bool,
    /// Whether the shell tries the admission policies. Nothing is written before its first answer.
    pub tries_policies: bool,
    /// Limit of concurrent API calls.
    pub in_flight_max: usize,
    /// What the agent does outside of shutdowns.
    pub features: Features,
}

/// Whether the agent acts, only reports, or does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcement {
    /// The agent does not check.
    #[default]
    Off,
    /// The agent reports by events and metrics.
    Observe,
    /// The agent acts.
    Enforce,
}

/// What the agent does outside of shutdowns; by default nothing.
#[derive(Clone, Debug, Default)]
pub struct Features {
    /// Node pressure.
    pub pressure: Enforcement,
    /// Eviction thresholds and times.
    pub eviction: EvictionConfig,
    /// When a stall counts.
    pub stalls: StallConfig,
    /// Whether pods with OOM kills get a condition that states the cause.
    pub oom_causes: bool,
    /// Whether a kernel OOM kill of a node without memory counts as a disruption.
    pub node_oom_disrupts: bool,
    /// Deleted pods that no kubelet terminates. ([PT7])
    pub stuck_pods: Enforcement,
    /// Whether the agent fails a pod that hangs in its start under a live kubelet. ([PT13])
    pub fail_hanging_starts: bool,
    /// Wait times for stuck pods.
    pub stuck_times: StuckTimes,
}
