//! Tests the backoff of a Job.

use epilogue_common::outcome::{Failure, FailureKind};
use jiff::SignedDuration;

use super::builders::{ago, api, job, pod, pods, sync};
use crate::job::{Answer, BackoffRecord, MemoryUpdate, Progress, SideEffect, WaitsFor};

fn record(failures: u32, seconds_ago: i64) -> BackoffRecord {
    BackoffRecord { failures, last_failure: Some(ago(seconds_ago)), ..BackoffRecord::default() }
}

/// Creation waits below the delay of each count, but neither at it nor above. ([D2], [P5])
#[test]
fn creation_waits_until_the_delay_is_over() {
    for (failures, seconds_ago, wait) in [
        (0, 0, None),
        (1, 0, Some(10)),
        (1, 9, Some(1)),
        (1, 10, None),
        (1, 11, None),
        (2, 0, Some(20)),
        (6, 0, Some(320)),
        (7, 0, Some(600)),
        (1_000_000, 0, Some(600)),
        (1_000_000, 600, None),
    ] {
        let mut api = api(job(), vec![]);
        api.memory.backoff = Some(record(failures, seconds_ago));
        let effects = sync(&mut api);
        let created = usize::from(wait.is_none());
        assert_eq!(effects.created.len(), created, "{failures} failures {seconds_ago} s ago");
        assert_eq!(effects.requeue_seconds, wait, "{failures} failures {seconds_ago} s ago");
    }
}

/// The status lists the failure, so it is not new to the next sync.
#[test]
fn a_failure_costs_its_wait_though_the_write_that_listed_it_had_no_reply() {
    for kind in [FailureKind::Unknown, FailureKind::Conflict] {
        let mut api = api(job(), vec![pod("a", "Failed").ended(1, 0)]);
        api.memory.backoff = Some(BackoffRecord::default());
        let mut progress = Progress::new(api.plan(), &api.settings);
        while let Some(call) = progress.next_call() {
            // A conflict stores nothing.
            let is_stored = call.step.status().is_none() || kind == FailureKind::Unknown;
            let answer = if is_stored { api.execute(&call.step) } else { Ok(Answer::Deleted) };
            let lost = call.step.status().map(|_| Failure::new(kind, "no reply"));
            progress.done(&call, lost.map_or(answer, Err));
            for effect in progress.take_side_effects() {
                if let SideEffect::Remember(update) = effect {
                    api.memory.apply(update, api.now);
                }
            }
        }
        let effects = sync(&mut api);
        assert_eq!((effects.created.len(), effects.requeue_seconds), (0, Some(10)), "{kind:?}");
        let counted = api.memory.backoff.map(|record| record.failures);
        assert_eq!((counted, api.memory.backoff_in_doubt), (Some(1), false), "{kind:?}");
    }
}

/// Backoff does not change the counts of pods that run. ([P5])
#[test]
fn pods_that_run_are_counted_during_backoff() {
    let mut api = api(job().size(2, 2), vec![pod("a", "Running").ready()]);
    api.memory.backoff = Some(record(1, 0));
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), effects.active, effects.ready), (0, 1, 1));
}

/// A success forgets the failures before it; later failures add up. ([D1])
#[test]
fn the_record_follows_the_pods_that_ended() {
    let before = record(2, 500);
    // ends of succeeded and of failed pods, in seconds ago: failures, last failure
    for (row, (succeeded, failed, failures, last)) in [
        (vec![], vec![], None, None),
        (vec![], vec![60], Some(3), Some(60)),
        (vec![], vec![60, 50], Some(4), Some(50)),
        (vec![60], vec![], Some(0), None),
        (vec![60], vec![70], Some(0), None),
        (vec![60], vec![60], Some(0), None),
        (vec![60], vec![70, 59], Some(1), Some(59)),
        (vec![60, 40], vec![50, 30, 20], Some(2), Some(20)),
    ]
    .into_iter()
    .enumerate()
    {
        let ended = |phase: &str, ends: Vec<i64>| -> Vec<_> {
            let pods = pods(phase, ends.len()).into_iter().zip(ends);
            pods.map(|(pod, seconds)| pod.ended(1, seconds)).collect()
        };
        let mut all = ended("Succeeded", succeeded);
        all.extend(ended("Failed", failed));
        let mut api = api(job().size(1, 99).spec("backoffLimit", 99), all);
        api.memory.backoff = Some(before);
        sync(&mut api);
        let expected = BackoffRecord {
            failures: failures.unwrap_or(2),
            last_failure: failures.map_or(Some(ago(500)), |_| last.map(ago)),
            ..BackoffRecord::default()
        };
        assert_eq!(api.memory.backoff, Some(expected), "row {row}");
    }
}

