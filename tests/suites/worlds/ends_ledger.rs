//! Judges what the events PodFailed and PodDisrupted say, from the model's own log: the cause of each
//! end is one that the API has shown of the pod, its count is the one in the Job's status, and
//! no pod is reported twice with different words.

use std::collections::{BTreeMap, BTreeSet};

use model_api::{Access, Kind};
use serde_json::Value;

use super::ledger::{CONTROLLER, has_written};
use super::plots::condition;

/// Reasons of DisruptionTarget that are causes of their own.
const DISRUPTIONS: [&str; 7] = [
    "EvictionByEvictionAPI",
    "PreemptionByScheduler",
    "DeletionByTaintManager",
    "DeletionByPodGC",
    "TerminationByKubelet",
    "RejectedByKubelet",
    "LostByNode",
];

/// What the log shows of a pod.
#[derive(Debug, Default)]
struct Shown {
    uid: String,
    job: String,
    /// Each cause that a version of it shows.
    causes: BTreeSet<String>,
    /// How a container failed before its last start.
    failed_before: BTreeSet<String>,
    /// It failed before its Job did.
    must_be_reported: bool,
}

/// What the log shows of a Job.
#[derive(Debug, Default)]
struct Counts {
    /// UIDs that a status listed as failed.
    failed: BTreeSet<String>,
    fails: bool,
    /// It fails by failures or restarts beyond backoffLimit.
    at_limit: bool,
    gone: bool,
    /// By the name of the Event: how many failures it says.
    reported: BTreeMap<String, u64>,
}

/// How many ends were reported, by cause.
pub(super) type Met = BTreeMap<String, usize>;

/// Judges a whole run. Where nothing was lost, each failure must be reported, and once.
pub(super) fn judge(log: &[Access], is_calm: bool) -> (Vec<String>, Met) {
    let (mut found, mut met) = (Vec::new(), Met::new());
    let mut pods: BTreeMap<String, Shown> = BTreeMap::new();
    let mut jobs: BTreeMap<String, Counts> = BTreeMap::new();
    let mut reported: BTreeMap<String, (String, String)> = BTreeMap::new();
    for access in log.iter().filter(|access| has_written(access)) {
        let object = &*access.answer;
        match access.kind {
            Kind::Pod if object["kind"] != "Status" => shown(object, &mut pods, &jobs),
            Kind::Job => counted(object, &mut jobs),
            Kind::Event if access.agent.starts_with(CONTROLLER) => {
                for end in ends(object) {
                    let problem = end.problem(&pods, &jobs, &mut reported);
                    found.extend(problem.map(|problem| format!("{} {problem}", access.at)));
                }
                if let Some(cause) = annotation(object, "epilogue.dev/cause") {
                    *met.entry(cause.to_owned()).or_default() += 1;
                }
                note_count(object, &mut jobs);
            }
            _ => {}
        }
    }
    if is_calm {
        found.extend(jobs.iter().filter_map(|(uid, job)| unreported(uid, job, &pods)));
    }
    (found, met)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str()
}

fn shown(object: &Value, pods: &mut BTreeMap<String, Shown>, jobs: &BTreeMap<String, Counts>) {
    let owner = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let owner = owner.filter(|owner| owner["controller"] == true).map(|it| text(&it["uid"]));
    let Some(job) = owner.into_iter().next() else { return };
    let pod = pods.entry(text(&object["metadata"]["name"])).or_default();
    pod.uid = text(&object["metadata"]["uid"]);
    let fails = jobs.get(&job).is_some_and(|job| job.fails);
    pod.job = job;
    let deleting = object["metadata"].get("deletionTimestamp").is_some();
    let failed = object["status"]["phase"] == "Failed";
    if failed || deleting {
        pod.causes.insert(cause(object, deleting));
    }
    pod.failed_before.extend(failures(object, "lastState").next());
    pod.must_be_reported |= failed && !fails && !deleting;
}

/// Why a pod ended, as this version of it shows.
fn cause(object: &Value, deleting: bool) -> String {
    let reason = |kind| condition(object, kind).map(|it| text(&it["reason"]));
    match reason("epilogue.dev/Ended").as_deref() {
        Some("NodeGone") => return "NodeGone".into(),
        Some("ForceFail") => return "ForceFailed".into(),
        _ => {}
    }
    let oom = reason("epilogue.dev/OOMKilled");
    if oom.as_deref() == Some("NodeOutOfMemory") {
        return "NodeOOM".into();
    }
    if let Some(reason) = reason("DisruptionTarget") {
        let known = DISRUPTIONS.contains(&reason.as_str());
        return if known { reason } else { "OtherDisruption".into() };
    }
    if condition(object, "epilogue.dev/PendingTimeout").is_some() {
        return "StartFailed".into();
    }
    let own = object["status"]["reason"].as_str().filter(|_| !has_containers(object));
    match own {
        Some("DeadlineExceeded") => return "PodDeadline".into(),
        Some("Evicted") => return "StorageLimit".into(),
        Some(_) if object["status"]["phase"] == "Failed" => return "RejectedByKubelet".into(),
        _ => {}
    }
    failures(object, "state")
        .next()
        .unwrap_or_else(|| if deleting { "Deleted".into() } else { "Unknown".into() })
}

