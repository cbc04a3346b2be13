//! Tests which objects are left, and which finalizers may go.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

const OURS: &str = "epilogue.dev/job-controller";
const NOW: &str = "2026-01-01T12:00:00Z";

fn object(kind: &str, name: &str) -> Value {
    json!({"kind": kind, "metadata": {"namespace": "a", "name": name, "uid": format!("u-{name}")}})
}

fn job(name: &str, managed_by: &Value, spec: &Value, status: Value) -> Value {
    let mut job = object("Job", name);
    job["spec"] = json!({"managedBy": managed_by, "template": {}, "selector": {}});
    for (field, value) in spec.as_object().into_iter().flatten() {
        job["spec"][field] = value.clone();
    }
    job["status"] = status;
    job
}

fn ours(name: &str) -> Value {
    job(name, &json!(OURS), &json!({}), json!({}))
}

fn suspended(name: &str, status: Value) -> Value {
    job(name, &json!(OURS), &json!({"suspend": true}), status)
}

fn complete() -> Value {
    json!({"conditions": [{"type": "Complete", "status": "True"}]})
}

fn finished(name: &str) -> Value {
    job(name, &json!(OURS), &json!({}), complete())
}

fn pod(name: &str, job: &str) -> Value {
    let mut pod = object("Pod", name);
    pod["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job",
        "name": job, "uid": format!("u-{job}"), "controller": true}]);
    pod
}

fn found(objects: &[Value], facts: Facts) -> Inventory {
    inventory(objects, facts, NOW.parse::<Timestamp>().expect("a time")).expect("objects")
}

fn codes(left: &[Left]) -> BTreeMap<&str, Vec<&str>> {
    left.iter()
        .map(|each| (each.code.as_str(), each.names.iter().map(String::as_str).collect()))
        .collect()
}

#[test]
fn without_objects_nothing_is_left() {
    let nothing = found(&[], Facts::default());
    assert_eq!((nothing.left, nothing.stays, nothing.steps), (vec![], vec![], vec![]));
}

#[test]
fn jobs_are_sorted_by_what_they_need() {
    let mut deleting = finished("d");
    deleting["metadata"]["deletionTimestamp"] = json!(NOW);
    let mut cron = object("CronJob", "c");
    cron["spec"] = json!({"jobTemplate": {"spec": {"managedBy": OURS}}});
    let foreign = job("x", &json!("example.com/other"), &json!({}), json!({}));
    let objects = [ours("a"), suspended("s", json!({})), finished("f"), deleting, cron, foreign];
    let inventory = found(&objects, Facts::default());
    let expected = [
        ("cron-job-left", vec!["cronjob/a/c"]),
        ("job-left-active", vec!["job/a/a", "job/a/d"]),
        ("job-left-suspended", vec!["job/a/s"]),
    ];
    assert_eq!(codes(&inventory.left), BTreeMap::from(expected));
    assert_eq!(codes(&inventory.stays), BTreeMap::from([("job-left-finished", vec!["job/a/f"])]));
}

