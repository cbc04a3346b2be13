//! Tests how many pods there are.

use super::builders::{
    Effects, api, await_deletion, check, failed, job, now, outage, pod, pods, sync, sync_with, uid,
};
use crate::checks::fake_api::FakeApi;
use crate::job::{Answer, Memory, Progress, SideEffect, Step};
use crate::view::{Phase, ReadyCondition, Version};
use epilogue_common::outcome::{Failure, FailureKind};
use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::JobStatus;
use serde_json::json;

const COMPLETE: [&str; 2] =
    ["SuccessCriteriaMet/CompletionsReached", "Complete/CompletionsReached"];

fn run(
    parallelism: i32,
    completions: impl Into<Option<i32>>,
    pods: Vec<super::builders::PodBuilder>,
) -> Effects {
    sync(&mut api(job().size(parallelism, completions), pods))
}

#[test]
fn a_new_job_gets_as_many_pods_as_may_run_at_once() {
    for completions in [Some(5), None] {
        let effects = run(2, completions, vec![]);
        assert_eq!((effects.created.len(), effects.active, effects.ready), (2, 2, 0));
    }
    assert_eq!(run(5, 2, vec![]).created.len(), 2, "never more than are missing");
    assert_eq!(run(0, 5, vec![]).created.len(), 0, "parallelism 0 idles");
}

/// The calls of the next sync, whose live list shows this newest version, and whether it came to
/// its end.
fn steps_with_newest(api: &mut FakeApi, newest: Version) -> (Vec<Step>, bool) {
    let mut progress = Progress::new(api.plan(), &api.settings);
    let mut steps = Vec::new();
    while let Some(call) = progress.next_call() {
        let outcome = match &call.step {
            Step::ConfirmPods => Ok(Answer::Newest(newest)),
            step => api.execute(step),
        };
        progress.done(&call, outcome);
        for side_effect in progress.take_side_effects() {
            if let SideEffect::Remember(change) = side_effect {
                api.memory.apply(change, now());
            }
        }
        steps.push(call.step);
    }
    (steps, progress.into_result().complete)
}

#[test]
fn a_creation_without_a_reply_is_repeated_only_after_a_live_list() {
    let creates = |step: &Step| matches!(step, Step::Create(_));
    for kind in [FailureKind::Unknown, FailureKind::ServerError] {
        let mut api = api(job().size(1, 1), vec![]);
        let lost = |step: &Step, _| creates(step).then(|| Failure::new(kind, "no reply"));
        assert!(sync_with(&mut api, &lost).created.is_empty());
        let seen = api.plan().confirms.expect("a creation is in doubt");

        // The pod exists, and the watch has yet to show it.
        let shown = Version(seen.0 + 1);
        let mut behind = api.clone();
        let (steps, complete) = steps_with_newest(&mut behind, shown);
        assert!(!complete, "the failure still counts");
        assert_eq!(steps.iter().filter(|step| **step == Step::ConfirmPods).count(), 1);
        assert!(!steps.iter().any(creates), "{steps:?}");
        assert_eq!(behind.memory.awaited().pods, shown);
        assert!(!behind.memory.creation_in_doubt);

        // No pod was created.
        let (steps, complete) = steps_with_newest(&mut api, seen);
        assert!(complete);
        assert_eq!(steps.iter().filter(|step| creates(step)).count(), 1, "{steps:?}");
        assert_eq!(api.plan().confirms, None);
    }
}

#[test]
fn the_checks_hold_for_a_creation_in_doubt_while_a_list_goes_on() {
    let mut api = api(job().size(2, 2), vec![]);
    let fails = |step: &Step, _| matches!(step, Step::Create(_)).then(outage);
    sync_with(&mut api, &fails);
    let mut shown = pod("shown", "Succeeded").build();
    shown.version = Version(5_000);
    api.pods.insert(shown.uid.clone(), shown.into());
    check(&api);
}

#[test]
fn a_creation_that_was_refused_or_not_sent_is_repeated_at_once() {
    let unsent = Failure { unsent: true, ..Failure::new(FailureKind::Unknown, "no connection") };
    for failure in [unsent, Failure::new(FailureKind::Forbidden, "exceeded quota")] {
        let mut api = api(job().size(1, 1), vec![]);
        let fails = |step: &Step, _| matches!(step, Step::Create(_)).then(|| failure.clone());
        assert!(sync_with(&mut api, &fails).created.is_empty());
        assert_eq!(api.plan().confirms, None);
    }
}

