//! Pods that no kubelet can end any more, and finished pods that are too many.
//! (spec/node-agent.md §5, §9.10)
//!
//! [`Cluster`] takes in what the watches show and says what is worth a look; a look gives a
//! [`Verdict`], and its [`Order`] is what is to be written. Rules on pods that nobody ends are in
//! [`crate::disruption`].

mod absence;
pub(crate) mod bodies;
mod cluster;
mod evidence;
mod finished;
pub(crate) mod node;
pub(crate) mod pod;
mod settings;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod verdict;

pub use cluster::{Cluster, Item, Lane, Wake};
pub use evidence::{Evidence, Word};
pub use finished::Surplus;
pub use node::{NodeFacts, NodeRecord, OUT_OF_SERVICE_TAINT, WireNode};
pub use pod::{PodFacts, Target, Tristate};
pub use settings::{KeptFor, Mode, Settings, StaleReset};
pub(crate) use verdict::Case;
pub use verdict::{Cause, Order, Verdict};
