//! Runs one sync of a Job: takes a snapshot, plans, carries out the steps, and records the side
//! effects.

use std::sync::Arc;
use std::time::Duration;

use controller_core::job::{
    MetricEvent, PodPlan, Progress, Settings, SideEffect, SkipReason, SyncInput, SyncResult,
    plan_pods,
};
use controller_core::state::Snapshot;
use controller_core::view::{Job, JobKey};
use epilogue_runtime::clock::Clock;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::Instant;

use crate::dispatch::Dispatch;
use crate::events::Recorder;
use crate::execute::Executor;
use crate::metrics::Metrics;
use crate::workqueue::{Process, Queue};

/// Returns what is wrong with the plan for an input.
pub(crate) type Check = fn(&SyncInput<'_>) -> Result<(), String>;

/// Dependencies of a sync.
#[derive(Debug)]
pub(crate) struct Syncer {
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) metrics: Metrics,
    pub(crate) settings: Settings,
    /// Checks each plan before it is carried out (`--check-plans`).
    pub(crate) check: Option<Check>,
    pub(crate) clock: Clock,
}

impl Process<JobKey> for Syncer {
    async fn process(&self, _: &Queue<JobKey>, key: &JobKey) {
        let started = Instant::now();
        // The delete event has removed the memory. ([S2])
        let Some(snapshot) = self.dispatch.input(key) else {
            self.dispatch.forget(key);
            return;
        };
        let plan = self.plan(&snapshot);
        let skip = plan.skip;
        let sync_result = self.carry_out(plan).await;
        let took = started.elapsed();
        match skip {
            None => {
                let ok = sync_result.result.is_ok();
                self.metrics.synced(&snapshot.job, ok, sync_result.action, took);
                self.dispatch.synced(key, took);
            }
            Some(SkipReason::Stale) => self.skip(&snapshot),
            Some(_) => {}
        }
        self.conclude(&snapshot.job, sync_result);
    }
}

impl Syncer {
    fn plan(&self, snapshot: &Snapshot) -> PodPlan {
        let input = SyncInput {
            job: &snapshot.job,
            pods: &snapshot.pods,
            memory: &snapshot.memory,
            seen: snapshot.seen,
            now: self.clock.now(),
            settings: &self.settings,
            counts_max: snapshot.counts_max,
        };
        let plan = plan_pods(&input);
        let (job, uid) = (&snapshot.job.key, &snapshot.job.uid);
        tracing::debug!(%job, %uid, %plan, "planned");
        // A skipped plan is not checked: its input may be outdated. ([S1], [S5])
        if let Some(check) = self.check
            && plan.skip.is_none()
            && let Err(problem) = check(&input)
        {
            tracing::error!(%job, %uid, problem, "the plan does not hold");
        }
        plan
    }

    /// Makes the calls of a plan, as many at once as the executor allows.
    async fn carry_out(&self, plan: PodPlan) -> SyncResult {
        let mut progress = Progress::new(plan, &self.settings);
        let mut unanswered = FuturesUnordered::new();
        loop {
            self.take_side_effects(&mut progress);
            let at_once = Executor::at_once(progress.job(), progress.creates());
            while unanswered.len() < at_once {
                let Some(call) = progress.next_call() else { break };
                let job = Arc::clone(progress.job());
                unanswered.push(async move {
                    let outcome = self.executor.execute(&job, &call.step).await;
                    (call, outcome)
                });
            }
            let Some((call, outcome)) = unanswered.next().await else { break };
            progress.done(&call, outcome);
        }
        progress.into_result()
    }

    fn take_side_effects(&self, progress: &mut Progress) {
        let side_effects = progress.take_side_effects();
        let job = progress.job();
        for side_effect in side_effects {
            match side_effect {
                SideEffect::Remember(change) => self.dispatch.remember(job, change),
                SideEffect::Event(event) => self.recorder.record(job, event),
                SideEffect::Count(metric_event) => {
                    if let MetricEvent::JobFinished { succeeded, reason } = &metric_event {
                        let (key, uid) = (&job.key, &job.uid);
                        tracing::info!(job = %key, %uid, succeeded, reason, "job finished");
                    }
                    self.metrics.count(job, &metric_event);
                }
            }
        }
    }

    /// Repeats the sync once the watches have caught up. ([S1])
    fn skip(&self, snapshot: &Snapshot) {
        let (written, seen) = (snapshot.memory.awaited(), snapshot.seen);
        if written.jobs > seen.jobs {
            self.metrics.stale("batch", "jobs");
        }
        if written.pods > seen.pods {
            self.metrics.stale("", "pods");
        }
        self.dispatch.await_versions(snapshot);
    }

    /// Retries a failed sync after its backoff; a success resets the backoff. ([Q5])
    fn conclude(&self, job: &Job, sync_result: SyncResult) {
        if let Some(wait) = sync_result.requeue_after {
            self.dispatch.wake_after(&job.key, Duration::try_from(wait).unwrap_or_default());
        }
        match sync_result.result {
            Ok(()) => self.dispatch.jobs.forget(&job.key),
            Err(failure) => {
                let retry = self.dispatch.jobs.add_failed(job.key.clone(), &failure);
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
