//! Tracks nodes that pods name and no watch shows: since when, and whether a live read has
//! confirmed that they are gone. ([GC7])

use jiff::{SignedDuration, Timestamp};

/// A live read is valid for this long.
const CONFIRMED_FOR: SignedDuration = SignedDuration::from_secs(30);

/// One missing node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MissingNode {
    since: Timestamp,
    confirmed: Option<Timestamp>,
    /// Whether a live read has found it: the watch is behind, and shows nothing of the time since.
    doubted: bool,
}

/// The state of a missing node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeState {
    /// A live read has just confirmed that the node is gone.
    Confirmed,
    /// The API must be asked.
    Ask,
    /// The quarantine lasts until this time.
    Quarantine(Timestamp),
}

impl MissingNode {
    /// A node that is missing since now.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { since: now, confirmed: None, doubted: false }
    }

    /// A node that a live read has found, though no watch shows it.
    pub(crate) fn doubted(now: Timestamp) -> Self {
        Self { doubted: true, ..Self::new(now) }
    }

    pub(crate) fn node_state(&self, quarantine: SignedDuration, now: Timestamp) -> NodeState {
        let end = self.since.checked_add(quarantine).unwrap_or(Timestamp::MAX);
        if now < end {
            return NodeState::Quarantine(end);
        }
        match self.confirmed {
            Some(at) if now.duration_since(at) < CONFIRMED_FOR => NodeState::Confirmed,
            _ => NodeState::Ask,
        }
    }

    /// Records that a live read did not find the node. The first such read after one that found
    /// it only begins the quarantine: the node may be back in a moment.
    ///
    /// DIVERGES(upstream): upstream fails the pods by one read, also where an earlier read has
    /// shown that its watch is behind. ([GC7])
    pub(crate) fn confirm(&mut self, now: Timestamp) {
        if self.doubted {
            *self = Self::new(now);
        } else {
            self.confirmed = Some(now);
        }
    }
}
