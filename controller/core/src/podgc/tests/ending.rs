//! Tests orphans, pods without a node, and nodes out of service. ([GC7] to [GC11])

use serde_json::json;

use super::*;
use crate::podgc::Mode;

const ORPHANED: &str = "a: Failed DisruptionTarget=True/DeletionByPodGC Ready=False/PodFailed \
    ContainersReady=False/PodFailed epilogue.dev/Ended=True/NodeGone deleted \
    (node no longer exists)";

#[test]
fn a_pod_whose_node_is_there_is_left_alone() {
    let mut fixture = Fixture::of_one_node();
    fixture.pods(&[pod("a"), deleted(pod("b"), 0), phase(pod("c"), "Failed")]);
    assert!(fixture.pass(3600).is_empty());
}

#[test]
fn a_node_that_only_the_api_has_is_asked_for_and_keeps_its_pods() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node_unseen("n");
    assert!(fixture.pass(3600).is_empty());
    fixture.live.remove("n");
    assert_eq!(fixture.pass(81).len(), 1, "it is asked for again and again");
}

#[test]
fn half_of_the_quarantine_is_not_enough_and_all_of_it_is() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node_gone("n");
    assert!(fixture.pass(39).is_empty());
    assert_eq!(fixture.pass(1), [ORPHANED]);
    assert!(fixture.pass(3600).is_empty());
}

#[test]
fn a_node_that_comes_back_within_the_quarantine_keeps_its_pods() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node_gone("n");
    fixture.pass(39);
    fixture.node(&node("n"));
    assert!(fixture.pass(3600).is_empty());
    fixture.node_gone("n");
    assert!(fixture.pass(39).is_empty(), "its next quarantine begins anew");
    assert_eq!(fixture.pass(1).len(), 1);
}

#[test]
fn a_node_that_comes_back_to_the_api_alone_keeps_its_pods() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node_gone("n");
    fixture.pass(39);
    fixture.live.insert("n".to_owned(), node("n"));
    assert!(fixture.pass(3600).is_empty());
}

#[test]
fn a_node_that_was_never_seen_is_gone_when_the_api_says_so_after_the_quarantine() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&with(pod("a"), &[("/spec/nodeName", json!("never-seen"))]));
    assert!(fixture.pass(39).is_empty());
    assert_eq!(fixture.pass(1), [ORPHANED]);
}

#[test]
fn a_node_that_goes_later_has_a_quarantine_of_its_own() {
    let mut fixture = Fixture::new(Settings::default(), &["n", "m"]);
    fixture.pods(&[pod("a"), with(pod("b"), &[("/spec/nodeName", json!("m"))])]);
    fixture.node_gone("n");
    fixture.pass(20);
    fixture.node_gone("m");
    assert_eq!(fixture.pass(20), [ORPHANED]);
    assert!(fixture.pass(19).is_empty());
    assert_eq!(fixture.pass(1).len(), 1);
}

#[test]
fn a_list_that_lacks_a_node_is_as_good_as_its_deletion() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.nodes_begin();
    fixture.pod(&pod("b"));
    assert!(fixture.pass(3600).is_empty(), "no node is gone while a list arrives");
    fixture.live.clear();
    fixture.nodes_end();
    assert_eq!(fixture.pass(40).len(), 2);
}

#[test]
fn orphans_are_ended_whatever_their_state_and_those_that_have_ended_stay_as_they_were() {
    let mut fixture = Fixture::of_one_node();
    let tainted = target(deleted(pod("tainted"), 0), "True", "DeletionByTaintManager", -5);
    fixture.pods(&[
        deleted(pod("deleted"), 0),
        tainted,
        phase(pod("succeeded"), "Succeeded"),
        phase(pod("failed"), "Failed"),
    ]);
    fixture.node_gone("n");
    let mut writes = fixture.pass(40);
    writes.sort();
    assert_eq!(writes.len(), 4, "{writes:?}");
    assert!(writes[0].starts_with("deleted: Failed DisruptionTarget=True/DeletionByPodGC"));
    assert_eq!(writes[1], "failed: deleted (node no longer exists)");
    assert_eq!(writes[2], "succeeded: deleted (node no longer exists)");
    assert!(writes[3].starts_with("tainted: Failed DisruptionTarget=True/DeletionByPodGC"));
}

#[test]
fn a_live_read_holds_for_a_while_and_is_then_repeated() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node_gone("n");
    assert_eq!(fixture.pass(40).len(), 1);
    fixture.pod(&pod("b"));
    assert_eq!(fixture.pass(0).len(), 1, "no new quarantine: the node was gone all the time");
    fixture.pass(31);
    fixture.live.insert("n".to_owned(), node("n"));
    fixture.pod(&pod("c"));
    assert!(fixture.pass(39).is_empty(), "the API was asked again");
}

#[test]
fn a_node_that_one_read_finds_and_the_next_does_not_has_another_quarantine() {
    for comes_back in [true, false] {
        let mut fixture = Fixture::of_one_node();
        fixture.pod(&pod("a"));
        fixture.node_gone("n");
        fixture.live.insert("n".to_owned(), node("n"));
        assert!(fixture.pass(40).is_empty(), "it is there: the watch is behind");
        fixture.live.remove("n");
        assert!(fixture.pass(40).is_empty(), "it may be back in a moment");
        assert!(fixture.pass(39).is_empty());
        if comes_back {
            fixture.live.insert("n".to_owned(), node("n"));
        }
        assert_eq!(fixture.pass(1).is_empty(), comes_back);
    }
}

