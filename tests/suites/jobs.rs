//! Tests Jobs on the real API, run by our controller with its own rights, on simulated nodes. Each
//! test has a namespace and a controller of its own.

mod blind;
mod proxied;
mod takeover;

use std::time::Duration;

use kube::api::DeleteParams;
use lab::bed::{Bed, JobState, SOON, job};
use serde_json::json;

const SUITE: &str = "jobs";
const LATER: Duration = Duration::from_mins(4);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nonindexed_job_reaches_its_completions() {
    let bed = Bed::start(SUITE, &[]).await;
    bed.create(job("plain").spec("parallelism", 2).spec("completions", 5)).await;
    let state = bed.finished("plain", SOON).await;
    assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"]);
    assert_eq!((state.succeeded, state.failed, state.active), (5, 0, 0));
    assert_eq!((state.ready, state.terminating), (Some(0), Some(0)));
    bed.pods_are_released("plain", 5).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_work_queue_completes_after_its_first_success() {
    let bed = Bed::start(SUITE, &[]).await;
    bed.create(
        job("queue")
            .spec("parallelism", 3)
            .spec("completions", json!(null))
            .script("succeed after=200ms"),
    )
    .await;
    let state = bed.finished("queue", SOON).await;
    assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"]);
    assert_eq!((state.succeeded, state.failed), (3, 0), "no pod is made after the first success");
    bed.pods_are_released("queue", 3).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_indexed_job_runs_each_index_once() {
    let bed = Bed::start(SUITE, &[]).await;
    bed.create(
        job("indexed")
            .spec("completionMode", "Indexed")
            .spec("parallelism", 3)
            .spec("completions", 7),
    )
    .await;
    let state = bed.finished("indexed", SOON).await;
    assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"]);
    assert_eq!((state.succeeded, state.completed_indexes.as_str()), (7, "0-6"));
    bed.pods_are_released("indexed", 7).await;
    assert_eq!(bed.indexes("indexed").await, ["0", "1", "2", "3", "4", "5", "6"]);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_failures_fail_the_job() {
    let bed = Bed::start(SUITE, &["--default-job-pod-failure-backoff=10ms"]).await;
    bed.create(job("broken").spec("backoffLimit", 1).script("fail exit=3")).await;
    let state = bed.finished("broken", SOON).await;
    assert_eq!(state.conditions, ["FailureTarget", "Failed"]);
    assert_eq!((state.succeeded, state.failed), (0, 2));
    bed.pods_are_released("broken", 2).await;
    bed.events_say("broken", "BackoffLimitExceeded").await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_another_controller_is_left_alone() {
    let bed = Bed::start(SUITE, &[]).await;
    bed.create(job("foreign").spec("managedBy", "example.com/other")).await;
    bed.create(job("reference").spec("managedBy", json!(null))).await;
    bed.create(job("ours")).await;
    bed.finished("ours", SOON).await;
    for name in ["foreign", "reference"] {
        assert_eq!(bed.state(name).await, JobState::default(), "{name}");
        assert!(bed.pods(name).await.is_empty());
    }
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reserved_value_is_ours_when_all_jobs_are() {
    let bed = Bed::start(SUITE, &["--manage-all-jobs"]).await;
    bed.create(job("none").spec("managedBy", json!(null))).await;
    bed.create(job("reserved").spec("managedBy", "kubernetes.io/job-controller")).await;
    for name in ["none", "reserved"] {
        assert_eq!(bed.finished(name, SOON).await.succeeded, 1, "{name}");
    }
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_deleted_job_lose_their_finalizer() {
    let bed = Bed::start(SUITE, &[]).await;
    bed.create(job("gone").spec("parallelism", 3).spec("completions", 3).script("hang")).await;
    bed.reaches("gone", SOON, |state| state.active == 3).await;
    bed.delete("gone", DeleteParams::background()).await;
    bed.no_pod_has_the_finalizer("gone", SOON).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_two_thousand_pods_is_counted_exactly_through_twenty_kills() {
    let mut bed = Bed::start(SUITE, &["--default-job-api-backoff=100ms"]).await;
    bed.create(
        job("large")
            .spec("completionMode", "Indexed")
            // Between two reads of the API at most twice as many pods can make progress. So twenty
            // kills fit in, however slow the reads are.
            .spec("parallelism", 80)
            .spec("completions", 2000)
            .script("succeed"),
    )
    .await;
    let kills = bed.kill_until_finished("large", 20, LATER).await;
    let state = bed.finished("large", LATER).await;
    assert!(kills >= 20, "only {kills} kills before the end");
    assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"]);
    assert_eq!((state.succeeded, state.failed), (2000, 0));
    assert_eq!(state.completed_indexes, "0-1999");
    // Without a lease, the next process lists pods while a request of the killed one is still on
    // its way. The pod of that request is one too many, and does not count.
    let pods = bed.pods("large").await;
    assert!((2000..=2000 + kills).contains(&pods.len()), "{} pods", pods.len());
    assert_eq!(bed.indexes("large").await.len(), 2000);
    bed.no_pod_has_the_finalizer("large", SOON).await;
    bed.stop().await;
}

async fn jobs_of_ten_pods_complete(jobs: usize) {
    let bed = Bed::start(SUITE, &[]).await;
    for number in 0..jobs {
        let name = format!("small-{number}");
        bed.create(job(&name).spec("parallelism", 10).spec("completions", 10)).await;
    }
    for number in 0..jobs {
        let state = bed.finished(&format!("small-{number}"), LATER).await;
        assert_eq!((state.succeeded, state.failed), (10, 0), "small-{number}");
    }
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_jobs_of_ten_pods_complete() {
    Box::pin(jobs_of_ten_pods_complete(50)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_two_hundred_jobs_of_ten_pods_complete() {
    Box::pin(jobs_of_ten_pods_complete(200)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_replica_takes_over_when_the_leader_ends() {
    let election = [
        "--leader-elect=true",
        "--leader-elect-resource-namespace=epilogue-system",
        "--default-job-pod-failure-backoff=10ms",
    ];
    let mut bed = Bed::start(SUITE, &election).await;
    let two = job("relay").spec("parallelism", 1).spec("completions", 2);
    bed.create(two.script("hang times=1; succeed")).await;
    bed.reaches("relay", SOON, |state| state.ready == Some(1)).await;
    // The lease was free before the first lists: they are new enough to work with.
    let relisted = "caches show what the leader before did";
    assert!(!bed.log().contains(relisted), "{}", bed.log());
    // The new process waits for the lease, which the old one releases as it ends.
    bed.replace_controller().await;
    let pods = bed.pods("relay").await;
    bed.delete_pod(pods[0].metadata.name.as_deref().expect("a name")).await;
    let state = bed.finished("relay", SOON).await;
    assert_eq!((state.succeeded, state.failed), (2, 1));
    bed.stop().await;
}
