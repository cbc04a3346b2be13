//! Tests deleted Jobs: in each of the three ways, together with their namespace, or to make room
//! for a namesake.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, PostParams};
use lab::bed::{Bed, SOON, has_finalizer, job};
use lab::eventually;

use super::{NO_BACKOFF, bed};

async fn two_pods_run(bed: &Bed, name: &str) {
    let hang = "hang on-term=143 after=1s";
    bed.create(job(name).spec("parallelism", 2).spec("completions", 2).script(hang)).await;
    bed.reaches(name, SOON, |state| state.ready == Some(2)).await;
}

async fn job_is_gone(bed: &Bed, name: &str) {
    let jobs = bed.api::<Job>();
    let found = async || jobs.get_opt(name).await.expect("an answer");
    eventually("the Job is gone", SOON, found, Option::is_none).await;
}

async fn pods_are_gone(bed: &Bed, name: &str) {
    bed.pods_reach(name, <[Pod]>::len, |count| *count == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_background_the_pods_go_after_the_job() {
    let bed = bed(&[]).await;
    two_pods_run(&bed, "background").await;
    bed.delete("background", DeleteParams::background()).await;
    job_is_gone(&bed, "background").await;
    pods_are_gone(&bed, "background").await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_foreground_the_job_goes_after_the_pods() {
    let bed = bed(&[]).await;
    two_pods_run(&bed, "foreground").await;
    bed.delete("foreground", DeleteParams::foreground()).await;
    let jobs = bed.api::<Job>();
    let both = async || {
        // Read in this order: a pod that exists after the Job is gone outlived it.
        let job = jobs.get_opt("foreground").await.expect("an answer");
        (job.is_some(), bed.pods("foreground").await.len())
    };
    let gone = |(job, pods): &(bool, usize)| {
        assert!(*job || *pods == 0, "{pods} pods outlived their Job");
        assert!(*pods <= 2, "a Job that is being deleted makes no pods");
        !*job
    };
    eventually("Job and pods are gone", SOON, both, gone).await;
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphaned_pods_stay_without_an_owner() {
    let bed = bed(&[]).await;
    two_pods_run(&bed, "orphan").await;
    bed.delete("orphan", DeleteParams::orphan()).await;
    job_is_gone(&bed, "orphan").await;
    let see = |pods: &[Pod]| {
        let owned = |pod: &&Pod| pod.metadata.owner_references.iter().flatten().next().is_some();
        let held = pods.iter().filter(|pod| has_finalizer(pod)).count();
        (pods.len(), pods.iter().filter(owned).count(), held)
    };
    bed.pods_reach("orphan", see, |seen| *seen == (2, 0, 0)).await;
    let deleted = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    assert!(!bed.pods("orphan").await.iter().any(deleted));
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namesake_starts_anew() {
    // Longer than the bound below, so that a backoff that the namesake inherits shows.
    let bed = bed(&["--default-job-pod-failure-backoff=10s"]).await;
    let failing = job("again").script("fail times=1; hang");
    let first = bed.create(failing).await;
    bed.reaches("again", SOON, |state| state.failed == 1).await;
    bed.delete("again", DeleteParams::background()).await;
    let jobs = bed.api::<Job>();
    let second = job("again").build();
    let create = async || jobs.create(&PostParams::default(), &second).await;
    let created = eventually("the name is free", SOON, create, Result::is_ok).await;
    assert_ne!(created.expect("it was created").metadata.uid, first.metadata.uid);
    // The backoff of its predecessor, 10 s, does not apply to it.
    let within = std::time::Duration::from_secs(8);
    let state = bed.finished("again", within).await;
    assert_eq!((state.succeeded, state.failed), (1, 0));
    bed.stop().await;
}

/// The pods go first, and remaining Jobs would replace them. ([P9])
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_goes_with_the_jobs_in_it() {
    let bed = bed(&[NO_BACKOFF]).await;
    two_pods_run(&bed, "inside").await;
    let namespaces = Api::<Namespace>::all(bed.client().clone());
    let name = bed.namespace().to_owned();
    namespaces.delete(&name, &DeleteParams::default()).await.expect("its deletion begins");
    let found = async || namespaces.get_opt(&name).await.expect("an answer");
    eventually("the namespace is gone", SOON, found, Option::is_none).await;
    bed.stop().await;
}
