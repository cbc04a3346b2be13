//! Tests that `explain` and `doctor` name what keeps the pods of a Job from starting or from going
//! on a real kubelet with a real scheduler, and that a container's OOM kill is still known when
//! pods and node are gone; needs `--all`.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lab::control_plane::flags::ALL_CONTROLLERS;
use lab::controller::{Controller, Setup};
use lab::paths::program;
use lab::vm::agent::Install;
use lab::vm::kit::CONTAINER_IMAGE;
use lab::vm::scene::NAMESPACE;
use lab::vm::{KubeletConfig, Scene, Setting};
use lab::{Options, eventually};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::stage;
use crate::world::{RUNNING_WITHIN, kit};

const NODE: &str = "waits";
/// Finalizer of a pod that stays.
const HELD: &str = "example.com/hold";
/// `doctor` reports waits of more than five minutes.
const LATER: SignedDuration = SignedDuration::from_mins(6);
/// What the node does not have.
const MISSING: &str = "not-there";

struct Story {
    scene: Scene,
    controller: Controller,
    jobs: Api<Job>,
    pods: Api<Pod>,
}

impl Story {
    /// That of the last test, or a new one.
    async fn of(kept: &mut Option<Self>) -> Self {
        match kept.take() {
            Some(story) => story,
            None => Self::begin().await,
        }
    }

    async fn begin() -> Self {
        let setting = Setting {
            options: Options::unique(NODE).controller_manager(ALL_CONTROLLERS).scheduler(),
            node: NODE,
            kubelet: &KubeletConfig::default(),
            agent: Some((Install::Host, Vec::new())),
            commands: Vec::new(),
        };
        let scene = Scene::set(&kit().await, setting).await;
        let scene = scene.unwrap_or_else(|error| panic!("{error:#}"));
        let setup =
            Setup::debug(&scene.control_plane.dir().join("controller")).argument("--check-plans");
        let controller = Controller::start(scene.control_plane.cluster(), &setup).await;
        let controller = controller.expect("our controller starts");
        Self { jobs: scene.api(), pods: scene.api(), scene, controller }
    }

    async fn create(&self, job: Value) {
        let job: Job = serde_json::from_value(job).expect("a Job");
        self.jobs.create(&PostParams::default(), &job).await.expect("the Job is created");
    }

