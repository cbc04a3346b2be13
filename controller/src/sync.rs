//! One sync of a Job: snapshot, plan, steps, and what is to be remembered, told and counted on
//! the way. (spec §5)

use std::sync::Arc;
use std::time::Duration;

use controller_core::job::{
    Conclusion, Idle, Note, Plan, Progress, Settings, StepOutcome, SyncInput, Tally, plan,
};
use controller_core::view::{Job, JobKey};
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::dispatch::Dispatch;
use crate::events::Recorder;
use crate::execute::Executor;
use crate::metrics::Metrics;
use crate::stores::{Snapshot, Stores};

/// Says what is wrong with the plan for an input.
pub(crate) type Check = fn(&SyncInput<'_>) -> Result<(), String>;

/// Everything that a sync works with.
#[derive(Debug)]
pub(crate) struct Syncer {
    pub(crate) stores: Arc<Stores>,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) metrics: Metrics,
    pub(crate) settings: Settings,
    /// Looks at each plan before it is carried out (`--check-plans`).
    pub(crate) check: Option<Check>,
}

impl Syncer {
    /// Syncs one Job after the other until the end is asked for; what has begun is ended.
    pub(crate) async fn work(&self, token: CancellationToken) {
        while let Some(key) = self.dispatch.jobs.take(&token).await {
            self.sync(&key).await;
            self.dispatch.jobs.done(&key);
        }
    }

    async fn sync(&self, key: &JobKey) {
        let started = Instant::now();
        // [S2]: memory went with the delete event.
        let Some(snapshot) = self.stores.snapshot(key) else {
            self.dispatch.forget(key);
            return;
        };
        let plan = self.plan(&snapshot);
        let idle = plan.idle;
        let conclusion = self.carry_out(plan, Arc::clone(&snapshot.job)).await;
        let took = started.elapsed();
        match idle {
            None => {
                let ok = conclusion.result.is_ok();
                self.metrics.synced(&snapshot.job, ok, conclusion.action, took);
                self.dispatch.synced(key, took);
            }
            Some(Idle::Stale) => self.skip(&snapshot),
            Some(_) => {}
        }
        self.conclude(&snapshot.job, conclusion);
    }

    fn plan(&self, snapshot: &Snapshot) -> Plan {
        let input = SyncInput {
            job: &snapshot.job,
            pods: &snapshot.pods,
            memory: &snapshot.memory,
            seen: snapshot.seen,
            now: Timestamp::now(),
            settings: &self.settings,
        };
        let plan = plan(&input);
        let (job, uid) = (&snapshot.job.key, &snapshot.job.uid);
        tracing::debug!(%job, %uid, %plan, "planned");
        // An idle plan may be so because what it was made from is the past. ([S1], [S5])
        if let Some(check) = self.check
            && plan.idle.is_none()
            && let Err(problem) = check(&input)
        {
            tracing::error!(%job, %uid, problem, "the plan does not hold");
        }
        plan
    }

    async fn carry_out(&self, plan: Plan, mut job: Arc<Job>) -> Conclusion {
        let mut progress = Progress::new(plan, &self.settings);
        while let Some(step) = progress.next_step() {
            self.take_notes(&mut progress, &job);
            let outcome = self.executor.execute(&job, step).await;
            // The next write goes on from what this one made of the Job.
            if let StepOutcome::Status(written) = &outcome
                && let Ok(written) = &**written
            {
                job = Arc::clone(written);
            }
            progress.done(outcome);
        }
        self.take_notes(&mut progress, &job);
        progress.conclude()
    }

    fn take_notes(&self, progress: &mut Progress, job: &Arc<Job>) {
        for note in progress.take_notes() {
            match note {
                Note::Remember(change) => self.stores.remember(job, change, Timestamp::now()),
                Note::Event(event) => self.recorder.record(job, event),
                Note::Count(tally) => {
                    if let Tally::JobFinished { succeeded, reason } = &tally {
                        let (key, uid) = (&job.key, &job.uid);
                        tracing::info!(job = %key, %uid, succeeded, reason, "job finished");
                    }
                    self.metrics.count(job, &tally);
                }
            }
        }
    }

    /// [S1]: the sync comes again as soon as the watches have caught up.
    fn skip(&self, snapshot: &Snapshot) {
        let (written, seen) = (snapshot.memory.awaited(), snapshot.seen);
        if written.jobs > seen.jobs {
            self.metrics.stale("batch", "jobs");
        }
        if written.pods > seen.pods {
            self.metrics.stale("", "pods");
        }
        let reaction = self.stores.await_versions(snapshot.job.key.clone(), written);
        self.dispatch.dispatch(reaction);
    }

    /// [Q5]
    fn conclude(&self, job: &Job, conclusion: Conclusion) {
        if let Some(wait) = conclusion.requeue_after {
            self.dispatch.wake_after(&job.key, Duration::try_from(wait).unwrap_or_default());
        }
        match conclusion.result {
            Ok(()) => self.dispatch.jobs.forget(&job.key),
            Err(failure) => {
                let retry = self.dispatch.jobs.add_failed(job.key.clone());
                tracing::info!(
                    job = %job.key,
                    uid = %job.uid,
                    error = %failure,
                    kind = ?failure.kind,
                    retry_s = retry.as_secs_f64(),
                    "sync failed"
                );
            }
        }
    }
}