/// The causes of containers that failed: now (`state`), or before their last start (`lastState`).
fn failures<'a>(object: &'a Value, state: &'a str) -> impl Iterator<Item = String> + 'a {
    let lists = ["initContainerStatuses", "containerStatuses"];
    let all = lists.into_iter().filter_map(|list| object["status"][list].as_array()).flatten();
    let ended = all.map(move |container| &container[state]["terminated"]);
    let failed = ended.filter(|it| it["exitCode"].as_i64().is_some_and(|code| code != 0));
    let oom = condition(object, "epilogue.dev/OOMKilled").map(|it| text(&it["reason"]));
    failed.map(move |ended| match ended["reason"].as_str() {
        _ if oom.as_deref() == Some("NodeOutOfMemory") => "NodeOOM".into(),
        Some("OOMKilled") => "ContainerOOM".into(),
        _ if oom.is_some() => "ContainerOOM".into(),
        Some("ContainerStatusUnknown") => "Unknown".into(),
        _ => "ExitCode".into(),
    })
}

/// Whether the status has any container.
fn has_containers(object: &Value) -> bool {
    let lists = ["initContainerStatuses", "containerStatuses"];
    lists.into_iter().any(|list| object["status"][list].as_array().is_some_and(|it| !it.is_empty()))
}

fn counted(object: &Value, jobs: &mut BTreeMap<String, Counts>) {
    let job = jobs.entry(text(&object["metadata"]["uid"])).or_default();
    let listed = object["status"]["uncountedTerminatedPods"]["failed"].as_array();
    job.failed.extend(listed.into_iter().flatten().map(text));
    let target = condition(object, "FailureTarget");
    job.fails |= target.is_some();
    job.at_limit |= target.is_some_and(|it| it["reason"] == "BackoffLimitExceeded");
    job.gone |= object["metadata"].get("deletionTimestamp").is_some();
}

/// One end that an Event describes.
struct Reported {
    pod: String,
    cause: String,
    counted: String,
}

fn ends(event: &Value) -> Vec<Reported> {
    let of = |name| annotation(event, name).unwrap_or_default();
    let last: Value = serde_json::from_str(of("epilogue.dev/ends")).unwrap_or_default();
    let (cause, counted) = (of("epilogue.dev/cause"), of("epilogue.dev/counted"));
    let each = last.as_array().into_iter().flatten();
    each.map(|end| Reported {
        pod: text(&end["pod"]),
        cause: cause.to_owned(),
        counted: counted.to_owned(),
    })
    .collect()
}

impl Reported {
    fn problem(
        self,
        pods: &BTreeMap<String, Shown>,
        jobs: &BTreeMap<String, Counts>,
        reported: &mut BTreeMap<String, (String, String)>,
    ) -> Option<String> {
        let Self { pod: name, cause, counted } = self;
        let Some(pod) = pods.get(&name) else {
            return Some(format!("tells the end of {name}, which is unknown"));
        };
        let at_limit = jobs.get(&pod.job).is_some_and(|job| job.at_limit);
        let is_shown =
            pod.causes.contains(&cause) || at_limit && pod.failed_before.contains(&cause);
        if !is_shown {
            return Some(format!("tells that {name} ended by {cause}, not by {:?}", pod.causes));
        }
        let is_listed = jobs.get(&pod.job).is_some_and(|job| job.failed.contains(&pod.uid));
        if is_listed == (counted == "Ignored") {
            return Some(format!("tells that the end of {name} counts as {counted}"));
        }
        let said = (cause, counted);
        match reported.insert(name.clone(), said.clone()) {
            Some(before) if before != said => {
                Some(format!("tells the end of {name} by {before:?} and by {said:?}"))
            }
            _ => None,
        }
    }
}

fn note_count(event: &Value, jobs: &mut BTreeMap<String, Counts>) {
    let fails = annotation(event, "epilogue.dev/counted").is_some_and(|it| it != "Ignored");
    let job = text(&event["involvedObject"]["uid"]);
    if let Some(job) = jobs.get_mut(&job).filter(|_| fails) {
        let count = event["count"].as_u64().unwrap_or_default();
        job.reported.insert(text(&event["metadata"]["name"]), count);
    }
}

/// Where fewer or more failures were reported than the status has.
fn unreported(uid: &str, job: &Counts, pods: &BTreeMap<String, Shown>) -> Option<String> {
    let must =
        |pod: &&Shown| pod.job == uid && pod.must_be_reported && job.failed.contains(&pod.uid);
    let least = pods.values().filter(must).count() as u64;
    let reported: u64 = job.reported.values().sum();
    let is_right = (least..=job.failed.len() as u64).contains(&reported);
    (!is_right && !job.gone)
        .then(|| format!("{uid}: {reported} failures are reported, not {least}"))
}
