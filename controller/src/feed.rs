//! Feeds the stores with what the watches tell, and the queues with what follows.

use std::sync::Arc;

use controller_core::podgc::WireNode;
use controller_core::view::{JobKey, Version, WirePod};
use epilogue_runtime::health::Flag;
use epilogue_runtime::watch::{Relist, Signs};
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch as cell;
use tokio_util::sync::CancellationToken;

use crate::dispatch::Dispatch;
use crate::events::Recorder;
use crate::podgc::PodGc;
use crate::stores::{Reaction, Stores};
use crate::unreadable;
use crate::watch::{RawNamespace, Seen, SeenJob, Unreadable, watch};

/// Whether the store of one kind holds all there is.
#[derive(Clone, Debug)]
pub(crate) struct Filled {
    flag: Flag,
    signs: Signs,
    relist: Relist,
    is_full: cell::Sender<bool>,
}

impl Filled {
    /// Not filled yet.
    pub(crate) fn new(signs: Signs) -> Self {
        let flag = Flag::failing(format!("{} not listed yet", signs.resource()));
        Self { flag, signs, relist: Relist::default(), is_full: cell::Sender::new(false) }
    }

    /// The check that passes while the watch that fills it lives.
    pub(crate) fn signs(&self) -> &Signs {
        &self.signs
    }

    /// The check that passes once it is filled.
    pub(crate) fn flag(&self) -> &Flag {
        &self.flag
    }

    /// Waits until it is filled.
    pub(crate) async fn wait(&self) {
        // We hold the sender, so that waiting cannot fail.
        let _ = self.is_full.subscribe().wait_for(|filled| *filled).await;
    }

    /// Waits until it holds all that the API showed after this call.
    pub(crate) async fn refill(&self) {
        self.relist.fresh().await;
    }

    /// Where the watch shows that it lives, and is asked for a list.
    fn handles(&self) -> (Signs, Relist) {
        (self.signs.clone(), self.relist.clone())
    }

    fn fill(&self) {
        self.flag.pass();
        self.is_full.send_replace(true);
    }
}

/// What all feeds work with.
#[derive(Clone)]
pub(crate) struct Feed {
    pub(crate) client: Client,
    /// The only namespace, if there is but one.
    pub(crate) namespace: Option<String>,
    pub(crate) stores: Arc<Stores>,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) recorder: Arc<Recorder>,
    /// Whether Jobs without `managedBy` are ours.
    pub(crate) manage_all_jobs: bool,
    /// Pod GC, where it is on.
    pub(crate) pod_gc: Option<Arc<PodGc>>,
}

impl Feed {
    /// Feeds Jobs until the token is cancelled.
    pub(crate) async fn jobs(self, token: CancellationToken, filled: Filled) {
        let (client, handles) = (self.client.clone(), filled.handles());
        watch::<SeenJob>(client, self.namespace.as_deref(), handles, token, |seen| {
            let ends = matches!(seen, Seen::ListEnds(_));
            self.dispatch.dispatch(self.job_event(seen));
            if ends {
                filled.fill();
            }
        })
        .await;
    }

    /// Feeds pods until the token is cancelled.
    pub(crate) async fn pods(self, token: CancellationToken, filled: Filled) {
        let (client, handles) = (self.client.clone(), filled.handles());
        watch::<WirePod>(client, self.namespace.as_deref(), handles, token, |seen| {
            let ends = matches!(seen, Seen::ListEnds(_));
            if let Some(pod_gc) = &self.pod_gc {
                pod_gc.pods(&seen);
            }
            self.dispatch.dispatch(self.pod_event(seen));
            if ends {
                filled.fill();
            }
        })
        .await;
    }
}

/// Feeds pod GC with nodes until the token is cancelled. They have no namespace.
pub(crate) async fn nodes(
    client: Client,
    pod_gc: Arc<PodGc>,
    token: CancellationToken,
    filled: Filled,
) {
    watch::<WireNode>(client, None, filled.handles(), token, |seen| {
        pod_gc.nodes(&seen);
        if matches!(seen, Seen::ListEnds(_)) {
            filled.fill();
        }
    })
    .await;
}

/// Feeds pod GC with namespaces until the token is cancelled.
pub(crate) async fn namespaces(
    client: Client,
    pod_gc: Arc<PodGc>,
    token: CancellationToken,
    filled: Filled,
) {
    watch::<RawNamespace>(client, None, filled.handles(), token, |seen| {
        pod_gc.namespaces(&seen);
        if matches!(seen, Seen::ListEnds(_)) {
            filled.fill();
        }
    })
    .await;
}

impl Feed {
    fn job_event(&self, seen: Seen<SeenJob>) -> Reaction {
        let (stores, now) = (&self.stores, Timestamp::now());
        match seen {
            Seen::ListBegins => {
                stores.jobs_begin();
                Reaction::default()
            }
            Seen::ListEnds(version) => stores.jobs_end(Version::parse(&version), now),
            Seen::Shown(seen) => stores.job_shown(seen.job, now),
            Seen::Gone(seen) => stores.job_gone(&seen.job.key, seen.job.version, now),
            Seen::Unreadable(job) => {
                let (key, version) = (key_of(&job), Version::parse(&job.version));
                if job.gone {
                    return stores.job_gone(&key, version, now);
                }
                // What we knew of it may be wrong by now, and nothing may be done to a Job by a
                // wrong idea of it.
                unreadable::tell_of_job(&self.recorder, &job, self.manage_all_jobs);
                stores.job_unreadable(&key, version)
            }
            Seen::UpTo(version) => stores.jobs_seen(Version::parse(&version)),
        }
    }

    fn pod_event(&self, seen: Seen<WirePod>) -> Reaction {
        let stores = &self.stores;
        match seen {
            Seen::ListBegins => {
                stores.pods_begin();
                Reaction::default()
            }
            Seen::ListEnds(version) => stores.pods_end(Version::parse(&version)),
            Seen::Shown(pod) => stores.pod_shown(pod),
            Seen::Gone(pod) => {
                let version = pod.metadata.resource_version.as_deref().unwrap_or_default();
                let uid = pod.metadata.uid.as_deref().unwrap_or_default().into();
                stores.pod_gone(&uid, Version::parse(version))
            }
            Seen::Unreadable(pod) => {
                let (uid, version) = (pod.uid.as_str().into(), Version::parse(&pod.version));
                if pod.gone {
                    return stores.pod_gone(&uid, version);
                }
                let owner = pod.owner.as_ref().map(|owner| owner.uid.as_str().into());
                let (reaction, job) = stores.pod_unreadable(uid, owner, version);
                unreadable::tell_of_pod(&self.recorder, &pod, job.as_deref());
                reaction
            }
            Seen::UpTo(version) => stores.pods_seen(Version::parse(&version)),
        }
    }
}

fn key_of(job: &Unreadable) -> JobKey {
    JobKey::new(job.namespace.as_str(), job.name.as_str())
}
