//! Judges from the model's own log how soon new pods follow on failures: from the seventh failure of
//! a slot on no sooner than upstream's curve from the Job's base, whatever made them fail. Before
//! that, only disruptions that the podFailurePolicy ignores may cost nothing.
//!
//! A Job without limits per index has free disruptions in each hour. No world lasts that long, so
//! such a Job is judged in its first hour only. Not judged are restores of etcd, which undo failures
//! that the controller may have seen, and two controllers at once, of which one may not know what
//! the other has seen. After a restart the controller reads the failures from the pods that are left,
//! and is held to these. Failures of a status write whose reply was lost cost a Job no delay.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use model_api::{Access, Kind, Verb};
use serde_json::Value;

use super::braked_jobs::{BACKOFF_BASE, BACKOFF_MAX, DISRUPTION_LIMIT, PENDING_TIMEOUT, TIMED_OUT};
use super::ledger::{CONTROLLER, has_written};
use super::plots::condition;

/// The annotation with a pod's index.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// So many failures of a slot may cost nothing.
const FREE: usize = 6;
/// Of a Job without limits per index only in each hour.
const FREE_EACH: SignedDuration = SignedDuration::from_hours(1);
/// The default of `--min-job-pod-failure-backoff`.
const MIN: SignedDuration = SignedDuration::from_secs(1);
/// The default of `--default-job-pod-failure-backoff`.
const BASE: SignedDuration = SignedDuration::from_secs(10);
/// The default of `--max-job-pod-failure-backoff`.
const MAX: SignedDuration = SignedDuration::from_mins(10);
/// Pods say in whole seconds when they ended.
const ROUNDED: SignedDuration = SignedDuration::from_secs(1);

/// What must be met with a pod that had to wait, or with a Job that ended after so many failures.
pub(super) const SITUATIONS: [&str; 26] = [
    "after an exit",
    "after a disruption",
    "after a rejection for the node",
    "after a rejection for the pod",
    "after a pod that never started",
    "after a pod without a node",
    "without a rule",
    "by a rule that counts",
    "by a rule that ignores",
    "of an index",
    "of one slot",
    "of several slots",
    "with a base below the floor",
    "with a base of its own",
    "with no base, or an unreadable one",
    "with a maximum below the floor",
    "with a maximum of its own",
    "with a pending-timeout below the floor",
    "with a pending-timeout of its own",
    "with a disruption-limit",
    "replaced when it is Failed",
    "replaced when it terminates",
    "ended by FailIndex",
    "ended by FailJob",
    "ended by its limit",
    "ended by its disruption-limit",
];

/// How often each was met.
pub(super) type Met = BTreeMap<&'static str, usize>;

/// What the log says of a Job.
#[derive(Clone, Debug, Default)]
struct Job {
    name: String,
    is_per_index: bool,
    replaces_failed_only: bool,
    slots: usize,
    base: SignedDuration,
    max: SignedDuration,
    created: Timestamp,
    rules: Vec<Value>,
    situations: Vec<&'static str>,
    has_ended: bool,
}

/// A pod that failed.
#[derive(Clone, Debug, Default)]
struct Failure {
    /// When it ended, as far as its status says; one that never ran was created then.
    ended: Timestamp,
    cause: &'static str,
    action: Option<String>,
    /// A disruption that the policy ignores.
    may_be_free: bool,
    /// The same of one that lived as long as the longest delay.
    is_free: bool,
    /// The pod goes as soon as it is counted.
    is_deleted: bool,
}

/// The pods of a Job, or of one of its indexes with a limit of their own.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// The pods that failed since the last success.
    failed: BTreeMap<String, Failure>,
    succeeded: Option<Timestamp>,
    active: BTreeSet<String>,
    is_of_index: bool,
    /// It had more pods at once than it may: nothing says what its controller knew.
    is_unclear: bool,
    /// The process that created its first pod since the last success.
    creator: Option<String>,
}

/// What is wrong with a run, and how many pods had to wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict {
    pub(super) violations: Vec<String>,
    pub(super) braked: usize,
    /// Those of them that another process created than the first.
    pub(super) after_restart: usize,
    pub(super) met: Met,
}

#[derive(Clone, Debug, Default)]
struct Brake {
    jobs: BTreeMap<String, Job>,
    slots: BTreeMap<(String, Option<String>), Slot>,
    /// The holder of the controllers' lease.
    leader: String,
    verdict: Verdict,
}

