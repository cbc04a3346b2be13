//! Decides which pods no kubelet can terminate any more, and which finished ones are in excess.
//!
//! [`crate::state::ClusterState`] records what the watches show and names the items to check. A
//! [`Check`] takes an item from its [`Verdict`] to the last call. Rules on live pods are in
//! `disruption`.

pub(crate) mod case;
mod check;
mod disruption;
mod evidence;
pub(crate) mod finished;
pub(crate) mod kept;
pub(crate) mod missing_node;
pub(crate) mod namespace;
mod node;
pub(crate) mod observed;
mod patches;
mod progress;
mod settings;
pub(crate) mod stale_taint;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod verdict;

pub use case::{Cause, PodWrite, Stale, Verdict};
pub use check::{Item, Priority, Wake};
pub use evidence::{Evidence, ForceFailPolicy};
pub use finished::Excess;
pub use namespace::NamespaceView;
pub use node::{NodeRecord, NodeView, OUT_OF_SERVICE_TAINT, WireNode};
pub use patches::delete_options;
pub use progress::{Answer, Call, Check, End, Next};
pub use settings::{KeptFor, Mode, Settings, StaleReset};
