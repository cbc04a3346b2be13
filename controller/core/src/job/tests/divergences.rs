//! Tests where we differ from upstream on purpose: one claim for each `DIVERGES(upstream)` of this
//! crate's `job` and `view`, with upstream's behaviour.

use epilogue_common::outcome::{Failure, FailureKind};
use jiff::SignedDuration;
use serde_json::json;

use super::builders::{
    PodBuilder, ago, api, await_deletion, complete, failed, job, message, outage, pod, pods, sync,
    sync_with, uid,
};
use crate::checks::fake_api::{Crash, FakeApi};
use crate::job::{BackoffRecord, Memory, MetricEvent, SideEffect, Step};

fn on_nodes(count: usize) -> Vec<PodBuilder> {
    pods("Running", count).into_iter().map(PodBuilder::on_node).collect()
}

fn disruption_ignored() -> super::builders::JobBuilder {
    job().failure_policy(json!([
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]))
}

/// Upstream picks the lowest indexes first, so that waiting ones block the others. ([I11])
#[test]
fn indexes_that_wait_do_not_block_those_behind_them() {
    let job = job().size(2, 9).indexed().spec("backoffLimitPerIndex", 3);
    let waits = |index: u32| pod(&format!("f{index}"), "Failed").index(index).ended(1, 1);
    let effects = sync(&mut api(job, vec![waits(0), waits(1)]));
    assert_eq!(effects.created_indexes(), [2, 3], "upstream creates none");
}

/// Upstream keeps two counters, which any event of a terminating pod lowers. ([H11])
#[test]
fn a_repeated_event_settles_no_expectation_of_another_pod() {
    let mut api = api(job().size(2, 5), on_nodes(1));
    api.memory.expectations.deleted.extend(["a", "b"].map(uid));
    api.memory.expectations.since = Some(api.now);
    let terminating = pod("a", "Running").terminating().build();
    api.memory.saw_pod(&terminating);
    api.memory.saw_pod(&terminating);
    assert!(!api.plan().facts.expectations_satisfied, "upstream takes b for seen");
    api.memory.saw_pod_gone(&uid("b"));
    assert!(api.plan().facts.expectations_satisfied);
}

/// Upstream sends one event per pod.
#[test]
fn pods_that_are_created_together_share_one_event() {
    let effects = sync(&mut api(job().size(5, 5), vec![]));
    assert_eq!(effects.events().len(), 1);
    assert!(effects.events()[0].starts_with("SuccessfulCreate: Created pods: j-"));
    let effects = sync(&mut api(job().size(1, 1), vec![]));
    assert!(effects.events()[0].starts_with("SuccessfulCreate: Created pod: j-"));
    let mut refused = api(job().size(9, 9), vec![]);
    let calls = std::cell::Cell::new(0);
    let effects = sync_with(&mut refused, &|step, call| {
        if !matches!(step, Step::Create(_)) || calls.replace(calls.get() + 1) == 0 {
            return None;
        }
        let kind = if call == 0 { FailureKind::Forbidden } else { FailureKind::ServerError };
        Some(Failure::new(kind, format!("no {call}")))
    });
    let reported: Vec<_> =
        effects.events().into_iter().filter(|it| it.starts_with("FailedCreate")).collect();
    assert_eq!(
        reported,
        ["FailedCreate: Error creating: no 0", "FailedCreate: Error creating: no 1"]
    );
}

/// Upstream forgets the failure until all pods are deleted. By then the pod that matched FailJob
/// may be gone. ([S18])
#[test]
fn a_fail_job_match_is_stored_even_when_a_deletion_fails() {
    let rules = json!([{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [5]}}]);
    let all = vec![pod("f", "Failed").ended(5, 1), pod("r", "Running").on_node()];
    let mut api = api(job().size(2, 2).failure_policy(rules), all);
    let effects = sync_with(&mut api, &|step, _| matches!(step, Step::Delete(..)).then(outage));
    assert_eq!((effects.is_err, effects.active), (true, 1));
    assert_eq!(effects.conditions, ["FailureTarget/PodFailurePolicy"]);
    api.pods.remove(&uid("f"));
    let reported = message(&api, "FailureTarget");
    sync(&mut api);
    api.pods.clear();
    assert_eq!(sync(&mut api).conditions, failed("PodFailurePolicy"));
    assert_eq!(message(&api, "Failed"), reported);
}

