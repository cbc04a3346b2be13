//! Tests Jobs of ours under real disruptors: kube-scheduler preempts their pods, the taint eviction
//! of kube-controller-manager deletes them, the Eviction API evicts them with and without a budget,
//! and their Node goes. Each names its reason in DisruptionTarget, and each Job acts on it.

mod drained;
mod gang_recovery;
mod gangs;
mod on_call;
mod pod_log;
mod stage;

use epilogue_common::pod_end::Counted;
use kube::api::DeleteParams;
use lab::bed::{JobState, SOON, job};
use serde_json::{Value, json};

use stage::{Budget, NODE_CPUS, Pair, Stage};

/// All of them at once, on one API with its own scheduler: each has nodes of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_act_on_the_reason_that_each_real_disruptor_gives() {
    let stage = Stage::start().await;
    tokio::join!(
        Box::pin(preempted(&stage)),
        Box::pin(tainted(&stage)),
        Box::pin(evicted(&stage)),
        Box::pin(drained::drained(&stage)),
        Box::pin(orphaned(&stage)),
        Box::pin(of_others(&stage)),
    );
    on_call::each_end_is_explained(&stage).await;
    stage.stop().await;
}

/// Two pods leave room for a third of their size, but not for one of more than half the node.
async fn preempted(stage: &Stage) {
    let [_] = stage.place("preempted", [0]).await;
    let pair = Pair::start(stage, "preempted", NODE_CPUS / 3).await;
    stage.create_urgent_pod("urgent", "preempted", NODE_CPUS).await;
    // The replacements have a lower priority than the pod that fills the node.
    for name in pair.names() {
        let waits = |state: &JobState| (state.active, state.ready) == (1, Some(0));
        stage.reaches(name, waits).await;
    }
    pair.has_lost_its_pods(stage, "PreemptionByScheduler").await;
    for name in pair.names() {
        assert!(!stage.state(name).await.is_finished(), "{name}: there is no room yet");
        on_call::waits_for_room(stage, name).await;
    }
    stage.pods.delete("urgent", &DeleteParams::default()).await.expect("the pod is deleted");
    pair.goes_on(stage).await;
}

/// A taint that no pod tolerates evicts those that run; the scheduler places no other there.
async fn tainted(stage: &Stage) {
    let [bad, other] = stage.place("tainted", [1, 2]).await;
    stage.cordon(&other, true).await;
    let pair = Pair::start(stage, "tainted", 1).await;
    stage.cordon(&other, false).await;
    let taint = json!({"key": "example.com/broken", "effect": "NoExecute"});
    stage.change_node(&bad, json!({"spec": {"taints": [taint]}})).await;
    pair.has_lost_its_pods(stage, "DeletionByTaintManager").await;
    pair.goes_on(stage).await;
    for name in pair.names() {
        assert_eq!(stage.log.of(name)[1].node.as_deref(), Some(&*other), "{name}");
    }
}

/// A budget that allows no disruption refuses the eviction, and nothing happens to the Job.
async fn evicted(stage: &Stage) {
    let [_] = stage.place("evicted", [3]).await;
    let pair = Pair::start(stage, "evicted", 1).await;
    let budget = Budget::create(stage, "evicted", 2).await;
    budget.allows(stage, 0).await;
    for name in pair.names() {
        let before = stage.state(name).await;
        let refusal = stage.evict(&stage.only_pod(name).await).await.expect_err("no budget");
        assert!(stage::is_out_of_budget(&refusal), "{refusal:?}");
        let pods = stage.log.of(name);
        assert!(pods.len() == 1 && pods[0].disruption.is_none(), "{name}: {pods:?}");
        assert_eq!(stage.state(name).await, before, "{name}");
    }
    budget.change(stage, 0).await;
    budget.allows(stage, 2).await;
    for name in pair.names() {
        let pod = stage.only_pod(name).await;
        stage.evict(&pod).await.expect("the budget allows it");
    }
    pair.has_lost_its_pods(stage, "EvictionByEvictionAPI").await;
    pair.goes_on(stage).await;
}

/// Pod GC has one reason, and says by a condition of its own why.
fn cause(reason: &str) -> &str {
    if reason == "DeletionByPodGC" { "NodeGone" } else { reason }
}

/// kube-controller-manager runs this Job. What happens to its pods is reported all the same.
async fn of_others(stage: &Stage) {
    const NAME: &str = "others";
    let [node] = stage.place(NAME, [8]).await;
    let theirs =
        job(NAME).spec("managedBy", Value::Null).pod("nodeSelector", json!({"place": NAME}));
    stage.create(theirs.script("hang on-term=143 after=2s times=1; succeed")).await;
    stage.reaches(NAME, |state| state.ready == Some(1)).await;
    let pod = stage.only_pod(NAME).await;
    stage.evict(&pod).await.expect("no budget holds it");
    let ends = stage.is_reported(NAME, "EvictionByEvictionAPI", 1).await;
    let end = &ends.last[0];
    assert_eq!((ends.counted, &end.pod), (Counted::Elsewhere, &pod));
    assert_eq!(end.node.as_ref(), Some(&node));
    stage.reaches(NAME, JobState::is_finished).await;
}

/// The machine is gone, and so is its Node. Our pod GC fails the pods that no kubelet handles.
async fn orphaned(stage: &Stage) {
    let [gone, other] = stage.place("orphaned", [6, 7]).await;
    stage.cordon(&other, true).await;
    let pair = Pair::start(stage, "orphaned", 1).await;
    stage.cordon(&other, false).await;
    stage.nodes.vanish(&gone).await.expect("the node vanishes");
    stage.delete_node(&gone).await;
    pair.has_lost_its_pods(stage, "DeletionByPodGC").await;
    pair.goes_on(stage).await;
}

impl Pair {
    /// Each Job has lost one pod, whose condition names the disruptor. Only the Job that counts
    /// disruptions has a failure.
    async fn has_lost_its_pods(&self, stage: &Stage, reason: &str) {
        for name in self.names() {
            stage.log.until(name, |pods| pods[0].ended.is_some()).await;
            let pods = stage.log.of(name);
            assert_eq!(pods[0].disruption.as_deref(), Some(reason), "{name}: {pods:?}");
            assert!(pods[1..].iter().all(|pod| pod.disruption.is_none()), "{name}: {pods:?}");
        }
        for (name, counted) in [(&self.ignores, Counted::Ignored), (&self.counts, Counted::Failed)]
        {
            let ends = stage.is_reported(name, cause(reason), 1).await;
            let (pod, end) = (&stage.log.of(name)[0], &ends.last[0]);
            assert_eq!((ends.counted, &end.pod, &end.node), (counted, &pod.name, &pod.node));
        }
    }

    /// Both Jobs complete with one more pod each, and leave no finalizer.
    async fn goes_on(&self, stage: &Stage) {
        for (name, failed) in [(&self.ignores, 0), (&self.counts, 1)] {
            let state = stage.reaches(name, JobState::is_finished).await;
            assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"], "{name}");
            assert_eq!((state.succeeded, state.failed), (1, failed), "{name}");
            assert_eq!((state.active, state.terminating), (0, Some(0)), "{name}");
            stage.no_pod_has_the_finalizer(name, SOON).await;
            let pods = stage.log.of(name);
            assert_eq!(pods.len(), 2, "{name}: {pods:?}");
        }
        stage.log.was_replaced_after_its_end(&self.ignores);
    }
}
