//! Tests unknown values that the API lets through, and Jobs that are not ours.

use k8s_openapi::api::batch::v1::JobStatus;
use serde_json::{Value, json};

use super::builders::{JobBuilder, api, await_deletion, job, pods, sync};
use crate::job::{Progress, SkipReason};
use crate::view::{Version, WholeJob};

/// A Job with an unknown completion mode gets an event and nothing else. ([S6])
#[test]
fn a_job_with_an_unknown_completion_mode_is_left_alone() {
    let odd = job().spec("completionMode", "Sorted");
    let effects = sync(&mut api(odd, pods("Failed", 3)));
    assert!(effects.trace.steps.is_empty() && !effects.is_err);
    assert_eq!(effects.trace.plan.skip, Some(SkipReason::UnknownCompletionMode));
    let reported = "UnknownCompletionMode: Skipped Job sync because completion mode is unknown";
    assert_eq!(effects.events(), [reported]);
    for known in [Value::Null, "".into(), "NonIndexed".into()] {
        assert_eq!(sync(&mut api(job().spec("completionMode", known), vec![])).created.len(), 1);
    }
}

/// Upstream leaves their finalizers, and a foreground deletion waits for ever. ([S6])
#[test]
fn a_deleted_job_with_an_unknown_completion_mode_lets_its_pods_go() {
    let odd = job().spec("completionMode", "Sorted").deleting();
    let all = [pods("Failed", 2), pods("Running", 1), pods("Succeeded", 1)].concat();
    let mut api = api(odd, all);
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), effects.deleted.len(), effects.is_err), (0, 0, false));
    assert!(api.pods.values().all(|pod| !pod.tracked), "{:?}", effects.trace.steps);
}

/// A Job that another controller manages is left alone. ([S3])
#[test]
fn jobs_of_other_managers_are_left_alone() {
    let by = |manager: Value| job().spec("managedBy", manager);
    for (manager, alone, all) in [
        (Value::from("epilogue.dev/job-controller"), true, true),
        (Value::Null, false, true),
        ("kubernetes.io/job-controller".into(), false, true),
        ("example.com/other".into(), false, false),
        ("".into(), false, false),
    ] {
        for (manage_all_jobs, ours) in [(false, alone), (true, all)] {
            let mut api = api(by(manager.clone()), vec![]);
            api.settings.manage_all_jobs = manage_all_jobs;
            let effects = sync(&mut api);
            assert_eq!(effects.created.len(), usize::from(ours), "{manager} {manage_all_jobs}");
            assert_eq!(effects.trace.steps.is_empty(), !ours, "{manager} {manage_all_jobs}");
        }
    }
}

/// Each reason to do nothing leads to no call, and the first one counts. ([S1], [S4], [S5])
#[test]
fn syncs_that_have_nothing_to_do_do_nothing() {
    let skip = |job: JobBuilder, finished: bool, stale: bool| {
        let mut api = api(job, pods("Failed", 1));
        api.memory.finished = finished;
        if stale {
            api.memory.written.pods = Version(u64::MAX);
        }
        let plan = api.plan();
        let complete = Progress::new(plan.clone(), &api.settings).into_result().complete;
        assert_eq!(complete, plan.skip != Some(SkipReason::Stale), "only then failures count on");
        (plan.skip, plan.requeue_after.map(|after| after.as_secs()))
    };
    let done = || job().condition("Complete", "R", "m");
    assert_eq!(skip(job(), false, false), (None, None));
    assert_eq!(skip(done(), false, false), (Some(SkipReason::Finished), None));
    assert_eq!(skip(job(), true, false), (Some(SkipReason::FinishedByUs), None));
    assert_eq!(skip(job(), false, true), (Some(SkipReason::Stale), Some(1)));
    assert_eq!(skip(done(), true, true), (Some(SkipReason::Finished), None));
    let foreign = job().spec("managedBy", "example.com/other");
    assert_eq!(skip(foreign, false, true), (Some(SkipReason::ManagedElsewhere), None));
}

