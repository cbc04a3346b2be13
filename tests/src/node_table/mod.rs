//! Plays how a node ends, and records what the API then shows of its pods. Every way of ending is
//! played with the kubelet's graceful shutdown off and on, without our agent and with it, and with
//! the Jobs run by upstream's controller or by ours. A case is one machine on a control plane of
//! its own with all of upstream's controllers and its scheduler, and a simulated node that takes
//! over.
//!
//! `case` names what is played, `pods` defines the pods, `stage` is the machine, `scenario` ends
//! it, `ledger` records what the Jobs do, `outcome` is the result, to be printed side by side.
//! `lost` counts instead, with many pods of one kind.

mod case;
mod ledger;
mod lost;
mod outcome;
mod pods;
mod scenario;
mod stage;

pub use case::{Case, JobController, Kubelet, Scenario};
pub use ledger::{JobRow, Replaced};
pub use lost::{Lost, lost};
pub use outcome::{Outcome, Row, render};
pub use pods::ROLES;
pub use scenario::{AGENT_FLAGS, Table, play};

pub use crate::vm::agent::Install;
