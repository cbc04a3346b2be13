//! Writes Events in the background. The core decides which ones, and when.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use controller_core::event_series::{EventSeries, EventTime, EventWrite, Regarding};
use controller_core::job::{EventDraft, PodEnded, Severity};
use controller_core::view::{Job, Pod};
use epilogue_common::names::EVENT_SOURCE;
use epilogue_common::outcome::Outcome;
use epilogue_runtime::api_error::classify;
use epilogue_runtime::lease::Identity;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// How long writing the last events may take when the process ends.
const FLUSH_MAX: Duration = Duration::from_secs(3);

/// Queues events and writes them.
pub(crate) struct Recorder {
    series: Mutex<EventSeries>,
    recorded: Notify,
    client: Client,
    identity: Identity,
    metrics: Metrics,
    /// When it began, by the clock that only goes on.
    begun: Instant,
}

impl Recorder {
    /// Creates a recorder of this process.
    pub(crate) fn new(client: Client, identity: Identity, metrics: Metrics) -> Arc<Self> {
        let series = Mutex::new(EventSeries::default());
        let (recorded, begun) = (Notify::new(), Instant::now());
        Arc::new(Self { series, recorded, client, identity, metrics, begun })
    }

    /// Queues an event of a Job. Never waits.
    pub(crate) fn record(&self, job: &Job, event: EventDraft) {
        self.record_of(Regarding::of(job), event);
    }

    /// Counts the end of a pod of a Job that another controller runs, and queues the event of it.
    pub(crate) fn record_elsewhere(&self, job: &Job, pod: &Arc<Pod>) {
        let ended = PodEnded::elsewhere(pod, self.identity.clock.now());
        self.metrics.pod_ended(ended.cause, ended.counted);
        self.record(job, ended.event());
    }

    /// Queues an event of a Job that may be unreadable, or of a pod. Never waits.
    pub(crate) fn record_of(&self, regarding: Regarding, event: EventDraft) {
        let mut series = self.series.lock();
        let dropped = series.dropped();
        let wall = self.identity.clock.now();
        series.record(regarding, event, EventTime { wall, elapsed: self.begun.elapsed() });
        self.metrics.events_dropped.inc_by(series.dropped() - dropped);
        drop(series);
        self.recorded.notify_one();
    }

    /// The next event to write.
    #[cfg(test)]
    pub(crate) fn next_for_tests(&self) -> Option<EventWrite> {
        self.series.lock().next(self.begun.elapsed())
    }

    /// Writes events until `token` is cancelled, then flushes the rest for at most 3 s.
    pub(crate) async fn run(&self, token: CancellationToken) {
        tokio::select! {
            biased;
            () = token.cancelled() => {}
            () = self.write_for_ever() => {}
        }
        self.series.lock().hurry();
        if tokio::time::timeout(FLUSH_MAX, self.write_due()).await.is_err() {
            tracing::warn!("some events were not written in time");
        }
    }

    async fn write_for_ever(&self) {
        loop {
            self.write_due().await;
            let due = self.series.lock().next_due();
            tokio::select! {
                biased;
                () = self.recorded.notified() => {}
                () = self.sleep_until(due) => {}
            }
        }
    }

    async fn sleep_until(&self, due: Option<Duration>) {
        match due {
            Some(due) => tokio::time::sleep(due.saturating_sub(self.begun.elapsed())).await,
            None => std::future::pending().await,
        }
    }

    async fn write_due(&self) {
        loop {
            let next = self.series.lock().next(self.begun.elapsed());
            let Some(write) = next else { return };
            let outcome = self.write(&write).await;
            let mut series = self.series.lock();
            if let Err(failure) = outcome {
                tracing::debug!(event = write.name, %failure, "event not written");
                if series.failed(&write, failure.kind, self.begun.elapsed()) {
                    self.metrics.events_dropped.inc();
                }
            } else {
                series.written(&write);
            }
        }
    }

    async fn write(&self, write: &EventWrite) -> Outcome<()> {
        let api = Api::<Event>::namespaced(self.client.clone(), &write.regarding.key.namespace);
        if write.exists {
            let mut patch = json!({
                "count": write.count,
                "lastTimestamp": Time(write.last),
                "message": write.event.message,
            });
            if let Some(ends) = &write.ends {
                patch["metadata"] = json!({"annotations": ends.annotations()});
            }
            let patch = Patch::Strategic(patch);
            api.patch(&write.name, &PatchParams::default(), &patch).await.map_err(classify)?;
        } else {
            let event = self.event(write);
            api.create(&PostParams::default(), &event).await.map_err(classify)?;
        }
        Ok(())
    }

    fn event(&self, write: &EventWrite) -> Event {
        let regarding = &write.regarding;
        let namespace = Some(regarding.key.namespace.to_string());
        let (api_version, kind) = regarding.kind.names();
        Event {
            metadata: ObjectMeta {
                name: Some(write.name.clone()),
                namespace: namespace.clone(),
                annotations: write.ends.as_ref().map(|ends| ends.annotations()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: Some(api_version.to_owned()),
                kind: Some(kind.to_owned()),
                name: Some(regarding.key.name.to_string()),
                namespace,
                uid: Some(regarding.uid.to_string()),
                resource_version: Some(regarding.version.to_string()),
                field_path: None,
            },
            type_: Some(type_of(write.event.severity).to_owned()),
            reason: Some(write.event.reason.clone()),
            message: Some(write.event.message.clone()),
            source: Some(EventSource { component: Some(EVENT_SOURCE.to_owned()), host: None }),
            reporting_component: Some(EVENT_SOURCE.to_owned()),
            reporting_instance: Some(self.identity.name.clone()),
            action: None,
            count: Some(i32::try_from(write.count).unwrap_or(i32::MAX)),
            first_timestamp: Some(Time(write.first)),
            last_timestamp: Some(Time(write.last)),
            event_time: None::<MicroTime>,
            related: None,
            series: None,
        }
    }
}

fn type_of(severity: Severity) -> &'static str {
    match severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Recorder").finish_non_exhaustive()
    }
}
