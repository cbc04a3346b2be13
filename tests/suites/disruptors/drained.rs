//! A node is drained as `kubectl drain` does it: cordoned, then each of its pods evicted. A refused
//! eviction is tried again until the budget allows it.

use std::time::Duration;

use epilogue_common::pod_end::Counted;
use kube::api::{DeleteParams, ListParams};
use lab::bed::{JobState, job};
use lab::eventually;
use serde_json::json;
use tokio::time::Instant;

use super::stage::{Budget, LATER, Stage, ignoring, is_out_of_budget};

const NAME: &str = "drained";
/// kubectl waits for 5 s.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Drains a node that has both pods of an Indexed Job, with a budget of one. The second pod goes
/// only when the replacement of the first one is ready elsewhere.
pub(crate) async fn drained(stage: &Stage) {
    let [node, other] = stage.place(NAME, [4, 5]).await;
    stage.cordon(&other, true).await;
    // A replacement that is deleted exits 0, which ends its index.
    let script = "hang on-term=143 after=3s times=1; hang on-term=0";
    let two = ignoring(job(NAME)).indexed(2).pod("nodeSelector", json!({"place": NAME}));
    let two = two.pod_metadata("labels", json!({"budget": NAME}));
    stage.create(two.script(script)).await;
    stage.reaches(NAME, |state| state.ready == Some(2)).await;
    let budget = Budget::create(stage, NAME, 1).await;
    budget.allows(stage, 1).await;
    stage.cordon(&other, false).await;

    let refused = drain(stage, &node).await;
    assert!(refused > 0, "the budget held no eviction back");
    let state = stage.reaches(NAME, |state| state.ready == Some(2)).await;
    assert_eq!((state.active, state.failed, state.terminating), (2, 0, Some(0)));
    let pods = stage.log.of(NAME);
    assert_eq!(pods.len(), 4, "{pods:?}");
    let reasons: Vec<Option<&str>> = pods.iter().map(|pod| pod.disruption.as_deref()).collect();
    let evicted = Some("EvictionByEvictionAPI");
    assert_eq!(reasons, [evicted, evicted, None, None], "{pods:?}");
    let second = pods[..2].iter().filter_map(|pod| pod.ended).max();
    assert!(second > Some(pods[2].begun), "one replacement came before the second end: {pods:?}");
    assert!(pods[2..].iter().all(|pod| pod.node.as_ref() == Some(&other)), "{pods:?}");

    let ends = stage.is_reported(NAME, "EvictionByEvictionAPI", 2).await;
    assert_eq!(ends.counted, Counted::Ignored);
    assert_eq!(ends.nodes, [(node, 2)].into());

    budget.delete(stage).await;
    for pod in &pods[2..] {
        stage.pods.delete(&pod.name, &DeleteParams::default()).await.expect("it is deleted");
    }
    let state = stage.reaches(NAME, JobState::is_finished).await;
    assert_eq!((state.succeeded, state.failed), (2, 0));
    assert_eq!(state.completed_indexes, "0,1");
    stage.no_pod_has_the_finalizer(NAME, LATER).await;
}

/// Returns how many evictions the budget refused.
async fn drain(stage: &Stage, node: &str) -> usize {
    stage.cordon(node, true).await;
    let selector = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = stage.pods.list(&selector).await.expect("the pods of the node").items;
    let names = pods.into_iter().filter_map(|pod| pod.metadata.name);
    let evictions = names.map(|name| evict(stage, name));
    futures::future::join_all(evictions).await.into_iter().sum()
}

/// Evicts a pod as soon as the budget allows it, and waits until it is gone.
async fn evict(stage: &Stage, pod: String) -> usize {
    let deadline = Instant::now() + LATER;
    let mut refused = 0;
    while let Err(error) = stage.evict(&pod).await {
        assert!(is_out_of_budget(&error), "{error:?}");
        assert!(Instant::now() < deadline, "{pod} is never evicted");
        refused += 1;
        tokio::time::sleep(RETRY_AFTER).await;
    }
    let gone = async || stage.pods.get_opt(&pod).await.expect("an answer").is_none();
    eventually("the evicted pod is gone", LATER, gone, |gone| *gone).await;
    refused
}
