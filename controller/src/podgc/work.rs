//! Runs the workers of pod GC: each checks one item, carries out the verdict and records the
//! outcome.

use std::sync::Arc;
use std::time::Duration;

use controller_core::podgc::{Answer, Call, Check, End, Item, Next, PodWrite};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use epilogue_runtime::clock::Clock;
use serde_json::Value;

use super::Metrics;
use super::events::{event, internal_error, would_event};
use crate::dispatch::Dispatch;
use crate::execute::Executor;
use crate::planner::Stopwatch;
use crate::workqueue::{Process, Queue};

/// Dependencies of a check.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) executor: Executor,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    /// Identity of this process in events.
    pub(crate) instance: String,
}

impl Process<Item> for Worker {
    async fn process(&self, queue: &Queue<Item>, item: &Item) {
        match self.check(queue, item).await {
            Ok(()) => queue.forget(item),
            Err(failure) => {
                let retry = queue.add_failed(item.clone(), &failure);
                log(item, &failure, retry);
            }
        }
    }

    async fn panicked(&self, queue: &Queue<Item>, item: &Item, failure: Failure) {
        self.dispatch.panicked("pod GC", item, &failure);
        queue.add_failed(item.clone(), &failure);
        let Item::Pod(_, uid) = item else { return };
        let pod = self.dispatch.state().pod(uid).cloned();
        if let Some(pod) = pod {
            let event = internal_error(&pod, &failure, &self.instance, self.clock.now());
            self.send(&pod.namespace, &pod.name, &event).await;
        }
    }
}

impl Worker {
    /// Checks one item of a queue, and makes the calls that follow from it.
    pub(super) async fn check(&self, queue: &Queue<Item>, item: &Item) -> Outcome<()> {
        let (mut check, mut plans) = (Check::new(item.clone()), Stopwatch::default());
        loop {
            let next = plans.time(|| check.next(&mut self.dispatch.state(), self.clock.now()));
            let call = match next {
                Next::Call(call) => call,
                Next::End(end) => {
                    self.dispatch.planned("pod_gc", item, &plans);
                    return self.end(queue, item, end).await;
                }
            };
            let outcome = self.executor.check(&call).await;
            if let Call::FindNode(name) = &call {
                log_answer(name, &outcome);
            }
            let now = self.clock.now();
            let entries = check.done(&mut self.dispatch.state(), call, outcome, now);
            self.dispatch.enqueue(entries);
        }
    }

    async fn end(&self, queue: &Queue<Item>, item: &Item, end: End) -> Outcome<()> {
        match end {
            End::Nothing => {}
            End::CheckAgain(at) => {
                let wait = Duration::try_from(at.duration_since(self.clock.now()));
                queue.add_after(item.clone(), wait.unwrap_or_default());
            }
            End::Enqueue(entries) => self.dispatch.enqueue(entries),
            End::Observed(write) => self.observed(&write).await,
            End::Written(write) => self.written(&write).await,
            End::NotWritten(write, failure) => {
                self.metrics.count(&write, false);
                return Err(failure);
            }
            End::Untainted(node) => {
                tracing::info!(node = &*node, "removed the taint that an agent left behind");
                self.metrics.untainted();
            }
            End::Failed(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Reports a write in place of carrying it out.
    async fn observed(&self, write: &PodWrite) {
        self.metrics.would_have(write);
        tracing::info!(
            pod = format!("{}/{}", write.namespace, write.name),
            uid = %write.uid,
            reason = write.cause.label(),
            cause = %write.cause,
            "would be carried out, but --pod-gc=observe"
        );
        let event = would_event(write, &self.instance, self.clock.now());
        self.send(&write.namespace, &write.name, &event).await;
    }

    /// Reports a write that was carried out.
    async fn written(&self, write: &PodWrite) {
        self.metrics.count(write, true);
        tracing::info!(
            pod = format!("{}/{}", write.namespace, write.name),
            uid = %write.uid,
            reason = write.cause.label(),
            cause = %write.cause,
            deleted = write.delete,
            "carried out"
        );
        if let Some(event) = event(write, &self.instance, self.clock.now()) {
            self.send(&write.namespace, &write.name, &event).await;
        }
    }

    /// A lost event is not retried: it is news and not state.
    async fn send(&self, namespace: &str, pod: &str, event: &Value) {
        if let Err(failure) = self.executor.create_event(namespace, event).await {
            tracing::debug!(pod, %failure, "event not written");
        }
    }
}

fn log_answer(node: &str, outcome: &Outcome<Answer>) {
    let exists = match outcome {
        Ok(_) => true,
        Err(failure) if failure.kind == FailureKind::NotFound => false,
        Err(_) => return,
    };
    tracing::info!(node, exists, "asked for a node that is not watched");
}

fn log(item: &Item, failure: &Failure, retry: Duration) {
    let retry_s = retry.as_secs_f64();
    if failure.kind == FailureKind::Conflict {
        tracing::debug!(?item, %failure, retry_s, "changed meanwhile");
    } else {
        tracing::info!(?item, error = %failure, kind = ?failure.kind, retry_s, "not carried out");
    }
}
