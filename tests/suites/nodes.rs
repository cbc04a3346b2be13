//! Tests the simulated nodes against the real API: it accepts their writes, and a client then sees
//! what a kubelet would have left.

// The helpers of a suite are tests too, but not to the lint.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod, PodCondition};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use lab::nodes::{Bind, Options, SHUTDOWN_MESSAGE, SimulatedNodes, Stats};
use lab::{Cluster, Namespace, eventually};
use serde_json::json;

const WITHIN: Duration = Duration::from_secs(30);
const LOAD_WITHIN: Duration = Duration::from_mins(2);
const FINALIZER: &str = "lab.epilogue.dev/hold";

/// A namespace of the test with nodes of its own.
struct Site {
    namespace: Namespace,
    nodes: SimulatedNodes,
    client: kube::Client,
    pods: Api<Pod>,
}

impl Site {
    async fn start(options: Options) -> Self {
        let cluster = Cluster::of_tests("nodes").unwrap();
        let namespace = Namespace::create(&cluster).await.unwrap();
        let client = cluster.admin_client().await.unwrap();
        let options = Options {
            name_prefix: format!("sim-{}", namespace.name()),
            namespace: Some(namespace.name().to_owned()),
            ..options
        };
        let nodes = SimulatedNodes::start(client.clone(), options).await.unwrap();
        let pods = Api::namespaced(client.clone(), namespace.name());
        Self { namespace, nodes, client, pods }
    }

    async fn create(&self, name: &str, script: &str, spec: serde_json::Value) -> Pod {
        self.pods.create(&PostParams::default(), &pod(name, script, &spec)).await.unwrap()
    }

    async fn seen(&self, name: &str, what: &str, holds: impl Fn(&Pod) -> bool) -> Pod {
        let observe = async || self.pods.get_opt(name).await.unwrap();
        let holds = |pod: &Option<Pod>| pod.as_ref().is_some_and(&holds);
        eventually(what, WITHIN, observe, holds).await.unwrap()
    }

    async fn ended(&self, name: &str, wanted: &str) -> Pod {
        self.seen(name, "the pod ends", |pod| phase(pod) == wanted).await
    }

    async fn gone(&self, name: &str) {
        let observe = async || self.pods.get_opt(name).await.unwrap();
        eventually("the pod is gone", WITHIN, observe, Option::is_none).await;
    }

    async fn release(&self, name: &str) {
        let patch = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.pods.patch(name, &kube::api::PatchParams::default(), &patch).await.unwrap();
    }

    async fn finish(self) {
        assert_eq!(self.nodes.stats().refused, 0, "{:?}", self.nodes.stats());
        self.nodes.stop().await.unwrap();
        self.namespace.finish().await.unwrap();
    }
}

fn pod(name: &str, script: &str, spec: &serde_json::Value) -> Pod {
    let mut pod = json!({
        "metadata": {"name": name, "annotations": {"lab.epilogue.dev/run": script}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "none.invalid/main"}],
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        if key == "finalizers" {
            pod["metadata"][key] = value.clone();
        } else {
            pod["spec"][key] = value.clone();
        }
    }
    serde_json::from_value(pod).unwrap()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

fn is_true(pod: &Pod, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|condition| condition.status == "True")
}

fn container<'a>(pod: &'a Pod, name: &str) -> &'a ContainerStatus {
    let status = pod.status.as_ref().unwrap();
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    all.find(|container| container.name == name).unwrap()
}

fn exit(pod: &Pod, name: &str) -> (i32, String) {
    let state = container(pod, name).state.clone().unwrap();
    let end = state.terminated.unwrap();
    (end.exit_code, end.reason.unwrap())
}

