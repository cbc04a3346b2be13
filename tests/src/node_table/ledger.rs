//! Records what the API shows of Jobs and of all their pods, and judges each Job by its pods: a
//! pod that ended counts once, and its replacement comes no earlier than the policy allows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt as _, pin_mut};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde::{Deserialize, Serialize};
use tokio_util::task::AbortOnDropHandle;

use super::record::is_default;
use crate::bed::has_finalizer;

/// Follows the Jobs and pods of a namespace until it is dropped.
pub(super) struct Ledger {
    books: Arc<Mutex<Books>>,
    _watches: [AbortOnDropHandle<()>; 2],
}

/// What a Job did, and what of it is wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRow {
    /// `status.active`.
    #[serde(skip_serializing_if = "is_default")]
    pub active: i32,
    /// `status.succeeded`.
    #[serde(skip_serializing_if = "is_default")]
    pub succeeded: i32,
    /// `status.failed`.
    #[serde(skip_serializing_if = "is_default")]
    pub failed: i32,
    /// Pods that failed by a disruption that the Job's policy ignores.
    #[serde(skip_serializing_if = "is_default")]
    pub ignored: usize,
    /// `Complete` or `Failed`, once it is True.
    #[serde(skip_serializing_if = "is_default")]
    pub condition: String,
    /// Phase and node of the last pod, if it is a replacement.
    #[serde(skip_serializing_if = "is_default")]
    pub replacement: Option<String>,
    /// When each replacement was created.
    #[serde(skip_serializing_if = "is_default")]
    pub replaced: Vec<Replaced>,
    /// Replacements that the Job's podReplacementPolicy does not allow yet.
    #[serde(skip_serializing_if = "is_default")]
    pub early: Vec<String>,
    /// How status, finalizers and pods disagree.
    #[serde(skip_serializing_if = "is_default")]
    pub wrong: Vec<String>,
}

/// When a replacement was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replaced {
    /// Before the last pod was terminal.
    Before,
    /// This many milliseconds after the last pod was terminal with no container running.
    After(i64),
}

/// The objects by now. Pure.
#[derive(Debug, Default)]
struct Books {
    /// By UID.
    pods: BTreeMap<String, PodBook>,
    /// By name.
    jobs: BTreeMap<String, JobBook>,
    /// Number of states of pods so far.
    states: usize,
}

#[derive(Debug)]
struct PodBook {
    name: String,
    job: String,
    node: Option<String>,
    phase: String,
    created: Moment,
    deleted: Option<Moment>,
    end: Option<End>,
    has_finalizer: bool,
    is_gone: bool,
}

/// Place among the states of all pods, and our clock.
#[derive(Clone, Copy, Debug)]
struct Moment {
    place: usize,
    at: Timestamp,
}

/// The first terminal state, until another one corrects it: a kubelet that shuts down may report
/// `Failed` while the container runs, and another end after it ([SD17]).
#[derive(Clone, Copy, Debug)]
struct End {
    when: Moment,
    succeeded: bool,
    disrupted: bool,
    is_final: bool,
}

#[derive(Debug, Default)]
struct JobBook {
    uid: String,
    /// Only terminal pods are replaced, and count.
    waits_for_end: bool,
    ignores_disruptions: bool,
    status: JobStatus,
    /// Each entry that `uncountedTerminatedPods` ever got.
    listed: Vec<(List, String)>,
    /// Its entries now.
    lists: BTreeSet<(List, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum List {
    Succeeded,
    Failed,
}

/// What a pod is to its Job's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    Succeeded,
    Failed,
    Ignored,
}

impl JobRow {
    /// Whether the Job is finished, and agrees with its pods.
    pub(super) fn is_settled(&self) -> bool {
        !self.condition.is_empty() && self.wrong.is_empty()
    }
}

impl Ledger {
    /// Begins to record.
    pub(super) fn of(jobs: Api<Job>, pods: Api<Pod>) -> Self {
        let books = Arc::<Mutex<Books>>::default();
        let (of_jobs, of_pods) = (Arc::clone(&books), Arc::clone(&books));
        let jobs = follow(jobs, move |job, _| lock(&of_jobs).see_job(&job));
        let pods =
            follow(pods, move |pod, gone| lock(&of_pods).see_pod(&pod, gone, Timestamp::now()));
        let watches = [tokio::spawn(jobs), tokio::spawn(pods)];
        Self { books, _watches: watches.map(AbortOnDropHandle::new) }
    }