    /// What the plugin prints.
    async fn plugin(&self, arguments: &[&str]) -> String {
        let output = Command::new(program("kubectl-epilogue"))
            .args(arguments)
            .args(["--controller-lease=none", "--namespace", NAMESPACE, "--kubeconfig"])
            .arg(self.scene.control_plane.cluster().kubeconfig_path())
            .output()
            .await
            .expect("the program starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// `explain` comes to say all of this about the Job.
    async fn explains(&self, job: &str, words: &[&str]) -> String {
        let explained = async || self.plugin(&["explain", job]).await;
        let says = |text: &String| words.iter().all(|each| text.contains(each));
        let what = format!("explain says of {job}: {words:?}");
        eventually(&what, RUNNING_WITHIN, explained, says).await
    }

    /// The Job's only pod.
    async fn pod_of(&self, job: &str) -> Option<Pod> {
        let of_job = ListParams::default().labels(&format!("job-name={job}"));
        self.pods.list(&of_job).await.expect("the pods").items.pop()
    }

    async fn fails(&self, job: &str) {
        let failed = async || {
            let status = self.jobs.get(job).await.expect("the Job").status.unwrap_or_default();
            status.conditions.unwrap_or_default().iter().any(|it| it.type_ == "Failed")
        };
        eventually(&format!("{job} fails"), RUNNING_WITHIN, failed, |failed| *failed).await;
    }

    /// Removes all Jobs and pods, for the next story.
    async fn clear(&self) {
        let (now, all) = (DeleteParams::background().grace_period(0), ListParams::default());
        self.jobs.delete_collection(&now, &all).await.expect("the Jobs are deleted");
        let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        for pod in self.pods.list(&all).await.expect("the pods").items {
            let name = pod.metadata.name.unwrap_or_default();
            // A pod may be gone by now.
            let _ = self.pods.patch(&name, &PatchParams::default(), &none).await;
        }
        self.pods_are_gone().await;
    }

    async fn pods_are_gone(&self) {
        let (now, all) = (DeleteParams::default().grace_period(0), ListParams::default());
        self.pods.delete_collection(&now, &all).await.expect("the pods are deleted");
        let left = async || self.pods.list(&all).await.expect("the pods").items.len();
        eventually("the pods are gone", RUNNING_WITHIN, left, |left| *left == 0).await;
    }

    async fn end(self) {
        self.controller.stop().await;
        self.scene.strike().await.expect("the scene ends");
    }
}

/// A Job of our controller, whose only container has these fields.
fn job(name: &str, container: Value) -> Value {
    let mut main = json!({
        "name": "main", "image": CONTAINER_IMAGE, "imagePullPolicy": "Never", "args": ["pause"],
    });
    let Value::Object(fields) = container else { panic!("{container}: expected an object") };
    for (field, value) in fields {
        main[field] = value;
    }
    json!({
        "metadata": {"name": name},
        "spec": {
            "managedBy": "epilogue.dev/job-controller",
            "template": {"spec": {
                "restartPolicy": "Never", "hostNetwork": true, "containers": [main],
                "automountServiceAccountToken": false, "enableServiceLinks": false,
            }},
        },
    })
}

/// The Job with another value at this place.
fn with(mut job: Value, path: &[&str], value: Value) -> Value {
    let place = path.iter().fold(&mut job, |place, field| &mut place[*field]);
    *place = value;
    job
}

const POD: [&str; 3] = ["spec", "template", "spec"];

fn with_pod(job: Value, field: &str, value: Value) -> Value {
    with(job, &[POD[0], POD[1], POD[2], field], value)
}

/// A Job that waits, what `explain` says about that, and the code.
type Waiting = (Value, &'static [&'static str], &'static str);

/// Jobs whose pods do not start, each for its own reason.
fn waiting() -> Vec<Waiting> {
    let pulled = |image: &str| json!({"image": image, "imagePullPolicy": "IfNotPresent"});
    let secret = json!({"secretKeyRef": {"name": MISSING, "key": "token"}});
    // The kubelet does not wait for a volume that no container mounts.
    let mounted = json!({"volumeMounts": [{"name": "data", "mountPath": "/data"}]});
    let volume = |name: &str, source: Value| {
        with_pod(job(name, mounted.clone()), "volumes", json!([source]))
    };
    let config = json!({"name": "data", "configMap": {"name": MISSING}});
    let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": MISSING}});
    let start = with_pod(
        job("no-command", json!({"command": ["/none"]})),
        "restartPolicy",
        json!("OnFailure"),
    );
    vec![
        // No process listens there.
        (
            job("no-image", pulled("127.0.0.1:9/none:1")),
            &["to get its image; it reports", "127.0.0.1:9"],
            "image-not-pulled",
        ),
        (
            job("bad-image", pulled("Not An Image")),
            &["to get its image; it reports InvalidImageName"],
            "image-not-pulled",
        ),
        (
            job("no-secret", json!({"env": [{"name": "TOKEN", "valueFrom": secret}]})),
            &[
                "to get its configuration; it reports CreateContainerConfigError",
                "secret \"not-there\" not found",
            ],
            "volume-or-config-missing",
        ),
        (
            volume("no-config", config),
            &["to get its volumes: ", "configmap \"not-there\" not found"],
            "volume-or-config-missing",
        ),
        (
            volume("no-claim", claim),
            &["to be scheduled: ", "persistentvolumeclaim \"not-there\" not found"],
            "pod-unscheduled",
        ),
        (
            job("no-room", json!({"resources": {"requests": {"cpu": "100"}}})),
            &["to be scheduled: ", "Insufficient cpu"],
            "pod-unscheduled",
        ),
        (start, &["to start; it reports ", "/none"], "pod-cannot-start"),
    ]
}

#[test]
fn what_keeps_a_pod_from_starting_is_named_by_explain_and_doctor() {
    stage::play(module_path!(), async move |kept: &mut Option<Story>| {
        let story = Story::of(kept).await;
        let waiting = waiting();
        for (job, ..) in &waiting {
            story.create(job.clone()).await;
        }
        for (job, words, code) in &waiting {
            let name = job["metadata"]["name"].as_str().expect("a name");
            let code = format!("[{code}]");
            story.explains(name, &[words, &[code.as_str()][..]].concat()).await;
        }
        let at = format!("--at={}", Timestamp::now() + LATER);
        let doctor = story.plugin(&["doctor", &at]).await;
        for (job, words, code) in &waiting {
            let name = job["metadata"]["name"].as_str().expect("a name");
            let is_its = |line: &&str| {
                line.contains(&format!("job/{NAMESPACE}/{name} ")) && line.contains(code)
            };
            let line = doctor.lines().find(is_its);
            let line = line.unwrap_or_else(|| panic!("{name}, {code}: {doctor}"));
            assert!(words.iter().all(|each| line.contains(each)), "{name}: {doctor}");
        }
        story.clear().await;
        *kept = Some(story);
    });
}

#[test]
fn what_else_a_job_waits_for_is_named() {
    stage::play(module_path!(), async move |kept: &mut Option<Story>| {
        let story = Story::of(kept).await;
        story
            .create(with(
                job("deadline", json!({})),
                &["spec", "activeDeadlineSeconds"],
                json!(3600),
            ))
            .await;
        story.create(job("backoff", json!({"args": ["exits", "3", "0"]}))).await;
        let late = with_pod(job("late", json!({})), "nodeSelector", json!({"a": MISSING}));
        story.create(with(late, &["spec", "activeDeadlineSeconds"], json!(8))).await;
        let held = with(
            job("held", json!({})),
            &["spec", "template", "metadata"],
            json!({"finalizers": [HELD]}),
        );
        story.create(held).await;
        story
            .explains("deadline", &["the end of its activeDeadlineSeconds, in ", "[job-deadline]"])
            .await;
        story.explains("backoff", &["ackoff", ", until 2", "exited with code 3"]).await;
        story.fails("late").await;
        story.explains("late", &["DeadlineExceeded", "1 pending", "Unschedulable"]).await;

        let runs = async || story.pod_of("held").await.and_then(|pod| pod.status?.phase);
        let is_running = |phase: &Option<String>| phase.as_deref() == Some("Running");
        eventually("the held pod runs", RUNNING_WITHIN, runs, is_running).await;
        let name = story.pod_of("held").await.and_then(|pod| pod.metadata.name).expect("a pod");
        let soon = DeleteParams::default().grace_period(1);
        story.pods.delete(&name, &soon).await.expect("the pod is deleted");
        let stays = format!("pod {name} to go; its finalizers: {HELD}");
        story.explains("held", &[&stays, "[pod-held-by-finalizers]"]).await;
        let at = format!("--at={}", Timestamp::now() + LATER);
        let doctor = story.plugin(&["doctor", &at]).await;
        let of_pod = format!("pod/{NAMESPACE}/{name} ");
        let line = doctor.lines().find(|line| line.contains(&of_pod)).unwrap_or_default();
        assert!(line.contains("pod-held-by-finalizers") && line.contains(HELD), "{doctor}");

        story.clear().await;
        *kept = Some(story);
    });
}

/// The kubelet reports some of these kills as exit code 137 and nothing more; the agent's condition
/// has the cause.
///
/// Last in alphabetical order: it removes the node.
#[test]
fn what_the_kernel_killed_for_memory_is_known_when_pods_and_node_are_gone() {
    stage::play(module_path!(), async move |kept: &mut Option<Story>| {
        let story = Story::of(kept).await;
        let hog = json!({
            "args": ["hog", "200", "100"], "resources": {"limits": {"memory": "64Mi"}},
        });
        let jobs = ["Never", "OnFailure"].map(|policy| (policy, policy.to_lowercase()));
        for (policy, name) in &jobs {
            let one = with(job(name, hog.clone()), &["spec", "backoffLimit"], json!(0));
            story.create(with_pod(one, "restartPolicy", json!(policy))).await;
        }
        let mut pods = Vec::new();
        for (_, name) in &jobs {
            let pod = async || story.pod_of(name).await.and_then(|pod| pod.metadata.name);
            let pod = eventually("the Job has a pod", RUNNING_WITHIN, pod, Option::is_some).await;
            pods.push(pod.expect("a name"));
            story.fails(name).await;
        }
        story.pods_are_gone().await;
        let nodes: Api<Node> = Api::all(story.scene.client.clone());
        nodes.delete(NODE, &DeleteParams::default()).await.expect("the node is deleted");

        for ((_, name), pod) in jobs.iter().zip(&pods) {
            let answer = story.plugin(&["explain", name, "-o", "json"]).await;
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            let ends = answer["ends"]["last"].as_array().cloned().unwrap_or_default();
            let [end] = &ends[..] else { panic!("{answer:#}") };
            assert_eq!(end["pod"], pod.as_str(), "{answer:#}");
            assert_eq!(end["node"], NODE, "{answer:#}");
            assert_eq!(end["cause"], "ContainerOOM", "{answer:#}");
            let text = story.explains(name, &[pod, NODE, "OOMKilled"]).await;
            assert!(text.contains("memory: 128Mi"), "the remedy: {text}");
        }
        let report = story.plugin(&["report", "--since=1h", "-o", "json"]).await;
        let report: Value = serde_json::from_str(&report).expect("JSON");
        let by_cause = report["ends"]["by_cause"].as_array().cloned().unwrap_or_default();
        let of = by_cause.iter().find(|it| it["cause"] == "ContainerOOM").map(|it| &it["ends"]);
        assert_eq!(of, Some(&json!(2)), "{report:#}");
        story.end().await;
    });
}
