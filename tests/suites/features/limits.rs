//! Tests what fails a Job without a podFailurePolicy, and its status meanwhile: backoffLimit,
//! restarts in place, activeDeadlineSeconds, ready pods. (KEP-2879)

use lab::bed::{SOON, job};

use super::{NO_BACKOFF, bed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_failure_more_than_the_backoff_limit_fails_the_job() {
    let bed = bed(&[NO_BACKOFF]).await;
    bed.create(job("at").spec("backoffLimit", 2).script("fail times=2; succeed")).await;
    bed.create(
        job("over").indexed(2).spec("backoffLimit", 2).script("index=0: fail; index=1: hang"),
    )
    .await;
    let at = bed.finished("at", SOON).await;
    assert_eq!(at.conditions, ["SuccessCriteriaMet", "Complete"]);
    assert_eq!((at.succeeded, at.failed), (1, 2));
    let over = bed.finished("over", SOON).await;
    assert_eq!((over.succeeded, over.failed), (0, 4), "the pod that still ran counts as failed");
    let words = "BackoffLimitExceeded: Job has reached the specified backoff limit";
    let facts = [": 3 failures of 2 allowed (3 ExitCode)", ": container main exited with code 1"];
    bed.failed_saying("over", words, &facts).await;
    bed.events_say("over", words).await;
    // A change of a Job that is finished changes nothing. ([H2], [S4])
    let before = (bed.state("over").await, bed.pods("over").await.len());
    bed.change("over", serde_json::json!({"parallelism": 3})).await;
    bed.create(job("later")).await;
    bed.finished("later", SOON).await;
    assert_eq!((bed.state("over").await, bed.pods("over").await.len()), before);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_in_place_count_against_the_backoff_limit() {
    let bed = bed(&[]).await;
    let restarting = |name: &str| job(name).pod("restartPolicy", "OnFailure");
    bed.create(restarting("few").spec("backoffLimit", 3).script("fail times=2; succeed")).await;
    bed.create(restarting("many").spec("backoffLimit", 1).script("fail")).await;
    let few = bed.finished("few", SOON).await;
    assert_eq!((few.succeeded, few.failed), (1, 0));
    bed.pods_are_released("few", 1).await;
    let many = bed.finished("many", SOON).await;
    let words = "BackoffLimitExceeded: Job has reached the specified backoff limit";
    let facts = [" the limit of 1; pod many-", ": container main exited with code 1"];
    bed.failed_saying("many", words, &facts).await;
    assert_eq!((many.succeeded, many.failed), (0, 1));
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deadline_ends_pods_that_run() {
    let bed = bed(&[]).await;
    bed.create(
        job("late").indexed(2).spec("activeDeadlineSeconds", 2).script("index=0: succeed; hang"),
    )
    .await;
    let state = bed.finished("late", SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 1));
    let words = "DeadlineExceeded: Job was active longer than specified deadline";
    bed.failed_saying("late", words, &[" of 2 s; the Job had 1 running"]).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ready_counts_the_active_pods_that_are_ready() {
    let bed = bed(&[]).await;
    bed.create(
        job("some").indexed(3).script("index=0: hang; index=1: ready after=3s; index=2: not-ready"),
    )
    .await;
    bed.reaches("some", SOON, |state| (state.active, state.ready) == (3, Some(1))).await;
    bed.reaches("some", SOON, |state| (state.active, state.ready) == (3, Some(2))).await;
    let pods = bed.pods_with("batch.kubernetes.io/job-completion-index=0").await;
    bed.delete_pod(pods[0].metadata.name.as_deref().expect("a pod has a name")).await;
    bed.reaches("some", SOON, |state| (state.failed, state.ready) == (1, Some(1))).await;
    bed.stop().await;
}
