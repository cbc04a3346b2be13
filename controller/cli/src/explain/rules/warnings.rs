//! Sums up the Warning events of a Job: what its controller could not do lately.

use controller_core::event_series::FAILED_RELEASE;
use epilogue_common::finding_code::FindingCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use crate::kind::Kind;

/// What Warning events of one reason say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Warning {
    /// The reason, such as `FailedCreate`.
    pub(crate) reason: String,
    /// How often the API has it. It keeps events for an hour.
    pub(crate) count: u64,
    /// When it was last seen.
    pub(crate) last: Timestamp,
    /// The message that came last; `None` in a dump.
    pub(crate) message: Option<String>,
}

impl Warning {
    /// The heading of `docs/troubleshooting.md` that explains it, where there is one.
    pub(crate) fn code(&self) -> Option<FindingCode> {
        (self.reason == FAILED_RELEASE).then_some(FindingCode::FinalizerNotRemoved)
    }
}

/// Whether this event is a Warning about a Job. A dump keeps it.
pub(crate) fn is_warning(event: &Value) -> bool {
    event["kind"] == Kind::Event.name()
        && event["type"] == "Warning"
        && event["involvedObject"]["kind"] == Kind::Job.name()
}

/// The warnings about the Job of this UID, the latest first.
pub(crate) fn warnings(events: &[Value], uid: &str) -> Vec<Warning> {
    let mut found: Vec<Warning> = Vec::new();
    for event in events.iter().filter(|event| is_warning(event)) {
        let Ok(event) = Event::deserialize(event) else { continue };
        if event.involved_object.uid.as_deref() != Some(uid) {
            continue;
        }
        let Some(warning) = read(event) else { continue };
        match found.iter_mut().find(|known| known.reason == warning.reason) {
            Some(known) => {
                known.count = known.count.saturating_add(warning.count);
                if known.last < warning.last {
                    (known.last, known.message) = (warning.last, warning.message);
                }
            }
            None => found.push(warning),
        }
    }
    found.sort_by(|left, right| right.last.cmp(&left.last).then(left.reason.cmp(&right.reason)));
    found
}

/// `None` without a reason or any time.
fn read(event: Event) -> Option<Warning> {
    let series = event.series.as_ref();
    let of_series = series.and_then(|series| Some(series.last_observed_time.as_ref()?.0));
    let times = [of_series, event.last_timestamp.map(|at| at.0), event.event_time.map(|at| at.0)];
    let created = event.metadata.creation_timestamp.map(|at| at.0);
    let count = series.and_then(|series| series.count).or(event.count).unwrap_or(1);
    Some(Warning {
        reason: event.reason?,
        count: u64::try_from(count).unwrap_or(1).max(1),
        last: times.into_iter().flatten().max().or(created)?,
        message: event.message.filter(|text| !text.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(reason: &str, uid: &str, second: u32) -> Value {
        json!({
            "kind": "Event", "type": "Warning", "reason": reason,
            "metadata": {"creationTimestamp": "2026-11-21T09:00:00Z"},
            "message": format!("{reason} at {second}"),
            "involvedObject": {"kind": "Job", "uid": uid},
            "eventTime": format!("2026-11-21T09:00:{second:02}.000001Z"),
        })
    }

    fn lines(events: &[Value]) -> Vec<String> {
        let line = |it: Warning| {
            let message = it.message.unwrap_or_default();
            format!("{} {} {} {message}", it.reason, it.count, it.last)
        };
        warnings(events, "u").into_iter().map(line).collect()
    }

    #[test]
    fn warnings_of_a_reason_are_summed_up_and_the_latest_comes_first() {
        let mut series = event("StatusAltered", "u", 5);
        series["series"] = json!({"count": 14, "lastObservedTime": "2026-11-21T09:10:00.000000Z"});
        let mut old = event("FailedCreate", "u", 30);
        old["eventTime"] = json!(null);
        old["lastTimestamp"] = "2026-11-21T09:00:30Z".into();
        old["count"] = 3.into();
        assert_eq!(
            lines(&[old, event("FailedCreate", "u", 20), series]),
            [
                "StatusAltered 14 2026-11-21T09:10:00Z StatusAltered at 5",
                "FailedCreate 4 2026-11-21T09:00:30Z FailedCreate at 30",
            ]
        );
    }

    #[test]
    fn only_warnings_about_this_very_job_count() {
        let mut normal = event("SuccessfulCreate", "u", 1);
        normal["type"] = "Normal".into();
        let mut pod = event("Failed", "u", 1);
        pod["involvedObject"]["kind"] = "Pod".into();
        let former = event("FailedCreate", "former", 1);
        let mut without_time = event("FailedCreate", "u", 1);
        without_time["eventTime"] = json!(null);
        without_time["metadata"] = json!({});
        let mut unreadable = event("FailedCreate", "u", 1);
        unreadable["count"] = "many".into();
        assert!(lines(&[normal, pod, former, without_time, unreadable]).is_empty());
        let mut young = event("FailedCreate", "u", 1);
        young["eventTime"] = json!(null);
        young["series"] = json!({"count": -1});
        young["message"] = "".into();
        assert_eq!(lines(&[young]), ["FailedCreate 1 2026-11-21T09:00:00Z "]);
    }
}
