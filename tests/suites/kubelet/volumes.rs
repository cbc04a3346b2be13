//! What a kubelet says of the volumes of a CSI driver that must be attached.

use std::process::Command;
use std::time::{Duration, Instant};

use doubles::csi_driver::{CsiCall, CsiDriver, NAME};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::Resource;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use lab::eventually;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Site, WITHIN, phase};

/// How often a kubelet compares its node's status.
const STATUS_EVERY: Duration = Duration::from_secs(10);

/// The objects of a volume that is attached to the site's node. The controllers' half is played.
pub(super) struct Volume {
    /// Its name in the node's status.
    pub(super) unique: String,
    claim: String,
    handle: String,
    attachment: String,
}

impl Volume {
    pub(super) async fn create(site: &Site) -> Self {
        let claim = format!("claim-{}", site.node);
        let handle = format!("volume-{}", site.node);
        let unique = format!("kubernetes.io/csi/{NAME}^{handle}");
        let driver = json!({
            "metadata": {"name": NAME},
            "spec": {"attachRequired": true, "volumeLifecycleModes": ["Persistent", "Ephemeral"]},
        });
        let drivers: Api<CSIDriver> = Api::all(site.client.clone());
        if drivers.get_opt(NAME).await.unwrap().is_none() {
            create(&drivers, driver).await;
        }
        let claims: Api<PersistentVolumeClaim> =
            Api::namespaced(site.client.clone(), site.namespace.name());
        let size = json!({"storage": "1Mi"});
        let object = json!({
            "metadata": {"name": claim},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
                     "volumeName": claim, "resources": {"requests": size}},
        });
        let uid = create(&claims, object).await.metadata.uid;
        let volumes: Api<PersistentVolume> = Api::all(site.client.clone());
        let bound_to = json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1", "uid": uid,
                              "name": claim, "namespace": site.namespace.name()});
        let object = json!({
            "metadata": {"name": claim},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
                     "capacity": size, "claimRef": bound_to,
                     "csi": {"driver": NAME, "volumeHandle": handle}},
        });
        create(&volumes, object).await;
        let bound = json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"],
                                      "capacity": size}});
        let patch = Patch::Merge(bound);
        claims.patch_status(&claim, &PatchParams::default(), &patch).await.unwrap();
        let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        volumes.patch_status(&claim, &PatchParams::default(), &bound).await.unwrap();
        let attachment = attachment_name(&format!("{handle}{NAME}{}", site.node));
        let volume = Self { unique, claim, handle, attachment };
        volume.attach(site).await;
        volume
    }

    /// What the attach-detach controller and the driver's attacher write.
    async fn attach(&self, site: &Site) {
        let attachments: Api<VolumeAttachment> = Api::all(site.client.clone());
        let object = json!({
            "metadata": {"name": self.attachment},
            "spec": {"attacher": NAME, "nodeName": site.node,
                     "source": {"persistentVolumeName": self.claim}},
        });
        create(&attachments, object).await;
        let attached = Patch::Merge(json!({"status": {"attached": true}}));
        let none = PatchParams::default();
        attachments.patch_status(&self.attachment, &none, &attached).await.unwrap();
        let nodes: Api<Node> = Api::all(site.client.clone());
        let attached = json!([{"name": self.unique, "devicePath": ""}]);
        let attached = Patch::Merge(json!({"status": {"volumesAttached": attached}}));
        nodes.patch_status(&site.node, &none, &attached).await.unwrap();
    }

    /// The part of a pod that uses it.
    pub(super) fn of_pod(&self) -> Value {
        with_volume(json!({"persistentVolumeClaim": {"claimName": self.claim}}))
    }

    pub(super) async fn delete(self, site: &Site) {
        let client = || site.client.clone();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client(), site.namespace.name());
        delete(&claims, &self.claim).await;
        delete(&Api::<PersistentVolume>::all(client()), &self.claim).await;
        delete(&Api::<VolumeAttachment>::all(client()), &self.attachment).await;
    }
}

/// The part of a pod that mounts this.
fn with_volume(mut source: Value) -> Value {
    source["name"] = "data".into();
    json!({"spec": {
        "volumes": [source],
        // A kubelet mounts no volume that no container mounts.
        "containers": [{"name": "main", "image": "none", "imagePullPolicy": "Never",
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
    }})
}

async fn create<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Serialize + Resource,
{
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

/// Deletes an object that a controller would release first.
async fn delete<K>(api: &Api<K>, name: &str)
where
    K: Clone + std::fmt::Debug + DeserializeOwned + Resource,
{
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch(name, &PatchParams::default(), &free).await.unwrap();
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

/// The name that a kubelet expects: a digest.
fn attachment_name(of: &str) -> String {
    let script = "printf %s \"$1\" | sha256sum";
    let output = Command::new("bash").args(["-c", script, "bash", of]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    format!("csi-{}", text.split(' ').next().unwrap())
}

impl Site {
    /// The volumes that the API calls in use by the node.
    pub(super) async fn volumes_in_use(&self) -> Vec<String> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let status = nodes.get(&self.node).await.unwrap().status;
        status.and_then(|status| status.volumes_in_use).unwrap_or_default()
    }

    /// Removes the finalizer with which the tests create pods.
    pub(super) async fn let_go(&self, name: &str) {
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.pods.patch(name, &PatchParams::default(), &free).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_in_use_until_it_is_unstaged_though_its_pod_is_gone() {
    // ([SD28], [SD29], [SD30])
    let site = Site::start(&json!({"evictionHard": {"memory.available": "0%"}})).await;
    let driver = CsiDriver::start(site.dir.path(), &site.node);
    let volume = Volume::create(&site).await;
    driver.set_unstage(None);
    site.create("user", volume.of_pod()).await;
    site.seen("user", "it runs", |pod| phase(pod) == "Running").await;
    assert_eq!(site.volumes_in_use().await, [volume.unique.as_str()]);
    site.create("inline", with_volume(json!({"csi": {"driver": NAME}}))).await;
    site.create("nfs", with_volume(json!({"nfs": {"server": "127.0.0.1", "path": "/"}}))).await;
    site.seen("inline", "it runs", |pod| phase(pod) == "Running").await;

    site.let_go("user").await;
    site.pods.delete("user", &DeleteParams::default().grace_period(1)).await.unwrap();
    let observe = async || site.pods.get_opt("user").await.unwrap();
    eventually("the pod is gone", WITHIN, observe, Option::is_none).await;
    let begun = |calls: &Vec<CsiCall>| calls.iter().any(|it| it.name == "NodeUnstageVolume");
    let calls = eventually("it unstages", WITHIN, async || driver.calls(), begun).await;
    let of_volume = calls.iter().filter(|it| it.volume == volume.handle);
    let names: Vec<_> = of_volume.map(|it| it.name).collect();
    let all = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    assert_eq!(names, all);
    // It stays in use for longer than a kubelet takes to say so.
    tokio::time::sleep(STATUS_EVERY + Duration::from_secs(2)).await;
    assert_eq!(site.volumes_in_use().await, [volume.unique.as_str()]);

    driver.set_unstage(Some(Duration::ZERO));
    let unstaged = Instant::now();
    let observe = async || site.volumes_in_use().await;
    eventually("none is in use", WITHIN, observe, Vec::is_empty).await;
    let took = unstaged.elapsed();
    assert!(took < STATUS_EVERY + Duration::from_secs(3), "{took:?}");
    volume.delete(&site).await;
    site.finish().await;
}
