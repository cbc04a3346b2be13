//! Tests the findings about agents that would not see a shutdown through.

use super::*;

fn prepared(name: &str, lock: &str, granted: u32) -> Value {
    let mut node = node(name);
    let text = format!("mode=replace;lock={lock};granted={granted};wanted=40");
    node["metadata"]["annotations"]["epilogue.dev/readiness"] = text.into();
    node
}

fn found(nodes: Vec<Value>) -> Vec<(String, String, Code)> {
    let findings = findings(&scene(nodes), None, now());
    findings.into_iter().map(|it| (it.subject, it.problem, it.code)).collect()
}

#[test]
fn nodes_without_lock_or_time_are_named_once_for_each_code() {
    let mut nodes: Vec<Value> =
        (0..12).map(|number| prepared(&format!("n-{number:02}"), "none", 40)).collect();
    nodes.extend([prepared("short", "held", 5), prepared("well", "held", 40), node("bare")]);
    let found = found(nodes);
    let [(all, lock, first), (one, delay, second)] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((all.as_str(), *first), ("12 nodes", Code::LockNotHeld));
    assert!(
        lock.ends_with("on n-00, n-01, n-02, n-03, n-04, n-05, n-06, n-07, n-08, n-09 and 2 more")
    );
    assert_eq!((one.as_str(), *second), ("node/short", Code::DelayTooShort));
    assert!(delay.contains("granted 5s, wanted 40s"), "{delay}");
}

#[test]
fn a_silent_node_is_not_asked_for_its_lock() {
    assert_eq!(found(vec![silent(prepared("n", "none", 40))]), []);
}
