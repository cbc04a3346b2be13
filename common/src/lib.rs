//! Defines what both programs share: names, outcomes and the texts of node annotations. Pure: no
//! IO, no clock, no logs.

pub mod announcement;
pub mod end_signal;
pub mod finding_code;
pub mod gang_scheduling;
pub mod names;
pub mod outcome;
pub mod pod_end;
pub mod readiness;
pub mod watch_event;
