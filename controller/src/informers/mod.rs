//! Passes watch events to the state, and reports unreadable objects.

pub(crate) mod watch;

use std::sync::Arc;

use controller_core::job::is_ours;
use controller_core::podgc::{NodeView, WireNode};
use controller_core::view::{PodGroup, WirePod, Workload};
use epilogue_runtime::health::Flag;
use epilogue_runtime::watch::{Newest, Relist, Signs};
use kube::Client;
use tokio::sync::watch as cell;
use tokio_util::sync::CancellationToken;

use self::watch::{RawNamespace, Versioned, VersionedJob, WatchEvent, watch};
use crate::dispatch::Dispatch;
use crate::events::Recorder;
use crate::unreadable;

/// Whether the cache holds a complete list of one kind.
#[derive(Clone, Debug)]
pub(crate) struct HasSynced {
    flag: Flag,
    signs: Signs,
    relist: Relist,
    is_synced: cell::Sender<bool>,
}

impl HasSynced {
    /// Not synced yet.
    pub(crate) fn new(signs: Signs) -> Self {
        let flag = Flag::failing(format!("{} not listed yet", signs.resource()));
        Self { flag, signs, relist: Relist::default(), is_synced: cell::Sender::new(false) }
    }

    /// Signs of life of the watch; their check passes while it lives.
    pub(crate) fn signs(&self) -> &Signs {
        &self.signs
    }

    /// The flag that passes once the cache has synced.
    pub(crate) fn flag(&self) -> &Flag {
        &self.flag
    }

    /// Waits until it has synced.
    pub(crate) async fn wait(&self) {
        // Waiting cannot fail: we hold the sender.
        let _ = self.is_synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Requests a list now. The result completes when the cache holds all that the API had at this
    /// call.
    pub(crate) fn refill(&self) -> impl Future<Output = ()> + use<> {
        self.relist.fresh()
    }

    /// Where a list is requested.
    pub(crate) fn relist(&self) -> Relist {
        self.relist.clone()
    }

    /// What the watch needs: what else is known of its kind, where it reports signs of life, and
    /// where a relist is requested. The state requests one, too.
    fn handles(&self, dispatch: &Dispatch, newest: Newest) -> (Newest, Signs, Relist) {
        dispatch.add_watch(self.relist.clone());
        (newest, self.signs.clone(), self.relist.clone())
    }

    fn fill(&self) {
        self.flag.pass();
        self.is_synced.send_replace(true);
    }
}

/// Dependencies of all informers.
#[derive(Clone)]
pub(crate) struct Informers {
    pub(crate) client: Client,
    /// The only namespace to watch; `None` means all.
    pub(crate) namespace: Option<String>,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) recorder: Arc<Recorder>,
    /// Whether Jobs without `managedBy` are ours.
    pub(crate) manage_all_jobs: bool,
}

impl Informers {
    /// Watches Jobs until the token is cancelled.
    pub(crate) async fn jobs(self, token: CancellationToken, synced: HasSynced) {
        let newest = self.dispatch.newest_job.clone();
        let (client, handles) = (self.client.clone(), synced.handles(&self.dispatch, newest));
        watch::<VersionedJob>(client, self.namespace.as_deref(), handles, token, |event| {
            let ends = matches!(event, WatchEvent::ListEnds(_));
            self.job_event(event);
            if ends {
                synced.fill();
            }
        })
        .await;
    }

    /// Watches pods until the token is cancelled.
    pub(crate) async fn pods(self, token: CancellationToken, synced: HasSynced) {
        let newest = self.dispatch.newest_pod.clone();
        let (client, handles) = (self.client.clone(), synced.handles(&self.dispatch, newest));
        watch::<WirePod>(client, self.namespace.as_deref(), handles, token, |event| {
            let ends = matches!(event, WatchEvent::ListEnds(_));
            self.pod_event(event);
            if ends {
                synced.fill();
            }
        })
        .await;
    }
}

/// Watches nodes, which have no namespace, for pod GC until the token is cancelled.
pub(crate) async fn nodes(
    client: Client,
    dispatch: Arc<Dispatch>,
    token: CancellationToken,
    synced: HasSynced,
) {
    let handles = synced.handles(&dispatch, Newest::default());
    watch::<WireNode>(client, None, handles, token, |event| {
        let ends = matches!(event, WatchEvent::ListEnds(_));
        unreadable::log("node", &event);
        dispatch.node(event.map(|node| NodeView::read(&node)));
        if ends {
            synced.fill();
        }
    })
    .await;
}

/// Watches namespaces for pod GC until the token is cancelled.
pub(crate) async fn namespaces(
    client: Client,
    dispatch: Arc<Dispatch>,
    token: CancellationToken,
    synced: HasSynced,
) {
    let handles = synced.handles(&dispatch, Newest::default());
    watch::<RawNamespace>(client, None, handles, token, |event| {
        let ends = matches!(event, WatchEvent::ListEnds(_));
        unreadable::log("namespace", &event);
        dispatch.namespace(event.map(RawNamespace::view));
        if ends {
            synced.fill();
        }
    })
    .await;
}

/// Watches Workloads until the token is cancelled.
pub(crate) async fn workloads(
    client: Client,
    namespace: Option<&str>,
    dispatch: Arc<Dispatch>,
    (token, synced): (CancellationToken, HasSynced),
) {
    let handles = synced.handles(&dispatch, Newest::default());
    watch::<Versioned<Workload>>(client, namespace, handles, token, |event| {
        unreadable::log("Workload", &event);
        dispatch.workload(event.map(|versioned| versioned.object));
    })
    .await;
}

/// Watches PodGroups until the token is cancelled.
pub(crate) async fn pod_groups(
    client: Client,
    namespace: Option<&str>,
    dispatch: Arc<Dispatch>,
    (token, synced): (CancellationToken, HasSynced),
) {
    let handles = synced.handles(&dispatch, Newest::default());
    watch::<Versioned<PodGroup>>(client, namespace, handles, token, |event| {
        unreadable::log("PodGroup", &event);
        dispatch.pod_group(event.map(|versioned| versioned.object));
    })
    .await;
}

impl Informers {
    fn job_event(&self, event: WatchEvent<VersionedJob>) {
        if let WatchEvent::Unreadable(job) = &event
            && !job.gone
        {
            unreadable::report_job(&self.recorder, job, self.manage_all_jobs);
        }
        self.dispatch.job(event.map(|versioned| versioned.job));
    }

    fn pod_event(&self, event: WatchEvent<WirePod>) {
        let unreadable = match &event {
            WatchEvent::Unreadable(pod) if !pod.gone => Some(pod.clone()),
            _ => None,
        };
        let news = self.dispatch.pod(event);
        if let Some(pod) = unreadable {
            unreadable::report_pod(&self.recorder, &pod, news.rests.as_deref());
        }
        for (job, pod) in news.disrupted {
            if !is_ours(&job, self.manage_all_jobs) {
                self.recorder.record_elsewhere(&job, &pod);
            }
        }
    }
}
