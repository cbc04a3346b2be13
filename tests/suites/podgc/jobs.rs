//! Tests a Job whose node dies for good, with either controller: the Job waits for proof, and then
//! continues.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use lab::bed::{JobState, is_terminating, job};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::controller::{Controller, Setup};
use lab::nodes::{self, SimulatedNodes};
use lab::{ControlPlane, Namespace, Options, eventually};
use serde_json::{Value, json};

use super::stage::SOON;

/// One of the Jobs, with the controller that runs it.
struct Runner {
    name: &'static str,
    jobs: Api<Job>,
    pods: Api<Pod>,
    events: Api<Event>,
}

impl Runner {
    async fn start(client: &Client, namespace: &str, name: &'static str, by: Value) -> Self {
        let jobs: Api<Job> = Api::namespaced(client.clone(), namespace);
        let ignore = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]});
        let job = job(name)
            .spec("managedBy", by)
            .spec("backoffLimit", 0)
            .spec("podReplacementPolicy", "Failed")
            .spec("podFailurePolicy", json!({"rules": [ignore]}))
            .pod("automountServiceAccountToken", false)
            .script("hang times=1; succeed");
        jobs.create(&PostParams::default(), &job.build()).await.expect("the Job is created");
        let pods = Api::namespaced(client.clone(), namespace);
        let events = Api::namespaced(client.clone(), namespace);
        let it = Self { name, jobs, pods, events };
        it.reaches(|state| state.ready == Some(1)).await;
        it
    }

    async fn reaches(&self, holds: impl Fn(&JobState) -> bool) -> JobState {
        let shown = async || JobState::of(&self.jobs.get(self.name).await.expect("the Job"));
        eventually(&format!("{} as awaited", self.name), 2 * SOON, shown, holds).await
    }

    async fn its_pods(&self) -> Vec<Pod> {
        let selector = ListParams::default().labels(&format!("job-name={}", self.name));
        self.pods.list(&selector).await.expect("the pods").items
    }

    /// The name and node of its only pod.
    async fn pod(&self) -> (String, String) {
        let pod = self.its_pods().await.pop().expect("a pod");
        let node = pod.spec.and_then(|spec| spec.node_name).expect("a node");
        (pod.metadata.name.expect("a name"), node)
    }

    async fn reported(&self, pod: &str) -> String {
        let selector = ListParams::default().fields(&format!("involvedObject.name={pod}"));
        let events = async || self.events.list(&selector).await.expect("the events").items;
        let reported =
            |all: &Vec<Event>| all.iter().any(|it| it.reason.as_deref() == Some("EndedByPodGC"));
        let all = eventually("the event on the pod", SOON, events, reported).await;
        let messages: Vec<String> = all.into_iter().filter_map(|event| event.message).collect();
        messages.join("; ")
    }
}

async fn delete_pod(runner: &Runner, pod: &str) {
    runner.pods.delete(pod, &DeleteParams::default()).await.expect("the pod is deleted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_node_dies_for_good_goes_on_and_the_reason_is_reported() {
    let controllers = format!("job-controller,{QUIET_CONTROLLERS}");
    let options = Options::unique("podgc-jobs").controller_manager(&controllers);
    let control_plane = ControlPlane::start(options).await.expect("a control plane");
    let cluster = control_plane.cluster();
    let client = control_plane.admin_client().await.expect("a client");
    let namespace = Namespace::create(cluster).await.expect("a namespace");
    let setup = Setup::debug(control_plane.dir()).argument("--pod-gc-quarantine=1s");
    let setup = setup.argument("--default-job-pod-failure-backoff=10ms");
    let mut controller = Controller::start(cluster, &setup).await.expect("our controller");
    let options = nodes::Options { nodes: 3, heartbeat: None, ..nodes::Options::default() };
    let nodes = SimulatedNodes::start(client.clone(), options).await.expect("nodes");

    let ours = json!("epilogue.dev/job-controller");
    let runners = [
        Runner::start(&client, namespace.name(), "ours", ours).await,
        Runner::start(&client, namespace.name(), "stock", json!(null)).await,
    ];
    let mut lost = Vec::new();
    for runner in &runners {
        let (pod, node) = runner.pod().await;
        nodes.vanish(&node).await.expect("the node vanishes");
        delete_pod(runner, &pod).await;
        lost.push((pod, node));
    }
    for runner in &runners {
        let state = runner.reaches(|state| state.terminating == Some(1)).await;
        assert_eq!((state.active, state.failed), (0, 0), "{}", runner.name);
        let pods = runner.its_pods().await;
        assert!(pods.len() == 1 && is_terminating(&pods[0]), "{}: waits", runner.name);
    }
    let objects: Api<Node> = Api::all(client.clone());
    for (_, node) in &lost {
        objects.delete(node, &DeleteParams::default()).await.expect("the node is deleted");
    }
    for (runner, (pod, _)) in runners.iter().zip(&lost) {
        let state = runner.reaches(JobState::is_finished).await;
        assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"], "{}", runner.name);
        assert_eq!((state.succeeded, state.failed), (1, 0), "{}: ignored", runner.name);
        let reported = runner.reported(pod).await;
        assert_eq!(reported, "Failed and deleted: node no longer exists");
    }
    controller.check().expect("our controller runs to the end");
    controller.stop().await;
    nodes.stop().await.expect("the nodes end");
    namespace.finish().await.expect("the namespace goes");
    control_plane.stop().await.expect("the control plane ends");
}
