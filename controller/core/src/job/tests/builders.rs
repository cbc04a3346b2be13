//! Builds Jobs and pods for tests, and runs one sync of them with its effects in plain numbers.

use std::collections::BTreeSet;

use epilogue_common::names::{MANAGED_BY, TRACKING_FINALIZER};
use epilogue_common::outcome::Failure;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::JobStatus;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::checks;
use crate::checks::fake_api::{FakeApi, Faults, Trace};
use crate::job::{PodDraft, SideEffect, Step, SyncInput};
use crate::job_pods::JobPods;
use crate::view::fields::{keep_job, keep_pod, selected_labels};
use crate::view::{Interner, Job, Pod, Uid, WireJob, WirePod};

/// The time of every test.
pub(super) fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).expect("a time in range")
}

/// Some seconds before [`now`].
pub(super) fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

/// The JSON of a Job under construction.
#[derive(Clone, Debug)]
pub(super) struct JobBuilder(Value);

/// A Job that is ours, with parallelism 1, completions 1 and backoffLimit 6.
pub(super) fn job() -> JobBuilder {
    JobBuilder(json!({
        "metadata": {"namespace": "ns", "name": "j", "uid": "job-uid", "resourceVersion": "7",
                     "generation": 1},
        "spec": {
            "managedBy": MANAGED_BY, "parallelism": 1, "completions": 1, "backoffLimit": 6,
            "selector": {"matchLabels": {"job": "j"}},
            "template": {"metadata": {"labels": {"job": "j"}},
                         "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]}},
        },
        "status": {"uncountedTerminatedPods": {}},
    }))
}

impl JobBuilder {
    /// Sets a field of the spec.
    pub(super) fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["spec"][field] = value.into();
        self
    }

    /// Sets a field of the status.
    pub(super) fn status(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["status"][field] = value.into();
        self
    }

    /// Sets a field of the metadata.
    pub(super) fn meta(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["metadata"][field] = value.into();
        self
    }

    /// Sets parallelism and completions.
    pub(super) fn size(self, parallelism: i32, completions: impl Into<Option<i32>>) -> Self {
        self.spec("parallelism", parallelism).spec("completions", json!(completions.into()))
    }

    /// `completionMode: Indexed`.
    pub(super) fn indexed(self) -> Self {
        self.spec("completionMode", "Indexed")
    }

    /// With a deletion timestamp.
    pub(super) fn deleting(self) -> Self {
        self.meta("deletionTimestamp", now().to_string())
    }

    /// Changes the JSON.
    pub(super) fn with(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.0);
        self
    }

    /// Suspended by its user.
    pub(super) fn suspended(self) -> Self {
        self.spec("suspend", true)
    }

    /// With `podReplacementPolicy: Failed`.
    pub(super) fn replaces_failed(self) -> Self {
        self.spec("podReplacementPolicy", "Failed")
    }

    /// With a podFailurePolicy of these rules.
    pub(super) fn failure_policy(self, rules: Value) -> Self {
        let mut policy = json!({});
        policy["rules"] = rules;
        self.spec("podFailurePolicy", policy)
    }

    /// Started this many seconds ago.
    pub(super) fn started(self, seconds_ago: i64) -> Self {
        self.status("startTime", ago(seconds_ago).to_string())
    }

    /// With these completed indexes stored.
    pub(super) fn completed(self, text: &str) -> Self {
        let count = crate::job::IndexSet::parse(text, u32::MAX).len();
        self.status("completedIndexes", text).status("succeeded", count)
    }

    /// With pods of these names listed as succeeded and as failed.
    pub(super) fn uncounted(self, succeeded: &[&str], failed: &[&str]) -> Self {
        let uids = |names: &[&str]| names.iter().map(|it| format!("uid-{it}")).collect::<Vec<_>>();
        let lists = json!({"succeeded": uids(succeeded), "failed": uids(failed)});
        self.status("uncountedTerminatedPods", lists)
    }

    /// With a True condition.
    pub(super) fn condition(self, kind: &str, reason: &str, message: &str) -> Self {
        self.condition_is(kind, "True", reason, message)
    }

    /// With a condition.
    pub(super) fn condition_is(
        mut self,
        kind: &str,
        value: &str,
        reason: &str,
        message: &str,
    ) -> Self {
        let condition = json!({"type": kind, "status": value, "reason": reason,
                               "message": message, "lastTransitionTime": ago(5).to_string()});
        match self.0["status"]["conditions"].as_array_mut() {
            Some(list) => list.push(condition),
            None => self.0["status"]["conditions"] = json!([condition]),
        }
        self
    }

    /// The view.
    pub(super) fn build(self) -> Job {
        let read = |object: Value| {
            let wire = WireJob::parse(object).expect("a Job that parses");
            wire.view().expect("a status that parses")
        };
        let (dumped, job) = (read(keep_job(&self.0, &selected_labels([&self.0]))), read(self.0));
        assert_eq!(dumped.status, job.status);
        // What no decision reads is not dumped.
        assert_eq!(Job { source: job.source.clone(), ..dumped }, job);
        job
    }
}

