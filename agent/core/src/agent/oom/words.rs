//! Formats the messages about a kill, for the condition and for events.

use crate::pod::PodView;
use crate::protocol::pressure::{OomConstraint, OomWitness, OomdKill};
use crate::quantity::Quantity;
use epilogue_common::names::oom_reason::{CONTAINER_LIMIT, NODE_OUT_OF_MEMORY};

use super::kills::Kill;

/// The length of a shown id, as in other tools.
const ID_SHOWN: usize = 12;

/// The condition's reason.
pub(super) fn reason(kill: &Kill, pod: &PodView) -> &'static str {
    match kill.what.constraint {
        OomConstraint::ContainerLimit | OomConstraint::PodLimit => CONTAINER_LIMIT,
        OomConstraint::Unknown if own_limit(kill, pod).is_some() => CONTAINER_LIMIT,
        OomConstraint::Node | OomConstraint::Unknown => NODE_OUT_OF_MEMORY,
    }
}

/// What happened, why, and which witness reports it.
pub(super) fn message(kill: &Kill, pod: &PodView) -> String {
    let container = container(kill.container.as_deref(), kill.what.container_id.as_deref());
    let ended = kill.what.container_lives != Some(true) && !kill.exited_well;
    let victim = match &kill.what.process {
        Some((pid, name)) => format!("process {name} ({pid}) of {container}"),
        None if ended => container,
        None => format!("a process of {container}"),
    };
    let witness = match kill.what.witness {
        OomWitness::KernelLog => "the kernel's log",
        OomWitness::MemoryEvents => "memory.events",
        OomWitness::Runtime => "the container's status",
    };
    format!("The kernel killed {victim}: {}. Seen in {witness}.", why(kill, pod))
}

/// The message of an accompanying `DisruptionTarget`.
pub(super) fn disruption(container: Option<&str>, id: Option<&str>) -> String {
    let container = self::container(container, id);
    format!("The node was out of memory; the kernel killed {container}.")
}

/// The message about a kill by systemd-oomd.
pub(super) fn by_oomd(kill: &OomdKill, name: Option<&str>) -> String {
    let victim = match (&kill.container_id, name) {
        (None, None) => "the pod".to_owned(),
        (id, name) => container(name, id.as_deref()),
    };
    let why = match kill.reason.as_str() {
        "memory-used" => "memory and swap were nearly used up",
        "memory-pressure" => "it waited for memory for too long",
        other => other,
    };
    format!("systemd-oomd killed {victim}: {why}. Its cgroup was {}.", kill.cgroup)
}

/// A container by its name, or by the beginning of its id.
fn container(name: Option<&str>, id: Option<&str>) -> String {
    match (name, id) {
        (Some(name), _) => format!("container {name}"),
        (None, Some(id)) => {
            format!("container {}", id.get(..ID_SHOWN).unwrap_or(id))
        }
        (None, None) => "a container".to_owned(),
    }
}

fn why(kill: &Kill, pod: &PodView) -> String {
    let of = |limit: Option<u64>| {
        limit.map_or_else(String::new, |limit| format!(" of {}", Quantity::bytes(limit)))
    };
    match kill.what.constraint {
        OomConstraint::ContainerLimit => {
            let limit = of(kill.what.limit.or_else(|| container_limit(kill, pod)));
            format!("the container was at its memory limit{limit}")
        }
        OomConstraint::PodLimit => {
            format!("the pod was at its memory limit{}", of(kill.what.limit))
        }
        OomConstraint::Node => "the node had no memory left for it".to_owned(),
        OomConstraint::Unknown => match own_limit(kill, pod) {
            Some((whose, limit)) => {
                let limit = of(Some(limit));
                format!("it is not known why, and the {whose} has a memory limit{limit}")
            }
            None => "it is not known why, and the container has no memory limit".to_owned(),
        },
    }
}

/// Whose memory limit may have been reached, and the limit: the container's, or the pod's own.
fn own_limit(kill: &Kill, pod: &PodView) -> Option<(&'static str, u64)> {
    let of_pod = pod.asks.memory_limit.map(|limit| ("pod", limit));
    container_limit(kill, pod).map(|limit| ("container", limit)).or(of_pod)
}

/// `limits.memory` of the container.
fn container_limit(kill: &Kill, pod: &PodView) -> Option<u64> {
    let name = kill.container.as_ref()?;
    pod.asks.containers.iter().find(|asks| asks.name == *name)?.memory_limit
}
