//! Judges Workloads and PodGroups from the model's own log: a Job has one of each, its pods are in
//! that group and come after it, and both objects go with the Job.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use model_api::{Access, Kind, Verb};
use serde_json::Value;

use super::backup::Restore;
use super::ledger::{CONTROLLER, has_written};

/// A write that was answered with 429 is repeated within this time.
const RETRIED_WITHIN: SignedDuration = SignedDuration::from_millis(1_100);

/// What must be met, by all worlds of one kind.
pub(super) const MET: [&str; 4] = [ASKED, MADE, JOINED, GONE];
/// The same amid faults.
pub(super) const OF_FAULTS: [&str; 3] = [LOST, FOUND, RESIZED];
const ASKED: &str = "Jobs that ask for a gang";
const MADE: &str = "PodGroups made";
pub(super) const JOINED: &str = "pods in their group";
const GONE: &str = "PodGroups gone with their Job";
const RESIZED: &str = "gangs resized";
const LOST: &str = "lost replies to the creation of a group";
const FOUND: &str = "groups found again";

/// How often each situation was met.
pub(super) type Met = BTreeMap<&'static str, usize>;

/// What the API knows of a Job.
#[derive(Clone, Debug, Default)]
struct JobSeen {
    name: String,
    /// Whether it says anything about its scheduling.
    asks: bool,
    /// The sizes for which it has asked.
    sizes: BTreeSet<i64>,
    completions: Option<i64>,
    /// Its pods that have succeeded, or may have failed an index for good.
    ended: BTreeSet<String>,
    has_index_limit: bool,
    gone: bool,
}

/// What the API knows of a Workload or a PodGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ObjectSeen {
    /// The UID of the Job that controls it.
    job: String,
    /// The Workload and the template of a PodGroup.
    template: [String; 2],
    size: Option<i64>,
}

/// What the log shows up to now.
#[derive(Clone, Debug, Default)]
struct Ledger {
    jobs: BTreeMap<String, JobSeen>,
    objects: BTreeMap<(Kind, String), ObjectSeen>,
    /// Whether etcd was restored and the controller has not listed PodGroups since: it acts on what
    /// was undone.
    is_misled: bool,
    listed: Option<Timestamp>,
    verdict: Verdict,
}

/// What is wrong with a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict {
    pub(super) violations: Vec<String>,
    /// What would be wrong, had the controller known of a restore or of another leader.
    pub(super) excused: Vec<String>,
    pub(super) met: Met,
}

/// Judges a whole run. With several leaders, one may act on watches that are late.
pub(super) fn judge(log: &[Access], restores: &[Restore], leaders: usize) -> Verdict {
    let mut ledger = Ledger::default();
    let mut saved = BTreeMap::new();
    for (number, access) in log.iter().enumerate() {
        if restores.iter().any(|it| it.taken == number) {
            saved.insert(number, ledger.clone());
        }
        if let Some(it) = restores.iter().find(|it| it.restored == number) {
            let verdict = ledger.verdict;
            let backup = saved[&it.taken].clone();
            ledger = Ledger { is_misled: true, listed: None, verdict, ..backup };
        }
        ledger.read(access, leaders);
    }
    ledger.end();
    ledger.verdict
}

impl JobSeen {
    /// Whether one of its gang's objects may have this size: one that it asked for, or, of a
    /// PodGroup, as many pods as are left once some have ended for good.
    fn may_have(&self, kind: Kind, size: i64) -> bool {
        let ended = i64::try_from(self.ended.len()).unwrap_or(i64::MAX);
        let left = self.completions.map_or(1, |all| (all - ended).max(1));
        let is_lower = self.sizes.last().is_some_and(|most| size < *most);
        let is_of_left = kind == Kind::PodGroup && ended > 0 && is_lower && size >= left;
        self.sizes.contains(&size) || is_of_left
    }
}

impl Ledger {
    fn read(&mut self, access: &Access, leaders: usize) {
        let is_ours = access.agent.starts_with(CONTROLLER);
        if is_ours && lists_groups(access) {
            self.listed.get_or_insert(access.at);
        }
        if self.listed.is_some_and(|at| at + RETRIED_WITHIN < access.at) {
            self.is_misled = false;
        }
        let finds = is_ours && access.verb == Verb::Get && access.code == 200;
        if finds && matches!(access.kind, Kind::Workload | Kind::PodGroup) {
            self.meets(FOUND);
        }
        if !has_written(access) {
            return;
        }
        if access.kind == Kind::Pod {
            self.ended(access);
        }
        match access.kind {
            Kind::Job => self.job(access),
            Kind::Workload | Kind::PodGroup => self.object(access, is_ours),
            Kind::Pod if is_ours && access.verb == Verb::Create => self.pod(access, leaders),
            _ => {}
        }
    }

    fn meets(&mut self, what: &'static str) {
        *self.verdict.met.entry(what).or_default() += 1;
    }

    fn job(&mut self, access: &Access) {
        if access.verb == Verb::Delete {
            let name = name_of(access);
            self.jobs.values_mut().filter(|job| job.name == name).for_each(|job| job.gone = true);
            return;
        }
        let spec = &access.answer["spec"];
        let gang = spec["scheduling"]["schedulingPolicy"].get("gang");
        if access.verb == Verb::Create && gang.is_some() {
            self.meets(ASKED);
        }
        let job = self.jobs.entry(text(&access.answer["metadata"]["uid"])).or_default();
        job.name = name_of(access);
        job.asks = spec.get("scheduling").is_some();
        let size = gang.map(|gang| gang["minCount"].as_i64().or(spec["parallelism"].as_i64()));
        job.sizes.extend(size.flatten().map(|size| size.max(1)));
        job.completions = spec["completions"].as_i64();
        job.has_index_limit = spec["backoffLimitPerIndex"].is_number();
    }