    /// What the Job did so far; `real` is the real node. `None` before the Job is seen.
    pub(super) fn row(&self, job: &str, real: &str) -> Option<JobRow> {
        lock(&self.books).row(job, real)
    }
}

fn lock(books: &Mutex<Books>) -> std::sync::MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow<K>(api: Api<K>, see: impl Fn(K, bool))
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let events = watcher(api, Config::default()).default_backoff();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitApply(object) | Event::Apply(object)) => see(object, false),
            Ok(Event::Delete(object)) => see(object, true),
            // The watcher lists again by itself.
            Ok(Event::Init | Event::InitDone) | Err(_) => {}
        }
    }
}

impl Books {
    fn see_job(&mut self, job: &Job) {
        let book = self.jobs.entry(job.metadata.name.clone().unwrap_or_default()).or_default();
        book.uid = job.metadata.uid.clone().unwrap_or_default();
        if let Some(spec) = &job.spec {
            book.waits_for_end = spec.pod_replacement_policy.as_deref() == Some("Failed");
            let rules = spec.pod_failure_policy.iter().flat_map(|policy| &policy.rules);
            book.ignores_disruptions = rules.into_iter().any(|rule| {
                let mut on = rule.on_pod_conditions.iter().flatten();
                rule.action == "Ignore" && on.any(|on| on.type_ == "DisruptionTarget")
            });
        }
        book.status = job.status.clone().unwrap_or_default();
        let lists = book.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let now: BTreeSet<_> = [(List::Succeeded, lists.succeeded), (List::Failed, lists.failed)]
            .into_iter()
            .flat_map(|(list, uids)| uids.into_iter().flatten().map(move |uid| (list, uid)))
            .collect();
        book.listed.extend(now.difference(&book.lists).cloned());
        book.lists = now;
    }

    fn see_pod(&mut self, pod: &Pod, gone: bool, at: Timestamp) {
        self.states += 1;
        let now = Moment { place: self.states, at };
        let status = pod.status.clone().unwrap_or_default();
        let owners = pod.metadata.owner_references.iter().flatten();
        let job = owners.into_iter().find(|owner| owner.controller == Some(true));
        let book = self.pods.entry(pod.metadata.uid.clone().unwrap_or_default());
        let book = book.or_insert_with(|| PodBook {
            name: pod.metadata.name.clone().unwrap_or_default(),
            job: job.map(|owner| owner.uid.clone()).unwrap_or_default(),
            node: None,
            phase: String::new(),
            created: now,
            deleted: None,
            end: None,
            has_finalizer: false,
            is_gone: false,
        });
        book.node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        book.phase = status.phase.clone().unwrap_or_default();
        book.has_finalizer = has_finalizer(pod);
        book.is_gone = gone;
        if pod.metadata.deletion_timestamp.is_some() {
            book.deleted.get_or_insert(now);
        }
        let mut conditions = status.conditions.iter().flatten();
        let end = End {
            when: now,
            succeeded: book.phase == "Succeeded",
            disrupted: conditions.any(|it| it.type_ == "DisruptionTarget" && it.status == "True"),
            is_final: !shows_running(pod),
        };
        let is_terminal = end.succeeded || book.phase == "Failed";
        let is_news = book.end.is_none_or(|known| {
            !known.is_final && (end.is_final || end.succeeded != known.succeeded)
        });
        if is_terminal && is_news {
            book.end = Some(end);
        }
        // The controller may add the condition before it counts the pod.
        if let Some(known) = &mut book.end {
            known.disrupted |= end.disrupted && book.has_finalizer;
        }
    }

