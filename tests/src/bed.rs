//! The test bed of the suites on Jobs: a namespace, our controller for it, simulated nodes, and
//! accessors for Jobs. Its methods panic, as tests do.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Resource;
use kube::api::{Api, DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::controller::{Controller, Setup};
use crate::nodes::{Bind, Options, SCRIPT_ANNOTATION, SimulatedNodes};
use crate::{Cluster, Namespace, eventually};

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const INDEX_LABEL: &str = "batch.kubernetes.io/job-completion-index";

/// Enough for quick steps of the controller on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

/// A namespace of its own, with our controller and simulated nodes for it alone.
pub struct Bed {
    namespace: Namespace,
    controller: Controller,
    nodes: SimulatedNodes,
    client: kube::Client,
}

impl Debug for Bed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bed").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// A Job under construction.
#[derive(Clone, Debug)]
pub struct JobBuilder(Value);

/// What tests read of a Job's status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobState {
    /// Pods that have not ended and are not being deleted.
    pub active: i32,
    /// Active pods that are ready.
    pub ready: Option<i32>,
    /// Pods that are being deleted.
    pub terminating: Option<i32>,
    /// Pods that counted as succeeded.
    pub succeeded: i32,
    /// Pods that counted as failed.
    pub failed: i32,
    /// Types of the True conditions, in order.
    pub conditions: Vec<String>,
    /// Indexes that succeeded, as the API writes them.
    pub completed_indexes: String,
    /// Indexes that failed, if the Job counts them.
    pub failed_indexes: Option<String>,
    /// Whether the status has a start time.
    pub started: bool,
}

/// A Job for our controller, with one pod that succeeds.
pub fn job(name: &str) -> JobBuilder {
    JobBuilder(json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "managedBy": "epilogue.dev/job-controller",
            "template": {
                "metadata": {"annotations": {}},
                "spec": {"restartPolicy": "Never",
                         "containers": [{"name": "main", "image": "none"}]},
            },
        },
    }))
}

impl From<Value> for JobBuilder {
    fn from(job: Value) -> Self {
        Self(job)
    }
}

impl JobBuilder {
    /// Sets a field of the spec; null removes it.
    #[must_use]
    pub fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["spec"][field] = value.into();
        self
    }

    /// An Indexed Job with this many pods, all at once.
    #[must_use]
    pub fn indexed(self, completions: u32) -> Self {
        self.spec("completionMode", "Indexed")
            .spec("parallelism", completions)
            .spec("completions", completions)
    }

    /// Sets a field of the metadata.
    #[must_use]
    pub fn metadata(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["metadata"][field] = value.into();
        self
    }

    /// Sets a field of its pods' spec.
    #[must_use]
    pub fn pod(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["spec"]["template"]["spec"][field] = value.into();
        self
    }

    /// Sets a field of its pods' metadata.
    #[must_use]
    pub fn pod_metadata(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["spec"]["template"]["metadata"][field] = value.into();
        self
    }

    /// Sets the script that the simulated nodes run for its pods.
    #[must_use]
    pub fn script(mut self, script: &str) -> Self {
        self.0["spec"]["template"]["metadata"]["annotations"][SCRIPT_ANNOTATION] = script.into();
        self
    }

    /// The JSON.
    pub fn raw(self) -> Value {
        self.0
    }

    /// The object.
    pub fn build(self) -> Job {
        serde_json::from_value(self.0).expect("a builder must make a Job")
    }
}

impl Bed {
    /// Starts everything for a test of `suite`, the controller with these arguments.
    pub async fn start(suite: &str, arguments: &[&str]) -> Self {
        let cluster = Cluster::of_tests(suite).expect("the suite's cluster");
        Self::on(&cluster, arguments, Bind::RoundRobin).await
    }

    /// The same in any cluster, with nodes that bind pods like this.
    pub async fn on(cluster: &Cluster, arguments: &[&str], bind: Bind) -> Self {
        let namespace = Namespace::create(cluster).await.expect("a namespace");
        let client = cluster.admin_client().await.expect("a client");
        let name = namespace.name().to_owned();
        let setup = arguments
            .iter()
            .fold(Setup::debug(&cluster.files(&name)).namespace(&name), |setup, it| {
                setup.argument(it)
            });
        let controller = Controller::start(cluster, &setup).await.expect("our controller");
        let options = Options {
            bind,
            namespace: Some(name.clone()),
            name_prefix: name.clone(),
            heartbeat: None,
            ..Options::default()
        };
        let nodes = SimulatedNodes::start(client.clone(), options).await.expect("nodes");
        Self { namespace, controller, nodes, client }
    }

    /// Stops the controller and the nodes; the namespace goes with them.
    pub async fn stop(mut self) {
        self.controller.check().expect("our controller runs to the end");
        self.controller.stop().await;
        self.nodes.stop().await.expect("the nodes end");
        self.namespace.finish().await.expect("the namespace goes");
    }

