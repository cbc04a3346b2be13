//! Says how the agent is installed on the node of a command.

use clap::ValueEnum;
use lab::vm::agent::Install;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Agent {
    /// Not installed
    None,
    /// As a service of the host
    Host,
    /// As a DaemonSet's pod
    DaemonSet,
    /// By the chart with its default values, with the release's image and the controller
    Chart,
}

impl Agent {
    pub(super) const ALL: [Self; 3] = [Self::None, Self::Host, Self::DaemonSet];

    pub(crate) fn install(self) -> Option<Install> {
        match self {
            Self::None => None,
            Self::Host => Some(Install::Host),
            Self::DaemonSet => Some(Install::DaemonSet),
            Self::Chart => Some(Install::Chart),
        }
    }
}
