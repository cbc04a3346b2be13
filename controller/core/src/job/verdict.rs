//! Decides whether a Job has come to its end, and why.

use std::sync::Arc;

use epilogue_common::names::job_condition;
use jiff::{SignedDuration, Timestamp};

use super::backoff::PerIndex;
use super::census::Census;
use super::policies::FailureAction;
use super::rule_names::{self, RuleNames};
use super::{IndexSet, census, policies};
use crate::view::{Job, Pod, RestartPolicy};

/// The end that a Job has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the Job succeeds or fails.
    pub end: End,
    /// Reason of the conditions.
    pub reason: String,
    /// Message of the conditions.
    pub message: String,
    /// Whether the status already has the interim condition.
    pub stored: bool,
}

/// The two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// `SuccessCriteriaMet`, then `Complete`.
    Success,
    /// `FailureTarget`, then `Failed`.
    Failure,
}

impl End {
    /// The condition that is stored before any pod is released. ([C1], [C2])
    pub fn interim(self) -> &'static str {
        match self {
            Self::Success => job_condition::SUCCESS_CRITERIA_MET,
            Self::Failure => job_condition::FAILURE_TARGET,
        }
    }

    /// The condition that finishes the Job. ([C3])
    pub fn terminal(self) -> &'static str {
        match self {
            Self::Success => job_condition::COMPLETE,
            Self::Failure => job_condition::FAILED,
        }
    }
}

/// The input of the rules, in addition to the Job.
pub(super) struct Evidence<'a> {
    pub census: &'a Census,
    pub succeeded: &'a IndexSet,
    /// The number of succeeded pods or indexes.
    pub successes: usize,
    pub per_index: Option<&'a PerIndex>,
    /// The number of ignored failures.
    pub disruptions: u32,
    /// `epilogue.dev/disruption-limit`.
    pub disruption_limit: Option<u32>,
    /// `epilogue.dev/pod-failure-policy-names`.
    pub rule_names: Option<&'a RuleNames>,
    pub now: Timestamp,
}

/// The first rule that ends the Job. Plain completion is not among them: it needs the number of
/// pods that are active after this sync. ([C7])
pub(super) fn decide(job: &Job, evidence: &Evidence<'_>) -> Option<Verdict> {
    stored(job, End::Success)
        .or_else(|| stored(job, End::Failure))
        .or_else(|| fail_job_rule(job, evidence))
        .or_else(|| backoff_limit(job, evidence.census))
        .or_else(|| disruption_limit(job, evidence))
        .or_else(|| active_deadline(job, evidence))
        .or_else(|| failed_indexes(job, evidence))
        .or_else(|| success_rule(job, evidence.succeeded))
}

/// Plain completion, by the number of pods that are active after this sync. ([C12])
pub(super) fn completion(job: &Job, succeeded: usize, active: usize) -> Option<Verdict> {
    (has_all_completions(job, succeeded) && active == 0).then(|| {
        verdict(End::Success, "CompletionsReached", "Reached expected number of succeeded pods")
    })
}

fn has_all_completions(job: &Job, succeeded: usize) -> bool {
    match job.spec.completions {
        None => succeeded > 0,
        Some(completions) => succeeded >= usize::try_from(completions).unwrap_or(0),
    }
}

/// How long until the deadline fails the Job; `None` without a deadline, or while it is suspended.
/// The clock starts with this sync if the Job starts with it. ([S14], [U5])
///
/// DIVERGES(upstream): a Job whose resumption is still to be stored counts as suspended. Upstream
/// fails it by the start time from before the suspension, should one be left there.
pub(crate) fn until_deadline(job: &Job, now: Timestamp) -> Option<SignedDuration> {
    let resumes = !job.deleting && job.true_condition(job_condition::SUSPENDED).is_some();
    let suspended = job.spec.suspend || resumes;
    let seconds = job.spec.active_deadline_seconds.filter(|_| !suspended)?;
    let start = job.start_time().unwrap_or(now);
    Some(SignedDuration::from_secs(seconds).saturating_sub(now.duration_since(start)))
}

fn verdict(end: End, reason: &str, message: impl Into<String>) -> Verdict {
    Verdict { end, reason: reason.to_owned(), message: message.into(), stored: false }
}

fn stored(job: &Job, end: End) -> Option<Verdict> {
    job.true_condition(end.interim()).map(|condition| Verdict {
        end,
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
        stored: true,
    })
}

/// A FailJob match fails the Job. ([F6])
///
/// DIVERGES(upstream): a pod that has no finalizer fails no Job. If it was released as failed, the
/// end is stored. If it was released as succeeded, upstream fails the Job once its phase turns.
fn fail_job_rule(job: &Job, evidence: &Evidence<'_>) -> Option<Verdict> {
    let policy = job.spec.pod_failure_policy.as_ref()?;
    let mut failed = evidence.census.ended.iter().filter(|pod| census::is_failed(job, pod));
    failed.find_map(|pod| match census::failure_rule(job, pod) {
        Some((rule, FailureAction::FailJob(message))) => {
            let names = evidence.rule_names;
            let (reason, message) = rule_names::decided(policy, names, rule, message);
            Some(verdict(End::Failure, &reason, message))
        }
        _ => None,
    })
}

