//! Tests a controller whose connections stand still, as when a firewall drops their packets.

use std::time::{Duration, Instant};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use lab::bed::{JobState, SOON, has_finalizer, job};
use lab::controller::{Controller, Setup};
use lab::proxy::Proxy;
use lab::{Cluster, Namespace, eventually};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::proxied;

/// A connection without a byte is replaced after 90 s.
const REPLACED_WITHIN: Duration = Duration::from_secs(150);
/// On an idle machine it is below two minutes.
const STALLS_WITHIN: Duration = Duration::from_secs(150);
/// Long after the controller has checked a pod without a Job.
const CHECKED_WITHIN: Duration = Duration::from_secs(5);

struct Stage {
    namespace: Namespace,
    controller: Controller,
    proxy: Proxy,
    jobs: Api<Job>,
    pods: Api<Pod>,
}

impl Stage {
    async fn start() -> Self {
        let cluster = Cluster::of_tests("jobs").expect("the suite's cluster");
        let client = cluster.admin_client().await.expect("a client");
        let namespace = Namespace::create(&cluster).await.expect("a namespace");
        let name = namespace.name();
        let setup = Setup::debug(&cluster.files(name)).namespace(name);
        let setup = setup.argument("--metrics-bind-address=127.0.0.1:0");
        let (controller, proxy) = proxied::start(&cluster, setup).await;
        let jobs = Api::namespaced(client.clone(), name);
        let pods = Api::namespaced(client, name);
        Self { namespace, controller, proxy, jobs, pods }
    }

    async fn reaches(&self, name: &str, within: Duration, holds: impl Fn(&JobState) -> bool) {
        let state = async || JobState::of(&self.jobs.get(name).await.expect("the Job"));
        let what = format!("{name} as awaited (log: {})", self.controller.log().display());
        eventually(&what, within, state, holds).await;
    }

    /// The pods that it has made are not in its cache, so a Job that changes has to wait. ([S1],
    /// [Z1], [Z2], [M10])
    async fn makes_no_pod_blindly(&self) {
        let two = job("two").spec("parallelism", 2).spec("completions", 9);
        self.jobs.create(&PostParams::default(), &two.build()).await.expect("the Job");
        let selector = ListParams::default().labels("job-name=two");
        let made = async || self.pods.list(&selector).await.expect("the pods").items.len();
        eventually("two pods", SOON, made, |made| *made == 2).await;
        let patch = Patch::Merge(json!({"spec": {"parallelism": 3}}));
        self.jobs.patch("two", &PatchParams::default(), &patch).await.expect("it is changed");
        let skipped = async || self.asked("/metrics").await;
        let series = r#"stale_sync_skips_total{group="",resource="pods"} "#;
        let counts = |page: &String| {
            let value = page.lines().find_map(|line| line.split_once(series)).map(|it| it.1);
            value.is_some_and(|value| value.trim() != "0")
        };
        eventually("a sync is skipped", SOON, skipped, counts).await;
        tokio::time::sleep(CHECKED_WITHIN).await;
        assert_eq!(made().await, 2);
    }

    /// What the controller's server answers.
    async fn asked(&self, path: &str) -> String {
        let log = std::fs::read_to_string(self.controller.log()).expect("the log");
        let (_, address) = log.rsplit_once("address=").expect("an address");
        let address = address.split_whitespace().next().expect("an address");
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("the request is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        answer
    }

    async fn stop(mut self) {
        self.controller.check().expect("our controller runs to the end");
        self.controller.stop().await;
        self.namespace.finish().await.expect("the namespace goes");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_shows_nothing_is_replaced() {
    let stage = Stage::start().await;
    let params = PostParams::default();
    stage.jobs.create(&params, &job("one").build()).await.expect("the Job");
    stage.reaches("one", SOON, |state| state.active == 1).await;
    assert_eq!(stage.proxy.hold_watches("pods"), 1);
    let pod = stage.pods.list(&ListParams::default()).await.expect("the pods").items.remove(0);
    let name = pod.metadata.name.expect("a pod has a name");
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    let params = PatchParams::default();
    stage.pods.patch_status(&name, &params, &ended).await.expect("the status");
    stage.makes_no_pod_blindly().await;
    stage.reaches("one", REPLACED_WITHIN, |state| state.succeeded == 1).await;
    stage.reaches("two", SOON, |state| state.active == 3).await;
    stage.stop().await;
}

/// A cache of the API server that does not move looks so: bookmarks come, and no change. Lists do
/// not come to an end either, until it moves again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_a_watch_that_lives_and_does_not_move_is_listed_anew_within_two_minutes() {
    let stage = Stage::start().await;
    let params = PostParams::default();
    stage.jobs.create(&params, &job("one").build()).await.expect("the Job");
    stage.reaches("one", SOON, |state| state.active == 1).await;
    let pod = stage.pods.list(&ListParams::default()).await.expect("the pods").items.remove(0);
    let name = pod.metadata.name.expect("a pod has a name");
    assert_eq!(stage.proxy.freeze_watches("pods"), 1);
    let begun = Instant::now();
    let ended = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    let params = PatchParams::default();
    stage.pods.patch_status(&name, &params, &ended).await.expect("the status");
    let ready = async || stage.asked("/readyz?verbose").await;
    let stalls = |text: &String| text.contains("the watch of pods lives and does not move");
    let text = eventually("readiness falls", STALLS_WITHIN, ready, stalls).await;
    println!("after {:?}: {text}", begun.elapsed());
    assert!(!text.contains("the watch of jobs"), "{text}");
    let figures = stage.asked("/metrics").await;
    let counted = r#"epilogue_watch_failures_total{reason="stalled",resource="pods"} 1"#;
    assert!(figures.contains(counted), "{figures}");
    stage.proxy.thaw_watches("pods");
    stage.reaches("one", SOON, |state| state.succeeded == 1).await;
    eventually("readiness comes back", SOON, ready, |text| text.contains(" 200 OK")).await;
    stage.stop().await;
}

/// If the watch has not shown the Job of another controller, its pods keep their finalizers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_job_that_the_watch_does_not_show_keep_their_finalizer() {
    let stage = Stage::start().await;
    assert_eq!(stage.proxy.hold_watches("jobs"), 1);
    let params = PostParams::default();
    let foreign = job("foreign").spec("managedBy", json!(null)).spec("suspend", true);
    let foreign = stage.jobs.create(&params, &foreign.build()).await.expect("the Job");
    let pod = |name: &str, uid: &str| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "finalizers": ["batch.kubernetes.io/job-tracking"],
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "foreign",
                                     "uid": uid, "controller": true}]},
            "spec": {"containers": [{"name": "main", "image": "none"}]}}))
        .expect("a pod")
    };
    let uid = foreign.metadata.uid.expect("a Job has a UID");
    stage.pods.create(&params, &pod("held", &uid)).await.expect("the pod");
    // A pod whose Job is gone shows that the controller checks pods.
    stage.pods.create(&params, &pod("free", "no-such-uid")).await.expect("the pod");
    let held = async || {
        // Once released, it is garbage: its owner is gone.
        let pod = stage.pods.get_opt("free").await.expect("an answer");
        pod.is_some_and(|pod| has_finalizer(&pod))
    };
    eventually("the stray is released", SOON, held, |held| !held).await;
    tokio::time::sleep(CHECKED_WITHIN).await;
    assert!(has_finalizer(&stage.pods.get("held").await.expect("the pod")));
    let let_go = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    stage.pods.patch("held", &PatchParams::default(), &let_go).await.expect("the pod");
    stage.stop().await;
}
