//! Tests features of Indexed Jobs only: resizing, limits per index, successPolicy.

use lab::bed::{SOON, job};
use lab::eventually;
use serde_json::json;

use super::{NO_BACKOFF, bed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_indexed_job_is_resized() {
    let bed = bed(&[]).await;
    bed.create(job("elastic").indexed(4).script("index=0: succeed; hang")).await;
    bed.reaches("elastic", SOON, |state| (state.active, state.succeeded) == (3, 1)).await;
    assert_eq!(bed.indexes("elastic").await, ["0", "1", "2", "3"]);

    bed.change("elastic", json!({"parallelism": 2, "completions": 2})).await;
    let state = bed
        .reaches("elastic", SOON, |state| (state.active, state.terminating) == (1, Some(0)))
        .await;
    assert_eq!((state.succeeded, state.failed), (1, 0), "removed indexes are no failures");
    eventually(
        "pods of the two indexes that stay",
        SOON,
        async || bed.indexes("elastic").await,
        |indexes| *indexes == ["0", "1"],
    )
    .await;

    bed.change("elastic", json!({"parallelism": 3, "completions": 3})).await;
    bed.reaches("elastic", SOON, |state| state.active == 2).await;
    assert_eq!(bed.indexes("elastic").await, ["0", "1", "2"]);

    bed.change("elastic", json!({"parallelism": 1, "completions": 1})).await;
    let state = bed.finished("elastic", SOON).await;
    assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"]);
    assert_eq!((state.completed_indexes.as_str(), state.failed), ("0", 0));
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_fails_after_its_own_limit() {
    let bed = bed(&[NO_BACKOFF]).await;
    bed.create(
        job("limited")
            .indexed(3)
            .spec("backoffLimitPerIndex", 1)
            .script("index=0: fail times=1; index=1: fail; succeed"),
    )
    .await;
    let state = bed.finished("limited", SOON).await;
    assert_eq!(state.completed_indexes, "0,2");
    assert_eq!(state.failed_indexes.as_deref(), Some("1"));
    assert_eq!((state.succeeded, state.failed), (2, 3));
    let words = "FailedIndexes: Job has failed indexes";
    let facts = [": 1 of 3 (1), 3 failures (3 ExitCode); the last: pod limited-", " (index "];
    bed.failed_saying("limited", words, &facts).await;
    bed.pods_are_released("limited", 5).await;
    let mut counts: Vec<String> = bed
        .pods_with("batch.kubernetes.io/job-completion-index=1")
        .await
        .into_iter()
        .filter_map(|pod| {
            pod.metadata.annotations?.remove("batch.kubernetes.io/job-index-failure-count")
        })
        .collect();
    counts.sort();
    assert_eq!(counts, ["0", "1"]);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_failed_indexes_fail_the_job() {
    let bed = bed(&[NO_BACKOFF]).await;
    bed.create(
        job("many")
            .indexed(4)
            .spec("backoffLimitPerIndex", 0)
            .spec("maxFailedIndexes", 1)
            .script("index=0: succeed; index=1-2: fail after=500ms; hang"),
    )
    .await;
    let state = bed.finished("many", SOON).await;
    assert_eq!((state.completed_indexes.as_str(), state.active), ("0", 0));
    assert_eq!(state.failed_indexes.as_deref(), Some("1,2"));
    let words = "MaxFailedIndexesExceeded: Job has exceeded the specified maximal number of \
                 failed indexes";
    let facts = [": 2 of 1 allowed (1,2), 2 failures (2 ExitCode); the last: pod many-"];
    bed.failed_saying("many", words, &facts).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn success_policy_ends_the_job_when_its_leader_succeeds() {
    let bed = bed(&[]).await;
    let rules = json!({"rules": [
        {"succeededCount": 3},
        {"succeededIndexes": "0-1", "succeededCount": 1},
    ]});
    bed.create(
        job("led")
            .indexed(3)
            .spec("successPolicy", rules)
            .script("index=0: hang; index=1: succeed after=1s; hang on-term=143 after=2s"),
    )
    .await;
    let state = bed.reaches("led", SOON, |state| !state.conditions.is_empty()).await;
    assert_eq!(state.conditions, ["SuccessCriteriaMet"], "not over while its pods end");
    let state = bed.finished("led", SOON).await;
    assert_eq!((state.succeeded, state.failed, state.terminating), (1, 0, Some(0)));
    assert_eq!(state.completed_indexes, "1");
    let words = "SuccessPolicy: Matched rules at index 1";
    assert_eq!(
        bed.conditions("led").await,
        [format!("SuccessCriteriaMet=True {words}"), format!("Complete=True {words}")]
    );
    bed.stop().await;
}
