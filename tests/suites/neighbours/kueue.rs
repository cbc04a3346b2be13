//! Jobs of a queue, by the real Kueue with its webhooks. Our controller runs what it admits.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams};
use lab::bed::{Bed, JobBuilder, JobState, SOON, is_active};
use lab::eventually;
use lab::neighbour::Neighbour;
use lab::paths::program;
use serde_json::{Value, json};
use tokio::process::Command;

use super::ledger::Ledger;
use super::{Stage, change, conditions, create, objects};
use crate::recipes;

const KUEUE: Neighbour = Neighbour {
    name: "kueue",
    module: "sigs.k8s.io/kueue",
    package: "sigs.k8s.io/kueue/cmd/kueue",
    certifies: true,
};

const ARGUMENTS: [&str; 2] = ["--check-plans", "--default-job-pod-failure-backoff=10ms"];
const GROUP: &str = "kueue.x-k8s.io/v1beta2";

/// Its configuration on loopback, where it is alone. Its server of queues' contents is left out.
fn configuration() -> Value {
    json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": false},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
        "integrations": {"frameworks": ["batch/job"]},
        "featureGates": {"VisibilityOnDemand": false},
    })
}

/// The queue: room for three pods on `spot`, and for none on `on-demand` yet.
fn cluster_queue(on_demand: u32) -> Value {
    let flavor = |name: &str, cpus: u32| {
        let resource = json!({"name": "cpu", "nominalQuota": cpus.to_string()});
        json!({"name": name, "resources": [resource]})
    };
    let flavors = [flavor("spot", 3), flavor("on-demand", on_demand)];
    json!({
        "apiVersion": GROUP, "kind": "ClusterQueue", "metadata": {"name": "team"},
        "spec": {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": flavors}],
        },
    })
}

async fn create_queue(bed: &Bed) -> Api<DynamicObject> {
    let flavor = |name: &str| {
        let toleration = json!({"key": "flavor", "operator": "Equal", "value": name,
                                "effect": "NoSchedule"});
        json!({"apiVersion": GROUP, "kind": "ResourceFlavor", "metadata": {"name": name},
               "spec": {"nodeLabels": {"flavor": name}, "tolerations": [toleration]}})
    };
    let priority = json!({"apiVersion": GROUP, "kind": "WorkloadPriorityClass",
                          "metadata": {"name": "urgent"}, "value": 100});
    let client = bed.client();
    for object in [flavor("spot"), flavor("on-demand"), priority, cluster_queue(0)] {
        create(&objects(client, &object, None), &object).await;
    }
    let local = json!({"apiVersion": GROUP, "kind": "LocalQueue", "metadata": {"name": "team-a"},
                       "spec": {"clusterQueue": "team"}});
    create(&objects(client, &local, Some(bed.namespace())), &local).await;
    objects(client, &cluster_queue(0), None)
}

/// The recipe's Job, of the queue. Its first three pods hang.
fn queued(name: &str) -> JobBuilder {
    let labels = json!({"kueue.x-k8s.io/queue-name": "team-a"});
    let job = recipes::job("kueue-job").metadata("name", name).metadata("labels", labels);
    job.script("hang times=3; succeed")
}

/// The flavors of the Job's pods that are active or have succeeded.
async fn flavors(bed: &Bed, job: &str) -> Vec<String> {
    let chosen = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        is_active(pod) || phase == Some("Succeeded")
    };
    let selector = |pod: Pod| pod.spec?.node_selector?.remove("flavor");
    bed.pods(job).await.into_iter().filter(chosen).filter_map(selector).collect()
}

/// Waits until Kueue's own record of the Job has this condition, `type reason`.
async fn workload_has(bed: &Bed, job: &str, condition: &str) {
    let kind = json!({"apiVersion": GROUP, "kind": "Workload"});
    let api = objects(bed.client(), &kind, Some(bed.namespace()));
    let all = async || {
        let all = api.list(&ListParams::default()).await.expect("the workloads").items;
        let owned = |it: &DynamicObject| {
            it.metadata.owner_references.iter().flatten().any(|owner| owner.name == job)
        };
        all.iter().filter(|it| owned(it)).flat_map(conditions).collect::<Vec<_>>()
    };
    let has = |all: &Vec<String>| all.iter().any(|it| it == condition);
    eventually(&format!("{job} is {condition}"), SOON, all, has).await;
}

