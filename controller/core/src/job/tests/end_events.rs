//! Tests what the events of pods' ends say, and that each is reported once.

use epilogue_common::pod_end::Counted;
use serde_json::json;

use super::builders::{Effects, JobBuilder, PodBuilder, api, job, outage, pod, sync, sync_with};
use crate::job::{MetricEvent, SideEffect, Step};

fn evicted(name: &str) -> PodBuilder {
    pod(name, "Failed").on_node().ended(143, 5).with(|pod| {
        pod["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
                                              "reason": "EvictionByEvictionAPI"}]);
    })
}

fn crashed(name: &str) -> PodBuilder {
    pod(name, "Failed").on_node().ended(1, 9)
}

fn limit(limit: i32) -> JobBuilder {
    job().size(9, 9).spec("backoffLimit", limit)
}

fn ignoring(job: JobBuilder) -> JobBuilder {
    let conditions = json!([{"type": "DisruptionTarget", "status": "True"}]);
    job.failure_policy(json!([
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "Ignore", "onPodConditions": conditions}]))
}

fn reported(effects: &Effects) -> Vec<String> {
    let events = effects.events().into_iter();
    let is_end =
        |event: &String| ["PodFailed:", "PodDisrupted:"].iter().any(|it| event.starts_with(it));
    events.filter(is_end).collect()
}

fn counted(effects: &Effects) -> Vec<(&'static str, Counted)> {
    let ends = effects.trace.side_effects.iter().filter_map(|each| match each {
        SideEffect::Count(MetricEvent::PodEnded { cause, counted }) => {
            Some((cause.label(), *counted))
        }
        _ => None,
    });
    ends.collect()
}

#[test]
fn a_failure_is_reported_with_its_number_and_the_wait() {
    let mut api = api(limit(6).status("failed", 1), vec![crashed("a"), evicted("b")]);
    let effects = sync(&mut api);
    assert_eq!(
        reported(&effects),
        [
            "PodFailed: pod a on node-1: container main exited with code 1; failure 2 of 6 \
             allowed, replaced after 15s",
            "PodDisrupted: pod b on node-1 was disrupted (EvictionByEvictionAPI); failure 3 of 6 \
             allowed, replaced after 15s",
        ]
    );
    let ends = [("ExitCode", Counted::Failed), ("EvictionByEvictionAPI", Counted::Failed)];
    assert_eq!(counted(&effects), ends);
    assert!(reported(&sync(&mut api)).is_empty(), "it is reported once");
}

#[test]
fn a_rule_is_named_by_its_place() {
    let fatal = pod("a", "Failed").on_node().ended(42, 5);
    let effects = sync(&mut api(ignoring(limit(6)), vec![fatal]));
    let words = "PodFailed: pod a on node-1: container main exited with code 42; the Job failed \
                 by rule 0 of podFailurePolicy";
    assert_eq!(reported(&effects), [words]);
    let effects = sync(&mut api(ignoring(limit(6)), vec![evicted("b")]));
    let words = "PodDisrupted: pod b on node-1 was disrupted (EvictionByEvictionAPI); ignored by \
                 rule 1 of podFailurePolicy";
    assert_eq!(reported(&effects), [words]);
    assert_eq!(counted(&effects), [("EvictionByEvictionAPI", Counted::Ignored)]);
}

#[test]
fn an_index_that_fails_is_named() {
    let per_index = || limit(i32::MAX).indexed().spec("backoffLimitPerIndex", 1);
    // Another index waits, which says nothing about this one.
    let waits = pod("b", "Failed").on_node().ended(1, 1).index(1);
    let failed = crashed("a").index(2).failures(1);
    let effects = sync(&mut api(per_index(), vec![failed, waits]));
    let words = "PodFailed: pod a (index 2) on node-1: container main exited with code 1; index 2 \
                 failed";
    assert_eq!(reported(&effects), [words]);
    assert_eq!(counted(&effects), [("ExitCode", Counted::IndexFailed)]);
}

/// The status lists no ignored pod, so its next sync finds it again.
#[test]
fn an_ignored_end_is_reported_once_its_finalizer_is_removed() {
    let mut api = api(ignoring(limit(6)), vec![evicted("b")]);
    let refuses = |step: &Step, _| matches!(step, Step::RemoveFinalizer(_)).then(outage);
    assert!(reported(&sync_with(&mut api, &refuses)).is_empty());
    assert_eq!(reported(&sync(&mut api)).len(), 1);
    assert!(reported(&sync(&mut api)).is_empty());
}

