//! Evaluates the calls that make and resize the scheduling group of a Job.

use std::sync::Arc;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::{GroupPlan, PodGroupDraft, Resize, pod_group};
use crate::job::calls::misplaced;
use crate::job::input::MemoryUpdate;
use crate::job::steps::{Answer, EventDraft, SideEffect};
use crate::view::{Job, PodGroup};

/// What follows from the answer to the creation of a PodGroup.
pub(in crate::job) enum Created {
    /// It is there.
    Group(Arc<PodGroup>),
    /// A sibling has the name; this one is free of siblings.
    Taken(PodGroupDraft),
}

/// The Workload that was created, or found under its name, and the PodGroup to create by it.
pub(in crate::job) fn workload(
    job: &Job,
    outcome: Outcome<Answer>,
) -> Result<(Vec<SideEffect>, PodGroupDraft), Failure> {
    let (workload, is_new) = match outcome? {
        Answer::Workload(workload, is_new) => (workload, is_new),
        answer => return Err(misplaced(&answer)),
    };
    if workload.owner.as_ref() != Some(&job.uid) {
        return Err(foreign("Workload", &workload.key.1));
    }
    let [template] = &*workload.templates else {
        let message = format!("Workload {} must have one podGroupTemplate", workload.key.1);
        return Err(Failure::new(FailureKind::Invalid, message));
    };
    let written = SideEffect::Remember(MemoryUpdate::WorkloadWritten(workload.version));
    let created = is_new.then(|| created("Workload", &workload.key.1, job));
    let draft = pod_group(&workload, template, true);
    Ok((created.into_iter().chain([written]).collect(), draft))
}

/// The PodGroup that was created, or found under its name.
pub(in crate::job) fn created_group(
    job: &Job,
    draft: &PodGroupDraft,
    outcome: Outcome<Answer>,
) -> Result<(Vec<SideEffect>, Created), Failure> {
    let (group, is_new) = match outcome? {
        Answer::PodGroup(group, is_new) => (group, is_new),
        answer => return Err(misplaced(&answer)),
    };
    if group.owner.as_ref() != Some(&job.uid) {
        let other = if draft.is_own { None } else { draft.clone().of_sibling(job) };
        let taken = other.map(|draft| (Vec::new(), Created::Taken(draft)));
        return taken.ok_or_else(|| foreign("PodGroup", &group.key.1));
    }
    let written = SideEffect::Remember(MemoryUpdate::PodGroupWritten(group.version));
    let created = is_new.then(|| created("PodGroup", &group.key.1, job));
    Ok((created.into_iter().chain([written]).collect(), Created::Group(group)))
}

/// What the resizes came to. A failure leaves the group as it is: the pods go on.
///
/// DIVERGES(upstream): upstream's sync ends there, so that no pod of the Job is counted while its
/// group cannot be resized. (W5)
pub(in crate::job) fn resized(
    job: &Job,
    resizes: &[Resize],
    outcomes: Vec<Outcome<Answer>>,
) -> (Vec<SideEffect>, Option<Failure>) {
    let (mut side_effects, mut failed) = (Vec::new(), None);
    for (resize, outcome) in resizes.iter().zip(outcomes) {
        match outcome {
            Ok(Answer::Workload(workload, _)) => side_effects
                .push(SideEffect::Remember(MemoryUpdate::WorkloadWritten(workload.version))),
            Ok(Answer::PodGroup(group, _)) => side_effects
                .push(SideEffect::Remember(MemoryUpdate::PodGroupWritten(group.version))),
            Ok(answer) => failed = Some(misplaced(&answer)),
            // Another change came first; the next sync reads it.
            Err(failure) if failure.kind == FailureKind::NotFound => {}
            Err(failure) => {
                let message = format!("{resize} of Job {}: {failure}", job.key.name);
                side_effects
                    .push(SideEffect::Event(EventDraft::warning("FailedWorkloadUpdate", message)));
                failed = Some(failure);
            }
        }
    }
    (side_effects, failed)
}

/// Whether the API has refused the object, and would refuse it again.
pub(in crate::job) fn is_refused(failure: &Failure) -> bool {
    let refusals = [
        FailureKind::AlreadyExists,
        FailureKind::Forbidden,
        FailureKind::Invalid,
        FailureKind::NotFound,
        FailureKind::Other,
    ];
    refusals.contains(&failure.kind) && !failure.unsent && failure.retry_after.is_none()
}

/// The event of a group that could not be made. Without a reply it may be there.
pub(in crate::job) fn not_created(kind: &str, job: &Job, failure: &Failure) -> Option<EventDraft> {
    let unreported = failure.is_in_doubt() || failure.kind == FailureKind::NamespaceTerminating;
    let message = format!("Failed to create {kind} for Job {}: {failure}", job.key.name);
    (!unreported).then(|| EventDraft::warning("FailedWorkloadCreate", message))
}

/// The event of a plan that makes no group although the Job asks for one.
pub(in crate::job) fn not_grouped(
    plan: &GroupPlan,
    job: &Job,
    creates: bool,
) -> Option<EventDraft> {
    let name = &job.key.name;
    match plan {
        GroupPlan::Await(what, _) => Some(EventDraft::warning(
            "SchedulingDependencyNotFound",
            format!("Job {name} waits for its scheduling group: {what}"),
        )),
        GroupPlan::Alone(why) if creates => Some(EventDraft::warning(
            "UnsupportedWorkloadStructure",
            format!("Pods of Job {name} are scheduled one by one: {why}"),
        )),
        GroupPlan::Refuse(problem) => Some(EventDraft::warning(
            "FailedWorkloadCompilation",
            format!("Failed to compile Workload for Job {name}: {problem}"),
        )),
        _ => None,
    }
}

fn created(kind: &str, name: &str, job: &Job) -> SideEffect {
    let reason = if kind == "Workload" { "WorkloadCreated" } else { "PodGroupCreated" };
    let message = format!("Created {kind} {name} for Job {}", job.key.name);
    SideEffect::Event(EventDraft::normal(reason, message))
}

fn foreign(kind: &str, name: &str) -> Failure {
    let message = format!("{kind} {name} exists, and the Job does not control it");
    Failure::new(FailureKind::AlreadyExists, message)
}