/// What the plugin prints.
async fn plugin(stage: &Stage, arguments: &[&str]) -> String {
    let output = Command::new(program("kubectl-epilogue"))
        .args(arguments)
        .args(["-o", "json", "-n", stage.bed.namespace(), "--kubeconfig"])
        .arg(stage.control_plane.kubeconfig_path())
        .output()
        .await
        .expect("the program must be startable");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn is_running(bed: &Bed, job: &str) {
    bed.reaches(job, SOON, |state| state.ready == Some(3) && state.started).await;
}

/// The Job has no pods and was not failed; nothing says when it began.
async fn is_held(bed: &Bed, job: &str) {
    let stopped = |state: &JobState| {
        state.conditions == ["Suspended"]
            && state.active == 0
            && state.terminating.unwrap_or(0) == 0
    };
    let state = bed.reaches(job, SOON, stopped).await;
    assert_eq!((state.failed, state.succeeded, state.started), (0, 0, false), "{job}");
}

/// A Job is admitted, preempted and admitted elsewhere; others wait for their turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rare_kueue_admits_preempts_and_requeues_jobs_of_ours() {
    let stage = Stage::start(&KUEUE, &configuration(), &ARGUMENTS).await;
    let bed = &stage.bed;
    let queue = create_queue(bed).await;
    let ledger = Ledger::of(bed);

    bed.create(queued("queued")).await;
    is_running(bed, "queued").await;
    assert_eq!(flavors(bed, "queued").await, ["spot"; 3]);

    bed.create(queued("waiting").script("succeed")).await;
    is_held(bed, "waiting").await;
    let explained = plugin(&stage, &["explain", "job/waiting"]).await;
    assert!(explained.contains("job-suspended"), "{explained}");

    let labels = json!({"kueue.x-k8s.io/queue-name": "team-a",
                        "kueue.x-k8s.io/priority-class": "urgent"});
    bed.create(queued("urgent").metadata("labels", labels)).await;
    is_running(bed, "urgent").await;
    is_held(bed, "queued").await;
    workload_has(bed, "queued", "Evicted Preempted").await;
    assert!(bed.pods("queued").await.iter().all(|pod| !is_active(pod)));
    for job in ["queued", "waiting"] {
        let explained = plugin(&stage, &["explain", &format!("job/{job}")]).await;
        assert!(explained.contains("job-suspended"), "{explained}");
    }
    let found = plugin(&stage, &["doctor"]).await;
    assert!(!found.contains("\"waiting\"") && !found.contains("\"queued\""), "{found}");

    change(&queue, "team", json!({"spec": cluster_queue(3)["spec"]})).await;
    for job in ["queued", "waiting"] {
        let state = bed.finished(job, SOON).await;
        assert_eq!(state.conditions.last().map(String::as_str), Some("Complete"), "{job}");
        assert_eq!((state.succeeded, state.failed), (3, 0), "{job}");
        assert_eq!(flavors(bed, job).await, ["on-demand"; 3]);
        workload_has(bed, job, "Finished Succeeded").await;
    }
    admitted_in_part(bed).await;

    bed.delete("urgent", DeleteParams::background()).await;
    ledger.each_pod_counts_at_most_once();
    stage.stop().await;
}

/// Three of five pods have room, and the Job takes that. It completes six all the same.
async fn admitted_in_part(bed: &Bed) {
    let job = queued("partial").script("succeed").spec("parallelism", 5).spec("completions", 6);
    let least = json!({"kueue.x-k8s.io/job-min-parallelism": "2"});
    bed.create(job.metadata("annotations", least)).await;
    let state = bed.finished("partial", SOON).await;
    assert_eq!((state.succeeded, state.failed), (6, 0));
    let parallelism = bed.job("partial").await.spec.and_then(|spec| spec.parallelism);
    assert_eq!(parallelism, Some(3));
}
