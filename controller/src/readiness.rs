//! Tells whether the caches are filled, and the watches live.

use epilogue_runtime::health::Checks;

use crate::dispatch::Dispatch;
use crate::informers::HasSynced;

/// The conditions of readiness. The lease is not one: a replica that waits for it is ready, and a
/// rolling update waits for readiness.
pub(crate) struct Readiness {
    pub(crate) jobs: HasSynced,
    pub(crate) pods: HasSynced,
    pub(crate) nodes: HasSynced,
    pub(crate) namespaces: HasSynced,
}

impl Readiness {
    /// Waits until the caches of Jobs and pods are filled.
    pub(crate) async fn filled(&self) {
        tokio::join!(self.jobs.wait(), self.pods.wait());
        tracing::info!("caches are filled");
    }

    /// Asks the first lists to show all writes of the previous leader. The pods are listed after
    /// the Jobs.
    pub(crate) fn first_lists(&self) -> impl Future<Output = ()> + use<> {
        let (jobs, pods) = (self.jobs.refill(), self.pods.refill());
        async move {
            tokio::join!(jobs, pods);
        }
    }

    /// Lists Jobs, then pods. Completes when the caches show all writes of the previous leader: it
    /// may have written until its lease was ours, and its pods would be created twice.
    ///
    /// In this order the pods are as they were counted in any Job, whoever counts them meanwhile.
    pub(crate) async fn refill(&self, dispatch: &Dispatch) {
        dispatch.expect_groups();
        self.jobs.refill().await;
        dispatch.expect_pods();
        self.pods.refill().await;
    }

    /// Readiness checks: each watch has completed its list, and lives.
    pub(crate) fn checks(&self, has_pod_gc: bool) -> Checks {
        let mut synced = vec![&self.jobs, &self.pods];
        if has_pod_gc {
            synced.extend([&self.nodes, &self.namespaces]);
        }
        synced.into_iter().fold(Checks::new(), |checks, synced| {
            let signs = synced.signs().clone();
            let resource = signs.resource();
            let lives = move || signs.check();
            checks.with_flag(resource, synced.flag()).with(format!("watch-{resource}"), lives)
        })
    }
}