#[test]
fn the_job_does_not_end_before_its_pods_are_listed() {
    let mut api = api(job().size(1, 1), vec![]);
    let fails = |step: &Step, _| matches!(step, Step::Create(_)).then(outage);
    sync_with(&mut api, &fails);
    let ended = pod("ended", "Succeeded").build();
    api.pods.insert(ended.uid.clone(), ended.into());
    let fails = |step: &Step, _| (*step == Step::ConfirmPods).then(outage);
    let effects = sync_with(&mut api, &fails);
    assert_eq!((effects.create_calls, effects.writes.len()), (0, 0));
    assert_eq!(sync(&mut api).conditions, COMPLETE);
}

#[test]
fn pods_that_run_are_counted_and_not_replaced() {
    let effects = run(2, 5, pods("Pending", 2));
    assert_eq!((effects.created.len(), effects.active), (0, 2));
    let mut three = pods("Running", 3);
    three[0] = three[0].clone().ready();
    three[1] = three[1].clone().ready();
    let effects = run(3, 5, three);
    assert_eq!((effects.active, effects.ready), (3, 2));
}

#[test]
fn a_success_is_followed_by_the_next_pod() {
    let effects = run(2, 5, vec![pod("a", "Running"), pod("s", "Succeeded")]);
    assert_eq!((effects.created.len(), effects.succeeded, effects.patches), (1, 1, 1));
    assert_eq!(effects.active, 2);
}

#[test]
fn a_work_queue_gets_no_pods_after_its_first_success() {
    let effects = run(2, None, vec![pod("a", "Running"), pod("s", "Succeeded")]);
    assert_eq!((effects.created.len(), effects.active, effects.succeeded), (0, 1, 1));
    assert!(effects.conditions.is_empty());
}

#[test]
fn a_work_queue_is_complete_once_one_succeeded_and_none_runs() {
    let effects = run(2, None, pods("Succeeded", 2));
    assert_eq!((effects.succeeded, effects.conditions), (2, COMPLETE.map(String::from).to_vec()));
    let effects = run(2, None, vec![pod("s", "Succeeded"), pod("f", "Failed")]);
    assert_eq!((effects.succeeded, effects.failed), (1, 1));
    assert_eq!(effects.conditions, COMPLETE);
}

#[test]
fn reaching_the_completions_completes_the_job_in_one_sync() {
    let effects = run(2, 5, pods("Succeeded", 5));
    assert_eq!((effects.succeeded, effects.patches, effects.writes.len()), (5, 5, 2));
    assert_eq!(effects.conditions, COMPLETE);
    assert_eq!(effects.events(), ["Completed: Job completed"]);
}

#[test]
fn zero_completions_are_complete_at_once() {
    let effects = run(1, 0, vec![]);
    assert_eq!(
        (effects.created.len(), effects.conditions),
        (0, COMPLETE.map(String::from).to_vec())
    );
}

#[test]
fn excess_pods_go_without_being_counted() {
    for (parallelism, active, gone) in [(2, 3, 1), (2, 10, 8), (0, 2, 2)] {
        let running: Vec<_> =
            pods("Running", active).into_iter().map(super::builders::PodBuilder::on_node).collect();
        let effects = run(parallelism, 5, running);
        assert_eq!((effects.deleted.len(), effects.patches), (gone, gone));
        assert_eq!((effects.active, effects.terminating), (parallelism, gone as i32));
        assert_eq!(effects.failed, 0);
    }
}

#[test]
fn no_more_pods_run_than_completions_are_missing() {
    let mut all = pods("Running", 3);
    all.extend(pods("Succeeded", 2));
    let effects = run(3, 4, all);
    assert_eq!((effects.deleted.len(), effects.succeeded, effects.patches), (1, 2, 3));
}

#[test]
fn a_deleted_ready_pod_is_no_longer_ready() {
    let ready = pods("Running", 3).into_iter().map(|pod| pod.ready().on_node()).collect();
    let effects = run(2, 5, ready);
    assert_eq!((effects.active, effects.ready, effects.terminating), (2, 2, 1));
}

#[test]
fn creation_starts_slowly_and_stops_at_the_first_batch_with_an_error() {
    let mut api = api(job().size(100, 200), vec![]);
    let left = std::cell::Cell::new(10);
    let effects = sync_with(&mut api, &|step, _| {
        if !matches!(step, Step::Create(_)) {
            return None;
        }
        left.set(left.get() - 1);
        (left.get() < 0).then(outage)
    });
    assert_eq!((effects.create_calls, effects.active), (15, 10));
    assert!(effects.is_err, "the sync is repeated");
    assert!(!effects.writes.is_empty(), "the status is written all the same");
}

