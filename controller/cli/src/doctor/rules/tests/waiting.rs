//! Tests the Jobs that wait for what only people can change.

use super::*;

/// What is found one hour after the start; a dump would not have the messages.
fn found(objects: Vec<Value>) -> Vec<String> {
    let objects = objects.into_iter().map(|object| {
        let name = object["kind"].as_str().unwrap_or("Pod").to_owned();
        kind(&name, object)
    });
    let scene = Scene::new(Kind::ALL, objects.collect(), now()).expect("must be readable");
    reported(&scene)
}

fn started(name: &str) -> Value {
    let selector = json!({"matchLabels": {"job": name}});
    let spec = json!({"managedBy": "example.com/other", "template": {}, "selector": selector,
                      "parallelism": 2, "completions": 2});
    job(name, json!({"spec": spec, "status": {"startTime": at(0), "active": 1}}))
}

fn refused(first: i64) -> Value {
    json!({
        "kind": "Event", "type": "Warning", "reason": "FailedCreate",
        "metadata": {"name": "e", "namespace": "default"},
        "message": "Error creating: pods \"j\" is forbidden: exceeded quota: few, requested: \
                    pods=1, used: pods=1, limited: pods=1",
        "involvedObject": {"kind": "Job", "uid": "j"},
        "firstTimestamp": at(first), "lastTimestamp": at(HOUR - 10),
    })
}

fn pending(created: i64) -> Value {
    let mut pod = phase(pod("p"), "Pending");
    pod["spec"]["nodeName"] = json!(null);
    pod["metadata"]["creationTimestamp"] = at(created).into();
    pod["status"]["containerStatuses"] = json!(null);
    pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False",
        "reason": "Unschedulable", "message": "0/3 nodes are available"}]);
    pod
}

#[test]
fn a_job_that_a_quota_blocks_for_five_minutes_is_a_finding() {
    let lines = found(vec![started("j"), refused(HOUR - 600)]);
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let words = "job/default/j: it waits for the quota few to allow its pods: requested: pods=1";
    assert!(lines[0].starts_with(words), "{lines:#?}");
    assert!(lines[0].contains("[quota-exceeded] | raise the quota"), "{lines:#?}");
    assert!(found(vec![started("j"), refused(HOUR - 200)]).is_empty(), "too young");
}

#[test]
fn pods_that_wait_for_five_minutes_are_a_finding_of_their_job() {
    let lines = found(vec![started("j"), pending(HOUR - 600)]);
    let expected = "job/default/j: its pod p waits to be scheduled: 0/3 nodes are available \
                    [pod-unscheduled] | add capacity, or correct requests and affinity";
    assert_eq!(lines, [expected]);
    assert!(found(vec![started("j"), pending(HOUR - 200)]).is_empty(), "too young");
    assert!(found(vec![pending(HOUR - 600)]).is_empty(), "its Job is not there");
}
