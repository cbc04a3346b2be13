//! Node pressure: decides when the node runs short of a resource, and which pod then terminates.

pub mod message;
pub mod observe;
pub mod overlap;
pub mod rank;
pub mod signal;
pub mod stall;
pub mod storage_limits;
pub mod thresholds;
pub mod usage;
pub mod watch;