    /// Its simulated nodes.
    pub fn nodes(&self) -> &SimulatedNodes {
        &self.nodes
    }

    /// The name of its namespace.
    pub fn namespace(&self) -> &str {
        self.namespace.name()
    }

    /// A client that may do everything.
    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// The objects of a type in its namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }

    /// The controller's metrics; it has to serve them: `--metrics-bind-address=127.0.0.1:0`.
    pub async fn metrics(&self) -> String {
        self.controller.metrics().await.expect("the controller's metrics")
    }

    /// What the controller has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.controller.log()).expect("the controller's log")
    }

    /// Kills the controller by SIGKILL and restarts it at once.
    pub async fn kill_and_restart(&mut self) {
        self.controller.kill_and_restart().await.expect("the controller starts again");
    }

    /// Starts a second controller, then stops the first by SIGTERM.
    pub async fn replace_controller(&mut self) {
        let second = self.controller.start_another().expect("a second controller");
        std::mem::replace(&mut self.controller, second).stop().await;
    }

    /// Creates a Job.
    pub async fn create(&self, job: JobBuilder) -> Job {
        let job = job.build();
        self.api::<Job>().create(&PostParams::default(), &job).await.expect("the Job is created")
    }

    /// Changes fields of a Job's spec.
    pub async fn change(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        let jobs = self.api::<Job>();
        jobs.patch(name, &PatchParams::default(), &patch).await.expect("the Job is changed");
    }

    /// Deletes a Job.
    pub async fn delete(&self, name: &str, how: DeleteParams) {
        self.api::<Job>().delete(name, &how).await.expect("the Job is deleted");
    }

    /// Deletes a pod, gracefully.
    pub async fn delete_pod(&self, name: &str) {
        let pods = self.api::<Pod>();
        pods.delete(name, &DeleteParams::default()).await.expect("the pod is deleted");
    }

    /// A Job as the API shows it.
    pub async fn job(&self, name: &str) -> Job {
        self.api::<Job>().get(name).await.expect("the Job")
    }

    /// What its status says.
    pub async fn state(&self, name: &str) -> JobState {
        JobState::of(&self.job(name).await)
    }

    /// Its conditions: `type=status reason: message`.
    pub async fn conditions(&self, name: &str) -> Vec<String> {
        conditions(&self.job(name).await)
    }

    /// Its `FailureTarget` and `Failed` have one message, which begins with upstream's words and
    /// goes on with these facts.
    pub async fn failed_saying(&self, name: &str, words: &str, facts: &[&str]) {
        let conditions = self.conditions(name).await;
        let said = |kind: &str| {
            let says =
                |each: &String| each.strip_prefix(kind)?.strip_prefix("=True ").map(str::to_owned);
            conditions.iter().find_map(says)
        };
        let (Some(interim), Some(terminal)) = (said("FailureTarget"), said("Failed")) else {
            panic!("{name} has not failed: {conditions:?}");
        };
        assert_eq!(interim, terminal);
        let more = terminal.strip_prefix(words);
        let says = |more: &str| facts.iter().all(|fact| more.contains(fact));
        assert!(more.is_some_and(says), "{terminal:?} does not say {words:?} {facts:?}");
    }

    /// Waits for a state of the Job.
    pub async fn reaches(
        &self,
        name: &str,
        within: Duration,
        holds: impl Fn(&JobState) -> bool,
    ) -> JobState {
        let what =
            format!("{name} in the state awaited (log: {})", self.controller.log().display());
        eventually(&what, within, async || self.state(name).await, holds).await
    }

    /// Waits for Complete or Failed.
    pub async fn finished(&self, name: &str, within: Duration) -> JobState {
        self.reaches(name, within, JobState::is_finished).await
    }

    /// The pods with the label that the API server gives a Job's pods.
    pub async fn pods(&self, job: &str) -> Vec<Pod> {
        self.pods_with(&format!("job-name={job}")).await
    }

    /// The pods that a label selector selects.
    pub async fn pods_with(&self, selector: &str) -> Vec<Pod> {
        let selector = ListParams::default().labels(selector);
        self.api::<Pod>().list(&selector).await.expect("the pods").items
    }

    /// Waits for a state of the Job's pods.
    pub async fn pods_reach<S: Debug>(
        &self,
        job: &str,
        see: impl Fn(&[Pod]) -> S,
        holds: impl Fn(&S) -> bool,
    ) -> S {
        let what =
            format!("the pods of {job} as awaited (log: {})", self.controller.log().display());
        eventually(&what, SOON, async || see(&self.pods(job).await), holds).await
    }

    /// The values of the index label, each once, in numerical order.
    pub async fn indexes(&self, job: &str) -> Vec<String> {
        let pods = self.pods(job).await;
        let indexes: BTreeMap<u32, String> = pods
            .into_iter()
            .filter_map(|pod| pod.metadata.labels?.remove(INDEX_LABEL))
            .map(|text| (text.parse().expect("a number"), text))
            .collect();
        indexes.into_values().collect()
    }

    /// The Job has this many pods, and none has the finalizer.
    pub async fn pods_are_released(&self, job: &str, count: usize) {
        let pods = self.pods(job).await;
        assert_eq!(pods.len(), count, "pods of {job}");
        assert_eq!(pods.iter().filter(|pod| has_finalizer(pod)).count(), 0, "with the finalizer");
    }

    /// Waits until no pod of the Job has the finalizer.
    pub async fn no_pod_has_the_finalizer(&self, job: &str, within: Duration) {
        let count = async || {
            let pods = self.pods(job).await;
            pods.iter().filter(|pod| has_finalizer(pod)).count()
        };
        eventually("no pod has the finalizer", within, count, |count| *count == 0).await;
    }

    /// The events on a Job: `reason: message`.
    pub async fn events(&self, job: &str) -> Vec<String> {
        let selector = ListParams::default().fields(&format!("involvedObject.name={job}"));
        let events = self.api::<Event>().list(&selector).await.expect("the events").items;
        let line = |event: Event| {
            let (reason, message) = (event.reason, event.message);
            format!("{}: {}", reason.unwrap_or_default(), message.unwrap_or_default())
        };
        events.into_iter().map(line).collect()
    }

    /// Waits for an event on the Job that begins with this text.
    pub async fn events_say(&self, job: &str, beginning: &str) -> String {
        let what = format!("the event {beginning}");
        let begins = |all: &Vec<String>| all.iter().any(|it| it.starts_with(beginning));
        let all = eventually(&what, SOON, async || self.events(job).await, begins).await;
        let found = all.into_iter().find(|it| it.starts_with(beginning));
        found.expect("what was awaited must be there")
    }

    /// Kills the controller repeatedly, each time after it made progress, until the Job is
    /// finished. Returns the number of kills.
    pub async fn kill_until_finished(
        &mut self,
        job: &str,
        kills_max: usize,
        within: Duration,
    ) -> usize {
        let mut kills = 0;
        while kills < kills_max {
            let before = self.progress(job).await;
            let goal = before + 5 + rand::random_range(0..40);
            let progress = async || (self.progress(job).await, self.state(job).await);
            let (_, state) =
                eventually("progress after a kill", within, progress, |(progress, state)| {
                    *progress >= goal || state.is_finished()
                })
                .await;
            if state.is_finished() {
                break;
            }
            self.kill_and_restart().await;
            kills += 1;
        }
        kills
    }

    /// Pods that were created or counted.
    async fn progress(&self, job: &str) -> usize {
        let selector = ListParams::default().labels(&format!("job-name={job}"));
        let pods = self.api::<Pod>().list_metadata(&selector).await.expect("the pods").items;
        let released = |pod: &&PartialObjectMeta<Pod>| {
            !pod.metadata.finalizers.iter().flatten().any(|each| each == FINALIZER)
        };
        pods.len() + pods.iter().filter(released).count()
    }
}

