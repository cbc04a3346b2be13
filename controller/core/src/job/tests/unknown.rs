//! What the API lets through and we don't know, and Jobs that are not ours. (spec §5, §11, §22)

use serde_json::Value;

use super::builders::{JobBuilder, await_creation, job, pods, sync, world};
use crate::job::Idle;
use crate::view::Version;

/// [S6]
#[test]
fn a_job_with_an_unknown_completion_mode_is_left_alone() {
    let odd = job().spec("completionMode", "Sorted");
    let effects = sync(&mut world(odd, pods("Failed", 3)));
    assert!(effects.trace.steps.is_empty() && !effects.is_err);
    assert_eq!(effects.trace.plan.idle, Some(Idle::UnknownCompletionMode));
    let told = "UnknownCompletionMode: Skipped Job sync because completion mode is unknown";
    assert_eq!(effects.events(), [told]);
    for known in [Value::Null, "".into(), "NonIndexed".into()] {
        assert_eq!(sync(&mut world(job().spec("completionMode", known), vec![])).created.len(), 1);
    }
}

/// [S3], §22
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
            let mut world = world(by(manager.clone()), vec![]);
            world.settings.manage_all_jobs = manage_all_jobs;
            let effects = sync(&mut world);
            assert_eq!(effects.created.len(), usize::from(ours), "{manager} {manage_all_jobs}");
            assert_eq!(effects.trace.steps.is_empty(), !ours, "{manager} {manage_all_jobs}");
        }
    }
}

/// [S1], [S4], [S5], and their order.
#[test]
fn syncs_that_have_nothing_to_do_do_nothing() {
    let idle = |job: JobBuilder, finished: bool, stale: bool| {
        let mut world = world(job, pods("Failed", 1));
        world.memory.finished = finished;
        if stale {
            world.memory.written.pods = Version(u64::MAX);
        }
        let plan = world.plan();
        (plan.idle, plan.requeue_after.map(|after| after.as_secs()))
    };
    let done = || job().condition("Complete", "R", "m");
    assert_eq!(idle(job(), false, false), (None, None));
    assert_eq!(idle(done(), false, false), (Some(Idle::Finished), None));
    assert_eq!(idle(job(), true, false), (Some(Idle::FinishedByUs), None));
    assert_eq!(idle(job(), false, true), (Some(Idle::Stale), Some(1)));
    assert_eq!(idle(done(), true, true), (Some(Idle::Finished), None));
    let foreign = job().spec("managedBy", "example.com/other");
    assert_eq!(idle(foreign, false, true), (Some(Idle::ManagedElsewhere), None));
}

/// [E1]: what is awaited holds pods back for a while, and not for ever.
#[test]
fn awaited_pods_hold_creation_back_until_the_timeout() {
    for (waited, created, wake) in [(0, 0, Some(300)), (299, 0, Some(1)), (300, 1, None)] {
        let mut world = world(job(), vec![]);
        await_creation(&mut world);
        world.memory.expectations.since = Some(super::builders::ago(waited));
        let effects = sync(&mut world);
        assert_eq!((effects.created.len(), effects.requeue_seconds), (created, wake), "{waited}");
    }
}

/// Unknown fields of the status survive a write. (§30)
#[test]
fn a_write_keeps_status_fields_that_we_do_not_know() {
    let world = world(job().status("futureField", "kept"), vec![]);
    let body = crate::job::status_body(&world.job, &world.job.status).expect("a status serialises");
    let body: Value = serde_json::from_str(body.get()).expect("must be JSON");
    assert_eq!(body["status"]["futureField"], "kept");
    assert_eq!(body["metadata"]["resourceVersion"], "7");
    assert!(body.get("spec").is_none());
}
