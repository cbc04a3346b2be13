//! Tests `spec.activeDeadlineSeconds`.

use serde_json::json;

use super::builders::{
    JobBuilder, ago, api, await_deletion, complete, failed, job, message, pod, pods, sync,
};

fn deadline(seconds: i64) -> JobBuilder {
    job().size(1, 1).spec("activeDeadlineSeconds", seconds)
}

/// The deadline fails the Job at its time and not before. ([U5])
#[test]
fn a_job_fails_when_its_deadline_has_come() {
    let running = || vec![pod("a", "Running").on_node()];
    for (started, pods, wait, deleted, failures) in [
        (15, running(), None, 1, 1),
        (10, running(), None, 1, 1),
        (9, running(), Some(1), 0, 0),
        (0, running(), Some(10), 0, 0),
        (15, vec![], None, 0, 0),
    ] {
        let done = deleted == 0;
        let mut api = api(deadline(10).started(started), pods);
        let effects = sync(&mut api);
        assert_eq!((effects.deleted.len(), effects.failed), (deleted, failures), "{started}");
        assert_eq!(effects.requeue_seconds, wait, "{started}");
        let expected = match (wait, done) {
            (Some(_), _) => vec![],
            (None, true) => failed("DeadlineExceeded"),
            (None, false) => vec!["FailureTarget/DeadlineExceeded".to_owned()],
        };
        assert_eq!(effects.conditions, expected, "{started}");
        if wait.is_none() {
            let reported = "Job was active longer than specified deadline of 10 s; the Job had ";
            assert!(message(&api, "FailureTarget").starts_with(reported));
        }
    }
}

/// The Job starts before its deadline is checked: zero is due at once. ([S14], [S16])
#[test]
fn a_deadline_of_zero_is_due_at_once() {
    let effects = sync(&mut api(deadline(0), vec![]));
    assert_eq!((effects.create_calls, effects.conditions), (0, failed("DeadlineExceeded")));
}

#[test]
fn the_backoff_limit_comes_before_the_deadline() {
    let both = deadline(10).started(15).spec("backoffLimit", 0);
    let effects = sync(&mut api(both, pods("Failed", 1)));
    assert_eq!(effects.conditions, failed("BackoffLimitExceeded"));
}

#[test]
fn a_suspended_job_has_no_deadline() {
    let effects = sync(&mut api(deadline(10).started(15).suspended(), vec![]));
    assert_eq!(effects.conditions, ["Suspended/JobSuspended"]);
    assert_eq!(effects.requeue_seconds, None);
}

/// The deadline counts from the resumption, whatever startTime says. ([U5])
#[test]
fn resuming_restarts_the_clock() {
    let resumed = deadline(10).started(500).condition("Suspended", "JobSuspended", "");
    let mut api = api(resumed, vec![]);
    assert_eq!(sync(&mut api).created.len(), 1);
    assert_eq!(sync(&mut api).requeue_seconds, Some(10));
}

