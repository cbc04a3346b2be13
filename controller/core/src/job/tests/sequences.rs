//! Tests worked sequences: several syncs, with the acts of a kubelet and a user between them.

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::JobStatus;
use serde_json::json;

use super::builders::{
    JobBuilder, api, complete, conditions, failed, job, listed, now, pod, sync, sync_with, uid,
};
use crate::checks::fake_api::FakeApi;
use crate::job::{MemoryUpdate, SideEffect};
use crate::view::{Phase, Uid};

/// The only pod in a phase.
fn only(api: &FakeApi, phase: Phase) -> Uid {
    let mut pods = api.pods.values().filter(|pod| pod.phase == phase);
    let found = pods.next().expect("a pod in this phase").uid.clone();
    assert!(pods.next().is_none(), "one pod only");
    found
}

fn end(api: &mut FakeApi, pod: &Uid, phase: Phase) {
    api.touch(pod, |pod| {
        pod.phase = phase;
        pod.created = Some(now());
        pod.ready = None;
    });
}

fn passes(api: &mut FakeApi, seconds: i64) {
    api.now += SignedDuration::from_secs(seconds);
}

/// active, ready, terminating, succeeded, failed
fn counts(status: &JobStatus) -> [i32; 5] {
    [status.active, status.ready, status.terminating, status.succeeded, status.failed]
        .map(|count| count.unwrap_or(0))
}

/// Success of a Job of one pod. ([T9], [T14])
#[test]
fn a_job_of_one_pod_takes_four_writes() {
    for indexed in [false, true] {
        let base = job().size(1, 1);
        let mut api = api(if indexed { base.indexed() } else { base }, vec![]);
        let first = sync(&mut api);
        assert_eq!((first.created.len(), first.writes.len()), (1, 1));
        assert_eq!(counts(&first.writes[0]), [1, 0, 0, 0, 0]);
        assert_eq!(api.job.start_time(), Some(now()));

        let pod = only(&api, Phase::Pending);
        api.touch(&pod, |pod| {
            pod.phase = Phase::Running;
            pod.ready = Some(crate::view::ReadyCondition {
                is_true: true,
                is_false: false,
                since: Some(now()),
            });
        });
        let second = sync(&mut api);
        assert_eq!(second.writes.iter().map(counts).collect::<Vec<_>>(), [[1, 1, 0, 0, 0]]);

        end(&mut api, &pod, Phase::Succeeded);
        let third = sync(&mut api);
        assert_eq!((third.writes.len(), third.patches), (2, 1));
        let before = i32::from(indexed);
        assert_eq!(counts(&third.writes[0]), [0, 0, 0, before, 0]);
        assert_eq!(listed(&third.writes[0]), (usize::from(!indexed), 0));
        assert_eq!(conditions(&third.writes[0]), ["SuccessCriteriaMet/CompletionsReached"]);
        assert_eq!(counts(&third.writes[1]), [0, 0, 0, 1, 0]);
        assert_eq!(third.conditions, complete("CompletionsReached"));
        assert_eq!(third.completed_indexes, if indexed { "0" } else { "" });
        assert_eq!(third.events(), ["Completed: Job completed"]);
        assert!(sync(&mut api).trace.steps.is_empty());
    }
}

/// Failure with survivors. ([C3], [P13])
#[test]
fn a_failing_job_waits_for_its_survivors() {
    let all = vec![pod("f", "Failed"), pod("r", "Running").on_node()];
    let mut api = api(job().size(2, 2).spec("backoffLimit", 0), all);
    let first = sync(&mut api);
    assert_eq!((first.deleted.len(), first.writes.len(), first.patches), (1, 2, 2));
    assert_eq!((counts(&first.writes[0]), listed(&first.writes[0])), ([0, 0, 1, 0, 0], (0, 2)));
    assert_eq!(conditions(&first.writes[0]), ["FailureTarget/BackoffLimitExceeded"]);
    assert_eq!(counts(&first.writes[1]), [0, 0, 1, 0, 2]);
    assert_eq!(first.conditions.len(), 1, "not Failed yet");
    api.pods.remove(&uid("r"));
    let second = sync(&mut api);
    let stages: Vec<_> = second.writes.iter().map(|it| conditions(it).len()).collect();
    assert_eq!((stages, second.terminating), (vec![1, 2], 0));
    assert_eq!(second.conditions, failed("BackoffLimitExceeded"));
}

