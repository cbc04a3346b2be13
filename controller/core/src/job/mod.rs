//! Decides about Jobs: [`plan_pods`] and then [`plan_status`] compute what to do, [`Progress`]
//! carries it out call by call.

mod adoption;
mod backoff;
mod body;
mod calls;
mod cause;
mod census;
mod early;
mod end_events;
mod ends;
mod facts;
mod group;
mod input;
mod lost;
mod node_fault;
mod options;
mod plan;
mod pod_stage;
mod pod_template;
mod pods;
mod policies;
mod progress;
mod rejected;
mod report;
mod rule_names;
mod status_plan;
mod steps;
mod tracking;
pub(crate) mod verdict;

#[cfg(test)]
mod tests;

pub use crate::index_set::IndexSet;
pub use backoff::PerIndex;
pub use body::{
    Body, claim_patch, delete_options, fail_pending_patch, mark_fault_patch,
    remove_finalizer_patch, status_body, strip_patch, whole_status_body,
};
pub use cause::{Cause, Ending, pending_reason, plain};
pub use census::{Census, Uncounted, counts_as_failure, failure_action, has_valid_index};
pub use early::replaces_early;
pub use end_events::PodEnded;
pub use ends::Ends;
pub use facts::{Facts, Indexes};
pub use group::body::{pod_group_body, resize_patch, workload_body};
pub use group::{
    GroupPlan, GroupStep, JobGroups, Management, PodGroupDraft, Resize, Resized, SchedulingGroup,
    WorkloadDraft, WorkloadPlan,
};
pub use input::{
    BackoffRecord, Expectations, Memory, MemoryUpdate, NodeBoots, Settings, SyncInput, Versions,
    WrittenPod,
};
pub use node_fault::{FaultKind, NodeFault};
pub use options::{Disruptions, Options};
pub use plan::{PodPlan, SkipReason, is_ours, is_run_by_us, plan_pods};
pub use pod_stage::refused_release;
pub(crate) use pod_template::generate_name;
pub(crate) use pod_template::has_labels;
pub use pod_template::pod_body;
pub(crate) use pods::NODES_AVOIDED_MAX;
pub use pods::{PodStage, Purpose};
pub use policies::FailureAction;
pub use progress::Progress;
pub use rejected::is_rejected_by_node;
pub use report::WaitsFor;
pub use rule_names::RuleNames;
pub use status_plan::{PodOutcomes, Settle, StatusPlan, plan_status, status_text};
pub use steps::{
    Action, Answer, Call, Claim, ClaimKind, EventDraft, LiveJob, MetricEvent, PodDraft, Severity,
    SideEffect, Step, SyncResult,
};
pub use verdict::{End, Verdict};
