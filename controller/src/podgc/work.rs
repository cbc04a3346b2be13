//! Runs the workers of pod GC: each checks one item, carries out the verdict and records the
//! outcome.

use std::sync::Arc;
use std::time::Duration;

use controller_core::podgc::{Item, PodWrite, Verdict};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use jiff::Timestamp;
use serde_json::Value;

use super::Metrics;
use super::events::{event, would_event};
use super::execute::Executor;
use crate::dispatch::Dispatch;
use crate::workqueue::{Process, Queue};

/// A verdict that asks for a node is followed by another verdict.
const VERDICTS_MAX: usize = 3;

/// Dependencies of a check.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) executor: Executor,
    pub(crate) metrics: Metrics,
    /// Whether writes are only reported.
    pub(crate) observes: bool,
    /// Identity of this process in events.
    pub(crate) instance: String,
}

impl Process<Item> for Worker {
    async fn process(&self, queue: &Queue<Item>, item: &Item) {
        match self.check(queue, item).await {
            Ok(()) => queue.forget(item),
            Err(failure) => {
                let retry = queue.add_failed(item.clone());
                log(item, &failure, retry);
            }
        }
    }
}

impl Worker {
    /// Checks one item of a queue, and carries out the verdict.
    pub(super) async fn check(&self, queue: &Queue<Item>, item: &Item) -> Outcome<()> {
        for _ in 0..VERDICTS_MAX {
            match self.verdict(item) {
                Verdict::Leave => return Ok(()),
                Verdict::CheckAgain(at) => {
                    let wait = Duration::try_from(at.duration_since(Timestamp::now()));
                    queue.add_after(item.clone(), wait.unwrap_or_default());
                    return Ok(());
                }
                Verdict::Ask(name) => {
                    let exists = self.executor.node_exists(&name).await?;
                    tracing::info!(node = &*name, exists, "asked for a node that is not watched");
                    let now = Timestamp::now();
                    let entries = self.dispatch.state().node_answered(&name, exists, now);
                    self.dispatch.enqueue(entries);
                }
                Verdict::Untaint(_) if self.observes => return Ok(()),
                Verdict::Untaint(name) => return self.untaint(&name).await,
                Verdict::Do(write) if self.observes => {
                    self.observe(&write).await;
                    return Ok(());
                }
                Verdict::Do(write) => {
                    let result = self.carry_out(&write).await;
                    let entries = self.dispatch.state().pod_done(&write.uid, Timestamp::now());
                    // After a failure the backoff applies instead.
                    if result.is_ok() {
                        self.dispatch.enqueue(entries);
                    }
                    return result;
                }
            }
        }
        Ok(())
    }

    fn verdict(&self, item: &Item) -> Verdict {
        let now = Timestamp::now();
        let mut state = self.dispatch.state();
        match item {
            Item::Node(name) => state.check_node(name, now),
            Item::Pod(_, uid) => state.check_pod(uid, now),
            Item::Excess => {
                let entries = state.check_excess();
                drop(state);
                self.dispatch.enqueue(entries);
                Verdict::Leave
            }
        }
    }

    /// Reports a write in place of carrying it out, once.
    async fn observe(&self, write: &PodWrite) {
        if !self.dispatch.state().is_new_report(write) {
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
                self.dispatch.state().pod_deleted(&write.uid);
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
            self.dispatch.state().pod_written(&write.uid, &write.cause, version);
        }
        if write.delete {
            self.executor.delete(write).await?;
            self.dispatch.state().pod_deleted(&write.uid);
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
