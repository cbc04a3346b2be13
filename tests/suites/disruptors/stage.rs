//! Sets up an API with upstream's scheduler, taint eviction and budgets, our controller, and
//! simulated nodes that only run what was scheduled to them.

use std::path::Path;
use std::time::Duration;

use epilogue_common::pod_end::PodEnds;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{
    Api, DeleteParams, EvictParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams,
};
use lab::bed::{JobBuilder, JobState, has_finalizer, job};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::controller::{Controller, Setup};
use lab::nodes::{self, Bind, SimulatedNodes};
use lab::{ControlPlane, Namespace, Options, eventually, install, kubeconfig};
use serde_json::{Value, json};

use super::pod_log::PodLog;

/// Many steps of several programs, on a busy machine.
pub(crate) const LATER: Duration = Duration::from_mins(2);
/// What each simulated node can allocate.
pub(crate) const NODE_CPUS: usize = 64;
const NODES: usize = 9;
/// The Job controller runs the Jobs that are not ours. The taint eviction finds pods by an index that only the node lifecycle controller creates.
const DISRUPTORS: &str =
    "taint-eviction-controller,node-lifecycle-controller,disruption-controller,job-controller";
const URGENT: &str = "urgent";

/// Everything that runs.
pub(crate) struct Stage {
    control_plane: ControlPlane,
    controller: Controller,
    namespace: Namespace,
    objects: Api<Node>,
    budgets: Api<PodDisruptionBudget>,
    jobs: Api<Job>,
    pub(crate) nodes: SimulatedNodes,
    /// By a client that reports a refusal at once.
    pub(crate) pods: Api<Pod>,
    pub(crate) log: PodLog,
    events: Api<Event>,
}

/// Two Jobs of one pod each, which hangs until a disruptor ends it; the next pod succeeds.
pub(crate) struct Pair {
    /// Ignores pods with DisruptionTarget, and fails with any other failure.
    pub(crate) ignores: String,
    /// Counts them.
    pub(crate) counts: String,
}

/// The name of a budget for the pods of some Jobs.
pub(crate) struct Budget(String);

/// Such a Job ignores disruptions, has no other try, and replaces a pod after its end.
pub(crate) fn ignoring(job: JobBuilder) -> JobBuilder {
    let rule = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]});
    job.spec("podFailurePolicy", json!({"rules": [rule]}))
        .spec("podReplacementPolicy", "Failed")
        .spec("backoffLimit", 0)
        .pod("automountServiceAccountToken", false)
}

/// Whether the API refuses an eviction because of a budget.
pub(crate) fn is_out_of_budget(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut reasons = causes.map(|cause| cause.reason.as_str());
    status.code == 429 && reasons.any(|reason| reason == "DisruptionBudget")
}

impl Stage {
    pub(crate) async fn start() -> Self {
        Self::on(Self::control_plane(Options::unique("disruptors"), "").await).await
    }

    /// With rights to Workloads and PodGroups, and one more controller of upstream's.
    pub(crate) async fn with_gangs(options: Options, more: &str) -> Self {
        let control_plane = Self::control_plane(options, more).await;
        let client = control_plane.admin_client().await.expect("a client");
        install::apply_rights(&client).await.expect("the rights");
        install::apply_gang_scheduling(&client).await.expect("the rights to groups");
        let stage = Self::on(control_plane).await;
        let log = async || std::fs::read_to_string(stage.controller.log()).unwrap_or_default();
        eventually("gang scheduling is on", LATER, log, |log| {
            log.contains("gang scheduling is on")
        })
        .await;
        stage
    }

    async fn control_plane(options: Options, more: &str) -> ControlPlane {
        let controllers = format!("{DISRUPTORS},{QUIET_CONTROLLERS},{more}");
        let options = options.controller_manager(controllers.trim_end_matches(',')).scheduler();
        ControlPlane::start(options).await.expect("a control plane")
    }

    async fn on(control_plane: ControlPlane) -> Self {
        let cluster = control_plane.cluster();
        let namespace = Namespace::create(cluster).await.expect("a namespace");
        let path = control_plane.kubeconfig_path();
        // A refused eviction must not be retried behind the test's back.
        let kubeconfig = kubeconfig::read(path).expect("the administrator's kubeconfig");
        let client = kubeconfig::client_without_retries(kubeconfig, path).await.expect("a client");
        let setup = Setup::debug(control_plane.dir()).argument("--check-plans");
        let setup = setup.argument("--pod-gc-quarantine=1s");
        let setup = setup.argument("--default-job-pod-failure-backoff=10ms");
        let controller = Controller::start(cluster, &setup).await.expect("our controller");
        let options =
            nodes::Options { nodes: NODES, bind: Bind::Never, ..nodes::Options::default() };
        let nodes = SimulatedNodes::start(client.clone(), options).await.expect("nodes");
        create_priority(&client).await;
        let name = namespace.name();
        let pods: Api<Pod> = Api::namespaced(client.clone(), name);
        Self {
            log: PodLog::of_all(pods.clone()),
            events: Api::namespaced(client.clone(), name),
            jobs: Api::namespaced(client.clone(), name),
            budgets: Api::namespaced(client.clone(), name),
            objects: Api::all(client),
            control_plane,
            controller,
            namespace,
            nodes,
            pods,
        }
    }