    /// A pod was written.
    fn ended(&mut self, access: &Access) {
        let pod = &*access.answer;
        let owner = text(&pod["metadata"]["ownerReferences"][0]["uid"]);
        let Some(job) = self.jobs.get_mut(&owner) else { return };
        let phase = &pod["status"]["phase"];
        if phase == "Succeeded" || phase == "Failed" && job.has_index_limit {
            job.ended.insert(text(&pod["metadata"]["uid"]));
        }
    }

    fn object(&mut self, access: &Access, is_ours: bool) {
        let (kind, name, object) = (access.kind, name_of(access), &*access.answer);
        let key = (kind, name.clone());
        let metadata = &object["metadata"];
        let is_deleted = object["kind"] == "Status" || metadata.get("deletionTimestamp").is_some();
        if is_deleted && metadata.get("finalizers").is_none() {
            self.objects.remove(&key);
            if kind == Kind::PodGroup {
                self.meets(GONE);
            }
            return;
        }
        let seen = ObjectSeen::of(kind, object);
        let before = self.objects.insert(key, seen.clone());
        let has_same = |it: &(&(Kind, String), &ObjectSeen)| {
            it.0.0 == kind && (&it.1.job, &it.1.template) == (&seen.job, &seen.template)
        };
        let same = self.objects.iter().filter(has_same).count();
        let unknown = JobSeen::default();
        let job = self.jobs.get(&seen.job).unwrap_or(&unknown);
        let (at, of) = (access.at, &job.name);
        let mut found = Vec::new();
        if is_ours && same > 1 {
            found.push(format!("{at} {of} controls {same} {kind:?}s of one template"));
        }
        let is_resized = before.is_some_and(|before| before.size != seen.size);
        let is_known = seen.size.is_none_or(|size| job.may_have(kind, size));
        if is_ours && !is_known {
            let size = seen.size;
            found.push(format!("{at} {kind:?} {name} has size {size:?}, {of} {:?}", job.sizes));
        }
        if is_ours && access.verb == Verb::Create && kind == Kind::PodGroup {
            self.meets(MADE);
        }
        if is_ours && access.verb == Verb::Create && access.is_lost {
            self.meets(LOST);
        }
        if is_ours && is_resized {
            self.meets(RESIZED);
        }
        self.verdict.of(self.is_misled).extend(found);
    }

    /// A pod was created. Its Job is a root of the cluster, so it has a group.
    fn pod(&mut self, access: &Access, leaders: usize) {
        let pod = &*access.answer;
        let owner = controller_of(pod);
        // A Job that is gone has taken its group with it.
        let Some(job) = self.jobs.get(&owner).filter(|job| !job.gone) else { return };
        let (at, of) = (access.at, &job.name);
        let its =
            |(key, it): &(&(Kind, String), &ObjectSeen)| key.0 == Kind::PodGroup && it.job == owner;
        let group = self.objects.iter().find(its).map(|((_, name), _)| name.clone());
        let name = pod["spec"]["schedulingGroup"]["podGroupName"].as_str();
        let namespace = &access.namespace;
        let joined = name.map(|name| format!("{namespace}/{name}"));
        let problem = match (&joined, &group) {
            (Some(joined), Some(group)) if joined == group => None,
            (Some(joined), group) => Some(format!("joins {joined}, and its Job has {group:?}")),
            (None, Some(group)) => Some(format!("is not in {group}")),
            (None, None) if job.asks => Some("is in no group, which its Job asks for".to_owned()),
            (None, None) => None,
        };
        let problem = problem.map(|it| format!("{at} a pod of {of} {it}"));
        let is_excused = self.is_misled || joined.is_none() && leaders > 1;
        if problem.is_none() && joined.is_some() {
            self.meets(JOINED);
        }
        self.verdict.of(is_excused).extend(problem);
    }

    fn end(&mut self) {
        for ((kind, name), object) in &self.objects {
            let lives = self.jobs.get(&object.job).is_some_and(|job| !job.gone);
            if !lives {
                self.verdict.violations.push(format!("{kind:?} {name} outlives its Job"));
            }
        }
    }
}

impl ObjectSeen {
    fn of(kind: Kind, object: &Value) -> Self {
        let (job, spec) = (controller_of(object), &object["spec"]);
        let reference = &spec["workloadRef"];
        let template = ["workloadName", "templateName"].map(|part| text(&reference[part]));
        let with_policy = if kind == Kind::Workload { &spec["podGroupTemplates"][0] } else { spec };
        let size = with_policy["schedulingPolicy"]["gang"]["minCount"].as_i64();
        Self { job, template, size }
    }
}

impl Verdict {
    /// Where something belongs that is wrong, or would be.
    fn of(&mut self, is_excused: bool) -> &mut Vec<String> {
        if is_excused { &mut self.excused } else { &mut self.violations }
    }
}

/// Whether a call lists all PodGroups, or begins a watch by that.
fn lists_groups(access: &Access) -> bool {
    let lists = match access.verb {
        Verb::List => true,
        Verb::Watch => access.query.contains_key("sendInitialEvents"),
        _ => false,
    };
    lists && access.kind == Kind::PodGroup && access.code == 200
}

/// The UID of the object's controller; empty without one.
fn controller_of(object: &Value) -> String {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let mut controllers = owners.filter(|owner| owner["controller"] == true);
    controllers.next().map_or_else(String::new, |owner| text(&owner["uid"]))
}

/// The namespace and the name of the object of a write.
fn name_of(access: &Access) -> String {
    let stored = access.answer["metadata"]["name"].as_str();
    let name = if access.name.is_empty() { stored.unwrap_or_default() } else { &access.name };
    format!("{}/{name}", access.namespace)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
