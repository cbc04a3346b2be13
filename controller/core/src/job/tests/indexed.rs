//! Tests Indexed Jobs: which index a pod has, which indexes lack one, resizing.

use super::builders::{JobBuilder, PodBuilder, api, complete, failed, job, message, pod, sync};

/// Pods by index and phase letter: `1R`; `x` for a pod without index.
fn placed(text: &str) -> Vec<PodBuilder> {
    text.split_whitespace()
        .enumerate()
        .map(|(number, part)| {
            let (index, phase) = part.split_at(part.len() - 1);
            let phase = match phase {
                "R" => "Running",
                "P" => "Pending",
                "S" => "Succeeded",
                _ => "Failed",
            };
            let pod = pod(&format!("p{number}"), phase).ended(1, 90).on_node();
            if index == "x" { pod } else { pod.index(index) }
        })
        .collect()
}

fn indexed(parallelism: i32, completions: i32) -> JobBuilder {
    job().size(parallelism, completions).indexed()
}

/// The effects of one sync.
#[derive(Debug, Default, PartialEq)]
struct Row {
    created: Vec<u32>,
    deleted: usize,
    patches: usize,
    active: i32,
    failed: i32,
    completed: &'static str,
    succeeded: i32,
}

/// Pods are placed, counted and removed by their index. ([I1], [I4], [I5], [P3], [P12])
#[test]
fn pods_are_placed_counted_and_removed_by_their_index() {
    let rows = [
        (
            indexed(2, 3),
            "0S 1S 1S",
            Row { created: vec![2], patches: 3, active: 1, completed: "0,1", ..Row::default() },
        ),
        (
            indexed(8, 20),
            "0R 2S 3P 4S 5S 7S 8S 9S",
            Row {
                created: vec![1, 6, 10, 11, 12, 13],
                patches: 6,
                active: 8,
                completed: "2,4,5,7-9",
                ..Row::default()
            },
        ),
        (
            indexed(3, 4),
            "0F 1P 2F",
            Row { created: vec![0, 2], patches: 2, active: 3, failed: 2, ..Row::default() },
        ),
        (
            indexed(2, 5),
            "xR xS xF xP 0S 1R 2R",
            Row { deleted: 2, patches: 5, active: 2, completed: "0", ..Row::default() },
        ),
        (
            indexed(5, 5),
            "xR 0S 1R 2R 2P xS xF",
            Row { deleted: 2, patches: 5, active: 2, completed: "0", ..Row::default() },
        ),
        (
            indexed(2, 5),
            "0S 5R 6S 7P 8F",
            Row { deleted: 2, patches: 5, completed: "0", ..Row::default() },
        ),
        // The last index is within, the next one is not; a negative one is not an index.
        (indexed(2, 3), "2R 3R -1R", Row { deleted: 2, patches: 2, active: 1, ..Row::default() }),
    ];
    for (job, pods, mut expected) in rows {
        expected.succeeded = match expected.completed {
            "" => 0,
            text => crate::job::IndexSet::parse(text, 100).len() as i32,
        };
        let effects = sync(&mut api(job, placed(pods)));
        let found = Row {
            created: effects.created_indexes(),
            deleted: effects.deleted.len(),
            patches: effects.patches,
            active: effects.active,
            failed: effects.failed,
            completed: expected.completed,
            succeeded: effects.succeeded,
        };
        assert_eq!(found, expected, "{pods}");
        assert_eq!(effects.completed_indexes, expected.completed, "{pods}");
    }
}

#[test]
fn an_indexed_job_is_complete_when_each_index_succeeded_once() {
    let effects = sync(&mut api(indexed(2, 3), placed("0S 1F 1S 2S")));
    assert_eq!((effects.failed, effects.patches), (1, 4));
    assert_eq!(effects.completed_indexes, "0-2");
    assert_eq!(effects.conditions, complete("CompletionsReached"));
    let effects = sync(&mut api(indexed(2, 3), placed("0S 0S 1S")));
    assert!(effects.conditions.is_empty(), "two successes of one index are one");
    assert_eq!(effects.succeeded, 2);
}

