//! Sets up an API of its own with our controller, simulated nodes, and a kube-controller-manager
//! whose Job controller starts later.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lab::bed::{JobBuilder, JobState, SOON, has_finalizer, job};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::controller::{Controller, Setup};
use lab::nodes::{self, SimulatedNodes};
use lab::paths::program;
use lab::{ControlPlane, Namespace, Options, eventually};
use serde_json::{Value, json};
use tokio::process::Command;

use super::jobs::{KINDS, Kind, OF_EACH, each, name};
use super::ledger::Ledger;

/// Covers upstream's backoff of 10 s and its batches of 1 s, on a busy machine.
pub(crate) const LATER: Duration = Duration::from_mins(3);

/// Everything that runs.
pub(crate) struct Stage {
    control_plane: ControlPlane,
    controller: Option<Controller>,
    nodes: SimulatedNodes,
    namespace: Namespace,
    jobs: Api<Job>,
    pods: Api<Pod>,
    ledger: Ledger,
}

impl Stage {
    /// Starts everything, our controller with these arguments.
    pub(crate) async fn start(arguments: &[&str]) -> Self {
        let mut stage = Self::set().await;
        stage.start_controller(arguments).await;
        stage
    }

    /// Starts everything but a controller of Jobs.
    pub(crate) async fn set() -> Self {
        let options = Options::unique("leave").controller_manager(QUIET_CONTROLLERS);
        let control_plane = ControlPlane::start(options).await.expect("a control plane");
        let cluster = control_plane.cluster();
        let client = control_plane.admin_client().await.expect("a client");
        let namespace = Namespace::create(cluster).await.expect("a namespace");
        let jobs: Api<Job> = Api::namespaced(client.clone(), namespace.name());
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace.name());
        let options = nodes::Options { heartbeat: None, ..nodes::Options::default() };
        let nodes = SimulatedNodes::start(client, options).await.expect("nodes");
        let ledger = Ledger::of(pods.clone());
        Self { control_plane, controller: None, nodes, namespace, jobs, pods, ledger }
    }

    /// Starts our controller with these arguments.
    pub(crate) async fn start_controller(&mut self, arguments: &[&str]) {
        let setup = Setup::debug(self.control_plane.dir()).namespace(self.namespace.name());
        let setup = setup.argument("--check-plans");
        let setup = arguments.iter().fold(setup, |setup, it| setup.argument(it));
        let controller = Controller::start(self.control_plane.cluster(), &setup).await;
        self.controller = Some(controller.expect("our controller"));
    }

    pub(crate) async fn stop(self) {
        assert!(self.controller.is_none(), "the test has to stop it");
        self.namespace.finish().await.expect("the namespace goes");
        self.nodes.stop().await.expect("the nodes end");
        self.control_plane.stop().await.expect("the control plane ends");
    }

    /// Stops our controller, as a scale-down does.
    pub(crate) async fn stop_controller(&mut self) {
        let mut controller = self.controller.take().expect("it runs");
        controller.check().expect("our controller runs to the end");
        controller.stop().await;
    }

    /// Starts the Job controller of kube-controller-manager.
    pub(crate) fn start_job_controller(&mut self) {
        self.control_plane.start_controllers("job-controller").expect("it starts");
    }

    /// Kills kube-controller-manager, and starts it again without its Job controller.
    pub(crate) async fn kill_job_controller(&mut self) {
        self.control_plane.kill_controllers().await;
        self.control_plane.start_controllers(QUIET_CONTROLLERS).expect("it starts");
    }

    pub(crate) async fn create(&self, job: JobBuilder) {
        self.jobs.create(&PostParams::default(), &job.build()).await.expect("the Job");
    }

    /// Runs `kubectl epilogue leave`; returns its exit code and its JSON.
    pub(crate) async fn leave(&self, arguments: &[&str]) -> (i32, Value) {
        let output = Command::new(program("kubectl-epilogue"))
            .args(["leave", "-o", "json", "--kubeconfig"])
            .arg(self.control_plane.kubeconfig_path())
            .args(arguments)
            .output()
            .await
            .expect("the program must be startable");
        let error = String::from_utf8_lossy(&output.stderr);
        println!("leave {arguments:?}: {error}");
        let answer = serde_json::from_slice(&output.stdout);
        let answer = answer.unwrap_or_else(|_| panic!("no JSON: {error}"));
        (output.status.code().expect("it exits"), answer)
    }

    /// How the answer names a pod.
    pub(crate) fn pod(&self, name: &str) -> String {
        format!("pod/{}/{name}", self.namespace.name())
    }

    async fn states(&self) -> BTreeMap<String, JobState> {
        let jobs = self.jobs.list(&ListParams::default()).await.expect("the Jobs").items;
        let state = |job: Job| (job.metadata.name.clone().unwrap_or_default(), JobState::of(&job));
        jobs.into_iter().map(state).collect()
    }

    /// How many Jobs are so.
    pub(crate) async fn count(&self, holds: impl Fn(&JobState) -> bool) -> usize {
        self.states().await.values().filter(|state| holds(state)).count()
    }

    /// Waits until each Job is so.
    pub(crate) async fn each_reaches(&self, what: &str, holds: impl Fn(&Kind, &JobState) -> bool) {
        let missing = async || {
            let states = self.states().await;
            let kind = |name: &str| KINDS.iter().find(|kind| name.starts_with(kind.name));
            let missing = states
                .into_iter()
                .filter(|(name, state)| kind(name).is_some_and(|kind| !holds(kind, state)));
            missing.collect::<Vec<_>>()
        };
        eventually(what, LATER, missing, Vec::is_empty).await;
    }

    /// Waits until each Job is Complete or Failed.
    pub(crate) async fn each_finishes(&self, within: Duration) {
        let open = async || {
            let states = self.states().await.into_iter();
            states.filter(|(_, state)| !state.is_finished()).collect::<Vec<_>>()
        };
        eventually("all Jobs are finished", within, open, Vec::is_empty).await;
    }

    /// Waits until this many pods have ended.
    pub(crate) async fn some_pods_ended(&self, count: usize) {
        let ended = async || self.ledger.len();
        eventually("pods end", LATER, ended, |ended| *ended >= count).await;
    }

    /// Deletes the pods of one kind of Jobs, and the Jobs of another.
    pub(crate) async fn disturb(&self) {
        let pods = self.pods.list(&ListParams::default()).await.expect("the pods").items;
        for pod in pods {
            let name = pod.metadata.name.unwrap_or_default();
            if name.starts_with("terminating-") {
                self.pods.delete(&name, &DeleteParams::default()).await.expect("it is deleted");
            }
        }
        let how = [DeleteParams::background(), DeleteParams::foreground()];
        for number in 0..OF_EACH {
            let name = name("deleted", number);
            self.jobs.delete(&name, &how[number % 2]).await.expect("it is deleted");
        }
    }

    /// Deletes the Jobs of a kind.
    pub(crate) async fn delete(&self, kind: &str) {
        for state in self.states().await.into_keys().filter(|name| name.starts_with(kind)) {
            self.jobs.delete(&state, &DeleteParams::background()).await.expect("it is deleted");
        }
    }

    /// Resumes the Jobs of a kind.
    pub(crate) async fn resume(&self, kind: &Kind) {
        for number in 0..OF_EACH {
            let patch = Patch::Merge(json!({"spec": {"suspend": false}}));
            let name = name(kind.name, number);
            self.jobs.patch(&name, &PatchParams::default(), &patch).await.expect("it is resumed");
        }
    }

    /// The counters of each Job are those of the pods that ended.
    pub(crate) async fn counts_are_exact(&self) {
        let wrong = async || {
            let states = self.states().await;
            let counted = states.into_iter().filter(|(name, _)| !name.starts_with("deleted"));
            let compared = counted.map(|(name, state)| {
                let ledger = self.ledger.totals(&name);
                (name, (state.succeeded, state.failed), ledger)
            });
            compared.filter(|(_, status, ledger)| status != ledger).collect::<Vec<_>>()
        };
        eventually("status and ledger agree", SOON, wrong, Vec::is_empty).await;
    }

    /// Each Job has counted what its script does.
    pub(crate) async fn totals_are_as_expected(&self, selects: impl Fn(&Kind) -> bool) {
        let states = self.states().await;
        let steady = self.controller.is_some();
        each(async |kind, number| {
            let Some([of_steady, of_brisk]) = kind.totals.filter(|_| selects(kind)) else { return };
            let name = name(kind.name, number);
            let state = &states[&name];
            let expected = if steady { of_steady } else { of_brisk };
            assert_eq!((state.succeeded, state.failed), expected, "{name}: {state:?}");
        })
        .await;
    }

    /// A Job that names our controller, which does not run any more.
    pub(crate) async fn create_job_without_controller(&self, name: &str) -> String {
        self.create(job(name).spec("managedBy", super::OURS)).await;
        name.to_owned()
    }

    /// Creates a terminal pod with the finalizer, of a Job or of one that is gone.
    pub(crate) async fn planted(&self, name: &str, job: &str, gone: Option<&str>) {
        let uid = match gone {
            Some(uid) => uid.to_owned(),
            None => self.jobs.get(job).await.expect("the Job").metadata.uid.expect("a UID"),
        };
        let pod = json!({
            "metadata": {"name": name, "finalizers": ["batch.kubernetes.io/job-tracking"],
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job,
                                     "uid": uid, "controller": true}]},
            "spec": {"containers": [{"name": "main", "image": "none"}], "restartPolicy": "Never",
                     "automountServiceAccountToken": false},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        self.pods.create(&PostParams::default(), &pod).await.expect("the pod");
    }

    /// Waits until just these pods have the finalizer.
    pub(crate) async fn reaches_held(&self, names: &[&str]) {
        let held = async || {
            let pods = self.pods.list(&ListParams::default()).await.expect("the pods").items;
            let held = pods.into_iter().filter(has_finalizer);
            let mut held: Vec<_> = held.filter_map(|pod| pod.metadata.name).collect();
            held.sort();
            held
        };
        eventually("the pods with the finalizer", SOON, held, |held| held == names).await;
    }
}

/// The names under a code of the answer.
pub(crate) fn names(answer: &Value, code: &str) -> Vec<String> {
    let parts = [&answer["left"], &answer["stays"]];
    let all = parts.into_iter().filter_map(Value::as_array).flatten();
    let found = all.filter(|each| each["code"] == code);
    let names = found.flat_map(|each| each["names"].as_array().cloned().unwrap_or_default());
    names.map(|name| name.as_str().expect("text").to_owned()).collect()
}
