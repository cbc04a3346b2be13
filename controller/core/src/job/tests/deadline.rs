//! Tests `spec.activeDeadlineSeconds`.

use super::builders::{JobBuilder, PodBuilder, api, failed, job, message, pod, pods, sync};

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
            let reported = "Job was active longer than specified deadline";
            assert_eq!(message(&api, "FailureTarget"), reported);
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

#[test]
fn enough_successes_do_not_outrun_a_deadline() {
    let all: Vec<PodBuilder> = pods("Succeeded", 1);
    let effects = sync(&mut api(deadline(10).started(15), all));
    assert_eq!((effects.conditions, effects.succeeded), (failed("DeadlineExceeded"), 1));
}

/// A Job that is being deleted is not resumed, so that its clock does not restart each time. (found
/// by a random Job)
#[test]
fn a_deadline_of_a_suspended_job_being_deleted_comes() {
    let job = deadline(10).started(15).condition("Suspended", "JobSuspended", "").deleting();
    assert!(sync(&mut api(job, vec![])).conditions.contains(&"Failed/DeadlineExceeded".into()));
}
