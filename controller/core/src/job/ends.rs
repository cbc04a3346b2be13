//! Remembers how a Job's pods failed, and says in a failed Job's conditions what decided.
//!
//! DIVERGES(upstream): the messages of `FailureTarget` and `Failed` begin with upstream's words and
//! go on with the facts. Upstream ends there, and once the pods are gone nothing says why the Job
//! failed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use epilogue_common::names::job_reason::{POD_FAILURE_POLICY, without_rule};
use jiff::Timestamp;

use super::cause::{self, Cause, Ending};
use super::facts::Facts;
use super::policies::FailureAction;
use super::verdict::{End, Verdict};
use super::{IndexSet, census};
use crate::view::{Job, Phase, Pod};

/// The most bytes of a message.
const MESSAGE_MAX: usize = 1024;
/// The most characters of a list of indexes.
const INDEXES_MAX: usize = 60;
/// The most reasons of pending pods.
const REASONS_MAX: usize = 3;

/// How the Job's failed pods ended that were counted or ignored so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ends {
    counted: Group,
    ignored: Group,
}

/// Failed pods that counted alike.
#[derive(Clone, Debug, Default, PartialEq)]
struct Group {
    causes: BTreeMap<Cause, u32>,
    last: Option<Last>,
}

/// The one that ended last.
#[derive(Clone, Debug, PartialEq)]
struct Last {
    at: Option<Timestamp>,
    cause: Cause,
    text: Box<str>,
}

impl Ends {
    /// Those of the facts, and of these pods, which are counted now.
    pub(super) fn after(facts: &Facts, failed: &[Arc<Pod>]) -> Option<Arc<Self>> {
        if failed.is_empty() {
            return facts.ends.clone();
        }
        let known = facts.ends.as_deref().cloned().unwrap_or_default();
        Some(Arc::new(known.with(&facts.job, failed.iter())))
    }

    /// With these pods, too, which failed.
    #[must_use]
    pub(super) fn with<'a>(
        mut self,
        job: &Job,
        failed: impl Iterator<Item = &'a Arc<Pod>>,
    ) -> Self {
        for pod in failed {
            let counts = census::counts_as_failure(job, pod);
            let group = if counts { &mut self.counted } else { &mut self.ignored };
            group.add(pod);
        }
        self
    }

    /// The ones that know of more pods.
    pub(super) fn max(self, other: Self) -> Self {
        let total = |of: &Self| of.counted.total() + of.ignored.total();
        if total(&other) > total(&self) { other } else { self }
    }

    /// Whether it knows of no pod.
    pub fn is_empty(&self) -> bool {
        self.counted.causes.is_empty() && self.ignored.causes.is_empty()
    }
}

impl Group {
    fn add(&mut self, pod: &Pod) {
        let cause = Cause::of(pod);
        let count = self.causes.entry(cause).or_default();
        *count = count.saturating_add(1);
        let at = pod.finished_at();
        if self.last.as_ref().is_none_or(|last| last.at <= at) {
            self.last = Some(Last { at, cause, text: Ending(pod).to_string().into() });
        }
    }

    fn total(&self) -> usize {
        self.causes.values().map(|count| *count as usize).sum()
    }

    /// How many of which cause, where there are several, and the last one in full.
    fn write(&self, text: &mut String, all: usize) {
        let more = all.saturating_sub(self.total());
        if self.total() > 0 && (self.total() > 1 || more > 0) {
            let mut causes: Vec<_> = self.causes.iter().collect();
            causes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let each =
                causes.into_iter().map(|(cause, count)| format!("{count} {}", cause.label()));
            let more = (more > 0).then(|| format!("{more} more"));
            let all: Vec<String> = each.chain(more).collect();
            let _ = write!(text, " ({})", all.join(", "));
        }
        let Some(last) = &self.last else { return };
        let which = if self.total() > 1 || more > 0 { "the last: " } else { "" };
        let _ = write!(text, "; {which}{}", last.text);
    }
}

/// The verdict with the facts that decided, if it fails the Job and is new.
pub(super) fn explained(verdict: Verdict, facts: &Facts) -> Verdict {
    if verdict.stored || verdict.end == End::Success {
        return verdict;
    }
    let mut text = verdict.message.clone();
    let ends = failures(facts);
    match without_rule(&verdict.reason) {
        POD_FAILURE_POLICY => of_rule(&mut text, facts),
        "BackoffLimitExceeded" => of_backoff_limit(&mut text, facts, &ends),
        "DisruptionLimitExceeded" => of_disruption_limit(&mut text, facts, &ends),
        "DeadlineExceeded" => of_deadline(&mut text, facts, &ends),
        "FailedIndexes" | "MaxFailedIndexesExceeded" => of_indexes(&mut text, facts, &ends),
        _ => {}
    }
    if text.len() > MESSAGE_MAX {
        text.truncate(text.floor_char_boundary(MESSAGE_MAX - '…'.len_utf8()));
        text.push('…');
    }
    Verdict { message: text, ..verdict }
}

