//! Judges a run from the model's own log: every version of every Job and pod, in order. Nothing of
//! the code under test takes part.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use model_api::{Access, Kind, Verb};
use serde_json::Value;

use super::admission;
use super::backup::Restore;
use super::braked_jobs::TIMED_OUT;
use super::plots::{condition, is_terminal};

/// So soon a controller without faults acts on restarts.
const NOTICED_WITHIN: SignedDuration = SignedDuration::from_secs(5);
/// A write that was answered with 429 is repeated within this time.
const RETRIED_WITHIN: SignedDuration = SignedDuration::from_millis(1_100);
/// The finalizer of pods that are not counted yet.
const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// How the API refuses a JSON patch whose test fails.
const REFUSED_TEST: &str = "the server rejected our request due to an error in our request";
/// The annotation with a pod's index.
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// How the user agent of a controller begins.
pub(super) const CONTROLLER: &str = "epilogue-controller/";

/// What the API knows of a Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct JobSeen {
    name: String,
    indexed: bool,
    parallelism: usize,
    /// The types of conditions for which a rule ignores a failure.
    ignored_conditions: BTreeSet<String>,
    ignored_exits: BTreeSet<i64>,
    limits: Limits,
    counted: [i64; 2],
    /// UIDs that the status lists, and those that it has listed before: succeeded, failed.
    listed: [BTreeSet<String>; 2],
    counted_before: [BTreeSet<String>; 2],
    completed: BTreeSet<u64>,
    has_ended: bool,
    gone: bool,
}

/// What the API knows of a Job's backoffLimit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Limits {
    max: i64,
    /// Whether containers are restarted in place, and their restarts count.
    restarts: bool,
    /// When restarts first reached it.
    reached: Option<Timestamp>,
    /// Whether more pods had failed than it allows.
    exceeded: bool,
    /// Whether the status says that one of both is so.
    fails: bool,
}

/// What the API knows of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PodSeen {
    name: String,
    job: String,
    index: Option<u64>,
    phase: String,
    restarts: i64,
    deleting: bool,
    tracked: bool,
    /// The types of its true conditions.
    conditions: BTreeSet<String>,
    exits: BTreeSet<i64>,
    /// The controller has asked for its deletion, and not because it did not start in time.
    unwanted: bool,
    /// It was active when its Job had more active pods than it asks for. Its controller may remove
    /// the finalizer of one of these to delete it, and crash before the deletion. Or it was created
    /// after the end of its Job, by a controller that did not know.
    may_be_excess: bool,
    /// Its finalizer was removed by a controller that acted on what was undone.
    misled: bool,
    /// It was terminal when it was still tracked.
    must_count: bool,
}

/// What the log shows up to now.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    jobs: BTreeMap<String, JobSeen>,
    pods: BTreeMap<String, PodSeen>,
    nodes: BTreeSet<String>,
    /// Whether no Job may ever have more active pods than it asks for.
    is_bounded: bool,
    /// Whether etcd was restored and the controller has not listed pods since: it acts on what was
    /// undone.
    is_misled: bool,
    /// When it has listed them. An earlier write that was answered with 429 comes a second later.
    listed: Option<Timestamp>,
    /// Jobs of which the last restore undid something, in them or in their pods; and so did those
    /// before it that the controller had not noticed.
    undone: BTreeSet<String>,
    /// Those whose status it wrote wrong meanwhile. Their counts promise nothing.
    misled: BTreeSet<String>,
    /// Pods that lost their finalizer and were not counted then, with the time.
    released: Vec<(String, String)>,
    verdict: Verdict,
}

/// What is wrong with a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict {
    pub(super) violations: Vec<String>,
    /// What would be wrong, had the controller known that etcd was restored.
    pub(super) excused: Vec<String>,
    /// How often something of a Job was undone.
    pub(super) undone: usize,
    /// Jobs that failed because of restarts.
    pub(super) failed_by_restarts: usize,
}

