//! Plays how a node ends, and records what the API then shows of its pods. Every way of ending is
//! played with the kubelet's graceful shutdown off and on, without our agent and with it, and with
//! the Jobs run by upstream's controller or by ours. A case is one machine on a control plane of
//! its own with all of upstream's controllers and its scheduler, and a simulated node that takes
//! over.
//!
//! `case` names what is played, `pods` defines the pods, `stage` is the machine, `scenario` ends
//! it, `ledger` records what the Jobs do, `outcome` is the result, to be printed side by side.
//! `cell` lists what the pages show, `record` keeps the results of these, and `page` renders them.
//! `lost` counts instead, with many pods of one kind.

mod case;
mod cell;
mod ledger;
mod lost;
mod outcome;
pub mod page;
mod pods;
mod record;
mod scenario;
mod stage;

pub use case::{Case, JobController, Kubelet, STORY_FLAGS, Scenario};
pub use cell::{Cell, Column};
pub use ledger::{JobRow, Replaced};
pub use lost::{Lost, lost};
pub use outcome::{Outcome, Row, render};
pub use pods::ROLES;
pub use record::{End, Entry, PodEnd, Record, Versions};
pub use scenario::{Table, play};

pub use crate::vm::agent::Install;
