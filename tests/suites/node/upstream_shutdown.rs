//! (6): tests what a node leaves in the API on reboot or power-off, with the kubelet's graceful
//! shutdown off and by priority. ([LD11], [SD16], [SD18]) `cargo lab node table` plays a power cut,
//! and graceful shutdown without priorities.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use lab::vm::node::ready_condition;
use lab::vm::{KubeletConfig, Seen, TestPod};
use serde_json::json;

use crate::stage;
use crate::world::World;

const OFF_WITHIN: Duration = Duration::from_mins(4);
const WITHIN: Duration = Duration::from_mins(3);

/// Names end in `after`, so that a story can have several of each kind.
fn kinds(world: &World, after: &str) -> Vec<TestPod> {
    let critical = json!("system-node-critical");
    let pod = |name: &str, command: &[&str]| world.pod(&format!("{name}{after}"), command);
    vec![
        pod("dies", &["obedient", "143", "1"]),
        pod("leaves", &["obedient", "0", "1"]).restart_policy("Always"),
        pod("stubborn", &["stubborn"]).grace_seconds(60).host_network(),
        pod("critical", &["obedient", "0", "1"]).spec("priorityClassName", critical),
        pod("done", &["exits", "0", "2"]).host_network(),
    ]
}

async fn run_kinds(world: &World, after: &str) {
    let pods = kinds(world, after);
    let (done, others) = pods.split_last().expect("pods");
    world.run(others).await;
    world.create(done).await;
    let succeeded = |history: &[Seen]| history.last().is_some_and(|last| last.phase == "Succeeded");
    world.scene.watcher.until(&format!("done{after}"), "succeeds", WITHIN, succeeded).await;
}

/// The last state of every pod, by name, and one line each for the table in the README.
fn outcome(world: &World, title: &str) -> BTreeMap<String, Seen> {
    let last = world.scene.watcher.last();
    for seen in &last {
        println!("OUTCOME {title}: {seen:?}");
    }
    last.into_iter().map(|seen| (seen.pod.clone(), seen)).collect()
}

/// After the node is gone, only controllers can still change its statuses. One answer of the API
/// means that everything before it has arrived.
async fn settle(world: &World) {
    for pod in world.pods.list(&kube::api::ListParams::default()).await.expect("list") {
        let name = pod.metadata.name.expect("a name");
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        let seen = |history: &[Seen]| history.last().is_some_and(|last| last.phase == phase);
        world.scene.watcher.until(&name, "the watch has caught up", WITHIN, seen).await;
    }
}

async fn node_becomes(world: &World, what: &str, holds: impl Fn(&String) -> bool) -> String {
    let nodes: Api<Node> = Api::all(world.scene.client.clone());
    let observe = async || ready_condition(&nodes.get(world.scene.node.name()).await.expect("get"));
    lab::eventually(what, WITHIN, observe, holds).await
}

/// Reboots the machine, and waits until it is back. Returns its boot id.
async fn reboot(world: &mut World) -> String {
    let before = world.scene.node.machine().boot_id().await.expect("boot id");
    world.scene.node.machine().begin_reboot().await.expect("reboot");
    world.scene.node.machine_mut().rebooted(&before, OFF_WITHIN).await.expect("reboot");
    world.scene.node.machine().boot_id().await.expect("boot id")
}

async fn power_off(world: &mut World) {
    world.scene.node.machine().begin_poweroff().await.expect("poweroff");
    world.scene.node.machine_mut().off(OFF_WITHIN).await.expect("off");
}

/// Plays on the machine of all stories with this kubelet configuration.
fn play(
    machine: &'static str,
    kubelet: fn() -> KubeletConfig,
    story: impl AsyncFnOnce(&mut World) + Send + 'static,
) {
    stage::play(machine, async move |stage: &mut Option<World>| {
        let mut world = match stage.take() {
            Some(world) => {
                world.clear().await;
                world
            }
            None => World::with_controllers("shutdown", kubelet()).await,
        };
        story(&mut world).await;
        if world.scene.node.machine().is_off() {
            world.end().await;
        } else {
            *stage = Some(world);
        }
    });
}

/// Without graceful shutdown the kubelet reports nothing.
mod off {
    use super::*;

    fn play(story: impl AsyncFnOnce(&mut World) + Send + 'static) {
        super::play(module_path!(), KubeletConfig::default, story);
    }

    #[test]
    fn reboot_ends_never_pods_without_a_condition() {
        play(async |world| reboot_without_graceful_shutdown(world).await);
    }

    /// Last in alphabetical order: it leaves the machine off.
    #[test]
    fn turned_off_leaves_every_pod_running_in_the_api() {
        play(async |world| poweroff_without_graceful_shutdown(world).await);
    }
}

/// With graceful shutdown by priority the kubelet reports each pod.
mod on {
    use super::*;

