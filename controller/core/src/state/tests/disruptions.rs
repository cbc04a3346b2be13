//! Tests what the state measures of disruptions: of which pods, and from which first sign on.

use jiff::SignedDuration;

use super::*;
use crate::podgc::{NodeView, WireNode};

fn at(millis: i64) -> Now {
    Now { time: now() + SignedDuration::from_millis(millis), ..quiet() }
}

fn node(state: &str) -> WatchEvent<NodeView> {
    let node = json!({"metadata": {"name": "n", "annotations": {"epilogue.dev/state": state}},
                      "status": {"nodeInfo": {"bootID": "boot"}}});
    let node: WireNode = serde_json::from_value(node).expect("must be a node");
    WatchEvent::Shown(NodeView::read(&node))
}

fn shutting_down() -> WatchEvent<NodeView> {
    node("shutting-down;boot=boot;since=2026-01-01T00:00:00Z")
}

/// A pod of a Job of this name, on the node.
fn bound(job: &str, version: u64, phase: &str, is_marked: bool) -> WatchEvent<WirePod> {
    let conditions = json!([{"type": "DisruptionTarget", "status": "True",
        "reason": "TerminationByKubelet", "lastTransitionTime": "2026-01-01T00:00:00Z",
        "message": "Pod was terminated in response to imminent node shutdown."}]);
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": job,
                       "uid": format!("uid-{job}"), "controller": true});
    let pod = json!({
        "metadata": {"name": job, "namespace": "default", "uid": format!("pod-of-{job}"),
                     "resourceVersion": version.to_string(), "ownerReferences": [owner],
                     "finalizers": ["batch.kubernetes.io/job-tracking"]},
        "spec": {"nodeName": "n"},
        "status": {"phase": phase, "conditions": if is_marked { conditions } else { json!([]) }},
    });
    WatchEvent::Shown(serde_json::from_value(pod).expect("must be a pod"))
}

fn with_nodes() -> Cluster {
    let state = ClusterState::new(Batching::default(), Some(Settings::default()));
    let mut cluster = Cluster(state);
    cluster.jobs(WatchEvent::Shown(job("uid-a", 10, &json!({}))));
    cluster
}

fn phases(reaction: &Reaction) -> Vec<(&'static str, u128)> {
    let all = reaction.disruption_times.phases.iter();
    all.map(|seen| (seen.phase.label(), seen.after.as_millis())).collect()
}

#[test]
fn the_node_that_says_that_it_shuts_down_is_the_first_sign() {
    let mut cluster = with_nodes();
    cluster.0.handle(Event::Node(node("idle")), &at(0));
    cluster.0.handle_pod(bound("a", 11, "Running", false), &at(0));
    cluster.0.handle(Event::Node(shutting_down()), &at(1_200));
    cluster.0.handle(Event::Node(shutting_down()), &at(1_300));
    let marked = cluster.0.handle_pod(bound("a", 12, "Running", true), &at(1_350));
    assert_eq!(phases(&marked), [("marked", 150)]);
    let reported = cluster.0.handle_pod(bound("a", 13, "Failed", true), &at(3_200));
    assert_eq!(phases(&reported), [("ended", 2_000), ("reported", 2_000)]);
}

#[test]
fn a_shutdown_that_is_cancelled_is_no_sign_and_one_seen_late_has_its_own_time() {
    let mut cluster = with_nodes();
    cluster.0.handle(Event::Node(shutting_down()), &at(1_200));
    cluster.0.handle_pod(bound("a", 11, "Running", false), &at(1_200));
    let marked = cluster.0.handle_pod(bound("a", 12, "Running", true), &at(1_500));
    assert_eq!(phases(&marked), [("marked", 1_500)]);
    cluster.0.handle_pod(bound("a", 13, "Running", false), &at(2_000));
    cluster.0.handle(Event::Node(node("idle")), &at(2_000));
    let marked = cluster.0.handle_pod(bound("a", 14, "Running", true), &at(3_000));
    assert_eq!(phases(&marked), [("marked", 0)]);
}

#[test]
fn only_pods_of_our_jobs_are_measured_and_only_while_their_job_goes_on() {
    let mut cluster = with_nodes();
    cluster.0.handle_pod(bound("other", 11, "Running", false), &at(0));
    assert_eq!(phases(&cluster.0.handle_pod(bound("other", 12, "Running", true), &at(1))), []);
    cluster.0.handle_pod(bound("a", 13, "Running", false), &at(0));
    let marked = cluster.0.handle_pod(bound("a", 14, "Running", true), &at(1));
    assert_eq!(phases(&marked), [("marked", 0)]);
    let failed = json!({"conditions": [{"type": "Failed", "status": "True"}]});
    cluster.jobs(WatchEvent::Shown(job("uid-a", 15, &failed)));
    assert_eq!(phases(&cluster.0.handle_pod(bound("a", 16, "Failed", true), &at(2))), []);
}
