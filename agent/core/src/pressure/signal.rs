//! Defines the kubelet's eviction signals and their names.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::quantity::{Format, Quantity};

/// An eviction signal: a resource that the node can run short of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Signal {
    /// `memory.available`.
    MemoryAvailable,
    /// `allocatableMemory.available`: `memory.available` for all pods together.
    AllocatableMemoryAvailable,
    /// `nodefs.available`.
    NodefsAvailable,
    /// `nodefs.inodesFree`.
    NodefsInodesFree,
    /// `imagefs.available`.
    ImagefsAvailable,
    /// `imagefs.inodesFree`.
    ImagefsInodesFree,
    /// `containerfs.available`.
    ContainerfsAvailable,
    /// `containerfs.inodesFree`.
    ContainerfsInodesFree,
    /// `pid.available`.
    PidAvailable,
}

/// The error for an unknown signal name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownSignal;

impl Signal {
    /// All signals in the order in which the agent acts on thresholds, memory first. Upstream
    /// orders the others by a map; our order is fixed. ([EV22])
    pub const ALL: [Self; 9] = [
        Self::MemoryAvailable,
        Self::AllocatableMemoryAvailable,
        Self::NodefsAvailable,
        Self::NodefsInodesFree,
        Self::ImagefsAvailable,
        Self::ImagefsInodesFree,
        Self::ContainerfsAvailable,
        Self::ContainerfsInodesFree,
        Self::PidAvailable,
    ];

    /// The kubelet's name of the signal, in flags and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory.available",
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::NodefsAvailable => "nodefs.available",
            Self::NodefsInodesFree => "nodefs.inodesFree",
            Self::ImagefsAvailable => "imagefs.available",
            Self::ImagefsInodesFree => "imagefs.inodesFree",
            Self::ContainerfsAvailable => "containerfs.available",
            Self::ContainerfsInodesFree => "containerfs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// Name of the resource, in messages and annotations.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable | Self::AllocatableMemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable | Self::ContainerfsAvailable => {
                "ephemeral-storage"
            }
            Self::NodefsInodesFree | Self::ImagefsInodesFree | Self::ContainerfsInodesFree => {
                "inodes"
            }
            Self::PidAvailable => "pids",
        }
    }

    /// The kubelet's node condition for the signal.
    pub fn node_condition(self) -> &'static str {
        match self.resource() {
            "memory" => "MemoryPressure",
            "pids" => "PIDPressure",
            _ => "DiskPressure",
        }
    }

    /// Converts units of the signal into a printable quantity.
    pub fn quantity(self, units: u64) -> Quantity {
        let format = match self.resource() {
            "memory" | "ephemeral-storage" => Format::Binary,
            _ => Format::Decimal,
        };
        Quantity { units, format }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Signal {
    type Err = UnknownSignal;

    fn from_str(text: &str) -> Result<Self, UnknownSignal> {
        Self::ALL.into_iter().find(|signal| signal.name() == text).ok_or(UnknownSignal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_resources_and_conditions_go_together() {
        // Resource name and node condition of each signal. ([EV19])
        let table = [
            ("memory.available", "memory", "MemoryPressure"),
            ("allocatableMemory.available", "memory", "MemoryPressure"),
            ("nodefs.available", "ephemeral-storage", "DiskPressure"),
            ("nodefs.inodesFree", "inodes", "DiskPressure"),
            ("imagefs.available", "ephemeral-storage", "DiskPressure"),
            ("imagefs.inodesFree", "inodes", "DiskPressure"),
            ("containerfs.available", "ephemeral-storage", "DiskPressure"),
            ("containerfs.inodesFree", "inodes", "DiskPressure"),
            ("pid.available", "pids", "PIDPressure"),
        ];
        assert_eq!(table.len(), Signal::ALL.len());
        for (name, resource, condition) in table {
            let signal: Signal = name.parse().expect("must be a signal");
            assert_eq!((signal.resource(), signal.node_condition()), (resource, condition));
            assert_eq!(signal.to_string(), name);
        }
        assert_eq!("memory.Available".parse::<Signal>(), Err(UnknownSignal));
    }
}
