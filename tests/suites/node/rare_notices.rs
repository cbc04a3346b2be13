//! Tests notices of a node's end, ahead of logind, on a node whose kubelet has its own graceful
//! shutdown; needs `--all`.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::PostParams;
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::vm::agent::Install;
use lab::vm::{KubeletConfig, Scene, Seen, Setting, TestPod};
use lab::{Options, eventually};
use serde_json::{Value, json};

use crate::stage;
use crate::world::{RUNNING_WITHIN, kit};

const NODE: &str = "notices";
const NOTICE: &str = "/run/epilogue/notice";

/// That of the last test, or a new one.
async fn scene(kept: &mut Option<Scene>) -> Scene {
    if let Some(scene) = kept.take() {
        return scene;
    }
    let setting = Setting {
        options: Options::unique(NODE).controller_manager(QUIET_CONTROLLERS),
        node: NODE,
        kubelet: &KubeletConfig::default().graceful_shutdown(30, 10),
        agent: Some((Install::Host, Vec::new())),
        commands: Vec::new(),
    };
    Scene::set(&kit().await, setting).await.unwrap_or_else(|error| panic!("{error:#}"))
}

/// Runs a pod of a Job, which leaves with 143 and stays in the API.
async fn run_pod(scene: &Scene, name: &str) {
    let job = json!({
        "metadata": {"name": name},
        "spec": {
            // No controller runs it.
            "managedBy": "example.com/none",
            "template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}],
            }},
        },
    });
    let job: Job = serde_json::from_value(job).expect("a Job");
    let jobs: Api<Job> = scene.api();
    let job = jobs.create(&PostParams::default(), &job).await.expect("create");
    let pod = TestPod::new(name, NODE, &["obedient", "143", "1"]).restart_policy("Never");
    let mut pod = pod.grace_seconds(20).finalizer("example.com/keep").build();
    pod.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "Job".to_owned(),
        name: name.to_owned(),
        uid: job.metadata.uid.expect("a UID"),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    let pods: Api<Pod> = scene.api();
    pods.create(&PostParams::default(), &pod).await.expect("create");
    let runs = |history: &[Seen]| history.last().is_some_and(|it| it.container == "running");
    scene.watcher.until(name, "runs", RUNNING_WITHIN, runs).await;
}

/// The agent's taint and what it announces, as the API has them.
async fn of_node(scene: &Scene) -> (bool, String) {
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let node = nodes.get(NODE).await.expect("the node");
    let taints = node.spec.unwrap_or_default().taints.unwrap_or_default();
    let is_tainted = taints.iter().any(|taint| taint.key == "epilogue.dev/shutting-down");
    let says = node.metadata.annotations.unwrap_or_default().remove("epilogue.dev/state");
    (is_tainted, says.unwrap_or_default().split(';').next().unwrap_or_default().to_owned())
}

async fn node_becomes(scene: &Scene, is_tainted: bool, says: &[&str]) {
    let what = format!("the node is tainted: {is_tainted}, and says {says:?}");
    let becomes =
        |(tainted, said): &(bool, String)| *tainted == is_tainted && says.contains(&said.as_str());
    eventually(&what, RUNNING_WITHIN, async || of_node(scene).await, becomes).await;
}

/// Writes the notice as its page says.
async fn give(scene: &Scene, fields: &str) {
    let write = format!(
        "mkdir -p /run/epilogue && printf '{fields}' > {NOTICE}.new && mv {NOTICE}.new {NOTICE}"
    );
    scene.node.run(&write).await.expect("the notice is written");
}

/// The pod's states until it is terminal.
async fn ends(scene: &Scene, pod: &str) -> Vec<Seen> {
    let ended = |history: &[Seen]| history.last().is_some_and(Seen::is_terminal);
    scene.watcher.until(pod, "ends", RUNNING_WITHIN, ended).await;
    scene.watcher.history(pod)
}

/// It failed as disrupted, and the condition came before its end.
fn is_disrupted_before_its_end(history: &[Seen]) {
    let last = history.last().expect("it was seen");
    assert!(last.phase == "Failed" && last.is_disrupted(), "{history:#?}");
    let first = history.iter().find(|seen| seen.is_disrupted()).expect("it is disrupted");
    assert_eq!(first.container, "running", "{history:#?}");
}

#[test]
fn file_s_notice_ends_pods_before_the_machine_and_is_withdrawn() {
    let (history, preparing) = stage::play(module_path!(), async move |kept| {
        let scene = scene(kept).await;
        run_pod(&scene, "by-file").await;
        node_becomes(&scene, false, &["idle"]).await;
        give(&scene, "certain=false").await;
        node_becomes(&scene, true, &["idle"]).await;
        let runs = scene.watcher.history("by-file").pop().is_some_and(|it| !it.is_terminal());
        assert!(runs, "an end that may not come ends no pod");
        give(&scene, "in=2min\\nkind=reboot").await;
        let history = ends(&scene, "by-file").await;
        let preparing = scene.node.run(
            "busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
             org.freedesktop.login1.Manager PreparingForShutdown",
        );
        let preparing = preparing.await.expect("logind answers");
        node_becomes(&scene, true, &["shutting-down", "drained"]).await;
        scene.node.run(&format!("rm {NOTICE}")).await.expect("the notice is removed");
        node_becomes(&scene, false, &["idle"]).await;
        let locks = scene.node.run("systemd-inhibit --list --no-legend").await;
        let locks = locks.expect("logind lists the locks");
        assert!(locks.contains("epilogue-agent"), "{locks}");
        *kept = Some(scene);
        (history, preparing)
    });
    is_disrupted_before_its_end(&history);
    assert_eq!(preparing.trim(), "b false", "logind has announced nothing");
}

/// logind grants five seconds, and the pod has its grace all the same.
///
/// Last in alphabetical order: it reboots the machine.
#[test]
fn scheduled_reboot_ends_pods_before_logind_announces_it() {
    let (history, events, scheduled) = stage::play(module_path!(), async move |kept| {
        let mut scene = scene(kept).await;
        run_pod(&scene, "by-schedule").await;
        let boot = scene.node.machine().boot_id().await.expect("the machine answers");
        let scheduled = Timestamp::now();
        scene.node.run("shutdown -r +2").await.expect("the reboot is scheduled");
        let history = ends(&scene, "by-schedule").await;
        let machine = scene.node.machine_mut();
        machine.rebooted(&boot, RUNNING_WITHIN).await.expect("the machine reboots");
        scene.node.ready(RUNNING_WITHIN).await.expect("the node is ready again");
        node_becomes(&scene, false, &["idle"]).await;
        let events: Api<k8s_openapi::api::events::v1::Event> =
            Api::namespaced(scene.client.clone(), "default");
        let events = events.list(&kube::api::ListParams::default()).await.expect("the events");
        let events: Vec<Value> =
            events.items.iter().map(|it| serde_json::to_value(it).expect("JSON")).collect();
        scene.strike().await.expect("the scene ends");
        (history, events, scheduled)
    });
    is_disrupted_before_its_end(&history);
    let ended = history.last().expect("it was seen").at;
    let announced = scheduled + SignedDuration::from_mins(2);
    assert!(ended < announced, "logind announces at {announced} at the earliest: {history:#?}");
    let notes = events.iter().filter(|event| event["reason"] == "NodeEndAnnounced");
    let notes: Vec<_> = notes.filter_map(|event| event["note"].as_str()).collect();
    assert!(notes.iter().any(|note| note.contains("scheduled announces")), "{events:#?}");
}
