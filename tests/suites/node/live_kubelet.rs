//! What a kubelet that lives makes of what others say about its pods: the experiments of
//! `external_failed` and `levers`, on one machine one after the other. Its start takes longer than
//! most of them.

use lab::vm::KubeletConfig;

use crate::world::World;
use crate::{external_failed, levers, machine};

#[tokio::test]
async fn live_kubelet_decides_on_what_others_write() {
    let kubelet = levers::pulling_many(KubeletConfig::default());
    let world = World::new("live", kubelet.clone()).await;
    machine::node_is_ready_and_runs_what_a_real_one_does(&world).await;
    world.clear().await;
    external_failed::external_failed_under_a_live_kubelet_is_reverted_or_comes_before_the_end(
        &world,
    )
    .await;
    world.clear().await;
    levers::deadline_ends_a_pod_and_failed_comes_after_its_containers_stopped(&world).await;
    world.clear().await;
    let restart = async || {
        let start = world.node.start_kubelet_with(&levers::watchful(kubelet)).await;
        start.expect("start the kubelet");
    };
    external_failed::failed_written_while_the_kubelet_is_down_is_adopted_when_it_comes_back(
        &world, restart,
    )
    .await;
    levers::condition_once_seen_by_the_kubelet_comes_back_at_the_end_though_cleared(&world).await;
    // Last: of an image that it has pulled by one name it says that it was never there by another.
    levers::pod_deleted_during_a_hanging_pull_stays_pending_until_the_pull_ends(&world).await;
    world.end().await;
}
