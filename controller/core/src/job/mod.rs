//! The decisions about Jobs: [`plan`] says what to do, [`Progress`] does it step by step.

mod backoff;
mod backoff_limit_per_index;
mod bodies;
mod census;
pub mod checks;
mod claims;
mod creation;
mod disruption_limit;
mod draft;
mod explain;
mod failure_policy;
mod indexes;
mod input;
mod memory;
pub mod model;
mod options;
mod pending_timeout;
mod plan;
mod plan_text;
mod pod_template;
mod pods;
mod progress;
mod report;
pub mod status_rules;
mod steps;
mod still_running;
mod success_policy;
mod tally;
mod tracking;
mod verdict;
mod victims;

#[cfg(test)]
mod tests;

pub use backoff_limit_per_index::PerIndex;
pub use bodies::{claim_patch, delete_options, release_patch, status_body};
pub use census::{Census, Uncounted};
pub use disruption_limit::Disruptions;
pub use explain::{Explanation, Limit, PodEntry, explain};
pub use failure_policy::FailureAction;
pub use indexes::IndexSet;
pub use input::{BackoffRecord, Expectations, Memory, Settings, SyncInput, Versions};
pub use options::Options;
pub use pending_timeout::give_up_patch;
pub use plan::{Idle, Indexes, Plan, is_ours, plan};
pub use pod_template::pod_body;
pub use pods::{PodStage, Purpose};
pub use progress::Progress;
pub use report::WaitsFor;
pub use steps::{
    Action, Claim, ClaimKind, Conclusion, EventDraft, LiveJob, Note, PodDeletion, PodDraft,
    Recollection, Severity, Step, StepOutcome, Tally, WrittenPod,
};
pub use verdict::{End, Verdict};
