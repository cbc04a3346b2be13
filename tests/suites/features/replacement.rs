//! Tests podReplacementPolicy: when a deleted pod is replaced, and how the deleted pod counts.
//! (KEP-3939)

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use lab::bed::{Bed, JobBuilder, JobState, SOON, is_active, is_terminating, job};

use serde_json::{Value, json};

use super::{NO_BACKOFF, bed};

/// How long a deleted pod takes to exit. The test reads the states in between from the API, which
/// may take seconds on a busy machine.
const ENDS_AFTER_S: u32 = 8;

/// The first pod runs until it is deleted, and then exits slowly with this code; the second one
/// succeeds.
fn job_of_a_slow_pod(name: &str, mode: &str, policy: &str, exit: i32) -> JobBuilder {
    job(name)
        .spec("completionMode", mode)
        .spec("completions", 1)
        .spec("podReplacementPolicy", policy)
        .script(&format!("hang on-term={exit} after={ENDS_AFTER_S}s times=1; succeed"))
}

/// Waits until its only pod is ready, and deletes it.
async fn delete_its_pod(bed: &Bed, name: &str) {
    bed.reaches(name, SOON, |state| state.active == 1 && state.ready == Some(1)).await;
    let pods = bed.pods(name).await;
    assert_eq!(pods.len(), 1, "pods of {name}");
    bed.delete_pod(pods[0].metadata.name.as_deref().expect("a pod has a name")).await;
}

fn running_and_ending(pods: &[Pod]) -> (usize, usize) {
    let of = |is: fn(&Pod) -> bool| pods.iter().filter(|pod| is(pod)).count();
    (of(is_active), of(is_terminating))
}

async fn a_pod_is_replaced_after_its_end(bed: &Bed, name: &str, mode: &str) {
    bed.create(job_of_a_slow_pod(name, mode, "Failed", 1)).await;
    delete_its_pod(bed, name).await;
    let state = bed.reaches(name, SOON, |state| state.terminating == Some(1)).await;
    assert_eq!((state.active, state.failed), (0, 0), "{name}: not failed before it ended");
    let see = |pods: &[Pod]| {
        let (running, ending) = running_and_ending(pods);
        assert!(running == 0 || ending == 0, "{name}: a replacement alongside its predecessor");
        let newest = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        newest.count()
    };
    bed.pods_reach(name, see, |replacements| *replacements == 1).await;
    let state = bed.finished(name, SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 1), "{name}");
    assert_eq!(state.terminating, Some(0), "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_failed_a_deleted_pod_is_replaced_after_its_end() {
    let bed = bed(&[NO_BACKOFF]).await;
    tokio::join!(
        a_pod_is_replaced_after_its_end(&bed, "plain", "NonIndexed"),
        a_pod_is_replaced_after_its_end(&bed, "indexed", "Indexed"),
    );
    bed.stop().await;
}

async fn a_pod_is_replaced_at_once(bed: &Bed, name: &str, mode: &str) {
    bed.create(job_of_a_slow_pod(name, mode, "TerminatingOrFailed", 1)).await;
    delete_its_pod(bed, name).await;
    let done = |pods: &[Pod]| {
        let succeeded = |pod: &&Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            phase == Some("Succeeded")
        };
        (running_and_ending(pods).1, pods.iter().filter(succeeded).count())
    };
    bed.pods_reach(name, done, |seen| *seen == (1, 1)).await;
    let state = bed.reaches(name, SOON, |state| state.succeeded == 1).await;
    assert_eq!((state.failed, state.terminating), (1, Some(1)), "{name}: failed before its end");
    assert_eq!(state.conditions, ["SuccessCriteriaMet"], "{name}: not over while a pod ends");
    let state = bed.finished(name, SOON).await;
    assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"], "{name}");
    assert_eq!((state.succeeded, state.failed, state.terminating), (1, 1, Some(0)), "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_terminating_or_failed_a_deleted_pod_is_replaced_at_once() {
    let bed = bed(&[NO_BACKOFF]).await;
    tokio::join!(
        a_pod_is_replaced_at_once(&bed, "plain", "NonIndexed"),
        a_pod_is_replaced_at_once(&bed, "indexed", "Indexed"),
    );
    bed.stop().await;
}