/// Work that was done before the deadline completes the Job, however late the controller sees it.
/// ([C7])
#[test]
fn work_that_was_done_before_the_deadline_completes_the_job() {
    let done = |seconds| pod("a", "Succeeded").ended(0, seconds);
    let unready = pod("a", "Succeeded").with(|pod| {
        pod["status"]["conditions"] = json!([
            {"type": "Ready", "status": "False", "lastTransitionTime": ago(5).to_string()}
        ]);
    });
    let active = pod("b", "Running").on_node();
    let failed_late = pod("b", "Failed").ended(1, 4);
    let failed_before = pod("b", "Failed").ended(1, 8);
    let released = pod("b", "Failed").untracked();
    let (in_time, late) = (complete("CompletionsReached"), failed("DeadlineExceeded"));
    // The deadline was 5 s ago.
    for (row, (pods, expected)) in [
        (vec![done(6)], &in_time),
        (vec![done(5)], &in_time),
        (vec![unready], &in_time),
        (vec![done(6), failed_before], &in_time),
        (vec![done(6), released], &in_time),
        (vec![done(4)], &late),
        (vec![done(6), failed_late], &late),
        // It shows no end, or one before its beginning: its node's clock is wrong.
        (vec![pod("a", "Succeeded")], &late),
        (vec![done(120)], &late),
        (vec![], &late),
    ]
    .into_iter()
    .enumerate()
    {
        let effects = sync(&mut api(deadline(10).started(15), pods));
        assert_eq!((&effects.conditions, effects.requeue_seconds), (expected, None), "row {row}");
        assert_eq!(effects.create_calls, 0, "row {row}");
    }
    for other in [active.clone(), active.terminating()] {
        let effects = sync(&mut api(deadline(10).started(15), vec![done(6), other]));
        assert_eq!(effects.conditions, ["FailureTarget/DeadlineExceeded"]);
    }
}

/// What an earlier sync counted was in time: it would have ended a Job past its deadline.
#[test]
fn a_counted_success_whose_pod_is_gone_was_in_time() {
    let half = || deadline(10).size(2, 2).started(15).status("succeeded", 1);
    let effects = sync(&mut api(half(), vec![pod("b", "Succeeded").ended(0, 6)]));
    assert_eq!((effects.conditions, effects.succeeded), (complete("CompletionsReached"), 2));
    let effects = sync(&mut api(half(), vec![]));
    assert_eq!((effects.conditions, effects.succeeded), (failed("DeadlineExceeded"), 1));
}

/// A success policy that is met in time counts as well, also while a deletion is awaited.
#[test]
fn a_success_rule_that_was_met_before_the_deadline_completes_the_job() {
    let rules = json!({"rules": [{"succeededIndexes": "0"}]});
    let led = || deadline(10).indexed().size(2, 2).started(15).spec("successPolicy", rules.clone());
    let ends = |leader, follower| {
        vec![
            pod("a", "Succeeded").index(0).ended(0, leader),
            pod("b", "Failed").index(1).ended(143, follower),
        ]
    };
    let effects = sync(&mut api(led(), ends(8, 7)));
    assert_eq!(effects.conditions, complete("SuccessPolicy"));
    let effects = sync(&mut api(led(), ends(8, 3)));
    assert_eq!(effects.conditions, failed("DeadlineExceeded"));

    let mut awaiting = api(led(), ends(8, 7));
    await_deletion(&mut awaiting);
    let effects = sync(&mut awaiting);
    assert_eq!(effects.conditions, Vec::<String>::new());
    assert!(effects.requeue_seconds.is_some_and(|seconds| seconds > 0), "no busy loop");
    awaiting.memory.expectations.deleted.clear();
    assert_eq!(sync(&mut awaiting).conditions, complete("SuccessPolicy"));
}

#[test]
fn completions_that_were_reached_in_time_wait_for_the_watches_without_a_loop() {
    let mut awaiting = api(deadline(10).started(15), vec![pod("a", "Succeeded").ended(0, 6)]);
    await_deletion(&mut awaiting);
    let effects = sync(&mut awaiting);
    assert_eq!(effects.conditions, Vec::<String>::new());
    assert!(effects.requeue_seconds.is_some_and(|seconds| seconds > 0), "no busy loop");
    awaiting.memory.expectations.deleted.clear();
    assert_eq!(sync(&mut awaiting).conditions, complete("CompletionsReached"));
}

/// A Job that is being deleted is not resumed, so that its clock does not restart each time. (found
/// by a random Job)
#[test]
fn a_deadline_of_a_suspended_job_being_deleted_comes() {
    let job = deadline(10).started(15).condition("Suspended", "JobSuspended", "").deleting();
    assert!(sync(&mut api(job, vec![])).conditions.contains(&"Failed/DeadlineExceeded".into()));
}
