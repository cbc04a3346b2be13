//! What is known of the kubelet beside us.

use std::time::Duration;

/// The kubelet, from all sources; each alone lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletFacts {
    /// Whether `ListInhibitors` shows a delay lock on shutdown whose `who` is `kubelet`, held by
    /// root, and, where it is known, by the unit's main process. None if logind did not say.
    pub lock_armed: Option<bool>,
    /// The sum of the kubelet's configured shutdown periods, from `/configz`; none if it did not
    /// say, zero if graceful shutdown is off.
    pub shutdown_period: Option<Duration>,
    /// The unit's main process, from systemd; none if there is no such unit, or no answer.
    pub main_pid: Option<u32>,
    /// Whether the unit is active, from systemd; none if there is no such unit, or no answer.
    pub unit_active: Option<bool>,
    /// Whether `http://127.0.0.1:10248/healthz` said ok; none if nothing was asked.
    pub healthy: Option<Healthz>,
    /// How long ago the node's lease was renewed.
    pub lease_age: Option<Duration>,
    /// Its own thresholds, from `/configz`; none if it did not say.
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

/// What the kubelet's `/healthz` said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Healthz {
    /// `ok`.
    Ok,
    /// Another answer.
    Failing,
    /// The connection was refused: nobody listens.
    Refused,
    /// No answer in time.
    Silent,
}
