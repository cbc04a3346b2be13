//! Tests pods that are lost with their node: no program of theirs failed.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams};
use lab::bed::{Bed, JobBuilder, SOON, job};
use serde_json::json;

use super::{NO_BACKOFF, bed};

/// As containerd shows a container that ran when the machine went down.
const CUT: &str = "fail exit=255 reason=Unknown";
/// As the kubelet shows a container that the runtime has no more.
const GONE: &str = "fail exit=137 reason=ContainerStatusUnknown";

/// The kubelets of all nodes report this boot.
async fn boot(bed: &Bed, id: &str) {
    let nodes = Api::<Node>::all(bed.client().clone());
    let info = json!({"bootID": id, "machineID": "", "systemUUID": "", "kernelVersion": "",
                      "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "",
                      "kubeProxyVersion": "", "operatingSystem": "", "architecture": ""});
    let patch = Patch::Strategic(json!({"status": {"nodeInfo": info}}));
    for name in bed.nodes().names() {
        let params = PatchParams::default();
        nodes.patch_status(name, &params, &patch).await.expect("the node's status is written");
    }
}

fn strict(name: &str, script: &str) -> JobBuilder {
    let rule = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]});
    job(name)
        .spec("backoffLimit", 0)
        .spec("podFailurePolicy", json!({"rules": [rule]}))
        .script(script)
}

async fn runs(bed: &Bed, job: &str) {
    let phases = |pods: &[Pod]| -> Vec<String> {
        pods.iter().filter_map(|pod| pod.status.as_ref()?.phase.clone()).collect()
    };
    bed.pods_reach(job, phases, |phases| *phases == ["Running"]).await;
}

/// Reasons and messages of the DisruptionTargets of a Job's pods.
async fn targets(bed: &Bed, job: &str) -> Vec<(String, String)> {
    let target = |pod: Pod| {
        let conditions = pod.status?.conditions?;
        let target = conditions.into_iter().find(|each| each.type_ == "DisruptionTarget")?;
        Some((target.reason?, target.message?))
    };
    bed.pods(job).await.into_iter().filter_map(target).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_its_node_lost_is_a_disruption_target() {
    let bed = bed(&[NO_BACKOFF]).await;
    boot(&bed, "boot-1").await;
    bed.create(strict("cut", &format!("{CUT} after=6s times=1; succeed"))).await;
    bed.create(strict("gone", &format!("{GONE} after=6s times=1; succeed"))).await;
    bed.create(strict("own", "fail exit=1 after=6s")).await;
    for name in ["cut", "gone", "own"] {
        runs(&bed, name).await;
    }
    boot(&bed, "boot-2").await;
    let text = "the pod's containers ended with the boot of their node (boot boot-1 then, boot-2 \
                now)";
    for name in ["cut", "gone"] {
        let state = bed.finished(name, SOON).await;
        assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"], "{name}");
        assert_eq!((state.succeeded, state.failed), (1, 0), "{name}");
        assert_eq!(targets(&bed, name).await, [("LostByNode".to_owned(), text.to_owned())]);
        bed.pods_are_released(name, 2).await;
    }
    assert_eq!(bed.finished("own", SOON).await.conditions, ["FailureTarget", "Failed"]);
    assert_eq!(targets(&bed, "own").await, []);

    // Its node shows no boot: the container was lost otherwise.
    bed.create(strict("same", CUT)).await;
    assert_eq!(bed.finished("same", SOON).await.conditions, ["FailureTarget", "Failed"]);
    assert_eq!(targets(&bed, "same").await, []);
    bed.stop().await;
}

/// It ran on the machine that went down, as where a cluster has one node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_that_saw_no_boot_marks_what_its_node_lost() {
    let mut bed = bed(&[NO_BACKOFF]).await;
    boot(&bed, "boot-1").await;
    bed.create(strict("unseen", &format!("{CUT} after=8s times=1; succeed"))).await;
    runs(&bed, "unseen").await;
    bed.kill_and_restart().await;
    let state = bed.finished("unseen", SOON).await;
    assert_eq!((state.succeeded, state.failed), (1, 0));
    let text = "the node lost the pod's containers; how they ended is not known";
    assert_eq!(targets(&bed, "unseen").await, [("LostByNode".to_owned(), text.to_owned())]);
    bed.stop().await;
}
