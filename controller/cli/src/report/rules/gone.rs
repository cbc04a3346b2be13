//! Judges pods that are gone from the API, by the events that they left, and by those of their Job.

use std::collections::BTreeMap;

use epilogue_common::finding_code::FindingCode as Code;

use super::answer::{Basis, Cause, DisruptedPod, Help};
use super::cluster::{Hit, key};
use super::event_log::{About, EventLog, Meaning};
use super::job_events::JobEvent;
use controller_core::job::Cause as EndCause;
use epilogue_common::pod_end::PodEnd;

/// The namespace and the name of each pod of the events, by its key.
pub(super) fn names(events: &EventLog) -> BTreeMap<String, (String, String)> {
    let pods = events.kept.iter().filter_map(|event| match &event.about {
        About::Pod { namespace, name, uid } => {
            Some((key(namespace, name, uid), (namespace.clone(), name.clone())))
        }
        About::Node(_) => None,
    });
    pods.collect()
}

/// What became of a pod of which only these events are left; `None` if they show no disruption.
pub(super) fn judge((namespace, name): &(String, String), hits: &[Hit]) -> Option<DisruptedPod> {
    let first = |pick: fn(Meaning) -> Option<Cause>| {
        hits.iter().find_map(|hit| pick(hit.meaning).map(|cause| (cause, hit)))
    };
    let acted =
        first(|meaning| if let Meaning::Acted(cause) = meaning { Some(cause) } else { None });
    let would =
        first(|meaning| if let Meaning::Would(cause) = meaning { Some(cause) } else { None });
    let hit = first(|meaning| if let Meaning::Hit(cause) = meaning { Some(cause) } else { None });
    let (cause, event) = acted.or(would).or(hit)?;
    let epilogue = match event.meaning {
        Meaning::Acted(_) => Help::Acted,
        Meaning::Would(_) => Help::WouldHaveActed,
        _ if cause == Cause::Stuck => Help::Nothing,
        _ => Help::NotNeeded,
    };
    // The kubelet fails a pod that it evicts before the object goes. For the other two,
    // Kubernetes sets DisruptionTarget; the phase is not known.
    let reported = match cause {
        _ if epilogue == Help::Acted => Some(Basis::Seen),
        Cause::NodePressure if epilogue == Help::NotNeeded => Some(Basis::Seen),
        Cause::Preemption | Cause::Taint => Some(Basis::Estimated),
        _ => None,
    };
    let (code, basis, how) = if let Some(basis) = reported {
        (Code::DisruptionReported, basis, "")
    } else {
        let how = "; the pod is gone from the API, and its last phase is not known";
        (Code::StatusMissingPodDeleted, Basis::Estimated, how)
    };
    Some(DisruptedPod {
        code,
        namespace: namespace.clone(),
        name: name.clone(),
        node: None,
        job: None,
        cause,
        basis,
        how: format!("{}{how}", event.words()),
        at: Some(event.at),
        work_seconds: None,
        waited_seconds: None,
        epilogue,
        epilogue_basis: Basis::Seen,
        epilogue_how: match epilogue {
            Help::Acted | Help::WouldHaveActed => event.words(),
            Help::NotNeeded => "Kubernetes reports such a disruption itself".to_owned(),
            Help::Nothing => {
                "no event says that the agent could prove that nothing runs".to_owned()
            }
        },
    })
}

/// The disrupted pod that an event of its Job describes.
pub(super) fn described(event: &JobEvent, end: &PodEnd) -> DisruptedPod {
    let cause = cause(&event.cause);
    let of_pod_gc = matches!(event.cause.as_str(), "NodeGone" | "ForceFailed");
    let epilogue = if of_pod_gc { Help::Acted } else { Help::NotNeeded };
    let how = words(event, end);
    DisruptedPod {
        code: Code::DisruptionReported,
        namespace: event.job.namespace.clone(),
        name: end.pod.clone(),
        node: end.node.clone(),
        job: Some(event.job.name.clone()),
        cause,
        basis: Basis::Seen,
        at: Some(end.at),
        work_seconds: None,
        waited_seconds: None,
        epilogue,
        // Without the pod nothing says whether the agent set the condition or Kubernetes.
        epilogue_basis: if of_pod_gc { Basis::Seen } else { Basis::Estimated },
        epilogue_how: match epilogue {
            Help::Acted => how.clone(),
            _ => "the pod had its DisruptionTarget when its Job counted it".to_owned(),
        },
        how,
    }
}

/// What the Job's event adds to a pod of which other events are left, too: how it ended.
pub(super) fn complete(pod: &mut DisruptedPod, event: &JobEvent, end: &PodEnd) {
    pod.node = pod.node.take().or_else(|| end.node.clone());
    pod.job = Some(event.job.name.clone());
    if pod.code == Code::StatusMissingPodDeleted || pod.basis == Basis::Estimated {
        // The Job saw the pod's last status.
        let reported = event.is_disruption || pod.epilogue == Help::Acted;
        pod.code = if reported { Code::DisruptionReported } else { FAILED };
        pod.basis = Basis::Seen;
        pod.at = Some(end.at);
        pod.how = format!("{}; {}", words(event, end), pod.epilogue_how);
        if event.is_disruption {
            pod.cause = cause(&event.cause);
        }
    }
}

const FAILED: Code = Code::FailureWithoutDisruptionTarget;

fn words(event: &JobEvent, end: &PodEnd) -> String {
    let reason = if event.is_disruption { "PodDisrupted" } else { "PodFailed" };
    format!("event {reason} of Job {}: {}", event.job.name, end.says)
}

/// What disrupted the pod, by the cause of its end.
fn cause(label: &str) -> Cause {
    let known = EndCause::ALL.into_iter().find(|it| it.label() == label);
    match known {
        Some(EndCause::EvictionByEvictionApi) => Cause::Drain,
        Some(EndCause::PreemptionByScheduler) => Cause::Preemption,
        Some(EndCause::DeletionByTaintManager) => Cause::Taint,
        Some(EndCause::DeletionByPodGc | EndCause::NodeGone) => Cause::NodeGone,
        Some(EndCause::LostByNode) => Cause::NodeRebooted,
        Some(EndCause::ForceFailed) => Cause::Stuck,
        // A shutdown or a shortage, as for a pod in the API.
        _ => Cause::NodeShutdown,
    }
}