/// Judges a whole run.
pub(super) fn judge(log: &[Access]) -> Verdict {
    let mut brake = Brake::default();
    for access in log.iter().filter(|it| has_written(it)) {
        let object = &*access.answer;
        match access.kind {
            Kind::Job if object["kind"] != "Status" => {
                brake.job(access, object);
            }
            Kind::Pod if object["kind"] != "Status" => brake.pod(access, object),
            Kind::Lease if access.agent.starts_with(CONTROLLER) => brake.lease(object),
            _ => {}
        }
    }
    brake.verdict
}

impl Brake {
    /// Another process that leads knows no failures of pods that are gone, but for the counts in
    /// the pods of an index.
    fn lease(&mut self, object: &Value) {
        let leader = object["spec"]["holderIdentity"].to_string();
        if std::mem::replace(&mut self.leader, leader) != self.leader {
            for slot in self.slots.values_mut().filter(|slot| !slot.is_of_index) {
                slot.failed.retain(|_, failure| !failure.is_deleted);
            }
        }
    }

    fn job(&mut self, access: &Access, object: &Value) {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let Some(uid) = metadata["uid"].as_str() else { return };
        let job = self
            .jobs
            .entry(uid.to_owned())
            .or_insert_with(|| Job { created: access.at, ..Job::default() });
        job.name = metadata["name"].to_string();
        job.is_per_index = spec["backoffLimitPerIndex"].is_number();
        job.replaces_failed_only = spec["podReplacementPolicy"] == "Failed";
        job.rules = spec["podFailurePolicy"]["rules"].as_array().cloned().unwrap_or_default();
        let wanted = ["parallelism", "completions"].map(|field| spec[field].as_u64());
        let wanted = wanted.into_iter().flatten().min().unwrap_or(1);
        job.slots = job.slots.max(usize::try_from(wanted).unwrap_or(usize::MAX)).max(1);
        job.read(&metadata["annotations"]);
        let Some(failed) = condition(object, "Failed") else { return };
        if std::mem::replace(&mut job.has_ended, true) {
            return;
        }
        let slots = if job.is_per_index { 1 } else { job.slots };
        let of_job = self.slots.iter().filter(|((job, _), _)| job == uid).map(|(_, slot)| slot);
        let last: Vec<&Slot> = of_job.filter(|it| it.failed.len() > FREE * slots).collect();
        let by_rule = last.iter().any(|it| it.has_failed_index());
        let situation = match failed["reason"].as_str() {
            _ if last.is_empty() => return,
            Some("PodFailurePolicy") => "ended by FailJob",
            Some("FailedIndexes") if by_rule => "ended by FailIndex",
            Some("DisruptionLimitExceeded") => "ended by its disruption-limit",
            _ => "ended by its limit",
        };
        *self.verdict.met.entry(situation).or_default() += 1;
    }

    fn pod(&mut self, access: &Access, object: &Value) {
        let metadata = &object["metadata"];
        let owner = metadata["ownerReferences"][0]["uid"].as_str().unwrap_or_default();
        let Some(job) = self.jobs.get(owner) else { return };
        let Some(uid) = metadata["uid"].as_str() else { return };
        let index = metadata["annotations"][INDEX].as_str().filter(|_| job.is_per_index);
        let key = (owner.to_owned(), index.map(str::to_owned));
        let slot = self.slots.entry(key).or_default();
        slot.is_of_index = job.is_per_index;
        let slots = if job.is_per_index { 1 } else { job.slots };
        if access.verb == Verb::Create && access.agent.starts_with(CONTROLLER) {
            slot.active.insert(uid.to_owned());
            slot.is_unclear |= slot.active.len() > slots;
            slot.creator.get_or_insert_with(|| self.leader.clone());
            if !slot.is_unclear {
                slot.judge(job, slots, (access.at, &self.leader), &mut self.verdict);
            }
            return;
        }
        let deletes = metadata.get("deletionTimestamp").is_some() || access.verb == Verb::Delete;
        let timed_out = condition(object, TIMED_OUT).is_some();
        match object["status"]["phase"].as_str() {
            Some("Succeeded") => slot.succeed(uid, object),
            // A pod that did not start in time is replaced as its Job says.
            Some("Pending") if deletes && timed_out && job.replaces_failed_only => {}
            Some("Pending") if deletes && timed_out => slot.fail(job, uid, object),
            Some("Failed") if timed_out => slot.fail(job, uid, object),
            // Any other that is deleted may be replaced before it fails.
            _ if deletes => slot.is_unclear |= slot.active.contains(uid),
            Some("Failed") => slot.fail(job, uid, object),
            _ => {}
        }
    }
}

