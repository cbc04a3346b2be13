//! Node pressure: when the node runs short of something, and which pod then ends.

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
