//! Tests `spec.backoffLimitPerIndex`.

use serde_json::{Value, json};

use super::builders::{JobBuilder, PodBuilder, api, failed, job, pod, sync, uid};
use crate::job::WaitsFor;
use crate::view::FailureCounts;

fn per_index(parallelism: i32, completions: i32, limit: i32) -> JobBuilder {
    job()
        .size(parallelism, completions)
        .indexed()
        .spec("backoffLimitPerIndex", limit)
        .spec("backoffLimit", i32::MAX)
}

fn with_policy(job: JobBuilder, action: &str) -> JobBuilder {
    job.failure_policy(json!([
        {"action": action, "onExitCodes": {"operator": "In", "values": [5]}}
    ]))
}

/// A pod of an index that failed this many seconds ago, with this many failures before it.
fn failure(index: u32, before: u32, seconds_ago: i64) -> PodBuilder {
    let pod = pod(&format!("f{index}-{before}"), "Failed").created(seconds_ago + 60);
    pod.index(index).failures(before).ended(1, seconds_ago)
}

/// A failed pod is counted once its replacement exists or its index has failed. ([I10])
#[test]
fn a_failure_is_counted_when_its_replacement_is_there_or_its_index_has_failed() {
    let replacement = || pod("r", "Running").index(0).failures(1);
    // pods: failed, patches, failed indexes, created
    for (row, (limit, pods, failures, patches, indexes, created)) in [
        (1, vec![failure(0, 0, 5)], 0, 0, "", vec![]),
        (1, vec![failure(0, 0, 10)], 0, 0, "", vec![0]),
        (1, vec![failure(0, 0, 5), replacement()], 1, 1, "", vec![]),
        (1, vec![failure(0, 1, 5)], 1, 1, "0", vec![1]),
        (0, vec![failure(0, 0, 5)], 1, 1, "0", vec![1]),
        (2, vec![failure(0, 1, 5)], 0, 0, "", vec![]),
        (2, vec![failure(0, 2, 5)], 1, 1, "0", vec![1]),
        (2, vec![failure(0, 3, 5)], 1, 1, "0", vec![1]),
    ]
    .into_iter()
    .enumerate()
    {
        // The other index waits too, except in the rows in which index 0 has failed.
        let wait = if created == [1] { vec![] } else { vec![pod("s", "Succeeded").index(1)] };
        let effects = sync(&mut api(per_index(2, 2, limit), [pods, wait.clone()].concat()));
        assert_eq!(effects.failed, failures, "row {row}");
        assert_eq!(effects.patches, patches + wait.len(), "row {row}");
        assert_eq!(effects.failed_indexes.as_deref(), Some(indexes), "row {row}");
        assert_eq!(effects.created_indexes(), created, "row {row}");
    }
}

/// The replacement carries the count of its index and waits by it. ([I8], [D4])
#[test]
fn the_replacement_carries_the_count_of_its_index() {
    for (before, ignored, seconds_ago, wait) in [
        (0, 0, 9, Some(1)),
        (0, 0, 10, None),
        (1, 0, 19, Some(1)),
        (1, 0, 20, None),
        (5, 0, 320, None),
        (6, 0, 599, Some(1)),
        (40, 0, 600, None),
        (0, 3, 10, None),
    ] {
        let failed = failure(0, before, seconds_ago).ignored_failures(ignored);
        let effects = sync(&mut api(per_index(1, 1, 99), vec![failed]));
        let row = format!("{before} and {ignored} before, {seconds_ago} s ago");
        assert_eq!(effects.requeue_seconds, wait, "{row}");
        let counts = FailureCounts { counted: before + 1, ignored };
        let created = effects.created.first().and_then(|draft| draft.failures);
        assert_eq!(created, wait.is_none().then_some(counts), "{row}");
    }
}

/// A failure that the policy ignores has a count of its own. ([I8])
#[test]
fn an_ignored_failure_is_counted_apart() {
    let failed = failure(0, 1, 20).container("containerStatuses", "x", 5);
    let job = with_policy(per_index(1, 2, 1), "Ignore");
    let effects = sync(&mut api(job, vec![failed]));
    let counts = effects.created.first().and_then(|draft| draft.failures);
    assert_eq!(counts, Some(FailureCounts { counted: 1, ignored: 1 }));
    assert_eq!((effects.failed, effects.patches), (0, 0), "kept until its replacement is there");
}

