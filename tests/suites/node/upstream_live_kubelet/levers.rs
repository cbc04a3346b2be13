//! (2), (3) and (5): a condition that the kubelet has seen, the deadline as a way to terminate a
//! pod, and a pod deleted while its image is pulled. ([ST8], [API17], [PT9], [PT13])

use std::time::Duration;

use lab::vm::{KubeletConfig, Seen};
use serde_json::json;

use super::Leaves;
use crate::world::{World, disruption, failed, since};

const WITHIN: Duration = Duration::from_secs(90);

fn terminal(history: &[Seen]) -> bool {
    history.last().is_some_and(Seen::is_terminal)
}

/// A kubelet whose worker syncs its pod every 3 seconds (default: every 60 to 90), and logs it.
pub(super) fn watchful(kubelet: KubeletConfig) -> KubeletConfig {
    kubelet.set("syncFrequency", json!("3s")).set("logging", json!({"verbosity": 4}))
}

#[test]
fn condition_once_seen_comes_back_at_the_end_though_cleared() {
    super::play(Leaves::Pods, async |world| condition_once_seen(world).await);
}

async fn condition_once_seen(world: &World) {
    world.scene.node.run("systemctl stop kubelet").await.expect("stop the kubelet");
    let start = world.scene.node.start_kubelet_with(&super::watchful()).await;
    start.expect("start the kubelet");
    let pods = ["seen", "unmarked"]
        .map(|name| world.pod(name, &["obedient", "3", "0"]).grace_seconds(5).host_network());
    world.run(&pods).await;
    world.patch_status("seen", &json!({"status": {"conditions": [disruption("True")]}})).await;
    synced_twice(world, "seen").await;
    world.patch_status("seen", &json!({"status": {"conditions": [disruption("False")]}})).await;
    let cleared = |history: &[Seen]| {
        history.last().is_some_and(|last| last.disruption.is_some() && !last.is_disrupted())
    };
    world.scene.watcher.until("seen", "cleared", WITHIN, cleared).await;
    // Through the runtime, not the API: the kubelet finds a container that ended.
    world.scene.node.run("pkill -TERM -f '[c]ontainer obedient'").await.expect("kill");
    let seen = world.scene.watcher.until("seen", "ends", WITHIN, terminal).await;
    let unmarked = world.scene.watcher.until("unmarked", "ends", WITHIN, terminal).await;
    let (last, other) = (&seen[seen.len() - 1], &unmarked[unmarked.len() - 1]);
    println!("OUTCOME sticky: {last:?}\nOUTCOME control: {other:?}");
    assert!(last.phase == "Failed" && other.phase == "Failed", "{seen:#?} {unmarked:#?}");
    assert_eq!(other.disruption, None);
    assert!(last.is_disrupted(), "the kubelet brought it back: {seen:#?}");
}

/// One sync may have begun before the write that it should see.
async fn synced_twice(world: &World, pod: &str) {
    let count = format!("journalctl -u kubelet -o cat | grep -c 'SyncPod enter.*/{pod}' || true");
    let looks = async || -> u32 {
        let said = world.scene.node.run(&count).await.expect("the kubelet's journal");
        said.trim().parse().expect("a number")
    };
    let before = looks().await;
    lab::eventually("the worker looks twice", WITHIN, looks, |looks| *looks >= before + 2).await;
}

#[test]
fn deadline_ends_a_pod_and_failed_comes_after_its_containers() {
    super::play(Leaves::Pods, async |world| deadline(world).await);
}

async fn deadline(world: &World) {
    let cases = [
        ("stubborn-never", "Never", &["stubborn"][..]),
        ("stubborn-always", "Always", &["stubborn"]),
        ("obedient-onfailure", "OnFailure", &["obedient", "0", "2"]),
    ];
    let pods = cases.map(|(name, policy, command)| {
        world.pod(name, command).restart_policy(policy).grace_seconds(8).host_network()
    });
    world.run(&pods).await;
    let marked = json!({"status": {"conditions": [disruption("True")]}});
    for (pod, _, _) in cases {
        world.patch_status(pod, &marked).await;
        world.patch(pod, &json!({"spec": {"activeDeadlineSeconds": 1}})).await;
    }
    for (pod, _, _) in cases {
        let history = world.scene.watcher.until(pod, "ends", WITHIN, terminal).await;
        let failed = &history[history.len() - 1];
        let end = failed.finished_at.expect("the terminal status must tell the container's end");
        println!("OUTCOME {pod}: {failed:?}, container ended {end}");
        assert!(failed.has_ended() && failed.at >= end, "{history:#?}");
        assert!(failed.phase == "Failed" && failed.reason == "DeadlineExceeded", "{history:#?}");
        assert_eq!(failed.disruption, Some(("True".into(), "LabTest".into())), "{history:#?}");
        assert_eq!(failed.restarts, 0);
    }
}

/// If the kubelet has pulled an image by one name, it reports that the image was never there by
/// another name.
#[test]
fn pod_deleted_during_a_pull_stays_pending_until_the_pull_ends() {
    super::play(Leaves::Traces, async |world| hanging_pull(world).await);
}

async fn hanging_pull(world: &World) {
    let registry = "systemd-run --quiet --unit=registry /opt/tools/container registry \
                    127.0.0.1:5000 /run/open";
    world.scene.node.run(registry).await.expect("start the registry");
    for name in ["deleted", "written"] {
        let pod = world
            .pod(name, &["obedient", "0", "1"])
            .image(&format!("127.0.0.1:5000/{name}:1"))
            .finalizer("lab.local/keep")
            .grace_seconds(3)
            .host_network();
        world.create(&pod).await;
    }
    for name in ["deleted", "written"] {
        let asked = format!("journalctl -u registry -o cat | grep -c {name} || true");
        let what = format!("the pull of {name} hangs");
        lab::eventually(
            &what,
            WITHIN,
            async || world.scene.node.run(&asked).await.expect("journal").trim().to_owned(),
            |count| count != "0",
        )
        .await;
        world.delete(name).await;
    }
    world.patch_status("written", &failed()).await;
    let reverted = |history: &[Seen]| {
        history.iter().skip_while(|seen| !seen.is_terminal()).any(|seen| !seen.is_terminal())
    };
    // A Job's controller may have acted on it meanwhile.
    let written = world.scene.watcher.until("written", "reverted", WITHIN, reverted).await;
    let first = written.iter().find(|seen| seen.is_terminal()).expect("Failed was seen");
    let last = &written[written.len() - 1];
    println!("OUTCOME Failed during the pull: back after {:.1} s: {last:?}", since(first, last));
    assert!(last.phase == "Pending" && last.is_disrupted(), "{written:#?}");
    let deleted = world.scene.watcher.history("deleted");
    assert!(!deleted.iter().any(Seen::is_terminal), "grace and more went by: {deleted:#?}");

    world.scene.node.run("touch /run/open").await.expect("open the registry");
    for name in ["deleted", "written"] {
        let history = world.scene.watcher.until(name, "ends", WITHIN, terminal).await;
        let started = history.iter().any(|seen| seen.container == "running")
            || history.iter().any(|seen| seen.container.starts_with("terminated"));
        assert!(started, "{history:#?}");
        println!("OUTCOME {name}, pull ended: started={started}; {:?}", history[history.len() - 1]);
        world
            .patch(
                name,
                &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["lab.local/keep"]}}),
            )
            .await;
        let gone = |history: &[Seen]| history.last().is_some_and(|last| last.gone);
        world.scene.watcher.until(name, "goes", WITHIN, gone).await;
    }
}
