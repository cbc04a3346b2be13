//! Tests that a pod counts once, whatever becomes of it between two calls, or before its release.

use serde_json::json;

use super::builders::{JobBuilder, api, complete, job, outage, pod, sync, sync_with, uid};
use crate::checks::fake_api::FakeApi;
use crate::job::{Memory, Step};
use crate::view::{Phase, Pod};

/// One sync, during which the pod succeeds before its deletion arrives.
fn sync_while_succeeding(api: &mut FakeApi, name: &str) {
    let pod = uid(name);
    let trace = api.sync_among(&mut |api, step| {
        if matches!(step, Step::Delete(deleted, _) if deleted.uid == pod) {
            api.touch(&pod, |pod| pod.phase = Phase::Succeeded);
        }
    });
    assert!(trace.sync_result.is_some_and(|it| it.result.is_err()), "it is repeated");
    assert!(api.pods.contains_key(&pod), "its success is not deleted");
}

/// Upstream deletes such a pod, or leaves it: its work runs again. ([P14])
#[test]
fn a_pod_that_succeeds_between_the_strip_and_its_deletion_is_counted() {
    let running = |name: &str| pod(name, "Running").on_node();
    let suspended: fn(JobBuilder) -> JobBuilder = JobBuilder::suspended;
    for (what, change) in
        [("excess", (|job| job) as fn(JobBuilder) -> JobBuilder), ("suspended", suspended)]
    {
        for indexed in [false, true] {
            let base = change(job().size(0, 2));
            let job = if indexed { base.indexed() } else { base };
            let mut api = api(job, vec![running("p").index(0)]);
            sync_while_succeeding(&mut api, "p");
            let effects = sync(&mut api);
            assert_eq!((effects.succeeded, effects.failed), (1, 0), "{what} {indexed}");
            let effects = sync(&mut api);
            assert!(effects.trace.steps.is_empty(), "{what} {indexed}: once is enough");
        }
    }
}

/// The pods that a success makes superfluous are stripped before the end is stored.
#[test]
fn a_pod_that_succeeds_while_its_job_is_about_to_complete_is_counted() {
    let all = vec![pod("s", "Succeeded"), pod("p", "Running").on_node()];
    let mut api = api(job().size(2, 1), all);
    sync_while_succeeding(&mut api, "p");
    let effects = sync(&mut api);
    assert_eq!((effects.succeeded, effects.conditions), (2, complete("CompletionsReached")));
}

/// The strip may have been carried out, and the pod may end before the next sync.
#[test]
fn a_pod_that_succeeds_after_a_strip_without_a_reply_is_counted() {
    for is_suspended in [false, true] {
        let base = job().size(0, 2);
        let job = if is_suspended { base.suspended() } else { base };
        let mut api = api(job, vec![pod("p", "Running").on_node()]);
        let plan = api.plan();
        let sync_result =
            sync_with(&mut api, &|step, _| matches!(step, Step::Strip(_)).then(outage));
        assert!(sync_result.is_err, "{plan}");
        api.touch(&uid("p"), |pod| pod.tracked = false);
        api.touch(&uid("p"), |pod| pod.phase = Phase::Succeeded);
        assert_eq!(sync(&mut api).succeeded, 1);
    }
}

/// A pod that a watch first showed without its finalizer and ended may be counted.
#[test]
fn a_pod_that_may_be_counted_is_not_tracked_again() {
    let ended = || pod("p", "Succeeded").untracked();
    let mut never_seen = api(job(), vec![ended()]);
    assert!(never_seen.plan().claims.is_empty());
    let lost = || pod("p", "Running").on_node().untracked().build();
    let seen = |memory: &mut Memory, pods: &[Pod]| pods.iter().for_each(|pod| memory.saw_pod(pod));
    seen(&mut never_seen.memory, &[lost(), ended().build()]);
    assert_eq!(never_seen.plan().claims.len(), 1);
    let mut counted = api(job(), vec![ended()]);
    seen(&mut counted.memory, &[lost(), pod("p", "Succeeded").build(), ended().build()]);
    assert!(counted.plan().claims.is_empty(), "it had its finalizer again");
    let mut relisted = api(job(), vec![ended()]);
    seen(&mut relisted.memory, &[lost()]);
    relisted.memory.saw_listed_pod(&ended().build());
    assert!(relisted.plan().claims.is_empty(), "what happened before the list is unknown");
}

/// What the kubelet makes of a pod that it refuses to admit again.
fn refuse(pod: &mut Pod) {
    (pod.phase, pod.containers, pod.ready) = (Phase::Failed, [].into(), None);
}

/// What a writer makes of it that leaves its containers as they are.
fn fail(pod: &mut Pod) {
    pod.phase = Phase::Failed;
}

/// Fails the Job by each kind of limit as soon as a failure counts.
fn strict(indexed: bool, per_index: bool) -> JobBuilder {
    let rules = json!([{"action": "FailJob", "onPodConditions": [
        {"type": "Refused", "status": "True"}]}]);
    let base = job().size(2, 2).spec("backoffLimit", 0).failure_policy(rules);
    match (indexed, per_index) {
        (true, true) => base.indexed().spec("backoffLimitPerIndex", 0),
        (true, false) => base.indexed(),
        _ => base,
    }
}