#[tokio::test]
async fn a_pod_is_bound_runs_ready_and_succeeds() {
    let site = Site::start(Options::default()).await;
    site.create("p", "succeed after=500ms", json!({})).await;
    let pod = site.seen("p", "the pod is ready", |pod| is_true(pod, "Ready")).await;
    assert_eq!(phase(&pod), "Running");
    for kind in ["PodScheduled", "Initialized", "ContainersReady", "PodReadyToStartContainers"] {
        assert!(is_true(&pod, kind), "{kind}: {:?}", pod.status);
    }
    assert!(site.nodes.names().contains(&pod.spec.unwrap().node_name.unwrap()));
    let status = pod.status.unwrap();
    assert!(status.start_time.is_some() && status.pod_ip.is_some() && status.host_ip.is_some());
    assert_eq!(status.container_statuses.unwrap()[0].started, Some(true));
    let pod = site.ended("p", "Succeeded").await;
    assert_eq!(exit(&pod, "main"), (0, "Completed".to_owned()));
    for kind in ["Ready", "ContainersReady"] {
        let condition = condition(&pod, kind).unwrap();
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_deref()),
            ("False", Some("PodCompleted"))
        );
    }
    let end = container(&pod, "main").state.clone().unwrap().terminated.unwrap();
    assert!(end.finished_at >= end.started_at && end.started_at.is_some());
    site.finish().await;
}

#[tokio::test]
async fn a_failing_container_leaves_its_exit_code() {
    let site = Site::start(Options::default()).await;
    let containers = json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
    let script = "fail exit=42 container=b";
    site.create("p", script, json!({"containers": containers})).await;
    let pod = site.ended("p", "Failed").await;
    assert_eq!(exit(&pod, "a"), (0, "Completed".to_owned()));
    assert_eq!(exit(&pod, "b"), (42, "Error".to_owned()));
    assert_eq!(condition(&pod, "Ready").unwrap().reason.as_deref(), Some("PodFailed"));
    assert!(condition(&pod, "DisruptionTarget").is_none());
    site.finish().await;
}

#[tokio::test]
async fn deletion_is_reported_before_the_pod_goes_and_finalizers_hold_it() {
    let site = Site::start(Options::default()).await;
    let spec = json!({"finalizers": [FINALIZER]});
    site.create("p", "on-term=7 after=200ms", spec).await;
    site.seen("p", "the pod runs", |pod| phase(pod) == "Running").await;
    site.pods.delete("p", &DeleteParams::default()).await.unwrap();
    let deleted =
        |pod: &Pod| phase(pod) == "Failed" && pod.metadata.deletion_grace_period_seconds == Some(0);
    let pod = site.seen("p", "the pod is Failed and deleted", deleted).await;
    assert_eq!(exit(&pod, "main"), (7, "Error".to_owned()));
    site.release("p").await;
    site.gone("p").await;
    assert_eq!(site.nodes.stats().deleted, 1);
    site.finish().await;
}

#[tokio::test]
async fn a_pod_that_ignores_sigterm_is_killed_after_its_grace() {
    let site = Site::start(Options::default()).await;
    let spec = json!({"finalizers": [FINALIZER], "terminationGracePeriodSeconds": 1});
    site.create("p", "on-term=ignore", spec).await;
    site.seen("p", "the pod runs", |pod| phase(pod) == "Running").await;
    let asked = Instant::now();
    site.pods.delete("p", &DeleteParams::default()).await.unwrap();
    let pod = site.ended("p", "Failed").await;
    assert!(asked.elapsed() >= Duration::from_secs(1), "{:?}", asked.elapsed());
    assert_eq!(exit(&pod, "main"), (137, "Error".to_owned()));
    site.release("p").await;
    site.gone("p").await;
    site.finish().await;
}