#[test]
fn a_count_that_is_not_stored_is_not_reported() {
    let mut api = api(limit(6), vec![crashed("a")]);
    let refuses = |step: &Step, _| matches!(step, Step::WriteStatus(_)).then(outage);
    assert!(reported(&sync_with(&mut api, &refuses)).is_empty());
    assert_eq!(reported(&sync(&mut api)).len(), 1);
}

/// A counted pod whose finalizer stays is listed in the status.
#[test]
fn a_counted_end_is_reported_once_though_its_finalizer_stays() {
    let mut api = api(limit(6), vec![crashed("a")]);
    let refuses = |step: &Step, _| matches!(step, Step::RemoveFinalizer(_)).then(outage);
    assert_eq!(reported(&sync_with(&mut api, &refuses)).len(), 1);
    api.crash();
    assert!(reported(&sync(&mut api)).is_empty());
}

#[test]
fn pods_that_end_with_their_job_are_not_reported() {
    let mut api = api(limit(0), vec![crashed("a"), pod("b", "Running").on_node()]);
    assert_eq!(reported(&sync(&mut api)).len(), 1);
    let ended = pod("b", "Failed").on_node().ended(143, 1).terminating().build();
    api.pods.insert(ended.uid.clone(), ended.into());
    assert!(reported(&sync(&mut api)).is_empty());
}

#[test]
fn a_pod_whose_restarts_reached_the_limit_is_reported_with_its_last_failure() {
    let job =
        limit(1).with(|job| job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure".into());
    let again = |name: &str, phase: &str, state: serde_json::Value, failed: bool| {
        let last = if failed { json!({"terminated": {"exitCode": 3}}) } else { json!({}) };
        let status = json!([{"name": "main", "restartCount": u32::from(failed), "state": state,
                             "lastState": last}]);
        pod(name, phase).on_node().with(|pod| pod["status"]["containerStatuses"] = status)
    };
    let runs = || json!({"running": {}});
    let words = "PodFailed: pod a on node-1: container main exited with code 3; restarts reached \
                 the limit of 1";
    let killed = || json!({"terminated": {"exitCode": 137}});
    let pods = || vec![again("a", "Running", runs(), true), again("b", "Running", runs(), false)];
    // Without podReplacementPolicy, both count as the Job ends.
    let effects = sync(&mut api(job.clone(), pods()));
    assert_eq!(reported(&effects), [words], "b failed by the Job's end alone");
    // The deletion may be in no view when the pod is counted.
    for (phase, is_seen) in [("Running", false), ("Running", true), ("Failed", true)] {
        let mut api = api(job.clone(), pods());
        sync(&mut api);
        for (name, failed) in [("a", true), ("b", false)] {
            let ended = again(name, phase, if is_seen { killed() } else { runs() }, failed);
            let ended = if is_seen { ended.terminating() } else { ended }.build();
            api.pods.insert(ended.uid.clone(), ended.into());
        }
        let effects = sync(&mut api);
        assert_eq!(reported(&effects), [words], "{phase}: b failed by the Job's end alone");
        assert_eq!(counted(&effects), [("ExitCode", Counted::Failed)]);
    }
}

#[test]
fn a_pod_that_its_node_s_shortage_restarted_to_the_limit_has_that_cause() {
    let job =
        limit(1).with(|job| job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure".into());
    let again = pod("a", "Running").on_node().with(|pod| {
        pod["status"]["containerStatuses"] = json!([{
            "name": "main", "restartCount": 1, "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 137}},
        }]);
        pod["status"]["conditions"] = json!([{"type": "epilogue.dev/OOMKilled", "status": "True",
                                              "reason": "NodeOutOfMemory"}]);
    });
    let effects = sync(&mut api(job, vec![again]));
    assert_eq!(counted(&effects), [("NodeOOM", Counted::Failed)]);
    assert!(reported(&effects)[0].contains("the node was out of memory"), "the same in words");
}

#[test]
fn pods_that_are_deleted_with_their_job_are_not_reported() {
    let deleted = || pod("a", "Failed").on_node().ended(143, 1).terminating();
    assert!(reported(&sync(&mut api(limit(6).deleting(), vec![deleted()]))).is_empty());
    let effects = sync(&mut api(limit(6), vec![deleted()]));
    assert_eq!(reported(&effects).len(), 1, "somebody else deleted it");
    let hit = evicted("b").terminating();
    let effects = sync(&mut api(limit(6).deleting(), vec![hit]));
    assert_eq!(reported(&effects).len(), 1, "a disruption is one whatever the Job does");
}

#[test]
fn a_success_is_not_reported() {
    let effects = sync(&mut api(job().size(1, 1), vec![pod("a", "Succeeded").ended(0, 1)]));
    assert!(reported(&effects).is_empty() && counted(&effects).is_empty());
}