/// Judges a whole run. Where nothing was lost and one replica worked, no Job may ever have more
/// active pods than it asks for. What a restore undoes has never happened, and counts as little as
/// the API shows it; what it broke is a violation all the same.
pub(super) fn judge(log: &[Access], restores: &[Restore], is_bounded: bool) -> Verdict {
    let mut ledger = Ledger { is_bounded, ..Ledger::default() };
    let mut saved = BTreeMap::new();
    for (number, access) in log.iter().enumerate() {
        if restores.iter().any(|it| it.taken == number) {
            saved.insert(number, ledger.clone());
        }
        if let Some(it) = restores.iter().find(|it| it.restored == number) {
            ledger = ledger.restored(&saved[&it.taken]);
        }
        ledger.read(access);
    }
    ledger.end();
    ledger.verdict
}

impl Ledger {
    /// The ledger of a backup that is put back.
    fn restored(self, backup: &Self) -> Self {
        let Self { is_misled, mut undone, mut verdict, jobs, pods, .. } = self;
        if !is_misled {
            undone.clear();
        }
        let jobs = jobs.into_iter().filter(|(uid, job)| backup.jobs.get(uid) != Some(job));
        undone.extend(jobs.map(|(uid, _)| uid));
        let pods = pods.into_iter().filter(|(uid, pod)| backup.pods.get(uid) != Some(pod));
        undone.extend(pods.map(|(_, pod)| pod.job));
        verdict.undone += undone.len();
        Self { is_misled: true, listed: None, undone, verdict, ..backup.clone() }
    }

    fn read(&mut self, access: &Access) {
        let is_ours = access.agent.starts_with(CONTROLLER);
        if is_ours && !admission::has_refused(access) {
            self.verdict.violations.extend(invalid(access));
        }
        if is_ours && lists_pods(access) {
            self.listed.get_or_insert(access.at);
        }
        if self.listed.is_some_and(|at| at + RETRIED_WITHIN < access.at) {
            self.is_misled = false;
        }
        if !has_written(access) {
            return;
        }
        let object = &*access.answer;
        match access.kind {
            Kind::Job if access.verb == Verb::Delete => {
                let all = self.jobs.values_mut().filter(|job| job.name == access.name);
                all.for_each(|job| job.gone = true);
            }
            Kind::Job => self.job(access, object, is_ours),
            Kind::Pod if object["kind"] != "Status" => self.pod(access, object, is_ours),
            Kind::Node => {
                if access.verb == Verb::Delete {
                    self.nodes.remove(&access.name);
                } else {
                    self.nodes.insert(text(&object["metadata"]["name"]));
                }
            }
            _ => {}
        }
    }

