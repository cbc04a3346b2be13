//! Tests what the API's documentation promises and kube-controller-manager does not hold.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use lab::bed::{Bed, SOON, job};
use serde_json::{Value, json};

use super::{NO_BACKOFF, bed};

/// Writes the status of a pod as its kubelet does.
async fn write_status(bed: &Bed, pod: &str, status: Value) {
    let patch = Patch::Strategic(json!({"status": status}));
    let pods = bed.api::<Pod>();
    pods.patch_status(pod, &PatchParams::default(), &patch).await.expect("the status is written");
}

/// The names of a container's variables, in order.
fn variables(pod: &Value, list: &str, at: usize) -> Vec<String> {
    let env = pod["spec"][list][at]["env"].as_array().cloned().unwrap_or_default();
    env.iter().filter_map(|each| each["name"].as_str().map(str::to_owned)).collect()
}

/// A controller that waits so long for further changes of pods looks after the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_was_done_before_the_deadline_completes_the_job() {
    let bed = bed(&["--sync-job-batch-period=16s"]).await;
    let due = |name: &str| job(name).spec("activeDeadlineSeconds", 10);
    bed.create(due("in-time").script("succeed after=1s")).await;
    let rules = json!({"rules": [{"succeededIndexes": "0"}]});
    bed.create(
        due("led")
            .indexed(2)
            .spec("successPolicy", rules)
            .script("index=0: succeed after=1s; index=1: fail after=1s"),
    )
    .await;
    bed.create(due("late").script("succeed after=13s")).await;
    for (name, reason) in [("in-time", "CompletionsReached"), ("led", "SuccessPolicy")] {
        let state = bed.finished(name, SOON).await;
        assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"], "{name}");
        assert!(bed.conditions(name).await[1].starts_with(&format!("Complete=True {reason}: ")));
    }
    assert_eq!(bed.finished("late", SOON).await.conditions, ["FailureTarget", "Failed"]);
    // No batch delays the first sync. ([H1])
    let job = bed.job("in-time").await;
    let created = job.metadata.creation_timestamp.expect("a Job was created").0;
    let started = job.status.and_then(|status| status.start_time).expect("it has started").0;
    assert!(started.duration_since(created).as_secs() < 9, "{created} {started}");
    bed.stop().await;
}

