//! Pods with devices, whose device plugin is late after their kubelet or their machine has started.

use doubles::device_plugin::DevicePlugin;
use doubles::kubelet::Kubelet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, PostParams};
use lab::bed::job;
use lab::controller::{Controller, Setup};
use lab::{Cluster, eventually};
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

use super::{Site, WITHIN, is_true, phase, reason};

const RESOURCE: &str = "example.com/dev";
/// How late the plugin is.
const LATE: Duration = Duration::from_secs(10);

fn fields() -> Value {
    // However full this machine is, it evicts nothing.
    json!({"evictionHard": {"memory.available": "0%"}})
}

impl Site {
    /// The kubelet ends, and another takes its place.
    async fn restart_kubelet(&mut self) {
        self.kubelet.kill().await;
        let (dir, bus) = (self.dir.path(), &self.bus.address);
        self.kubelet = Kubelet::with_pods(dir, bus, &self.node, &fields(), &self.runtime);
    }

    /// Waits until the node offers so many devices.
    async fn offers(&self, wanted: &str) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let observe = async || {
            let status = nodes.get(&self.node).await.unwrap().status.unwrap_or_default();
            status.allocatable.unwrap_or_default().remove(RESOURCE).map(|it| it.0)
        };
        let holds = |now: &Option<String>| now.as_deref() == Some(wanted);
        eventually("devices of the node", WITHIN, observe, holds).await;
    }

    /// Waits for the only pod without a node, and binds it to this one.
    async fn bind_next(&self) -> String {
        let observe = async || {
            let pods = self.pods.list(&ListParams::default()).await.unwrap().into_iter();
            let free = pods.filter(|pod| pod.spec.as_ref().unwrap().node_name.is_none());
            free.filter_map(|pod| pod.metadata.name).collect::<Vec<_>>()
        };
        let free = eventually("a pod without a node", WITHIN, observe, |it| it.len() == 1).await;
        let binding = json!({"metadata": {"name": free[0]}, "target": {"name": self.node}});
        let params = PostParams::default();
        let bound = self.pods.create_subresource("binding", &free[0], &params, &binding);
        let _: Value = bound.await.unwrap();
        free[0].clone()
    }
}

fn with_a_device() -> Job {
    let resources = json!({"limits": {RESOURCE: "1"}});
    let container = json!({"name": "main", "image": "none", "imagePullPolicy": "Never",
                           "resources": resources});
    let pattern = json!({"type": "DisruptionTarget", "status": "True"});
    let rules = json!({"rules": [{"action": "Ignore", "onPodConditions": [pattern]}]});
    job("train")
        .spec("backoffLimit", 0)
        .spec("podFailurePolicy", rules)
        .pod("containers", json!([container]))
        .pod("hostNetwork", true)
        .pod("automountServiceAccountToken", false)
        .pod("tolerations", json!([{"operator": "Exists"}]))
        .build()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_loses_its_device_by_a_boot_is_replaced_and_does_not_count() {
    // ([F7])
    let mut site = Site::start(&fields()).await;
    let cluster = Cluster::of_tests("kubelet").unwrap();
    let setup = Setup::debug(&site.dir.path().join("controller")).namespace(site.namespace.name());
    let controller = Controller::start(&cluster, &setup).await.unwrap();
    let jobs: Api<Job> = Api::namespaced(site.client.clone(), site.namespace.name());
    let plugin = DevicePlugin::register(site.dir.path(), RESOURCE).await;
    site.offers("1").await;
    jobs.create(&PostParams::default(), &with_a_device()).await.unwrap();
    let first = site.bind_next().await;
    let started = site.seen(&first, "it runs", |pod| phase(pod) == "Running").await;

    // The kubelet alone starts again: the pod goes on, however late the plugin is.
    drop(plugin);
    site.restart_kubelet().await;
    site.offers("0").await;
    sleep(LATE).await;
    let plugin = DevicePlugin::register(site.dir.path(), RESOURCE).await;
    site.offers("1").await;
    let goes_on = site.pods.get(&first).await.unwrap();
    let containers = |pod: &Pod| pod.status.as_ref().unwrap().container_statuses.clone();
    assert_eq!((phase(&goes_on), containers(&goes_on)), ("Running", containers(&started)));

    drop(plugin);
    site.kubelet.kill().await;
    site.runtime.boot();
    site.restart_kubelet().await;
    let refused = site.ended(&first, "Failed").await;
    assert_eq!(reason(&refused), "UnexpectedAdmissionError");
    assert!(containers(&refused).is_none_or(|all| all.is_empty()), "{:?}", refused.status);
    let marked = |pod: &Pod| is_true(pod, "DisruptionTarget");
    let marked = site.seen(&first, "it is a disruption target", marked).await;
    let conditions = marked.status.unwrap().conditions.unwrap();
    let reasons: Vec<_> = conditions.into_iter().map(|each| each.reason).collect();
    assert_eq!(reasons, [Some("RejectedByKubelet".to_owned())], "the kubelet leaves no condition");

    sleep(LATE).await;
    let plugin = DevicePlugin::register(site.dir.path(), RESOURCE).await;
    site.offers("1").await;
    let second = site.bind_next().await;
    site.seen(&second, "it runs", |pod| phase(pod) == "Running").await;
    let status = jobs.get("train").await.unwrap().status.unwrap();
    assert_eq!((status.failed.unwrap_or(0), status.active), (0, Some(1)), "{status:?}");
    let pods = site.pods.list(&ListParams::default()).await.unwrap();
    assert_eq!(pods.items.len(), 2, "it is replaced once");
    drop(plugin);
    controller.stop().await;
    site.finish().await;
}
