//! Tests containers that go on after the kernel has killed a process of theirs; needs `--all`.
//!
//! The kernel kills the whole container unless the kubelet has `singleProcessOOMKill`, as here.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use kube::api::PostParams;
use lab::Options;
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::vm::agent::Install;
use lab::vm::kit::CONTAINER_IMAGE;
use lab::vm::{KubeletConfig, Scene, Seen, Setting, TestPod};
use serde_json::{Value, json};

use crate::stage;
use crate::world::{RUNNING_WITHIN, kit};

const NODE: &str = "oom";
const CONDITION_WITHIN: Duration = Duration::from_secs(5);

/// A container that loses its child to its memory limit, and then leaves with `code`.
fn parent(name: &str, code: &str) -> Value {
    json!({
        "name": name, "image": CONTAINER_IMAGE, "imagePullPolicy": "Never",
        "args": ["parent", code, "1", "hog", "200", "50"],
        "resources": {"limits": {"memory": "64Mi"}},
    })
}

async fn set() -> Scene {
    let kubelet = KubeletConfig::default().set("singleProcessOOMKill", json!(true));
    let setting = Setting {
        options: Options::unique(NODE).controller_manager(QUIET_CONTROLLERS),
        node: NODE,
        kubelet: &kubelet,
        agent: Some((Install::Host, Vec::new())),
        commands: Vec::new(),
    };
    let scene = Scene::set(&kit().await, setting).await;
    scene.unwrap_or_else(|error| panic!("{error:#}"))
}

/// Creates the pod, and returns its last state once it is terminal, and its containers' statuses
/// with those of its init containers.
async fn ends(scene: &Scene, pod: TestPod) -> (Vec<Seen>, Vec<ContainerStatus>) {
    let pods: Api<Pod> = scene.api();
    let pod = pod.host_network().build();
    let name = pod.metadata.name.clone().expect("a name");
    pods.create(&PostParams::default(), &pod).await.expect("create");
    let ended = |history: &[Seen]| history.last().is_some_and(Seen::is_terminal);
    scene.watcher.until(&name, "ends", RUNNING_WITHIN, ended).await;
    // The agent may add its condition to a status that the kubelet wrote first.
    tokio::time::sleep(CONDITION_WITHIN).await;
    let history = scene.watcher.history(&name);
    let status = pods.get(&name).await.expect("get").status.expect("a status");
    let init = status.init_container_statuses.into_iter().flatten();
    let statuses = init.chain(status.container_statuses.into_iter().flatten()).collect();
    (history, statuses)
}

/// Exit code and reason of a container's end.
fn end(statuses: &[ContainerStatus], name: &str) -> Option<(i32, String)> {
    let status = statuses.iter().find(|status| status.name == name)?;
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    Some((ended.exit_code, ended.reason.clone().unwrap_or_default()))
}

fn play(story: impl AsyncFnOnce(&Scene) + Send + 'static) {
    stage::play(module_path!(), async move |kept: &mut Option<Scene>| {
        let scene = match kept.take() {
            Some(scene) => scene,
            None => set().await,
        };
        story(&scene).await;
        *kept = Some(scene);
    });
}

/// The container that lost a child left with 0, and another one failed by a fault of its own.
#[test]
fn container_that_goes_on_is_no_cause_of_its_pod_s_failure() {
    play(async |scene| {
        let main = json!({
            "name": "main", "image": CONTAINER_IMAGE, "imagePullPolicy": "Never",
            "args": ["exits", "1", "25"],
        });
        let pod = TestPod::new("goes-on", NODE, &[]);
        let pod = pod.spec("containers", json!([parent("batch", "0"), main]));
        let (history, statuses) = ends(scene, pod).await;
        let (code, _) = end(&statuses, "batch").expect("it has ended");
        let last = history.last().expect("a state");
        assert!(code == 0 && last.phase == "Failed", "{history:#?}");
        assert!(last.cause.is_none() && last.disruption.is_none(), "{history:#?}");
    });
}

#[test]
fn container_that_fails_after_it_lost_a_child_has_the_cause() {
    play(async |scene| {
        let pod = TestPod::new("fails", NODE, &[]).spec("containers", json!([parent("main", "3")]));
        let (history, statuses) = ends(scene, pod).await;
        let (code, _) = end(&statuses, "main").expect("it has ended");
        let last = history.last().expect("a state");
        assert!(code == 3 && last.phase == "Failed", "{history:#?}");
        let cause = last.cause.as_ref().map(|(reason, _)| reason.as_str());
        assert_eq!(cause, Some("ContainerLimit"), "{history:#?}");
    });
}

/// Its kubelet takes it for failed, stops the pod, and yet leaves it Pending. ([API19])
#[test]
fn init_container_that_lost_a_child_and_succeeded_ends_its_pod() {
    play(async |scene| {
        let pod = TestPod::new("init", NODE, &["obedient", "0", "0"]);
        let pod = pod.spec("initContainers", json!([parent("prepare", "0")]));
        let (history, statuses) = ends(scene, pod).await;
        assert_eq!(end(&statuses, "prepare"), Some((0, "OOMKilled".to_owned())), "{history:#?}");
        // What its kubelet says of a container that never ran, once the pod has ended.
        let never = Some((137, "ContainerStatusUnknown".to_owned()));
        assert_eq!(end(&statuses, "main"), never, "{history:#?}");
        let last = history.last().expect("a state");
        assert!(last.phase == "Failed" && last.disruption.is_none(), "{history:#?}");
        assert!(last.phase_by.contains("epilogue"), "{history:#?}");
    });
}
