//! Says what the next sync does about the scheduling group of a Job.

use controller_core::job::{Cause, GroupPlan, PodPlan, PodStage, Purpose};

use super::count;

/// What the next sync does about the scheduling group, and then about pods.
pub(super) fn with_group(plan: &PodPlan, of_pods: Vec<String>) -> impl Iterator<Item = String> {
    let of_pods = if plan.group.is_last() { Vec::new() } else { of_pods };
    group_line(plan).into_iter().chain(recovery_line(plan)).chain(of_pods)
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

/// What becomes of the other members of a group that has lost one.
fn recovery_line(plan: &PodPlan) -> Option<String> {
    let recovery = plan.facts.recovery.as_ref().filter(|_| plan.verdict.is_none())?;
    let (lost, cause) = (&recovery.lost.name, Cause::of(&recovery.lost).label());
    let (left, awaited) = (recovery.left.len(), recovery.awaited);
    let then = match &plan.pods {
        PodStage::Delete { purpose: Purpose::Group, .. } => "its group starts anew".to_owned(),
        _ if left > 0 => format!("{} of its group are to end first", count(left)),
        _ => format!("its group starts anew once {} of it ended", count(awaited)),
    };
    Some(format!("{lost} is lost ({cause}), and disruptionMode is all: {then}"))
}
