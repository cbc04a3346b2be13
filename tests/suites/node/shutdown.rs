//! (6): what a node leaves in the API when it is powered off, rebooted or loses its power, with
//! the kubelet's graceful shutdown off, on and by priority. spec/node-agent.md §1.7, §1.9.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use lab::vm::node::ready_condition;
use lab::vm::{KubeletConfig, Seen, TestPod};
use serde_json::json;

use crate::world::World;

const OFF_WITHIN: Duration = Duration::from_mins(4);
const WITHIN: Duration = Duration::from_mins(3);

fn kinds(world: &World) -> Vec<TestPod> {
    let critical = json!("system-node-critical");
    vec![
        world.pod("dies", &["obedient", "143", "1"]),
        world.pod("leaves", &["obedient", "0", "1"]).restart_policy("Always"),
        world.pod("stubborn", &["stubborn"]).grace_seconds(60).host_network(),
        world.pod("critical", &["obedient", "0", "1"]).spec("priorityClassName", critical),
        world.pod("done", &["exits", "0", "2"]).host_network(),
    ]
}

async fn run_kinds(world: &World) {
    let pods = kinds(world);
    let (done, others) = pods.split_last().expect("pods");
    world.run(others).await;
    world.create(done).await;
    let succeeded = |history: &[Seen]| history.last().is_some_and(|last| last.phase == "Succeeded");
    world.watcher.until("done", "succeeds", WITHIN, succeeded).await;
}

/// The last state of every pod, by name, and a line each for the table in the README.
fn outcome(world: &World, title: &str) -> BTreeMap<String, Seen> {
    let last = world.watcher.last();
    for seen in &last {
        println!("OUTCOME {title}: {seen:?}");
    }
    last.into_iter().map(|seen| (seen.pod.clone(), seen)).collect()
}

/// After the node is gone its statuses can no longer change but by controllers: one answer of
/// the API and everything before it has arrived.
async fn settle(world: &World) {
    for pod in world.pods.list(&kube::api::ListParams::default()).await.expect("list") {
        let name = pod.metadata.name.expect("a name");
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        let seen = |history: &[Seen]| history.last().is_some_and(|last| last.phase == phase);
        world.watcher.until(&name, "the watch has caught up", WITHIN, seen).await;
    }
}

async fn node_becomes(world: &World, what: &str, holds: impl Fn(&String) -> bool) -> String {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let observe = async || ready_condition(&nodes.get(world.node.name()).await.expect("get"));
    lab::eventually(what, WITHIN, observe, holds).await
}

#[tokio::test]
async fn poweroff_without_graceful_shutdown_leaves_every_pod_running_in_the_api() {
    let mut world = World::with_controllers("off", KubeletConfig::default()).await;
    run_kinds(&world).await;
    world.node.machine().begin_poweroff().await.expect("poweroff");
    world.node.machine_mut().off(OFF_WITHIN).await.expect("off");
    let last = node_becomes(&world, "the node is Unknown", |ready| ready.starts_with("Unknown"));
    println!("OUTCOME poweroff, graceful off: node {}", last.await);
    settle(&world).await;
    let pods = outcome(&world, "poweroff, graceful off");
    for name in ["dies", "leaves", "stubborn", "critical"] {
        assert!(pods[name].phase == "Running" && !pods[name].is_disrupted(), "{pods:#?}");
    }
    assert_eq!(pods["done"].phase, "Succeeded");
    world.end().await;
}

#[tokio::test]
async fn poweroff_with_graceful_shutdown_reports_each_pod_by_its_exit_code() {
    let kubelet = KubeletConfig::default().graceful_shutdown(30, 10);
    let mut world = World::with_controllers("on", kubelet).await;
    run_kinds(&world).await;
    world.node.machine().begin_poweroff().await.expect("poweroff");
    world.node.machine_mut().off(OFF_WITHIN).await.expect("off");
    let node = node_becomes(&world, "the node is not Ready", |ready| ready != "True").await;
    println!("OUTCOME poweroff, graceful 30/10: node {node}");
    settle(&world).await;
    let pods = outcome(&world, "poweroff, graceful 30/10");
    assert!(pods["dies"].phase == "Failed" && pods["dies"].reason == "Terminated", "{pods:#?}");
    // Exit code 0: Succeeded, though it was told to go and would have been restarted.
    assert!(pods["leaves"].phase == "Succeeded" && pods["leaves"].reason.is_empty(), "{pods:#?}");
    assert!(pods["stubborn"].phase == "Failed", "{pods:#?}");
    assert!(pods["stubborn"].container.starts_with("terminated 137"), "{pods:#?}");
    for name in ["dies", "leaves", "stubborn"] {
        let by_kubelet = Some(("True".to_owned(), "TerminationByKubelet".to_owned()));
        assert_eq!(pods[name].disruption, by_kubelet, "{pods:#?}");
    }
    assert_eq!(pods["done"].disruption, None);
    world.end().await;
}