/// A certain failure is stored at once; upstream forgets it for this sync. ([S18])
#[test]
fn a_failure_is_stored_while_a_created_pod_is_still_to_be_seen() {
    let all = vec![pod("f", "Failed"), pod("r", "Running").on_node()];
    let mut api = api(job().size(2, 2).spec("backoffLimit", 0), all);
    super::builders::await_deletion(&mut api);
    let first = sync(&mut api);
    assert_eq!((first.deleted.len(), first.failed, first.terminating), (1, 1, 1));
    assert_eq!(first.conditions, ["FailureTarget/BackoffLimitExceeded"]);
    api.memory.saw_pod_gone(&uid("unseen"));
    let second = sync(&mut api);
    assert_eq!((second.failed, second.terminating), (2, 1));
    api.pods.remove(&uid("r"));
    assert_eq!(sync(&mut api).conditions, failed("BackoffLimitExceeded"));
}

/// The replacement of a disrupted pod comes at once; upstream waits. ([D1])
#[test]
fn a_disrupted_pod_is_replaced_at_once() {
    let rules = json!([{"action": "Ignore", "onPodConditions": [
        {"type": "DisruptionTarget", "status": "True"}]}]);
    let disrupted = pod("d", "Failed").condition("DisruptionTarget").created(0);
    let mut api = api(job().failure_policy(rules), vec![disrupted]);
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), effects.failed, effects.patches), (1, 0, 1));
    assert_eq!(effects.requeue_seconds, None);
    assert!(effects.writes.iter().all(|status| listed(status) == (0, 0)));
}

/// Under the policy Failed, a user deletes the pod. ([P4], [D3])
#[test]
fn a_deleted_pod_is_replaced_when_it_has_failed_and_backoff_is_over() {
    let running = vec![pod("p", "Running").on_node()];
    let mut api = api(job().replaces_failed(), running);
    sync(&mut api);
    api.delete_pod(&uid("p"));
    let first = sync(&mut api);
    assert_eq!((first.patches, first.created.len()), (0, 0));
    assert_eq!(first.writes.iter().map(counts).collect::<Vec<_>>(), [[0, 0, 1, 0, 0]]);
    passes(&mut api, 30);
    let ended = api.now;
    api.touch(&uid("p"), |pod| {
        pod.phase = Phase::Failed;
        pod.ready = Some(crate::view::ReadyCondition {
            is_true: false,
            is_false: true,
            since: Some(ended),
        });
    });
    let second = sync(&mut api);
    assert_eq!((second.patches, second.created.len()), (1, 0));
    let stages: Vec<_> = second.writes.iter().map(|it| (counts(it), listed(it))).collect();
    assert_eq!(stages, [([0, 0, 0, 0, 0], (0, 1)), ([0, 0, 0, 0, 1], (0, 0))]);
    assert_eq!(second.requeue_seconds, Some(10), "from its end, not from its deletion");
    passes(&mut api, 10);
    assert_eq!(sync(&mut api).created.len(), 1);
}