    fn row(&self, name: &str, real: &str) -> Option<JobRow> {
        let job = self.jobs.get(name)?;
        let mut pods: Vec<_> = self.pods.iter().filter(|(_, pod)| pod.job == job.uid).collect();
        pods.sort_by_key(|(_, pod)| pod.created.place);
        let status = &job.status;
        let mut conditions = status.conditions.iter().flatten();
        let finished = conditions
            .find(|it| it.status == "True" && matches!(it.type_.as_str(), "Complete" | "Failed"));
        let ignored =
            pods.iter().filter(|(_, pod)| pod.counts(job) == Some(Counts::Ignored)).count();
        let pairs = pods.windows(2).map(|pair| (pair[0].1, pair[1].1));
        Some(JobRow {
            active: status.active.unwrap_or(0),
            succeeded: status.succeeded.unwrap_or(0),
            failed: status.failed.unwrap_or(0),
            ignored,
            condition: finished.map(|condition| condition.type_.clone()).unwrap_or_default(),
            replacement: pods.iter().skip(1).next_back().map(|(_, pod)| pod.place(real)),
            replaced: pairs.clone().map(|(last, new)| new.replaces(last)).collect(),
            early: pairs.filter_map(|(last, new)| new.is_early(last, job)).collect(),
            wrong: job.wrong(&pods),
        })
    }
}

/// Whether its status shows a running container, and no writer states that none runs any more.
fn shows_running(pod: &Pod) -> bool {
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.container_statuses.iter().flatten();
    let mut states = containers.filter_map(|container| container.state.as_ref());
    let by_gc = status.conditions.iter().flatten().any(|it| {
        let reason = it.reason.as_deref();
        it.status == "True"
            && (it.type_ == "epilogue.dev/Ended" || reason == Some("DeletionByPodGC"))
    });
    let mut annotations = pod.metadata.annotations.iter().flatten();
    let by_agent = annotations.any(|(key, _)| key == "epilogue.dev/terminated-at");
    !by_gc && !by_agent && states.any(|state| state.running.is_some())
}

impl PodBook {
    /// What the pod is to its Job's counters; `None` while it lives.
    fn counts(&self, job: &JobBook) -> Option<Counts> {
        let before = |deleted: Moment| self.end.is_none_or(|end| deleted.place < end.when.place);
        match self.end {
            // It counts once it terminates.
            _ if !job.waits_for_end && self.deleted.is_some_and(before) => Some(Counts::Failed),
            Some(end) if end.succeeded => Some(Counts::Succeeded),
            Some(end) if end.disrupted && job.ignores_disruptions => Some(Counts::Ignored),
            Some(_) => Some(Counts::Failed),
            None => self.is_gone.then_some(Counts::Failed),
        }
    }

    fn place(&self, real: &str) -> String {
        let place = match &self.node {
            Some(node) if node == real => "on the node",
            Some(_) => "elsewhere",
            None => "without a node",
        };
        format!("{} {place}", self.phase)
    }

    fn replaces(&self, last: &Self) -> Replaced {
        match last.end {
            Some(end) if end.when.place < self.created.place => {
                let passed = self.created.at.duration_since(end.when.at).as_millis();
                Replaced::After(i64::try_from(passed).unwrap_or(i64::MAX))
            }
            _ => Replaced::Before,
        }
    }

    /// Says how it came before the policy allows it.
    fn is_early(&self, last: &Self, job: &JobBook) -> Option<String> {
        let end = last.end.map(|end| end.when.place);
        let terminates = last.deleted.map(|deleted| deleted.place);
        let allowed = if job.waits_for_end { end } else { end.into_iter().chain(terminates).min() };
        let is_early = allowed.is_none_or(|allowed| allowed > self.created.place);
        is_early.then(|| format!("{} was created before {} had ended", self.name, last.name))
    }
}