    pub(crate) async fn stop(mut self) {
        self.controller.check().expect("our controller runs to the end");
        self.controller.stop().await;
        self.nodes.stop().await.expect("the nodes end");
        self.namespace.finish().await.expect("the namespace goes");
        self.control_plane.stop().await.expect("the control plane ends");
    }

    /// Makes some nodes the only ones for a story's pods. Returns their names.
    pub(crate) async fn place<const N: usize>(
        &self,
        place: &str,
        nodes: [usize; N],
    ) -> [String; N] {
        let names = nodes.map(|node| self.nodes.names()[node].clone());
        for name in &names {
            self.change_node(name, json!({"metadata": {"labels": {"place": place}}})).await;
        }
        names
    }

    pub(crate) async fn change_node(&self, node: &str, patch: Value) {
        let params = PatchParams::default();
        let changed = self.objects.patch(node, &params, &Patch::Merge(patch)).await;
        changed.expect("the node is changed");
    }

    /// Lets no pod be scheduled to the node, or takes that back.
    pub(crate) async fn cordon(&self, node: &str, unschedulable: bool) {
        self.change_node(node, json!({"spec": {"unschedulable": unschedulable}})).await;
    }

    /// Removes all nodes that are left, machines and objects.
    pub(crate) async fn remove_nodes(&self) {
        for node in self.nodes.names() {
            if self.objects.get_opt(node).await.expect("an answer").is_some() {
                self.nodes.vanish(node).await.expect("the node vanishes");
                self.delete_node(node).await;
            }
        }
    }

    /// The name of its namespace.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.name()
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        self.control_plane.kubeconfig_path()
    }

    pub(crate) async fn delete_node(&self, node: &str) {
        let deleted = self.objects.delete(node, &DeleteParams::default()).await;
        deleted.expect("the node is deleted");
    }

    pub(crate) async fn create(&self, job: JobBuilder) {
        self.jobs.create(&PostParams::default(), &job.build()).await.expect("the Job");
    }

    /// A bare pod of a higher priority than any other.
    pub(crate) async fn create_urgent_pod(&self, name: &str, place: &str, cpus: usize) {
        let pod = json!({
            "metadata": {"name": name,
                         "annotations": {nodes::SCRIPT_ANNOTATION: "hang"}},
            "spec": {"priorityClassName": URGENT, "nodeSelector": {"place": place},
                     "automountServiceAccountToken": false,
                     "containers": [{"name": "main", "image": "none", "resources": cpu(cpus)}]},
        });
        let pod = serde_json::from_value(pod).expect("a pod");
        self.pods.create(&PostParams::default(), &pod).await.expect("the pod is created");
        let runs = async || self.pods.get(name).await.expect("the pod").status;
        eventually("the urgent pod runs", LATER, runs, |status| {
            status.as_ref().is_some_and(|it| it.phase.as_deref() == Some("Running"))
        })
        .await;
    }

    pub(crate) async fn evict(&self, pod: &str) -> Result<(), kube::Error> {
        self.pods.evict(pod, &EvictParams::default()).await.map(drop)
    }

    pub(crate) async fn state(&self, job: &str) -> JobState {
        JobState::of(&self.jobs.get(job).await.expect("the Job"))
    }

    /// Waits for a state of the Job.
    pub(crate) async fn reaches(&self, job: &str, holds: impl Fn(&JobState) -> bool) -> JobState {
        let what = format!("{job} as awaited (log: {})", self.controller.log().display());
        eventually(&what, LATER, async || self.state(job).await, holds).await
    }

    async fn pods_of(&self, job: &str) -> Vec<Pod> {
        let selector = ListParams::default().labels(&format!("job-name={job}"));
        self.pods.list(&selector).await.expect("the pods").items
    }

    /// The name of the Job's only pod.
    pub(crate) async fn only_pod(&self, job: &str) -> String {
        let mut pods = self.pods_of(job).await;
        assert_eq!(pods.len(), 1, "pods of {job}");
        pods.remove(0).metadata.name.expect("a pod has a name")
    }

    /// Waits until an event of the Job says how many of its pods a cause ended. Returns what the
    /// event says.
    pub(crate) async fn is_reported(&self, job: &str, cause: &str, count: i32) -> PodEnds {
        let selector = ListParams::default().fields(&format!("involvedObject.name={job}"));
        let reported = async || {
            let events = self.events.list(&selector).await.expect("the events").items;
            let reported = events.into_iter().filter_map(|event| {
                let ends = PodEnds::read(&event.metadata.annotations.unwrap_or_default())?;
                Some((event.reason.unwrap_or_default(), event.count.unwrap_or_default(), ends))
            });
            reported.collect::<Vec<_>>()
        };
        let what = format!("{job}: the event of {count} ends by {cause}");
        let mut reported = eventually(&what, LATER, reported, |reported| {
            reported.iter().map(|(_, count, _)| count).sum::<i32>() >= count
        })
        .await;
        assert_eq!(reported.len(), 1, "{job}: {reported:?}");
        let (reason, reported, ends) = reported.remove(0);
        assert_eq!((&*reason, reported, &*ends.cause), ("PodDisrupted", count, cause), "{ends:?}");
        ends
    }

    /// Waits until no pod of the Job has the finalizer.
    pub(crate) async fn no_pod_has_the_finalizer(&self, job: &str, within: Duration) {
        let held = async || self.pods_of(job).await.iter().filter(|pod| has_finalizer(pod)).count();
        eventually("no pod has the finalizer", within, held, |held| *held == 0).await;
    }
}

