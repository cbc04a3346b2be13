//! What upstream's kubelet writes of its pods to the real API: evicted, rejected, static, and deleted
//! before they ran. Its runtime is one of names and times, so no machine is needed.

// The helpers of a suite are tests too, but not to the lint.
#![allow(clippy::unwrap_used)]

mod devices;
mod volumes;

use std::time::Duration;

use doubles::bus::PrivateBus;
use doubles::kubelet::{Kubelet, kubeconfig, pod_runtime, write_pod};
use doubles::login1::Login1;
use doubles::pod_runtime::{NO_IMAGE, PodRuntime};
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use lab::{Cluster, Namespace, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;

/// It evicts a pod every 10 s.
const WITHIN: Duration = Duration::from_mins(1);
const FINALIZER: &str = "lab.epilogue.dev/hold";

/// A node of its own, whose kubelet is real.
struct Site {
    namespace: Namespace,
    node: String,
    kubelet: Kubelet,
    runtime: PodRuntime,
    client: kube::Client,
    pods: Api<Pod>,
    login1: Login1,
    bus: PrivateBus,
    dir: TempDir,
}

impl Site {
    async fn start(fields: &Value) -> Self {
        let cluster = Cluster::of_tests("kubelet").unwrap();
        let namespace = Namespace::create(&cluster).await.unwrap();
        let node = format!("kubelet-{}", namespace.name());
        let dir = tempfile::tempdir().unwrap();
        let bus = PrivateBus::start(dir.path());
        let login1 = Login1::start(&bus.address, dir.path(), 60).await;
        let runtime = pod_runtime(dir.path());
        cluster.write_node_kubeconfig(&node, &kubeconfig(dir.path())).unwrap();
        let kubelet = Kubelet::with_pods(dir.path(), &bus.address, &node, fields, &runtime);
        let client = cluster.admin_client().await.unwrap();
        let pods = Api::namespaced(client.clone(), namespace.name());
        let site = Self { namespace, node, kubelet, runtime, client, pods, login1, bus, dir };
        let nodes: Api<Node> = Api::all(site.client.clone());
        let is_ready = async || nodes.get_opt(&site.node).await.unwrap().is_some_and(is_ready);
        eventually("a node that is ready", WITHIN, is_ready, |ready| *ready).await;
        site
    }

    /// Creates a pod that is bound to the node.
    async fn create(&self, name: &str, change: Value) {
        let mut pod = json!({
            "metadata": {"name": name, "finalizers": [FINALIZER]},
            "spec": {
                "nodeName": self.node, "restartPolicy": "Never", "hostNetwork": true,
                "automountServiceAccountToken": false,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "none", "imagePullPolicy": "Never",
                                "resources": {"requests": {"memory": "1Mi"}}}],
            },
        });
        merge(&mut pod, change);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.pods.create(&PostParams::default(), &pod).await.unwrap();
    }

    async fn seen(&self, name: &str, what: &str, holds: impl Fn(&Pod) -> bool) -> Pod {
        let observe = async || {
            let pod = self.pods.get_opt(name).await.unwrap();
            pod.inspect(|pod| assert!(!is_over(pod) || !is_true(pod, "Ready"), "{pod:?}"))
        };
        let holds = |pod: &Option<Pod>| pod.as_ref().is_some_and(&holds);
        eventually(&format!("{name}: {what}"), WITHIN, observe, holds).await.unwrap()
    }

    async fn ended(&self, name: &str, wanted: &str) -> Pod {
        self.seen(name, wanted, |pod| phase(pod) == wanted).await
    }

    async fn finish(self) {
        self.kubelet.stop().await;
        for pod in self.pods.list(&kube::api::ListParams::default()).await.unwrap() {
            let (name, none) =
                (pod.metadata.name.unwrap(), json!({"metadata": {"finalizers": null}}));
            self.pods.patch(&name, &PatchParams::default(), &Patch::Merge(none)).await.unwrap();
            let now = DeleteParams::default().grace_period(0);
            // It may be gone by now.
            let _ = self.pods.delete(&name, &now).await;
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.delete(&self.node, &DeleteParams::default()).await.unwrap();
        self.namespace.finish().await.unwrap();
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn is_ready(node: Node) -> bool {
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    conditions.iter().any(|it| it.type_ == "Ready" && it.status == "True")
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn is_over(pod: &Pod) -> bool {
    matches!(phase(pod), "Failed" | "Succeeded")
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

fn is_true(pod: &Pod, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|condition| condition.status == "True")
}

/// Exit code and reason of the only container.
fn end(pod: &Pod) -> Option<(i32, String)> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let end = status.state.as_ref()?.terminated.as_ref()?;
    Some((end.exit_code, end.reason.clone()?))
}

fn reason(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.reason.as_deref()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_pod_keeps_its_result_and_critical_ones_are_never_evicted() {
    // ([EV12], [EV16], [SD18], [SD21])
    let site = Site::start(&json!({"evictionHard": {"memory.available": "99%"}})).await;
    write_pod(site.dir.path(), "static", None);
    site.runtime.set_end("clean", Duration::ZERO, 0);
    site.create("critical", json!({"spec": {"priorityClassName": "system-node-critical"}})).await;
    site.seen("critical", "it runs", |pod| phase(pod) == "Running").await;
    site.create("clean", json!({})).await;
    let evicted = |pod: &Pod| {
        let target = condition(pod, "DisruptionTarget").and_then(|it| it.reason.as_deref());
        phase(pod) == "Succeeded" && target == Some("TerminationByKubelet")
    };
    let clean = site.seen("clean", "evicted", evicted).await;
    assert_eq!(end(&clean), Some((0, "Completed".to_owned())));
    site.kubelet.says("cannot evict a critical pod", 2).await;
    let left = site.runtime.containers();
    let runs = |name: &str| {
        let mut all = left.iter().filter(|it| it.pod.starts_with(name));
        all.next().is_some_and(|it| it.started.is_some() && it.stop.is_none())
    };
    assert!(runs("critical") && runs("static-"), "{left:?}");
    site.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_are_refused_static_or_never_started() {
    // ([F7], [PT2], [SD21], [SD22], [W10])
    // However full this machine is, it evicts nothing.
    let fields = json!({"shutdownGracePeriod": "20s", "shutdownGracePeriodCriticalPods": "10s",
                        "evictionHard": {"memory.available": "0%"}});
    let site = Site::start(&fields).await;
    let large = json!([{"name": "main", "image": "none",
                        "resources": {"requests": {"cpu": "10000"}}}]);
    site.create("too-large", json!({"spec": {"containers": large}})).await;
    let refused = site.ended("too-large", "Failed").await;
    assert_eq!(reason(&refused), "OutOfcpu");
    let is_bare = |pod: &Pod| {
        let status = pod.status.as_ref().unwrap();
        let none = |list: &Option<Vec<_>>| list.as_ref().is_none_or(Vec::is_empty);
        none(&status.container_statuses) && condition(pod, "DisruptionTarget").is_none()
    };
    assert!(is_bare(&refused), "{:?}", refused.status);

    let missing = json!([{"name": "main", "image": NO_IMAGE, "imagePullPolicy": "IfNotPresent"}]);
    site.create("pulls", json!({"spec": {"containers": missing}})).await;
    site.seen("pulls", "its image is missing", |pod| {
        let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
        let waiting = statuses.and_then(|all| all.first()?.state.as_ref()?.waiting.as_ref());
        waiting.is_some_and(|it| it.reason.as_deref() == Some("ErrImagePull"))
    })
    .await;
    site.pods.delete("pulls", &DeleteParams::default()).await.unwrap();
    let never_ran = site.ended("pulls", "Failed").await;
    assert_eq!(end(&never_ran), Some((137, "ContainerStatusUnknown".to_owned())));

    write_pod(site.dir.path(), "mirrored", None);
    let name = format!("mirrored-{}", site.node);
    let mirrors: Api<Pod> = Api::namespaced(site.client.clone(), "default");
    let becomes = async |wanted: &str| {
        let observe = async || mirrors.get_opt(&name).await.unwrap();
        let holds = |pod: &Option<Pod>| pod.as_ref().is_some_and(|pod| phase(pod) == wanted);
        eventually("the mirror", WITHIN, observe, holds).await;
    };
    becomes("Running").await;
    let failed = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    mirrors.patch_status(&name, &PatchParams::default(), &failed).await.unwrap();
    becomes("Running").await;

    site.login1.say(true).await;
    site.kubelet.says("Shutdown manager completed processing shutdown event", 1).await;
    site.create("late", json!({})).await;
    let late = site.ended("late", "Failed").await;
    assert_eq!(reason(&late), "NodeShutdown");
    assert!(is_bare(&late), "{:?}", late.status);
    site.finish().await;
}
