//! The test bed of the suite `jobs`: a namespace, our controller for it, simulated nodes, and
//! what a test wants to know of a Job.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, DeleteParams, ListParams, PartialObjectMeta, PostParams};
use lab::controller::{Controller, Setup};
use lab::nodes::{Options, SCRIPT_ANNOTATION, SimulatedNodes};
use lab::{Cluster, Namespace, eventually};
use serde_json::{Value, json};

const SUITE: &str = "jobs";
const FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// Everything that a test of this suite needs.
pub(crate) struct Bed {
    namespace: Namespace,
    controller: Controller,
    nodes: SimulatedNodes,
    client: kube::Client,
}

/// A Job under construction.
pub(crate) struct JobBuilder(Value);

/// What tests read of a Job's status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JobState {
    pub(crate) active: i32,
    pub(crate) ready: Option<i32>,
    pub(crate) terminating: Option<i32>,
    pub(crate) succeeded: i32,
    pub(crate) failed: i32,
    /// Types of the True conditions, in order.
    pub(crate) conditions: Vec<String>,
    pub(crate) completed_indexes: String,
    pub(crate) failed_indexes: Option<String>,
}

/// A Job that asks for our controller, with one pod that succeeds.
pub(crate) fn job(name: &str) -> JobBuilder {
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

impl JobBuilder {
    /// Sets a field of the spec; null removes it.
    pub(crate) fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["spec"][field] = value.into();
        self
    }

    /// What the simulated nodes do with its pods.
    pub(crate) fn script(mut self, script: &str) -> Self {
        self.0["spec"]["template"]["metadata"]["annotations"][SCRIPT_ANNOTATION] = script.into();
        self
    }
}

impl Bed {
    /// A namespace of its own, with our controller and two simulated nodes for it alone.
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let cluster = Cluster::of_tests(SUITE).expect("the suite's cluster");
        let namespace = Namespace::create(&cluster).await.expect("a namespace");
        let client = cluster.admin_client().await.expect("a client");
        let name = namespace.name().to_owned();
        let setup = arguments
            .iter()
            .fold(Setup::debug(&dir(&name)).namespace(&name), |setup, it| setup.argument(it));
        let controller = Controller::start(&cluster, &setup).await.expect("our controller");
        let options = Options {
            namespace: Some(name.clone()),
            name_prefix: name.clone(),
            heartbeat: None,
            ..Options::default()
        };
        let nodes = SimulatedNodes::start(client.clone(), options).await.expect("nodes");
        Self { namespace, controller, nodes, client }
    }

    /// Ends the controller and the nodes; the namespace goes with them.
    pub(crate) async fn stop(mut self) {
        self.controller.check().expect("our controller runs to the end");
        self.controller.stop().await;
        self.nodes.stop().await.expect("the nodes end");
        self.namespace.finish().await.expect("the namespace goes");
    }

    pub(crate) async fn create(&self, job: JobBuilder) {
        let job: Job = serde_json::from_value(job.0).expect("a Job");
        self.jobs().create(&PostParams::default(), &job).await.expect("the Job is created");
    }

    pub(crate) async fn delete(&self, name: &str, how: DeleteParams) {
        self.jobs().delete(name, &how).await.expect("the Job is deleted");
    }

    pub(crate) async fn state(&self, name: &str) -> JobState {
        let job = self.jobs().get(name).await.expect("the Job");
        let status = job.status.unwrap_or_default();
        let conditions = status.conditions.into_iter().flatten();
        JobState {
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
        }
    }

    /// Waits for a state of the Job.
    pub(crate) async fn reaches(
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
    pub(crate) async fn finished(&self, name: &str, within: Duration) -> JobState {
        self.reaches(name, within, JobState::is_finished).await
    }

    /// The Job's pods.
    pub(crate) async fn pods(&self, job: &str) -> Vec<Pod> {
        let selector = ListParams::default().labels(&format!("job-name={job}"));
        self.pod_api().list(&selector).await.expect("the pods").items
    }

    /// The values of the index label, each once, in the order of numbers.
    pub(crate) async fn indexes(&self, job: &str) -> Vec<String> {
        let pods = self.pods(job).await;
        let label = "batch.kubernetes.io/job-completion-index";
        let indexes: BTreeMap<u32, String> = pods
            .into_iter()
            .filter_map(|pod| pod.metadata.labels?.remove(label))
            .map(|text| (text.parse().expect("a number"), text))
            .collect();
        indexes.into_values().collect()
    }

    /// The Job has this many pods, and none has the finalizer.
    pub(crate) async fn pods_are_released(&self, job: &str, count: usize) {
        let pods = self.pods(job).await;
        assert_eq!(pods.len(), count, "pods of {job}");
        assert_eq!(pods.iter().filter(|pod| has_finalizer(pod)).count(), 0, "with the finalizer");
    }

    pub(crate) async fn no_pod_has_the_finalizer(&self, job: &str, within: Duration) {
        let count = async || {
            let pods = self.pods(job).await;
            pods.iter().filter(|pod| has_finalizer(pod)).count()
        };
        eventually("no pod has the finalizer", within, count, |count| *count == 0).await;
    }

    /// Some event on the Job has this reason.
    pub(crate) async fn events_say(&self, job: &str, reason: &str) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), self.namespace.name());
        let selector = ListParams::default().fields(&format!("involvedObject.name={job}"));
        let reasons = async || {
            let list = events.list(&selector).await.expect("the events");
            list.items.into_iter().filter_map(|event| event.reason).collect::<Vec<_>>()
        };
        let within = Duration::from_secs(10);
        eventually("the event", within, reasons, |all| all.iter().any(|it| it == reason)).await;
    }

    /// Kills the controller again and again, each time after it made progress, until the Job is
    /// finished. How often that was.
    pub(crate) async fn kill_until_finished(
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
            self.controller.kill_and_restart().await.expect("the controller starts again");
            kills += 1;
        }
        kills
    }

    /// Pods that were created or counted.
    async fn progress(&self, job: &str) -> usize {
        let selector = ListParams::default().labels(&format!("job-name={job}"));
        let pods = self.pod_api().list_metadata(&selector).await.expect("the pods").items;
        let released = |pod: &&PartialObjectMeta<Pod>| {
            !pod.metadata.finalizers.iter().flatten().any(|each| each == FINALIZER)
        };
        pods.len() + pods.iter().filter(released).count()
    }

    fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }

    fn pod_api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.namespace.name())
    }
}

impl JobState {
    fn is_finished(&self) -> bool {
        self.conditions.iter().any(|each| each == "Complete" || each == "Failed")
    }
}

fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|each| each == FINALIZER)
}

fn dir(namespace: &str) -> PathBuf {
    lab::paths::LabDir::of_workspace().runs().join(format!("controller-{namespace}"))
}
