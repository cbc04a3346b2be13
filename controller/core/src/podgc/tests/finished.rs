//! Tests excess finished pods.

use serde_json::json;

use super::*;
use crate::event_handlers::samples;
use crate::podgc::KeptFor;
use crate::podgc::finished::Finished;

/// A pod of this phase and reason, created at this second.
fn ended(name: &str, phase_: &str, reason: &str, second: i64) -> Value {
    let mut pod = phase(pod(name), phase_);
    pod["metadata"]["creationTimestamp"] = at(second).into();
    pod["status"]["reason"] = reason.into();
    let state = json!({"terminated": {"exitCode": 1, "finishedAt": at(second + 10)}});
    pod["status"]["containerStatuses"][0]["state"] = state;
    pod
}

fn names(writes: &[String]) -> Vec<&str> {
    writes.iter().map(|write| write.split(':').next().expect("must have a name")).collect()
}

fn deleted_of(max: Option<usize>, pods: &[Value]) -> Vec<String> {
    let mut fixture = Fixture::new(Settings { finished_max: max, ..Settings::default() }, &["n"]);
    fixture.pods(pods);
    let writes = fixture.pass(10);
    let mut names: Vec<String> = names(&writes).into_iter().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn the_oldest_of_too_many_finished_pods_go() {
    let pods =
        [ended("a", "Failed", "", 1), ended("b", "Succeeded", "", 2), ended("c", "Failed", "", 3)];
    assert_eq!(deleted_of(Some(1), &pods), ["a", "b"]);
    assert_eq!(deleted_of(Some(0), &pods), ["a", "b", "c"]);
    assert!(deleted_of(Some(3), &pods).is_empty());
    assert!(deleted_of(None, &pods).is_empty());
}

#[test]
fn evicted_pods_go_first_also_when_they_are_newer() {
    let pods = [
        ended("a", "Failed", "", 1),
        ended("b", "Failed", "Evicted", 9),
        ended("c", "Succeeded", "Evicted", 0),
    ];
    assert_eq!(deleted_of(Some(2), &pods), ["b"]);
    assert_eq!(deleted_of(Some(1), &pods), ["b", "c"]);
}

#[test]
fn pods_of_an_age_go_by_name() {
    let pods = ["b", "a", "c"].map(|name| ended(name, "Failed", "", 1));
    assert_eq!(deleted_of(Some(1), &pods), ["a", "b"]);
}

#[test]
fn pods_that_have_not_ended_do_not_count() {
    let pods = [
        ended("a", "Failed", "", 1),
        pod("runs"),
        phase(pod("waits"), "Pending"),
        phase(pod("lost"), "Unknown"),
        phase(pod("empty"), ""),
    ];
    assert!(deleted_of(Some(1), &pods).is_empty());
}

#[test]
fn more_than_are_named_at_once_go_in_turn() {
    let pods: Vec<Value> = (0..1203).map(|n| ended(&format!("p{n:04}"), "Failed", "", n)).collect();
    let names = deleted_of(Some(3), &pods);
    assert_eq!(names.len(), 1200);
    assert_eq!(names.last().map(String::as_str), Some("p1199"));
}

#[test]
fn pods_that_cannot_be_deleted_hold_up_no_other() {
    let mut pods: Vec<Value> =
        (0..600).map(|n| ended(&format!("kept{n:04}"), "Failed", "", n)).collect();
    pods.extend((600..1203).map(|n| ended(&format!("p{n:04}"), "Failed", "", n)));
    let names = deleted_of(Some(3), &pods);
    assert_eq!(names.len(), 600);
    assert_eq!(names.first().map(String::as_str), Some("p0600"));
}

#[test]
fn failed_pods_beyond_a_number_of_their_owner_go_oldest_first() {
    let settings = Settings { failed_per_owner_max: Some(1), ..Settings::default() };
    let mut fixture = Fixture::new(settings, &["n"]);
    let of = |mut pod: Value, owner: &str| {
        pod["metadata"]["ownerReferences"][0]["uid"] = owner.into();
        pod
    };
    let mut bare = ended("bare", "Failed", "", 0);
    bare["metadata"]["ownerReferences"] = json!([]);
    fixture.pods(&[
        of(ended("a", "Failed", "", 1), "one"),
        of(ended("b", "Failed", "", 2), "one"),
        of(ended("c", "Failed", "NodeShutdown", 3), "one"),
        of(ended("d", "Failed", "", 0), "two"),
        of(ended("e", "Succeeded", "", 0), "two"),
        of(ended("f", "Succeeded", "", 0), "two"),
        bare,
    ]);
    let writes = fixture.pass(10);
    assert_eq!(names(&writes), ["a", "b"]);
    assert_eq!(writes[0], "a: deleted (more than 1 pods of its owner have failed)");
}

#[test]
fn of_an_owner_with_many_failed_pods_some_are_named_at_once() {
    let settings = Settings { failed_per_owner_max: Some(3), ..Settings::default() };
    let mut finished = Finished::default();
    for number in 0..1_203 {
        let mut pod = ended(&format!("p{number:04}"), "Failed", "", number);
        pod["metadata"]["uid"] = number.to_string().into();
        assert_eq!(finished.show(&samples::pod(pod), &settings), number >= 3);
    }
    let mut named = HashMap::new();
    for count in [500, 500, 200, 0] {
        let more = finished.excess(&settings, &named);
        assert_eq!(more.len(), count);
        named.extend(more);
    }
}

#[test]
fn finished_pods_are_kept_as_long_as_their_reason_or_else_their_phase_says() {
    let seconds = SignedDuration::from_secs;
    let kept_for =
        KeptFor::new([("Evicted".to_owned(), seconds(60)), ("Failed".to_owned(), seconds(600))]);
    let mut fixture = Fixture::new(Settings { kept_for, ..Settings::default() }, &["n"]);
    fixture.pods(&[
        ended("evicted", "Failed", "Evicted", 0),
        ended("rejected", "Failed", "NodeShutdown", 0),
        ended("succeeded", "Succeeded", "", 0),
        pod("runs"),
    ]);
    assert!(fixture.pass(69).is_empty());
    assert_eq!(fixture.pass(1), ["evicted: deleted (finished more than 60s ago)"]);
    assert!(fixture.pass(539).is_empty());
    assert_eq!(names(&fixture.pass(1)), ["rejected"]);
    assert!(fixture.pass(24 * 3600).is_empty());
}

#[test]
fn by_default_finished_pods_are_left_to_others() {
    let mut fixture = Fixture::of_one_node();
    fixture.pods(&[ended("a", "Failed", "Evicted", 0), ended("b", "Succeeded", "", 0)]);
    assert!(fixture.pass(24 * 3600).is_empty());
}
