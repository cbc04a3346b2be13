//! Computes the status that a sync writes, except for the accounting: active pods, start time,
//! suspension, the conditions that end the Job.

use epilogue_common::names::job_condition;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::Plan;
use super::steps::EventDraft;
use super::verdict::{self, End, Verdict};
use crate::view::Job;

/// Pods after the pod stage: the census, updated with the outcome of each call.
#[derive(Clone, Debug, Default)]
pub(super) struct PodCounts {
    /// Pods that are neither terminal nor being deleted.
    pub active: usize,
    /// Active pods that are ready.
    pub ready: usize,
    /// Pods that are being deleted.
    pub terminating: usize,
    /// Whether every deletion succeeded.
    pub all_deleted: bool,
}

/// How the sync ends the Job.
#[derive(Clone, Debug, Default)]
pub(super) struct Finish {
    /// The end that takes effect: pods are released and the terminal condition may follow.
    pub verdict: Option<Verdict>,
    /// A failure that is certain but still has pods to delete.
    pub announced: Option<Verdict>,
}

/// Decides which end takes effect with these outcomes. ([S18], [S19])
///
/// DIVERGES(upstream): a failure whose pods are not all deleted yet is stored as FailureTarget at
/// once. Upstream forgets it until they are. By then the pod that proved it may be gone. ([S18])
///
/// DIVERGES(upstream): a Job is not complete while the watch still has to show pods that it
/// created. Upstream counts only the pods that it sees. ([S19])
pub(super) fn decide_finish(plan: &Plan, counts: &PodCounts) -> Finish {
    let complete = counts.all_deleted && plan.expectations_satisfied;
    match &plan.verdict {
        Some(verdict) if complete => Finish { verdict: Some(verdict.clone()), announced: None },
        Some(verdict) => Finish {
            verdict: None,
            announced: Some(verdict.clone()).filter(|it| it.end == End::Failure && !it.stored),
        },
        None => Finish {
            verdict: verdict::completion(&plan.job, plan.succeeded, counts.active)
                .filter(|_| plan.expectations_satisfied),
            announced: None,
        },
    }
}

/// Sets the counts of pods that run; `ready` and `terminating` also when zero. ([S21])
pub(super) fn count_pods(status: &mut JobStatus, counts: &PodCounts) {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    status.active = Some(number(counts.active)).filter(|active| *active > 0);
    status.ready = Some(number(counts.ready));
    status.terminating = Some(number(counts.terminating));
}

/// Sets the start time of a Job that is not suspended. ([S14])
pub(super) fn start(status: &mut JobStatus, plan: &Plan) {
    if status.start_time.is_none() && !plan.job.spec.suspend {
        status.start_time = Some(whole_seconds(plan.now));
    }
}

/// Sets or lifts `Suspended`; returns the event if that changed something. ([U1])
///
/// DIVERGES(upstream): only lifting it sets the start time anew. Upstream also does so when the
/// condition is False with another reason or message than its own, which the API refuses for ever.
/// ([X2])
pub(super) fn suspend(status: &mut JobStatus, plan: &Plan) -> Option<EventDraft> {
    let suspended = job_condition::SUSPENDED;
    if plan.job.spec.suspend {
        let changed = upsert(status, plan.now, suspended, "True", "JobSuspended", "Job suspended");
        if changed {
            status.start_time = None;
        }
        changed.then(|| EventDraft::normal("Suspended", "Job suspended"))
    } else {
        let resumes = plan.job.true_condition(suspended).is_some();
        upsert(status, plan.now, suspended, "False", "JobResumed", "Job resumed");
        if resumes {
            status.start_time = Some(whole_seconds(plan.now));
        }
        resumes.then(|| EventDraft::normal("Resumed", "Job resumed"))
    }
}

/// Stores how many failures were ignored, if there are new ones.
pub(super) fn count_disruptions(status: &mut JobStatus, plan: &Plan) {
    if let Some(disruptions) = plan.disruptions.as_ref().filter(|it| it.is_new) {
        let kind = job_condition::DISRUPTIONS_IGNORED;
        let message = disruptions.message();
        upsert(status, plan.now, kind, "True", "PodFailurePolicy", &message);
    }
}

/// Stores the interim condition of an end, unless it is stored. ([C1], [C2])
///
/// DIVERGES(upstream): a condition with status False is replaced. Upstream appends a second one,
/// which its next sync does not find. ([C4])
pub(super) fn announce(status: &mut JobStatus, verdict: &Verdict, now: Timestamp) {
    if !verdict.stored {
        let Verdict { end, reason, message, .. } = verdict;
        upsert(status, now, end.interim(), "True", reason, message);
    }
}

/// Adds the terminal condition, and the completion time of a success. ([C3], [C6])
///
/// DIVERGES(upstream): a Job that fails while it is suspended gets a start time. Without one the
/// API refuses the end, and upstream tries for ever. ([X1])
pub(super) fn finish(status: &mut JobStatus, job: &Job, verdict: &Verdict, now: Timestamp) {
    let Verdict { end, reason, message, .. } = verdict;
    let exempt = job.spec.suspend && job.spec.completions == Some(0);
    if status.start_time.is_none() && !exempt {
        status.start_time = Some(whole_seconds(now));
    }
    upsert(status, now, end.terminal(), "True", reason, message);
    if *end == End::Success && status.completion_time.is_none() {
        // The API refuses a completion before the start. A clock that was set back, or a new leader
        // whose clock is behind, would otherwise produce one.
        let start = status.start_time.clone();
        status.completion_time = Some(whole_seconds(now)).max(start);
    }
}

/// Brings a draft into the form in which the API returns it, without the zeros that the API leaves
/// out.
pub(super) fn normalize(status: &mut JobStatus) {
    for counter in [&mut status.active, &mut status.succeeded, &mut status.failed] {
        *counter = counter.filter(|count| *count != 0);
    }
    if status.completed_indexes.as_deref() == Some("") {
        status.completed_indexes = None;
    }
}

/// Whether a draft is worth a write. ([S20])
///
/// DIVERGES(upstream): a start time alone is worth a write, so that a deadline always has a stored
/// start. Upstream stores it only together with other changes.
pub(super) fn differs(draft: &JobStatus, stored: &JobStatus) -> bool {
    let mut stored = stored.clone();
    normalize(&mut stored);
    *draft != stored
}

/// Replaces the condition in place if something differs, or adds it if missing. Returns whether
/// anything changed. ([C4], [C5])
fn upsert(
    status: &mut JobStatus,
    now: Timestamp,
    kind: &str,
    value: &str,
    reason: &str,
    message: &str,
) -> bool {
    let fresh = JobCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(whole_seconds(now)),
        last_transition_time: Some(whole_seconds(now)),
    };
    let conditions = status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|each| each.type_ == kind) {
        None if value == "False" => {
            if conditions.is_empty() {
                status.conditions = None;
            }
            false
        }
        None => {
            conditions.push(fresh);
            true
        }
        Some(old) => {
            let same = old.status == fresh.status
                && old.reason == fresh.reason
                && old.message == fresh.message;
            if !same {
                *old = fresh;
            }
            !same
        }
    }
}

/// The API stores whole seconds; a fraction kept here would appear as a change on every read.
fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}