/// The JSON of a pod under construction.
#[derive(Clone, Debug)]
pub(super) struct PodBuilder(Value);

/// A pod of the Job with the finalizer, in this phase.
pub(super) fn pod(name: &str, phase: &str) -> PodBuilder {
    PodBuilder(json!({
        "metadata": {
            "namespace": "ns", "name": name, "uid": format!("uid-{name}"),
            "resourceVersion": "5", "labels": {"job": "j"},
            "creationTimestamp": ago(100).to_string(),
            "finalizers": [TRACKING_FINALIZER],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j",
                                 "uid": "job-uid", "controller": true}],
            "annotations": {},
        },
        "spec": {},
        "status": {"phase": phase},
    }))
}

/// Pods named by letter and number.
pub(super) fn pods(phase: &str, count: usize) -> Vec<PodBuilder> {
    (0..count).map(|number| pod(&format!("{}-{number}", phase.to_lowercase()), phase)).collect()
}

impl PodBuilder {
    /// Changes the JSON.
    pub(super) fn with(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.0);
        self
    }

    /// With a completion index (any text).
    pub(super) fn index(self, index: impl std::fmt::Display) -> Self {
        let index = format!("{index}");
        self.with(|pod| {
            pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] =
                index.into();
        })
    }

    /// With this many counted failures of its index before it.
    pub(super) fn failures(self, counted: u32) -> Self {
        self.with(|pod| {
            pod["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] =
                counted.to_string().into();
        })
    }

    /// With this many ignored failures of its index before it.
    pub(super) fn ignored_failures(self, ignored: u32) -> Self {
        self.with(|pod| {
            pod["metadata"]["annotations"]["batch.kubernetes.io/job-index-ignored-failure-count"] =
                ignored.to_string().into();
        })
    }

    /// Ready for 10 seconds.
    pub(super) fn ready(self) -> Self {
        self.with(|pod| {
            pod["status"]["conditions"] = json!([
                {"type": "Ready", "status": "True", "lastTransitionTime": ago(10).to_string()}
            ]);
        })
    }

    /// Sets a True condition.
    pub(super) fn condition(self, kind: &str) -> Self {
        self.with(|pod| {
            pod["status"]["conditions"] = json!([{"type": kind, "status": "True"}]);
        })
    }

    /// With its container ended this many seconds ago.
    pub(super) fn ended(self, exit_code: i32, seconds_ago: i64) -> Self {
        self.with(|pod| {
            pod["status"]["containerStatuses"] = json!([{
                "name": "main", "restartCount": 0,
                "state": {"terminated": {"exitCode": exit_code,
                                         "finishedAt": ago(seconds_ago).to_string()}},
            }]);
        })
    }

    /// Adds a container that ended with this code to `containerStatuses` or
    /// `initContainerStatuses`.
    pub(super) fn container(self, list: &str, name: &str, exit_code: i32) -> Self {
        self.with(|pod| {
            let status = json!({
                "name": name, "restartCount": 0,
                "state": {"terminated": {"exitCode": exit_code,
                                         "finishedAt": ago(60).to_string()}},
            });
            match pod["status"][list].as_array_mut() {
                Some(all) => all.push(status),
                None => pod["status"][list] = json!([status]),
            }
        })
    }

    /// Created this many seconds ago.
    pub(super) fn created(self, seconds_ago: i64) -> Self {
        self.with(|pod| pod["metadata"]["creationTimestamp"] = ago(seconds_ago).to_string().into())
    }

    /// Without an owner and without the finalizer.
    pub(super) fn orphan(self) -> Self {
        self.untracked().with(|pod| pod["metadata"]["ownerReferences"] = json!([]))
    }

    /// With another label value, which no selector of ours matches.
    pub(super) fn unselected(self) -> Self {
        self.with(|pod| pod["metadata"]["labels"] = json!({"job": "other"}))
    }

    /// With this restart count.
    pub(super) fn restarts(self, count: u32) -> Self {
        self.with(|pod| {
            pod["status"]["containerStatuses"] =
                json!([{"name": "main", "restartCount": count, "state": {}}]);
        })
    }

    /// Bound to a node, so that a deletion has to wait for the kubelet.
    pub(super) fn on_node(self) -> Self {
        self.with(|pod| pod["spec"]["nodeName"] = "node-1".into())
    }

    /// On a node and being deleted for 5 seconds.
    pub(super) fn terminating(self) -> Self {
        self.on_node().with(|pod| {
            pod["metadata"]["deletionTimestamp"] =
                (ago(5) + SignedDuration::from_secs(30)).to_string().into();
            pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        })
    }

    /// Without the tracking finalizer.
    pub(super) fn untracked(self) -> Self {
        self.with(|pod| pod["metadata"]["finalizers"] = json!([]))
    }

    /// The view.
    pub(super) fn build(self) -> Pod {
        let read = |object: Value| {
            WirePod::deserialize(object).expect("a pod that parses").view(&mut Interner::default())
        };
        let (dumped, pod) = (read(keep_pod(&self.0, &BTreeSet::new())), read(self.0));
        // Without its Job, no label is read.
        let (labels, index_label) = (pod.labels.clone(), pod.index_label.clone());
        assert_eq!(Pod { labels, index_label, ..dumped }, pod);
        pod
    }
}

