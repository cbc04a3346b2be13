//! How a node ends, and what the API then says of its pods: every way of ending, with the kubelet's
//! graceful shutdown off and on, without our agent and with it. A case is one machine on a control
//! plane of its own with all of the reference's controllers and its scheduler.
//!
//! `pods` are what runs there, `stage` is the machine, `scenario` ends it, `outcome` is what is
//! left, to be printed side by side. `lost` counts instead, of many pods of one kind.

mod lost;
mod outcome;
mod pods;
mod scenario;
mod stage;

pub use lost::{Lost, lost};
pub use outcome::{Outcome, Row, render};
pub use pods::ROLES;
pub use scenario::{AGENT_FLAGS, Case, Scenario, Table, play};

pub use crate::vm::agent::Install;
