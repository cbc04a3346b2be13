//! Decides about Jobs: [`plan_pods`] and then [`plan_status`] compute what to do, [`Progress`]
//! carries it out call by call.

mod adoption;
mod backoff;
mod backoff_limit_per_index;
mod body;
mod census;
mod disruption_limit;
mod explain;
mod facts;
mod failure_policy;
pub mod fake_api;
mod indexes;
pub mod invariants;
mod memory;
mod metric_events;
mod options;
mod patches;
mod pending_timeout;
mod plan;
mod pod_stage;
mod pod_template;
mod pods;
mod progress;
mod report;
mod status;
mod status_plan;
pub mod status_rules;
mod steps;
mod still_running;
mod success_policy;
mod sync_input;
mod tracking;
mod verdict;
mod victims;

#[cfg(test)]
mod tests;

pub use backoff_limit_per_index::PerIndex;
pub use body::Body;
pub use census::{Census, Uncounted};
pub use disruption_limit::Disruptions;
pub use explain::{Explanation, Limit, PodEntry, Wait, explain};
pub use facts::{Facts, Indexes};
pub use failure_policy::FailureAction;
pub use indexes::IndexSet;
pub use memory::{BackoffRecord, Expectations, Memory};
pub use options::Options;
pub use patches::{claim_patch, delete_options, remove_finalizer_patch, status_body};
pub use pending_timeout::fail_pending_patch;
pub use plan::{PodPlan, SkipReason, is_ours, plan_pods};
pub use pod_template::pod_body;
pub use pods::{PodStage, Purpose};
pub use progress::Progress;
pub use report::WaitsFor;
pub use status::PodOutcomes;
pub use status_plan::{Settle, StatusPlan, plan_status};
pub use steps::{
    Action, Answer, Call, Claim, ClaimKind, EventDraft, LiveJob, MemoryUpdate, MetricEvent,
    PodDraft, Severity, SideEffect, Step, SyncResult, WrittenPod,
};
pub use sync_input::{Settings, SyncInput, Versions};
pub use verdict::{End, Verdict};