#[tokio::test]
async fn a_pod_that_never_started_is_failed_when_deleted() {
    let site = Site::start(Options::default()).await;
    let spec = json!({"finalizers": [FINALIZER]});
    site.create("p", "waiting=ImagePullBackOff", spec).await;
    site.seen("p", "the pod waits", |pod| {
        let waiting = || container(pod, "main").state.as_ref()?.waiting.as_ref()?.reason.clone();
        let written = pod.status.as_ref().is_some_and(|s| s.container_statuses.is_some());
        phase(pod) == "Pending" && written && waiting().as_deref() == Some("ImagePullBackOff")
    })
    .await;
    site.pods.delete("p", &DeleteParams::default()).await.unwrap();
    let pod = site.ended("p", "Failed").await;
    assert_eq!(exit(&pod, "main"), (137, "ContainerStatusUnknown".to_owned()));
    site.release("p").await;
    site.gone("p").await;
    site.finish().await;
}

#[tokio::test]
async fn on_failure_restarts_the_container_and_counts() {
    let site = Site::start(Options::default()).await;
    let spec = json!({"restartPolicy": "OnFailure"});
    site.create("p", "fail exit=2 times=2; succeed", spec).await;
    let pod = site.ended("p", "Succeeded").await;
    let status = container(&pod, "main");
    assert_eq!(status.restart_count, 2);
    let last = status.last_state.clone().unwrap().terminated.unwrap();
    assert_eq!(last.exit_code, 2);
    site.finish().await;
}

#[tokio::test]
async fn init_containers_and_sidecars_are_part_of_the_status() {
    let site = Site::start(Options::default()).await;
    let init = json!([
        {"name": "proxy", "image": "i", "restartPolicy": "Always"},
        {"name": "setup", "image": "i"},
    ]);
    let spec = json!({"initContainers": init, "restartPolicy": "OnFailure"});
    site.create("p", "init exit=3 times=1; succeed after=300ms", spec).await;
    let pod = site.seen("p", "the pod runs", |pod| phase(pod) == "Running").await;
    assert!(container(&pod, "proxy").state.clone().unwrap().running.is_some());
    assert_eq!(container(&pod, "setup").restart_count, 1);
    let pod = site.ended("p", "Succeeded").await;
    assert_eq!(exit(&pod, "proxy").0, 0);
    site.finish().await;
}

#[tokio::test]
async fn shutdown_marks_every_pod_of_the_node_and_no_other() {
    let site = Site::start(Options { nodes: 2, ..Options::default() }).await;
    let [down, up] = [&site.nodes.names()[0], &site.nodes.names()[1]];
    site.create("hit", "on-term=143 after=100ms", json!({"nodeName": down})).await;
    site.create("waiting", "pending", json!({"nodeName": down})).await;
    site.create("spared", "hang", json!({"nodeName": up})).await;
    site.seen("hit", "the pod runs", |pod| phase(pod) == "Running").await;
    site.seen("spared", "the pod runs", |pod| phase(pod) == "Running").await;
    site.seen("waiting", "the pod waits", |pod| condition(pod, "Ready").is_some()).await;
    site.nodes.shutdown(down).await.unwrap();
    for name in ["hit", "waiting"] {
        let pod = site.pods.get(name).await.unwrap();
        let mark = condition(&pod, "DisruptionTarget").unwrap();
        assert_eq!(mark.status, "True");
        assert_eq!(mark.reason.as_deref(), Some("TerminationByKubelet"));
        let status = pod.status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        assert_eq!(status.reason.as_deref(), Some("Terminated"));
        assert_eq!(status.message.as_deref(), Some(SHUTDOWN_MESSAGE));
    }
    assert_eq!(phase(&site.pods.get("spared").await.unwrap()), "Running");
    site.finish().await;
}

