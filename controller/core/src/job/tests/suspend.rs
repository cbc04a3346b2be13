//! Tests suspension and resumption.

use super::builders::{
    PodBuilder, ago, api, await_deletion, check, complete, job, message, now, outage, pod, pods,
    sync, sync_with,
};
use crate::job::Step;

fn running(count: usize) -> Vec<PodBuilder> {
    pods("Running", count).into_iter().map(PodBuilder::on_node).collect()
}

/// Suspension deletes all active pods, counts none as failed, and clears startTime. ([P1], [U1])
#[test]
fn suspending_deletes_all_pods_without_counting_them() {
    let mut api = api(job().size(2, 5).suspended().started(50), running(2));
    let effects = sync(&mut api);
    assert_eq!((effects.deleted.len(), effects.patches, effects.failed), (2, 2, 0));
    assert_eq!((effects.active, effects.terminating), (0, 2));
    assert_eq!(effects.conditions, ["Suspended/JobSuspended"]);
    assert_eq!(message(&api, "Suspended"), "Job suspended");
    assert_eq!(api.job.start_time(), None);
    assert!(effects.events().contains(&"Suspended: Job suspended".to_owned()));
}

#[test]
fn nothing_is_suspended_while_pods_are_awaited() {
    let mut api = api(job().size(3, 5).suspended(), running(3));
    await_deletion(&mut api);
    let effects = sync(&mut api);
    assert_eq!((effects.deleted.len(), effects.active), (0, 3));
    assert!(effects.conditions.is_empty());
}

/// A crash forgets deletions that no watch has shown; the process that comes next reads them.
#[test]
fn a_job_resumes_the_same_after_a_crash_that_forgets_its_deletions() {
    let mut api = api(job().size(2, 5).started(50), running(2));
    let pods: Vec<_> = api.pods.keys().cloned().collect();
    api.memory.removed_finalizers.extend(pods.iter().cloned());
    api.memory.expectations.deleted.extend(pods);
    api.memory.expectations.since = Some(now());
    check(&api);
}

/// One write resumes the Job and sets startTime. ([U1], [U4])
#[test]
fn resuming_creates_pods_and_starts_the_clock_again() {
    let suspended = || job().size(2, 5).condition("Suspended", "JobSuspended", "Job suspended");
    for stale in [suspended(), suspended().started(500)] {
        let mut api = api(stale, vec![]);
        let effects = sync(&mut api);
        assert_eq!((effects.created.len(), effects.writes.len()), (2, 1));
        assert!(effects.conditions.is_empty());
        assert_eq!(message(&api, "Suspended"), "Job resumed");
        assert_eq!(api.job.start_time(), Some(now()));
        assert!(effects.events().contains(&"Resumed: Job resumed".to_owned()));
    }
}

/// A Job that is created suspended has neither pods nor startTime. ([U3])
#[test]
fn a_job_that_is_created_suspended_does_not_start() {
    let mut api = api(job().suspended(), vec![]);
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), api.job.start_time()), (0, None));
    assert_eq!(effects.conditions, ["Suspended/JobSuspended"]);
    assert!(sync(&mut api).writes.is_empty(), "suspended once is enough");
}

/// A Job that is being deleted is not suspended. ([U3])
#[test]
fn suspending_while_deleting_only_lets_pods_go() {
    let effects = sync(&mut api(job().size(2, 5).suspended().deleting(), running(2)));
    assert_eq!((effects.deleted.len(), effects.patches), (0, 2));
    assert!(effects.conditions.is_empty());
}

/// Enough successes complete a Job, suspended or not. ([C12], [U6])
#[test]
fn completion_comes_before_suspension() {
    let effects = sync(&mut api(job().size(2, 4).suspended(), pods("Succeeded", 4)));
    assert_eq!(effects.conditions, complete("CompletionsReached"));
    let mut empty = api(job().size(2, 0).suspended(), vec![]);
    assert_eq!(sync(&mut empty).conditions, complete("CompletionsReached"));
    assert_eq!(empty.job.start_time(), None, "no completions need no start");
}

/// It was suspended before the first write of its status.
#[test]
fn a_suspended_job_whose_pods_could_not_be_deleted_has_started() {
    let mut api = api(job().size(2, 5).suspended(), running(2));
    let effects = sync_with(&mut api, &|step, _| matches!(step, Step::Delete(..)).then(outage));
    assert_eq!((effects.active, api.job.start_time()), (2, Some(now())));
    sync(&mut api);
    assert_eq!(api.job.start_time(), None);
}

/// Suspended is stored even when a deletion failed. The start time stays until no pod is active:
/// without it the API lets a user change where pods run. ([U2])
#[test]
fn suspended_is_reported_even_when_a_pod_could_not_be_deleted() {
    let mut api = api(job().size(2, 5).suspended().started(50), running(2));
    let fails = |step: &Step, call| (matches!(step, Step::Delete(..)) && call == 0).then(outage);
    for terminating in [1, 1] {
        let effects = sync_with(&mut api, &fails);
        assert_eq!((effects.active, effects.terminating), (1, terminating));
        assert!(effects.is_err);
        assert_eq!(effects.conditions, ["Suspended/JobSuspended"]);
        assert_eq!(api.job.start_time(), Some(ago(50)));
        // The watch shows the other one as terminating, and its deletion is no longer awaited.
        api.memory.expectations.deleted.clear();
    }
    let effects = sync(&mut api);
    assert_eq!((effects.active, effects.terminating, effects.is_err), (0, 2, false));
    assert_eq!((effects.writes.len(), api.job.start_time()), (1, None));
    assert_eq!(effects.conditions, ["Suspended/JobSuspended"]);
    assert!(sync(&mut api).writes.is_empty(), "cleared once is enough");
}

/// The clock starts anew, though the old start time stood. ([U4])
#[test]
fn a_job_that_resumes_before_its_pods_are_gone_starts_anew() {
    let stored = job().size(2, 5).condition("Suspended", "JobSuspended", "Job suspended");
    let mut api = api(stored.started(50), running(2));
    let effects = sync(&mut api);
    assert!(effects.conditions.is_empty());
    assert_eq!((effects.active, api.job.start_time()), (2, Some(now())));
}

/// Failed pods are counted while suspended, unless they wait for their index. ([I12])
#[test]
fn pods_that_failed_are_counted_while_suspended() {
    let effects = sync(&mut api(job().size(2, 5).suspended(), pods("Failed", 2)));
    assert_eq!((effects.failed, effects.patches, effects.deleted.len()), (2, 2, 0));
}

/// The condition is replaced in place, with new times. ([C4])
#[test]
fn the_condition_is_replaced_in_place() {
    let resumed = job()
        .suspended()
        .condition_is("Suspended", "False", "JobResumed", "Job resumed")
        .condition("Other", "R", "m")
        .started(50);
    let mut api = api(resumed, vec![pod("a", "Running").on_node()]);
    sync(&mut api);
    let kinds: Vec<_> = api.job.status.conditions.iter().flatten().collect();
    assert_eq!((kinds.len(), kinds[0].type_.as_str()), (2, "Suspended"));
    assert_eq!(kinds[0].last_transition_time.as_ref().map(|time| time.0), Some(now()));
    assert_eq!(kinds[1].last_transition_time.as_ref().map(|time| time.0), Some(ago(5)));
}
