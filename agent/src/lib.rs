//! Holds the agent's shells: they ask the node and the API, act on them, and read the clocks. A
//! library so that tests run each part, or the whole, against doubles; `main.rs` is the program.

#![allow(missing_debug_implementations, reason = "only tests use it")]

pub mod args;
pub mod bus;
mod calls;
pub mod cgroups;
pub mod check;
pub mod client;
pub mod clock;
pub mod cri;
pub mod driver;
pub mod environment;
pub mod host;
mod inotify;
pub mod install_status;
pub mod leave;
pub mod leave_status;
pub mod link;
mod memory_lock;
pub mod metrics;
pub mod ports;
mod report_table;
pub mod run;
pub mod sink;
pub mod source;
