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

/// A node with this readiness, and with the taint of its agent or without.
fn ready(readiness: &str, is_tainted: bool) -> Event {
    let taints =
        if is_tainted { json!([{"key": "epilogue.dev/shutting-down"}]) } else { json!([]) };
    let node = json!({
        "metadata": {"name": "n", "annotations": {"epilogue.dev/readiness": readiness}},
        "spec": {"taints": taints}, "status": {"nodeInfo": {"bootID": "boot"}}});
    let node: WireNode = serde_json::from_value(node).expect("must be a node");
    Event::Node(WatchEvent::Shown(NodeView::read(&node)))
}

/// Two running pods of a Job with `epilogue.dev/replace-early`, the second created with the notice.
fn with_early_job(value: &str) -> Cluster {
    let mut cluster = Cluster(ClusterState::new(Batching::default(), Some(Settings::default())));
    cluster.pods_begin();
    cluster.pods_end(10);
    cluster.jobs(WatchEvent::ListBegins);
    let mut asks = job("uid-a", 11, &json!({}));
    asks.annotations.insert("epilogue.dev/replace-early".to_owned(), value.to_owned());
    cluster.jobs(WatchEvent::Shown(asks));
    cluster.jobs_end(11);
    for (name, seconds) in [("old", -9), ("new", 2)] {
        let created = (now() + SignedDuration::from_secs(seconds)).to_string();
        let mut pod = json!({});
        pod["metadata"] = json!({"name": name, "namespace": "default", "uid": name,
            "resourceVersion": "12", "creationTimestamp": created,
            "finalizers": ["batch.kubernetes.io/job-tracking"],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "a",
                                 "uid": "uid-a", "controller": true}]});
        pod["spec"] = json!({"nodeName": "n"});
        pod["status"] = json!({"phase": "Running"});
        let pod = serde_json::from_value(pod).expect("must be a pod");
        cluster.0.handle_pod(WatchEvent::Shown(pod), &at(0));
    }
    cluster
}

const CALM: &str = "mode=replace;lock=held;granted=40;wanted=40";
const CERTAIN: &str =
    "mode=replace;lock=held;granted=40;wanted=40;notice=aws;ends=2026-01-01T00:02:00Z";

#[test]
fn a_job_that_asks_learns_of_a_notice_that_is_certain_and_keeps_pods_away() {
    let mut cluster = with_early_job("true");
    let noticed = |cluster: &Cluster| {
        let memory = cluster.0.input(&key(), &at(2_000)).expect("must be there").memory;
        memory.noticed.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let jobs = |reaction: Reaction| {
        let is_job = |entry: &Entry| matches!(entry, Entry::Job(..));
        reaction.entries.into_iter().filter(is_job).collect::<Vec<_>>()
    };
    let show = |cluster: &mut Cluster, event| jobs(cluster.0.handle(event, &at(2_000)));
    assert_eq!(show(&mut cluster, ready(CALM, false)), []);
    let uncertain = format!("{CALM};notice=aws");
    for event in [ready(&uncertain, true), ready(CERTAIN, false)] {
        assert_eq!(show(&mut cluster, event), []);
        assert_eq!(noticed(&cluster), [""; 0]);
    }
    assert_eq!(show(&mut cluster, ready(CERTAIN, true)), [at_once()]);
    assert_eq!(noticed(&cluster), ["old"]);
    assert_eq!(show(&mut cluster, ready(CERTAIN, true)), [], "nothing new");
    assert_eq!(show(&mut cluster, ready(CALM, false)), [at_once()], "it is withdrawn");
    assert_eq!(noticed(&cluster), [""; 0]);
}

#[test]
fn a_job_that_does_not_ask_has_nothing_to_do_at_a_notice() {
    let mut cluster = with_early_job("false");
    let reaction = cluster.0.handle(ready(CERTAIN, true), &at(2_000));
    assert!(!reaction.entries.iter().any(|entry| matches!(entry, Entry::Job(..))));
    assert!(memory(&cluster).noticed.is_empty());
}

#[test]
fn a_notice_is_the_first_sign_of_the_pods_that_are_replaced_by_it() {
    let mut cluster = with_early_job("true");
    cluster.0.handle(ready(CERTAIN, true), &at(2_000));
    let successor = cluster.0.handle_pod(bound("a", 13, "Pending", false), &at(2_030));
    assert_eq!(phases(&successor), [("replaced", 30)]);
    let runs = cluster.0.handle_pod(bound("a", 14, "Running", false), &at(4_000));
    assert_eq!(phases(&runs), [("running", 2_000)]);
}
