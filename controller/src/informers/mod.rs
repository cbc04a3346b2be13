//! Applies watch events to the cache and to pod GC, and enqueues what follows from them.

pub(crate) mod dispatch;
pub(crate) mod watch;

use std::sync::Arc;

use controller_core::podgc::WireNode;
use controller_core::view::{JobKey, Version, WirePod};
use epilogue_runtime::health::Flag;
use epilogue_runtime::watch::{Relist, Signs};
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch as cell;
use tokio_util::sync::CancellationToken;

use self::dispatch::Dispatch;
use self::watch::{RawNamespace, Unreadable, VersionedJob, WatchEvent, watch};
use crate::cache::{Cache, Reaction};
use crate::events::Recorder;
use crate::podgc::PodGc;
use crate::traces::Traces;
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

    /// Waits until the cache holds all that the API had when this call began.
    pub(crate) async fn refill(&self) {
        self.relist.fresh().await;
    }

    /// What the watch needs: where it reports signs of life, and where a relist is requested.
    fn handles(&self) -> (Signs, Relist) {
        (self.signs.clone(), self.relist.clone())
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
    pub(crate) cache: Arc<Cache>,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) recorder: Arc<Recorder>,
    /// Whether Jobs without `managedBy` are ours.
    pub(crate) manage_all_jobs: bool,
    /// Pod GC, if it is enabled.
    pub(crate) pod_gc: Option<Arc<PodGc>>,
    pub(crate) traces: Arc<Traces>,
}

impl Informers {
    /// Watches Jobs until the token is cancelled.
    pub(crate) async fn jobs(self, token: CancellationToken, synced: HasSynced) {
        let (client, handles) = (self.client.clone(), synced.handles());
        watch::<VersionedJob>(client, self.namespace.as_deref(), handles, token, |event| {
            let ends = matches!(event, WatchEvent::ListEnds(_));
            self.dispatch.dispatch(self.job_event(event));
            if ends {
                synced.fill();
            }
        })
        .await;
    }

    /// Watches pods until the token is cancelled.
    pub(crate) async fn pods(self, token: CancellationToken, synced: HasSynced) {
        let (client, handles) = (self.client.clone(), synced.handles());
        watch::<WirePod>(client, self.namespace.as_deref(), handles, token, |event| {
            let ends = matches!(event, WatchEvent::ListEnds(_));
            if let Some(pod_gc) = &self.pod_gc {
                pod_gc.pods(&event);
            }
            self.traces.pods(&event);
            self.dispatch.dispatch(self.pod_event(event));
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
    pod_gc: Arc<PodGc>,
    token: CancellationToken,
    synced: HasSynced,
) {
    watch::<WireNode>(client, None, synced.handles(), token, |event| {
        pod_gc.nodes(&event);
        if matches!(event, WatchEvent::ListEnds(_)) {
            synced.fill();
        }
    })
    .await;
}

/// Watches namespaces for pod GC until the token is cancelled.
pub(crate) async fn namespaces(
    client: Client,
    pod_gc: Arc<PodGc>,
    token: CancellationToken,
    synced: HasSynced,
) {
    watch::<RawNamespace>(client, None, synced.handles(), token, |event| {
        pod_gc.namespaces(&event);
        if matches!(event, WatchEvent::ListEnds(_)) {
            synced.fill();
        }
    })
    .await;
}

impl Informers {
    fn job_event(&self, event: WatchEvent<VersionedJob>) -> Reaction {
        let (cache, now) = (&self.cache, Timestamp::now());
        match event {
            WatchEvent::ListBegins => {
                cache.jobs_begin();
                Reaction::default()
            }
            WatchEvent::ListEnds(version) => cache.jobs_end(Version::parse(&version), now),
            WatchEvent::Shown(event) => cache.job_shown(event.job, now),
            WatchEvent::Gone(event) => cache.job_gone(&event.job.key, event.job.version, now),
            WatchEvent::Unreadable(job) => {
                let (key, version) = (key_of(&job), Version::parse(&job.version));
                if job.gone {
                    return cache.job_gone(&key, version, now);
                }
                // The cached Job may be outdated, and an outdated Job must not be synced.
                unreadable::report_job(&self.recorder, &job, self.manage_all_jobs);
                cache.job_unreadable(&key, version)
            }
            WatchEvent::UpTo(version) => cache.jobs_seen(Version::parse(&version)),
        }
    }

    fn pod_event(&self, event: WatchEvent<WirePod>) -> Reaction {
        let cache = &self.cache;
        match event {
            WatchEvent::ListBegins => {
                cache.pods_begin();
                Reaction::default()
            }
            WatchEvent::ListEnds(version) => cache.pods_end(Version::parse(&version)),
            WatchEvent::Shown(pod) => cache.pod_shown(pod),
            WatchEvent::Gone(pod) => {
                let version = pod.metadata.resource_version.as_deref().unwrap_or_default();
                let uid = pod.metadata.uid.as_deref().unwrap_or_default().into();
                cache.pod_gone(&uid, Version::parse(version))
            }
            WatchEvent::Unreadable(pod) => {
                let (uid, version) = (pod.uid.as_str().into(), Version::parse(&pod.version));
                if pod.gone {
                    return cache.pod_gone(&uid, version);
                }
                let owner = pod.owner.as_ref().map(|owner| owner.uid.as_str().into());
                let (reaction, job) = cache.pod_unreadable(uid, owner, version);
                unreadable::report_pod(&self.recorder, &pod, job.as_deref());
                reaction
            }
            WatchEvent::UpTo(version) => cache.pods_seen(Version::parse(&version)),
        }
    }
}

fn key_of(job: &Unreadable) -> JobKey {
    JobKey::new(job.namespace.as_str(), job.name.as_str())
}