/// An API with these pods at time [`now`], with an empty backoff record in memory.
pub(super) fn api(job: JobBuilder, pods: Vec<PodBuilder>) -> FakeApi {
    let mut api = FakeApi::new(job.build(), pods.into_iter().map(PodBuilder::build), now());
    api.memory.backoff = Some(crate::job::BackoffRecord::default());
    // Upstream's, so that another default changes no expectation. ([D2])
    api.settings.default_job_pod_failure_backoff = SignedDuration::from_secs(10);
    api.settings.max_job_pod_failure_backoff = SignedDuration::from_secs(600);
    api
}

/// Makes the memory await the event of a pod that it deleted.
pub(super) fn await_deletion(api: &mut FakeApi) {
    api.memory.expectations.deleted.insert(uid("unseen"));
    api.memory.expectations.since = Some(api.now);
}

/// What one sync did, in plain numbers.
#[derive(Debug)]
pub(super) struct Effects {
    /// Pods that were created.
    pub(super) created: Vec<PodDraft>,
    /// How many create calls were made.
    pub(super) create_calls: usize,
    /// Names of pods of delete calls.
    pub(super) deleted: Vec<String>,
    /// Finalizer patches: of counted pods and of deletions that strip.
    pub(super) patches: usize,
    /// Statuses in the order of their writes.
    pub(super) writes: Vec<JobStatus>,
    /// Active pods as stored after the sync.
    pub(super) active: i32,
    /// Ready pods as stored after the sync.
    pub(super) ready: i32,
    /// Terminating pods as stored after the sync.
    pub(super) terminating: i32,
    /// Succeeded as stored after the sync.
    pub(super) succeeded: i32,
    /// Failed as stored after the sync.
    pub(super) failed: i32,
    /// True conditions as stored after the sync, as `Type/Reason`.
    pub(super) conditions: Vec<String>,
    /// `completedIndexes`.
    pub(super) completed_indexes: String,
    /// `failedIndexes`.
    pub(super) failed_indexes: Option<String>,
    /// Whether the sync ended in an error.
    pub(super) is_err: bool,
    /// After how many seconds the sync is repeated.
    pub(super) requeue_seconds: Option<i64>,
    /// The steps and side effects.
    pub(super) trace: Trace,
}

/// One sync without faults, after the three checks.
pub(super) fn sync(api: &mut FakeApi) -> Effects {
    check(api);
    sync_with(api, &|_, _| None)
}

/// One sync with faults.
pub(super) fn sync_with(api: &mut FakeApi, faults: Faults<'_>) -> Effects {
    let trace = api.sync_with(faults, None);
    effects(api, trace)
}

