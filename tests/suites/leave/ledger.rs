//! Records how each pod ended: what the counters of its Job have to say.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use lab::bed::has_finalizer;
use tokio_util::task::AbortOnDropHandle;

/// The end of a pod.
#[derive(Clone, Debug)]
struct End {
    job: String,
    succeeded: bool,
    /// A pod that lost its finalizer before it ended does not count, with one exception: a Job that
    /// fails counts each pod that it deletes, some before they end.
    counts: bool,
}

/// The ends of all pods so far, by UID.
pub(crate) struct Ledger {
    ends: Arc<Mutex<HashMap<String, End>>>,
    _watch: AbortOnDropHandle<()>,
}

impl Ledger {
    /// Begins to record.
    pub(crate) fn of(pods: Api<Pod>) -> Self {
        let ends = Arc::<Mutex<HashMap<_, _>>>::default();
        let watch = AbortOnDropHandle::new(tokio::spawn(record(pods, Arc::clone(&ends))));
        Self { ends, _watch: watch }
    }

    /// How many pods of a Job succeeded and failed, and count.
    pub(crate) fn totals(&self, job: &str) -> (i32, i32) {
        let ends = self.ends.lock().expect("no holder panics");
        let of_job = ends.values().filter(|end| end.job == job && end.counts);
        of_job.fold((0, 0), |(succeeded, failed), end| {
            if end.succeeded { (succeeded + 1, failed) } else { (succeeded, failed + 1) }
        })
    }

    /// How many pods ended.
    pub(crate) fn len(&self) -> usize {
        self.ends.lock().expect("no holder panics").len()
    }
}

async fn record(pods: Api<Pod>, ends: Arc<Mutex<HashMap<String, End>>>) {
    let events = watcher(pods, watcher::Config::default()).default_backoff().applied_objects();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let Ok(pod) = event else { continue };
        let status = pod.status.clone().unwrap_or_default();
        let succeeded = match status.phase.as_deref() {
            Some("Succeeded") => true,
            Some("Failed") => false,
            _ => continue,
        };
        let job = pod.metadata.labels.iter().flatten().find(|(key, _)| *key == "job-name");
        let Some((_, job)) = job else { continue };
        // The policy of these Jobs ignores what it releases.
        let ignored = job.starts_with("ignored-") && !succeeded;
        let counts = (has_finalizer(&pod) || job.starts_with("fail-job-")) && !ignored;
        let end = End { job: job.clone(), succeeded, counts };
        let uid = pod.metadata.uid.expect("a pod has a UID");
        ends.lock().expect("no holder panics").entry(uid).or_insert(end);
    }
}
