//! Defines what a source says of the end of the machine.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use super::journal::ShutdownKind;

/// Who announces ends of the machine.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// logind, by `PrepareForShutdown`. Delay locks hold it.
    #[default]
    Logind,
    /// systemd, which stops the system without logind, and with it the agent. Nothing holds it.
    Systemd,
    /// A shutdown that logind has scheduled, as by `shutdown -r +10`.
    Scheduled,
    /// A file that an administrator or another program writes.
    File,
    /// The instance metadata of AWS.
    Aws,
    /// The metadata server of Google Compute Engine.
    Gce,
    /// The scheduled events of Azure.
    Azure,
    /// Another program's taint or condition on the Node object.
    Node,
}

impl Source {
    /// Its name in flags, events and the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Logind => "logind",
            Self::Systemd => "systemd",
            Self::Scheduled => "scheduled",
            Self::File => "file",
            Self::Aws => "aws",
            Self::Gce => "gce",
            Self::Azure => "azure",
            Self::Node => "node",
        }
    }

    /// Whether it gives notice ahead of the shutdown itself, which logind announces, if at all.
    pub fn gives_notice(self) -> bool {
        !matches!(self, Self::Logind | Self::Systemd)
    }

    /// Whether this is logind, as it was in journals that name no source.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(super) fn is_logind(&self) -> bool {
        *self == Self::Logind
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// An end of the machine, as its source says it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The time that is left, such as `InhibitDelayMaxUSec`; `None` if the source does not say it.
    pub within: Option<Duration>,
    /// The kind of shutdown, if the source reports it.
    pub kind: Option<ShutdownKind>,
    /// Whether the machine will end. Another end may not come: then the node only gets no new pods.
    pub certain: bool,
}

impl Ending {
    /// An end that will come unless its source withdraws it.
    pub fn certain(within: Option<Duration>, kind: Option<ShutdownKind>) -> Self {
        Self { within, kind, certain: true }
    }
}
