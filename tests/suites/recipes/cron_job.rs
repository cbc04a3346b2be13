//! The CronJob of the recipe under kube-controller-manager's own CronJob controller, its Jobs under
//! ours. The test moves the schedule to minutes that have passed, and so waits for none.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use lab::bed::{Bed, JobState, SOON};
use lab::control_plane::flags::QUIET_CONTROLLERS;
use lab::nodes::{Bind, SCRIPT_ANNOTATION};
use lab::{ControlPlane, Options, eventually};
use serde_json::{Value, json};

use super::{ARGUMENTS, ending, only};

const NIGHTLY: &str = "nightly";

/// The CronJob, with the time of its last schedule that the test gave.
struct Nightly {
    bed: Bed,
    due: Timestamp,
}

impl Nightly {
    async fn patch(&self, patch: Value) {
        let (cron_jobs, params) = (self.bed.api::<CronJob>(), PatchParams::default());
        let changed = cron_jobs.patch(NIGHTLY, &params, &Patch::Merge(patch)).await;
        changed.expect("the CronJob is changed");
    }

    /// Creates it as in the recipe. Its last schedule is 20 minutes ago.
    async fn create() -> (ControlPlane, Self) {
        let controllers = format!("cronjob-controller,{QUIET_CONTROLLERS}");
        let options = Options::unique("recipes").controller_manager(&controllers);
        let control_plane = ControlPlane::start(options).await.expect("a control plane");
        let bed = Bed::on(control_plane.cluster(), &ARGUMENTS, Bind::RoundRobin).await;
        let cron_job = serde_json::from_value(only("cron-job")).expect("a CronJob");
        let cron_jobs = bed.api::<CronJob>();
        cron_jobs.create(&PostParams::default(), &cron_job).await.expect("it is created");
        let due = Timestamp::now() - SignedDuration::from_mins(20);
        let status = Patch::Merge(json!({"status": {"lastScheduleTime": due.to_string()}}));
        let status = cron_jobs.patch_status(NIGHTLY, &PatchParams::default(), &status).await;
        status.expect("the status is changed");
        (control_plane, Self { bed, due })
    }

    /// The script of the pods of Jobs to come.
    async fn script(&self, script: &str) {
        let annotations = json!({"annotations": {SCRIPT_ANNOTATION: script}});
        let template = json!({"template": {"metadata": annotations}});
        self.patch(json!({"spec": {"jobTemplate": {"spec": template}}})).await;
    }

    /// Moves the schedule to the minute after the last one. The controller waits after a change of
    /// the schedule alone, and acts after any other change.
    async fn becomes_due(&mut self) {
        self.due += SignedDuration::from_mins(1);
        let schedule = self.due.strftime("%M * * * *").to_string();
        self.patch(json!({"spec": {"schedule": schedule}})).await;
        let due = self.due.to_string();
        self.patch(json!({"metadata": {"annotations": {"lab.epilogue.dev/due": due}}})).await;
    }

    /// The names of its Jobs in the order of their minutes.
    async fn jobs(&self) -> Vec<String> {
        let jobs = self.bed.api::<Job>().list(&ListParams::default()).await.expect("the Jobs");
        let mut names: Vec<String> =
            jobs.items.into_iter().filter_map(|job| job.metadata.name).collect();
        names.sort();
        names
    }

    async fn jobs_are(&self, what: &str, holds: impl Fn(&[String]) -> bool) -> Vec<String> {
        eventually(what, SOON, async || self.jobs().await, |names| holds(names)).await
    }

    async fn runs(&self, job: &str) {
        self.bed.reaches(job, SOON, |state| state.ready == Some(1)).await;
    }

    async fn completes(&self, job: &str) {
        let state = self.bed.finished(job, SOON).await;
        assert_eq!(ending(&state), (Some("Complete"), 1, 0), "{job}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cron_jobs_jobs_are_ours_and_its_policies_hold() {
    let (control_plane, mut nightly) = Nightly::create().await;

    nightly.script("disrupt times=1; succeed").await;
    nightly.becomes_due().await;
    let first = nightly.jobs_are("a Job", |names| names.len() == 1).await.remove(0);
    let spec = nightly.bed.job(&first).await.spec.expect("a spec");
    assert_eq!(spec.managed_by.as_deref(), Some("epilogue.dev/job-controller"));
    nightly.completes(&first).await;

    // Forbid: the next Job waits until the active one is gone.
    nightly.script("hang").await;
    nightly.becomes_due().await;
    let names = nightly.jobs_are("a second Job", |names| names.len() == 2).await;
    let second = names[1].clone();
    nightly.runs(&second).await;
    nightly.becomes_due().await;
    nightly.bed.events_say(NIGHTLY, "JobAlreadyActive").await;
    assert_eq!(nightly.jobs().await, names);
    nightly.bed.delete(&second, DeleteParams::foreground()).await;
    let is_next = |names: &[String]| names.len() == 2 && !names.contains(&second);
    let third = nightly.jobs_are("the Job that waited", is_next).await[1].clone();
    nightly.runs(&third).await;

    // Replace: the active Job is deleted, its pods go, and the next one begins.
    nightly.patch(json!({"spec": {"concurrencyPolicy": "Replace"}})).await;
    nightly.script("succeed").await;
    nightly.becomes_due().await;
    let is_newest =
        |names: &[String]| names.len() == 1 && !names.contains(&first) && !names.contains(&third);
    // The recipe keeps one successful Job.
    let fourth = nightly.jobs_are("one Job, the newest", is_newest).await.remove(0);
    nightly.completes(&fourth).await;

    nightly.script("hang").await;
    nightly.becomes_due().await;
    let names = nightly.jobs_are("a last Job", |names| names.len() == 2).await;
    nightly.runs(&names[1]).await;
    let cron_jobs = nightly.bed.api::<CronJob>();
    cron_jobs.delete(NIGHTLY, &DeleteParams::foreground()).await.expect("it is deleted");
    let left = async || {
        let pods = nightly.bed.api::<Pod>().list(&ListParams::default()).await.expect("pods");
        let exists = cron_jobs.get_opt(NIGHTLY).await.expect("an answer").is_some();
        (exists, nightly.jobs().await.len(), pods.items.len())
    };
    eventually("nothing is left", SOON, left, |left| *left == (false, 0, 0)).await;
    nightly.bed.stop().await;
    control_plane.stop().await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_jobs_beyond_the_limit_of_the_history_go() {
    let (control_plane, mut nightly) = Nightly::create().await;
    nightly.script("fail exit=1").await;
    let mut last = String::new();
    for _ in 0..2 {
        nightly.becomes_due().await;
        let is_new = |names: &[String]| names.last().is_some_and(|name| *name != last);
        let new = nightly.jobs_are("another Job", is_new).await.pop().expect("a Job");
        let state = nightly.bed.reaches(&new, SOON, JobState::is_finished).await;
        assert_eq!(ending(&state), (Some("Failed"), 0, 3), "two retries");
        last = new;
    }
    nightly.jobs_are("one failed Job", |names| names.len() == 1 && names[0] == last).await;
    nightly.bed.stop().await;
    control_plane.stop().await.expect("it stops");
}