#[test]
fn unmanaged_jobs_go_to_the_other_controller() {
    let unmanaged = |name: &str| job(name, &json!(null), &json!({}), json!({}));
    let mut option = unmanaged("o");
    option["metadata"]["annotations"] = json!({"epilogue.dev/disruption-limit": "3"});
    let lease = json!({"kind": "Lease", "metadata": {"namespace": "s", "name": "l"}, "spec": {
        "holderIdentity": "one", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T11:59:50Z"}});
    let objects = [unmanaged("u"), option, lease];
    let inventory = found(&objects, Facts { manage_all_jobs: true, jobs_only: true });
    let stays = BTreeMap::from([("job-handed-over", vec!["job/a/o", "job/a/u"])]);
    assert_eq!(codes(&inventory.stays), stays);
    assert_eq!(codes(&inventory.left)["annotation-left"], ["job/a/o"]);
    let at = |word: &str| inventory.steps.iter().position(|step| step.contains(word));
    assert!(at("stop the controller (one holds").expect("first") < at("only then").expect("next"));
    assert_eq!(found(&objects[..1], Facts::default()).stays, [], "it never was ours");
}

#[test]
fn a_finalizer_goes_only_if_no_controller_will_count_the_pod() {
    let mut uncounted = finished("n");
    uncounted["status"]["uncountedTerminatedPods"] = json!({"failed": ["u-of-n"]});
    let foreign = job("x", &json!("example.com/other"), &json!({}), complete());
    let upstream = job("k", &json!(null), &json!({}), complete());
    let mut free = pod("free", "f");
    free["metadata"]["finalizers"] = json!([]);
    let objects = [
        pod("of-gone", "gone"),
        pod("of-f", "f"),
        pod("of-n", "n"),
        pod("of-a", "a"),
        pod("of-s", "s"),
        pod("of-x", "x"),
        pod("of-k", "k"),
        free,
        finished("f"),
        uncounted,
        ours("a"),
        suspended("s", json!({})),
        foreign,
        upstream,
    ];
    let inventory = found(&objects, Facts::default());
    let left = codes(&inventory.left);
    assert_eq!(left["finalizer-left"], ["pod/a/of-f", "pod/a/of-gone"]);
    assert_eq!(left["finalizer-kept"], ["pod/a/of-a", "pod/a/of-n", "pod/a/of-s"]);
    let names: Vec<&str> = inventory.releases.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["of-gone", "of-f"]);
    let all = found(&objects, Facts { manage_all_jobs: true, jobs_only: true });
    assert!(codes(&all.left)["finalizer-left"].contains(&"pod/a/of-k"), "its Job was ours");
}

#[test]
fn a_release_is_judged_again_by_the_job_as_it_is_now() {
    let release = &found(&[pod("p", "a")], Facts::default()).releases[0];
    let view = |job: Value| {
        controller_core::view::WireJob::parse(job)
            .and_then(controller_core::view::WireJob::view)
            .expect("a Job")
    };
    assert!(release.holds(None));
    assert!(!release.holds(Some(&view(ours("a")))), "it was created meanwhile");
    assert!(release.holds(Some(&view(finished("a")))));
    let mut uncounted = finished("a");
    uncounted["status"]["uncountedTerminatedPods"] = json!({"succeeded": ["u-p"]});
    assert!(!release.holds(Some(&view(uncounted))));
    let mut namesake = ours("a");
    namesake["metadata"]["uid"] = json!("later");
    assert!(release.holds(Some(&view(namesake))));
}

#[test]
fn what_a_drain_and_a_suspension_wait_for() {
    let stopped = json!({"conditions": [{"type": "Suspended", "status": "True"}]});
    let objects = [
        ours("a"),
        suspended("new", json!({"active": 2})),
        suspended("old", stopped),
        finished("f"),
    ];
    let jobs = Jobs::read(&objects, Facts::default()).expect("Jobs");
    let names = |jobs: Vec<JobRef>| jobs.into_iter().map(|job| job.name).collect::<Vec<_>>();
    assert_eq!(names(jobs.in_progress()), ["a"]);
    assert_eq!(names(jobs.to_suspend()), ["a"]);
    assert_eq!(names(jobs.not_yet_stopped()), ["new"]);
}

#[test]
fn installed_objects_and_the_state_of_nodes_are_found() {
    let mut policy = json!({"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"}});
    let other = policy.clone();
    policy["metadata"]["labels"] = json!({"app.kubernetes.io/part-of": "epilogue"});
    let node =
        |name: &str, spec: Value| json!({"kind": "Node", "metadata": {"name": name}, "spec": spec});
    let taint = json!({"taints": [{"key": "epilogue.dev/shutting-down", "effect": "NoSchedule"}]});
    let mut namespace = json!({"kind": "Namespace", "metadata": {"name": "n"}});
    namespace["metadata"]["annotations"] = json!({"epilogue.dev/force-fail-after": "10m"});
    let objects = [policy, other, node("t", taint), node("clean", json!({})), namespace];
    let inventory = found(&objects, Facts::default());
    let expected = [
        ("annotation-left", vec!["namespace/n"]),
        ("installation-left", vec!["validatingadmissionpolicy/p"]),
        ("node-state-left", vec!["node/t"]),
    ];
    assert_eq!(codes(&inventory.left), BTreeMap::from(expected));
    let jobs_only = found(&objects, Facts { jobs_only: true, ..Facts::default() });
    assert_eq!(codes(&jobs_only.left), BTreeMap::from([("annotation-left", vec!["namespace/n"])]));
}

#[test]
fn a_patch_names_the_object_by_its_uid() {
    let jobs = Jobs::read(&[ours("a")], Facts::default()).expect("Jobs");
    let patch = suspend_patch(&jobs.to_suspend()[0]);
    assert_eq!(patch, json!({"metadata": {"uid": "u-a"}, "spec": {"suspend": true}}));
    let release = &found(&[pod("p", "gone")], Facts::default()).releases[0];
    assert_eq!(release.patch["metadata"]["uid"], "u-p");
}
