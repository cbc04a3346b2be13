//! Decides how and when the pods of one node terminate. The crate is pure: it never awaits, logs,
//! or reads a clock, a file or the environment.

pub mod agent;
pub mod check;
pub mod finding;
pub mod install_status;
pub mod leave_status;
pub mod pod;
pub mod pressure;
pub mod protocol;
pub mod quantity;
pub mod shutdown;
pub mod termination;
pub mod time_span;
