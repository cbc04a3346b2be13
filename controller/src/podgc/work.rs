//! Runs the workers of pod GC: each checks one item, carries out the verdict and records the
//! outcome.

use std::sync::Arc;
use std::time::Duration;

use controller_core::podgc::{Item, PodWrite, Priority, Verdict};
use epilogue_common::names::job_option::FORCE_FAIL_AFTER;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use jiff::Timestamp;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::events::{event, would_event};
use super::execute::Executor;
use super::{Metrics, PodGc};
use crate::dispatch::Dispatch;

/// A verdict that asks for a node is followed by another verdict.
const VERDICTS_MAX: usize = 3;

/// Dependencies of a check.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) gc: Arc<PodGc>,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) executor: Executor,
    pub(crate) metrics: Metrics,
    /// Identity of this process in events.
    pub(crate) instance: String,
}

impl Worker {
    /// Works on one queue until `token` is cancelled; an item in progress is completed.
    pub(crate) async fn work(&self, priority: Priority, token: CancellationToken) {
        let queue = self.gc.queue(priority);
        while let Some(item) = queue.take(&token).await {
            match self.check(priority, &item).await {
                Ok(()) => queue.forget(&item),
                Err(failure) => {
                    let retry = queue.add_failed(item.clone());
                    log(&item, &failure, retry);
                }
            }
            queue.done(&item);
        }
    }

    /// Checks one item, and carries out the verdict.
    pub(super) async fn check(&self, priority: Priority, item: &Item) -> Outcome<()> {
        for _ in 0..VERDICTS_MAX {
            match self.verdict(item) {
                Verdict::Leave => return Ok(()),
                Verdict::CheckAgain(at) => {
                    let wait = Duration::try_from(at.duration_since(Timestamp::now()));
                    self.gc.queue(priority).add_after(item.clone(), wait.unwrap_or_default());
                    return Ok(());
                }
                Verdict::Ask(name) => {
                    let exists = self.executor.node_exists(&name).await?;
                    tracing::info!(node = &*name, exists, "asked for a node that is not watched");
                    let now = Timestamp::now();
                    let wakes = self.gc.cluster.lock().node_answered(&name, exists, now);
                    self.gc.wake(wakes);
                }
                Verdict::Untaint(_) if self.gc.observes() => return Ok(()),
                Verdict::Untaint(name) => return self.untaint(&name).await,
                Verdict::Do(write) if self.gc.observes() => {
                    self.observe(&write).await;
                    return Ok(());
                }
                Verdict::Do(write) => {
                    let result = self.carry_out(&write).await;
                    let wakes = self.gc.cluster.lock().pod_done(&write.uid, Timestamp::now());
                    // After a failure the backoff applies instead.
                    if result.is_ok() {
                        self.gc.wake(wakes);
                    }
                    return result;
                }
            }
        }
        Ok(())
    }

    fn verdict(&self, item: &Item) -> Verdict {
        let now = Timestamp::now();
        let mut cluster = self.gc.cluster.lock();
        match item {
            Item::Node(name) => cluster.check_node(name, now),
            Item::Pod(_, uid) => {
                let job = cluster.pod(uid).and_then(|pod| {
                    let owner = pod.owner.as_ref().filter(|_| pod.deletion.is_some())?;
                    self.dispatch.job_annotation(&pod.namespace, owner, FORCE_FAIL_AFTER)
                });
                // Without a write, nothing is in progress that later checks would wait for.
                if self.gc.observes() {
                    return cluster.verdict_on(uid, job.as_deref(), now);
                }
                cluster.check_pod(uid, job.as_deref(), now)
            }
            Item::Excess => {
                let wakes = cluster.check_excess();
                drop(cluster);
                self.gc.wake(wakes);
                Verdict::Leave
            }
        }
    }

    /// Reports a write in place of carrying it out, once.
    async fn observe(&self, write: &PodWrite) {
        if !self.gc.is_new(write) {
            return;
        }
        self.metrics.would_have(write);
        tracing::info!(
            pod = format!("{}/{}", write.namespace, write.name),
            uid = %write.uid,
            reason = write.cause.label(),
            cause = %write.cause,
            "would be carried out, but --pod-gc=observe"
        );
        let event = would_event(write, &self.instance, Timestamp::now());
        self.send(write, &event).await;
    }

    async fn untaint(&self, name: &str) -> Outcome<()> {
        if self.executor.untaint(name).await? {
            tracing::info!(node = name, "removed the taint that an agent left behind");
            self.metrics.untainted();
        }
        Ok(())
    }

    async fn carry_out(&self, write: &PodWrite) -> Outcome<()> {
        let result = match self.write(write).await {
            // The pod is already gone; the watch has not shown it yet.
            Err(failure) if failure.kind == FailureKind::NotFound => {
                self.gc.cluster.lock().pod_deleted(&write.uid);
                return Ok(());
            }
            result => result,
        };
        self.metrics.count(write, result.is_ok());
        result?;
        tracing::info!(
            pod = format!("{}/{}", write.namespace, write.name),
            uid = %write.uid,
            reason = write.cause.label(),
            cause = %write.cause,
            deleted = write.delete,
            "carried out"
        );
        self.report(write).await;
        Ok(())
    }

    async fn write(&self, write: &PodWrite) -> Outcome<()> {
        if let Some(patch) = &write.patch {
            let version = self.executor.patch(write, patch).await?;
            self.gc.cluster.lock().pod_written(&write.uid, &write.cause, version);
        }
        if write.delete {
            self.executor.delete(write).await?;
            self.gc.cluster.lock().pod_deleted(&write.uid);
        }
        Ok(())
    }

    /// A lost event is not retried: it is news and not state.
    async fn report(&self, write: &PodWrite) {
        let Some(event) = event(write, &self.instance, Timestamp::now()) else { return };
        self.send(write, &event).await;
    }

    async fn send(&self, write: &PodWrite, event: &Value) {
        if let Err(failure) = self.executor.create_event(&write.namespace, event).await {
            tracing::debug!(pod = &*write.name, %failure, "event not written");
        }
    }
}

fn log(item: &Item, failure: &Failure, retry: Duration) {
    let retry_s = retry.as_secs_f64();
    if failure.kind == FailureKind::Conflict {
        tracing::debug!(?item, %failure, retry_s, "changed meanwhile");
    } else {
        tracing::info!(?item, error = %failure, kind = ?failure.kind, retry_s, "not carried out");
    }
}
