//! (1) and (4): another writer sets `phase=Failed` on a pod whose containers run. ([API13],
//! [API14], [API16])

use std::time::Duration;

use lab::vm::{Seen, TestPod};
use serde_json::{Value, json};

use super::Leaves;
use crate::world::{World, failed, since};

const POLICIES: [&str; 3] = ["Never", "OnFailure", "Always"];

/// Grace of the pods that exit. It is longer than any step of the API and an emulated machine. So
/// `Failed` before the container's end cannot be mistaken for `Failed` after it.
const GRACE_SECONDS: u32 = 8;

/// The kubelet compares its statuses with the API every 10 seconds; the rest is for a slow machine.
const DECIDED_WITHIN: Duration = Duration::from_mins(1);

/// `Failed` with a changed annotation: an update in the kubelet's eyes, not only a status.
fn failed_and_annotated() -> Value {
    let mut patch = failed();
    patch["metadata"] = json!({"annotations": {"lab.local/mark": "1"}});
    patch
}

/// `Failed` with Ready=False, as every writer has to send it. ([API5])
fn failed_and_unready() -> Value {
    let mut patch = failed();
    let conditions = patch["status"]["conditions"].as_array_mut().expect("conditions");
    conditions.push(json!({
        "type": "Ready", "status": "False", "reason": "PodFailed", "message": "",
    }));
    patch
}

fn reverted(history: &[Seen]) -> bool {
    history.iter().skip_while(|seen| !seen.is_terminal()).any(|seen| !seen.is_terminal())
}

fn ended(history: &[Seen]) -> bool {
    history.last().is_some_and(|last| last.is_terminal() && last.has_ended())
}

/// How long `Failed` was in the API while the container ran.
fn lead(history: &[Seen]) -> i64 {
    let first = history.iter().find(|seen| seen.phase == "Failed").expect("Failed was seen");
    let end = history.last().and_then(|last| last.finished_at).expect("the container ended");
    end.duration_since(first.at).as_secs()
}

fn stubborn(world: &World, kind: &str, policy: &str) -> TestPod {
    world
        .pod(&format!("{kind}-{}", policy.to_lowercase()), &["stubborn"])
        .restart_policy(policy)
        .grace_seconds(GRACE_SECONDS)
        .host_network()
}

#[test]
fn failed_by_others_is_reverted_or_comes_before_the_end() {
    super::play(Leaves::Pods, async |world| failed_under_a_live_kubelet(world).await);
}

async fn failed_under_a_live_kubelet(world: &World) {
    let mut pods = Vec::new();
    for policy in POLICIES {
        pods.extend(["quiet", "noted"].map(|kind| stubborn(world, kind, policy)));
    }
    pods.push(stubborn(world, "gated", "Never").readiness_gate());
    pods.push(stubborn(world, "unready", "Never").readiness_gate());
    world.run(&pods).await;

    for policy in POLICIES.map(str::to_lowercase) {
        world.patch_status(&format!("quiet-{policy}"), &failed()).await;
        world.patch_status(&format!("noted-{policy}"), &failed_and_annotated()).await;
    }
    world.patch_status("gated-never", &failed()).await;
    world.patch_status("unready-never", &failed_and_unready()).await;

    for policy in POLICIES.map(str::to_lowercase) {
        a_changed_annotation_ends_it_behind_failed(world, &format!("noted-{policy}")).await;
        quiet_pod_is_reverted_or_ends_behind_failed(world, &format!("quiet-{policy}")).await;
    }
    let gated = world.scene.watcher.until("gated-never", "ends", DECIDED_WITHIN, ended).await;
    println!("OUTCOME gated: Failed {} s before the container's end", lead(&gated));
    assert!(lead(&gated) >= 2, "{gated:#?}");
    // Ready is False already, so the change that would trigger the kubelet at once is missing.
    quiet_pod_is_reverted_or_ends_behind_failed(world, "unready-never").await;
}

async fn a_changed_annotation_ends_it_behind_failed(world: &World, pod: &str) {
    let history = world.scene.watcher.until(pod, "ends", DECIDED_WITHIN, ended).await;
    let last = history.last().expect("a state");
    println!(
        "OUTCOME {pod}: reverted={} Failed {} s before the end; {last:?}",
        reverted(&history),
        lead(&history)
    );
    assert!(last.phase == "Failed" && last.is_disrupted(), "{history:#?}");
    assert!(lead(&history) >= 2, "Failed came before the container's end: {history:#?}");
}

async fn quiet_pod_is_reverted_or_ends_behind_failed(world: &World, pod: &str) {
    let either = |history: &[Seen]| ended(history) || reverted(history);
    let history = world.scene.watcher.until(pod, "decided", DECIDED_WITHIN, either).await;
    let last = history.last().expect("a state");
    let first = history.iter().find(|seen| seen.is_terminal()).expect("Failed was seen");
    println!(
        "OUTCOME {pod}: reverted={} after {:.1} s; {last:?}",
        reverted(&history),
        since(first, last)
    );
    assert!(last.is_disrupted(), "the condition stays in either case: {history:#?}");
    if reverted(&history) {
        assert!(last.phase == "Running" && last.reason.is_empty(), "{history:#?}");
        assert!(last.container == "running" && last.restarts == 0, "{history:#?}");
    } else {
        assert!(lead(&history) >= 2, "{history:#?}");
    }
}

#[test]
fn failed_written_while_the_kubelet_is_down_is_adopted() {
    super::play(Leaves::Pods, async |world| failed_while_the_kubelet_is_down(world).await);
}

async fn failed_while_the_kubelet_is_down(world: &World) {
    let pods = POLICIES.map(|policy| stubborn(world, "down", policy));
    world.run(&pods).await;
    world.scene.node.run("systemctl stop kubelet").await.expect("stop the kubelet");
    for policy in POLICIES.map(str::to_lowercase) {
        world.patch_status(&format!("down-{policy}"), &failed()).await;
    }
    let running = world.scene.node.run("ctr -n k8s.io tasks list -q | wc -l").await.expect("list");
    assert_eq!(running.trim(), "6", "three sandboxes and three containers run on");
    let start = world.scene.node.start_kubelet_with(&super::watchful()).await;
    start.expect("start the kubelet");
    for policy in POLICIES.map(str::to_lowercase) {
        let pod = format!("down-{policy}");
        let history = world.scene.watcher.until(&pod, "ends", DECIDED_WITHIN, ended).await;
        let last = history.last().expect("a state");
        println!("OUTCOME {pod}: reverted={} {last:?}", reverted(&history));
        assert!(!reverted(&history) && last.is_disrupted(), "{history:#?}");
        assert!(last.phase == "Failed" && last.restarts == 0, "{history:#?}");
    }
}