impl Job {
    fn read(&mut self, annotations: &Value) {
        let text = |name: &str| annotations[name].as_str();
        let read = |name: &str| text(name)?.parse::<SignedDuration>().ok();
        let (base, max) = (read(BACKOFF_BASE), read(BACKOFF_MAX));
        let raised = |it: SignedDuration| it.max(MIN);
        (self.base, self.max) = match (base.map(raised), max.map(raised)) {
            (Some(base), Some(max)) if base > max => (BASE, MAX),
            (None, Some(max)) => (BASE.min(max), max),
            (base, max) => {
                let base = base.unwrap_or(BASE);
                (base, max.unwrap_or(MAX).max(base))
            }
        };
        let of = |found: Option<SignedDuration>, low, own| {
            found.map(|it| if it < MIN { low } else { own })
        };
        let by_base = of(base, "with a base below the floor", "with a base of its own");
        let by_max = of(max, "with a maximum below the floor", "with a maximum of its own");
        let timeout = of(
            read(PENDING_TIMEOUT),
            "with a pending-timeout below the floor",
            "with a pending-timeout of its own",
        );
        self.situations = vec![
            by_base.unwrap_or("with no base, or an unreadable one"),
            match (self.is_per_index, self.slots) {
                (true, _) => "of an index",
                (_, 1) => "of one slot",
                _ => "of several slots",
            },
            if self.replaces_failed_only {
                "replaced when it is Failed"
            } else {
                "replaced when it terminates"
            },
        ];
        self.situations.extend(by_max.into_iter().chain(timeout));
        self.situations.extend(text(DISRUPTION_LIMIT).map(|_| "with a disruption-limit"));
    }

    /// What the podFailurePolicy says about a pod.
    fn action(&self, pod: &Value) -> Option<String> {
        let matches = |rule: &Value| {
            let mut signs = rule["onPodConditions"].as_array().into_iter().flatten();
            let codes = rule["onExitCodes"]["values"].as_array();
            let mut ended = containers(pod);
            let exits = |container: &Value| {
                let code = &container["state"]["terminated"]["exitCode"];
                codes.is_some_and(|codes| codes.contains(code))
            };
            signs.any(|sign| condition(pod, sign["type"].as_str().unwrap_or_default()).is_some())
                || ended.any(exits)
        };
        let rule = self.rules.iter().find(|rule| matches(rule))?;
        rule["action"].as_str().map(str::to_owned)
    }
}

impl Slot {
    fn succeed(&mut self, uid: &str, pod: &Value) {
        self.active.remove(uid);
        self.failed.clear();
        self.creator = None;
        self.succeeded = self.succeeded.max(Some(ended(pod)));
    }

    /// The pod has failed, or its status says more of how.
    fn fail(&mut self, job: &Job, uid: &str, pod: &Value) {
        self.active.remove(uid);
        let (created, ended) = (time(&pod["metadata"]["creationTimestamp"]), ended(pod));
        // A failure in the second of a success may have come before it.
        if self.succeeded.is_some_and(|at| ended <= at) {
            return;
        }
        let action = job.action(pod);
        let is_disrupted = condition(pod, "DisruptionTarget").is_some();
        let timed_out = condition(pod, TIMED_OUT).is_some();
        let may_be_free = is_disrupted && !timed_out && action.as_deref() == Some("Ignore");
        // One that got its node late lived until it was rejected there.
        let lived = ended.max(unready_since(pod)).duration_since(created);
        let is_free = may_be_free && lived + ROUNDED >= job.max;
        let has_node = pod["spec"]["nodeName"].is_string();
        let cause = match (timed_out, has_node, is_disrupted, has_run(pod)) {
            (true, false, ..) => "after a pod without a node",
            (true, true, ..) => "after a pod that never started",
            (_, _, true, true) => "after a disruption",
            (_, _, true, false) => "after a rejection for the node",
            (_, _, false, true) => "after an exit",
            (_, _, false, false) => "after a rejection for the pod",
        };
        let is_deleted = pod["metadata"].get("deletionTimestamp").is_some();
        let failure = Failure { ended, cause, action, may_be_free, is_free, is_deleted };
        self.failed.insert(uid.to_owned(), failure);
    }

