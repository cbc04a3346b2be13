//! Defines the facts about the node's kubelet.

use std::time::Duration;

/// The kubelet, as seen by all sources; each source alone can be wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletFacts {
    /// Whether `ListInhibitors` shows a delay lock on shutdown whose `who` is `kubelet`, held by
    /// root. If systemd knows the kubelet's unit, the holder must be one of its processes. `None`
    /// without an answer of logind.
    pub lock_armed: Option<bool>,
    /// Sum of the kubelet's configured shutdown periods, from `/configz`. Zero if graceful shutdown
    /// is off; `None` without an answer.
    pub shutdown_period: Option<Duration>,
    /// Main process of the unit, from systemd; `None` without such a unit or without an answer.
    pub main_pid: Option<u32>,
    /// Whether the unit is active, from systemd; `None` without such a unit or without an answer.
    pub unit_active: Option<bool>,
    /// Answer of `http://127.0.0.1:10248/healthz`; `None` if it was not queried.
    pub healthy: Option<Healthz>,
    /// Time since the last renewal of the node's lease.
    pub lease_age: Option<Duration>,
    /// The kubelet's own thresholds, from `/configz`; `None` without an answer.
    pub eviction: Option<KubeletEviction>,
}

/// The kubelet's own thresholds, as `/configz` shows them. ([EV21])
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletEviction {
    /// `evictionHard`: signal, value.
    pub hard: Vec<(String, String)>,
    /// `evictionSoft`.
    pub soft: Vec<(String, String)>,
    /// `localStorageCapacityIsolation`.
    pub local_storage_limits: bool,
}

/// Answer of the kubelet's `/healthz`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Healthz {
    /// `ok`.
    Ok,
    /// An answer other than `ok`.
    Failing,
    /// The connection was refused: no process listens.
    Refused,
    /// No answer in time.
    Silent,
}