/// Upstream counts only pods that it sees. ([S19])
#[test]
fn a_job_is_not_complete_while_a_pod_of_it_is_still_to_be_seen() {
    let mut api = api(job().size(1, 1), pods("Succeeded", 1));
    await_deletion(&mut api);
    let effects = sync(&mut api);
    assert_eq!((effects.succeeded, effects.conditions.len()), (1, 0));
    api.memory.saw_pod_gone(&uid("unseen"));
    assert_eq!(sync(&mut api).conditions, complete("CompletionsReached"));
}

/// Upstream needs an event, or the resync after 12 hours.
#[test]
fn a_sync_that_awaits_pods_is_repeated_by_itself() {
    let mut api = api(job(), vec![]);
    await_deletion(&mut api);
    assert_eq!(sync(&mut api).requeue_seconds, Some(300));
}

/// Upstream appends a second condition and does not find it again. ([C4])
#[test]
fn an_interim_condition_that_is_false_is_replaced() {
    let by_hand = job().spec("backoffLimit", 0).condition_is("FailureTarget", "False", "R", "m");
    let all = vec![pod("f", "Failed"), pod("r", "Running").on_node()];
    let mut api = api(by_hand, all);
    sync(&mut api);
    let found = api.job.status.conditions.iter().flatten();
    assert_eq!(found.filter(|it| it.type_ == "FailureTarget").count(), 1);
    assert!(sync(&mut api).writes.is_empty(), "upstream appends one more");
}

/// Upstream checks only the first condition of a type. ([C8])
#[test]
fn a_true_condition_behind_a_false_one_counts() {
    let two = job().condition_is("FailureTarget", "False", "R", "m").condition(
        "FailureTarget",
        "Second",
        "m",
    );
    assert_eq!(api(two, vec![]).plan().verdict.map(|it| it.reason), Some("Second".into()));
}

/// Upstream writes an end without startTime, which the API refuses for ever. ([X1])
#[test]
fn a_job_that_fails_while_suspended_gets_a_start_time() {
    let suspended = job().spec("backoffLimit", 0).suspended();
    let mut api = api(suspended, pods("Failed", 1));
    assert_eq!(sync(&mut api).conditions, failed("BackoffLimitExceeded"));
    assert_eq!(api.job.start_time(), Some(api.now));
}

/// Upstream counts the pod as succeeded too, and may complete the Job. ([S13])
#[test]
fn a_pod_counted_as_failed_that_then_succeeds_completes_nothing() {
    for indexed in [false, true] {
        let base = job().size(1, 2).status("succeeded", 1).uncounted(&[], &["p"]);
        let base = if indexed { base.indexed().completed("0") } else { base };
        let effects = sync(&mut api(base, vec![pod("p", "Succeeded").index(1)]));
        assert_eq!((effects.succeeded, effects.failed), (1, 1));
        assert!(effects.conditions.is_empty(), "upstream sets SuccessCriteriaMet");
    }
}

/// Upstream counts pods that a terminating namespace refused as active, and awaits them for five
/// minutes. ([P9])
#[test]
fn pods_that_a_terminating_namespace_refuses_are_not_awaited() {
    let mut api = api(job().size(3, 3), vec![]);
    let effects = sync_with(&mut api, &|step, _| {
        matches!(step, Step::Create(_))
            .then(|| Failure::new(FailureKind::NamespaceTerminating, "going"))
    });
    assert_eq!((effects.create_calls, effects.active, effects.is_err), (1, 0, false));
    assert!(effects.events().is_empty());
    assert!(api.plan().facts.expectations_satisfied);
}

/// Upstream lowers `active` but not `ready`, or the other way round. ([P13], [P14])
#[test]
fn pods_that_are_gone_or_kept_are_so_in_every_count() {
    let ready = || on_nodes(2).into_iter().map(PodBuilder::ready).collect::<Vec<_>>();
    let all_of = |kind: FailureKind| {
        let mut api = api(job().size(0, 5), ready());
        let effects = sync_with(&mut api, &|step, _| {
            matches!(step, Step::Delete(..)).then(|| Failure::new(kind, "no"))
        });
        assert!(api.memory.expectations.deleted.is_empty());
        (effects.active, effects.ready, effects.terminating)
    };
    assert_eq!(all_of(FailureKind::NotFound), (0, 0, 2));
    assert_eq!(all_of(FailureKind::ServerError), (2, 2, 0));
}

