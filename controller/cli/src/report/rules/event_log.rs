//! Keeps the events that say something about disruptions, and how far back events go.

use std::collections::BTreeMap;

use epilogue_common::names::{EVENT_SOURCE, POD_GC_EVENT_SOURCE};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use serde_json::Value;

use super::answer::Cause;
use super::job_events::{self, JobEvent, JobId, NAME_MAX, clean};
use crate::doctor::rules::AGENT_REPORTER;
use controller_core::view::lenient::lenient_time;

/// Events beyond this many are counted and not kept: they take 300 bytes each.
const KEPT_MAX: usize = 100_000;
/// How the message of an eviction for a shortage of the node begins. ([EV13])
const SHORTAGE: &str = "The node was low on resource";

/// Who wrote an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Writer {
    Agent,
    PodGc,
    Kubernetes,
}

/// What an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A disruption hit the pod or the node.
    Hit(Cause),
    /// Epilogue would have acted on the pod.
    Would(Cause),
    /// Epilogue acted on the pod.
    Acted(Cause),
    /// The pod was evicted; the message that says why is missing.
    Unclear,
    /// It is only counted.
    Counted,
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    Pod { namespace: String, name: String, uid: String },
    Node(String),
}

/// One event.
#[derive(Clone, Debug)]
pub(super) struct SeenEvent {
    pub(super) at: Timestamp,
    pub(super) writer: Writer,
    pub(super) reason: &'static str,
    pub(super) about: About,
    pub(super) meaning: Meaning,
    pub(super) count: u64,
}

/// The events that were read.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    pub(super) kept: Vec<SeenEvent>,
    pub(super) of_jobs: Vec<JobEvent>,
    pub(super) oldest: Option<Timestamp>,
    pub(super) left_off: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireEvent {
    reason: Option<String>,
    message: Option<String>,
    involved_object: Option<WireObject>,
    metadata: Option<WireMeta>,
    reporting_component: Option<String>,
    source: Option<WireSource>,
    #[serde(deserialize_with = "lenient_time")]
    event_time: Option<Time>,
    #[serde(deserialize_with = "lenient_time")]
    first_timestamp: Option<Time>,
    #[serde(deserialize_with = "lenient_time")]
    last_timestamp: Option<Time>,
    count: Option<u64>,
    series: Option<WireSeries>,
}

/// The API checks no text of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireObject {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
}

