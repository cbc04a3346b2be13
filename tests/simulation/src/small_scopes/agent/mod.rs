//! Explores small scopes of the agent exhaustively: one node, two pods, a shutdown, and every order
//! of calls, watch events, kubelets and a few faults.
//!
//! The agent is the one that ships. Time goes on only when nothing is left to do at the moment, and
//! then to the next time limit of the agent, a container, a call or logind.

mod calls;
mod digest;
mod model;
mod node;
mod process;
mod sabotage;
mod scope;
mod scopes;
mod verdicts;
mod words;

pub use sabotage::Sabotage;
pub use scope::{Faults, Kubelet, PodKind, Scope};
pub use scopes::{CANCELLED, LARGE, LIVES, OTHERS_MARK, SMALL};
