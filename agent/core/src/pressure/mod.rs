//! Node pressure: when the node runs short of something, and which pod then ends.
//! (spec/node-agent.md §2)

pub mod signal;
pub mod thresholds;
