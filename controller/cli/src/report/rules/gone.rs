//! Judges pods that are gone from the API, by the events that they left.

use std::collections::BTreeMap;

use epilogue_common::finding_code::FindingCode as Code;

use super::answer::{Basis, Cause, DisruptedPod, Help};
use super::cluster::{Hit, key};
use super::event_log::{About, EventLog, Meaning};

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
