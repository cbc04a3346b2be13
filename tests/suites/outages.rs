//! Tests that Jobs count each pod once through outages, on an API of their own: etcd restored from a
//! snapshot; etcd, kube-apiserver and the leader killed; pods and Jobs in different etcds; the
//! controller's path slow, silent or cut; its token and its authority replaced; both programs
//! upgraded and rolled back.

mod credentials;
mod etcds;
mod jobs;
mod network;
mod stage;
mod takeover;
mod versions;

use lab::bed::job;
use lab::control_plane::Part;

use stage::Stage;

/// After a restore the Jobs go on from what the API shows then. Pods that ran on since the snapshot
/// run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_go_on_from_what_a_restored_etcd_shows() {
    let mut stage = Stage::start(6, &[]).await;
    stage.progress(50).await;
    let snapshot = stage.control_plane.snapshot_etcd().expect("a snapshot");
    stage.create(job("lost").spec("suspend", true)).await;
    stage.progress(60).await;

    stage.control_plane.kill(Part::ApiServer).await;
    stage.control_plane.kill(Part::Etcd).await;
    stage.stop_nodes().await;
    stage.control_plane.restore_etcd(&snapshot).expect("the snapshot is restored");
    stage.control_plane.start_again(Part::Etcd).await.expect("etcd starts");
    stage.control_plane.start_again(Part::ApiServer).await.expect("kube-apiserver starts");
    assert!(!stage.accounts().await.expect("the API answers").contains_key("lost"));
    stage.start_nodes().await;

    stage.all_are_exact().await;
    assert!(stage.log().contains("the API has gone back"), "{}", stage.log());
    stage.stop().await;
}

/// Kills a part of the control plane each time after some progress, and lets all Jobs finish.
async fn counts_are_exact_through_kills_of(parts: &[Part]) {
    let mut stage = Stage::start(6, &[]).await;
    for part in parts {
        stage.progress(rand::random_range(8..20)).await;
        stage.restart(*part).await;
    }
    stage.all_are_exact_and_as_scripted().await;
    assert!(!stage.log().contains("the API has gone back"), "{}", stage.log());
    stage.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_through_kills_of_kube_apiserver() {
    counts_are_exact_through_kills_of(&[Part::ApiServer; 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_through_kills_of_etcd() {
    counts_are_exact_through_kills_of(&[Part::Etcd; 3]).await;
}
