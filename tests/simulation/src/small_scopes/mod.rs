//! Explores small scopes exhaustively: one Job of up to three pods, two processes that both believe
//! they lead, and every order of calls, watch events, kubelets and a few faults.
//!
//! The state and the plans are those that ship. The API is the simulation's. Delays of the
//! workqueue do not count: whatever is not done at once is done in any order with all the rest. The
//! clock moves on only when a wait of up to 30 s ends; longer waits, a last resort, never do.

pub mod agent;
mod calls;
mod digest;
mod explorer;
mod history;
mod kubelet;
mod model;
mod process;
mod sabotage;
mod scope;
mod scopes;
mod watches;
mod words;

pub use explorer::{Report, Violation};
pub use kubelet::Ending;
pub use sabotage::Sabotage;
pub use scope::{Faults, JobKind, Limits, Scope};
pub use scopes::{ENDINGS, GANGS, LARGE, LEADERS, LOSSES, ONE, POLICIES, RARE, TURNS, TWO, small};

/// Explores a scope.
pub fn explore(scope: &Scope, limits: Limits) -> Report {
    explorer::explore(scope, limits)
}

/// Explores a scope of the agent.
pub fn explore_agent(scope: &agent::Scope, limits: Limits) -> Report {
    explorer::explore(scope, limits)
}

/// Describes a violation in the scope of this name, with the shortest path to it.
pub fn failure(scope: &str, violation: &Violation) -> String {
    let actions = violation.path.iter().enumerate();
    let path: Vec<String> =
        actions.map(|(number, action)| format!("  {}. {action}\n", number + 1)).collect();
    format!("scope {scope}: {}\n{}", violation.problem, path.concat())
}
