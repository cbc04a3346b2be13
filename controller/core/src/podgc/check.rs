//! Defines the items that pod GC checks, and when.

use std::sync::Arc;
use std::time::Duration;

use crate::view::Uid;
use crate::workqueue::Key;

/// An item to check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// A missing node that pods name, or a node with a stale taint.
    Node(Arc<str>),
    /// A pod, and its namespace.
    Pod(Arc<str>, Uid),
    /// The search for excess finished pods.
    Excess,
}

impl Key for Item {
    fn namespace(&self) -> &str {
        match self {
            Self::Pod(namespace, _) => namespace,
            Self::Node(_) | Self::Excess => "",
        }
    }
}

/// The priority of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A controller or a user may wait for this pod to terminate.
    Ending,
    /// The check only frees space.
    Tidying,
}

/// A check to schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The item.
    pub item: Item,
    /// Its priority.
    pub priority: Priority,
    /// The delay before the check.
    pub after: Duration,
}

impl Wake {
    /// A check without delay.
    pub(crate) fn now(item: Item, priority: Priority) -> Self {
        Self { item, priority, after: Duration::ZERO }
    }
}