/// A success in the same sync lifts the backoff. ([D1])
#[test]
fn a_success_lifts_the_backoff_at_once() {
    let all = vec![pod("f", "Failed").ended(1, 5), pod("s", "Succeeded").ended(0, 4)];
    let mut api = api(job().size(2, 5), all);
    api.memory.backoff = Some(record(3, 5));
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), effects.failed, effects.succeeded), (2, 1, 1));
}

/// The first source that knows gives the finish time. ([D3])
#[test]
fn a_pod_finished_when_the_first_source_says() {
    let at = |seconds| Some(ago(seconds));
    let running = |pod: super::builders::PodBuilder| {
        pod.with(|pod| {
            let status = serde_json::json!({"name": "b", "state": {}});
            pod["status"]["containerStatuses"].as_array_mut().expect("a list").push(status);
        })
    };
    let unready = |pod: super::builders::PodBuilder| {
        pod.with(|pod| {
            pod["status"]["conditions"] = serde_json::json!([
                {"type": "Ready", "status": "False", "lastTransitionTime": ago(30).to_string()}
            ]);
        })
    };
    let sidecar = |pod: super::builders::PodBuilder, state: serde_json::Value| {
        pod.with(|pod| {
            pod["spec"]["initContainers"] =
                serde_json::json!([{"name": "side", "restartPolicy": "Always"}]);
            pod["status"]["initContainerStatuses"] =
                serde_json::json!([{"name": "side", "state": state}]);
        })
    };
    let late = serde_json::json!({"terminated": {"exitCode": 0, "finishedAt": ago(3).to_string()}});
    let base = || pod("f", "Failed").terminating();
    for (row, (pod, expected)) in [
        (unready(base()).ended(1, 20), at(20)),
        (base().ended(1, 40).container("containerStatuses", "b", 0), at(40)),
        (running(unready(base()).ended(1, 20)), at(30)),
        (running(base().ended(1, 20)), at(5)),
        (pod("f", "Failed"), at(100)),
        (unready(pod("f", "Failed")), at(30)),
        (pod("f", "Failed").ready(), at(100)),
        (sidecar(base().ended(1, 20), late.clone()), at(3)),
        (sidecar(unready(base()).ended(1, 20), serde_json::json!({"running": {}})), at(30)),
        // An init container that ran to its end gives no finish time.
        (base().ended(1, 20).container("initContainerStatuses", "init", 0), at(20)),
        (unready(base()).container("initContainerStatuses", "init", 0), at(30)),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(pod.build().finished_at(), expected, "row {row}");
    }
}

/// A sync remembers only what the API accepted. ([T9])
#[test]
fn a_failure_that_was_not_stored_is_not_remembered() {
    let mut api = api(job(), pods("Failed", 1));
    let trace = api.sync_with(&|_, _| Some(super::builders::outage()), None);
    let remembered = |side_effect: &SideEffect| {
        matches!(side_effect, SideEffect::Remember(MemoryUpdate::Backoff(_)))
    };
    assert!(!trace.side_effects.iter().any(remembered));
    assert_eq!(api.memory.backoff, Some(BackoffRecord::default()));
}

/// Upstream remembers the backoff only after a status write. ([T9])
#[test]
fn an_ignored_failure_without_a_write_is_remembered_in_the_backoff() {
    let ignored = serde_json::json!([{"action": "Ignore",
        "onExitCodes": {"operator": "In", "values": [42]}}]);
    let stored = job().size(1, 1).failure_policy(ignored).started(9).status("active", 1);
    let stored = stored.status("ready", 0).status("terminating", 0);
    let all = vec![pod("f", "Failed").ended(42, 0), pod("r", "Running").on_node()];
    let mut api = api(stored, all);
    let effects = sync(&mut api);
    assert!(effects.writes.is_empty(), "{:?}", effects.writes);
    assert_eq!(api.memory.backoff.map(|it| it.failures), Some(1));
}

#[test]
fn the_report_names_the_backoff_and_not_the_deadline() {
    let mut waiting = api(job().size(2, 5), vec![pod("a", "Running")]);
    waiting.memory.backoff = Some(record(1, 0));
    let left = SignedDuration::from_secs(10);
    let backoff = WaitsFor::Backoff { failures: 1, left };
    assert_eq!(waiting.plan().waits_for, [WaitsFor::ActivePods(1), backoff]);
    let deadline = job().size(1, 5).spec("activeDeadlineSeconds", 3_600).started(0);
    let mut running = api(deadline, vec![pod("a", "Running")]);
    running.memory.backoff = Some(record(1, 0));
    let plan = running.plan();
    assert_eq!(plan.requeue_after, Some(SignedDuration::from_hours(1)));
    assert_eq!(plan.waits_for, [WaitsFor::ActivePods(1)]);
}
