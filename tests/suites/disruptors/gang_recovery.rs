//! Tests what becomes of a gang of which a member is evicted: with `disruptionMode: all` it starts
//! anew once, after its old pods; else the one pod is replaced, and the real scheduler places it
//! although fewer pods are left than the gang began with.

use k8s_openapi::api::core::v1::Pod;
use lab::eventually;
use serde_json::Value;

use super::gangs::{Objects, create, gang_of};
use super::stage::{LATER, Stage};

/// The pods run until a disruptor ends them; those after the first two succeed.
const SCRIPT: &str = "hang on-term=143 after=1s times=2; succeed";
const ATTEMPT: &str = "epilogue.dev/gang-attempt";

fn attempt(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(ATTEMPT).map(String::as_str)
}

/// One of the pods that run.
async fn a_running_pod(objects: &Objects, job: &str) -> String {
    let runs = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    let pods = objects.pods_of(job).await;
    let pod = pods.into_iter().find(runs).expect("a pod runs");
    pod.metadata.name.expect("a pod has a name")
}

/// The disruption counts once, the other pod does not count, and both are replaced after the end of
/// both.
pub(super) async fn lost_as_a_whole(stage: &Stage, objects: &Objects) {
    let [_, _] = stage.place("lost-as-a-whole", [5, 6]).await;
    let name = "lost-as-a-whole";
    create(stage, gang_of(name, 2, name, "all").script(SCRIPT)).await;
    stage.reaches(name, |state| state.ready == Some(2)).await;
    let evicted = a_running_pod(objects, name).await;
    stage.evict(&evicted).await.expect("the pod is evicted");
    let state = stage.reaches(name, |state| state.succeeded == 2).await;
    assert_eq!(state.failed, 0, "the disruption is ignored, and the other pod does not count");
    let ends = stage.is_reported(name, "EvictionByEvictionAPI", 1).await;
    assert_eq!(ends.last.len(), 1, "{ends:?}");
    let lives = stage.log.of(name);
    let [first, second, third, fourth] = &*lives else { panic!("{lives:?}") };
    for (old, new) in [(first, third), (first, fourth), (second, third), (second, fourth)] {
        assert!(old.ended.is_some_and(|ended| ended < new.begun), "{lives:?}");
    }
    let pods = objects.pods_of(name).await;
    let attempts: Vec<_> = pods.iter().filter(|pod| attempt(pod) == Some("1")).collect();
    assert_eq!(attempts.len(), 2, "{:?}", pods.iter().map(attempt).collect::<Vec<_>>());
}

/// The second time, the other index has succeeded: a gang of two would never be placed again.
pub(super) async fn lost_one_by_one(stage: &Stage, objects: &Objects) {
    let [_, _] = stage.place("lost-one-by-one", [7, 8]).await;
    let name = "lost-one-by-one";
    create(stage, gang_of(name, 2, name, "single").script(SCRIPT)).await;
    stage.reaches(name, |state| state.ready == Some(2)).await;
    let first = a_running_pod(objects, name).await;
    stage.evict(&first).await.expect("the pod is evicted");
    stage.reaches(name, |state| state.succeeded == 1).await;
    let size = |group: &Value| {
        group.pointer("/spec/schedulingPolicy/gang/minCount").and_then(Value::as_i64)
    };
    assert_eq!(size(&objects.pod_group(name).await), Some(2), "no pod awaits a node");
    let second = a_running_pod(objects, name).await;
    assert_ne!(first, second);
    stage.evict(&second).await.expect("the pod is evicted");
    let state = stage.reaches(name, |state| state.succeeded == 2).await;
    assert_eq!((state.failed, stage.log.of(name).len()), (0, 4));
    let group = async || objects.pod_group(name).await;
    eventually("the gang is smaller", LATER, group, |group| size(group) == Some(1)).await;
    assert!(objects.pods_of(name).await.iter().all(|pod| attempt(pod).is_none()));
}
