//! Defines what a source says of the end of the machine.

use std::time::Duration;

pub use super::journal::ShutdownKind;

/// Who announces ends of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// logind, by `PrepareForShutdown`. Delay locks hold it.
    Logind,
    /// systemd, which stops the system without logind, and with it the agent. Nothing holds it.
    Systemd,
}

/// An end of the machine, as its source says it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The time that is left, such as `InhibitDelayMaxUSec`; `None` if the source does not say it.
    pub within: Option<Duration>,
    /// The kind of shutdown, if the source reports it.
    pub kind: Option<ShutdownKind>,
    /// Whether the machine will end. Another end may not come, and begins no shutdown.
    pub certain: bool,
}

impl Ending {
    /// An end that will come unless its source withdraws it.
    pub fn certain(within: Option<Duration>, kind: Option<ShutdownKind>) -> Self {
        Self { within, kind, certain: true }
    }
}