    /// An emulated machine takes 13 s for a pod that exits 1 s after its SIGTERM. With 10 s for the
    /// first group, the kubelet gave up on all of its pods, and reported no pod.
    fn kubelet() -> KubeletConfig {
        let periods = [(0, 40), (1_000_000, 5), (2_000_000_000, 30)];
        KubeletConfig::default().graceful_shutdown_by_priority(&periods)
    }

    fn play(story: impl AsyncFnOnce(&mut World) + Send + 'static) {
        super::play(module_path!(), kubelet, story);
    }

    #[test]
    fn reboot_keeps_reports_and_changes_the_boot_id() {
        play(async |world| reboot_with_graceful_shutdown(world).await);
    }

    /// Last in alphabetical order: it leaves the machine off.
    #[test]
    fn turned_off_reports_each_pod_by_its_exit_code() {
        play(async |world| poweroff_with_graceful_shutdown(world).await);
    }
}

/// The counterpart of a lost report: what the kubelet reports after the reboot of pods that it
/// never terminated.
async fn reboot_without_graceful_shutdown(world: &mut World) {
    let pods = ["Never", "OnFailure", "Always"].map(|policy| {
        let pod = world.pod(&policy.to_lowercase(), &["obedient", "143", "0"]).host_network();
        pod.restart_policy(policy)
    });
    world.run(&pods).await;
    reboot(world).await;
    let ended = |history: &[Seen]| history.last().is_some_and(Seen::is_terminal);
    let again = |history: &[Seen]| {
        history.last().is_some_and(|last| last.container == "running" && last.restarts > 0)
    };
    let never = world.scene.watcher.until("never", "ends", WITHIN, ended).await;
    for pod in ["onfailure", "always"] {
        world.scene.watcher.until(pod, "runs again", WITHIN, again).await;
    }
    outcome(world, "reboot, graceful off");
    let last = &never[never.len() - 1];
    assert!(last.phase == "Failed" && last.disruption.is_none(), "{never:#?}");
}

async fn poweroff_without_graceful_shutdown(world: &mut World) {
    run_kinds(world, "").await;
    power_off(world).await;
    let last = node_becomes(world, "the node is Unknown", |ready| ready.starts_with("Unknown"));
    println!("OUTCOME poweroff, graceful off: node {}", last.await);
    settle(world).await;
    let pods = outcome(world, "poweroff, graceful off");
    for name in ["dies", "leaves", "stubborn", "critical"] {
        assert!(pods[name].phase == "Running" && !pods[name].is_disrupted(), "{pods:#?}");
    }
    assert_eq!(pods["done"].phase, "Succeeded");
}

async fn reboot_with_graceful_shutdown(world: &mut World) {
    run_kinds(world, "").await;
    let boot_id = reboot(world).await;
    let nodes: Api<Node> = Api::all(world.scene.client.clone());
    let seen_boot_id = async || {
        let node = nodes.get(world.scene.node.name()).await.expect("get");
        let info = node.status.and_then(|status| status.node_info);
        info.map(|info| info.boot_id).unwrap_or_default()
    };
    lab::eventually("the API has the boot id", WITHIN, seen_boot_id, |id| *id == boot_id).await;
    world.scene.node.ready(WITHIN).await.expect("ready");
    // The kubelet kills it at the end of its group's period and goes on with the next group at once.
    // On a slow machine its status comes after the reboot, and then without the condition.
    let ended = |history: &[Seen]| history.last().is_some_and(Seen::is_terminal);
    world.scene.watcher.until("stubborn", "ends", WITHIN, ended).await;
    let pods = outcome(world, "reboot, graceful 0:40 1e6:5 2e9:30");
    for name in ["dies", "leaves"] {
        assert!(pods[name].is_terminal() && pods[name].is_disrupted(), "{pods:#?}");
    }
}

async fn poweroff_with_graceful_shutdown(world: &mut World) {
    run_kinds(world, "-2").await;
    power_off(world).await;
    let node = node_becomes(world, "the node is not Ready", |ready| ready != "True").await;
    println!("OUTCOME poweroff, graceful 0:40 1e6:5 2e9:30: node {node}");
    settle(world).await;
    let pods = outcome(world, "poweroff, graceful 0:40 1e6:5 2e9:30");
    let [dies, leaves, stubborn, done] =
        ["dies-2", "leaves-2", "stubborn-2", "done-2"].map(|name| &pods[name]);
    assert!(dies.phase == "Failed" && dies.reason == "Terminated", "{pods:#?}");
    // Exit code 0: Succeeded, though it got SIGTERM and would have been restarted.
    assert!(leaves.phase == "Succeeded" && leaves.reason.is_empty(), "{pods:#?}");
    assert!(stubborn.phase == "Failed", "{pods:#?}");
    assert!(stubborn.container.starts_with("terminated 137"), "{pods:#?}");
    for seen in [dies, leaves, stubborn] {
        let by_kubelet = Some(("True".to_owned(), "TerminationByKubelet".to_owned()));
        assert_eq!(seen.disruption, by_kubelet, "{pods:#?}");
    }
    assert_eq!(done.disruption, None);
}
