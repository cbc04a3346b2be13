//! Tests that a cluster can come to this project and leave it with 50 Jobs in the middle of
//! everything: Jobs that name our controller leave by `kubectl epilogue leave`, all others come
//! from kube-controller-manager and go back to it. Each pod that ends counts once.

mod jobs;
mod ledger;
mod stage;

use lab::bed::JobState;
use serde_json::json;

use jobs::{KINDS, Kind, OF_EACH, each, name};
use stage::{LATER, Stage, names};

const OURS: &str = "epilogue.dev/job-controller";

/// Kinds that are suspended, and those of them that go on later.
fn unfinished() -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|kind| !matches!(kind.name, "fail-job" | "deleted"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_jobs_that_name_us_are_suspended_then_drained() {
    let mut stage = Stage::start(&["--default-job-pod-failure-backoff=10ms"]).await;
    each(async |kind, number| {
        stage.create(kind.job(number, kind.steady).spec("managedBy", OURS)).await;
    })
    .await;
    stage.each_reaches("the middle", |kind, state| (kind.in_the_middle)(state)).await;
    stage.disturb().await;

    let (code, answer) = stage.leave(&["--suspend", "--scope=jobs"]).await;
    let stopped = unfinished().count() * OF_EACH;
    let changed = answer["changed"].as_array().expect("a list").len();
    // The Jobs that were suspended from the beginning are so already.
    assert_eq!((code, changed), (1, stopped - OF_EACH), "{answer:#}");
    assert_eq!(names(&answer, "job-left-suspended").len(), stopped, "{answer:#}");
    let still = stage.count(|job| job.active > 0).await;
    assert_eq!(still, 0, "no suspended Job has active pods");
    stage.counts_are_exact().await;

    let resumed = unfinished().filter(|kind| kind.name != "suspended");
    for kind in resumed {
        stage.resume(kind).await;
    }
    let (code, answer) = stage.leave(&["--drain", "--scope=jobs", "--timeout=2m"]).await;
    assert_eq!(names(&answer, "job-left-active"), [""; 0], "{answer:#}");
    assert_eq!(names(&answer, "job-left-suspended").len(), OF_EACH, "{answer:#}");
    assert_eq!(code, 1, "suspended Jobs are left");
    stage.delete("suspended").await;
    stage.totals_are_as_expected(|kind| kind.name != "suspended").await;
    stage.counts_are_exact().await;
    stage.stop_controller().await;
    finalizers_are_handed_back(&mut stage).await;
    stage.stop().await;
}

/// Our controller is gone. kube-controller-manager releases the pod whose Job is gone, and not the
/// one of a finished Job that names us; `leave` releases that one.
async fn finalizers_are_handed_back(stage: &mut Stage) {
    let finished = name("plain", 0);
    let running = stage.create_job_without_controller("running").await;
    stage.planted("of-gone", "gone", Some("6a1f0f3e-0000-4000-8000-000000000000")).await;
    stage.planted("of-finished", &finished, None).await;
    stage.planted("of-running", &running, None).await;
    stage.start_job_controller();
    stage.reaches_held(&["of-finished", "of-running"]).await;

    let (code, answer) = stage.leave(&["--scope=jobs"]).await;
    let held = |code: &str| names(&answer, code);
    assert_eq!(held("finalizer-left"), [stage.pod("of-finished")]);
    assert_eq!(held("finalizer-kept"), [stage.pod("of-running")]);
    assert_eq!(code, 1);
    let (_, answer) = stage.leave(&["--release-finalizers", "--dry-run=server"]).await;
    assert_eq!(answer["changed"], json!([stage.pod("of-finished")]));
    stage.reaches_held(&["of-finished", "of-running"]).await;
    stage.leave(&["--release-finalizers"]).await;
    stage.reaches_held(&["of-running"]).await;

    // Given up, the last Job needs no controller of ours.
    stage.delete("running").await;
    stage.reaches_held(&[]).await;
    let (code, answer) = stage.leave(&["--scope=jobs"]).await;
    assert_eq!((code, &answer["left"]), (0, &json!([])), "{answer:#}");
    let (code, answer) = stage.leave(&[]).await;
    assert_eq!(code, 1, "the rights are still installed");
    assert!(names(&answer, "installation-left").len() > 3, "{answer:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_jobs_of_kube_controller_manager_go_on_under_ours_and_back() {
    let flags = ["--manage-all-jobs", "--default-job-pod-failure-backoff=500ms"];
    let mut stage = Stage::set().await;
    stage.start_job_controller();
    each(async |kind, number| stage.create(kind.job(number, kind.brisk)).await).await;
    stage.some_pods_ended(OF_EACH).await;
    // A queue of which one pod has succeeded gets no further pod, whoever runs it.
    let has_all = |state: &JobState| state.active + state.succeeded == 3;
    stage.each_reaches("queues", |kind, state| kind.name != "queue" || has_all(state)).await;
    stage.kill_job_controller().await;
    let open = stage.count(|job| job.active > 0 && !job.is_finished()).await;
    assert!(open > 2 * OF_EACH, "only {open} Jobs are in progress");
    stage.start_controller(&flags).await;
    stage.some_pods_ended(OF_EACH * KINDS.len()).await;
    let is_disturbed = |kind: &Kind| matches!(kind.name, "terminating" | "deleted");
    stage
        .each_reaches("pods to delete", |kind, state| {
            !is_disturbed(kind) || (kind.in_the_middle)(state)
        })
        .await;
    stage.disturb().await;

    // A pod that is counted between the lists of pods and of Jobs seems to be left. The code says
    // nothing yet.
    let (_, answer) = stage.leave(&["--manage-all-jobs", "--scope=jobs"]).await;
    assert_eq!(names(&answer, "finalizer-kept"), [""; 0], "{answer:#}");
    assert!(names(&answer, "job-handed-over").len() > OF_EACH, "{answer:#}");
    stage.stop_controller().await;
    let open = stage.count(|job| !job.is_finished()).await;
    assert!(open > OF_EACH, "only {open} Jobs are in progress");
    stage.start_job_controller();
    stage.resume(KINDS.iter().find(|kind| kind.name == "suspended").expect("a kind")).await;
    stage.each_finishes(LATER).await;
    stage.totals_are_as_expected(|_| true).await;
    stage.counts_are_exact().await;
    stage.leave(&["--manage-all-jobs", "--release-finalizers"]).await;
    stage.reaches_held(&[]).await;
    let (code, answer) = stage.leave(&["--manage-all-jobs", "--scope=jobs"]).await;
    assert_eq!((code, &answer["left"], &answer["stays"]), (0, &json!([]), &json!([])));
    stage.stop().await;
}