/// The successor runs, and succeeds, while the first pod has not even been deleted.
async fn a_pod_that_is_about_to_end_is_replaced_while_it_runs(bed: &Bed, name: &str, mode: &str) {
    bed.create(
        job_of_a_slow_pod(name, mode, "TerminatingOrFailed", 1)
            .metadata("annotations", json!({"epilogue.dev/replace-early": "true"})),
    )
    .await;
    bed.reaches(name, SOON, |state| state.active == 1 && state.ready == Some(1)).await;
    let pods = bed.pods(name).await;
    assert_eq!(pods.len(), 1, "pods of {name}");
    let first = pods[0].metadata.name.clone().expect("a pod has a name");
    let target = json!({"type": "DisruptionTarget", "status": "True", "reason": "Test"});
    let patch = Patch::Strategic(json!({"status": {"conditions": [target]}}));
    let api = bed.api::<Pod>();
    api.patch_status(&first, &PatchParams::default(), &patch).await.expect("the condition is set");
    let state = bed.finished(name, SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 0), "{name}: the first one never failed");
    let pods = bed.pods(name).await;
    let others = pods.iter().filter(|pod| pod.metadata.name.as_ref() != Some(&first)).count();
    assert_eq!(others, 1, "{name}: one successor");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_about_to_end_is_replaced_early_if_its_job_asks_for_that() {
    let bed = bed(&[NO_BACKOFF]).await;
    tokio::join!(
        a_pod_that_is_about_to_end_is_replaced_while_it_runs(&bed, "plain", "NonIndexed"),
        a_pod_that_is_about_to_end_is_replaced_while_it_runs(&bed, "indexed", "Indexed"),
    );
    bed.stop().await;
}

async fn set_policy(bed: &Bed, name: &str, policy: &str) {
    let patch = Patch::Merge(json!({"spec": {"podReplacementPolicy": policy}}));
    let jobs = bed.api::<Job>();
    jobs.patch(name, &PatchParams::default(), &patch).await.expect("the policy is changed");
}

/// The pod that the Job waits for is replaced while it ends, and counts at once.
async fn a_job_that_waits_for_an_end_stops_waiting(bed: &Bed, name: &str, mode: &str) {
    bed.create(job_of_a_slow_pod(name, mode, "Failed", 1)).await;
    delete_its_pod(bed, name).await;
    let state = bed.reaches(name, SOON, |state| state.terminating == Some(1)).await;
    assert_eq!((state.active, state.failed), (0, 0), "{name}: it waits");
    set_policy(bed, name, "TerminatingOrFailed").await;
    let see = |pods: &[Pod]| (pods.len(), running_and_ending(pods).1);
    bed.pods_reach(name, see, |seen| *seen == (2, 1)).await;
    let state = bed.finished(name, SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 1), "{name}");
}

/// What has counted while it ended counts no second time, and the next pod is waited for.
async fn a_job_that_hurried_begins_to_wait(bed: &Bed, name: &str, mode: &str) {
    let script = format!("hang on-term=1 after={ENDS_AFTER_S}s times=2; succeed");
    bed.create(job_of_a_slow_pod(name, mode, "TerminatingOrFailed", 1).script(&script)).await;
    delete_its_pod(bed, name).await;
    let hurried = |state: &JobState| state.failed == 1 && state.ready == Some(1);
    bed.reaches(name, SOON, hurried).await;
    set_policy(bed, name, "Failed").await;
    let pods = bed.pods(name).await;
    let second = pods.iter().find(|pod| pod.metadata.deletion_timestamp.is_none());
    let second = second.and_then(|pod| pod.metadata.name.as_deref()).expect("the second pod");
    bed.delete_pod(second).await;
    let see = |pods: &[Pod]| {
        let first = pods.iter().filter(|pod| pod.metadata.name.as_deref() != Some(second));
        let later = first.filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
        let ending = pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(second));
        let ends = ending.is_some_and(is_terminating);
        assert!(later == 0 || !ends, "{name}: a replacement alongside its predecessor");
        later
    };
    bed.pods_reach(name, see, |later| *later == 1).await;
    let state = bed.finished(name, SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 2), "{name}");
}

