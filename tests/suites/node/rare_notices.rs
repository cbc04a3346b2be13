//! Tests notices of a node's end, ahead of logind, on a node whose kubelet has its own graceful
//! shutdown; needs `--all`.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
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

/// Runs a pod of a Job, which stays in the API.
async fn run(scene: &Scene, name: &str, pod: TestPod) {
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

/// Runs a pod that leaves with 143.
async fn run_pod(scene: &Scene, name: &str) {
    run(scene, name, TestPod::new(name, NODE, &["obedient", "143", "1"])).await;
}

/// Runs a pod that works as a training job does, and saves by itself so rarely that it never does.
async fn run_trainer(scene: &Scene, name: &str, signal: Option<&str>) {
    let pod = TestPod::new(name, NODE, &["trainer", "100000", "100", "/pod/ends-at"]);
    let ends_at = json!({
        "path": "ends-at",
        "fieldRef": {"fieldPath": "metadata.annotations['epilogue.dev/ends-at']"},
    });
    let volume = json!([{"name": "pod", "downwardAPI": {"items": [ends_at]}}]);
    let pod = pod.spec("volumes", volume).mount("pod", "/pod");
    let pod = match signal {
        Some(signal) => pod.annotation("epilogue.dev/end-signal", signal),
        None => pod,
    };
    run(scene, name, pod).await;
}

/// What a trainer said at its end.
async fn trained(scene: &Scene, name: &str) -> Value {
    let pods: Api<Pod> = scene.api();
    let pod = serde_json::to_value(pods.get(name).await.expect("the pod")).expect("JSON");
    println!("{name}: {}", pod["status"]["containerStatuses"][0]["state"]);
    let terminated = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    let said = terminated["message"].as_str().unwrap_or_default();
    let mut said: Value = serde_json::from_str(said).expect("the trainer's words");
    said["annotation"] = pod["metadata"]["annotations"]["epilogue.dev/ends-at"].clone();
    said["finished"] = terminated["finishedAt"].clone();
    said
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

async fn condition_becomes(scene: &Scene, kind: &str, status: &str) {
    let nodes: Api<Node> = Api::all(scene.client.clone());
    let status_of = async || {
        let node = nodes.get(NODE).await.expect("the node");
        let conditions = node.status.unwrap_or_default().conditions.unwrap_or_default();
        conditions.into_iter().find(|it| it.type_ == kind).map(|it| it.status)
    };
    let what = format!("{kind} becomes {status}");
    eventually(&what, RUNNING_WITHIN, status_of, |it| it.as_deref() == Some(status)).await;
}

/// The events of pods, or else of nodes.
async fn events(scene: &Scene, of: &str) -> Vec<Value> {
    use k8s_openapi::api::events::v1::Event;
    let events: Api<Event> = match of {
        "of-pods" => scene.api(),
        _ => Api::namespaced(scene.client.clone(), "default"),
    };
    let events = events.list(&ListParams::default()).await.expect("the events");
    events.items.iter().map(|it| serde_json::to_value(it).expect("JSON")).collect()
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

/// A training job that asks for a signal saves between the notice and SIGTERM; next to it, one that
/// asks for none loses all that it did. Both learn by when they end.
#[test]
fn pods_have_an_early_word_of_their_end() {
    let (asking, silent, events) = stage::play(module_path!(), async move |kept| {
        let scene = scene(kept).await;
        run_trainer(&scene, "asking", Some("USR1@1m")).await;
        run_trainer(&scene, "silent", None).await;
        give(&scene, "in=2min").await;
        let history = ends(&scene, "asking").await;
        is_disrupted_before_its_end(&history);
        ends(&scene, "silent").await;
        let (asking, silent) = (trained(&scene, "asking").await, trained(&scene, "silent").await);
        scene.node.run(&format!("rm {NOTICE}")).await.expect("the notice is removed");
        node_becomes(&scene, false, &["idle"]).await;
        let events = events(&scene, "of-pods").await;
        *kept = Some(scene);
        (asking, silent, events)
    });
    let number = |said: &Value, name: &str| said[name].as_i64().expect("a number");
    let lost = |said: &Value| number(said, "done") - number(said, "saved");
    assert!(lost(&asking) <= 1, "{asking}");
    assert!(number(&asking, "asked") > 10_000, "long before SIGTERM: {asking}");
    assert!(lost(&silent) == number(&silent, "done") && lost(&silent) > 100, "{silent}");
    assert_eq!(number(&silent, "asked"), -1, "{silent}");
    for said in [&asking, &silent] {
        let time = |name: &str| said[name].as_str().and_then(|it| it.parse::<Timestamp>().ok());
        let (announced, ended) = (time("annotation").expect("a time"), time("finished"));
        assert!(ended.expect("a time") <= announced, "{said}");
    }
    let sent = events.iter().filter(|event| event["reason"] == "EndSignalSent");
    let of: Vec<_> = sent.map(|event| &event["regarding"]["name"]).collect();
    assert_eq!(of, ["asking"], "{events:#?}");
}

/// Another program's words on the Node object: they end no pod, and the agent taints the node only
/// where they have not.
#[test]
fn others_words_on_the_node_keep_new_pods_away() {
    let history = stage::play(module_path!(), async move |kept| {
        let scene = scene(kept).await;
        run_pod(&scene, "by-others").await;
        let nodes: Api<Node> = Api::all(scene.client.clone());
        let condition = async |status: &str| {
            let condition = json!({"type": "DrainInProgress", "status": status,
                "reason": "AdminRequested", "message": "by hand"});
            let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
            nodes.patch_status(NODE, &PatchParams::default(), &patch).await.expect("patch");
        };
        condition("True").await;
        node_becomes(&scene, true, &["idle"]).await;
        condition("False").await;
        node_becomes(&scene, false, &["idle"]).await;
        let taints = async |taints: Value| {
            let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
            nodes.patch(NODE, &PatchParams::default(), &patch).await.expect("patch");
        };
        let karpenter = json!({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"});
        taints(json!([karpenter])).await;
        condition_becomes(&scene, "MaintenancePlanned", "True").await;
        assert!(!of_node(&scene).await.0, "Karpenter's taint is enough");
        taints(json!([])).await;
        condition_becomes(&scene, "MaintenancePlanned", "False").await;
        condition_becomes(&scene, "epilogue.dev/AgentReady", "True").await;
        let history = scene.watcher.history("by-others");
        *kept = Some(scene);
        history
    });
    assert!(history.iter().all(|seen| !seen.is_disrupted() && !seen.deleting), "{history:#?}");
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
        let events = events(&scene, "of-nodes").await;
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
