//! How the agent is on the node that a command plays with.

use clap::ValueEnum;
use lab::vm::agent::Install;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Agent {
    /// It is not
    None,
    /// As a service of the host
    Host,
    /// As a DaemonSet's pod
    DaemonSet,
}

impl Agent {
    pub(super) const ALL: [Self; 3] = [Self::None, Self::Host, Self::DaemonSet];

    pub(super) fn install(self) -> Option<Install> {
        match self {
            Self::None => None,
            Self::Host => Some(Install::Host),
            Self::DaemonSet => Some(Install::DaemonSet),
        }
    }
}
