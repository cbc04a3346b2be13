//! Judges a cluster for `kubectl epilogue doctor`: what makes no progress, why, and what would
//! help. Pod GC decides whether a pod can be failed.
//!
//! [`Scene`] holds the cluster. Each rule searches it for one kind of problem; [`findings`]
//! collects them, and [`node_report`] adds the checks of one node.

mod finding;
mod findings;
mod gangs;
mod jobs;
mod namespaces;
mod node_check;
mod node_event;
mod node_report;
mod node_seen;
mod nodes;
mod pods;
mod scene;
#[cfg(test)]
mod tests;
mod times;
mod unprepared;
mod waiting;

pub(crate) use finding::{Finding, Omission, Rule};
pub(crate) use findings::{findings, omissions};
pub(crate) use gangs::{GangState, gang_state};
pub(crate) use jobs::not_watched;
pub(crate) use node_check::NodeVerdict;
pub(crate) use node_event::AGENT_REPORTER;
pub(crate) use node_report::{NodeReport, node_report};
pub(crate) use scene::{Scene, SceneError};
