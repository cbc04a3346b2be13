//! The test bed of the agent: the real program with its own rights, a bus with a double of logind,
//! a simulated node with pods of a Job, and a degradable path to the API.

mod kubelet;
mod pods;
mod program;
mod record;
mod site;
mod token;

pub use kubelet::Kubelet;
pub use record::{Ends, Record, State};
pub use site::{Setup, Site, Way};