#[test]
fn a_pod_that_cannot_be_deleted_stays_active() {
    let mut api = api(job().size(2, 5), pods("Running", 3));
    let effects = sync_with(&mut api, &|step, _| matches!(step, Step::Delete(..)).then(outage));
    assert_eq!((effects.active, effects.terminating, effects.is_err), (3, 0, true));
    assert!(api.memory.expectations.deleted.is_empty(), "nothing is awaited");
}

/// A process that took over gives the finalizer back between the two calls. ([P14])
#[test]
fn an_excess_pod_that_got_its_finalizer_back_is_not_deleted() {
    let mut api = api(job().size(0, 5), vec![pod("p", "Running").on_node()]);
    let mut progress = Progress::new(api.plan(), &api.settings);
    let strip = progress.next_call().expect("the pod loses its finalizer");
    progress.done(&strip, api.execute(&strip.step));
    api.touch(&uid("p"), |pod| pod.tracked = true);
    let delete = progress.next_call().expect("the pod is deleted");
    let refused = api.execute(&delete.step);
    assert_eq!(refused.as_ref().map_err(|it| it.kind), Err(FailureKind::Conflict));
    progress.done(&delete, refused);
    while let Some(call) = progress.next_call() {
        progress.done(&call, api.execute(&call.step));
    }
    let reported = |it: &SideEffect| matches!(it, SideEffect::Event(_));
    assert!(!progress.take_side_effects().iter().any(reported), "nothing is wrong");
    assert!(progress.into_result().result.is_err(), "the sync is repeated");
    let effects = sync(&mut api);
    assert_eq!((effects.deleted.len(), effects.failed, effects.is_err), (1, 0, false));
}

/// The pods of a Job that fails count as failed, whatever happens to them first. ([P13], [P14])
#[test]
fn only_pods_that_must_not_count_are_deleted_at_a_version() {
    let running = || pod("p", "Running").on_node();
    for (row, (job, pods, named)) in [
        (job().size(0, 5), vec![running()], true),
        (job().size(1, 5).suspended(), vec![running()], true),
        (job().size(1, 5).suspended(), vec![running().untracked()], true),
        (job().size(2, 1), vec![running(), pod("s", "Succeeded")], true),
        (job().size(1, 5).spec("activeDeadlineSeconds", 10).started(60), vec![running()], false),
    ]
    .into_iter()
    .enumerate()
    {
        let effects = sync(&mut api(job, pods));
        let steps = effects.trace.steps.iter();
        let deleted: Vec<bool> = steps
            .filter_map(|(step, _)| match step {
                Step::Delete(_, version) => Some(version.is_some()),
                _ => None,
            })
            .collect();
        assert_eq!(deleted, [named], "row {row}");
    }
}

#[test]
fn a_job_that_is_being_deleted_only_lets_its_pods_go() {
    let all = vec![pod("p", "Pending"), pod("r", "Running"), pod("s", "Succeeded")];
    let effects = sync(&mut api(job().size(2, 5).deleting(), all));
    assert_eq!((effects.created.len(), effects.deleted.len()), (0, 0));
    assert_eq!((effects.active, effects.succeeded, effects.patches), (2, 1, 3));
}

/// A call that fails changes no count, and the sync is repeated. ([P8], [P14], [S22])
#[test]
fn calls_that_fail_change_nothing_but_what_they_did() {
    let fails = |step: &Step, _| {
        matches!(step, Step::Create(_) | Step::Delete(..) | Step::RemoveFinalizer(_)).then(outage)
    };
    let mut serial = api(job().size(2, 5), vec![pod("a", "Running"), pod("s", "Succeeded")]);
    let effects = sync_with(&mut serial, &fails);
    assert_eq!((effects.create_calls, effects.active, effects.succeeded), (1, 1, 0));
    assert!(effects.is_err);
    let mut excess = api(job().size(2, 5), pods("Running", 3));
    let effects = sync_with(&mut excess, &fails);
    assert_eq!((effects.active, effects.terminating, effects.is_err), (3, 0, true));
}

