//! Names why Jobs get no pods and why pods do not start, as far as the API says. `explain` and
//! `doctor` print it. Pure.

use controller_core::job::{pending_reason, plain};
use controller_core::view::{Job, Phase, Pod};
use epilogue_common::finding_code::FindingCode as Code;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::kind::Kind;

/// The most characters of a message of others.
const MESSAGE_MAX: usize = 400;
/// A controller tries again before this is over; an older refusal says nothing about now.
const REFUSAL_MAX: SignedDuration = SignedDuration::from_mins(15);
/// An older failure to mount may be mended. The kubelet tries again every two minutes, and after
/// 25 events about a pod, client-go lets it write one in five minutes.
const MOUNT_MAX: SignedDuration = SignedDuration::from_mins(10);
/// The event of a pod that could not be created.
pub(crate) const FAILED_CREATE: &str = "FailedCreate";

/// Why something does not go on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Obstacle {
    /// The code, which `docs/troubleshooting.md` explains.
    pub(crate) code: Code,
    /// What has to happen, with the words of the one who says so.
    pub(crate) needs: String,
}

/// A refusal of the pods of a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) obstacle: Obstacle,
    /// When the first and the last pod of this kind were refused.
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
}

/// The first and the last time of an event.
pub(crate) fn times(event: &Value) -> Option<(Timestamp, Timestamp)> {
    let time = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let all = [
        time(&event["firstTimestamp"]),
        time(&event["eventTime"]),
        time(&event["lastTimestamp"]),
        time(&event["series"]["lastObservedTime"]),
    ];
    let created = || time(&event["metadata"]["creationTimestamp"]);
    let known = || all.into_iter().flatten();
    Some((known().min().or_else(created)?, known().max().or_else(created)?))
}

/// How often an event was seen.
pub(crate) fn count(event: &Value) -> u64 {
    event["series"]["count"].as_u64().or_else(|| event["count"].as_u64()).unwrap_or(1).max(1)
}

/// Whether the event is about the object of this kind and UID.
pub(crate) fn is_about(event: &Value, kind: &str, uid: &str) -> bool {
    let about = &event["involvedObject"];
    event["kind"] == Kind::Event.name() && about["kind"] == kind && about["uid"] == uid
}

/// Why the Job lacks pods, if their creation was refused lately.
pub(crate) fn refusal<'a>(
    job: &Job,
    events: impl IntoIterator<Item = &'a Value>,
    now: Timestamp,
) -> Option<Refusal> {
    if !lacks_pods(job) {
        return None;
    }
    let of_job = events.into_iter().filter(|event| {
        event["reason"] == FAILED_CREATE && is_about(event, Kind::Job.name(), job.uid.as_str())
    });
    let timed = of_job.filter_map(|event| Some((times(event)?, event)));
    let all: Vec<_> = timed.collect();
    let (_, latest) = all.iter().max_by_key(|((_, last), _)| *last)?;
    let obstacle = refused(latest["message"].as_str());
    let same = |event: &Value| refused(event["message"].as_str()).code == obstacle.code;
    let alike = || all.iter().filter(|(_, event)| same(event)).map(|(times, _)| *times);
    let first = alike().map(|(first, _)| first).min()?;
    let last = alike().map(|(_, last)| last).max()?;
    (now.duration_since(last) <= REFUSAL_MAX).then_some(Refusal { obstacle, first, last })
}

/// Whether the Job should have more pods than its status shows.
fn lacks_pods(job: &Job) -> bool {
    if job.is_finished() || job.deleting || job.spec.suspend {
        return false;
    }
    let status = &job.status;
    let left = job.spec.completions.map(|all| all.saturating_sub(status.succeeded.unwrap_or(0)));
    let wanted = left.map_or(job.spec.parallelism, |left| left.min(job.spec.parallelism));
    status.active.unwrap_or(0) < wanted
}