/// The three checks on the next plan of this API.
pub(super) fn check(api: &FakeApi) {
    let pods = JobPods::of(&api.job, api.pods.values());
    let input = SyncInput {
        job: &api.job,
        pods: &pods,
        memory: &api.memory,
        groups: api.groups.as_ref(),
        seen: crate::job::Versions::default().max(api.memory.written),
        now: api.now,
        settings: &api.settings,
        counts_max: api.counts_max,
    };
    if let Err(failure) = checks::verify(&input) {
        panic!("{}", failure.message);
    }
}

fn effects(api: &FakeApi, trace: Trace) -> Effects {
    let (mut created, mut create_calls, mut deleted, mut patches) = (Vec::new(), 0, Vec::new(), 0);
    let mut writes = Vec::new();
    for (step, outcome) in &trace.steps {
        match step {
            Step::Create(draft) => {
                create_calls += 1;
                created.extend(outcome.is_ok().then(|| draft.clone()));
            }
            Step::Delete(pod, _) => deleted.push(pod.name.to_string()),
            Step::Strip(_) | Step::RemoveFinalizer(_) => patches += 1,
            Step::WriteStatus(status) | Step::WriteWholeStatus(status) => {
                writes.push((**status).clone());
            }
            Step::ConfirmJob
            | Step::ConfirmPods
            | Step::Claim(_)
            | Step::Group(_)
            | Step::FailPending(_)
            | Step::MarkFault(_) => {}
        }
    }
    let status = &api.job.status;
    Effects {
        created,
        create_calls,
        deleted,
        patches,
        writes,
        active: status.active.unwrap_or(0),
        ready: status.ready.unwrap_or(0),
        terminating: status.terminating.unwrap_or(0),
        succeeded: status.succeeded.unwrap_or(0),
        failed: status.failed.unwrap_or(0),
        conditions: conditions(status),
        completed_indexes: status.completed_indexes.clone().unwrap_or_default(),
        failed_indexes: status.failed_indexes.clone(),
        is_err: trace.sync_result.as_ref().is_some_and(|it| it.result.is_err()),
        requeue_seconds: trace
            .sync_result
            .as_ref()
            .and_then(|it| it.requeue_after)
            .map(|after| after.as_secs()),
        trace,
    }
}

impl Effects {
    /// The indexes of the created pods.
    pub(super) fn created_indexes(&self) -> Vec<u32> {
        self.created.iter().filter_map(|draft| draft.index).collect()
    }

    /// Reasons and messages of the events.
    pub(super) fn events(&self) -> Vec<String> {
        let side_effects = self.trace.side_effects.iter();
        side_effects
            .filter_map(|side_effect| match side_effect {
                SideEffect::Event(event) => Some(format!("{}: {}", event.reason, event.message)),
                _ => None,
            })
            .collect()
    }
}

/// How many pods a status lists as succeeded and as failed.
pub(super) fn listed(status: &JobStatus) -> (usize, usize) {
    let lists = status.uncounted_terminated_pods.clone().unwrap_or_default();
    (lists.succeeded.unwrap_or_default().len(), lists.failed.unwrap_or_default().len())
}

/// True conditions of a status, as `Type/Reason`.
pub(super) fn conditions(status: &JobStatus) -> Vec<String> {
    let all = status.conditions.iter().flatten().filter(|each| each.status == "True");
    all.map(|each| format!("{}/{}", each.type_, each.reason.clone().unwrap_or_default())).collect()
}

/// The message of the first condition of this type, as stored.
pub(super) fn message(api: &FakeApi, kind: &str) -> String {
    api.job.condition(kind).and_then(|it| it.message.clone()).unwrap_or_default()
}

/// The conditions of a Job that came to its end in one sync.
pub(super) fn ended(interim: &str, terminal: &str, reason: &str) -> Vec<String> {
    vec![format!("{interim}/{reason}"), format!("{terminal}/{reason}")]
}

/// The conditions of a Job that failed.
pub(super) fn failed(reason: &str) -> Vec<String> {
    ended("FailureTarget", "Failed", reason)
}

/// The conditions of a Job that is complete.
pub(super) fn complete(reason: &str) -> Vec<String> {
    ended("SuccessCriteriaMet", "Complete", reason)
}

/// A failure of the kind that is neither not-found nor a terminating namespace.
pub(super) fn outage() -> Failure {
    Failure::new(epilogue_common::outcome::FailureKind::ServerError, "the server is down")
}

/// UID of a pod by its name.
pub(super) fn uid(name: &str) -> Uid {
    Uid::from(format!("uid-{name}"))
}
