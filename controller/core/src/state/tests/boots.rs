//! Tests what a snapshot says of the boots of the nodes of failed pods.

use jiff::SignedDuration;

use super::*;
use crate::job::NodeBoots;
use crate::podgc::{NodeView, WireNode};

fn node(boot: Option<&str>) -> Event {
    let boot = boot.unwrap_or_default();
    let node = json!({"metadata": {"name": "n"}, "status": {"nodeInfo": {"bootID": boot}}});
    let node: WireNode = serde_json::from_value(node).expect("must be a node");
    Event::Node(WatchEvent::Shown(NodeView::read(&node)))
}

fn at(seconds: i64) -> Now {
    let elapsed = Moment::from_secs(seconds.try_into().unwrap_or(0));
    Now { time: now() + SignedDuration::from_secs(seconds), elapsed, ..quiet() }
}

/// A pod of the node, created at this second.
fn bound(uid: &str, version: u64, phase: &str, created: i64) -> WirePod {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "uid-a",
                       "controller": true});
    let pod = json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid,
                     "resourceVersion": version.to_string(), "labels": {"job": "a"},
                     "creationTimestamp": at(created).time.to_string(),
                     "finalizers": ["batch.kubernetes.io/job-tracking"],
                     "ownerReferences": [owner]},
        "spec": {"nodeName": "n"},
        "status": {"phase": phase},
    });
    serde_json::from_value(pod).expect("must be a pod")
}

/// With pod GC, which watches nodes.
fn with_nodes() -> Cluster {
    let state = ClusterState::new(Batching::default(), Some(Settings::default()));
    let mut cluster = Cluster(state);
    cluster.jobs(WatchEvent::Shown(job("uid-a", 10, &json!({}))));
    cluster
}

fn boots(cluster: &Cluster, pod: &str, seconds: i64) -> Option<NodeBoots> {
    let snapshot = cluster.0.input(&key(), &at(seconds)).expect("must be there");
    snapshot.memory.boots.get(&Uid::from(pod)).cloned()
}

#[test]
fn a_boot_that_was_seen_concerns_the_failed_pods_that_were_there_before() {
    let mut cluster = with_nodes();
    cluster.0.handle(node(Some("boot-1")), &at(0));
    cluster.0.handle_pod(WatchEvent::Shown(bound("old", 11, "Failed", -60)), &at(1));
    cluster.0.handle_pod(WatchEvent::Shown(bound("runs", 12, "Running", -60)), &at(1));
    cluster.0.handle(node(None), &at(90));
    cluster.0.handle(node(Some("boot-2")), &at(100));
    cluster.0.handle_pod(WatchEvent::Shown(bound("new", 13, "Failed", 110)), &at(120));
    let shown = at(100).time;
    let booted = NodeBoots::Booted { shown, from: "boot-1".into(), to: "boot-2".into() };
    assert_eq!(boots(&cluster, "old", 120), Some(booted));
    assert_eq!(boots(&cluster, "new", 120), Some(NodeBoots::Same));
    assert_eq!(boots(&cluster, "runs", 120), None, "it has not failed");
    // What is lost an hour later was not lost in that boot.
    assert_eq!(boots(&cluster, "old", 3701), Some(NodeBoots::Same));
}

#[test]
fn of_a_node_that_is_new_to_the_controller_no_earlier_boot_is_known() {
    let mut cluster = with_nodes();
    cluster.0.handle(node(Some("boot-2")), &at(0));
    cluster.0.handle_pod(WatchEvent::Shown(bound("old", 11, "Failed", -60)), &at(1));
    cluster.0.handle_pod(WatchEvent::Shown(bound("new", 12, "Failed", 10)), &at(20));
    assert_eq!(boots(&cluster, "old", 20), None);
    assert_eq!(boots(&cluster, "new", 20), Some(NodeBoots::Same));
    assert_eq!(boots(&cluster, "old", 3601), Some(NodeBoots::Same));
}

#[test]
fn without_its_node_nothing_is_known_of_a_pod() {
    let mut cluster = with_nodes();
    cluster.0.handle_pod(WatchEvent::Shown(bound("old", 11, "Failed", -60)), &at(1));
    assert_eq!(boots(&cluster, "old", 2), None);
    let mut cluster = Cluster::default();
    cluster.jobs(WatchEvent::Shown(job("uid-a", 10, &json!({}))));
    cluster.pod_shown(bound("old", 11, "Failed", -60));
    assert_eq!(boots(&cluster, "old", 2), None, "without pod GC nodes are not watched");
}

/// A machine that runs everything, and whose clock is wrong for a while after a boot: the pod was
/// created before the boot, at a time that seems to be ahead.
#[test]
fn a_clock_that_is_behind_at_a_boot_says_nothing_of_the_pods_from_before() {
    let after = |elapsed: u64, clock: i64| Now { elapsed: Moment::from_secs(elapsed), ..at(clock) };
    let boots = |cluster: &Cluster, pod: &str, now: Now| {
        let snapshot = cluster.0.input(&key(), &now).expect("must be there");
        snapshot.memory.boots.get(&Uid::from(pod)).cloned()
    };
    let (behind, right) = (after(10, -7200), after(20, 20));
    for boot in [None, Some("boot-1")] {
        let mut cluster = with_nodes();
        boot.map(|boot| cluster.0.handle(node(Some(boot)), &after(9, -7201)));
        cluster.0.handle(node(Some("boot-2")), &behind);
        cluster.0.handle_pod(WatchEvent::Shown(bound("old", 11, "Failed", -300)), &behind);
        let expected = |shown: Now| {
            let (from, to) = (boot?.into(), "boot-2".into());
            Some(NodeBoots::Booted { shown: shown.time, from, to })
        };
        assert_eq!(boots(&cluster, "old", behind), expected(behind), "{boot:?}");
        // The clock was set by two hours, and ten seconds have passed.
        assert_eq!(boots(&cluster, "old", right), expected(at(10)), "{boot:?}");
        cluster.0.handle_pod(WatchEvent::Shown(bound("new", 12, "Failed", 15)), &right);
        assert_eq!(boots(&cluster, "new", right), Some(NodeBoots::Same), "{boot:?}");
        assert_eq!(boots(&cluster, "old", at(3620)), Some(NodeBoots::Same), "{boot:?}");
    }
}
