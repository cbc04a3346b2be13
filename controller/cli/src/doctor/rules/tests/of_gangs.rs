//! Tests what doctor says of gang scheduling.

use super::*;

/// The lease of a controller that says this of gang scheduling, and other annotations.
fn says(state: &str, mut annotations: Value) -> Value {
    annotations["epilogue.dev/gang-scheduling"] = state.into();
    let mut lease = lease("epilogue-system", "epilogue-controller", "c_1", HOUR);
    lease["metadata"]["annotations"] = annotations;
    lease
}

const NO_RIGHT: &str = "off: the account may not list workloads of scheduling.k8s.io";
const NOT_SERVED: &str = "off: the API server does not serve scheduling.k8s.io/v1beta1";

/// A Job of ours that started, with these fields of its spec.
fn ours(name: &str, spec: &Value) -> Value {
    let mut job = managed(name, "epilogue.dev/job-controller");
    for (field, value) in spec.as_object().expect("fields") {
        job["spec"][field] = value.clone();
    }
    job["status"] = json!({"startTime": at(0)});
    job
}

fn gang() -> Value {
    json!({"scheduling": {"schedulingPolicy": {"gang": {}}}})
}

fn state(lease: Value) -> Option<GangState> {
    gang_state(&scene(vec![lease]), Some(&our_lease()))
}

#[test]
fn doctor_says_whether_gangs_are_scheduled_and_what_is_missing() {
    let on = state(says("on", json!({}))).expect("it is on");
    assert_eq!((on.state.as_str(), on.remedy), ("on", None));
    let off = state(says(NO_RIGHT, json!({}))).expect("it is off");
    assert_eq!(off.state, NO_RIGHT);
    let remedy = off.remedy.expect("a remedy");
    assert!(remedy.contains("gangScheduling.enabled=true") && remedy.contains("component"));
    let later = state(says("off: a later reason", json!({}))).expect("it is off");
    assert!(later.state.ends_with("a later reason") && later.remedy.is_some());
}

#[test]
fn where_it_cannot_be_used_doctor_says_nothing() {
    assert_eq!(state(says(NOT_SERVED, json!({}))), None);
    let observes = json!({"epilogue.dev/runs-jobs": "false"});
    assert_eq!(state(says(NO_RIGHT, observes)), None);
    assert_eq!(state(lease("epilogue-system", "epilogue-controller", "c_1", HOUR)), None);
    assert_eq!(gang_state(&scene(vec![]), Some(&our_lease())), None);
}

#[test]
fn a_job_that_asks_for_a_gang_where_none_is_made_is_found() {
    let template = json!({"metadata": {"namespace": "default", "name": "t", "uid": "t",
        "annotations": {"scheduling.k8s.io/group-template-name": "workers"}}});
    let mut delegated = ours("t", &json!({}));
    delegated["metadata"]["annotations"] = template["metadata"]["annotations"].clone();
    assert_reported(
        vec![ours("x", &gang()), says(NO_RIGHT, json!({}))],
        &[
            "job/default/x: it asks for a gang by spec.scheduling",
            "may not list workloads",
            "gangScheduling.enabled=true",
            "[gang-scheduling-off]",
        ],
    );
    assert_reported(
        vec![delegated, says(NOT_SERVED, json!({}))],
        &[
            "by the annotation scheduling.k8s.io/group-template-name",
            "does not serve",
            "--feature-gates=GenericWorkload=true",
        ],
    );
}

#[test]
fn many_jobs_that_ask_for_gangs_are_one_finding() {
    let mut objects: Vec<Value> =
        ["a", "b", "c", "d"].iter().map(|name| ours(name, &gang())).collect();
    objects.push(says(NO_RIGHT, json!({})));
    assert_reported(objects, &["4 jobs: default/a, default/b, default/c and 1 more ask for gangs"]);
}

#[test]
fn jobs_that_have_their_gang_or_another_controller_are_no_finding() {
    let grouped = json!({"scheduling": {"schedulingPolicy": {"gang": {}}},
                         "template": {"spec": {"schedulingGroup": {"podGroupName": "g"}}}});
    let basic = json!({"scheduling": {"schedulingPolicy": {"basic": {}}}});
    let mut finished = ours("f", &gang());
    finished["status"]["conditions"] = json!([{"type": "Complete", "status": "True"}]);
    let mut other = ours("o", &gang());
    other["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
    let mut upstream = ours("u", &gang());
    upstream["spec"]["managedBy"] = json!(null);
    for job in [ours("g", &grouped), ours("b", &basic), finished, other, upstream.clone()] {
        assert_fine(vec![job, says(NO_RIGHT, json!({}))]);
    }
    assert_fine(vec![ours("x", &gang()), says("on", json!({}))]);
    let older = lease("epilogue-system", "epilogue-controller", "c_1", HOUR);
    assert_fine(vec![ours("x", &gang()), older]);
    let all = says(NO_RIGHT, json!({"epilogue.dev/manage-all-jobs": "true"}));
    assert_reported(vec![upstream, all], &["job/default/u", "[gang-scheduling-off]"]);
}
