//! The workers that free pods of the tracking finalizer when nobody will count them. (spec §3)

use std::sync::Arc;

use controller_core::orphans::Orphans;
use epilogue_common::outcome::FailureKind;
use tokio_util::sync::CancellationToken;

use crate::execute::Executor;
use crate::queue::Queue;
use crate::stores::Stores;

/// Everything that such a worker works with.
#[derive(Debug)]
pub(crate) struct Cleaner {
    pub(crate) stores: Arc<Stores>,
    pub(crate) queue: Arc<Queue<Orphans>>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) manage_all_jobs: bool,
}

impl Cleaner {
    /// Works until the end is asked for; what has begun is ended.
    pub(crate) async fn work(&self, token: CancellationToken) {
        while let Some(item) = self.queue.take(&token).await {
            self.free(&item).await;
            self.queue.done(&item);
        }
    }

    /// DIVERGES(upstream): failures are tried again also for the pods of a whole Job; the
    /// reference drops them, and such a pod keeps its finalizer until it is deleted. (spec §29
    /// item 16, [O1])
    async fn free(&self, item: &Orphans) {
        let pods = self.stores.orphans(item, self.manage_all_jobs);
        let outcomes = self.executor.release(&pods).await;
        let failures = outcomes.iter().filter_map(|outcome| outcome.as_ref().err());
        let mut failures = failures.filter(|failure| failure.kind != FailureKind::NotFound);
        let Some(failure) = failures.next() else {
            self.queue.forget(item);
            return;
        };
        let others = failures.count();
        let retry = self.queue.add_failed(item.clone());
        tracing::info!(
            ?item,
            error = %failure,
            others,
            retry_s = retry.as_secs_f64(),
            "finalizers not removed"
        );
    }
}
