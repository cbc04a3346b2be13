//! Sets up one API with both controllers: ours for the Jobs of one namespace that select it,
//! kube-controller-manager's for the Jobs of another. Runs scenarios on either side.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, pin_mut};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::runtime::{WatchStreamExt as _, watcher};
use lab::bed::{JobBuilder, JobState, has_finalizer, job};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::controller::{Controller, Setup};
use lab::kubernetes::{Feature, Version};
use lab::nodes::{self, SCRIPT_ANNOTATION, SimulatedNodes};
use lab::{ControlPlane, Namespace, Options, eventually, install};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::gangs;
use super::scenarios::{End, Scenario, Step};
use super::seen::{Names, Seen};

/// Covers upstream's backoff of 10 s and its batches of 1 s, on a busy machine.
const WITHIN: Duration = Duration::from_secs(90);

/// The gates of fields that the API otherwise drops: topology constraints, and resource claims.
const FIELD_GATES: &str =
    "--feature-gates=TopologyAwareWorkloadScheduling=true,DRAWorkloadResourceClaims=true";

/// Everything that runs.
pub(crate) struct Stage {
    control_plane: ControlPlane,
    controller: Controller,
    nodes: SimulatedNodes,
    ours: Side,
    reference: Side,
}

type Shared<T> = Arc<Mutex<HashMap<String, T>>>;

/// One of the two controllers' namespaces.
pub(crate) struct Side {
    namespace: Namespace,
    managed_by: Value,
    jobs: Api<Job>,
    pods: Api<Pod>,
    /// Where there are some.
    gangs: Option<gangs::Objects>,
    /// Each pod as first seen, by UID.
    created: Shared<Value>,
    /// The last status of each Job, by name: forty waits on the API would be a load on it.
    states: Shared<JobState>,
    watches: [JoinHandle<()>; 2],
}

/// Outcome of a scenario.
pub(crate) struct Outcome {
    pub(crate) seen: Seen,
    pub(crate) took_s: f64,
}

impl Stage {
    pub(crate) async fn start() -> Self {
        Self::with(false).await
    }

    /// The same, with gang scheduling where the version has it.
    pub(crate) async fn with_gangs() -> Self {
        Self::with(Version::of_tests().has(Feature::GangScheduling)).await
    }

    async fn with(has_gangs: bool) -> Self {
        let controllers = format!("job-controller,{QUIET_CONTROLLERS}");
        let options = Options::unique("reference");
        let options = if has_gangs {
            let controllers = format!("{controllers},podgroup-protection-controller");
            let options = options.gang_scheduling().controller_manager(&controllers);
            options.api_server_flag(FIELD_GATES).controller_manager_flag(FIELD_GATES)
        } else {
            options.controller_manager(&controllers)
        };
        let control_plane = ControlPlane::start(options).await.expect("a control plane");
        let cluster = control_plane.cluster();
        let client = control_plane.admin_client().await.expect("a client");
        let side = async |managed_by: Value| {
            let namespace = Namespace::create(cluster).await.expect("a namespace");
            Side::new(namespace, &client, managed_by, has_gangs)
        };
        let ours = side(json!("epilogue.dev/job-controller")).await;
        let reference = side(json!(null)).await;
        let setup = Setup::debug(control_plane.dir()).namespace(ours.namespace.name());
        let setup = setup.argument("--check-plans");
        install::apply_rights(&client).await.expect("the rights");
        if has_gangs {
            install::apply_gang_scheduling(&client).await.expect("the rights to groups");
        }
        let controller = Controller::start_installed(cluster, &setup).await;
        let controller = controller.expect("our controller");
        if has_gangs {
            let log = async || std::fs::read_to_string(controller.log()).unwrap_or_default();
            let is_on = |log: &String| log.contains("gang scheduling is on");
            eventually("gang scheduling is on", WITHIN, log, is_on).await;
        }
        let options = nodes::Options { heartbeat: None, ..nodes::Options::default() };
        let nodes = SimulatedNodes::start(client, options).await.expect("nodes");
        Self { control_plane, controller, nodes, ours, reference }
    }

    pub(crate) fn ours(&self) -> &Side {
        &self.ours
    }

