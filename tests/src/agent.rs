//! The test bed of the agent: the real program with its own rights, a bus with a double of logind,
//! a simulated node with pods of a Job, and a degradable path to the API.

#[allow(dead_code, reason = "the agent's own tests use all of it")]
#[path = "../../agent/tests/check/bus.rs"]
mod bus;
mod kubelet;
#[allow(dead_code, unused_imports, reason = "the agent's own tests use all of it")]
#[path = "../../agent/tests/host/login1.rs"]
mod login1;
mod pods;
mod program;
mod record;
mod site;

use std::time::Duration;

pub use kubelet::Kubelet;
pub use record::{Ends, Record, State};
pub use site::{Setup, Site, Way};

/// logind's bus name.
pub(crate) const NAME: &str = "org.freedesktop.login1";
/// How long a test waits for the double of logind: longer than any delay that it grants.
pub(crate) const WITHIN: Duration = Duration::from_mins(3);
