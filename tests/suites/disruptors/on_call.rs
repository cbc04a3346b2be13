//! What somebody on call learns from `explain` and `report`: what a Job waits for, and when the pods
//! and their nodes are gone, how each pod ended.

use kube::api::{DeleteParams, ListParams};
use lab::eventually;
use lab::paths::program;
use serde_json::Value;
use tokio::process::Command;

use super::cause;
use super::pod_log::Life;
use super::stage::{LATER, Stage};

/// What the plugin prints in this namespace, as JSON.
async fn plugin(stage: &Stage, arguments: &[&str]) -> Value {
    let output = Command::new(program("kubectl-epilogue"))
        .args(arguments)
        .args(["-o", "json", "-n", stage.namespace(), "--kubeconfig"])
        .arg(stage.kubeconfig())
        .output()
        .await
        .expect("the program must be startable");
    let error = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{arguments:?}: {error}"))
}

/// Takes everything away that shows how the pods ended, other than Jobs and events.
async fn all_is_gone(stage: &Stage) {
    let at_once = DeleteParams::default().grace_period(0);
    let all = ListParams::default();
    stage.pods.delete_collection(&at_once, &all).await.expect("the pods are deleted");
    let left = async || stage.pods.list(&all).await.expect("the pods").items.len();
    eventually("the pods are gone", LATER, left, |left| *left == 0).await;
    stage.remove_nodes().await;
}

/// The scheduler says of the Job's pod that no node has room, and so does `explain`.
pub(crate) async fn waits_for_room(stage: &Stage, job: &str) {
    let job = format!("job/{job}");
    let explained = async || plugin(stage, &["explain", &job]).await.to_string();
    let says =
        |text: &String| text.contains("pod-unscheduled") && text.contains("Insufficient cpu");
    eventually("explain has the scheduler's words", LATER, explained, says).await;
}

pub(crate) async fn each_end_is_explained(stage: &Stage) {
    let lost: Vec<Life> = stage.log.disrupted();
    assert_eq!(lost.len(), 11, "{lost:?}");
    all_is_gone(stage).await;
    for life in &lost {
        let job = format!("job/{}", life.job);
        let answer = plugin(stage, &["explain", &job]).await;
        let ends = answer["ends"]["last"].as_array().cloned().unwrap_or_default();
        let is_it = |end: &&Value| {
            end["pod"] == *life.name
                && end["node"].as_str() == life.node.as_deref()
                && end["cause"].as_str() == life.disruption.as_deref().map(cause)
        };
        assert_eq!(ends.iter().filter(is_it).count(), 1, "{life:?}: {answer:#}");
    }
    let answer = plugin(stage, &["report", "--since=1h"]).await;
    let ends = &answer["ends"];
    assert_eq!((&ends["total"], &ends["disruptions"]), (&11.into(), &11.into()), "{ends:#}");
    for (cause, count) in [
        ("EvictionByEvictionAPI", 5),
        ("PreemptionByScheduler", 2),
        ("DeletionByTaintManager", 2),
        ("NodeGone", 2),
    ] {
        let all = ends["by_cause"].as_array().into_iter().flatten();
        let of = all.filter(|it| it["cause"] == cause).map(|it| &it["ends"]);
        assert_eq!(of.collect::<Vec<_>>(), [&Value::from(count)], "{cause}: {ends:#}");
    }
}