/// One failure per index is allowed. ([I8], [I9], [I10])
#[test]
fn an_index_is_tried_again_and_then_fails() {
    let per_index = job().size(1, 2).indexed().spec("backoffLimitPerIndex", 1);
    let first = pod("first", "Failed").index(0).failures(0).ended(1, 0);
    let other = pod("other", "Succeeded").index(1);
    let mut api = api(per_index, vec![first, other]);
    let effects = sync(&mut api);
    assert_eq!((effects.failed, effects.patches), (0, 1), "of the one that succeeded");
    assert_eq!((effects.failed_indexes.as_deref(), effects.requeue_seconds), (Some(""), Some(10)));
    passes(&mut api, 10);
    let effects = sync(&mut api);
    assert_eq!(effects.created[0].failures.map(|it| it.counted), Some(1));
    let effects = sync(&mut api);
    assert_eq!((effects.failed, effects.patches), (1, 1), "the replacement is there");
    let second = only(&api, Phase::Pending);
    end(&mut api, &second, Phase::Failed);
    let effects = sync(&mut api);
    assert_eq!((effects.failed, effects.failed_indexes.as_deref()), (2, Some("0")));
    assert_eq!(effects.conditions, failed("FailedIndexes"));
}

/// Suspend, then resume. ([U1])
#[test]
fn a_job_is_suspended_and_resumed() {
    let both = ["a", "b"].map(|name| pod(name, "Running").on_node()).to_vec();
    let mut api = api(job().size(2, 4), both);
    sync(&mut api);
    api.edit(|job| job.spec.suspend = true);
    let first = sync(&mut api);
    assert_eq!((first.deleted.len(), first.patches, first.writes.len()), (2, 2, 1));
    assert_eq!(counts(&first.writes[0]), [0, 0, 2, 0, 0]);
    assert_eq!((first.conditions.len(), api.job.start_time()), (1, None));
    api.pods.clear();
    let second = sync(&mut api);
    assert_eq!(second.writes.iter().map(counts).collect::<Vec<_>>(), [[0, 0, 0, 0, 0]]);
    passes(&mut api, 60);
    api.edit(|job| job.spec.suspend = false);
    let third = sync(&mut api);
    assert_eq!((third.created.len(), third.writes.len(), third.active), (2, 1, 2));
    assert!(third.conditions.is_empty());
    assert_eq!(api.job.start_time(), Some(api.now));
}

/// All finalizers are removed, and terminal pods are still counted. ([T17])
#[test]
fn a_job_deleted_in_the_foreground_lets_all_pods_go() {
    let all = vec![
        pod("r", "Running").on_node(),
        pod("t", "Running").terminating(),
        pod("s", "Succeeded"),
        pod("f", "Failed"),
    ];
    let mut api = api(job().size(3, 9).deleting(), all);
    let effects = sync(&mut api);
    assert_eq!((effects.created.len(), effects.deleted.len(), effects.patches), (0, 0, 4));
    assert_eq!((effects.succeeded, effects.failed), (1, 2));
    assert!(api.pods.values().all(|pod| !pod.tracked));
}

/// A crash comes between the patches and the second write. ([T3])
#[test]
fn uids_listed_before_a_crash_are_counted_in_the_first_write_after_it() {
    let job: JobBuilder = job().size(2, 4).uncounted(&["s", "gone"], &["f"]);
    let all = vec![pod("s", "Succeeded").untracked(), pod("f", "Failed").untracked()];
    let mut api = api(job, all);
    api.memory = crate::job::Memory::default();
    let effects = sync_with(&mut api, &|_, _| None);
    assert_eq!((effects.writes.len(), effects.patches), (1, 0));
    assert_eq!((effects.succeeded, effects.failed), (2, 1));
    assert_eq!(listed(&api.job.status), (0, 0));
}

/// A sync leaves the mark of the end and the record of failures in memory. ([E3])
#[test]
fn a_finished_job_is_remembered() {
    let mut api = api(job(), vec![pod("s", "Succeeded")]);
    let effects = sync(&mut api);
    let side_effects = &effects.trace.side_effects;
    assert!(side_effects.contains(&SideEffect::Remember(MemoryUpdate::Finished)));
    assert!(api.memory.finished);
}