/// A kubelet that restarts refuses a pod that has ended, and calls it Failed. Upstream counts it
/// twice, and may fail the Job. ([T9])
#[test]
fn a_pod_that_turns_failed_before_its_release_has_succeeded() {
    let kinds = [(false, false), (true, false), (true, true)];
    let changes = [refuse as fn(&mut Pod), fail];
    for (row, ((indexed, per_index), change)) in
        kinds.into_iter().flat_map(|kind| changes.map(|change| (kind, change))).enumerate()
    {
        for restarts in [false, true] {
            let all = vec![
                pod("p", "Succeeded").index(0).ended(0, 5),
                pod("q", "Running").index(1).on_node(),
            ];
            let mut api = api(strict(indexed, per_index), all);
            let held = sync_with(&mut api, &|step, _| {
                matches!(step, Step::RemoveFinalizer(_)).then(outage)
            });
            assert!(held.is_err && api.pods[&uid("p")].tracked);
            api.touch(&uid("p"), change);
            api.touch(&uid("p"), |pod| {
                let refused =
                    crate::view::Condition { kind: "Refused".into(), status: "True".into() };
                pod.conditions = [refused].into();
            });
            if restarts {
                api.memory = Memory::default();
            }
            let effects = sync(&mut api);
            let counts = (effects.succeeded, effects.failed, effects.deleted.len());
            assert_eq!(counts, (1, 0, 0), "row {row} {restarts}");
            assert!(
                effects.conditions.is_empty(),
                "row {row} {restarts}: {:?}",
                effects.conditions
            );
            api.touch(&uid("q"), |pod| pod.phase = Phase::Succeeded);
            let effects = sync(&mut api);
            assert_eq!((effects.succeeded, effects.failed), (2, 0), "row {row} {restarts}");
            assert_eq!(effects.conditions, complete("CompletionsReached"), "row {row} {restarts}");
        }
    }
}

/// The reply to the write that completes the index is lost.
#[test]
fn a_pod_that_turns_failed_after_a_write_without_a_reply_has_succeeded() {
    let all = vec![pod("p", "Succeeded").index(0), pod("q", "Running").index(1).on_node()];
    let mut api = api(strict(true, false), all);
    let mut stored = false;
    let plan = api.plan();
    let mut progress = crate::job::Progress::new(plan, &api.settings);
    while let Some(call) = progress.next_call() {
        for update in progress.take_side_effects() {
            if let crate::job::SideEffect::Remember(update) = update {
                api.memory.apply(update, api.now);
            }
        }
        let outcome = api.execute(&call.step);
        stored |= outcome.is_ok();
        progress.done(&call, outcome.and(Err(outage())));
    }
    assert!(stored);
    api.touch(&uid("p"), |pod| {
        fail(pod);
        pod.containers = pod_with_failed_container();
    });
    let effects = sync(&mut api);
    assert_eq!((effects.succeeded, effects.failed), (1, 0));
    assert!(effects.conditions.is_empty());
}

fn pod_with_failed_container() -> Box<[crate::view::Container]> {
    pod("x", "Failed").ended(1, 5).build().containers
}

/// Two pods of one index: one completes it, and the other one fails.
#[test]
fn a_failure_of_another_pod_than_the_one_that_completed_the_index_counts() {
    let of_index = |name: &str, phase: &str| pod(name, phase).index(0);
    for (what, all) in [
        ("both are tracked", vec![of_index("s", "Succeeded"), of_index("f", "Failed")]),
        ("one is released", vec![of_index("s", "Succeeded").untracked(), of_index("f", "Failed")]),
        ("one is gone", vec![of_index("f", "Failed").ended(1, 5)]),
    ] {
        let mut api = api(job().size(2, 2).indexed().completed("0"), all);
        assert_eq!(sync(&mut api).failed, 1, "{what}");
    }
}

/// The other way round: it was listed as failed. ([S13])
#[test]
fn a_pod_that_turns_succeeded_before_its_release_has_failed() {
    for (indexed, per_index) in [(false, false), (true, false), (true, true)] {
        for restarts in [false, true] {
            let base = job().size(1, 2).spec("backoffLimit", 6);
            let base = if indexed { base.indexed() } else { base };
            let job = if per_index { base.spec("backoffLimitPerIndex", 0) } else { base };
            let mut api = api(job, vec![pod("p", "Failed").index(0).ended(1, 500)]);
            sync_with(&mut api, &|step, _| matches!(step, Step::RemoveFinalizer(_)).then(outage));
            assert!(api.pods[&uid("p")].tracked, "{indexed} {per_index}");
            api.touch(&uid("p"), |pod| pod.phase = Phase::Succeeded);
            if restarts {
                api.memory = Memory::default();
            }
            let effects = sync(&mut api);
            let counts = (effects.succeeded, effects.failed, effects.completed_indexes.as_str());
            assert_eq!(counts, (0, 1, ""), "{indexed} {per_index} {restarts}");
        }
    }
}
