//! Tells which failed pods were lost with their node: it booted again, or lost their containers.
//!
//! A kubelet that finds a pod's containers dead after a boot writes the phase Failed, without a
//! condition. So the failure counts like one of the program, and only an agent that is faster than
//! the kubelet can prevent that.

use jiff::{SignedDuration, Timestamp};

use super::input::NodeBoots;
use crate::view::{ContainerKind, EndedBy, Phase, Pod, Terminated};

/// The exit codes of a program that SIGKILL or SIGTERM ended.
const KILLED: [i32; 2] = [128 + 9, 128 + 15];
/// The longest time from the end of the first container to the next boot of its node. A machine
/// may wait for its last unit, and be long in its firmware.
const SHUTDOWN_MAX: SignedDuration = SignedDuration::from_mins(15);

/// What a node's boots say of a failed pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss<'a> {
    /// The pod was lost with its node; with the boots, if they were seen.
    Lost(Option<&'a NodeBoots>),
    /// Its containers were lost, and the node shows no boot yet.
    NoBootYet,
    /// The pod failed by itself.
    None,
}

/// What is left of a failed pod's containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remains {
    /// How a container ended is not known.
    Unknown,
    /// Somebody sent a signal to a container.
    Killed,
}

/// Whether a pod failed because its node lost its containers.
///
/// Without a boot, the kubelet or the runtime lost them otherwise, and the pod counts as upstream
/// counts it. Where the boots since its creation are not known, the status alone decides: a
/// controller that was down itself has seen neither boot. No clock of the node has a say, because
/// it may be wrong after a boot, except for a container that was killed.
pub(super) fn loss<'a>(pod: &Pod, boots: Option<&'a NodeBoots>) -> Loss<'a> {
    match (remains(pod), boots) {
        (Some(Remains::Unknown), None) => Loss::Lost(None),
        (Some(Remains::Unknown), Some(NodeBoots::Same)) => Loss::NoBootYet,
        (Some(Remains::Unknown), booted) => Loss::Lost(booted),
        (Some(Remains::Killed), Some(NodeBoots::Booted { shown, .. }))
            if were_killed_before(pod, *shown) =>
        {
            Loss::Lost(boots)
        }
        _ => Loss::None,
    }
}

/// Whether nothing of a failed pod says that its program failed: no container ended with an error
/// of its own. What sidecars do decides no phase. `None` also if the kubelet or a deletion gives
/// another reason.
fn remains(pod: &Pod) -> Option<Remains> {
    let other = pod.phase != Phase::Failed || pod.gc.reason().is_some() || pod.deletion.is_some();
    if other {
        return None;
    }
    let mut remains = None;
    for end in ends(pod) {
        match end.by {
            EndedBy::Unknown => remains = remains.or(Some(Remains::Unknown)),
            EndedBy::Program if end.exit_code == 0 => {}
            _ if is_killed(end) => remains = Some(Remains::Killed),
            EndedBy::Program | EndedBy::OomKill | EndedBy::Start => return None,
        }
    }
    remains
}

/// Whether the containers that a signal ended did so while their node went down for a boot that
/// was first shown at this time.
fn were_killed_before(pod: &Pod, shown: Timestamp) -> bool {
    let in_time = |end: Timestamp| end <= shown && shown.duration_since(end) <= SHUTDOWN_MAX;
    pod.gc.last_start().is_some_and(|start| start <= shown)
        && ends(pod).filter(|end| is_killed(*end)).all(|end| end.finished_at.is_some_and(in_time))
}

fn ends(pod: &Pod) -> impl Iterator<Item = Terminated> {
    let decide = pod.containers.iter().filter(|each| each.kind != ContainerKind::Sidecar);
    decide.filter_map(|each| each.terminated)
}

fn is_killed(end: Terminated) -> bool {
    end.by == EndedBy::Program && KILLED.contains(&end.exit_code)
}
