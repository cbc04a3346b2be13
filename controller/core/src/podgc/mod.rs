//! Pods that no kubelet can end any more, and finished pods that are too many.
//!
//! [`Cluster`] takes in what the watches show and says which items to check; a check gives a
//! [`Verdict`], and its [`PodWrite`] is what is to be written. Rules on live pods are in
//! [`crate::disruption`].

mod cluster;
mod evidence;
mod finished;
mod missing_node;
pub(crate) mod node;
pub(crate) mod patches;
pub(crate) mod pod;
mod settings;
mod stale_taint;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod verdict;

pub use cluster::{Cluster, Item, Priority, Wake};
pub use evidence::{Evidence, ForceFailPolicy};
pub use finished::Excess;
pub use node::{NodeRecord, NodeView, OUT_OF_SERVICE_TAINT, WireNode};
pub use pod::{PodView, Target, Tristate};
pub use settings::{KeptFor, Mode, Settings, StaleReset};
pub use stale_taint::untaint_patch;
pub(crate) use verdict::Case;
pub use verdict::{Cause, PodWrite, Verdict};