/// Upstream counts each failed creation as a successful one too. ([M9])
#[test]
fn a_failed_creation_is_tallied_as_failed_only() {
    let mut api = api(job().size(5, 5), vec![]);
    let effects = sync_with(&mut api, &|step, call| {
        // The second batch is the first one with two calls.
        (matches!(step, Step::Create(_)) && call == 1).then(outage)
    });
    let created = MetricEvent::PodsCreated { reason: "new", succeeded: 2, failed: 1 };
    assert!(effects.trace.side_effects.contains(&SideEffect::Count(created)));
}

/// Upstream leaves such a pod alone and repeats its work. ([P14])
#[test]
fn a_pod_whose_deletion_failed_after_the_strip_is_counted_in_the_end() {
    let mut api = api(job().size(1, 1), vec![pod("p", "Running").on_node().untracked()]);
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), effects.active), (0, 1));
    api.touch(&uid("p"), |pod| pod.phase = crate::view::Phase::Succeeded);
    assert_eq!(sync(&mut api).conditions, complete("CompletionsReached"));
}

/// Upstream raises the backoff and waits after disruptions that the policy ignores. ([D1])
#[test]
fn ignored_disruptions_cost_no_time() {
    let disrupted = |name: &str| pod(name, "Failed").condition("DisruptionTarget").created(0);
    let all = vec![disrupted("a"), disrupted("b")];
    let mut first = api(disruption_ignored().size(2, 2), all);
    let effects = sync(&mut first);
    assert_eq!((effects.created.len(), effects.failed), (2, 0));
    let record = first.memory.backoff.expect("a record");
    assert_eq!((record.failures, record.last_failure, record.free_taken), (0, None, 2));
    let counted = vec![disrupted("a"), pod("c", "Failed").ended(1, 0)];
    let effects = sync(&mut api(disruption_ignored().size(2, 2), counted));
    assert_eq!((effects.created.len(), effects.requeue_seconds), (0, Some(10)), "one counts");
}

/// … but only six of a slot in an hour; from the seventh on each raises the delay.
#[test]
fn disruptions_without_end_are_braked() {
    let ended = |count: usize, seconds_ago: i64| -> Vec<PodBuilder> {
        let all = pods("Failed", count).into_iter();
        all.map(|pod| pod.condition("DisruptionTarget").created(seconds_ago)).collect()
    };
    for (before, hour_began, ended, taken, failures) in [
        (0, 60, ended(12, 0), 12, 0),
        (0, 60, ended(14, 0), 12, 2),
        (11, 60, ended(2, 0), 12, 1),
        (12, 3_599, ended(1, 0), 12, 1),
        (12, 3_600, ended(1, 0), 1, 0),
    ] {
        let row = format!("{before} before and {} now, since {hour_began} s", ended.len());
        let mut api = api(disruption_ignored().size(2, 2), ended);
        let record = BackoffRecord {
            free_taken: before,
            free_since: Some(ago(hour_began)),
            ..BackoffRecord::default()
        };
        api.memory.backoff = Some(record);
        let effects = sync(&mut api);
        let record = api.memory.backoff.expect("a record");
        assert_eq!((record.free_taken, record.failures), (taken, failures), "{row}");
        assert_eq!(effects.created.len(), if failures == 0 { 2 } else { 0 }, "{row}");
    }
}