impl JobBook {
    /// How counters, lists, finalizers and pods disagree.
    fn wrong(&self, pods: &[(&String, &PodBook)]) -> Vec<String> {
        let mut wrong = Vec::new();
        let counted = [self.status.succeeded.unwrap_or(0), self.status.failed.unwrap_or(0)];
        let ended = [Counts::Succeeded, Counts::Failed].map(|kind| {
            let of_kind = pods.iter().filter(|(_, pod)| pod.counts(self) == Some(kind));
            i32::try_from(of_kind.count()).unwrap_or(i32::MAX)
        });
        if counted != ended {
            wrong
                .push(format!("succeeded and failed are {counted:?}, but {ended:?} pods ended so"));
        }
        let lists = [List::Succeeded, List::Failed];
        let listed = lists.map(|list| self.listed.iter().filter(|(it, _)| *it == list).count());
        let expected = counted.map(|count| usize::try_from(count).unwrap_or_default());
        if listed != expected {
            wrong.push(format!("succeeded and failed are {counted:?}, but {listed:?} were listed"));
        }
        let uids: BTreeSet<_> = self.listed.iter().map(|(_, uid)| uid).collect();
        if uids.len() < self.listed.len() {
            wrong.push(format!("a pod was listed twice: {:?}", self.listed));
        }
        if !self.lists.is_empty() {
            wrong.push(format!("uncounted: {:?}", self.lists));
        }
        let lives = |pod: &PodBook| pod.end.is_none() && pod.deleted.is_none() && !pod.is_gone;
        let living = pods.iter().filter(|(_, pod)| lives(pod)).count();
        let active = self.status.active.unwrap_or(0);
        if usize::try_from(active).ok() != Some(living) {
            wrong.push(format!("active is {active}, but {living} pods live"));
        }
        for (_, pod) in pods {
            if lives(pod) && !pod.has_finalizer {
                wrong.push(format!("{} lives without its finalizer", pod.name));
            }
            if pod.counts(self).is_some() && pod.has_finalizer && !pod.is_gone {
                wrong.push(format!("{} ended and keeps its finalizer", pod.name));
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A Job by its spec and status, and then its pods' states in order, one each second.
    fn row(spec: &Value, statuses: &[Value], states: &[Value]) -> JobRow {
        let mut books = Books::default();
        for status in statuses {
            let job = json!({"metadata": {"name": "job", "uid": "j"},
                             "spec": spec, "status": status});
            books.see_job(&serde_json::from_value(job).expect("a Job"));
        }
        for (state, second) in states.iter().zip(0..) {
            let pod = serde_json::from_value(state.clone()).expect("a pod");
            let at = Timestamp::from_second(second).expect("a time");
            books.see_pod(&pod, state["gone"] == true, at);
        }
        books.row("job", "vm").expect("a row")
    }

    fn pod(name: &str, phase: &str, more: &Value) -> Value {
        let mut pod = json!({
            "metadata": {"name": name, "uid": name, "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "j",
                 "controller": true}]},
            "spec": {"nodeName": if name == "a" { "vm" } else { "sim" }, "containers": []},
            "status": {"phase": phase},
        });
        if phase == "Running" {
            pod["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
        }
        for word in more.as_array().into_iter().flatten() {
            match word.as_str() {
                Some("disrupted") => {
                    pod["status"]["conditions"] =
                        json!([{"type": "DisruptionTarget", "status": "True"}]);
                }
                Some("deleted") => {
                    pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                }
                Some("runs") => {
                    pod["status"]["containerStatuses"] = json!([{"name": "m", "image": "",
                        "imageID": "", "ready": false, "restartCount": 0,
                        "state": {"running": {}}}]);
                }
                Some("held") => {
                    pod["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
                }
                Some("gone") => pod["gone"] = json!(true),
                _ => panic!("{word}"),
            }
        }
        pod
    }

    fn patient() -> Value {
        json!({"template": {}, "selector": {}, "podReplacementPolicy": "Failed",
               "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [
                   {"type": "DisruptionTarget", "status": "True"}]}]}})
    }

    fn hasty() -> Value {
        json!({"template": {}, "selector": {}, "podReplacementPolicy": "TerminatingOrFailed"})
    }

    fn complete(failed: i32) -> Vec<Value> {
        let listed = |list: &str, uid: &str| json!({"uncountedTerminatedPods": {list: [uid]}});
        let mut statuses = Vec::new();
        if failed > 0 {
            statuses.push(listed("failed", "a"));
        }
        statuses.push(listed("succeeded", "b"));
        statuses.push(json!({"succeeded": 1, "failed": failed,
                             "conditions": [{"type": "Complete", "status": "True"}]}));
        statuses
    }

    #[test]
    fn an_ignored_disruption_that_is_replaced_after_its_end_is_right() {
        let states = [
            pod("a", "Running", &json!([])),
            pod("a", "Failed", &json!(["disrupted", "held"])),
            pod("a", "Failed", &json!(["disrupted"])),
            pod("b", "Running", &json!([])),
            pod("b", "Succeeded", &json!([])),
        ];
        let found = row(&patient(), &complete(0), &states);
        let expected = JobRow {
            succeeded: 1,
            ignored: 1,
            condition: "Complete".to_owned(),
            replacement: Some("Succeeded elsewhere".to_owned()),
            replaced: vec![Replaced::After(2000)],
            ..JobRow::default()
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_condition_counts_that_comes_before_the_pod_is_released() {
        for (more, ignored) in [(json!(["disrupted", "held"]), 1), (json!(["disrupted"]), 0)] {
            let states = [
                pod("a", "Running", &json!([])),
                pod("a", "Failed", &json!(["held"])),
                pod("a", "Failed", &more),
                pod("a", "Failed", &json!(["disrupted"])),
                pod("b", "Running", &json!([])),
                pod("b", "Succeeded", &json!([])),
            ];
            let found = row(&patient(), &complete(0), &states);
            assert_eq!((found.ignored, found.wrong.is_empty()), (ignored, ignored == 1));
        }
    }

    #[test]
    fn a_replacement_before_the_end_is_early_unless_the_policy_allows_it() {
        let states = [
            pod("a", "Running", &json!(["deleted"])),
            pod("b", "Running", &json!([])),
            pod("a", "Failed", &json!(["deleted", "gone"])),
            pod("b", "Succeeded", &json!([])),
        ];
        let found = row(&patient(), &complete(1), &states);
        assert_eq!(found.early, ["b was created before a had ended"]);
        assert_eq!(found.replaced, [Replaced::Before]);
        let found = row(&hasty(), &complete(1), &states);
        assert!(found.early.is_empty() && found.replaced == [Replaced::Before], "{found:?}");
        let states = [&states[1..2], &[pod("c", "Running", &json!([]))]].concat();
        assert_eq!(row(&hasty(), &complete(1), &states).early.len(), 1);
    }

    #[test]
    fn a_failed_pod_whose_container_runs_has_not_ended() {
        let states = [
            pod("a", "Failed", &json!(["runs", "held"])),
            pod("b", "Running", &json!([])),
            pod("a", "Succeeded", &json!([])),
            pod("b", "Succeeded", &json!([])),
        ];
        let found = row(&patient(), &complete(1), &states);
        assert_eq!(found.early.len(), 1, "{found:?}");
        assert_eq!(
            found.wrong,
            ["succeeded and failed are [1, 1], but [2, 0] pods ended so"],
            "{found:?}"
        );
    }

    #[test]
    fn pods_that_count_twice_or_never_are_found() {
        let states = [
            pod("a", "Running", &json!([])),
            pod("a", "Failed", &json!([])),
            pod("b", "Succeeded", &json!([])),
        ];
        assert!(row(&patient(), &complete(1), &states).wrong.is_empty());
        let never = row(&patient(), &complete(0), &states).wrong;
        assert_eq!(never, ["succeeded and failed are [1, 0], but [1, 1] pods ended so"]);
        let mut twice = complete(1);
        twice.insert(0, json!({"uncountedTerminatedPods": {"failed": ["a"]}}));
        twice.insert(1, json!({}));
        let twice = row(&patient(), &twice, &states).wrong;
        assert!(twice.iter().any(|wrong| wrong.contains("listed twice")), "{twice:?}");
        let mut open = complete(1);
        open.push(json!({"succeeded": 1, "failed": 1,
                         "uncountedTerminatedPods": {"succeeded": ["b"]}}));
        let open = row(&patient(), &open, &states).wrong;
        assert!(open.iter().any(|wrong| wrong.starts_with("uncounted: ")), "{open:?}");
    }

    #[test]
    fn a_finalizer_that_stays_or_went_too_early_is_found() {
        let mut bare = pod("b", "Running", &json!([]));
        bare["metadata"]["finalizers"] = json!([]);
        let states = [pod("a", "Failed", &json!(["disrupted", "held"])), bare];
        let status = [json!({"active": 1})];
        let expected = ["a ended and keeps its finalizer", "b lives without its finalizer"];
        assert_eq!(row(&patient(), &status, &states).wrong, expected);
        let gone = [pod("a", "Failed", &json!(["disrupted", "held", "gone"]))];
        let found = row(&patient(), &status, &gone).wrong;
        assert_eq!(found, ["active is 1, but 0 pods live"]);
    }
}
