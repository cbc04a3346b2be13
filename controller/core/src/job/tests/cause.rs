//! Tests the causes of ends, and the sentences about them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::builders::{PodBuilder, ago, pod};
use crate::job::{Cause, Ending};

fn failed() -> PodBuilder {
    pod("p", "Failed").on_node()
}

fn with_condition(pod: PodBuilder, kind: &str, reason: &str) -> PodBuilder {
    let condition = json!({"type": kind, "status": "True", "reason": reason});
    pod.with(|pod| match pod["status"]["conditions"].as_array_mut() {
        Some(all) => all.push(condition),
        None => pod["status"]["conditions"] = json!([condition]),
    })
}

fn disrupted(reason: &str) -> PodBuilder {
    with_condition(failed().ended(143, 5), "DisruptionTarget", reason)
}

fn with_reason(pod: PodBuilder, reason: &str) -> PodBuilder {
    pod.with(|pod| pod["status"]["reason"] = reason.into())
}

fn container(name: &str, state: &Value) -> Value {
    json!({"name": name, "restartCount": 0, "state": state})
}

fn oom_killed(code: i32) -> PodBuilder {
    let ended = json!({"terminated": {"exitCode": code, "reason": "OOMKilled"}});
    failed().with(|pod| pod["status"]["containerStatuses"] = json!([container("main", &ended)]))
}

#[test]
fn each_end_has_its_cause_and_its_sentence() {
    let waiting = json!({"waiting": {"reason": "ImagePullBackOff"}});
    let not_started = json!({"terminated": {"exitCode": 128, "reason": "StartError"}});
    let of = |state: Value| {
        failed().with(|pod| pod["status"]["containerStatuses"] = json!([container("main", &state)]))
    };
    let in_limit = |pod| with_condition(pod, "epilogue.dev/OOMKilled", "ContainerLimit");
    let of_node = |pod| with_condition(pod, "epilogue.dev/OOMKilled", "NodeOutOfMemory");
    let by_gc = |reason| with_condition(disrupted("DeletionByPodGC"), "epilogue.dev/Ended", reason);
    let lost = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}});
    for (pod, label, sentence) in [
        (failed().ended(1, 5), "ExitCode", "pod p on node-1: container main exited with code 1"),
        (failed().ended(139, 5), "ExitCode", "…: container main exited with code 139 (SIGSEGV)"),
        (failed().ended(200, 5), "ExitCode", "…: container main exited with code 200"),
        (oom_killed(137), "ContainerOOM", "…: container main was OOMKilled (exit code 137)"),
        (
            in_limit(oom_killed(137)),
            "ContainerOOM",
            "…: container main was OOMKilled: it reached its own memory limit",
        ),
        (
            of_node(oom_killed(137)),
            "NodeOOM",
            "…: container main was OOMKilled: the node was out of memory",
        ),
        (of(not_started), "StartFailed", "…: container main could not be started"),
        (
            with_condition(of(waiting), "epilogue.dev/PendingTimeout", "PendingTimeout"),
            "StartFailed",
            "… did not start within pending-timeout (ImagePullBackOff)",
        ),
        (
            with_reason(failed().ended(137, 5), "DeadlineExceeded"),
            "PodDeadline",
            "… reached its activeDeadlineSeconds",
        ),
        (
            with_reason(failed().ended(137, 5), "Evicted"),
            "StorageLimit",
            "… was evicted: it exceeded a storage limit of its own",
        ),
        (
            with_reason(failed(), "SysctlForbidden"),
            "RejectedByKubelet",
            "… was rejected by its kubelet (SysctlForbidden)",
        ),
        (
            with_condition(
                with_reason(failed(), "OutOfcpu"),
                "DisruptionTarget",
                "RejectedByKubelet",
            ),
            "RejectedByKubelet",
            "… was rejected by its kubelet (OutOfcpu)",
        ),
        (
            disrupted("EvictionByEvictionAPI"),
            "EvictionByEvictionAPI",
            "… was disrupted (EvictionByEvictionAPI)",
        ),
        (disrupted("ByACloud\n"), "OtherDisruption", "… was disrupted (ByACloud?)"),
        (disrupted("LostByNode"), "LostByNode", "… was disrupted (LostByNode)"),
        (by_gc("NodeGone"), "NodeGone", "… was ended: its node is gone"),
        (
            by_gc("ForceFail"),
            "ForceFailed",
            "… was failed without proof, as force-fail-after allows",
        ),
        (by_gc("NodeDrained"), "DeletionByPodGC", "… was disrupted (DeletionByPodGC)"),
        (pod("p", "Running").terminating(), "Deleted", "… was deleted, and no condition says why"),
        (of(lost), "Unknown", "…: how container main ended is not known"),
        (failed(), "Unknown", "… failed, and its status does not say why"),
    ] {
        let pod = pod.build();
        assert_eq!(Cause::of(&pod).label(), label, "{pod:?}");
        assert_eq!(Ending(&pod).to_string(), sentence.replace('…', "pod p on node-1"));
    }
}

/// The one that failed first, whatever its place; what a sidecar does decides nothing.
#[test]
fn the_container_that_decided_is_named() {
    let ended = |code: i32, seconds: i64| {
        let at = ago(seconds).to_string();
        json!({"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at}})
    };
    let pod = failed().with(|pod| {
        pod["spec"]["initContainers"] = json!([{"name": "mesh", "restartPolicy": "Always"}]);
        pod["status"]["containerStatuses"] = json!([
            container("late", &ended(137, 5)),
            container("first", &ended(3, 9)),
            container("done", &ended(0, 20)),
        ]);
        pod["status"]["initContainerStatuses"] = json!([container("mesh", &ended(2, 30))]);
    });
    let sentence = "pod p on node-1: container first exited with code 3";
    assert_eq!(Ending(&pod.build()).to_string(), sentence);
    let alone = failed().with(|pod| {
        pod["spec"]["initContainers"] = json!([{"name": "mesh", "restartPolicy": "Always"}]);
        pod["status"]["containerStatuses"] = json!([container("main", &ended(0, 5))]);
        pod["status"]["initContainerStatuses"] = json!([container("mesh", &ended(2, 3))]);
    });
    assert_eq!(Cause::of(&alone.build()), Cause::Unknown);
}

/// Its container had crashed before, and runs again when somebody deletes the pod.
#[test]
fn an_earlier_crash_is_no_cause_of_a_deletion() {
    let again = pod("p", "Running").on_node().terminating().with(|pod| {
        pod["status"]["containerStatuses"] = json!([{
            "name": "main", "restartCount": 1, "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 2, "reason": "Error"}},
        }]);
    });
    assert_eq!(Cause::of(&again.build()), Cause::Deleted);
}

/// A container that waits for its next start has its last end in another field.
#[test]
fn the_last_end_of_a_container_that_is_restarted_counts() {
    let pod = pod("p", "Running").index(4).with(|pod| {
        pod["status"]["containerStatuses"] = json!([{
            "name": "main", "restartCount": 2,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 2, "reason": "Error",
                                         "finishedAt": ago(5).to_string()}},
        }]);
    });
    let sentence = "pod p (index 4): container main exited with code 2";
    assert_eq!(Ending(&pod.build()).to_string(), sentence);
}

#[test]
fn names_of_causes_are_different() {
    let labels: BTreeSet<&str> = Cause::ALL.into_iter().map(Cause::label).collect();
    assert_eq!(labels.len(), Cause::ALL.len());
}