/// A limit also fails a Job that is being deleted. ([C7])
#[test]
fn a_job_that_is_being_deleted_fails_all_the_same() {
    let limit = || job().size(2, 5).spec("backoffLimit", 0).deleting();
    let effects = sync(&mut api(limit(), pods("Failed", 1)));
    assert_eq!((effects.failed, effects.conditions), (1, failed("BackoffLimitExceeded")));
    let mut waiting = api(limit(), pods("Failed", 1));
    await_deletion(&mut waiting);
    let effects = sync(&mut waiting);
    assert_eq!((effects.failed, effects.patches), (1, 1));
    // DIVERGES(upstream): upstream sets no condition yet. ([S18])
    assert_eq!(effects.conditions, ["FailureTarget/BackoffLimitExceeded"]);
}

/// Parallelism and the missing completions bound the number of pods. ([P2], [P3])
#[test]
fn the_number_of_pods_follows_parallelism_and_what_is_missing() {
    // parallelism, completions, active, succeeded pods: created, deleted
    for (row, (parallelism, completions, active, succeeded, created, deleted)) in [
        (0, Some(0), 0, 0, 0, 0),
        (0, Some(1), 0, 0, 0, 0),
        (1, Some(1), 0, 0, 1, 0),
        (1, Some(1), 1, 0, 0, 0),
        (1, Some(1), 2, 0, 0, 1),
        (3, Some(3), 0, 2, 1, 0),
        (3, Some(3), 0, 3, 0, 0),
        (3, Some(3), 1, 3, 0, 1),
        (3, Some(2), 1, 3, 0, 1),
        (0, None, 0, 0, 0, 0),
        (2, None, 3, 0, 0, 1),
        (2, None, 3, 1, 0, 0),
        (499, Some(1_000), 0, 0, 499, 0),
        (500, Some(1_000), 0, 0, 500, 0),
        (501, Some(1_000), 0, 0, 500, 0),
        (0, Some(1_000), 501, 0, 0, 500),
    ]
    .into_iter()
    .enumerate()
    {
        let mut all = pods("Running", active);
        all.extend(pods("Succeeded", succeeded));
        let mut api = api(job().size(parallelism, completions), all);
        // Another test checks a crash after each of many calls, with fewer than these.
        let large = created + deleted > 100;
        let effects = if large { sync_with(&mut api, &|_, _| None) } else { sync(&mut api) };
        assert_eq!((effects.created.len(), effects.deleted.len()), (created, deleted), "row {row}");
    }
}

/// An API whose counts may wait for a second.
fn patient(job: super::builders::JobBuilder) -> FakeApi {
    let mut api = api(job, vec![]);
    if api.job.status.conditions.is_none() {
        // As the API server stores a new Job.
        api.edit(|job| job.status = JobStatus::default());
    }
    api.counts_max = SignedDuration::from_secs(1);
    api
}

#[test]
fn the_count_of_new_pods_waits_for_what_follows() {
    let mut api = patient(job().size(2, 2));
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), effects.writes.len()), (2, 0));
    assert_eq!(effects.requeue_seconds, Some(1));
    let begun = api.now;
    for uid in api.pods.keys().cloned().collect::<Vec<_>>() {
        api.touch(&uid, |pod| pod.phase = Phase::Succeeded);
    }
    api.now += SignedDuration::from_millis(500);
    let effects = sync(&mut api);
    assert_eq!((effects.writes.len(), effects.succeeded), (2, 2), "one write less than at once");
    assert_eq!(effects.conditions, COMPLETE);
    assert_eq!(api.job.start_time(), Some(begun), "it started when its pods were created");
}

#[test]
fn the_count_of_new_pods_waits_for_a_second_at_most() {
    let mut api = patient(job().size(2, 2));
    sync(&mut api);
    api.now += SignedDuration::from_millis(400);
    let effects = sync(&mut api);
    assert_eq!((effects.writes.len(), effects.requeue_seconds), (0, Some(0)), "600 ms are left");
    api.now += SignedDuration::from_millis(600);
    let effects = sync(&mut api);
    assert_eq!((effects.writes.len(), effects.active), (1, 2));
    assert_eq!(api.job.start_time(), Some(now()));
    assert_eq!(sync(&mut api).writes.len(), 0, "and comes to rest");
}

#[test]
fn a_clock_that_is_set_back_makes_no_count_wait_for_longer() {
    let mut api = patient(job().size(2, 2));
    sync(&mut api);
    api.now -= SignedDuration::from_hours(1);
    assert_eq!(sync(&mut api).writes.len(), 1);
}

