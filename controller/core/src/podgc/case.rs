//! Defines what a verdict on a pod depends on, and what it says.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::evidence::{Evidence, ForceFailPolicy};
use super::finished::Excess;
use super::missing_node::MissingNode;
use super::node::NodeRecord;
use super::settings::Settings;
use crate::view::{Pod, Uid};

/// The decision about a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Do nothing until something changes.
    Leave,
    /// Do nothing yet; time alone may change that.
    CheckAgain(Timestamp),
    /// Ask the API first whether a node of this name exists.
    Ask(Arc<str>),
    /// Remove the stale taint of an agent from this node.
    Untaint(Arc<str>),
    /// Make this write.
    Do(PodWrite),
}

/// Writes to one pod: the patch, if any, then the deletion, if any.
#[derive(Clone, Debug, PartialEq)]
pub struct PodWrite {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Uid,
    /// For `pods/status`, as a strategic merge patch.
    pub patch: Option<Value>,
    /// Whether to delete it without grace. ([GC2])
    pub delete: bool,
    /// The cause.
    pub cause: Cause,
}

/// Why something is done with a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Nothing of it runs, and no kubelet will report that.
    Ended(Evidence),
    /// It is a finished pod in excess.
    Excess(Excess),
    /// Its node shuts down, and it had no DisruptionTarget; with the time of the new condition.
    Marked(Timestamp),
    /// Its `DisruptionTarget` turned out to be wrong.
    Cleared(Stale),
}

/// Everything that a verdict depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub(crate) pod: &'a Pod,
    /// Its node, if there is one.
    pub(crate) node: Option<&'a NodeRecord>,
    /// The record of its missing node, if it is missing.
    pub(crate) missing_node: Option<&'a MissingNode>,
    /// The boot of its node in which its deletion was first seen.
    pub(crate) deleted_in: Option<&'a Arc<str>>,
    /// When we set its DisruptionTarget.
    pub(crate) marked_at: Option<Timestamp>,
    /// Its excess, if it is a finished pod in excess.
    pub(crate) excess: Option<&'a Excess>,
    /// The force-fail policy of its owner.
    pub(crate) policy: Option<&'a ForceFailPolicy>,
    pub(crate) settings: &'a Settings,
    pub(crate) now: Timestamp,
}

/// Why a condition is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// The pod was not deleted in time after it was marked. ([ST1])
    NotDeleted,
    /// Its node is ready, no shutdown is in progress, and the pod lives on. ([ST7])
    NotShutDown,
    /// Its containers have started since, and no shutdown is in progress. ([ST10])
    Restarted,
    /// We marked it for a shutdown that was cancelled. ([AP17])
    Cancelled,
}

/// A write to a pod, without a deletion.
pub(crate) fn pod_write(pod: &Pod, patch: Option<Value>, cause: Cause) -> PodWrite {
    PodWrite {
        namespace: Arc::clone(&pod.namespace),
        name: Arc::clone(&pod.name),
        uid: pod.uid.clone(),
        patch,
        delete: false,
        cause,
    }
}

impl Cause {
    /// The label value in metrics. ([GC5])
    pub fn label(&self) -> &'static str {
        match self {
            Self::Ended(evidence) => evidence.label(),
            Self::Excess(_) => "terminated",
            Self::Marked(_) => "marked",
            Self::Cleared(_) => "cleared",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(evidence) => evidence.fmt(formatter),
            Self::Excess(excess) => excess.fmt(formatter),
            Self::Marked(_) => formatter.write_str("node shuts down"),
            Self::Cleared(stale) => stale.fmt(formatter),
        }
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NotDeleted => "pod was not deleted",
            Self::NotShutDown => "node did not shut down",
            Self::Restarted => "pod runs again",
            Self::Cancelled => "shutdown was cancelled",
        })
    }
}
