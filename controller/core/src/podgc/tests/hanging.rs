//! Tests pods that are being deleted on a silent node: they are failed with a proof, and never
//! without one. ([GC12])

use serde_json::json;

use super::*;

fn silent(node: Value, second: i64) -> Value {
    ready(node, "Unknown", "Kubelet stopped posting node status.", second)
}

/// A pod that is deleted 5 min after its node went silent, as the taint manager does.
fn hanging() -> Fixture {
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node(&silent(node("n"), 0));
    fixture.pass(300);
    fixture.pod(&deleted(pod("a"), 300));
    fixture
}

#[test]
fn without_proof_a_pod_stays_for_ever() {
    assert!(hanging().pass(30 * 24 * 3600).is_empty());
}

#[test]
fn a_new_boot_ends_what_was_deleted_before_it_once_its_kubelet_is_silent() {
    let mut fixture = hanging();
    fixture.pass(60);
    let booted = boot(node("n"), "boot-2");
    fixture.node(&booted);
    assert!(fixture.pass(600).is_empty(), "a kubelet that speaks ends its own pods");
    fixture.node(&silent(booted, 960));
    assert_eq!(
        fixture.pass(0),
        ["a: Failed DisruptionTarget=True/DeletionByPodGC Ready=False/PodFailed \
            ContainersReady=False/PodFailed epilogue.dev/Ended=True/NodeRebooted deleted \
            (node has booted since the pod was deleted (boot boot-1 then, boot-2 now))"]
    );
}

/// A watch that lags shows the new boot late. A pod that was deleted while the old boot was still
/// heard from was deleted before the new one all the same.
#[test]
fn a_new_boot_that_is_heard_of_late_proves_what_the_old_one_lived_to_see() {
    let mut fixture = hanging();
    fixture.pass(60);
    fixture.node(&node("n"));
    fixture.pass(600);
    fixture.node(&heard(silent(boot(node("n"), "boot-2"), 960), 700));
    assert_eq!(fixture.pass(0).len(), 1);
}

#[test]
fn a_new_boot_proves_nothing_of_a_pod_that_may_run_in_it() {
    let booted = || silent(boot(node("n"), "boot-2"), 960);
    // The pod is deleted in the new boot.
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    fixture.node(&booted());
    fixture.pod(&deleted(pod("a"), 0));
    assert!(fixture.pass(3600).is_empty());
    // The pod is deleted so shortly before the boot was seen that its kubelet may have missed it.
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&deleted(pod("a"), 0));
    fixture.pass(29);
    fixture.node(&booted());
    assert!(fixture.pass(3600).is_empty());
    // The pod started after it was deleted, which no kubelet does.
    let mut fixture = hanging();
    let started = json!([{"name": "main", "state": {"running": {"startedAt": at(310)}}}]);
    fixture.pod(&with(deleted(pod("a"), 300), &[("/status/containerStatuses", started)]));
    fixture.pass(60);
    fixture.node(&booted());
    assert!(fixture.pass(3600).is_empty());
    // The boot was seen so late that the pod may have started and been deleted in the new boot.
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&pod("a"));
    let started = json!([{"name": "main", "state": {"running": {"startedAt": at(200)}}}]);
    let started = with(deleted(pod("a"), 300), &[("/status/containerStatuses", started)]);
    fixture.pass(320);
    fixture.pod(&started);
    fixture.pass(600);
    fixture.node(&heard(booted(), 400));
    assert!(fixture.pass(3600).is_empty());
    // The controller did not see the old boot.
    let mut fixture = Fixture::new(Settings::default(), &[]);
    fixture.pod(&deleted(pod("a"), 0));
    fixture.pass(10);
    fixture.node(&booted());
    assert!(fixture.pass(3600).is_empty());
}

#[test]
fn a_boot_id_that_goes_missing_is_no_new_boot() {
    let mut fixture = hanging();
    fixture.pass(60);
    fixture.node(&silent(boot(node("n"), ""), 0));
    assert!(fixture.pass(60).is_empty());
    fixture.node(&silent(boot(node("n"), "boot-1"), 0));
    assert!(fixture.pass(3600).is_empty());
}

#[test]
fn what_an_agent_announced_in_an_earlier_boot_is_remembered_for_us() {
    let announced = format!("shutting-down;boot=boot-0;since={}", at(10));
    let now = || silent(announces(node("n"), &announced), 500);
    let ended = |deleted_at: i64| {
        let mut fixture = Fixture::new(Settings::default(), &[]);
        fixture.node(&now());
        fixture.pod(&deleted(pod("a"), deleted_at));
        fixture.pass(0)
    };
    assert!(ended(5)[0].contains("(boot boot-0 then, boot-1 now)"));
    assert!(ended(11).is_empty(), "deleted after it: maybe in the new boot");
}