/// (KEP-3939, disabled and enabled again)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_changes_while_a_pod_ends_holds_from_then_on() {
    let bed = bed(&[NO_BACKOFF]).await;
    tokio::join!(
        a_job_that_waits_for_an_end_stops_waiting(&bed, "to-hurry", "NonIndexed"),
        a_job_that_waits_for_an_end_stops_waiting(&bed, "to-hurry-indexed", "Indexed"),
        a_job_that_hurried_begins_to_wait(&bed, "to-wait", "NonIndexed"),
        a_job_that_hurried_begins_to_wait(&bed, "to-wait-indexed", "Indexed"),
    );
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_pod_that_exits_0_succeeds_only_under_failed() {
    let bed = bed(&[NO_BACKOFF]).await;
    bed.create(job_of_a_slow_pod("waits", "NonIndexed", "Failed", 0)).await;
    bed.create(job_of_a_slow_pod("hurries", "NonIndexed", "TerminatingOrFailed", 0)).await;
    delete_its_pod(&bed, "waits").await;
    delete_its_pod(&bed, "hurries").await;
    let waits = bed.finished("waits", SOON).await;
    assert_eq!((waits.succeeded, waits.failed), (1, 0));
    let hurries = bed.finished("hurries", SOON).await;
    assert_eq!((hurries.succeeded, hurries.failed), (1, 1));
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_index_whose_pod_ends_waits_under_failed() {
    let bed = bed(&[NO_BACKOFF]).await;
    bed.create(
        job("two").indexed(2).spec("podReplacementPolicy", "Failed").script(
            "index=0: hang on-term=1 after=20s times=1; index=1: fail after=2s times=1; hang",
        ),
    )
    .await;
    bed.reaches("two", SOON, |state| state.ready == Some(2)).await;
    let pods = bed.pods_with("job-name=two,batch.kubernetes.io/job-completion-index=0").await;
    bed.delete_pod(pods[0].metadata.name.as_deref().expect("a pod has a name")).await;
    // The failed pod of index 1 is replaced while index 0 still waits for its own to exit. That is
    // so late that a busy machine sees this state too.
    let within = Duration::from_secs(18);
    let ended_and_ending =
        |state: &JobState| state.failed == 1 && state.terminating == Some(1) && state.active == 1;
    bed.reaches("two", within, ended_and_ending).await;
    let state = bed.reaches("two", SOON, |state| (state.active, state.failed) == (2, 2)).await;
    assert_eq!(state.terminating, Some(0));
    bed.stop().await;
}

/// A kubelet that shuts down writes Failed first, and the exit of the container some seconds later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_shown_as_failed_while_it_runs_counts_as_it_ends() {
    let bed = bed(&[NO_BACKOFF]).await;
    bed.create(job("early").spec("podReplacementPolicy", "Failed").script("hang")).await;
    bed.reaches("early", SOON, |state| state.ready == Some(1)).await;
    let name = bed.pods("early").await.remove(0).metadata.name.expect("a pod has a name");
    let write = async |phase: &str, state: Value| {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let patch = json!({"status": {"phase": phase,
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}],
            "containerStatuses": [{"name": "main", "image": "none", "imageID": "", "ready": false,
                                   "restartCount": 0, "state": state}]}});
        let (pods, params) = (bed.api::<Pod>(), PatchParams::default());
        pods.patch_status(&name, &params, &Patch::Strategic(patch)).await.expect("the status");
    };
    write("Failed", json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})).await;
    let state = bed.reaches("early", SOON, |state| state.terminating == Some(1)).await;
    assert_eq!((state.active, state.failed), (0, 0));
    write("Succeeded", json!({"terminated": {"exitCode": 0}})).await;
    let state = bed.finished("early", SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 0));
    bed.pods_are_released("early", 1).await;
    bed.stop().await;
}
