//! Reads an event of a node.

use jiff::Timestamp;
use serde::Deserialize;

/// The component that reports events of the node.
pub(crate) const AGENT_REPORTER: &str = "epilogue.dev/agent";

/// An event of the node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NodeEvent {
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    involved_object: Involved,
    reporting_component: Option<String>,
    event_time: Option<Timestamp>,
    last_timestamp: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Involved {
    kind: Option<String>,
    name: Option<String>,
}

impl NodeEvent {
    /// Whether the agent of this node reported it about the node.
    pub(super) fn is_of_agent_of(&self, node: &str) -> bool {
        let about = &self.involved_object;
        self.reporting_component.as_deref() == Some(AGENT_REPORTER)
            && about.kind.as_deref() == Some("Node")
            && about.name.as_deref() == Some(node)
    }

    /// The time when it last happened.
    pub(super) fn at(&self) -> Option<Timestamp> {
        self.last_timestamp.max(self.event_time)
    }
}