/// FailIndex fails an index, and so does a counted failure at the limit. ([I9])
#[test]
fn an_index_fails_by_its_count_or_by_the_policy() {
    let exit = |code| pod("f", "Failed").index(0).failures(0).ended(code, 1);
    for (action, code, indexes, failures) in [
        ("FailIndex", 5, "0", 1),
        ("FailIndex", 6, "", 0),
        ("Count", 5, "", 0),
        ("Ignore", 5, "", 0),
    ] {
        let effects = sync(&mut api(with_policy(per_index(1, 2, 1), action), vec![exit(code)]));
        assert_eq!(effects.failed_indexes.as_deref(), Some(indexes), "{action} {code}");
        assert_eq!(effects.failed, failures, "{action} {code}");
    }
}

/// Text that is not a count reads as 0. ([I8])
#[test]
fn odd_count_annotations_are_zero() {
    for (text, counted) in
        [("3", 3), ("-3", 0), ("x", 0), ("", 0), ("2147483647", i32::MAX as u32), ("2147483648", 0)]
    {
        let pod = pod("p", "Failed").with(|pod| {
            pod["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] =
                text.into();
        });
        assert_eq!(pod.build().failures.counted, counted, "{text:?}");
    }
}

/// More failed indexes than the limit, or none left to run, fail the Job. ([I14])
#[test]
fn too_many_failed_indexes_fail_the_job() {
    // maxFailedIndexes, stored failed, completed: reason
    for (row, (max, stored, completed, reason)) in [
        (Some(0), "", "", None),
        (Some(0), "0", "", Some("MaxFailedIndexesExceeded")),
        (Some(1), "0", "", None),
        (Some(1), "0,1", "", Some("MaxFailedIndexesExceeded")),
        (Some(4), "0-3", "", Some("FailedIndexes")),
        (None, "0-2", "", None),
        (None, "0-2", "3", Some("FailedIndexes")),
        (None, "0", "1-3", Some("FailedIndexes")),
        (Some(3), "0", "1-3", Some("FailedIndexes")),
        (None, "", "0-3", None),
    ]
    .into_iter()
    .enumerate()
    {
        let mut job = per_index(0, 4, 1).completed(completed).status("failedIndexes", stored);
        if let Some(max) = max {
            job = job.spec("maxFailedIndexes", max);
        }
        let effects = sync(&mut api(job, vec![]));
        let expected = match reason {
            Some(reason) => failed(reason),
            None if completed == "0-3" => super::builders::complete("CompletionsReached"),
            None => vec![],
        };
        assert_eq!(effects.conditions, expected, "row {row}");
    }
}

/// The pod with the most failures waits; the others are counted. ([I10])
#[test]
fn of_each_index_one_failed_pod_waits() {
    let all = vec![failure(0, 0, 90), failure(0, 2, 5), failure(0, 1, 30)];
    let api = api(per_index(1, 1, 9), all);
    let plan = api.plan();
    let per_index =
        plan.facts.indexes.and_then(|it| it.per_index).expect("backoffLimitPerIndex is set");
    assert_eq!(per_index.delayed[&0].uid, uid("f0-2"));
    let ties = vec![
        pod("early", "Failed").index(0).ended(1, 20),
        pod("late", "Failed").index(0).ended(1, 10),
        pod("first", "Failed").index(0).ended(1, 30),
    ];
    let mut api = super::builders::api(super::backoff_limit_per_index::per_index(1, 1, 9), ties);
    let plan = api.plan();
    let per_index =
        plan.facts.indexes.and_then(|it| it.per_index).expect("backoffLimitPerIndex is set");
    assert_eq!(per_index.delayed[&0].uid, uid("late"));
    assert_eq!(sync(&mut api).patches, 2);
}

/// A pod that waits is released and counted when its index or its Job ends. ([T5], [I10])
#[test]
fn a_failure_that_waits_is_counted_when_its_index_or_job_ends() {
    let waits = || failure(0, 0, 1);
    let base = || per_index(2, 2, 9);
    for (what, job, pods, failures, patches) in [
        ("nothing ends", base(), vec![waits()], 0, 0),
        ("its index succeeds", base(), vec![waits(), pod("s", "Succeeded").index(0)], 1, 2),
        ("its index fails", base(), vec![waits(), failure(0, 9, 1)], 2, 2),
        ("the Job fails", base().condition("FailureTarget", "R", "m"), vec![waits()], 1, 1),
        ("the Job succeeds", base().condition("SuccessCriteriaMet", "R", "m"), vec![waits()], 1, 1),
        ("the Job is deleted", base().deleting(), vec![waits()], 1, 1),
    ] {
        let effects = sync(&mut api(job, pods));
        assert_eq!((effects.failed, effects.patches), (failures, patches), "{what}");
    }
}

/// A failed pod keeps its finalizer while no replacement may be created. ([I12])
#[test]
fn a_failure_waits_while_its_job_is_suspended_or_idle() {
    for job in [per_index(2, 2, 9).suspended(), per_index(0, 2, 9)] {
        let effects = sync(&mut api(job, vec![failure(0, 0, 600)]));
        assert_eq!((effects.failed, effects.patches, effects.created.len()), (0, 0, 0));
    }
}

/// The global limit counts failures that wait, at once. ([I13], [C9])
#[test]
fn the_global_limit_counts_failures_that_wait() {
    let limited = |limit: i32| per_index(2, 3, 9).spec("backoffLimit", limit);
    let two = || vec![failure(0, 0, 1), failure(1, 0, 1)];
    assert!(sync(&mut api(limited(2), two())).conditions.is_empty());
    let effects = sync(&mut api(limited(1), two()));
    assert_eq!((effects.conditions, effects.failed), (failed("BackoffLimitExceeded"), 2));
}

/// Each index has its own backoff. ([D4])
#[test]
fn the_backoff_of_an_index_is_its_own() {
    let all = vec![failure(0, 0, 1), pod("s", "Succeeded").index(2).ended(0, 1)];
    let mut job = api(per_index(3, 5, 9), all);
    let effects = sync(&mut job);
    assert_eq!((effects.created_indexes(), effects.requeue_seconds), (vec![1, 3, 4], Some(9)));
    assert_eq!(job.plan().waits_for, [WaitsFor::ActivePods(3)], "all pods that may run do");
    let effects = sync(&mut api(per_index(3, 2, 9), vec![failure(0, 0, 1), failure(1, 0, 3)]));
    assert_eq!((effects.created.len(), effects.requeue_seconds), (0, Some(7)));
}

/// A terminating pod waits as a failed one, unless only failed pods are replaced. ([R2])
#[test]
fn a_terminating_pod_waits_as_a_failure_unless_only_failed_pods_are_replaced() {
    let terminating = || vec![pod("t", "Running").index(0).failures(0).terminating()];
    let mut eager = api(per_index(1, 1, 9), terminating());
    let effects = sync(&mut eager);
    assert_eq!((effects.failed, effects.patches, effects.requeue_seconds), (0, 0, Some(5)));
    let effects = sync(&mut api(per_index(1, 1, 9).replaces_failed(), terminating()));
    assert_eq!((effects.failed, effects.patches, effects.requeue_seconds), (0, 0, None));
}

/// failedIndexes is null without backoffLimitPerIndex, and at least empty with it. ([T7])
#[test]
fn failed_indexes_are_written_even_when_there_are_none() {
    let effects = sync(&mut api(per_index(1, 1, 1), vec![]));
    assert_eq!(effects.failed_indexes.as_deref(), Some(""));
    let effects = sync(&mut api(job().indexed(), vec![]));
    assert_eq!(effects.failed_indexes, None);
}

/// The first pod of an index carries the count 0. ([I8])
#[test]
fn the_first_pod_of_an_index_has_no_failures() {
    let effects = sync(&mut api(per_index(1, 1, 1), vec![]));
    let body = crate::job::pod_body(&api(per_index(1, 1, 1), vec![]).job, &effects.created[0]);
    let body: Value =
        serde_json::from_str(body.json().expect("must be JSON")).expect("must be JSON");
    let annotations = &body["metadata"]["annotations"];
    assert_eq!(annotations["batch.kubernetes.io/job-index-failure-count"], "0");
    assert_eq!(annotations["batch.kubernetes.io/job-index-ignored-failure-count"], Value::Null);
}
