//! Says as it happens how a pod of a Job ended and how that counted: the events `PodFailed` and
//! `PodDisrupted` of the Job.
//!
//! DIVERGES(upstream): upstream has no event for an end. Once the pod is gone, nothing says why the
//! Job's counters rose.

use std::fmt::Write as _;
use std::sync::Arc;

use epilogue_common::pod_end::{Counted, PodEnd};
use jiff::{SignedDuration, Timestamp};

use super::cause::{Cause, Ending, before_last_start};
use super::census;
use super::facts::Facts;
use super::plan::PodPlan;
use super::policies::FailureAction;
use super::report::{WaitsFor, in_seconds};
use super::steps::EventDraft;
use crate::view::{Job, Pod, RestartPolicy};

/// One end of a pod, with what it counted as.
#[derive(Clone, Debug, PartialEq)]
pub struct PodEnded {
    /// The pod at its end.
    pub pod: Arc<Pod>,
    /// Why it ended.
    pub cause: Cause,
    /// How the Job counted that.
    pub counted: Counted,
    /// The same in words.
    pub end: PodEnd,
}

impl PodEnded {
    /// The ends of these pods, which the status is about to count or the policy ignores. Those that
    /// are deleted with their Job, or at its end, are left out: they say nothing about the Job. But
    /// if restarts reached its limit, those that had failed until then are its failure.
    pub(super) fn read(plan: &PodPlan, failed: &[Arc<Pod>]) -> Vec<Self> {
        let facts = &plan.facts;
        let verdict = plan.verdict.as_ref();
        let over = verdict.is_some_and(|verdict| verdict.stored) || facts.job.deleting;
        let at_limit = verdict.is_some_and(|it| it.reason == "BackoffLimitExceeded");
        let by_job = |pod: &Pod| match pod.deletion {
            Some(_) => over && !Cause::of(pod).is_disruption(),
            // It counts because the Job is at its end.
            None => !pod.is_terminal(),
        };
        let ending = |pod: &Pod| {
            if by_job(pod) {
                let restarts = facts.job.spec.restart_policy == RestartPolicy::OnFailure;
                return before_last_start(pod).filter(|_| at_limit && restarts);
            }
            let is_failed = census::is_failed(&facts.job, pod);
            is_failed.then(|| (Cause::of(pod), Ending(pod).to_string()))
        };
        let mut number = facts.census.failed(&facts.job) - facts.census.newly_failed_counted.len();
        let wait = backoff(plan);
        failed
            .iter()
            .filter_map(|pod| {
                let rule = census::failure_rule(&facts.job, pod);
                let ignored = matches!(rule, Some((_, FailureAction::Ignore)));
                number += usize::from(!ignored);
                let ending = ending(pod)?;
                let number = (!by_job(pod)).then_some(number);
                Some(Self::of(facts, pod, ending, rule.as_ref(), (number, wait)))
            })
            .collect()
    }

    fn of(
        facts: &Facts,
        pod: &Arc<Pod>,
        (cause, mut says): (Cause, String),
        rule: Option<&(usize, FailureAction)>,
        (number, wait): (Option<usize>, Option<SignedDuration>),
    ) -> Self {
        let job = &facts.job;
        let failed = facts.per_index().map(|per_index| &per_index.failed);
        let failed_index = pod.index.filter(|index| failed.is_some_and(|it| it.contains(*index)));
        let counted = match rule {
            Some((rule, FailureAction::Ignore)) => {
                let _ = write!(says, "; ignored by rule {rule} of podFailurePolicy");
                Counted::Ignored
            }
            Some((rule, FailureAction::FailJob(_))) => {
                let _ = write!(says, "; the Job failed by rule {rule} of podFailurePolicy");
                Counted::JobFailed
            }
            _ => {
                if let Some(index) = failed_index {
                    let _ = write!(says, "; index {index} failed");
                    Counted::IndexFailed
                } else {
                    says.push_str(&failure(job, pod, number));
                    Counted::Failed
                }
            }
        };
        let goes_on = matches!(counted, Counted::Failed | Counted::Ignored);
        if let Some(wait) = wait.filter(|_| goes_on) {
            let _ = write!(says, ", replaced after {}", in_seconds(wait));
        }
        Self { pod: Arc::clone(pod), cause, counted, end: end(pod, facts.now, says) }
    }

    /// The end of a pod of a Job that another controller runs.
    pub fn elsewhere(pod: &Arc<Pod>, now: Timestamp) -> Self {
        let says = format!("{}; the Job's own controller decides how that counts", Ending(pod));
        let (cause, end) = (Cause::of(pod), end(pod, now, says));
        Self { pod: Arc::clone(pod), cause, counted: Counted::Elsewhere, end }
    }

    /// The event of it.
    pub fn event(&self) -> EventDraft {
        let says = &*self.end.says;
        let event = if self.cause.is_disruption() {
            EventDraft::normal("PodDisrupted", says)
        } else {
            EventDraft::warning("PodFailed", says)
        };
        EventDraft { ended: Some(Box::new(self.clone())), ..event }
    }
}

fn end(pod: &Pod, now: Timestamp, says: String) -> PodEnd {
    PodEnd {
        pod: pod.name.to_string(),
        node: pod.node.as_ref().map(ToString::to_string),
        index: pod.index,
        at: pod.finished_at().unwrap_or(now),
        says,
    }
}

/// The number of the failure, and of how many, where there is a limit. Without a number, restarts
/// reached the limit.
fn failure(job: &Job, pod: &Pod, number: Option<usize>) -> String {
    let limit = i64::from(job.spec.backoff_limit);
    let Some(number) = number else {
        return format!("; restarts reached the limit of {limit}");
    };
    match (job.spec.backoff_limit_per_index, pod.index) {
        (Some(limit), Some(index)) => {
            let number = pod.failures.counted.saturating_add(1);
            format!("; failure {number} of {limit} allowed of index {index}")
        }
        _ if limit == i64::from(i32::MAX) => format!("; failure {number}"),
        _ => format!("; failure {number} of {limit} allowed"),
    }
}

/// How long the replacement waits. Each index has a wait of its own, which is over when its pod is
/// counted.
fn backoff(plan: &PodPlan) -> Option<SignedDuration> {
    plan.waits_for.iter().find_map(|wait| match wait {
        WaitsFor::Backoff { left, .. } => Some(*left),
        _ => None,
    })
}
