//! Compares our pod GC with that of kube-controller-manager: the same pods on two APIs, each with
//! one of the two, must end alike.
//!
//! The comparison leaves out intended differences: timing; readiness; our own condition; and
//! DisruptionTarget where a node is out of service, which is switched off here.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::controller::{Controller, Setup};
use lab::{ControlPlane, Options, eventually};
use serde_json::{Value, json};

use super::stage::{Stage, now, pod, running, words};

/// Upstream needs up to 80 s for an orphan.
const WITHIN: Duration = Duration::from_mins(4);

/// An API with one of the two.
struct Side {
    control_plane: ControlPlane,
    stage: Stage,
    ours: Option<Controller>,
}

impl Side {
    async fn of_reference(flags: &[&str]) -> Self {
        let acting = "pod-garbage-collector-controller,disruption-controller";
        let controllers = format!("{acting},{QUIET_CONTROLLERS}");
        let options = Options::unique("podgc-kcm").controller_manager(&controllers);
        let options = flags.iter().fold(options, |it, flag| it.controller_manager_flag(flag));
        let control_plane = ControlPlane::start(options).await.expect("a control plane");
        let stage = Stage::without_controller(control_plane.cluster()).await;
        Self { control_plane, stage, ours: None }
    }

    async fn of_ours(flags: &[&str]) -> Self {
        let options = Options::unique("podgc-ours").controller_manager(QUIET_CONTROLLERS);
        let control_plane = ControlPlane::start(options).await.expect("a control plane");
        let stage = Stage::without_controller(control_plane.cluster()).await;
        let setup = Setup::debug(control_plane.dir()).argument("--pod-gc=instead");
        let setup = flags.iter().fold(setup, |setup, flag| setup.argument(flag));
        let ours = Controller::start(control_plane.cluster(), &setup).await;
        Self { control_plane, stage, ours: Some(ours.expect("our controller")) }
    }

    async fn stop(self) {
        self.stage.stop().await;
        if let Some(mut ours) = self.ours {
            ours.check().expect("our controller runs to the end");
            ours.stop().await;
        }
        self.control_plane.stop().await.expect("the control plane ends");
    }
}

/// Pods that end, then pods that stay.
const ENDING: [&str; 9] = [
    "orphan",
    "orphan-deleted",
    "orphan-succeeded",
    "orphan-failed",
    "orphan-twice",
    "orphan-tainted",
    "orphan-pending",
    "unscheduled-deleted",
    "out-deleted",
];
const STAYING: [&str; 8] = [
    "plain",
    "deleted",
    "unreachable-deleted",
    "out",
    "out-ready-deleted",
    "stale-old",
    "stale-timeless",
    "stale-not-yet",
];
/// Those that lose their DisruptionTarget: it is older than two minutes, or has no time. ([ST2])
const RESET: [&str; 2] = ["stale-old", "stale-timeless"];

fn is_reset(pod: &Pod) -> bool {
    words(pod).contains("DisruptionTarget=False")
}

