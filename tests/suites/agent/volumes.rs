//! Tests that the lock is held while the node's status names volumes in use, on the real API.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use lab::agent::{Setup, Site};
use lab::eventually;
use serde_json::json;
use tokio::time::timeout;

use super::{SOON, cluster};

const VOLUME: &str = "kubernetes.io/csi/driver^volume";

/// Writes what the node's kubelet reports.
async fn report(site: &Site, volumes: &[&str]) {
    let nodes: Api<Node> = Api::all(site.client());
    let status = Patch::Merge(json!({"status": {"volumesInUse": volumes}}));
    nodes
        .patch_status(site.node_name(), &PatchParams::default(), &status)
        .await
        .expect("the status");
}

/// A shutdown whose pods have ended, while their volume is in use.
async fn ended() -> Site {
    let site = Site::start(&cluster(), Setup { pods: 2, ..Setup::default() }).await;
    report(&site, &[VOLUME]).await;
    site.shut_down().await;
    site.until("all have ended", |ends| ends.ended == 2).await;
    let read = async || std::fs::read_to_string(site.log()).expect("a log");
    let waits = |log: &String| log.contains("waits until volumes are not in use");
    eventually("it waits for the volume", SOON, read, waits).await;
    site
}

/// The log, once it has the line about the release.
async fn said(site: &Site) -> String {
    let read = async || std::fs::read_to_string(site.log()).expect("a log");
    eventually("it reports", SOON, read, |log| log.contains("released after")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_is_held_until_the_node_names_no_volume_in_use() {
    // ([AP28])
    let site = ended().await;
    let early = timeout(Duration::from_secs(5), site.released()).await;
    assert!(early.is_err(), "the lock was released under a volume");
    report(&site, &[]).await;
    let soon = timeout(Duration::from_secs(3), site.released()).await;
    assert!(soon.is_ok(), "the lock is held on");
    let log = said(&site).await;
    assert!(!log.contains("volumes are in use"), "{log}");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_stays_in_use_is_named_and_holds_no_lock_beyond_its_time() {
    // ([AP28])
    let site = ended().await;
    site.released().await;
    let log = said(&site).await;
    assert!(log.contains(&format!("volumes are in use: 1 ({VOLUME})")), "{log}");
    site.stop().await;
}