#[tokio::test]
async fn a_vanished_node_says_nothing_until_it_comes_back() {
    let site = Site::start(Options { nodes: 2, ..Options::default() }).await;
    let [lost, other] = [&site.nodes.names()[0], &site.nodes.names()[1]];
    site.create("p", "hang", json!({"nodeName": lost})).await;
    site.seen("p", "the pod runs", |pod| phase(pod) == "Running").await;
    site.nodes.vanish(lost).await.unwrap();
    site.pods.delete("p", &DeleteParams::default()).await.unwrap();
    // The other node's pod, created later, is through: the lost node's pod had its time.
    site.create("q", "succeed", json!({"nodeName": other})).await;
    site.ended("q", "Succeeded").await;
    assert_eq!(phase(&site.pods.get("p").await.unwrap()), "Running");
    site.nodes.revive(lost).await.unwrap();
    site.gone("p").await;
    site.finish().await;
}

#[tokio::test]
async fn an_unreadable_script_is_an_event_on_the_pod() {
    let site = Site::start(Options::default()).await;
    site.create("p", "explode", json!({})).await;
    let events: Api<Event> = Api::namespaced(site.client.clone(), site.namespace.name());
    let observe = async || events.list(&ListParams::default()).await.unwrap().items;
    let complaint = |event: &Event| {
        event.reason.as_deref() == Some("InvalidScript")
            && event.message.as_deref().is_some_and(|text| text.contains(r#""explode""#))
    };
    let holds = |events: &Vec<Event>| events.iter().any(complaint);
    eventually("the event is there", WITHIN, observe, holds).await;
    assert_eq!(phase(&site.pods.get("p").await.unwrap()), "Pending");
    site.finish().await;
}

#[tokio::test]
async fn a_disrupted_pod_is_failed_and_marked() {
    let site = Site::start(Options::default()).await;
    site.create("p", "disrupt after=100ms", json!({})).await;
    let pod = site.ended("p", "Failed").await;
    assert!(is_true(&pod, "DisruptionTarget"));
    assert_eq!(pod.status.unwrap().reason.as_deref(), Some("Evicted"));
    site.finish().await;
}

/// Asserts that all pods finish, and prints the rates for human readers. The pods exist before the
/// nodes, so that the rate is that of the nodes and not of the pod creation.
async fn throughput(label: &str, count: usize, named: bool, options: Options) {
    let site = Site::start(Options { nodes: 0, ..options.clone() }).await;
    let prefix = format!("load-{}", site.namespace.name());
    stream::iter(0..count)
        .map(async |n| {
            let node = format!("{prefix}-{}", n % options.nodes);
            let spec = if named { json!({"nodeName": node}) } else { json!({}) };
            let pod = pod(&format!("p-{n}"), "succeed", &spec);
            site.pods.create(&PostParams::default(), &pod).await.map(drop)
        })
        .buffer_unordered(64)
        .try_collect::<()>()
        .await
        .unwrap();
    let namespace = Some(site.namespace.name().to_owned());
    let writes = if options.skip_running { count } else { 2 * count };
    let options = Options { name_prefix: prefix, namespace, ..options };
    let begun = Instant::now();
    let nodes = SimulatedNodes::start(site.client.clone(), options).await.unwrap();
    let observe = async || nodes.stats();
    let written = |stats: &Stats| stats.statuses_written >= writes as u64;
    let stats = eventually("every status is written", LOAD_WITHIN, observe, written).await;
    let took_ms = begun.elapsed().as_millis().max(1);
    let rate = count as u128 * 1000 / took_ms;
    println!("{label}: {count} pods in {took_ms} ms, {rate}/s: {stats:?}");
    let ended = site.pods.list(&ListParams::default()).await.unwrap();
    let succeeded = ended.iter().filter(|pod| phase(pod) == "Succeeded").count();
    assert_eq!((ended.items.len(), succeeded), (count, count));
    assert_eq!((stats.refused, stats.watch_errors), (0, 0), "{stats:?}");
    nodes.stop().await.unwrap();
    site.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_pods_all_end_with_every_status_written() {
    throughput("bound, running, succeeded", 500, false, Options::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_pods_all_end_with_one_write_each() {
    let options = Options { skip_running: true, bind: Bind::Never, ..Options::default() };
    throughput("one status each", 500, true, options).await;
}