/// What the message of a refused creation says.
fn refused(message: Option<&str>) -> Obstacle {
    let Some(message) = message.filter(|text| !text.is_empty()) else {
        let needs = "its pods to be created; the dump does not say why they were not".to_owned();
        return Obstacle { code: Code::PodsRefused, needs };
    };
    if let Some((_, quota)) = message.split_once("exceeded quota: ") {
        let (name, figures) = quota.split_once(", ").unwrap_or((quota, ""));
        let figures = plain(figures, MESSAGE_MAX);
        let needs = format!("the quota {} to allow its pods: {figures}", plain(name, MESSAGE_MAX));
        return Obstacle { code: Code::QuotaExceeded, needs };
    }
    let words = message.strip_prefix("Error creating: ").unwrap_or(message);
    let needs = format!("its pods to be accepted: {}", plain(words, MESSAGE_MAX));
    Obstacle { code: Code::PodsRefused, needs }
}

/// Why an active pod does not start; `None` if nothing keeps it, as far as is known. `object` is
/// the pod as the API gives it.
pub(crate) fn of_pod<'a>(
    pod: &Pod,
    object: &Value,
    events: impl IntoIterator<Item = &'a Value>,
    now: Timestamp,
) -> Option<Obstacle> {
    let reason = pending_reason(pod);
    if !pod.is_active() || pod.phase != Phase::Pending && reason.is_none() {
        return None;
    }
    if pod.node.is_none() {
        let words = unscheduled(object).or(reason).map(|text| plain(text, MESSAGE_MAX));
        let words = words.map(|words| format!(": {words}")).unwrap_or_default();
        return Some(Obstacle {
            code: Code::PodUnscheduled,
            needs: format!("to be scheduled{words}"),
        });
    }
    let Some(reason) = reason else { return mount(pod, events, now) };
    let (code, what) = match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "InvalidImageName"
        | "ErrImageNeverPull"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => (Code::ImageNotPulled, "to get its image"),
        "CreateContainerConfigError" => (Code::VolumeOrConfigMissing, "to get its configuration"),
        _ => (Code::PodCannotStart, "to start"),
    };
    let words = waiting_message(object, reason).map(|text| plain(text, MESSAGE_MAX));
    let words = words.map(|words| format!(": {words}")).unwrap_or_default();
    let reason = plain(reason, MESSAGE_MAX);
    Some(Obstacle { code, needs: format!("{what}; it reports {reason}{words}") })
}

/// The message of a false `PodScheduled`.
fn unscheduled(pod: &Value) -> Option<&str> {
    let conditions = pod["status"]["conditions"].as_array()?;
    let scheduled =
        conditions.iter().find(|it| it["type"] == "PodScheduled" && it["status"] == "False")?;
    scheduled["message"].as_str().filter(|text| !text.is_empty())
}

/// The message of the container that waits for this reason.
fn waiting_message<'a>(pod: &'a Value, reason: &str) -> Option<&'a str> {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let all = lists.into_iter().filter_map(|list| pod["status"][list].as_array()).flatten();
    let mut waiting = all.map(|each| &each["state"]["waiting"]);
    let it = waiting.find(|it| it["reason"] == reason)?;
    it["message"].as_str().filter(|text| !text.is_empty())
}

/// A volume that could not be mounted or attached lately, by an event about the pod.
fn mount<'a>(
    pod: &Pod,
    events: impl IntoIterator<Item = &'a Value>,
    now: Timestamp,
) -> Option<Obstacle> {
    let of_pod = events.into_iter().filter(|event| {
        let reason = event["reason"].as_str().unwrap_or_default();
        let age = times(event).map(|(_, last)| now.duration_since(last));
        matches!(reason, "FailedMount" | "FailedAttachVolume")
            && age.is_some_and(|age| age <= MOUNT_MAX)
            && is_about(event, Kind::Pod.name(), pod.uid.as_str())
    });
    let last = of_pod.max_by_key(|event| times(event).map(|(_, last)| last))?;
    let message = last["message"].as_str().unwrap_or("a volume cannot be mounted");
    let needs = format!("to get its volumes: {}", plain(message, MESSAGE_MAX));
    Some(Obstacle { code: Code::VolumeOrConfigMissing, needs })
}

/// Finalizers of others, which keep a deleted object.
pub(crate) fn other_finalizers(object: &Value, own: &str) -> Option<String> {
    let all = object["metadata"]["finalizers"].as_array()?;
    let others: Vec<String> = all
        .iter()
        .filter_map(Value::as_str)
        .filter(|name| *name != own)
        .map(|name| plain(name, MESSAGE_MAX))
        .collect();
    (!others.is_empty()).then(|| others.join(", "))
}

#[cfg(test)]
mod tests;
