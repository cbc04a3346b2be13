//! Feeds the stores with what the watches tell, and the queues with what follows.

use std::sync::Arc;

use controller_core::podgc::WireNode;
use controller_core::view::{Job, JobKey, Version, WireJob, WirePod};
use epilogue_runtime::health::Flag;
use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use tokio::sync::watch as cell;
use tokio_util::sync::CancellationToken;

use crate::dispatch::Dispatch;
use crate::podgc::PodGc;
use crate::stores::{Reaction, Stores};
use crate::watch::{RawJob, RawNamespace, Seen, watch};

/// Whether the store of one kind holds all there is.
#[derive(Clone, Debug)]
pub(crate) struct Filled {
    flag: Flag,
    filled: cell::Sender<bool>,
}

impl Filled {
    /// Not filled yet.
    pub(crate) fn new(kind: &str) -> Self {
        let flag = Flag::failing(format!("{kind} not listed yet"));
        Self { flag, filled: cell::Sender::new(false) }
    }

    /// The check that passes once it is filled.
    pub(crate) fn flag(&self) -> &Flag {
        &self.flag
    }

    /// Waits until it is filled.
    pub(crate) async fn wait(&self) {
        // We hold the sender, so that waiting cannot fail.
        let _ = self.filled.subscribe().wait_for(|filled| *filled).await;
    }

    fn fill(&self) {
        self.flag.pass();
        self.filled.send_replace(true);
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
    /// Pod GC, where it is on.
    pub(crate) pod_gc: Option<Arc<PodGc>>,
}

impl Feed {
    /// Feeds Jobs until the token is cancelled.
    pub(crate) async fn jobs(self, token: CancellationToken, filled: Filled) {
        watch::<RawJob>(self.client, self.namespace.as_deref(), token, |seen| {
            let ends = matches!(seen, Seen::ListEnds(_));
            self.dispatch.dispatch(job_event(&self.stores, seen));
            if ends {
                filled.fill();
            }
        })
        .await;
    }

    /// Feeds pods until the token is cancelled.
    pub(crate) async fn pods(self, token: CancellationToken, filled: Filled) {
        watch::<WirePod>(self.client, self.namespace.as_deref(), token, |seen| {
            let ends = matches!(seen, Seen::ListEnds(_));
            if let Some(pod_gc) = &self.pod_gc {
                pod_gc.pods(&seen);
            }
            self.dispatch.dispatch(pod_event(&self.stores, seen));
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
    watch::<WireNode>(client, None, token, |seen| {
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
    watch::<RawNamespace>(client, None, token, |seen| {
        pod_gc.namespaces(&seen);
        if matches!(seen, Seen::ListEnds(_)) {
            filled.fill();
        }
    })
    .await;
}

fn job_event(stores: &Stores, seen: Seen<RawJob>) -> Reaction {
    match seen {
        Seen::ListBegins => {
            stores.jobs_begin();
            Reaction::default()
        }
        Seen::ListEnds(version) => stores.jobs_end(version, Timestamp::now()),
        Seen::Shown(raw) => {
            let key = key_of(&raw.0);
            match parse(raw) {
                Ok(job) => stores.job_shown(job, Timestamp::now()),
                Err(error) => {
                    // It must not hold up all others. What we knew of it may be wrong by now, and
                    // nothing may be done to a Job by a wrong idea of it.
                    tracing::error!(job = %key, %error, "the Job cannot be read, leaving it alone");
                    stores.job_unreadable(&key);
                    Reaction::default()
                }
            }
        }
        Seen::Gone(raw) => {
            let version = raw.0["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            stores.job_gone(&key_of(&raw.0), Version::parse(version), Timestamp::now())
        }
        Seen::UpTo(version) => stores.jobs_seen(version),
    }
}

fn pod_event(stores: &Stores, seen: Seen<WirePod>) -> Reaction {
    match seen {
        Seen::ListBegins => {
            stores.pods_begin();
            Reaction::default()
        }
        Seen::ListEnds(version) => stores.pods_end(version),
        Seen::Shown(pod) => stores.pod_shown(pod),
        Seen::Gone(pod) => {
            let version = pod.metadata.resource_version.as_deref().unwrap_or_default();
            let uid = pod.metadata.uid.as_deref().unwrap_or_default().into();
            stores.pod_gone(&uid, Version::parse(version))
        }
        Seen::UpTo(version) => stores.pods_seen(version),
    }
}

fn parse(raw: RawJob) -> Result<Job, serde_json::Error> {
    WireJob::parse(raw.0).and_then(WireJob::view)
}

fn key_of(job: &Value) -> JobKey {
    let text = |field: &str| job["metadata"][field].as_str().unwrap_or_default();
    JobKey::new(text("namespace"), text("name"))
}
