//! Computes the status that a sync writes, except for the accounting: active pods, start time,
//! suspension, the conditions that end the Job.

use std::sync::Arc;

use epilogue_common::names::job_condition;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::facts::Facts;
use super::steps::EventDraft;
use super::verdict::{End, Verdict};
use crate::view::{Job, Pod};

/// Pods after the pod stage: the census, updated with the outcome of each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOutcomes {
    /// Pods that are neither terminal nor being deleted.
    pub active: usize,
    /// Active pods that are ready.
    pub ready: usize,
    /// Pods that are being deleted.
    pub terminating: usize,
    /// Whether every deletion succeeded.
    pub all_deleted: bool,
}

impl PodOutcomes {
    /// The pods before any call.
    pub(super) fn before(facts: &Facts) -> Self {
        let census = &facts.census;
        Self {
            active: census.active.len(),
            ready: census.ready,
            terminating: census.terminating.len(),
            all_deleted: true,
        }
    }

    /// The pods once these active ones are deleted.
    pub(super) fn without(self, gone: &[Arc<Pod>]) -> Self {
        Self {
            active: self.active - gone.len(),
            ready: self.ready - gone.iter().filter(|pod| pod.is_ready()).count(),
            terminating: self.terminating + gone.len(),
            ..self
        }
    }
}

/// Sets the counts of pods that run; `ready` and `terminating` also when zero. ([S21])
pub(super) fn count_pods(status: &mut JobStatus, outcomes: &PodOutcomes) {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    status.active = Some(number(outcomes.active)).filter(|active| *active > 0);
    status.ready = Some(number(outcomes.ready));
    status.terminating = Some(number(outcomes.terminating));
}

/// Sets the start time of a Job that is not suspended. ([S14])
pub(super) fn start(status: &mut JobStatus, facts: &Facts) {
    if status.start_time.is_none() && !facts.job.spec.suspend {
        status.start_time = Some(whole_seconds(facts.now));
    }
}

/// Sets or lifts `Suspended`; returns the event if that changed something. ([U1])
///
/// DIVERGES(upstream): only lifting it sets the start time anew. Upstream also does so when the
/// condition is False with another reason or message than its own, which the API refuses for ever.
/// ([X2])
pub(super) fn suspend(status: &mut JobStatus, facts: &Facts) -> Option<EventDraft> {
    let suspended = job_condition::SUSPENDED;
    if facts.job.spec.suspend {
        let changed = upsert(status, facts.now, suspended, "True", "JobSuspended", "Job suspended");
        if changed {
            status.start_time = None;
        }
        changed.then(|| EventDraft::normal("Suspended", "Job suspended"))
    } else {
        let resumes = facts.job.true_condition(suspended).is_some();
        upsert(status, facts.now, suspended, "False", "JobResumed", "Job resumed");
        if resumes {
            status.start_time = Some(whole_seconds(facts.now));
        }
        resumes.then(|| EventDraft::normal("Resumed", "Job resumed"))
    }
}

/// Stores how many failures were ignored, if there are new ones.
pub(super) fn count_disruptions(status: &mut JobStatus, facts: &Facts) {
    if let Some(disruptions) = facts.disruptions.as_ref().filter(|it| it.is_new) {
        let kind = job_condition::DISRUPTIONS_IGNORED;
        let message = disruptions.message();
        upsert(status, facts.now, kind, "True", "PodFailurePolicy", &message);
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
