//! Kueue admits a Job, takes it back and admits it again. A double makes the writes of Kueue's
//! reconciler for `batch/v1` Jobs.

use k8s_openapi::api::batch::v1::Job;
use kube::api::{Patch, PatchParams};
use lab::bed::{Bed, JobState, SOON, is_active};
use lab::eventually;
use serde_json::{Value, json};

use super::{bed, ending, job};

const QUEUED: &str = "queued";

async fn patch(bed: &Bed, patch: Value) {
    let (jobs, params) = (bed.api::<Job>(), PatchParams::default());
    jobs.patch(QUEUED, &params, &Patch::Merge(patch)).await.expect("the Job is changed");
}

/// Admission: one write resumes the Job and says where its pods may run.
async fn admit(bed: &Bed, flavor: &str) {
    let toleration = json!({"key": "flavor", "operator": "Equal", "value": flavor,
                            "effect": "NoSchedule"});
    let pod = json!({"nodeSelector": {"flavor": flavor}, "tolerations": [toleration]});
    patch(bed, json!({"spec": {"suspend": false, "template": {"spec": pod}}})).await;
}

/// Preemption, in the order of Kueue: suspend, reset the start time, restore the template.
async fn stop(bed: &Bed) {
    let stopping = |value: Value| json!({"kueue.x-k8s.io/stopping": value});
    patch(
        bed,
        json!({"metadata": {"annotations": stopping(json!("true"))},
                      "spec": {"suspend": true}}),
    )
    .await;
    let reset = Patch::Merge(json!({"status": {"startTime": null}}));
    let reset = bed.api::<Job>().patch_status(QUEUED, &PatchParams::default(), &reset).await;
    reset.expect("the start time is reset");
    let pod = json!({"nodeSelector": null, "tolerations": null});
    let restored = Patch::Merge(json!({
        "metadata": {"annotations": stopping(Value::Null)},
        "spec": {"template": {"spec": pod}},
    }));
    // The API takes the template once the status says Suspended. Kueue's reconciler tries again.
    let restore = async || {
        let restored = bed.api::<Job>().patch(QUEUED, &PatchParams::default(), &restored).await;
        restored.map(drop).map_err(|error| error.to_string())
    };
    eventually("the template is restored", SOON, restore, Result::is_ok)
        .await
        .expect("only an accepted write ends the wait");
}

/// What Kueue reads to free a part of the quota: the pods that are no longer needed.
fn reclaimable(job: &Job) -> i32 {
    let (spec, state) = (job.spec.clone().unwrap_or_default(), JobState::of(job));
    let parallelism = spec.parallelism.unwrap_or(1);
    let remaining = spec.completions.unwrap_or(parallelism) - state.succeeded;
    (parallelism - remaining).max(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_admitted_preempted_and_admitted_elsewhere() {
    let bed = bed().await;
    bed.create(job("kueue-job").script("hang")).await;
    let state = bed.reaches(QUEUED, SOON, |state| state.conditions == ["Suspended"]).await;
    assert!(!state.started && bed.pods(QUEUED).await.is_empty(), "{state:?}");

    admit(&bed, "spot").await;
    // PodsReady of Kueue: all pods are ready or have succeeded.
    bed.reaches(QUEUED, SOON, |state| state.ready == Some(3) && state.started).await;
    let flavors = |pods: &[k8s_openapi::api::core::v1::Pod]| -> Vec<String> {
        let active = pods.iter().filter(|pod| is_active(pod));
        let selectors = active.filter_map(|pod| pod.spec.as_ref()?.node_selector.clone());
        selectors.filter_map(|mut selector| selector.remove("flavor")).collect()
    };
    assert_eq!(flavors(&bed.pods(QUEUED).await), ["spot"; 3]);

    stop(&bed).await;
    // Kueue frees the quota once no pod is active.
    let stopped = |state: &JobState| state.active == 0 && state.terminating.unwrap_or(0) == 0;
    let state = bed.reaches(QUEUED, SOON, stopped).await;
    assert_eq!((state.conditions.as_slice(), state.failed), (&["Suspended".to_owned()][..], 0));
    assert!(!state.started, "the start time stays empty while the Job is suspended");

    patch(
        &bed,
        json!({"spec": {"template": {"metadata": {"annotations": {
        lab::nodes::SCRIPT_ANNOTATION: "succeed"}}}}}),
    )
    .await;
    admit(&bed, "on-demand").await;
    let state = bed.finished(QUEUED, SOON).await;
    assert_eq!(ending(&state), (Some("Complete"), 3, 0));
    assert_eq!(reclaimable(&bed.job(QUEUED).await), 3);
    bed.stop().await;
}