impl WireObject {
    /// Namespace, name and UID; `None` without a name.
    fn names(self) -> Option<[String; 3]> {
        let name = self.name.filter(|name| !name.is_empty())?;
        let [namespace, uid] = [self.namespace, self.uid].map(Option::unwrap_or_default);
        Some([namespace, name, uid].map(|text| clean(&text, NAME_MAX)))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireMeta {
    #[serde(deserialize_with = "lenient_time")]
    creation_timestamp: Option<Time>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireSource {
    component: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireSeries {
    count: Option<u64>,
    #[serde(deserialize_with = "lenient_time")]
    last_observed_time: Option<Time>,
}

type Row = (Writer, bool, &'static str, Meaning);

/// The events that count: the writer, whether it is about a pod, the reason, the meaning.
const TABLE: &[Row] = {
    use Meaning::{Acted, Counted, Hit, Would};
    use Writer::{Agent, Kubernetes, PodGc};
    &[
        (Agent, true, "PodWouldBeDisrupted", Would(Cause::NodeShutdown)),
        (Agent, true, "PodWouldFail", Would(Cause::Stuck)),
        (Agent, true, "WouldEvict", Would(Cause::NodePressure)),
        (Agent, true, "PodDisrupted", Acted(Cause::NodeShutdown)),
        (Agent, true, "PodStopped", Acted(Cause::NodeShutdown)),
        (Agent, true, "PodLost", Acted(Cause::NodeRebooted)),
        (Agent, true, "PodFailedByAgent", Acted(Cause::Stuck)),
        (Agent, true, "Evicted", Acted(Cause::NodePressure)),
        (Agent, true, "PodStuckTerminating", Hit(Cause::Stuck)),
        (Agent, true, "EndSignalSent", Counted),
        (Agent, true, "EndSignalFailed", Counted),
        (Agent, false, "NodeEndAnnounced", Counted),
        (Agent, false, "NodeEndWithdrawn", Counted),
        (Agent, false, "NodeShutdownStarted", Hit(Cause::NodeShutdown)),
        (Agent, false, "NodeShutdownCancelled", Counted),
        (Agent, false, "NodeShutdownComplete", Counted),
        (Agent, false, "NodeShutdownIncomplete", Counted),
        (Agent, false, "NodeShutdownDelayTooShort", Counted),
        (Agent, false, "NodeShutdownNotReady", Counted),
        (Agent, false, "AgentForbidden", Counted),
        (Agent, false, "AgentUnbounded", Counted),
        (Agent, false, "BootRecovery", Hit(Cause::NodeRebooted)),
        (PodGc, true, "PodWouldFail", Would(Cause::Stuck)),
        (PodGc, true, "PodWouldBeDeleted", Counted),
        (PodGc, true, "DisruptionTargetWouldBeSet", Would(Cause::NodeShutdown)),
        (PodGc, true, "DisruptionTargetWouldBeReset", Counted),
        (PodGc, true, "EndedByPodGC", Acted(Cause::Stuck)),
        (PodGc, true, "MarkedDisruptionTarget", Acted(Cause::NodeShutdown)),
        (PodGc, true, "ResetDisruptionTarget", Counted),
        (Kubernetes, true, "Evicted", Hit(Cause::NodePressure)),
        (Kubernetes, true, "Preempted", Hit(Cause::Preemption)),
        (Kubernetes, true, "TaintManagerEviction", Hit(Cause::Taint)),
        (Kubernetes, false, "NodeShutdown", Hit(Cause::NodeShutdown)),
        (Kubernetes, false, "Rebooted", Hit(Cause::NodeRebooted)),
        (Kubernetes, false, "RemovingNode", Hit(Cause::NodeGone)),
        (Kubernetes, false, "DeletingNode", Hit(Cause::NodeGone)),
    ]
};

impl Writer {
    /// The program that wrote it, as in the report.
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Agent => "epilogue-agent",
            Self::PodGc => "epilogue-controller",
            Self::Kubernetes => "kubernetes",
        }
    }
}

impl WireEvent {
    fn component(&self) -> &str {
        let own = self.reporting_component.as_deref().filter(|name| !name.is_empty());
        let old = || self.source.as_ref()?.component.as_deref();
        own.or_else(old).unwrap_or_default()
    }

    fn row(&self) -> Option<&'static Row> {
        let writer = match self.component() {
            AGENT_REPORTER => Writer::Agent,
            POD_GC_EVENT_SOURCE => Writer::PodGc,
            _ => Writer::Kubernetes,
        };
        let is_of_pod = match self.involved_object.as_ref()?.kind.as_deref()? {
            "Pod" => true,
            "Node" => false,
            _ => return None,
        };
        let reason = self.reason.as_deref()?;
        TABLE.iter().find(|row| (row.0, row.1, row.2) == (writer, is_of_pod, reason))
    }

    /// Whether it is about ends of a Job's pods; and if so, whether these were disruptions.
    fn is_disruption(&self) -> Option<bool> {
        let is_of_job = self.involved_object.as_ref()?.kind.as_deref() == Some("Job");
        let is_ours = is_of_job && self.component() == EVENT_SOURCE;
        job_events::is_disruption(self.reason.as_deref().filter(|_| is_ours)?)
    }

    fn at(&self) -> Option<Timestamp> {
        let series = self.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
        let created = || self.metadata.as_ref()?.creation_timestamp.as_ref();
        let known = series.or(self.last_timestamp.as_ref()).or(self.event_time.as_ref());
        known.or_else(created).map(|time| time.0)
    }

    fn number(&self) -> u64 {
        let series = self.series.as_ref().and_then(|series| series.count);
        series.or(self.count).unwrap_or(1).max(1)
    }

    fn read_of_job(self, last: Timestamp) -> Option<JobEvent> {
        let is_disruption = self.is_disruption()?;
        let number = self.number();
        let first = self.first_timestamp.as_ref().or(self.event_time.as_ref());
        let first = first.map_or(last, |time| time.0);
        let [namespace, name, uid] = self.involved_object?.names()?;
        let job = JobId { namespace, name, uid };
        let annotations = self.metadata?.annotations?;
        JobEvent::read(job, is_disruption, &annotations, number, (first, last))
    }

    fn read(self, at: Timestamp) -> Option<SeenEvent> {
        let &(writer, is_of_pod, reason, meaning) = self.row()?;
        let meaning = exact(meaning, reason, self.message.as_deref().unwrap_or_default());
        let count = self.number();
        let [namespace, name, uid] = self.involved_object?.names()?;
        let about = if is_of_pod { About::Pod { namespace, name, uid } } else { About::Node(name) };
        Some(SeenEvent { at, writer, reason, about, meaning, count })
    }
}

/// The meaning with what the message adds: an eviction may be for the pod's own limit, and the
/// deletion for a taint may be cancelled.
fn exact(meaning: Meaning, reason: &str, message: &str) -> Meaning {
    match reason {
        "Evicted" if message.is_empty() => Meaning::Unclear,
        "Evicted" if !is_shortage(message) => Meaning::Counted,
        "TaintManagerEviction" if message.starts_with("Cancelling") => Meaning::Counted,
        _ => meaning,
    }
}

/// Whether the message of an eviction says that the node was short of a resource.
pub(super) fn is_shortage(message: &str) -> bool {
    message.starts_with(SHORTAGE)
}

/// Whether a report reads this event. A dump keeps it.
pub(crate) fn is_read(event: &Value) -> bool {
    WireEvent::deserialize(event)
        .is_ok_and(|event| event.row().is_some() || event.is_disruption().is_some())
}

/// The time of an event, where it has one.
pub(crate) fn time_of(event: &Value) -> Option<Timestamp> {
    WireEvent::deserialize(event).ok()?.at()
}

impl EventLog {
    /// Takes an event. It keeps its time, and the rest if the report reads it.
    pub(crate) fn add(&mut self, event: &Value) {
        let Ok(event) = WireEvent::deserialize(event) else { return };
        let Some(at) = event.at() else { return };
        self.oldest = Some(self.oldest.map_or(at, |oldest| oldest.min(at)));
        let is_left_off = if event.is_disruption().is_some() {
            event
                .read_of_job(at)
                .is_some_and(|seen| push(&mut self.of_jobs, seen, job_events::KEPT_MAX))
        } else {
            event.read(at).is_some_and(|seen| push(&mut self.kept, seen, KEPT_MAX))
        };
        self.left_off = self.left_off.saturating_add(u64::from(is_left_off));
    }
}

/// Keeps an event, and returns whether there was no place.
fn push<T>(kept: &mut Vec<T>, seen: T, max: usize) -> bool {
    let is_full = kept.len() >= max;
    if !is_full {
        kept.push(seen);
    }
    is_full
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(reporter: &str, kind: &str, reason: &str, message: &str) -> Value {
        json!({"kind": "Event", "reason": reason, "message": message,
               "involvedObject": {"kind": kind, "namespace": "a", "name": "x", "uid": "u"},
               "reportingComponent": reporter, "eventTime": "2026-11-21T12:00:00.000001Z"})
    }

    fn meanings(events: &[Value]) -> Vec<Meaning> {
        let mut log = EventLog::default();
        for event in events {
            log.add(event);
        }
        log.kept.iter().map(|event| event.meaning).collect()
    }

    #[test]
    fn writer_object_and_message_decide_what_an_event_means() {
        let low = "The node was low on resource: memory. ";
        let own = "Container main exceeded its local ephemeral storage limit \"1Mi\". ";
        let table = [
            (
                "epilogue.dev/agent",
                "Pod",
                "Evicted",
                low,
                Some(Meaning::Acted(Cause::NodePressure)),
            ),
            ("kubelet", "Pod", "Evicted", low, Some(Meaning::Hit(Cause::NodePressure))),
            ("kubelet", "Pod", "Evicted", own, Some(Meaning::Counted)),
            ("kubelet", "Pod", "Evicted", "", Some(Meaning::Unclear)),
            ("kubelet", "Node", "Rebooted", "", Some(Meaning::Hit(Cause::NodeRebooted))),
            ("kubelet", "Pod", "Rebooted", "", None),
            ("kubelet", "Pod", "Started", "", None),
            ("kubelet", "Pod", "PodLost", "", None),
            ("epilogue-pod-gc", "Pod", "PodWouldFail", "", Some(Meaning::Would(Cause::Stuck))),
            ("t", "Pod", "TaintManagerEviction", "Cancelling", Some(Meaning::Counted)),
            ("t", "Pod", "TaintManagerEviction", "Marking", Some(Meaning::Hit(Cause::Taint))),
            ("kubelet", "Job", "Evicted", low, None),
        ];
        for (reporter, kind, reason, message, expected) in table {
            let event = event(reporter, kind, reason, message);
            let found = meanings(std::slice::from_ref(&event)).first().copied();
            assert_eq!(found, expected, "{reason} {message}");
            assert_eq!(is_read(&event), expected.is_some(), "{reason}");
        }
    }

    #[test]
    fn old_and_new_forms_of_an_event_have_a_time_and_a_count() {
        let mut old = event("", "Node", "NodeShutdown", "");
        old["source"] = json!({"component": "kubelet"});
        old["eventTime"] = Value::Null;
        old["series"] = Value::Null;
        old["lastTimestamp"] = "2026-11-21T11:00:00Z".into();
        old["count"] = 3.into();
        let mut new = event("epilogue.dev/agent", "Pod", "PodLost", "");
        new["series"] = json!({"count": 2, "lastObservedTime": "2026-11-21T13:00:00.000000Z"});
        let mut log = EventLog::default();
        for event in [&old, &new, &json!({"reason": 7}), &json!(null)] {
            log.add(event);
        }
        let seen: Vec<_> = log.kept.iter().map(|it| (it.at.to_string(), it.count)).collect();
        let expected = [("2026-11-21T11:00:00Z", 3), ("2026-11-21T13:00:00Z", 2)];
        assert_eq!(seen, expected.map(|(at, count)| (at.to_owned(), count)));
        assert_eq!(log.oldest.map(|at| at.to_string()).as_deref(), Some("2026-11-21T11:00:00Z"));
    }

    #[test]
    fn an_event_without_a_use_still_says_how_far_events_go_back() {
        let mut log = EventLog::default();
        log.add(&event("kubelet", "Pod", "Started", ""));
        assert!(log.kept.is_empty() && log.oldest.is_some());
    }

    #[test]
    fn every_event_of_ours_in_the_table_is_documented() {
        let page = include_str!("../../../../../docs/operations.md");
        for (_, _, reason, _) in TABLE.iter().filter(|row| row.0 != Writer::Kubernetes) {
            assert!(page.contains(&format!("`{reason}`")), "{reason}");
        }
    }
}