    pub(crate) fn reference(&self) -> &Side {
        &self.reference
    }

    pub(crate) async fn stop(mut self) {
        self.controller.check().expect("our controller runs to the end");
        for side in [self.ours, self.reference] {
            for watch in side.watches {
                watch.abort();
                let end = watch.await.expect_err("a watch must last to the end");
                assert!(end.is_cancelled(), "{end}");
            }
            side.namespace.finish().await.expect("the namespace goes");
        }
        self.controller.stop().await;
        self.nodes.stop().await.expect("the nodes end");
        self.control_plane.stop().await.expect("the control plane ends");
    }
}

impl Side {
    fn new(
        namespace: Namespace,
        client: &kube::Client,
        managed_by: Value,
        has_gangs: bool,
    ) -> Self {
        let gangs = has_gangs.then(|| gangs::Objects::of(client, namespace.name()));
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace.name());
        let jobs: Api<Job> = Api::namespaced(client.clone(), namespace.name());
        let (created, states) = (Shared::default(), Shared::default());
        let watches = [
            tokio::spawn(keep_first(pods.clone(), Arc::clone(&created))),
            tokio::spawn(keep_last(jobs.clone(), Arc::clone(&states))),
        ];
        Self { namespace, managed_by, jobs, pods, gangs, created, states, watches }
    }

    /// Runs a scenario to its end, and reads the outcome.
    pub(crate) async fn run(&self, scenario: &Scenario) -> Outcome {
        let name = &scenario.name;
        let (before, after): (Vec<_>, Vec<_>) =
            scenario.steps.iter().partition(|step| matches!(step, Step::StrayPod));
        for step in before {
            self.step(name, step).await;
        }
        let started = Instant::now();
        let job = self.create(name, scenario.job.clone()).await;
        for step in after {
            self.step(name, step).await;
        }
        self.end(name, &scenario.end).await;
        let took_s = started.elapsed().as_secs_f64();
        let uid = job.metadata.uid.expect("a Job has a UID");
        Outcome { seen: self.read(name, &uid).await, took_s }
    }

    async fn create(&self, name: &str, job: JobBuilder) -> Job {
        let job = job
            .spec("managedBy", self.managed_by.clone())
            .pod_metadata("labels", json!({"scenario": label(name)}))
            .pod("automountServiceAccountToken", false);
        // A typed Job has no `spec.scheduling`.
        let job: DynamicObject = serde_json::from_value(job.raw()).expect("a Job");
        let created = self.untyped().create(&PostParams::default(), &job).await.expect("the Job");
        created.try_parse().expect("must be a Job")
    }

    fn untyped(&self) -> Api<DynamicObject> {
        let client = self.jobs.clone().into_client();
        Api::namespaced_with(client, self.namespace.name(), &ApiResource::erase::<Job>(&()))
    }

    /// When a Job creates pods in this time, in seconds after the first; then deletes it.
    pub(crate) async fn pods_made(
        &self,
        name: &str,
        job: JobBuilder,
        within: Duration,
    ) -> Vec<i64> {
        self.create(name, job).await;
        tokio::time::sleep(within).await;
        self.jobs.delete(name, &DeleteParams::background()).await.expect("the Job is deleted");
        let all = self.created.lock().expect("no holder panics");
        let of_this = all.values().map(|pod| &pod["metadata"]);
        let of_this = of_this.filter(|metadata| metadata["labels"]["scenario"] == label(name));
        let created = of_this.map(|metadata| metadata["creationTimestamp"].as_str());
        let mut created: Vec<Timestamp> = created
            .map(|text| text.and_then(|text| text.parse().ok()).expect("a pod has a time"))
            .collect();
        created.sort();
        created.iter().map(|at| at.duration_since(created[0]).as_secs()).collect()
    }

    async fn step(&self, name: &str, step: &Step) {
        match step {
            Step::StrayPod => self.create_stray_pod(name).await,
            Step::Reaches(holds) => self.reaches(name, holds).await,
            Step::Settles { ready, failed } => {
                let settled = |state: &JobState| {
                    let counts = (state.active, state.ready, state.terminating, state.failed);
                    let (ready, failed) = (ready.cast_signed(), failed.cast_signed());
                    counts == (ready, Some(ready), Some(0), failed)
                };
                self.reaches(name, settled).await;
            }
            Step::Change(spec) => {
                let patch = Patch::Merge(json!({"spec": spec}));
                let params = PatchParams::default();
                self.jobs.patch(name, &params, &patch).await.expect("the Job is changed");
            }
            Step::Status(status) => {
                let patch = Patch::Merge(json!({"status": status}));
                let params = PatchParams::default();
                self.jobs.patch_status(name, &params, &patch).await.expect("the status");
            }
            Step::PodStatus(status) => {
                let has_pod = async || self.pods_of(name).await.into_iter().next();
                let pod = eventually(&self.awaited(name), WITHIN, has_pod, Option::is_some).await;
                let pod = pod.and_then(|pod| pod.metadata.name).expect("a pod has a name");
                let patch = Patch::Strategic(json!({"status": status}));
                let params = PatchParams::default();
                self.pods.patch_status(&pod, &params, &patch).await.expect("the pod's status");
            }
            Step::Keeps { seconds } => self.keeps(name, *seconds).await,
            Step::DeletePod => {
                // One that is on its way out may be gone by now.
                let mut pods = self.pods_of(name).await;
                pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
                let pod = pods.pop().expect("a pod").metadata.name.expect("a pod has a name");
                let params = DeleteParams::default();
                self.pods.delete(&pod, &params).await.expect("the pod is deleted");
            }
            Step::Delete(how) => {
                self.jobs.delete(name, how).await.expect("the Job is deleted");
            }
        }
    }

    /// Waits until a pod that failed so long ago has its finalizer, uncounted.
    async fn keeps(&self, name: &str, seconds: i64) {
        let kept = async || {
            let failed = self.state(name).failed;
            let pods = self.pods_of(name).await;
            let ended = pods.iter().filter(|pod| has_finalizer(pod)).filter_map(ended).max();
            (failed, ended.map(|ended| Timestamp::now().duration_since(ended).as_secs()))
        };
        let holds = |(failed, age): &(i32, Option<i64>)| {
            *failed == 0 && age.is_some_and(|it| it >= seconds)
        };
        eventually(&self.awaited(name), WITHIN, kept, holds).await;
    }

    async fn create_stray_pod(&self, name: &str) {
        let pod = json!({
            "metadata": {"name": format!("stray-{name}"), "labels": {"scenario": name},
                         "annotations": {SCRIPT_ANNOTATION: "hang"}},
            "spec": {"containers": [{"name": "main", "image": "none"}], "restartPolicy": "Never",
                     "automountServiceAccountToken": false},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        self.pods.create(&PostParams::default(), &pod).await.expect("the pod is created");
        // Controllers watch pods and Jobs separately: a controller that has counted a later pod has
        // seen this one.
        let later = format!("later-than-{name}");
        let job = job(&later).spec("managedBy", self.managed_by.clone());
        let job = job.pod("automountServiceAccountToken", false).build();
        self.jobs.create(&PostParams::default(), &job).await.expect("the Job");
        self.reaches(&later, JobState::is_finished).await;
    }

    async fn end(&self, name: &str, end: &End) {
        match end {
            End::Now => {}
            End::Finished => self.reaches(name, &JobState::is_finished).await,
            End::Holds(holds) => self.reaches(name, holds).await,
            End::Gone => {
                let held = async || {
                    let job = self.jobs.get_opt(name).await.expect("an answer");
                    let pods = self.pods_of(name).await;
                    (job.is_some(), pods.iter().filter(|pod| has_finalizer(pod)).count())
                };
                eventually(&self.awaited(name), WITHIN, held, |held| *held == (false, 0)).await;
            }
        }
    }

    async fn reaches(&self, name: &str, holds: impl Fn(&JobState) -> bool) {
        eventually(&self.awaited(name), WITHIN, async || self.state(name), holds).await;
    }

    fn state(&self, name: &str) -> JobState {
        let states = self.states.lock().expect("no holder panics");
        states.get(name).cloned().unwrap_or_default()
    }

    fn awaited(&self, name: &str) -> String {
        format!("what {name} waits for where managedBy is {}", self.managed_by)
    }

    async fn read(&self, name: &str, uid: &str) -> Seen {
        // Either controller may show a pod's end in the status before it removes the pod's
        // finalizer.
        let held = async || {
            let ended = |pod: &Pod| has_finalizer(pod) && is_terminal(pod);
            self.pods_of(name).await.iter().filter(|pod| ended(pod)).count()
        };
        eventually("terminal pods are released", WITHIN, held, |held| *held == 0).await;
        let job = self.jobs.get_opt(name).await.expect("an answer");
        let status = job.map_or(Value::Null, |job| json!(job.status));
        let mut left: Vec<Value> = self.pods_of(name).await.iter().map(|pod| json!(pod)).collect();
        left.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        // A remaining pod was written earlier; the watch may be behind.
        let uids = || left.iter().map(|pod| pod["metadata"]["uid"].to_string());
        let missing = async || {
            let created = self.created.lock().expect("no holder panics");
            uids().filter(|uid| !created.contains_key(uid)).collect::<Vec<_>>()
        };
        eventually("pods in the watch", WITHIN, missing, Vec::is_empty).await;
        let of_this = |pod: &&Value| pod["metadata"]["labels"]["scenario"] == label(name);
        let created: Vec<Value> = {
            let all = self.created.lock().expect("no holder panics");
            all.values().filter(of_this).cloned().collect()
        };
        let mut names = Names::default();
        names.add(self.namespace.name(), "NAMESPACE");
        names.add(uid, "JOB-UID");
        for metadata in created.iter().map(|pod| &pod["metadata"]) {
            if let (Some(name), Some(stem)) =
                (metadata["name"].as_str(), metadata["generateName"].as_str())
            {
                names.add(name, &format!("POD OF {stem}"));
            }
        }
        let made = self.groups_of(name, uid, &mut names).await;
        Seen::new(&status, &created, &left, &made, &names)
    }

    /// The Workloads and PodGroups of a Job, once its gang has its size.
    async fn groups_of(&self, name: &str, uid: &str, names: &mut Names) -> Vec<Value> {
        let Some(gangs) = &self.gangs else { return Vec::new() };
        let made = async || {
            let job = self.untyped().get_opt(name).await.expect("an answer");
            let (job, mut made) = (json!(job), gangs.made_for(uid).await);
            gangs::as_asked(&job, &mut made);
            (job, made)
        };
        let are_sized = |(job, made): &(Value, _)| gangs::are_sized(job, made);
        let (_, made) = eventually(&self.awaited(name), WITHIN, made, are_sized).await;
        gangs::name(name, &made, names);
        made.into_iter().flatten().collect()
    }

    async fn pods_of(&self, name: &str) -> Vec<Pod> {
        let selector = ListParams::default().labels(&format!("scenario={}", label(name)));
        self.pods.list(&selector).await.expect("the pods").items
    }
}

fn is_terminal(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// When the container of a failed pod ended.
fn ended(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref().filter(|it| it.phase.as_deref() == Some("Failed"))?;
    let container = status.container_statuses.as_ref()?.first()?;
    Some(container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)
}

/// A label's value holds what a name does, up to 63 characters.
fn label(name: &str) -> &str {
    &name[..name.len().min(63)]
}

/// Keeps each pod as first seen, which is as it was created.
async fn keep_first(pods: Api<Pod>, created: Shared<Value>) {
    let events = watcher(pods, watcher::Config::default()).default_backoff().applied_objects();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let Ok(pod) = event else { continue };
        let pod = json!(pod);
        let uid = pod["metadata"]["uid"].to_string();
        created.lock().expect("no holder panics").entry(uid).or_insert(pod);
    }
}

async fn keep_last(jobs: Api<Job>, states: Shared<JobState>) {
    let events = watcher(jobs, watcher::Config::default()).default_backoff().applied_objects();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let Ok(job) = event else { continue };
        let name = job.metadata.name.clone().expect("a Job has a name");
        states.lock().expect("no holder panics").insert(name, JobState::of(&job));
    }
}
