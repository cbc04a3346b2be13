//! The manifests in `examples/` do what their first lines say, on nodes that play the workload.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use lab::bed::{Bed, JobBuilder, SOON};
use lab::eventually;
use lab::paths::workspace_root;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{NO_BACKOFF, bed};

/// Manifest, what its pods do, its last condition, succeeded and failed pods.
const EXAMPLES: [(&str, &str, &str, i32, i32); 8] = [
    ("plain", "succeed", "Complete", 6, 0),
    ("indexed", "succeed", "Complete", 5, 0),
    ("ignore-disruptions", "disrupt times=1; succeed", "Complete", 1, 0),
    ("fail-on-exit-code", "fail exit=42", "Failed", 0, 1),
    ("per-index", "index=3: fail exit=42", "Failed", 5, 1),
    ("replacement-failed", "disrupt times=1; succeed", "Complete", 1, 1),
    ("cron-job", "disrupt times=1; succeed", "Complete", 1, 0),
    ("all-annotations", "disrupt times=1; succeed", "Complete", 3, 0),
];

/// A Job out of a manifest; of a CronJob, one that it would create.
fn example(name: &str) -> JobBuilder {
    let path = workspace_root().join(format!("examples/{name}.yaml"));
    let text = std::fs::read_to_string(&path).expect("an example");
    let deserializer = serde_yaml_ng::Deserializer::from_str(&text);
    let manifest = Value::deserialize(deserializer).expect("one object");
    assert_eq!(manifest["metadata"]["name"], name, "named like its file");
    if manifest["kind"] == "Job" {
        return manifest.into();
    }
    assert_eq!(manifest["kind"], "CronJob");
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": manifest["spec"]["jobTemplate"]["spec"],
    })
    .into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn examples_end_as_they_say() {
    let bed = bed(&[NO_BACKOFF]).await;
    for (name, script, ..) in EXAMPLES {
        bed.create(example(name).script(script)).await;
    }
    for (name, _, condition, succeeded, failed) in EXAMPLES {
        let state = bed.finished(name, SOON).await;
        let last = state.conditions.last().map(String::as_str);
        let counts = (state.succeeded, state.failed);
        assert_eq!((last, counts), (Some(condition), (succeeded, failed)), "{name}");
    }
    bed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_of_an_oom_kill_and_of_a_pod_that_never_starts_fail() {
    let bed = bed(&[NO_BACKOFF]).await;
    bed.create(example("fail-on-oom").script("fail exit=137 after=3s")).await;
    let brief = json!({"epilogue.dev/pending-timeout": "2s"});
    let pending = example("pending-timeout").metadata("annotations", brief);
    bed.create(pending.script("waiting=ImagePullBackOff")).await;
    killed(&bed, "fail-on-oom").await;
    for name in ["fail-on-oom", "pending-timeout"] {
        let state = bed.finished(name, SOON).await;
        assert_eq!((state.succeeded, state.failed), (0, 1), "{name}");
        let conditions = bed.conditions(name).await;
        assert!(conditions[1].starts_with("Failed=True PodFailurePolicy"), "{conditions:?}");
    }
    bed.stop().await;
}

/// The condition that the node's agent sets.
async fn killed(bed: &Bed, job: &str) {
    let pods = async || bed.pods(job).await;
    let pods = eventually("the pod is there", SOON, pods, |pods| !pods.is_empty()).await;
    let condition = json!({"status": {"conditions": [{
        "type": "epilogue.dev/OOMKilled", "status": "True", "reason": "ContainerLimit",
    }]}});
    let (api, params): (Api<Pod>, _) = (bed.api(), PatchParams::default());
    let name = pods[0].metadata.name.as_deref().expect("a name");
    api.patch_status(name, &params, &Patch::Strategic(condition)).await.expect("the condition");
}

#[test]
fn every_example_is_played() {
    let files = std::fs::read_dir(workspace_root().join("examples")).expect("examples");
    // The suite `recipes` plays the directory of that name.
    let names = files.map(|file| file.expect("a file").path()).filter(|path| path.is_file());
    let names: BTreeSet<String> =
        names.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect();
    let played = EXAMPLES.map(|(name, ..)| name);
    let played = played.into_iter().chain(["fail-on-oom", "pending-timeout"]);
    assert_eq!(names, played.map(str::to_owned).collect());
}