/// Awaited pods hold creation back until the timeout. ([E1])
#[test]
fn awaited_pods_hold_creation_back_until_the_timeout() {
    for (waited, created, wake) in [(0, 0, Some(300)), (299, 0, Some(1)), (300, 1, None)] {
        let mut api = api(job(), vec![]);
        await_deletion(&mut api);
        api.memory.expectations.since = Some(super::builders::ago(waited));
        let effects = sync(&mut api);
        assert_eq!((effects.created.len(), effects.requeue_seconds), (created, wake), "{waited}");
    }
}

/// Unknown fields of the status survive a write.
#[test]
fn a_write_keeps_status_fields_that_we_do_not_know() {
    let api = api(job().status("futureField", "kept"), vec![]);
    let body = crate::job::status_body(&api.job, &api.job.status).expect("a status serialises");
    let body: Value = serde_json::from_str(body.json().expect("is JSON")).expect("must be JSON");
    assert_eq!(body["status"]["futureField"], "kept");
    assert_eq!(body["metadata"]["resourceVersion"], "7");
    assert!(body.get("spec").is_none());
}

/// So do those of a condition, as long as it says the same, and those of the uncounted pods.
#[test]
fn a_write_keeps_fields_within_the_status_that_we_do_not_know() {
    let condition = json!({"type": "Suspended", "status": "False", "observedGeneration": 7});
    let uncounted = json!({"succeeded": ["uid-a"], "later": ["x"]});
    let job = job().status("conditions", json!([condition]));
    let api = api(job.status("uncountedTerminatedPods", uncounted), vec![]);
    let written = |status: &JobStatus| {
        let body = crate::job::status_body(&api.job, status).expect("a status serialises");
        let body: Value = serde_json::from_str(body.json().expect("is JSON")).expect("is JSON");
        body["status"].clone()
    };
    let mut status = api.job.status.clone();
    let same = written(&status);
    assert_eq!(same["conditions"][0]["observedGeneration"], 7);
    let expected = json!({"succeeded": ["uid-a"], "later": ["x"]});
    assert_eq!(same["uncountedTerminatedPods"], expected);
    status.conditions.iter_mut().flatten().for_each(|it| it.status = "True".to_owned());
    status.uncounted_terminated_pods = None;
    let other = written(&status);
    assert_eq!(other["conditions"][0].get("observedGeneration"), None, "it says another thing");
    assert_eq!(other.get("uncountedTerminatedPods"), None);
}

/// Admission that reads the spec gets it with its unknown fields, in either format.
#[test]
fn a_status_is_sent_with_the_spec_as_it_came() {
    let text = json!({
        "metadata": {"name": "j", "namespace": "n", "uid": "u", "resourceVersion": "7"},
        "spec": {"completions": 2, "later": "kept", "template": {"spec": {"nodeName": "x"}}},
    });
    let whole = WholeJob::read(&text.to_string()).expect("must be a Job");
    let body = crate::job::whole_status_body(&whole, &whole.job.status).expect("serialises");
    let body: Value = serde_json::from_str(body.json().expect("is JSON")).expect("is JSON");
    assert_eq!((&body["spec"], &body["metadata"]), (&text["spec"], &text["metadata"]));
    // metadata (1) with a name, spec (2) with completions (2) and an unknown field (99).
    let spec = [0x10, 0x02, 0x9a, 0x06, 0x01, b'u'];
    let message = [&[0x0a, 0x03, 0x0a, 0x01, b'j', 0x12, 0x06][..], &spec].concat();
    let whole = WholeJob::decode(&message).expect("must be a Job");
    assert_eq!(whole.job.spec.completions, Some(2));
    let body = crate::job::whole_status_body(&whole, &whole.job.status).expect("serialises");
    let body = body.into_bytes();
    assert!(body.windows(spec.len()).any(|window| window == spec), "{body:?}");
}