#[tokio::test]
async fn reboot_with_graceful_shutdown_keeps_reports_and_changes_the_boot_id() {
    // An emulated machine takes 13 s for a pod that leaves 1 s after its SIGTERM: with 10 s for
    // the first group the kubelet gave up on all of its pods, and reported none.
    let periods = [(0, 40), (1_000_000, 5), (2_000_000_000, 30)];
    let kubelet = KubeletConfig::default().graceful_shutdown_by_priority(&periods);
    let mut world = World::new("reboot", kubelet).await;
    run_kinds(&world).await;
    let before = world.node.machine().boot_id().await.expect("boot id");
    world.node.machine().begin_reboot().await.expect("reboot");
    world.node.machine_mut().rebooted(&before, OFF_WITHIN).await.expect("reboot");
    let boot_id = world.node.machine().boot_id().await.expect("boot id");
    let nodes: Api<Node> = Api::all(world.client.clone());
    let seen_boot_id = async || {
        let node = nodes.get(world.node.name()).await.expect("get");
        let info = node.status.and_then(|status| status.node_info);
        info.map(|info| info.boot_id).unwrap_or_default()
    };
    lab::eventually("the API has the boot id", WITHIN, seen_boot_id, |id| *id == boot_id).await;
    world.node.ready(WITHIN).await.expect("ready");
    let pods = outcome(&world, "reboot, graceful 0:40 1e6:5 2e9:30");
    for name in ["dies", "leaves", "stubborn"] {
        assert!(pods[name].is_terminal() && pods[name].is_disrupted(), "{pods:#?}");
    }
    world.end().await;
}

#[tokio::test]
async fn power_cut_leaves_every_pod_running_in_the_api() {
    let mut world =
        World::with_controllers("cut", KubeletConfig::default().graceful_shutdown(30, 10)).await;
    run_kinds(&world).await;
    world.node.machine_mut().cut().await;
    let last = node_becomes(&world, "the node is Unknown", |ready| ready.starts_with("Unknown"));
    println!("OUTCOME power cut, graceful 30/10: node {}", last.await);
    settle(&world).await;
    let pods = outcome(&world, "power cut, graceful 30/10");
    for name in ["dies", "leaves", "stubborn", "critical"] {
        assert!(pods[name].phase == "Running" && !pods[name].is_disrupted(), "{pods:#?}");
    }
    world.end().await;
}

/// The twin of a lost report: what the kubelet says after the reboot of pods that it never ended.
#[tokio::test]
async fn reboot_without_graceful_shutdown_ends_never_pods_without_a_condition() {
    let mut world = World::new("reoff", KubeletConfig::default()).await;
    let pods = ["Never", "OnFailure", "Always"].map(|policy| {
        let pod = world.pod(&policy.to_lowercase(), &["obedient", "143", "0"]).host_network();
        pod.restart_policy(policy)
    });
    world.run(&pods).await;
    let before = world.node.machine().boot_id().await.expect("boot id");
    world.node.machine().begin_reboot().await.expect("reboot");
    world.node.machine_mut().rebooted(&before, OFF_WITHIN).await.expect("reboot");
    let ended = |history: &[Seen]| history.last().is_some_and(Seen::is_terminal);
    let again = |history: &[Seen]| {
        history.last().is_some_and(|last| last.container == "running" && last.restarts > 0)
    };
    let never = world.watcher.until("never", "ends", WITHIN, ended).await;
    for pod in ["onfailure", "always"] {
        world.watcher.until(pod, "runs again", WITHIN, again).await;
    }
    outcome(&world, "reboot, graceful off");
    let last = &never[never.len() - 1];
    assert!(last.phase == "Failed" && last.disruption.is_none(), "{never:#?}");
    world.end().await;
}