/// Neither other failures before them, nor a parallelism that no pod fills, make more of them free.
/// A pod that lived as long as the longest delay does not exceed the curve.
#[test]
fn no_job_makes_more_disruptions_free_than_six_of_each_slot() {
    let ended = |lived: i64| pod("a", "Failed").condition("DisruptionTarget").created(lived);
    let late = |lived: i64| vec![ended(lived).ended(143, 0)];
    let timed_out = || vec![ended(1).condition("epilogue.dev/PendingTimeout")];
    let huge = i32::MAX.unsigned_abs();
    for (row, (parallelism, completions, failures, taken, pods, free)) in [
        (1, 1, 0, 5, late(9), true),
        (1, 1, 0, 6, late(9), false),
        (1, 1, 0, 6, late(600), true),
        (1, 1, 5, 0, late(9), true),
        (1, 1, 6, 0, late(9), false),
        (1, 1, 6, 0, late(600), true),
        (huge, huge, 0, 5, late(9), true),
        (huge, huge, 0, 6, late(9), false),
        (9, 1, 0, 6, late(9), false),
        (1, 1, 0, 0, timed_out(), false),
    ]
    .into_iter()
    .enumerate()
    {
        let job = disruption_ignored().spec("parallelism", parallelism);
        let mut api = api(job.spec("completions", completions), pods);
        let before = BackoffRecord {
            failures,
            free_taken: taken,
            free_since: Some(ago(60)),
            ..BackoffRecord::default()
        };
        api.memory.backoff = Some(before);
        sync_with(&mut api, &|_, _| None);
        let record = api.memory.backoff.expect("a record");
        assert_eq!(record.failures == failures, free, "row {row}: {record:?}");
    }
}

/// From the seventh failure of an index on, whatever the first six were.
#[test]
fn every_failure_of_an_index_beyond_six_waits() {
    let per_index = || disruption_ignored().size(1, 1).indexed().spec("backoffLimitPerIndex", 99);
    let failed = |code| pod("a", "Failed").index(0).created(1).ended(code, 0);
    for (disrupted, counted, ignored, wait) in [
        (true, 5, 0, None),
        (true, 3, 2, None),
        (true, 6, 0, Some(10)),
        (true, 3, 3, Some(10)),
        (true, 4, 4, Some(40)),
        (false, 0, 5, Some(10)),
        (false, 0, 8, Some(40)),
        (false, 3, 0, Some(80)),
    ] {
        let pod = failed(if disrupted { 143 } else { 1 });
        let pod = if disrupted { pod.condition("DisruptionTarget") } else { pod };
        let pod = pod.failures(counted).ignored_failures(ignored);
        let effects = sync_with(&mut api(per_index(), vec![pod]), &|_, _| None);
        let row = format!("disrupted {disrupted} after {counted} and {ignored}");
        assert_eq!(effects.requeue_seconds, wait, "{row}");
        assert_eq!(effects.created.len(), usize::from(wait.is_none()), "{row}");
    }
}

/// Ignored failures without a disruption raise the delay at once, as upstream. A container that
/// fails at once would otherwise make a pod each second for ever.
#[test]
fn ignored_exit_codes_wait_as_counted_ones_do() {
    let ignored = || {
        job().failure_policy(json!([{"action": "Ignore",
            "onExitCodes": {"operator": "In", "values": [42]}}]))
    };
    let exit = || pod("a", "Failed").ended(42, 0);
    let effects = sync(&mut api(ignored().size(1, 1), vec![exit()]));
    assert_eq!((effects.created.len(), effects.requeue_seconds), (0, Some(10)));
    assert_eq!(effects.failed, 0, "it is still ignored");
    let per_index = ignored().size(1, 1).indexed().spec("backoffLimitPerIndex", 1);
    let again = exit().index(0).ignored_failures(2);
    let effects = sync(&mut api(per_index, vec![again]));
    assert_eq!((effects.created.len(), effects.requeue_seconds), (0, Some(40)));
}

/// The same holds for an index, whose pods carry the count. Beyond the six, a pod that lived longer
/// than the longest delay is free. ([D4])
#[test]
fn ignored_disruptions_of_an_index_cost_no_time() {
    let per_index = || disruption_ignored().size(1, 1).indexed().spec("backoffLimitPerIndex", 1);
    let disrupted = || pod("a", "Failed").index(0).condition("DisruptionTarget");
    let effects = sync(&mut api(per_index(), vec![disrupted().created(0).ignored_failures(5)]));
    assert_eq!(effects.created_indexes(), [0]);
    assert_eq!(effects.created[0].failures.map(|it| (it.counted, it.ignored)), Some((0, 6)));
    let seventh = disrupted().created(0).ignored_failures(6);
    let effects = sync(&mut api(per_index(), vec![seventh]));
    assert_eq!((effects.created.len(), effects.requeue_seconds), (0, Some(10)));
    let old = disrupted().created(605).ended(143, 5).ignored_failures(99);
    let effects = sync(&mut api(per_index(), vec![old]));
    assert_eq!(effects.created_indexes(), [0]);
}