/// A change of the spec is not one that waits. ([H2])
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_job_is_synced_at_once() {
    let bed = bed(&["--sync-job-batch-period=30s"]).await;
    bed.create(job("grows").spec("parallelism", 1).spec("completions", 2).script("hang")).await;
    bed.pods_reach("grows", <[Pod]>::len, |count| *count == 1).await;
    let begun = std::time::Instant::now();
    bed.change("grows", json!({"parallelism": 2})).await;
    bed.pods_reach("grows", <[Pod]>::len, |count| *count == 2).await;
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_work_queue_with_a_success_does_not_fail_by_a_later_failure() {
    let bed = bed(&[NO_BACKOFF]).await;
    let queue = |name: &str| {
        job(name)
            .spec("parallelism", 3)
            .spec("completions", json!(null))
            .spec("backoffLimit", 0)
            .script("succeed after=1s times=1; fail after=4s times=1; succeed after=9s")
    };
    let codes = json!({"operator": "In", "values": [1]});
    let rule = json!({"action": "FailJob", "onExitCodes": codes});
    bed.create(queue("queue")).await;
    bed.create(queue("strict").spec("podFailurePolicy", json!({"rules": [rule]}))).await;
    let state = bed.finished("queue", SOON).await;
    assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"]);
    assert_eq!((state.succeeded, state.failed), (2, 1));
    bed.pods_are_released("queue", 3).await;
    let strict = bed.finished("strict", SOON).await;
    assert_eq!(strict.conditions, ["FailureTarget", "Failed"]);
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_can_use_the_index() {
    let bed = bed(&[]).await;
    let shard = json!({"name": "SHARD", "value": "part-$(JOB_COMPLETION_INDEX)"});
    let own = json!({"name": "JOB_COMPLETION_INDEX", "value": "mine"});
    let with = |name: &str, env: Value| json!({"name": name, "image": "none", "env": env});
    bed.create(
        job("shard")
            .indexed(2)
            .pod("containers", json!([with("main", json!([shard])), with("own", json!([own]))]))
            .pod("initContainers", json!([with("first", json!([shard])), with("bare", json!([]))])),
    )
    .await;
    bed.finished("shard", SOON).await;
    let index = "JOB_COMPLETION_INDEX";
    for pod in bed.pods("shard").await {
        let pod = serde_json::to_value(pod).expect("a pod is JSON");
        assert_eq!(variables(&pod, "containers", 0), [index, "SHARD"]);
        assert_eq!(pod["spec"]["containers"][1]["env"], json!([own]));
        assert_eq!(variables(&pod, "initContainers", 0), [index, "SHARD"]);
        assert_eq!(variables(&pod, "initContainers", 1), [index]);
    }
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_exit_code_of_a_sidecar_decides_nothing_where_main_has_failed() {
    let bed = bed(&[NO_BACKOFF]).await;
    let codes = json!({"operator": "NotIn", "values": [42]});
    let rule = json!({"action": "FailJob", "onExitCodes": codes});
    let proxy = json!([{"name": "proxy", "image": "none", "restartPolicy": "Always"}]);
    bed.create(
        job("etl")
            .spec("podFailurePolicy", json!({"rules": [rule]}))
            .pod("initContainers", proxy)
            .script("pending times=1; succeed"),
    )
    .await;
    bed.pods_reach("etl", <[Pod]>::len, |count| *count == 1).await;
    let pod = bed.pods("etl").await.remove(0).metadata.name.expect("a pod has a name");
    let ended = |name: &str, code: i32| {
        json!([{"name": name, "image": "none", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": code}}}])
    };
    let status = json!({"phase": "Failed", "containerStatuses": ended("main", 42),
                        "initContainerStatuses": ended("proxy", 143)});
    write_status(&bed, &pod, status).await;
    let state = bed.finished("etl", SOON).await;
    assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"]);
    assert_eq!((state.succeeded, state.failed), (1, 1));
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_its_kubelet_rejected_is_a_disruption_target() {
    let bed = bed(&[NO_BACKOFF]).await;
    let rule = json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]});
    let rejected = |name: &str, reason: &str| {
        job(name)
            .spec("backoffLimit", 0)
            .spec("podFailurePolicy", json!({"rules": [rule]}))
            .script(&format!("reject={reason} times=1; succeed"))
    };
    let of_nodes = [
        ("device", "UnexpectedAdmissionError"),
        ("cpu", "OutOfcpu"),
        ("pods", "OutOfpods"),
        ("label", "NodeAffinity"),
        ("down", "NodeShutdown"),
    ];
    for (name, reason) in of_nodes {
        bed.create(rejected(name, reason)).await;
    }
    bed.create(rejected("sysctl", "SysctlForbidden")).await;
    for (name, reason) in of_nodes {
        let state = bed.finished(name, SOON).await;
        assert_eq!(state.conditions, ["SuccessCriteriaMet", "Complete"], "{name}");
        assert_eq!((state.succeeded, state.failed), (1, 0), "{name}");
        let targets: Vec<_> = bed.pods(name).await.into_iter().filter_map(target).collect();
        let message = format!("the kubelet rejected the pod: {reason}");
        assert_eq!(targets, [("RejectedByKubelet".to_owned(), message)], "{name}");
        bed.pods_are_released(name, 2).await;
    }
    let own = bed.finished("sysctl", SOON).await;
    assert_eq!((own.conditions, own.failed), (vec!["FailureTarget".into(), "Failed".into()], 1));
    assert_eq!(bed.pods("sysctl").await.into_iter().filter_map(target).count(), 0);
    bed.stop().await;
}

/// Reason and message of a pod's DisruptionTarget.
fn target(pod: Pod) -> Option<(String, String)> {
    let conditions = pod.status?.conditions?;
    let target = conditions.into_iter().find(|each| each.type_ == "DisruptionTarget")?;
    Some((target.reason.unwrap_or_default(), target.message.unwrap_or_default()))
}