#[test]
fn what_others_act_on_does_not_wait() {
    let mut api = patient(job().size(2, 2));
    sync(&mut api);
    let uid = api.pods.keys().next().cloned().expect("must have a pod");
    api.touch(&uid, |pod| {
        pod.phase = Phase::Running;
        pod.ready = Some(ReadyCondition { is_true: true, is_false: false, since: None });
    });
    let effects = sync(&mut api);
    assert_eq!((effects.writes.len(), effects.active, effects.ready), (1, 2, 1));

    let with_deadline = job().size(1, 1).spec("activeDeadlineSeconds", 60);
    let effects = sync(&mut patient(with_deadline));
    assert_eq!((effects.writes.len(), effects.active), (1, 1), "a deadline needs a stored start");

    let resumed = job().condition_is("Suspended", "True", "JobSuspended", "Job suspended");
    let effects = sync(&mut patient(resumed));
    assert_eq!((effects.writes.len(), effects.active), (1, 1), "a condition");
}

#[test]
fn a_new_process_counts_at_once_the_pods_that_it_did_not_create() {
    let mut api = patient(job().size(2, 2));
    sync(&mut api);
    api.memory = Memory::default();
    let effects = sync(&mut api);
    assert_eq!((effects.writes.len(), effects.active), (1, 2));
}

/// Without completions, the success of any pod stands for all. ([C9])
#[test]
fn a_work_queue_with_a_success_does_not_fail_by_a_later_failure() {
    let queue = || job().size(3, None).spec("backoffLimit", 0);
    let (running, ok) = (pod("c", "Running").on_node(), pod("a", "Succeeded").ended(0, 20));
    let ko = pod("b", "Failed").ended(1, 10);
    // The success was counted before, or ends up in the same sync as the failure.
    let counted = queue().status("succeeded", 1);
    for (job, ended) in [(counted, vec![ko.clone()]), (queue(), vec![ok.clone(), ko.clone()])] {
        let mut api = api(job, [ended, vec![running.clone()]].concat());
        let effects = sync(&mut api);
        assert_eq!((effects.active, effects.succeeded, effects.failed), (1, 1, 1));
        assert_eq!((effects.deleted.len(), effects.conditions.len()), (0, 0));
    }
    let effects = sync(&mut api(queue(), vec![ok.clone(), ko.clone()]));
    assert_eq!(effects.conditions, COMPLETE);

    // Before the first success, and where completions are counted, the limit holds.
    for job in [queue(), job().size(3, 3).spec("backoffLimit", 0).status("succeeded", 1)] {
        let effects = sync(&mut api(job, vec![ko.clone(), running.clone()]));
        assert_eq!(effects.conditions, ["FailureTarget/BackoffLimitExceeded"]);
    }
    // FailJob and the deadline still fail it, and so do restarts in place, which never end.
    let done = || queue().status("succeeded", 1);
    let codes = json!({"operator": "In", "values": [1]});
    let rule = json!([{"action": "FailJob", "onExitCodes": codes}]);
    let effects = sync(&mut api(done().failure_policy(rule), vec![ko, running.clone()]));
    assert_eq!(effects.conditions, ["FailureTarget/PodFailurePolicy"]);
    let late = done().spec("activeDeadlineSeconds", 10).started(15);
    let effects = sync(&mut api(late, vec![running]));
    assert_eq!(effects.conditions, ["FailureTarget/DeadlineExceeded"]);
    let on_failure = |template: &mut serde_json::Value| {
        template["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure".into();
    };
    let restarting = vec![pod("c", "Running").on_node().restarts(1)];
    let effects = sync(&mut api(done().with(on_failure), restarting));
    assert_eq!(effects.conditions, ["FailureTarget/BackoffLimitExceeded"]);
}

/// Ignored failures are limited so that pods are not replaced without end; here none is.
#[test]
fn a_work_queue_with_a_success_does_not_fail_by_its_disruption_limit() {
    let limited = |succeeded: i32| {
        job()
            .size(2, None)
            .status("succeeded", succeeded)
            .failure_policy(json!([
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
            ]))
            .meta("annotations", json!({"epilogue.dev/disruption-limit": "0"}))
    };
    let disrupted = || vec![pod("a", "Failed").condition("DisruptionTarget")];
    let effects = sync(&mut api(limited(1), disrupted()));
    assert!(!effects.conditions.iter().any(|each| each.starts_with("Failed")));
    let effects = sync(&mut api(limited(0), disrupted()));
    assert!(effects.conditions.contains(&"Failed/DisruptionLimitExceeded".to_owned()));
}
