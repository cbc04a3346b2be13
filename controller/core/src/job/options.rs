//! Reads a Job's options from its annotations, which go beyond the API's fields, and counts for
//! `epilogue.dev/disruption-limit`.
//!
//! The same rules stand in `deploy/policy/controller/job-annotations.yaml`, which refuses a Job
//! that breaks them. Here an event reports a value that cannot be read, and the option is left out.

use std::collections::{BTreeMap, BTreeSet};

use epilogue_common::names::job_condition::DISRUPTIONS_IGNORED;
use epilogue_common::names::job_option::{
    AVOID_FAILED_NODES, BACKOFF_BASE, BACKOFF_MAX, DISRUPTION_LIMIT, FINISHED_PODS_KEPT,
    PENDING_TIMEOUT, POD_FAILURE_POLICY_NAMES, REPLACE_EARLY,
};
use jiff::SignedDuration;

use super::census::Census;
use super::early;
use super::input::Settings;
use super::rule_names::RuleNames;
use crate::go_duration::GoDuration;
use crate::view::{Job, Uid};

/// The shortest `epilogue.dev/pending-timeout`: one that no pod can meet makes pods for ever.
const PENDING_TIMEOUT_MIN: SignedDuration = SignedDuration::from_secs(1);

/// The options of one Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `epilogue.dev/disruption-limit`: ignored failures beyond this many fail the Job.
    pub disruption_limit: Option<u32>,
    /// `epilogue.dev/backoff-base`, in place of `--default-job-pod-failure-backoff`.
    pub backoff_base: Option<SignedDuration>,
    /// `epilogue.dev/backoff-max`, in place of `--max-job-pod-failure-backoff`.
    pub backoff_max: Option<SignedDuration>,
    /// `epilogue.dev/pending-timeout`: the controller fails a pod that has not started by then.
    pub pending_timeout: Option<SignedDuration>,
    /// `epilogue.dev/avoid-failed-nodes`: prefer other nodes than those of disrupted pods.
    pub avoid_failed_nodes: bool,
    /// `epilogue.dev/finished-pods-kept`: pod GC deletes older finished and counted pods.
    pub finished_pods_kept: Option<u32>,
    /// `epilogue.dev/pod-failure-policy-names`: how a reason names the rule that fails the Job.
    pub rule_names: Option<RuleNames>,
    /// `epilogue.dev/replace-early`: replace a pod that is about to end while it still runs.
    pub replace_early: bool,
    /// Values that could not be read, or are too short, for people.
    pub problems: Vec<String>,
}

impl Options {
    /// Reads the annotations of a Job.
    pub(super) fn read(job: &Job, settings: &Settings) -> Self {
        let mut options = Self::of(&job.annotations, settings.min_job_pod_failure_backoff);
        let rules = job.spec.pod_failure_policy.as_ref().map_or(0, |policy| policy.rules.len());
        if let Some(problem) = options.rule_names.as_ref().and_then(|names| names.exceed(rules)) {
            options.problems.push(problem);
            options.rule_names = None;
        }
        if let Some(why) = early::never(job).filter(|_| options.replace_early) {
            options.problems.push(format!("{REPLACE_EARLY} is left out: {why}"));
            options.replace_early = false;
        }
        options
    }

    /// Reads annotations; `backoff_min` is `--min-job-pod-failure-backoff`.
    pub fn of(annotations: &BTreeMap<String, String>, backoff_min: SignedDuration) -> Self {
        if !annotations.keys().any(|name| name.starts_with("epilogue.dev/")) {
            return Self::default();
        }
        let mut reader = Reader { annotations, problems: Vec::new() };
        let mut options = Self {
            disruption_limit: reader.number(DISRUPTION_LIMIT),
            backoff_base: reader.duration(BACKOFF_BASE, backoff_min),
            backoff_max: reader.duration(BACKOFF_MAX, backoff_min),
            pending_timeout: reader.duration(PENDING_TIMEOUT, PENDING_TIMEOUT_MIN),
            avoid_failed_nodes: reader.flag(AVOID_FAILED_NODES),
            finished_pods_kept: reader.number(FINISHED_PODS_KEPT),
            rule_names: reader.rule_names(),
            replace_early: reader.flag(REPLACE_EARLY),
            problems: reader.problems,
        };
        if let (Some(base), Some(max)) = (options.backoff_base, options.backoff_max)
            && base > max
        {
            let problem = format!("{BACKOFF_BASE} is longer than {BACKOFF_MAX}; both are left out");
            options.problems.push(problem);
            (options.backoff_base, options.backoff_max) = (None, None);
        }
        options
    }