    /// Whether a rule has failed the index.
    fn has_failed_index(&self) -> bool {
        self.failed.values().any(|it| it.action.as_deref() == Some("FailIndex"))
    }

    /// Judges a new pod. The controller may not know yet how other pods ended that run next to it.
    fn judge(&self, job: &Job, slots: usize, now: (Timestamp, &str), verdict: &mut Verdict) {
        let ((at, leader), name) = (now, &job.name);
        if job.is_per_index && self.has_failed_index() {
            verdict.violations.push(format!("{at} {name} has a pod again after FailIndex"));
        }
        if !job.is_per_index && at.duration_since(job.created) >= FREE_EACH {
            return;
        }
        let mut failed: Vec<&Failure> = self.failed.values().filter(|it| !it.is_free).collect();
        failed.sort_unstable_by_key(|it| it.ended);
        let known = failed.len().saturating_sub(slots - 1);
        let beyond = known.saturating_sub(FREE * slots);
        let Some((failures, since)) = (if job.is_per_index {
            self.of_index(&failed, beyond)
        } else {
            of_job(&failed, slots, beyond)
        }) else {
            return;
        };
        let doublings = failures.saturating_sub(1).min(20);
        let wait = (job.base * (1_i32 << doublings)).min(job.max);
        let passed = at.duration_since(since);
        if passed + ROUNDED < wait {
            let text = format!(
                "{at} {name} has a pod again {passed:#} after failure {known} of {slots} slots, \
                 and may have it after {wait:#}"
            );
            verdict.violations.push(text);
        }
        if beyond == 0 {
            return;
        }
        verdict.braked += 1;
        verdict.after_restart += usize::from(self.creator.as_deref() != Some(leader));
        let last = failed[known - 1];
        let rule = match last.action.as_deref() {
            None => "without a rule",
            Some("Ignore") => "by a rule that ignores",
            Some(_) => "by a rule that counts",
        };
        for situation in [last.cause, rule].iter().chain(&job.situations) {
            *verdict.met.entry(*situation).or_default() += 1;
        }
    }

    /// How many failures of an index cost time at least, and since when.
    fn of_index(&self, failed: &[&Failure], beyond: usize) -> Option<(usize, Timestamp)> {
        let last = failed.last()?;
        // The delay is that of the last failure.
        if self.failed.values().any(|it| it.ended >= last.ended && it.is_free) {
            return None;
        }
        let ignores = |it: &Failure| it.action.as_deref() == Some("Ignore");
        let counted = failed.iter().filter(|it| !ignores(it)).count();
        let failures = match () {
            () if last.may_be_free => beyond,
            () if ignores(last) => failed.len(),
            () => counted.max(beyond),
        };
        (failures > 0).then_some((failures, last.ended))
    }
}

/// The same of a Job. Beyond the free ones, each failure costs time.
fn of_job(failed: &[&Failure], slots: usize, beyond: usize) -> Option<(usize, Timestamp)> {
    let costly: Vec<&&Failure> = failed.iter().filter(|it| !it.may_be_free).collect();
    let known = costly.len().saturating_sub(slots - 1);
    let since = match beyond {
        0 => costly[known.checked_sub(1)?].ended,
        _ => failed[failed.len() - slots].ended,
    };
    Some((known.max(beyond), since))
}

/// The containers of a pod, as its status has them.
fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    pod["status"]["containerStatuses"].as_array().into_iter().flatten()
}

/// Whether a container has run.
fn has_run(pod: &Value) -> bool {
    containers(pod).any(|it| it["state"]["terminated"]["startedAt"].is_string())
}

/// When the pod ended; one that never ran, or does not say, when it was created.
fn ended(pod: &Value) -> Timestamp {
    let ends = containers(pod).map(|it| &it["state"]["terminated"]["finishedAt"]);
    let last = ends.filter(|it| it.is_string()).map(time).max();
    last.max(Some(time(&pod["metadata"]["creationTimestamp"]))).unwrap_or_default()
}

/// Since when the pod is not ready, as its status says.
fn unready_since(pod: &Value) -> Timestamp {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let unready = conditions.find(|it| it["type"] == "Ready" && it["status"] == "False");
    unready.map(|it| time(&it["lastTransitionTime"])).unwrap_or_default()
}

fn time(value: &Value) -> Timestamp {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}