#[test]
fn the_drained_record_fails_the_pods_that_were_there() {
    let drained = format!("drained;boot=boot-1;at={}", at(20));
    let node = silent(announces(node("n"), &drained), 60);
    let mut fixture = Fixture::of_one_node();
    fixture.pod(&deleted(pod("early"), 0));
    fixture.node(&node);
    fixture.pod(&deleted(pod("late"), 360));
    let mut young = deleted(pod("young"), 360);
    young["metadata"]["creationTimestamp"] = at(21).into();
    let mut restarted = deleted(pod("restarted"), 360);
    restarted["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = at(21).into();
    let mut daemon = deleted(pod("daemon"), 0);
    daemon["metadata"]["ownerReferences"][0]["kind"] = "DaemonSet".into();
    let mut mirror = deleted(pod("mirror"), 0);
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x".into();
    fixture.pods(&[young, restarted, daemon, mirror]);
    let writes = fixture.pass(3600);
    assert_eq!(writes.len(), 2, "{writes:?}");
    assert!(writes[0].starts_with("early: Failed DisruptionTarget=True"), "{writes:?}");
    assert!(writes[0].contains("epilogue.dev/Ended=True/NodeDrained deleted"), "{writes:?}");
    assert!(writes[1].starts_with("late: Failed"), "{writes:?}");
}

#[test]
fn what_an_agent_says_of_the_future_proves_nothing() {
    for said in ["drained;boot=boot-1;at=", "shutting-down;boot=boot-0;since="] {
        let said = format!("{said}{}", at(100_000));
        let mut fixture = Fixture::of_one_node();
        fixture.pod(&deleted(pod("a"), 0));
        fixture.node(&silent(announces(node("n"), &said), 60));
        assert!(fixture.pass(3600).is_empty(), "{said}");
    }
}

#[test]
fn a_drained_record_is_void_where_the_machine_stayed_up() {
    let drained = format!("drained;boot=boot-1;at={}", at(20));
    let said = || announces(node("n"), &drained);
    let late = |node: Value| {
        let mut fixture = Fixture::of_one_node();
        fixture.node(&node);
        fixture.pod(&deleted(pod("a"), 3600));
        fixture.pass(3600).len()
    };
    assert_eq!(late(silent(said(), 320)), 1);
    assert_eq!(late(silent(said(), 321)), 0, "it went silent long after: for another reason");
    assert_eq!(late(said()), 0, "its kubelet speaks");
    assert_eq!(late(ready(said(), "False", "node is shutting down", 25)), 0, "it still speaks");
    assert_eq!(late(silent(boot(said(), "boot-2"), 60)), 0, "it may run in the new boot");
}

#[test]
fn force_fail_after_fails_a_pod_where_the_node_is_silent() {
    let mut fixture = hanging();
    fixture.job_says(Some("10m"));
    fixture.pod(&deleted(pod("a"), 300));
    assert!(fixture.pass(29 + 600).is_empty());
    let writes = fixture.pass(1);
    assert_eq!(writes.len(), 1);
    assert!(writes[0].contains("Ended=True/ForceFail deleted (no proof"), "{writes:?}");
    assert!(writes[0].contains("of Job j accepts"), "{writes:?}");

    let mut fixture = hanging();
    fixture.job_says(Some("1s"));
    fixture.node(&node("n"));
    assert!(fixture.pass(3600).is_empty(), "its kubelet speaks");
}

#[test]
fn force_fail_after_asks_the_api_whether_the_node_is_still_silent() {
    let mut fixture = hanging();
    let silent = fixture.live.insert("n".to_owned(), node("n")).expect("must be there");
    fixture.job_says(Some("10m"));
    assert!(fixture.pass(3600).is_empty(), "its kubelet speaks; the watch is behind");
    fixture.live.remove("n");
    assert!(fixture.pass(60).is_empty(), "the watch will show that it is gone");
    fixture.live.insert("n".to_owned(), silent);
    assert_eq!(fixture.pass(30).len(), 1);
}

#[test]
fn a_force_fail_after_that_is_set_later_counts() {
    let mut fixture = hanging();
    fixture.pass(3600);
    fixture.job_says(Some("1m"));
    assert_eq!(fixture.pass(30).len(), 1);
}

#[test]
fn a_namespaces_force_fail_after_holds_for_its_jobs_unless_they_have_their_own() {
    let ended = |namespace: &str, job: Option<&'static str>| {
        let mut fixture = hanging();
        fixture.shows(Event::Namespace(WatchEvent::ListBegins));
        fixture.namespace_says(namespace);
        fixture.shows(Event::Namespace(WatchEvent::ListEnds("1".to_owned())));
        fixture.job_says(job);
        fixture.pass(3600)
    };
    assert!(ended("1m", None)[0].contains("of namespace default"));
    assert!(ended("1m", Some("2m"))[0].contains("of Job j"));
    assert!(ended("1m", Some("0")).is_empty(), "the Job takes it back");
    assert!(ended("soon", None).is_empty());
    assert!(ended("1m", Some("soon"))[0].contains("of namespace default"));
}

/// The watch of Jobs is behind, or the Job is gone.
#[test]
fn a_namespaces_force_fail_after_asks_the_api_for_a_job_that_no_watch_shows() {
    let ended = |live: Option<Option<&str>>| {
        let mut fixture = hanging();
        fixture.live_job = live.map(|text| fixture.job(text));
        fixture.namespace_says("1m");
        fixture.pass(3600)
    };
    assert!(ended(Some(Some("0"))).is_empty(), "the Job takes it back");
    assert!(ended(Some(Some("2m"))).is_empty(), "it counts once the watch shows it");
    for namespace_decides in [None, Some(None), Some(Some("soon"))] {
        assert!(ended(namespace_decides)[0].contains("of namespace default"));
    }
    let mut fixture = hanging();
    let mut later = (*fixture.job(Some("0"))).clone();
    later.uid = "later".into();
    fixture.live_job = Some(Arc::new(later));
    fixture.namespace_says("1m");
    assert_eq!(fixture.pass(3600).len(), 1, "a later Job of the same name has no say");
}

#[test]
fn force_fail_after_never_holds_for_pods_that_no_job_owns() {
    let mut fixture = hanging();
    let mut stateful = deleted(pod("a"), 300);
    stateful["metadata"]["ownerReferences"][0]["kind"] = "StatefulSet".into();
    fixture.pod(&stateful);
    fixture.job_says(Some("1s"));
    fixture.namespace_says("1s");
    assert!(fixture.pass(3600).is_empty());
}
