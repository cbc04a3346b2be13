//! Defines the facts about the node's kubelet.

use std::time::Duration;

use crate::shutdown::priority_groups::PriorityGroup;

/// The kubelet, as seen by all sources; each source alone can be wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletFacts {
    /// Whether `ListInhibitors` shows a delay lock on shutdown whose `who` is `kubelet`, held by
    /// root. If systemd knows the kubelet's unit, the holder must be one of its processes. `None`
    /// without an answer of logind.
    pub lock_armed: Option<bool>,
    /// The kubelet's configured priority groups, from `/configz`. None of them if graceful shutdown
    /// is off; `None` without an answer.
    pub shutdown_groups: Option<Vec<PriorityGroup>>,
    /// Main process of the unit, from systemd; `None` without such a unit or without an answer.
    pub main_pid: Option<u32>,
    /// State of the unit, from systemd; `None` without such a unit or without an answer.
    pub unit: Option<Unit>,
    /// Answer of `http://127.0.0.1:10248/healthz`, a ping; `None` if it was not queried.
    pub healthy: Option<Healthz>,
    /// Answer of `https://127.0.0.1:10250/healthz`; `None` if it was not queried, or if another
    /// process answered.
    pub main_port: Option<MainPort>,
    /// Time since the last renewal of the node's lease.
    pub lease_age: Option<Duration>,
    /// The kubelet's own thresholds, from `/configz`; `None` without an answer.
    pub eviction: Option<KubeletEviction>,
}

impl KubeletFacts {
    /// Sum of the kubelet's configured shutdown periods. Zero if graceful shutdown is off.
    pub fn shutdown_period(&self) -> Option<Duration> {
        let periods = self.shutdown_groups.as_ref()?.iter().map(|group| group.period_seconds);
        Some(Duration::from_secs(periods.fold(0, u64::saturating_add)))
    }
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

/// State of the kubelet's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// It runs.
    Active,
    /// systemd stops it, or starts it now or after a pause.
    Changing,
    /// It does not run, and nothing is about to start it.
    Inactive,
}

/// Answer of the kubelet's main port, behind its own certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MainPort {
    /// It answers, and does not say that the sync loop is stuck. It may refuse the token.
    Answers,
    /// Its check `syncloop` fails.
    Stuck,
    /// No handshake in time.
    Silent,
    /// The connection was refused: no process listens.
    Refused,
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
