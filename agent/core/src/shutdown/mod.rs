//! Decides which pods a node's shutdown terminates, in which order, and within what time.

pub mod budget;
pub mod candidates;
pub mod logind_conf;
pub mod plan;
pub mod priority_groups;

use serde::{Deserialize, Serialize};

/// The agent's mode in a shutdown; detected, not configured. ([AP16])
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The kubelet's own graceful shutdown is armed: it kills, and the agent ensures the reports.
    Assist,
    /// It is not armed: the agent terminates the pods through the API; the kubelet kills and
    /// reports.
    Replace,
    /// The kubelet is dead or hangs: the agent kills through the runtime and reports itself.
    Substitute,
    /// The agent may not act on this node.
    Observe,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Assist, Self::Replace, Self::Substitute, Self::Observe];

    /// Name in metrics and annotations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Assist => "assist",
            Self::Replace => "replace",
            Self::Substitute => "substitute",
            Self::Observe => "observe",
        }
    }
}