impl Pair {
    /// Creates the Jobs of this name on the nodes of this name; returns when both pods are ready.
    pub(crate) async fn start(stage: &Stage, name: &str, cpus: usize) -> Self {
        let (ignores, counts) = (format!("{name}-ignores"), format!("{name}-counts"));
        let containers = json!([{"name": "main", "image": "none", "resources": cpu(cpus)}]);
        for job in [ignoring(job(&ignores)), job(&counts)] {
            let job = job
                .pod("nodeSelector", json!({"place": name}))
                .pod("automountServiceAccountToken", false)
                .pod("containers", containers.clone())
                .pod_metadata("labels", json!({"budget": name}))
                .script("hang on-term=143 after=2s times=1; succeed");
            stage.create(job).await;
        }
        let pair = Self { ignores, counts };
        for name in pair.names() {
            stage.reaches(name, |state| state.ready == Some(1)).await;
        }
        pair
    }

    pub(crate) fn names(&self) -> [&str; 2] {
        [&self.ignores, &self.counts]
    }
}

impl Budget {
    /// For the pods that have its name as their label `budget`.
    pub(crate) async fn create(stage: &Stage, name: &str, available_min: u32) -> Self {
        let selector = json!({"matchLabels": {"budget": name}});
        let budget = json!({
            "metadata": {"name": name},
            "spec": {"minAvailable": available_min, "selector": selector},
        });
        let budget = serde_json::from_value(budget).expect("a budget");
        stage.budgets.create(&PostParams::default(), &budget).await.expect("the budget");
        Self(name.to_owned())
    }

    pub(crate) async fn change(&self, stage: &Stage, available_min: u32) {
        let patch = Patch::Merge(json!({"spec": {"minAvailable": available_min}}));
        let changed = stage.budgets.patch(&self.0, &PatchParams::default(), &patch).await;
        changed.expect("the budget is changed");
    }

    pub(crate) async fn delete(&self, stage: &Stage) {
        let deleted = stage.budgets.delete(&self.0, &DeleteParams::default()).await;
        deleted.expect("the budget is deleted");
    }

    /// Waits until the disruption controller has counted the pods, and allows so many evictions.
    pub(crate) async fn allows(&self, stage: &Stage, disruptions: i32) {
        let seen = async || {
            let budget = stage.budgets.get(&self.0).await.expect("the budget");
            let status = budget.status.unwrap_or_default();
            let is_current = status.observed_generation == budget.metadata.generation;
            (is_current, status.current_healthy, status.disruptions_allowed)
        };
        let allows = |seen: &Seen| *seen == (true, Some(2), Some(disruptions));
        eventually("the budget is counted", LATER, seen, allows).await;
    }
}

/// Whether the status is current, the healthy pods, and the disruptions that are allowed.
type Seen = (bool, Option<i32>, Option<i32>);

pub(crate) fn cpu(cpus: usize) -> Value {
    json!({"requests": {"cpu": cpus.to_string()}})
}

async fn create_priority(client: &kube::Client) {
    let class = PriorityClass {
        metadata: ObjectMeta { name: Some(URGENT.to_owned()), ..ObjectMeta::default() },
        value: Some(1_000_000),
        ..PriorityClass::default()
    };
    let classes: Api<PriorityClass> = Api::all(client.clone());
    classes.create(&PostParams::default(), &class).await.expect("the priority class");
}
