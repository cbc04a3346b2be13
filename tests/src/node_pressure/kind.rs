//! Defines which resource a pod exhausts, how fast, and at which thresholds the kubelet and the
//! agent act. Pure.

use std::fmt;

use serde_json::json;

use crate::vm::KubeletConfig;
use crate::vm::agent::Install;

/// The exhausted resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory of the node.
    Memory,
    /// Bytes of the node's file system, in an emptyDir.
    Disk,
    /// The same in the container's writable layer.
    DiskLayer,
    /// Processes of the node.
    Pids,
    /// Memory within the container's own limit: nothing of the node's.
    OwnLimit,
}

impl Kind {
    /// All kinds, in the order of the table.
    pub const ALL: [Self; 5] =
        [Self::Memory, Self::Disk, Self::DiskLayer, Self::Pids, Self::OwnLimit];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::DiskLayer => "disk-layer",
            Self::Pids => "pids",
            Self::OwnLimit => "own-limit",
        }
    }

    /// The kubelet's name of the signal.
    pub fn signal(self) -> &'static str {
        match self {
            Self::Memory | Self::OwnLimit => "memory.available",
            Self::Disk | Self::DiskLayer => "nodefs.available",
            Self::Pids => "pid.available",
        }
    }

    /// Megabytes or processes a second. The emulated machine's own work runs at the same time.
    fn rate(self) -> u32 {
        match self {
            Self::Memory => 30,
            Self::Disk | Self::DiskLayer => 40,
            Self::Pids => 60,
            Self::OwnLimit => 50,
        }
    }

    fn kubelet_threshold(self) -> &'static str {
        match self {
            // Upstream's default.
            Self::Memory | Self::OwnLimit => "100Mi",
            Self::Disk | Self::DiskLayer => "300Mi",
            Self::Pids => "400",
        }
    }

    fn agent_threshold(self) -> &'static str {
        match self {
            Self::Memory => "500Mi",
            // Far below the available amount: the node itself is short of nothing.
            Self::OwnLimit => "150Mi",
            Self::Disk | Self::DiskLayer => "600Mi",
            Self::Pids => "700",
        }
    }
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The exhausted resource.
    pub kind: Kind,
    /// How the agent is installed, if it is.
    pub agent: Option<Install>,
    /// Number of runs.
    pub runs: u32,
    /// Megabytes or processes a second.
    pub rate: u32,
    /// The kubelet's hard threshold.
    pub kubelet: String,
    /// The agent's.
    pub threshold: String,
    /// Whether the kernel's guard against thrashing is on.
    pub guard: bool,
}

impl Setting {
    /// The default figures of a kind.
    pub fn of(kind: Kind, agent: Option<Install>, runs: u32) -> Self {
        Self {
            kind,
            agent,
            runs,
            rate: kind.rate(),
            kubelet: kind.kubelet_threshold().to_owned(),
            threshold: kind.agent_threshold().to_owned(),
            guard: true,
        }
    }

    /// Both drop a shortage soon after it is over, so that the next run can begin.
    pub(super) fn kubelet_config(&self) -> KubeletConfig {
        KubeletConfig::default()
            .set("evictionPressureTransitionPeriod", json!("5s"))
            .evict_below(self.kind.signal(), &self.kubelet)
    }

    pub(super) fn agent_flags(&self) -> Vec<String> {
        vec![
            "--pressure=enforce".to_owned(),
            format!("--eviction-hard={}<{}", self.kind.signal(), self.threshold),
            "--eviction-pressure-transition-period=5s".to_owned(),
        ]
    }

    /// The threshold that is reached first, in bytes or processes.
    pub(super) fn first_threshold(&self) -> i64 {
        amount(if self.agent.is_some() { &self.threshold } else { &self.kubelet })
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = if self.kind == Kind::Pids { "processes" } else { "MB" };
        write!(
            formatter,
            "{}, {} {unit}/s, kubelet at {}",
            self.kind.name(),
            self.rate,
            self.kubelet
        )?;
        if !self.guard {
            write!(formatter, ", kernel without guard")?;
        }
        match self.agent {
            None => write!(formatter, ", without agent"),
            Some(Install::Host | Install::ReleasedHost) => {
                write!(formatter, ", agent as host service at {}", self.threshold)
            }
            Some(Install::DaemonSet) => {
                write!(formatter, ", agent as DaemonSet at {}", self.threshold)
            }
            Some(Install::Chart) => {
                write!(formatter, ", release by the chart at {}", self.threshold)
            }
        }
    }
}

/// Parses the quantities used here: whole numbers, and those of `Mi`.
fn amount(text: &str) -> i64 {
    let (digits, factor) = text.strip_suffix("Mi").map_or((text, 1), |digits| (digits, 1 << 20));
    digits.parse::<i64>().map_or(0, |number| number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_acts_before_the_kubelet() {
        for kind in Kind::ALL {
            let [alone, with] =
                [None, Some(Install::Host)].map(|agent| Setting::of(kind, agent, 1));
            let (alone, with) = (alone.first_threshold(), with.first_threshold());
            assert!(0 < alone && alone < with, "{kind:?}: {alone} {with}");
        }
    }
}