    /// The process's settings, adapted to this Job.
    pub(super) fn apply(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        let base = &mut settings.default_job_pod_failure_backoff;
        let max = &mut settings.max_job_pod_failure_backoff;
        *base = self.backoff_base.unwrap_or(*base);
        *max = self.backoff_max.unwrap_or(*max);
        // If only one of the two is set, the other follows where they would contradict each other.
        match (self.backoff_base, self.backoff_max) {
            (None, Some(max)) => *base = (*base).min(max),
            _ => *max = (*max).max(*base),
        }
        settings
    }
}

struct Reader<'a> {
    annotations: &'a BTreeMap<String, String>,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn number(&mut self, name: &str) -> Option<u32> {
        self.read(name, |text| text.parse().ok(), "a number from 0, such as 3")
    }

    /// A duration; a shorter one than `min` is raised to that.
    fn duration(&mut self, name: &str, min: SignedDuration) -> Option<SignedDuration> {
        let parse = |text: &str| SignedDuration::try_from(text.parse::<GoDuration>().ok()?.0).ok();
        let value = self.read(name, parse, "a duration, such as 500ms, 30s or 10m")?;
        if value < min {
            let text = &self.annotations[name];
            let problem = format!("{name}: {text:?} is raised to {min:#}; give at least {min:#}");
            self.problems.push(problem);
        }
        Some(value.max(min))
    }

    fn flag(&mut self, name: &str) -> bool {
        self.read(name, |text| text.parse().ok(), "true or false").unwrap_or(false)
    }

    fn rule_names(&mut self) -> Option<RuleNames> {
        let text = self.annotations.get(POD_FAILURE_POLICY_NAMES)?;
        RuleNames::parse(text).map_err(|problem| self.problems.push(problem)).ok()
    }

    fn read<T>(
        &mut self,
        name: &str,
        parse: impl Fn(&str) -> Option<T>,
        remedy: &str,
    ) -> Option<T> {
        let text = self.annotations.get(name)?;
        let value = parse(text);
        if value.is_none() {
            self.problems.push(format!("{name}: {text:?} is left out; give {remedy}"));
        }
        value
    }
}

// Applies `epilogue.dev/disruption-limit`: how many failures the podFailurePolicy may ignore.
//
// The count stands in a condition of the Job's status, so that it outlives pods and processes. It
// is exact for the same reason as the API's own counters. The condition also lists the counted
// pods that may still have their finalizer. Both are written before any of these pods is released.
// A sync counts at most `--max-uncounted-pods` of them, so that the message stays within what the
// API stores. The others keep their finalizers until the next sync.

/// The separator between the count and the pods in the condition's message.
const PODS: &str = "; not released yet: ";

/// Ignored failures so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disruptions {
    /// The number, including this sync's.
    pub ignored: u32,
    /// Whether this sync adds some.
    pub is_new: bool,
    /// Counted pods that still have their finalizer.
    pending: BTreeSet<Uid>,
    /// Pods that a later sync counts.
    held: BTreeSet<Uid>,
}

impl Disruptions {
    /// Adds what the census found to the count in the status, at most this many pods.
    pub(super) fn read(job: &Job, census: &Census, pods_per_sync: usize) -> Self {
        let (stored, listed) = stored(job);
        let counted: BTreeSet<&Uid> =
            census.newly_failed_counted.iter().map(|pod| &pod.uid).collect();
        let ignored = census.newly_failed.iter().map(|pod| &pod.uid);
        let (mut pending, mut new): (BTreeSet<Uid>, BTreeSet<Uid>) = ignored
            .filter(|uid| !counted.contains(uid))
            .cloned()
            .partition(|uid| listed.contains(uid));
        let room = pods_per_sync.saturating_sub(pending.len()).max(1);
        let held = new.iter().nth(room).cloned().map(|first| new.split_off(&first));
        let count = u32::try_from(new.len()).unwrap_or(u32::MAX);
        let is_new = !new.is_empty();
        pending.append(&mut new);
        Self {
            ignored: stored.saturating_add(count),
            is_new,
            pending,
            held: held.unwrap_or_default(),
        }
    }

    /// Whether a later sync counts this pod, so that it must keep its finalizer.
    pub(super) fn holds(&self, pod: &Uid) -> bool {
        self.held.contains(pod)
    }

    /// The message of the condition.
    pub(super) fn message(&self) -> String {
        let pods: Vec<&str> = self.pending.iter().map(Uid::as_str).collect();
        let count = self.ignored;
        let failures = if count == 1 { "failure was" } else { "failures were" };
        format!("{count} pod {failures} ignored by podFailurePolicy{PODS}{}", pods.join(" "))
    }
}

fn stored(job: &Job) -> (u32, BTreeSet<Uid>) {
    let message = job
        .true_condition(DISRUPTIONS_IGNORED)
        .and_then(|condition| condition.message.as_deref())
        .unwrap_or_default();
    let count = message.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let pods = message.split_once(PODS).map_or("", |(_, pods)| pods);
    (count, pods.split_whitespace().map(Uid::from).collect())
}
