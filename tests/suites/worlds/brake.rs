//! Judges from the model's own log how soon new pods follow on failures: from the seventh failure of
//! a slot on, no sooner than upstream's curve from the smallest base, whatever made them fail.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use model_api::{Access, Kind, Verb};
use serde_json::Value;

use super::ledger::{CONTROLLER, has_written};
use super::plots::BACKOFF_MAX;

/// The annotation with a pod's index.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// So many failures of a slot may cost nothing.
const FREE: usize = 6;
/// Only in each hour, so a Job is judged in its first.
const FREE_EACH: SignedDuration = SignedDuration::from_hours(1);
/// The default of `--min-job-pod-failure-backoff`.
const BASE: SignedDuration = SignedDuration::from_secs(1);
/// The default of `--max-job-pod-failure-backoff`.
const MAX: SignedDuration = SignedDuration::from_mins(10);
/// Pods say in whole seconds when they ended.
const ROUNDED: SignedDuration = SignedDuration::from_secs(1);

/// What the log says of a Job.
#[derive(Clone, Debug, Default)]
struct Job {
    name: String,
    is_per_index: bool,
    slots: usize,
    max: SignedDuration,
    created: Timestamp,
}

/// The pods of a Job, or of one of its indexes with a limit of their own.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// When each pod that failed was first seen to, since the last success.
    failed: BTreeMap<String, Timestamp>,
    active: BTreeSet<String>,
    /// It had more pods at once than it may: nothing says what its controller knew.
    is_unclear: bool,
}

/// What is wrong with a run, and how many pods had to wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict {
    pub(super) violations: Vec<String>,
    pub(super) braked: usize,
}

#[derive(Clone, Debug, Default)]
struct Brake {
    /// Whether one controller has lived all the time: another knows only what it finds.
    remembers: bool,
    jobs: BTreeMap<String, Job>,
    slots: BTreeMap<(String, Option<String>), Slot>,
    verdict: Verdict,
}

/// Judges a whole run.
pub(super) fn judge(log: &[Access], remembers: bool) -> Verdict {
    let mut brake = Brake { remembers, ..Brake::default() };
    for access in log.iter().filter(|it| has_written(it)) {
        let object = &*access.answer;
        match access.kind {
            Kind::Job if object["kind"] != "Status" => brake.job(access, object),
            Kind::Pod if object["kind"] != "Status" => brake.pod(access, object),
            _ => {}
        }
    }
    brake.verdict
}

impl Brake {
    fn job(&mut self, access: &Access, object: &Value) {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let Some(uid) = metadata["uid"].as_str() else { return };
        let job = self
            .jobs
            .entry(uid.to_owned())
            .or_insert_with(|| Job { created: access.at, ..Job::default() });
        job.name = metadata["name"].to_string();
        job.is_per_index = spec["backoffLimitPerIndex"].is_number();
        let wanted = ["parallelism", "completions"].map(|field| spec[field].as_u64());
        let wanted = wanted.into_iter().flatten().min().unwrap_or(1);
        job.slots = job.slots.max(usize::try_from(wanted).unwrap_or(usize::MAX)).max(1);
        let max = metadata["annotations"][BACKOFF_MAX].as_str();
        job.max = max.and_then(|text| text.parse().ok()).unwrap_or(MAX);
    }

    fn pod(&mut self, access: &Access, object: &Value) {
        let metadata = &object["metadata"];
        let owner = metadata["ownerReferences"][0]["uid"].as_str().unwrap_or_default();
        let Some(job) = self.jobs.get(owner) else { return };
        let Some(uid) = metadata["uid"].as_str() else { return };
        let index = metadata["annotations"][INDEX].as_str().filter(|_| job.is_per_index);
        let key = (owner.to_owned(), index.map(str::to_owned));
        let slot = self.slots.entry(key).or_default();
        let slots = if job.is_per_index { 1 } else { job.slots };
        if access.verb == Verb::Create && access.agent.starts_with(CONTROLLER) {
            slot.active.insert(uid.to_owned());
            slot.is_unclear |= slot.active.len() > slots;
            if (job.is_per_index || self.remembers) && !slot.is_unclear {
                slot.judge(job, slots, access.at, &mut self.verdict);
            }
            return;
        }
        let deletes = metadata.get("deletionTimestamp").is_some() || access.verb == Verb::Delete;
        match object["status"]["phase"].as_str() {
            Some("Succeeded") => *slot = Slot::default(),
            // A pod that is deleted may be replaced before it fails.
            _ if deletes => slot.is_unclear |= slot.active.contains(uid),
            Some("Failed") => {
                slot.active.remove(uid);
                slot.failed.entry(uid.to_owned()).or_insert(access.at);
            }
            _ => {}
        }
    }
}

impl Slot {
    /// Judges a new pod. The controller may not know yet how other pods ended that run next to it.
    fn judge(&self, job: &Job, slots: usize, at: Timestamp, verdict: &mut Verdict) {
        let mut failed: Vec<Timestamp> = self.failed.values().copied().collect();
        failed.sort_unstable();
        let known = failed.len().saturating_sub(slots - 1);
        let Some(beyond) = known.checked_sub(FREE * slots + 1) else { return };
        if at.duration_since(job.created) >= FREE_EACH {
            return;
        }
        let doubled = 1_i32 << beyond.min(20);
        let wait = (BASE * doubled).min(job.max);
        let since = at.duration_since(failed[known - 1]);
        verdict.braked += 1;
        if since + ROUNDED < wait {
            let name = &job.name;
            let text = format!(
                "{at} {name} has a pod again {since:#} after failure {known} of {slots} slots, and \
                 may have it after {wait:#}"
            );
            verdict.violations.push(text);
        }
    }
}
