//! Nodes that pods name and nobody sees: for how long, and whether a live read has confirmed it.
//! ([GC7])

use jiff::{SignedDuration, Timestamp};

/// A live read holds for so long.
const CONFIRMED_FOR: SignedDuration = SignedDuration::from_secs(30);

/// One such node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingNode {
    since: Timestamp,
    confirmed: Option<Timestamp>,
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    /// Its pods have no node: a live read said so just now.
    Confirmed,
    /// Ask the API.
    Ask,
    /// The quarantine lasts until then.
    Quarantine(Timestamp),
}

impl MissingNode {
    /// Absent since now.
    pub(super) fn new(now: Timestamp) -> Self {
        Self { since: now, confirmed: None }
    }

    pub(super) fn node_state(&self, quarantine: SignedDuration, now: Timestamp) -> NodeState {
        let end = self.since.checked_add(quarantine).unwrap_or(Timestamp::MAX);
        if now < end {
            return NodeState::Quarantine(end);
        }
        match self.confirmed {
            Some(at) if now.duration_since(at) < CONFIRMED_FOR => NodeState::Confirmed,
            _ => NodeState::Ask,
        }
    }

    /// The live read did not find it.
    pub(super) fn confirm(&mut self, now: Timestamp) {
        self.confirmed = Some(now);
    }
}