/// All failures that are known, with those that the status is about to list.
fn failures(facts: &Facts) -> Ends {
    let known = facts.ends.as_deref().cloned().unwrap_or_default();
    known.with(&facts.job, facts.census.newly_failed.iter())
}

fn of_rule(text: &mut String, facts: &Facts) {
    let job = &facts.job;
    let fails = |pod: &&Arc<Pod>| {
        let action = census::failure_action(job, pod);
        census::is_failed(job, pod) && matches!(action, Some(FailureAction::FailJob(_)))
    };
    if let Some(pod) = facts.census.ended.iter().find(fails) {
        let _ = write!(text, "; {}", Ending(pod));
    }
}

fn of_backoff_limit(text: &mut String, facts: &Facts, ends: &Ends) {
    let limit = facts.job.spec.backoff_limit;
    let failed = facts.census.failed(&facts.job);
    let restarts = facts.census.pods.counts().restarts;
    if failed <= usize::try_from(limit).unwrap_or(0) {
        let reach = if restarts == 1 { "restart reaches" } else { "restarts reach" };
        let _ = write!(text, ": {restarts} {reach} the limit of {limit}");
        let restarted = facts.census.pods.iter().filter(|pod| restarts_of(pod) > 0);
        if let Some(pod) = restarted.max_by_key(|pod| restarts_of(pod)) {
            let _ = write!(text, "; {}", Ending(pod));
        }
        return;
    }
    let _ = write!(text, ": {failed} failure{} of {limit} allowed", plural(failed as u64));
    ends.counted.write(text, failed);
    unmatched(text, facts, &ends.counted);
}

/// That no rule ignores a disruption is what a user can change.
fn unmatched(text: &mut String, facts: &Facts, group: &Group) {
    let disrupted = group.last.as_ref().is_some_and(|last| last.cause.is_disruption());
    let may_have_rules = facts.job.spec.restart_policy == crate::view::RestartPolicy::Never;
    if disrupted && may_have_rules {
        text.push_str(", and no rule of podFailurePolicy ignores that");
    }
}

fn restarts_of(pod: &Pod) -> u64 {
    pod.containers.iter().map(|each| u64::from(each.restarts)).sum()
}

fn of_disruption_limit(text: &mut String, facts: &Facts, ends: &Ends) {
    let disruptions = facts.disruptions.as_ref().map_or(0, |it| it.ignored);
    let limit = facts.options.disruption_limit.unwrap_or(0);
    let _ = write!(text, ": {disruptions} disruption{}", plural(disruptions.into()));
    let _ = write!(text, " of {limit} allowed");
    ends.ignored.write(text, disruptions as usize);
}

/// What the Job's pods did when it was over, and which had failed before.
fn of_deadline(text: &mut String, facts: &Facts, ends: &Ends) {
    let census = &facts.census;
    let seconds = facts.job.spec.active_deadline_seconds.unwrap_or(0);
    let active = || census.pods.iter().filter(|pod| pod.is_active());
    let pending: Vec<&Arc<Pod>> = active().filter(|pod| pod.phase == Phase::Pending).collect();
    let running = active().count() - pending.len();
    let mut parts = Vec::new();
    if running > 0 {
        parts.push(format!("{running} running"));
    }
    if !pending.is_empty() {
        parts.push(format!("{} pending{}", pending.len(), reasons(&pending)));
    }
    if !census.terminating.is_empty() {
        parts.push(format!("{} terminating", census.terminating.len()));
    }
    let pods = if parts.is_empty() { "no pod".to_owned() } else { parts.join(", ") };
    let _ = write!(text, " of {seconds} s; the Job had {pods}");
    let failed = census.failed(&facts.job);
    if failed > 0 {
        let _ = write!(text, ", and {failed} failure{}", plural(failed as u64));
        ends.counted.write(text, failed);
    }
}

/// Why these pods have not begun.
fn reasons(pending: &[&Arc<Pod>]) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for reason in pending.iter().filter_map(|pod| cause::pending_reason(pod)) {
        *counts.entry(cause::clean(reason)).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts.truncate(REASONS_MAX);
    match &counts[..] {
        [] => String::new(),
        [(reason, count)] if *count == pending.len() => format!(" ({reason})"),
        several => {
            let each = several.iter().map(|(reason, count)| format!("{count} {reason}"));
            format!(" ({})", each.collect::<Vec<_>>().join(", "))
        }
    }
}

fn of_indexes(text: &mut String, facts: &Facts, ends: &Ends) {
    let none = IndexSet::default();
    let failed = facts.per_index().map_or(&none, |per_index| &per_index.failed);
    let of = match facts.job.spec.max_failed_indexes {
        Some(limit) if i64::from(failed.len()) > i64::from(limit) => format!("{limit} allowed"),
        _ => facts.job.index_bound().to_string(),
    };
    let mut list = failed.to_string();
    if list.len() > INDEXES_MAX {
        list.truncate(INDEXES_MAX);
        list.push('…');
    }
    let _ = write!(text, ": {} of {of} ({list})", failed.len());
    let failures = facts.census.failed(&facts.job);
    let _ = write!(text, ", {failures} failure{}", plural(failures as u64));
    ends.counted.write(text, failures);
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}