/// Too many failed pods, or too many restarts in place, fail the Job. ([C9], [C10])
///
/// DIVERGES(upstream): without `completions`, the success of any pod stands for all of them, so a
/// pod that fails later does not fail the Job. It is not replaced, so there is nothing to limit.
/// Restarts in place do go on, and stay limited. Upstream fails the Job and deletes the pods that
/// still work. ([C9])
fn backoff_limit(job: &Job, census: &Census) -> Option<Verdict> {
    let limit = usize::try_from(job.spec.backoff_limit).unwrap_or(0);
    let too_many = census.failed(job) > limit && !is_work_queue_done(job, census);
    let exceeded = too_many || restarts_reach(job, census, limit);
    exceeded.then(|| {
        verdict(End::Failure, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    })
}

/// Whether a pod of a work queue has succeeded, so that no pod is created any more. ([P2])
fn is_work_queue_done(job: &Job, census: &Census) -> bool {
    job.spec.completions.is_none() && census.succeeded(job) > 0
}

/// Applies only on request, after the backoff limit and before the deadline.
///
/// DIVERGES(upstream): a Job may limit the failures that its podFailurePolicy ignores. Upstream
/// knows no such limit, so a Job on a bad node pool never ends.
fn disruption_limit(job: &Job, evidence: &Evidence<'_>) -> Option<Verdict> {
    let exceeded = evidence.disruption_limit.is_some_and(|limit| evidence.disruptions > limit);
    (exceeded && !is_work_queue_done(job, evidence.census)).then(|| {
        verdict(
            End::Failure,
            "DisruptionLimitExceeded",
            "Job has reached the specified disruption limit",
        )
    })
}

/// The OnFailure rule: `>=` where counted pods have `>`, except for a limit of 0. ([C10])
fn restarts_reach(job: &Job, census: &Census, limit: usize) -> bool {
    let restarts = census.pods.counts().restarts;
    job.spec.restart_policy == RestartPolicy::OnFailure && restarts > 0 && restarts >= limit as u64
}

/// A Job that is past its active deadline fails. ([U5])
///
/// DIVERGES(upstream): not if its work was done by then, and only the controller is late. Upstream
/// fails such a Job next to its succeeded pods. ([C7])
fn active_deadline(job: &Job, evidence: &Evidence<'_>) -> Option<Verdict> {
    let left = until_deadline(job, evidence.now)?;
    if left > SignedDuration::ZERO || is_done_in_time(job, evidence, left) {
        return None;
    }
    let message = "Job was active longer than specified deadline";
    Some(verdict(End::Failure, "DeadlineExceeded", message))
}

/// Whether the Job had all its successes at its deadline, and no pod was active any more.
///
/// A pod that is not counted yet must show when it ended. A counted one may be gone: the sync that
/// counted it would have ended a Job past its deadline. The clock of a node that is behind can only
/// turn late work into a success; an end before the pod was created proves nothing.
fn is_done_in_time(job: &Job, evidence: &Evidence<'_>, left: SignedDuration) -> bool {
    let Evidence { census, now, .. } = evidence;
    let Ok(deadline) = now.checked_add(left) else { return false };
    let is_reached = has_all_completions(job, evidence.successes)
        || success_rule(job, evidence.succeeded).is_some();
    let is_in_time = |pod: &Arc<Pod>| match pod.ended_at() {
        Some(ended) => ended <= deadline && pod.created.is_none_or(|created| created <= ended),
        None => !pod.tracked,
    };
    is_reached
        && census.active == 0
        && census.terminating.is_empty()
        && census.pods.iter().all(is_in_time)
}

/// Too many failed indexes fail the Job. One failed index does so when no index is left. ([I14])
fn failed_indexes(job: &Job, evidence: &Evidence<'_>) -> Option<Verdict> {
    let failed = evidence.per_index?.failed.len();
    let limit = job.spec.max_failed_indexes.and_then(|limit| u32::try_from(limit).ok());
    if limit.is_some_and(|limit| failed > limit) {
        return Some(verdict(
            End::Failure,
            "MaxFailedIndexesExceeded",
            "Job has exceeded the specified maximal number of failed indexes",
        ));
    }
    let all_ended = failed + evidence.succeeded.len() >= job.index_bound();
    (failed > 0 && all_ended)
        .then(|| verdict(End::Failure, "FailedIndexes", "Job has failed indexes"))
}

/// A rule of the success policy that is met ends the Job. ([C11])
fn success_rule(job: &Job, succeeded: &IndexSet) -> Option<Verdict> {
    let policy = job.spec.success_policy.as_ref().filter(|_| job.is_indexed())?;
    let message = policies::met(policy, succeeded, job.index_bound())?;
    Some(verdict(End::Success, "SuccessPolicy", message))
}