/// Upstream waits longer the further a node's clock runs ahead. ([D2])
#[test]
fn a_clock_that_runs_ahead_adds_nothing_to_the_backoff() {
    let mut api = api(job(), vec![]);
    let ahead = api.now + SignedDuration::from_hours(5);
    let record =
        BackoffRecord { failures: 2, last_failure: Some(ahead), ..BackoffRecord::default() };
    api.memory.backoff = Some(record);
    assert_eq!(api.plan().requeue_after, Some(SignedDuration::from_secs(20)));
}

/// Upstream starts with an empty record and creates the next pod at once. ([E4])
#[test]
fn backoff_survives_a_restart() {
    let counted = |name: &str, ago: i64| pod(name, "Failed").ended(1, ago).untracked();
    let all = vec![counted("a", 90), counted("b", 30), counted("c", 5)];
    let mut restarted = api(job().status("failed", 3).size(1, 9), all);
    restarted.memory = Memory::default();
    let effects = sync(&mut restarted);
    assert_eq!((effects.created.len(), effects.requeue_seconds), (0, Some(35)));
    let mut succeeded = restarted.clone();
    succeeded.memory = Memory::default();
    succeeded.touch(&uid("c"), |pod| pod.phase = crate::view::Phase::Succeeded);
    let plan = succeeded.plan();
    assert_eq!(plan.facts.backoff, BackoffRecord::default(), "failures before the last success");
}

/// Upstream takes the end of a sidecar for the end of the pod. ([D3])
#[test]
fn a_sidecar_that_ended_early_does_not_end_the_pod() {
    let pod = pod("p", "Failed").terminating().with(|pod| {
        pod["spec"]["initContainers"] = json!([{"name": "side", "restartPolicy": "Always"}]);
        pod["status"]["containerStatuses"] = json!([{"name": "main", "state": {"running": {}}}]);
        pod["status"]["initContainerStatuses"] = json!([{"name": "side", "state":
            {"terminated": {"exitCode": 0, "finishedAt": ago(50).to_string()}}}]);
    });
    assert_eq!(pod.build().finished_at(), Some(ago(5)), "upstream says 50 seconds ago");
}

/// Upstream puts the index into both lists, which the API refuses for ever. ([X3])
#[test]
fn an_index_ends_once() {
    let per_index = || job().size(2, 3).indexed().spec("backoffLimitPerIndex", 0);
    let both = || vec![pod("s", "Succeeded").index(0), pod("f", "Failed").index(0)];
    let effects = sync(&mut api(per_index().status("failedIndexes", ""), both()));
    assert_eq!(effects.completed_indexes, "0", "of two at once the success");
    assert_eq!((effects.failed_indexes.as_deref(), effects.failed), (Some(""), 1));
    let late = vec![pod("s", "Succeeded").index(0)];
    let effects = sync(&mut api(per_index().status("failedIndexes", "0"), late));
    assert_eq!((effects.completed_indexes.as_str(), effects.succeeded), ("", 0));
    assert_eq!((effects.failed_indexes.as_deref(), effects.patches), (Some("0"), 1));
}

/// Upstream keeps whichever comes first in its list. ([I10])
#[test]
fn the_pod_with_the_most_failures_waits_whatever_the_clocks_say() {
    let old = pod("old", "Failed").index(0).failures(3).ended(1, 500);
    let new = pod("new", "Failed").index(0).failures(2).ended(1, 5);
    for pods in [vec![old.clone(), new.clone()], vec![new, old]] {
        let job = job().indexed().spec("backoffLimitPerIndex", 9).spec("backoffLimit", 99);
        let plan = api(job, pods).plan();
        let state = plan.facts.indexes.and_then(|it| it.per_index).expect("the limit is set");
        assert_eq!(&*state.delayed[&0].name, "old");
    }
}

