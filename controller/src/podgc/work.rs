//! One look after the other: verdict, calls, and what is to be remembered, told and counted.

use std::sync::Arc;
use std::time::Duration;

use controller_core::podgc::{Item, Lane, Order, Verdict};
use epilogue_common::names::job_option::FORCE_FAIL_AFTER;
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::events::event;
use super::execute::Executor;
use super::{Metrics, PodGc};
use crate::stores::Stores;

/// A verdict that asks for a node gets its answer and is then another one.
const VERDICTS_MAX: usize = 3;

/// Everything that a look works with.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) gc: Arc<PodGc>,
    pub(crate) stores: Arc<Stores>,
    pub(crate) executor: Executor,
    pub(crate) metrics: Metrics,
    /// Tells this process from its likes.
    pub(crate) instance: String,
}

impl Worker {
    /// Works on one of the queues until the end is asked for; what has begun is ended.
    pub(crate) async fn work(&self, lane: Lane, token: CancellationToken) {
        let queue = self.gc.queue(lane);
        while let Some(item) = queue.take(&token).await {
            match self.look(lane, &item).await {
                Ok(()) => queue.forget(&item),
                Err(failure) => {
                    let retry = queue.add_failed(item.clone());
                    log(&item, &failure, retry);
                }
            }
            queue.done(&item);
        }
    }

    /// Looks at one thing, and does what is to be done.
    pub(super) async fn look(&self, lane: Lane, item: &Item) -> Outcome<()> {
        for _ in 0..VERDICTS_MAX {
            match self.verdict(item) {
                Verdict::Leave => return Ok(()),
                Verdict::LookAgain(at) => {
                    let wait = Duration::try_from(at.duration_since(Timestamp::now()));
                    self.gc.queue(lane).add_after(item.clone(), wait.unwrap_or_default());
                    return Ok(());
                }
                Verdict::Ask(name) => {
                    let exists = self.executor.node_exists(&name).await?;
                    tracing::info!(node = &*name, exists, "asked for a node that is not watched");
                    let now = Timestamp::now();
                    let wakes = self.gc.cluster.lock().node_answered(&name, exists, now);
                    self.gc.wake(wakes);
                }
                Verdict::Do(order) => {
                    let result = self.carry_out(&order).await;
                    let wakes = self.gc.cluster.lock().pod_done(&order.uid, Timestamp::now());
                    // After a failure its own delay holds.
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
            Item::Node(name) => cluster.look_at_node(name, now),
            Item::Pod(_, uid) => {
                let job = cluster.pod(uid).and_then(|pod| {
                    let owner = pod.owner.as_ref().filter(|_| pod.deletion.is_some())?;
                    self.stores.job_annotation(&pod.namespace, owner, FORCE_FAIL_AFTER)
                });
                cluster.look_at_pod(uid, job.as_deref(), now)
            }
            Item::Surplus => {
                let wakes = cluster.look_for_surplus();
                drop(cluster);
                self.gc.wake(wakes);
                Verdict::Leave
            }
        }
    }

    async fn carry_out(&self, order: &Order) -> Outcome<()> {
        let result = match self.write(order).await {
            // Somebody else was faster; the watch has yet to show it.
            Err(failure) if failure.kind == FailureKind::NotFound => {
                self.gc.cluster.lock().pod_deleted(&order.uid);
                return Ok(());
            }
            result => result,
        };
        self.metrics.count(order, result.is_ok());
        result?;
        tracing::info!(
            pod = format!("{}/{}", order.namespace, order.name),
            uid = %order.uid,
            reason = order.cause.label(),
            cause = %order.cause,
            deleted = order.delete,
            "carried out"
        );
        self.tell(order).await;
        Ok(())
    }

    async fn write(&self, order: &Order) -> Outcome<()> {
        if let Some(patch) = &order.patch {
            let version = self.executor.patch(order, patch).await?;
            self.gc.cluster.lock().pod_written(&order.uid, &order.cause, version);
        }
        if order.delete {
            self.executor.delete(order).await?;
            self.gc.cluster.lock().pod_deleted(&order.uid);
        }
        Ok(())
    }

    /// An event is news, not state: one that is lost is not repeated.
    async fn tell(&self, order: &Order) {
        let Some(event) = event(order, &self.instance, Timestamp::now()) else { return };
        if let Err(failure) = self.executor.tell(&order.namespace, &event).await {
            tracing::debug!(pod = &*order.name, %failure, "event not written");
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