    fn job(&mut self, access: &Access, object: &Value, is_ours: bool) {
        let (at, status) = (access.at, &object["status"]);
        let uid = text(&object["metadata"]["uid"]);
        let job = self.jobs.entry(uid.clone()).or_default();
        job.name = text(&object["metadata"]["name"]);
        job.indexed = object["spec"]["completionMode"] == "Indexed";
        let parallelism = object["spec"]["parallelism"].as_u64().unwrap_or(0) as usize;
        let shrinks = std::mem::replace(&mut job.parallelism, parallelism) > parallelism;
        let rules = object["spec"]["podFailurePolicy"]["rules"].as_array();
        let ignores: Vec<_> =
            rules.into_iter().flatten().filter(|rule| rule["action"] == "Ignore").collect();
        let signs = ignores.iter().filter_map(|rule| rule["onPodConditions"].as_array());
        job.ignored_conditions = signs.flatten().map(|sign| text(&sign["type"])).collect();
        let codes = ignores.iter().filter_map(|rule| rule["onExitCodes"]["values"].as_array());
        job.ignored_exits = codes.flatten().filter_map(Value::as_i64).collect();
        let limits = &mut job.limits;
        limits.max = object["spec"]["backoffLimit"].as_i64().unwrap_or(6);
        limits.restarts = object["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure";
        let completed = indexes(status["completedIndexes"].as_str().unwrap_or_default());
        let fails = condition(object, "FailureTarget").is_some();
        let mut found = Vec::new();
        for (number, field) in ["succeeded", "failed"].into_iter().enumerate() {
            let all = status["uncountedTerminatedPods"][field].as_array();
            let listed: BTreeSet<String> = all.into_iter().flatten().map(text).collect();
            let count = status[field].as_i64().unwrap_or(0);
            // What admission takes from the list is not counted. It can be counted no more if
            // its finalizer was gone already.
            let written = &access.body["status"]["uncountedTerminatedPods"][field];
            let written = written.as_array().filter(|_| is_ours).into_iter().flatten().map(text);
            for pod in written.filter(|pod| !listed.contains(pod)) {
                job.listed[number].remove(&pod);
                if self.pods.get(&pod).is_some_and(|pod| !pod.tracked) {
                    job.counted_before[number].insert(pod);
                }
            }
            let left: Vec<&String> = job.listed[number].difference(&listed).collect();
            let more = count - job.counted[number];
            let is_by_index = job.indexed && number == 0;
            if !is_by_index && more != left.len() as i64 {
                found.push(format!("counts {more} more as {field}, and {left:?} leave the list"));
            }
            if is_by_index && count != completed.len() as i64 {
                found.push(format!("counts {count} indexes of {completed:?}"));
            }
            job.counted_before[number].extend(left.into_iter().cloned());
            for pod in listed.difference(&job.listed[number]) {
                let known = self.pods.get(pod).filter(|pod| pod.job == uid);
                let is_so = known.is_some_and(|it| match number {
                    0 => it.phase == "Succeeded",
                    _ => it.phase == "Failed" || it.deleting || fails,
                });
                if !is_so {
                    found.push(format!("lists {pod} as {field}, which is {known:?}"));
                }
                if job.counted_before.iter().any(|all| all.contains(pod)) {
                    found.push(format!("lists {pod} again, which it has counted"));
                }
            }
            if job.has_ended && more != 0 {
                found.push(format!("counts {more} more as {field} after its end"));
            }
            (job.listed[number], job.counted[number]) = (listed, count);
        }
        if !completed.is_superset(&job.completed) {
            found.push(format!("had {:?} completed, now {completed:?}", job.completed));
        }
        let succeeded = |index: &u64| {
            self.pods
                .values()
                .any(|pod| pod.job == uid && pod.index == Some(*index) && pod.phase == "Succeeded")
        };
        if let Some(index) = completed.difference(&job.completed).find(|it| !succeeded(it)) {
            found.push(format!("completes index {index}, of which no pod has succeeded"));
        }
        job.completed = completed;
        job.has_ended = ["Complete", "Failed"].iter().any(|it| condition(object, it).is_some());
        if job.has_ended && job.listed.iter().any(|all| !all.is_empty()) {
            found.push("has ended with uncounted pods".to_owned());
        }
        found.extend(job.limits.fail(object, at, self.is_bounded));
        let is_misled = is_ours && self.is_misled && self.undone.contains(&uid);
        if is_misled && !found.is_empty() {
            self.misled.insert(uid.clone());
        }
        let name = &job.name;
        let found = found.into_iter().map(|it| format!("{at} {name} {it}"));
        self.verdict.of(self.misled.contains(&uid)).extend(found);
        if shrinks {
            self.check_active(&uid, at);
        }
    }

    fn pod(&mut self, access: &Access, object: &Value, is_ours: bool) {
        let metadata = &object["metadata"];
        let uid = text(&metadata["uid"]);
        let owner = metadata["ownerReferences"].as_array().into_iter().flatten();
        let owner = owner.filter(|owner| owner["controller"] == true).map(|it| text(&it["uid"]));
        let before = self.pods.remove(&uid).unwrap_or_default();
        let index = metadata["annotations"][INDEX].as_str();
        let finalizers = metadata["finalizers"].as_array().into_iter().flatten();
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        let timed_out = condition(object, TIMED_OUT).is_some();
        let is_new = access.verb == Verb::Create;
        let job = owner.into_iter().next().unwrap_or_default();
        let has_ended = self.jobs.get(&job).is_some_and(|job| job.has_ended);
        let is_misled = is_ours && self.is_misled && self.undone.contains(&job);
        let mut pod = PodSeen {
            name: text(&metadata["name"]),
            job,
            index: index.and_then(|index| index.parse().ok()),
            phase: text(&object["status"]["phase"]),
            restarts: restarts(object),
            deleting: metadata.get("deletionTimestamp").is_some(),
            tracked: finalizers.into_iter().any(|it| it == FINALIZER),
            conditions: conditions
                .filter(|it| it["status"] == "True")
                .map(|it| text(&it["type"]))
                .collect(),
            exits: exits(object),
            unwanted: before.unwanted || is_ours && access.verb == Verb::Delete && !timed_out,
            must_count: before.must_count,
            may_be_excess: before.may_be_excess || is_new && has_ended,
            misled: before.misled,
        };
        pod.misled |= is_misled && before.tracked && !pod.tracked;
        let at = access.at;
        if is_new && is_ours && !pod.tracked {
            self.verdict
                .violations
                .push(format!("{at} {} is created without its finalizer", pod.name));
        }
        let is_terminal = is_terminal(object);
        pod.must_count |= is_terminal && (pod.tracked || before.tracked);
        let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
        let fails = pod.phase == "Failed" && before.phase != "Failed";
        if is_ours && fails && self.nodes.contains(node) {
            let name = &pod.name;
            self.verdict
                .violations
                .push(format!("{at} {name} is failed by us on {node}, which exists"));
        }
        if before.tracked && !pod.tracked && is_terminal && !self.is_counted(&uid, &pod) {
            self.released.push((uid.clone(), at.to_string()));
        }
        let owner = pod.job.clone();
        self.pods.insert(uid, pod);
        self.check_limit(&owner, at);
        if is_new {
            self.check_active(&owner, at);
        }
    }

    fn check_active(&mut self, owner: &str, at: Timestamp) {
        let Some(job) = self.jobs.get(owner) else { return };
        let is_active = |pod: &&mut PodSeen| {
            pod.job == owner && !pod.deleting && !matches!(&*pod.phase, "Succeeded" | "Failed")
        };
        let active: Vec<_> = self.pods.values_mut().filter(is_active).collect();
        let (name, count, max) = (&job.name, active.len(), job.parallelism);
        if count <= max {
            return;
        }
        for pod in active {
            pod.may_be_excess = true;
        }
        if self.is_bounded {
            let text = format!("{at} {name} has {count} active pods, more than {max}");
            self.verdict.violations.push(text);
        }
    }

    /// Notes whether the pods of a Job exceed its backoffLimit. The restarts of pods that are gone or
    /// have ended do not count.
    fn check_limit(&mut self, owner: &str, at: Timestamp) {
        let Some(job) = self.jobs.get_mut(owner) else { return };
        let pods = || self.pods.iter().filter(|(_, pod)| pod.job == owner);
        let may_fail = |(uid, pod): &(&String, &PodSeen)| {
            let counts = job.listed[1].contains(*uid) || job.counted_before[1].contains(*uid);
            counts || pod.deleting || pod.phase == "Failed"
        };
        let failed = pods().filter(may_fail).count() as i64;
        let lives = |pod: &&PodSeen| matches!(&*pod.phase, "Pending" | "Running");
        let restarts: i64 = pods().map(|(_, pod)| pod).filter(lives).map(|it| it.restarts).sum();
        let limits = &mut job.limits;
        limits.exceeded |= failed > limits.max;
        if limits.restarts && restarts >= limits.max.max(1) {
            limits.reached.get_or_insert(at);
        }
    }

    /// Whether the Job's status lists or counts the pod, or need not.
    fn is_counted(&self, uid: &str, pod: &PodSeen) -> bool {
        let Some(job) = self.jobs.get(&pod.job).filter(|job| !job.gone) else { return true };
        let lists = job.listed.iter().chain(&job.counted_before);
        let by_index = job.indexed && pod.phase == "Succeeded";
        lists.into_iter().any(|all| all.contains(uid))
            || by_index && pod.index.is_some_and(|index| job.completed.contains(&index))
            || !job.ignored_conditions.is_disjoint(&pod.conditions)
            || !job.ignored_exits.is_disjoint(&pod.exits)
    }

    fn end(&mut self) {
        for (uid, at) in std::mem::take(&mut self.released) {
            let pod = &self.pods[&uid];
            // A pod in excess goes without being counted.
            if !pod.is_excess() {
                let (name, phase) = (&pod.name, &pod.phase);
                let text = format!("{at} {name}, {phase}, loses its finalizer uncounted");
                self.verdict.of(self.is_excused(pod)).push(text);
            }
        }
        let mut verdict = std::mem::take(&mut self.verdict);
        for job in self.jobs.values().filter(|job| job.limits.reached.is_some()) {
            verdict.failed_by_restarts += usize::from(job.limits.fails);
            if self.is_bounded && !job.limits.fails {
                verdict.violations.push(format!("{} goes on beyond its backoffLimit", job.name));
            }
        }
        for (uid, pod) in &self.pods {
            if pod.must_count && !pod.is_excess() && !self.is_counted(uid, pod) {
                let text = format!("{} is {} and never counted", pod.name, pod.phase);
                verdict.of(self.is_excused(pod)).push(text);
            }
        }
        self.verdict = verdict;
    }

    /// Whether a controller decided about the pod from what was undone.
    fn is_excused(&self, pod: &PodSeen) -> bool {
        pod.misled || self.misled.contains(&pod.job)
    }
}

impl Verdict {
    /// Where something belongs that is wrong, or would be.
    fn of(&mut self, is_excused: bool) -> &mut Vec<String> {
        if is_excused { &mut self.excused } else { &mut self.violations }
    }
}

impl Limits {
    /// Reads the condition of a status. Returns what is wrong with it.
    fn fail(&mut self, job: &Value, at: Timestamp, is_bounded: bool) -> Option<String> {
        let target = condition(job, "FailureTarget");
        let fails = target.is_some_and(|it| it["reason"] == "BackoffLimitExceeded");
        if !fails || std::mem::replace(&mut self.fails, fails) {
            return None;
        }
        let max = self.max;
        match self.reached {
            Some(reached) if is_bounded && reached + NOTICED_WITHIN < at && !self.exceeded => {
                Some(format!("reached its backoffLimit of {max} at {reached}, and fails now"))
            }
            None if !self.exceeded => Some(format!("fails within its backoffLimit of {max}")),
            _ => None,
        }
    }
}

impl PodSeen {
    /// Whether it may go without being counted.
    fn is_excess(&self) -> bool {
        self.unwanted || self.may_be_excess
    }
}

/// Whether a call lists all pods, or begins a watch by that.
fn lists_pods(access: &Access) -> bool {
    let has = |name| access.query.contains_key(name);
    let lists = match access.verb {
        Verb::List => !has("fieldSelector") && !has("labelSelector"),
        Verb::Watch => has("sendInitialEvents"),
        _ => false,
    };
    lists && access.kind == Kind::Pod && access.code == 200
}

/// What is wrong with a request that the server finds invalid. One that streams no lists says so of
/// those.
pub(super) fn invalid(access: &Access) -> Option<String> {
    let Access { verb, kind, name, answer, .. } = access;
    let message = answer["message"].as_str().unwrap_or_default();
    let is_invalid = matches!(access.code, 400 | 405 | 415 | 422);
    // The patch of a size names the one that was read: another change may have come first.
    let is_late = message.starts_with(REFUSED_TEST) && *verb == Verb::Patch;
    (is_invalid && !is_late && !message.contains("the WatchList feature gate"))
        .then(|| format!("{verb:?} of {kind:?} {name} is invalid: {message}"))
}

/// The sum of the restarts of a pod's containers.
fn restarts(pod: &Value) -> i64 {
    let lists = ["initContainerStatuses", "containerStatuses"];
    let lists = lists.into_iter().filter_map(|list| pod["status"][list].as_array());
    lists.flatten().filter_map(|container| container["restartCount"].as_i64()).sum()
}

/// The codes with which a pod's containers have ended.
fn exits(pod: &Value) -> BTreeSet<i64> {
    let containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let code = |container: &Value| container["state"]["terminated"]["exitCode"].as_i64();
    containers.filter_map(code).collect()
}

/// Whether a call has changed something.
pub(super) fn has_written(access: &Access) -> bool {
    access.verb.writes() && matches!(access.code, 200 | 201)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The indexes of a status, such as `0,2-4`.
fn indexes(text: &str) -> BTreeSet<u64> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    let parts = parts.map(|part| part.split_once('-').unwrap_or((part, part)));
    parts
        .flat_map(|(first, last)| {
            let number = |text: &str| text.parse::<u64>().expect("must be an index");
            number(first)..=number(last)
        })
        .collect()
}