/// Upstream deletes them with the finalizer on. After a crash before its write it counts them as
/// failed.
#[test]
fn pods_deleted_by_success_are_not_failed_after_a_crash() {
    let policy = json!({"rules": [{"succeededCount": 1}]});
    let job = job().size(3, 3).indexed().spec("successPolicy", policy);
    let mut all: Vec<_> =
        on_nodes(2).into_iter().zip(1..).map(|(pod, index)| pod.index(index)).collect();
    all.push(pod("s", "Succeeded").index(0));
    let mut api: FakeApi = api(job, all);
    api.sync_with(&|_, _| None, Some(Crash { after_calls: 4 }));
    let effects = sync(&mut api);
    assert_eq!((effects.failed, effects.terminating), (0, 2));
    api.pods.retain(|_, pod| pod.is_terminal());
    assert_eq!(sync(&mut api).conditions, complete("SuccessPolicy"));
}

/// Upstream ends a resumed Job by the start time from before its suspension.
#[test]
fn a_resumed_job_is_not_ended_by_its_old_start_time() {
    let resumed = job().spec("activeDeadlineSeconds", 10).started(500).condition(
        "Suspended",
        "JobSuspended",
        "Job suspended",
    );
    let effects = sync(&mut api(resumed, vec![]));
    assert_eq!((effects.conditions.len(), effects.created.len()), (0, 1));
}

/// Upstream sets the start time anew whenever the condition's texts differ from its own, which the
/// API refuses for ever. ([X2]; found by a random Job)
#[test]
fn only_a_suspended_job_is_resumed() {
    let by_hand = job().condition_is("Suspended", "False", "Mine", "m").started(50).size(0, 2);
    let mut api = api(by_hand, vec![]);
    let effects = sync(&mut api);
    assert_eq!(api.job.start_time(), Some(ago(50)));
    assert!(effects.events().is_empty());
}

/// Upstream stores a start time only with other changes. (found by a random Job)
#[test]
fn a_start_time_alone_is_stored() {
    let counted = job().size(0, 2).status("ready", 0).status("terminating", 0);
    let mut api = api(counted.spec("activeDeadlineSeconds", 5), vec![]);
    assert_eq!(sync(&mut api).writes.len(), 1);
    assert_eq!(api.job.start_time(), Some(api.now));
}

/// Upstream counts it as failed at once, and creates a second pod alongside it. (seen on a real
/// kubelet)
#[test]
fn a_pod_whose_container_still_runs_is_terminating_for_half_a_minute_at_most() {
    let shown = |seconds: i64| {
        pod("p", "Failed").on_node().with(|pod| {
            let at = ago(seconds).to_string();
            pod["status"]["conditions"] = json!([
                {"type": "Ready", "status": "False", "lastTransitionTime": at},
                {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
                 "lastTransitionTime": at}]);
            pod["status"]["containerStatuses"] =
                json!([{"name": "main", "state": {"running": {"startedAt": ago(60).to_string()}}}]);
        })
    };
    let waits = || job().spec("podReplacementPolicy", "Failed").size(1, 1);
    let effects = sync(&mut api(waits(), vec![shown(9)]));
    assert_eq!((effects.created.len(), effects.failed, effects.terminating), (0, 0, 1));
    assert_eq!(effects.requeue_seconds, Some(21));
    // The pod's true end.
    let mut ended = api(waits(), vec![shown(9)]);
    sync(&mut ended);
    ended.touch(&uid("p"), |pod| {
        pod.phase = crate::view::Phase::Succeeded;
        pod.shown_running_since = None;
    });
    let effects = sync(&mut ended);
    assert_eq!((effects.succeeded, effects.failed), (1, 0));
    // No later status comes.
    let effects = sync(&mut api(waits(), vec![shown(30)]));
    assert_eq!((effects.failed, effects.terminating), (1, 0));
    // A clock that runs far ahead, a writer that confirmed the end, and a Job that does not wait.
    for (job, pod) in [
        (waits(), shown(-60)),
        (
            waits(),
            shown(9).with(|pod| {
                pod["metadata"]["annotations"]["epilogue.dev/terminated-at"] = "now".into();
            }),
        ),
        (
            waits(),
            shown(9).with(|pod| {
                pod["status"]["conditions"][1]["reason"] = "DeletionByPodGC".into();
            }),
        ),
        (job().size(1, 1), shown(9)),
    ] {
        assert_eq!(sync(&mut api(job, vec![pod])).failed, 1);
    }
}
