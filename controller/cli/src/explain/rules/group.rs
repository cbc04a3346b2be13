//! Says what the next sync does about the scheduling group of a Job.

use controller_core::job::{GroupPlan, PodPlan, PodStage};

/// What the next sync does about the scheduling group, and then about pods.
pub(super) fn with_group(plan: &PodPlan, of_pods: Vec<String>) -> impl Iterator<Item = String> {
    let of_pods = if plan.group.is_last() { Vec::new() } else { of_pods };
    group_line(plan).into_iter().chain(of_pods)
}

fn group_line(plan: &PodPlan) -> Option<String> {
    let creates = matches!(plan.pods, PodStage::Create(_));
    match &plan.group {
        // A wait is among what the Job waits for.
        GroupPlan::Nothing | GroupPlan::Await(..) => None,
        GroupPlan::Join(_, resizes) if resizes.is_empty() && !creates => None,
        group => Some(group.to_string()),
    }
}