impl JobState {
    /// What a Job's status says.
    pub fn of(job: &Job) -> Self {
        let status = job.status.clone().unwrap_or_default();
        let conditions = status.conditions.into_iter().flatten();
        Self {
            active: status.active.unwrap_or(0),
            ready: status.ready,
            terminating: status.terminating,
            succeeded: status.succeeded.unwrap_or(0),
            failed: status.failed.unwrap_or(0),
            conditions: conditions
                .filter(|each| each.status == "True")
                .map(|each| each.type_)
                .collect(),
            completed_indexes: status.completed_indexes.unwrap_or_default(),
            failed_indexes: status.failed_indexes,
            started: status.start_time.is_some(),
        }
    }

    /// Whether the Job is Complete or Failed.
    pub fn is_finished(&self) -> bool {
        self.conditions.iter().any(|each| each == "Complete" || each == "Failed")
    }
}

/// The conditions of a Job, in order: `type=status reason: message`.
pub fn conditions(job: &Job) -> Vec<String> {
    let all = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    all.map(|each| {
        let reason = each.reason.as_deref().unwrap_or_default();
        let message = each.message.as_deref().unwrap_or_default();
        format!("{}={} {reason}: {message}", each.type_, each.status)
    })
    .collect()
}

/// Whether a pod has the finalizer of Jobs.
pub fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|each| each == FINALIZER)
}

/// Whether a pod is being deleted and has not ended.
pub fn is_terminating(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() && !is_ended(pod)
}

/// Whether a pod is neither being deleted nor ended.
pub fn is_active(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !is_ended(pod)
}

fn is_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
