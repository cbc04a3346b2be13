//! Reports Jobs and pods that cannot be parsed, in the log and by events. An equal event only
//! increases a count, so that a new one means a new error.

use controller_core::event_series::{Regarding, RegardingKind};
use controller_core::job::{EventDraft, Severity, is_run_by_us};
use controller_core::view::{Job, JobKey, Version};
use epilogue_runtime::watch::{Unreadable, WatchEvent};

use crate::events::Recorder;

/// Reason of both events.
const UNREADABLE: &str = "Unreadable";

/// Logs a Job that cannot be read, and emits an event on it if it is ours.
pub(crate) fn report_job(recorder: &Recorder, job: &Unreadable, manage_all_jobs: bool) {
    let (namespace, name, error) = (&job.namespace, &job.name, &job.why);
    let is_ours = is_run_by_us(job.managed_by.as_deref(), manage_all_jobs);
    if is_ours && job.deleting {
        tracing::warn!(%namespace, %name, %error, "the Job cannot be read, releasing its pods");
        return;
    }
    tracing::error!(%namespace, %name, %error, is_ours, "the Job cannot be read, leaving it alone");
    if !is_ours {
        return;
    }
    let message = format!(
        "the Job is left alone, because it cannot be read: {error}; correct the field by kubectl \
         edit, or delete the Job"
    );
    recorder.record_of(
        Regarding {
            kind: RegardingKind::Job,
            key: JobKey::new(namespace.as_str(), name.as_str()),
            uid: job.uid.as_str().into(),
            version: Version::parse(&job.version),
        },
        EventDraft::warning(UNREADABLE, message),
    );
}

/// Logs a pod that cannot be read, and emits an event on its Job if that is known.
pub(crate) fn report_pod(recorder: &Recorder, pod: &Unreadable, job: Option<&Job>) {
    let (namespace, name, error) = (&pod.namespace, &pod.name, &pod.why);
    tracing::error!(%namespace, %name, %error, "the pod cannot be read, its Job rests");
    let Some(job) = job else { return };
    let message = format!(
        "the Job rests, because its pod {name} cannot be read: {error}; correct the field, or \
         delete the pod"
    );
    let severity = Severity::Warning;
    recorder.record(job, EventDraft::new(severity, UNREADABLE, message));
}

/// Logs an object of pod GC that cannot be read.
pub(crate) fn log<T>(kind: &str, event: &WatchEvent<T>) {
    if let WatchEvent::Unreadable(object) = event
        && !object.gone
    {
        tracing::error!(kind, name = object.name, error = object.why, "an object cannot be read");
    }
}
