//! Tests `epilogue.dev/finished-pods-kept`.

use epilogue_common::names::{MANAGED_BY, TRACKING_FINALIZER};
use serde_json::json;

use super::*;
use crate::view::MATCHES;

/// A pod of this phase that ended at this second.
fn ended(name: &str, phase_: &str, second: i64) -> Value {
    let mut pod = phase(pod(name), phase_);
    let state = json!({"terminated": {"exitCode": 1, "finishedAt": at(second)}});
    pod["status"]["containerStatuses"][0]["state"] = state;
    pod
}

fn tracked(mut pod: Value) -> Value {
    pod["metadata"]["finalizers"] = json!([TRACKING_FINALIZER]);
    pod
}

fn disrupted(mut pod: Value, node: &str) -> Value {
    pod["spec"]["nodeName"] = node.into();
    target(pod, "True", "TerminationByKubelet", 0)
}

/// The Job of all pods, ours, with this annotation.
fn job(kept: &str) -> Value {
    json!({
        "metadata": {"name": "j", "namespace": "default", "uid": "j", "resourceVersion": "1",
                     "annotations": {"epilogue.dev/finished-pods-kept": kept}},
        "spec": {"managedBy": MANAGED_BY, "selector": {}},
    })
}

fn shows(fixture: &mut Fixture, job: &Value) {
    fixture.version += 1;
    let mut job = job.clone();
    job["metadata"]["resourceVersion"] = fixture.version.to_string().into();
    let job = Arc::new(WireJob::parse(job).and_then(WireJob::view).expect("must be a Job"));
    fixture.shows(Event::Job(WatchEvent::Shown(job)));
}

/// The names of the pods that are deleted within some seconds, the oldest first.
fn deleted_in(fixture: &mut Fixture) -> Vec<String> {
    let name = |write: &String| write.split(':').next().expect("must have a name").to_owned();
    fixture.pass(10).iter().map(name).collect()
}

fn deleted_of(job: &Value, pods: &[Value]) -> Vec<String> {
    let mut fixture = Fixture::new(Settings::default(), &["n", "m"]);
    shows(&mut fixture, job);
    fixture.pods(pods);
    deleted_in(&mut fixture)
}

fn successes(count: i64) -> Vec<Value> {
    (0..count).map(|n| ended(&format!("s{n:04}"), "Succeeded", n)).collect()
}

#[test]
fn a_running_job_keeps_the_newest_of_its_counted_pods() {
    let mut fixture = Fixture::of_one_node();
    shows(&mut fixture, &job("2"));
    fixture.pods(&successes(4));
    let writes = fixture.pass(10);
    assert_eq!(
        writes,
        ["s0000", "s0001"]
            .map(|name| { format!("{name}: deleted (its Job keeps 2 finished pods)") })
    );
    fixture.pod(&ended("s0004", "Succeeded", 4));
    assert_eq!(deleted_in(&mut fixture), ["s0002"]);
}

#[test]
fn what_is_not_counted_or_not_of_a_running_job_of_ours_stays() {
    let three = || successes(3);
    assert_eq!(deleted_of(&job("1"), &three()), ["s0000", "s0001"]);
    let uncounted: Vec<Value> = three().into_iter().map(tracked).collect();
    assert!(deleted_of(&job("1"), &uncounted).is_empty(), "a pod with the finalizer");
    let alive = [pod("a"), pod("b"), phase(pod("c"), "Pending")];
    assert!(deleted_of(&job("0"), &alive).is_empty());
    let edits: [(&str, &str, Value); 6] = [
        ("/spec/selector", "with other pods", json!({"matchLabels": {"not": "theirs"}})),
        ("/spec/managedBy", "of upstream", json!(null)),
        ("/spec/managedBy", "of another", json!("example.com/x")),
        ("/metadata/uid", "of a namesake", json!("other")),
        ("/metadata/annotations", "without the annotation", json!({})),
        (
            "/metadata/annotations",
            "with a bad value",
            json!({"epilogue.dev/finished-pods-kept": "-1"}),
        ),
    ];
    for (path, what, value) in edits {
        assert!(deleted_of(&with(job("1"), &[(path, value)]), &three()).is_empty(), "{what}");
    }
    let mut finished = job("1");
    finished["status"]["conditions"] = json!([{"type": "Complete", "status": "True"}]);
    assert!(deleted_of(&finished, &three()).is_empty());
    let off = Settings { mode: crate::podgc::Mode::Off, ..Settings::default() };
    let mut fixture = Fixture::new(off, &["n"]);
    shows(&mut fixture, &job("1"));
    fixture.pods(&three());
    assert!(deleted_in(&mut fixture).is_empty(), "without pod GC");
}