#[test]
fn what_was_written_is_awaited_and_what_finalizers_hold_is_left_to_them() {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node_gone("n");
    assert_eq!(fixture.pass(40).len(), 1);
    let held = phase(pod("a"), "Failed");
    fixture.pod(&held);
    let mut held = deleted(held, 40);
    held["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    fixture.pod(&held);
    assert!(fixture.pass(3600).is_empty());
}

#[test]
fn a_pod_that_was_deleted_before_it_had_a_node_is_ended_and_is_no_disruption() {
    let unscheduled = |name| with(pod(name), &[("/spec/nodeName", json!(null))]);
    let pending = |name| {
        let pod = phase(unscheduled(name), "Pending");
        with(pod, &[("/status/conditions", json!([])), ("/status/containerStatuses", json!(null))])
    };
    let mut fixture = Fixture::of_one_node();
    fixture.pods(&[
        pending("waits"),
        deleted(pending("pending"), 0),
        deleted(phase(unscheduled("failed"), "Failed"), 0),
        deleted(phase(unscheduled("succeeded"), "Succeeded"), 0),
    ]);
    let writes = fixture.pass(0);
    assert_eq!(
        writes,
        [
            "pending: Failed epilogue.dev/Ended=True/NeverScheduled deleted \
             (the pod never had a node)",
            "failed: deleted (the pod never had a node)",
            "succeeded: deleted (the pod never had a node)",
        ]
    );
    let settings = Settings { unscheduled_target: true, ..Settings::default() };
    let mut fixture = Fixture::new(settings, &[]);
    fixture.pod(&deleted(pending("asked-for"), 0));
    assert!(fixture.pass(0)[0].contains("DisruptionTarget=True/DeletionByPodGC"));
}

#[test]
fn a_node_out_of_service_that_is_not_ready_ends_its_deleted_pods_at_once() {
    let table = [
        (ready(out_of_service(node("n")), "True", "", 0), 0),
        (ready(node("n"), "False", "", 0), 0),
        (ready(node("n"), "Unknown", "", 0), 0),
        (ready(out_of_service(node("n")), "False", "", 0), 1),
        (ready(out_of_service(node("n")), "Unknown", "", 0), 1),
        (with(out_of_service(node("n")), &[("/status/conditions", json!([]))]), 1),
    ];
    for (node, ended) in table {
        let mut fixture = Fixture::of_one_node();
        fixture.pods(&[pod("lives"), deleted(pod("a"), 0)]);
        fixture.node(&node);
        let writes = fixture.pass(0);
        assert_eq!(writes.len(), ended, "{node}: {writes:?}");
        assert!(fixture.pass(3600).is_empty());
    }
}

#[test]
fn a_pod_of_a_node_out_of_service_is_a_disruption_target_by_whoever_said_so_first() {
    let out = ready(out_of_service(node("n")), "Unknown", "", 0);
    let mut fixture = Fixture::of_one_node();
    fixture.node(&out);
    fixture.pods(&[
        deleted(pod("a"), 0),
        target(deleted(pod("b"), 0), "True", "DeletionByTaintManager", 0),
        target(deleted(pod("c"), 0), "False", "", 0),
        deleted(phase(pod("d"), "Succeeded"), 0),
    ]);
    let writes = fixture.pass(0);
    assert!(writes[0].starts_with("a: Failed DisruptionTarget=True/DeletionByPodGC"), "{writes:?}");
    assert!(writes[1].starts_with("b: Failed Ready=False/PodFailed"), "{writes:?}");
    assert!(writes[2].starts_with("c: Failed DisruptionTarget=True/DeletionByPodGC"), "{writes:?}");
    assert!(writes[3].starts_with("d: deleted"), "{writes:?}");

    let settings = Settings { out_of_service_target: false, ..Settings::default() };
    let mut fixture = Fixture::new(settings, &["n"]);
    fixture.node(&out);
    fixture.pod(&deleted(pod("a"), 0));
    assert!(!fixture.pass(0)[0].contains("DisruptionTarget"));
}

#[test]
fn nothing_is_ended_when_pod_gc_is_off() {
    let mut fixture = Fixture::new(Settings { mode: Mode::Off, ..Settings::default() }, &["n"]);
    fixture.node(&ready(out_of_service(node("n")), "Unknown", "", 0));
    fixture.pods(&[deleted(pod("a"), 0), with(pod("b"), &[("/spec/nodeName", json!("gone"))])]);
    assert!(fixture.pass(3600).is_empty());
}

#[test]
fn what_is_not_ready_already_keeps_its_times_and_what_has_no_condition_gets_none() {
    let mut fixture = Fixture::of_one_node();
    let conditions = json!([{"type": "Ready", "status": "False"}]);
    fixture.pod(&with(pod("a"), &[("/status/conditions", conditions)]));
    fixture.node_gone("n");
    let writes = fixture.pass(40);
    assert!(!writes[0].contains("Ready="), "{writes:?}");
}