/// The surviving pod terminates before the Job may be Failed. ([C3])
#[test]
fn a_failing_job_keeps_its_completed_indexes() {
    let mut api = api(indexed(2, 3).spec("backoffLimit", 0), placed("0S 1F 2R"));
    let effects = sync(&mut api);
    assert_eq!((effects.deleted.len(), effects.succeeded, effects.failed), (1, 1, 2));
    assert_eq!((effects.completed_indexes.as_str(), effects.terminating), ("0", 1));
    assert_eq!(effects.conditions, ["FailureTarget/BackoffLimitExceeded"]);
    let reported = "Job has reached the specified backoff limit: 1 failure of 0 allowed; pod p1 ";
    assert!(message(&api, "FailureTarget").starts_with(reported));
}

/// Scaling down forgets indexes for good. ([I3], [I7])
#[test]
fn resizing_forgets_indexes_out_of_range() {
    // parallelism = completions, stored indexes, pods: created, completed after
    for (size, stored, pods, created, completed) in [
        (3, "0-5", "", vec![], "0-2"),
        (3, "0,5", "4S 1R", vec![2], "0"),
        (8, "0-2", "", vec![3, 4, 5, 6, 7], "0-2"),
        (1, "1-5", "", vec![0], ""),
    ] {
        let mut api = api(indexed(size, size).completed(stored), placed(pods));
        let effects = sync(&mut api);
        assert_eq!(effects.created_indexes(), created, "{size} {stored} {pods}");
        assert_eq!(effects.completed_indexes, completed, "{size} {stored} {pods}");
    }
    let effects = sync(&mut api(indexed(0, 0).completed("0-2"), placed("3R 4P")));
    assert_eq!((effects.deleted.len(), effects.failed, effects.succeeded), (2, 0, 0));
    assert_eq!(effects.conditions, ["SuccessCriteriaMet/CompletionsReached"], "pods terminate");
}

/// Scaling down can complete the Job, and counted failures stay. ([I7])
#[test]
fn scaling_down_to_what_succeeded_completes_the_job() {
    let shrunk = indexed(2, 2).completed("0,1,3").status("failed", 4);
    let effects = sync(&mut api(shrunk, vec![]));
    assert_eq!((effects.succeeded, effects.failed), (2, 4));
    assert_eq!(effects.conditions, complete("CompletionsReached"));
}

/// As many indexes get a pod as completions are missing. ([P2])
#[test]
fn the_last_indexes_are_the_last_pods() {
    for (completions, stored, created) in
        [(0, "", vec![]), (1, "", vec![0]), (3, "0,1", vec![2]), (3, "0-2", vec![])]
    {
        let effects = sync(&mut api(indexed(5, completions).completed(stored), vec![]));
        assert_eq!(effects.created_indexes(), created, "{completions} {stored}");
    }
}

/// Text that is not a number from 0 is not an index. ([I1])
#[test]
fn odd_index_annotations_are_no_index() {
    for (text, index) in [
        ("0", Some(0)),
        ("007", Some(7)),
        ("2147483647", Some(2_147_483_647)),
        ("2147483648", None),
        ("-1", None),
        ("1.0", None),
        (" 1", None),
        ("", None),
        ("one", None),
    ] {
        assert_eq!(pod("p", "Running").index(text).build().index, index, "{text:?}");
    }
}

/// An index that has succeeded needs no pod, but a pod that still runs for it may end. ([P2], [P3])
#[test]
fn a_second_pod_of_a_succeeded_index_is_not_a_reason_to_fail() {
    let effects = sync(&mut api(indexed(3, 3), placed("0S 0R 1R 2R")));
    assert_eq!((effects.deleted.len(), effects.failed, effects.active), (1, 0, 2));
    assert_eq!(effects.conditions, Vec::<String>::new());
    let effects = sync(&mut api(indexed(3, 3).spec("backoffLimit", 0), placed("0S 0F 1R 2R")));
    assert_eq!(effects.conditions, ["FailureTarget/BackoffLimitExceeded"]);
    assert_ne!(effects.conditions, failed("BackoffLimitExceeded"));
}
