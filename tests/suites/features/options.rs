//! Tests the options that a Job sets by annotation, on the real API.

use std::collections::{BTreeMap, BTreeSet};

use lab::bed::{JobBuilder, SOON, job};
use serde_json::{Value, json};

use super::{NO_BACKOFF, bed};

fn with(name: &str, annotations: Value) -> JobBuilder {
    job(name).metadata("annotations", annotations)
}

fn ignore(condition: &str) -> Value {
    json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": condition}]}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disruptions_beyond_the_limit_fail_the_job() {
    let bed = bed(&[]).await;
    let limit = json!({"epilogue.dev/disruption-limit": "2"});
    bed.create(
        with("unlucky", limit)
            .spec("backoffLimit", 0)
            .spec("podFailurePolicy", ignore("DisruptionTarget"))
            .script("disrupt"),
    )
    .await;
    let state = bed.finished("unlucky", SOON).await;
    assert_eq!((state.succeeded, state.failed), (0, 0), "an ignored failure is in no counter");
    assert_eq!(bed.pods("unlucky").await.len(), 3);
    let conditions = bed.conditions("unlucky").await;
    assert!(conditions[0].starts_with("epilogue.dev/DisruptionsIgnored=True"), "{conditions:?}");
    assert!(conditions[0].contains("3 pod failures were ignored"), "{conditions:?}");
    let words = "DisruptionLimitExceeded: Job has reached the specified disruption limit";
    let facts = [": 3 disruptions of 2 allowed (3 TerminationByKubelet); the last: pod unlucky-"];
    bed.failed_saying("unlucky", words, &facts).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_on_a_node_that_does_not_start_ends_with_a_condition_that_a_policy_matches() {
    // Not with --check-plans: the final number of pods depends on when they time out.
    let bed = lab::bed::Bed::start("features", &[NO_BACKOFF]).await;
    let timeout = json!({"epilogue.dev/pending-timeout": "1s"});
    bed.create(
        with("stuck", timeout)
            .spec("backoffLimit", 0)
            .spec("podFailurePolicy", ignore("epilogue.dev/PendingTimeout"))
            .script("waiting=ImagePullBackOff times=1; succeed"),
    )
    .await;
    let state = bed.finished("stuck", SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 0), "the policy ignored the stuck pod");
    bed.events_say("stuck", "PendingTimeout: Pod stuck-").await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_finds_no_node_is_failed_at_once_when_its_time_is_over() {
    let bed = lab::bed::Bed::start("features", &[NO_BACKOFF]).await;
    let timeout = json!({"epilogue.dev/pending-timeout": "1s"});
    let gate = json!([{"name": "example.com/never"}]);
    bed.create(with("homeless", timeout).spec("backoffLimit", 0).pod("schedulingGates", gate))
        .await;
    let state = bed.finished("homeless", SOON).await;
    assert_eq!((state.succeeded, state.failed), (0, 1));
    let pods = bed.pods("homeless").await;
    let status = pods[0].status.as_ref().expect("a status");
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    assert_eq!(status.reason.as_deref(), Some("PendingTimeout"));
    let conditions = status.conditions.iter().flatten();
    let mark = conditions.into_iter().find(|each| each.type_ == "epilogue.dev/PendingTimeout");
    assert_eq!(mark.and_then(|mark| mark.reason.as_deref()), Some("Unschedulable"));
    bed.stop().await;
}

/// With the default flags. Pods that never start, a policy that ignores that, and the shortest times
/// that admission lets a Job have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_asks_for_no_brake_has_one() {
    let bed = lab::bed::Bed::start("features", &[]).await;
    let options = json!({"epilogue.dev/pending-timeout": "1s", "epilogue.dev/backoff-base": "1s"});
    let gate = json!([{"name": "example.com/never"}]);
    bed.create(
        with("loop", options)
            .spec("parallelism", 50)
            .spec("completions", 50)
            .spec("podFailurePolicy", ignore("epilogue.dev/PendingTimeout"))
            .pod("schedulingGates", gate),
    )
    .await;
    bed.events_say("loop", "PendingTimeout").await;
    tokio::time::sleep(std::time::Duration::from_secs(20)).await;
    let pods = bed.pods("loop").await.len();
    assert!((50..=100).contains(&pods), "{pods} pods in 20 s");
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replacement_prefers_other_nodes_than_that_of_the_disruption() {
    let bed = bed(&[]).await;
    bed.create(
        with("wanderer", json!({"epilogue.dev/avoid-failed-nodes": "true"}))
            .spec("podFailurePolicy", ignore("DisruptionTarget"))
            .script("disrupt times=1; succeed"),
    )
    .await;
    bed.finished("wanderer", SOON).await;
    let pods = bed.pods("wanderer").await;
    let spec = |phase: &str| {
        let pod = pods.iter().find(|pod| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some(phase)
        });
        serde_json::to_value(pod.expect("a pod of each phase").spec.as_ref()).expect("JSON")
    };
    let (first, second) = (spec("Failed"), spec("Succeeded"));
    let preferred = &second["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        [0]["preference"]["matchFields"][0];
    assert_eq!(preferred["operator"], "NotIn");
    assert_eq!(preferred["values"], json!([first["nodeName"]]));
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_job_keeps_as_many_finished_pods_as_it_asks_for() {
    let bed = bed(&[]).await;
    let kept = json!({"epilogue.dev/finished-pods-kept": "3"});
    let many = with("many", kept).indexed(40).spec("parallelism", 5);
    bed.create(many.script("succeed after=500ms")).await;
    // The index of each pod that was seen, and the most pods that were there at once.
    let (mut seen, mut most) = (BTreeMap::new(), 0);
    let state = loop {
        let pods = bed.pods("many").await;
        most = most.max(pods.len());
        seen.extend(pods.into_iter().filter_map(|pod| {
            let index =
                pod.metadata.annotations?.remove("batch.kubernetes.io/job-completion-index");
            Some((pod.metadata.uid?, index?))
        }));
        let state = bed.state("many").await;
        if state.is_finished() {
            break state;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    assert_eq!((state.succeeded, state.failed), (40, 0));
    assert_eq!(state.completed_indexes, "0-39");
    let indexes: BTreeSet<&String> = seen.values().collect();
    assert_eq!((indexes.len(), seen.len()), (40, 40), "no index ran twice: {seen:?}");
    assert!(most < 30, "{most} pods at once");
    assert!(bed.pods("many").await.len() >= 3, "the newest stay");
    assert!(!bed.log().contains("sync failed"), "{}", bed.log());
    bed.stop().await;
}
