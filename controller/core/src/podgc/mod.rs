//! Fails pods that no kubelet can terminate any more, and deletes excess finished pods.
//!
//! [`Cluster`] records what the watches show and names the items to check. A check returns a
//! [`Verdict`], whose [`PodWrite`] is the write to make. Rules on live pods are in `disruption`.

mod case;
mod cluster;
mod disruption;
mod evidence;
mod finished;
mod missing_node;
mod node;
mod observed;
mod patches;
mod settings;
mod stale_taint;
#[cfg(test)]
pub(crate) mod tests;
mod verdict;

pub use case::{Cause, PodWrite, Stale, Verdict};
pub use cluster::{Cluster, Item, Priority, Wake};
pub use evidence::{Evidence, ForceFailPolicy};
pub use finished::Excess;
pub use node::{NodeRecord, NodeView, OUT_OF_SERVICE_TAINT, WireNode};
pub use observed::Observed;
pub use settings::{KeptFor, Mode, Settings, StaleReset};
pub use stale_taint::untaint_patch;