/// Its finalizer was removed before it ended, so it is not counted: the Job takes it back.
#[test]
fn a_pod_that_ended_without_its_finalizer_and_uncounted_stays() {
    let mut fixture = Fixture::of_one_node();
    shows(&mut fixture, &job("0"));
    fixture.pods(&successes(1));
    fixture.pod(&pod("stripped"));
    fixture.pod(&ended("stripped", "Succeeded", -5));
    assert!(deleted_in(&mut fixture).is_empty());
    fixture.pod(&tracked(ended("stripped", "Succeeded", -5)));
    assert!(deleted_in(&mut fixture).is_empty());
    fixture.pod(&ended("stripped", "Succeeded", -5));
    assert_eq!(deleted_in(&mut fixture), ["stripped"], "it is counted now");
}

/// A new process reads from the pods how many failures came after the latest success.
#[test]
fn what_backoff_reads_after_a_restart_stays() {
    let failures = |from: i64, count: i64| {
        (from..from + count).map(|n| ended(&format!("f{n:04}"), "Failed", n))
    };
    let mut pods: Vec<Value> = failures(0, 3).collect();
    pods.extend([ended("old", "Succeeded", 3), ended("success", "Succeeded", 4)]);
    pods.extend(failures(5, 4));
    let gone = ["f0000", "f0001", "f0002", "old"];
    assert_eq!(deleted_of(&job("0"), &pods), gone);
    assert_eq!(deleted_of(&job("5"), &pods), gone);
    assert_eq!(deleted_of(&job("7"), &pods), gone[..2]);
    let many: Vec<Value> = failures(0, 13).collect();
    assert_eq!(deleted_of(&job("0"), &many), ["f0000", "f0001", "f0002"], "ten are enough");
}

#[test]
fn the_nodes_to_avoid_stay_known() {
    let pods = [
        disrupted(ended("a", "Failed", 1), "n"),
        disrupted(ended("b", "Failed", 2), "n"),
        disrupted(ended("c", "Failed", 3), "m"),
        ended("success", "Succeeded", 4),
    ];
    assert_eq!(deleted_of(&job("0"), &pods), ["a", "b", "c"]);
    let mut avoids = job("0");
    avoids["metadata"]["annotations"]["epilogue.dev/avoid-failed-nodes"] = "true".into();
    assert_eq!(deleted_of(&avoids, &pods), ["a"], "a later pod names the same node");
}

#[test]
fn a_job_may_change_its_mind() {
    let mut fixture = Fixture::of_one_node();
    shows(&mut fixture, &with(job("1"), &[("/metadata/annotations", json!({}))]));
    fixture.pods(&successes(4));
    assert!(deleted_in(&mut fixture).is_empty());
    shows(&mut fixture, &job("3"));
    assert_eq!(deleted_in(&mut fixture), ["s0000"], "without any event of its pods");
    // It asks for less, and takes that back before the search has begun.
    shows(&mut fixture, &job("1"));
    shows(&mut fixture, &job("3"));
    assert!(deleted_in(&mut fixture).is_empty());
    shows(&mut fixture, &job("2"));
    assert_eq!(deleted_in(&mut fixture), ["s0001"]);
}

#[test]
fn pods_that_cannot_be_deleted_hold_up_no_other_and_jobs_take_turns() {
    let mut fixture = Fixture::of_one_node();
    shows(&mut fixture, &job("1"));
    let mut other = job("1");
    other["metadata"]["name"] = "k".into();
    other["metadata"]["uid"] = "k".into();
    shows(&mut fixture, &other);
    let mut pods: Vec<Value> =
        (0..600).map(|n| ended(&format!("kept{n:04}"), "Succeeded", n)).collect();
    pods.extend((600..1801).map(|n| ended(&format!("s{n:04}"), "Succeeded", n)));
    let of_other = (0..3).map(|n| {
        let mut pod = ended(&format!("other{n}"), "Succeeded", n);
        let owner = &mut pod["metadata"]["ownerReferences"][0];
        (owner["name"], owner["uid"]) = ("k".into(), "k".into());
        pod
    });
    pods.extend(of_other);
    fixture.pods(&pods);
    let first: Vec<String> = fixture.pass(1);
    assert!(first.iter().any(|write| write.starts_with("other")), "{}", first.len());
    let names = deleted_in(&mut fixture);
    assert_eq!(first.len() + names.len(), 1200 + 2);
}

/// A Job may have a hundred thousand finished pods.
#[test]
fn whoever_changes_the_number_again_and_again_causes_no_search_each_time() {
    let mut fixture = Fixture::of_one_node();
    shows(&mut fixture, &job("1000"));
    fixture.pods(&successes(200));
    assert!(deleted_in(&mut fixture).is_empty());
    MATCHES.set(0);
    (0..50).for_each(|number| shows(&mut fixture, &job(&(2_000 - number).to_string())));
    assert_eq!(MATCHES.get(), 0, "50 changes, 200 pods");
    shows(&mut fixture, &job("198"));
    assert_eq!(deleted_in(&mut fixture), ["s0000", "s0001"]);
    assert!(MATCHES.get() <= 250, "each pod once: {}", MATCHES.get());
}
