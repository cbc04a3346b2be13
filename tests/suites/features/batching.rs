//! Tests how soon the controller acts: no wait without a reason, and backoff that outlives the
//! controller. ([E4])

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use lab::bed::{SOON, job};

use super::bed;

fn created(pod: &Pod) -> Timestamp {
    pod.metadata.creation_timestamp.as_ref().expect("a pod was created").0
}

/// When its only container ended.
fn ended(pod: &Pod) -> Option<Timestamp> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    Some(containers.first()?.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0)
}

/// Upstream, which waits 1 s after each change, takes 20 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_pod_after_the_other_takes_no_second_each() {
    let bed = bed(&[]).await;
    bed.create(job("serial").spec("parallelism", 1).spec("completions", 20)).await;
    let state = bed.finished("serial", SOON).await;
    assert_eq!((state.succeeded, state.failed), (20, 0));
    let pods = bed.pods("serial").await;
    assert_eq!(pods.len(), 20);
    let first = pods.iter().map(created).min().expect("there are pods");
    let last = pods.iter().map(created).max().expect("there are pods");
    let took = last.duration_since(first).as_secs();
    assert!(took <= 12, "{took} s for 20 pods");
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backoff_survives_the_controller() {
    let mut bed = bed(&["--default-job-pod-failure-backoff=6s"]).await;
    bed.create(job("patient").script("fail times=1; succeed")).await;
    bed.reaches("patient", SOON, |state| state.failed == 1).await;
    bed.kill_and_restart().await;
    let state = bed.finished("patient", SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 1));
    let mut pods = bed.pods("patient").await;
    pods.sort_by_key(created);
    let failure = ended(&pods[0]).expect("the first pod ended");
    let waited = created(&pods[1]).duration_since(failure).as_secs();
    // The API's times are whole seconds.
    assert!(waited >= 5, "the replacement came after {waited} s");
    bed.stop().await;
}