/// Acts on the pods; returns when it deleted the node.
async fn act(stage: &Stage) -> Instant {
    let (gone, plain) = (stage.node("gone").await, stage.node("plain").await);
    let (out, out_ready) = (stage.node("out").await, stage.node("out-ready").await);
    let unreachable = stage.node("unreachable").await;
    let of = |name: &str| match name {
        name if name.starts_with("orphan") => gone.clone(),
        "out-deleted" | "out" => out.clone(),
        "out-ready-deleted" => out_ready.clone(),
        "unreachable-deleted" => unreachable.clone(),
        _ => plain.clone(),
    };
    for name in ENDING.iter().chain(&STAYING) {
        let mut pod = pod(name, Some(&of(name)));
        if *name == "unscheduled-deleted" {
            pod["spec"]["nodeName"] = Value::Null;
        }
        if *name == "orphan-twice" {
            let env = json!({"name": "A", "value": "1"});
            let port = json!({"containerPort": 80});
            pod["spec"]["containers"][0]["env"] = json!([env, env]);
            pod["spec"]["containers"][0]["ports"] = json!([port, port]);
        }
        stage.create(pod).await;
        if !matches!(*name, "unscheduled-deleted" | "orphan-pending") {
            stage.status(name, running(&now())).await;
        }
    }
    let tainted = json!([{"type": "DisruptionTarget", "status": "True",
        "reason": "DeletionByTaintManager", "message": "x", "lastTransitionTime": now()}]);
    stage.status("orphan-tainted", json!({"conditions": tainted})).await;
    let at = |minutes: i64| {
        let at = jiff::Timestamp::now() + jiff::SignedDuration::from_mins(minutes);
        json!(at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    };
    let stale = [("stale-old", at(-5)), ("stale-timeless", json!(null)), ("stale-not-yet", at(5))];
    for (name, at) in stale {
        let condition = json!({"type": "DisruptionTarget", "status": "True", "message": "x",
            "reason": "PreemptionByScheduler", "lastTransitionTime": at});
        stage.status(name, json!({"conditions": [condition]})).await;
    }
    stage.status("orphan-succeeded", json!({"phase": "Succeeded"})).await;
    stage.status("orphan-failed", json!({"phase": "Failed", "reason": "Own"})).await;
    for name in ENDING.iter().chain(&STAYING).filter(|name| name.ends_with("deleted")) {
        stage.delete(name).await;
    }
    stage.node_status(&out, "Unknown", "", "boot-1").await;
    stage.node_status(&unreachable, "Unknown", "", "boot-1").await;
    stage.out_of_service(&out).await;
    stage.out_of_service(&out_ready).await;
    stage.delete_node(&gone).await;
    Instant::now()
}

/// Its state without the intended differences.
fn comparable(pod: &Pod) -> String {
    let own = ["epilogue.dev/", "Ready=", "ContainersReady="];
    let all = words(pod);
    let kept = all.split(' ').filter(|word| !own.iter().any(|own| word.starts_with(own)));
    let status = pod.status.clone().unwrap_or_default();
    let target = status.conditions.iter().flatten().find(|it| it.type_ == "DisruptionTarget");
    let message = target.and_then(|target| target.message.clone()).unwrap_or_default();
    format!("{} {message} {:?}", kept.collect::<Vec<_>>().join(" "), status.reason)
}

/// The pods, and how long after the deletion of their node the last orphan ended.
async fn outcome(stage: &Stage) -> (Vec<(String, String)>, Duration) {
    let deleted = act(stage).await;
    let list = async || stage.pods.list(&ListParams::default()).await.expect("the pods").items;
    let ended = |pods: &Vec<Pod>| {
        let is_over = |pod: &&Pod| pod.metadata.deletion_grace_period_seconds == Some(0);
        let reset = pods.iter().filter(|pod| is_reset(pod)).count();
        pods.iter().filter(is_over).count() >= ENDING.len() && reset >= RESET.len()
    };
    let pods = eventually("the pods that end", WITHIN, list, ended).await;
    let mut all: Vec<(String, String)> = pods
        .iter()
        .map(|pod| (pod.metadata.name.clone().unwrap_or_default(), comparable(pod)))
        .collect();
    all.sort();
    (all, deleted.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_end_the_same_pods_in_the_same_way() {
    let ours = Side::of_ours(&[
        "--out-of-service-disruption-target=false",
        "--pod-gc-quarantine=1s",
        "--stale-disruption-reset=all",
    ]);
    let (ours, reference) = tokio::join!(ours, Side::of_reference(&[]));
    let ((by_us, _), (by_reference, after)) =
        tokio::join!(outcome(&ours.stage), outcome(&reference.stage));
    ours.stop().await;
    reference.stop().await;
    assert_eq!(by_us.len(), ENDING.len() + STAYING.len());
    assert_eq!(by_us, by_reference);
    for (name, shown) in by_us.iter().filter(|(name, _)| name.starts_with("stale")) {
        assert_eq!(shown.contains("=False"), RESET.contains(&name.as_str()), "{name}: {shown}");
    }
    // Two passes, 20 s apart, and a quarantine of 40 s. ([GC9])
    assert!((39..100).contains(&after.as_secs()), "upstream failed orphans after {after:?}");
}

/// Creates finished pods, each a second younger than the one before; returns the remaining ones.
async fn left(stage: &Stage, count: usize) -> Vec<String> {
    let node = stage.node("n").await;
    let rows = [
        ("c", "Failed", ""),
        ("b", "Succeeded", ""),
        ("a", "Failed", "Evicted"),
        ("runs", "Running", ""),
        ("d", "Failed", ""),
    ];
    for (name, phase, reason) in rows {
        let mut pod = pod(name, Some(&node));
        pod["metadata"]["finalizers"] = Value::Null;
        stage.create(pod).await;
        stage.status(name, json!({"phase": phase, "reason": reason})).await;
        let second = now();
        let clock = async || now();
        eventually("the next second", WITHIN, clock, |now| *now > second).await;
    }
    let list = async || {
        let pods = stage.pods.list(&ListParams::default()).await.expect("the pods").items;
        pods.into_iter().filter_map(|pod| pod.metadata.name).collect::<Vec<String>>()
    };
    let mut left = eventually("few are left", WITHIN, list, |left| left.len() == count).await;
    left.sort();
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_keep_the_same_finished_pods() {
    let flags = ["--terminated-pod-gc-threshold=1"];
    let (ours, reference) = tokio::join!(Side::of_ours(&flags), Side::of_reference(&flags));
    let (by_us, by_reference) = tokio::join!(left(&ours.stage, 2), left(&reference.stage, 2));
    ours.stop().await;
    reference.stop().await;
    assert_eq!(by_us, by_reference);
    assert_eq!(by_us, ["d", "runs"]);
}
