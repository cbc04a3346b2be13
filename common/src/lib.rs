//! What both programs share and nothing else: names, outcomes and pod facts. Pure: no IO, no
//! clock, no logs.

pub mod announcement;
pub mod names;
pub mod outcome;
pub mod readiness;
