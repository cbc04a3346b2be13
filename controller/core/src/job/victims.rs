//! Decides which active pods go first when there are too many. ([P11], [P12])

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::view::{ContainerKind, Job, Phase, Pod};

/// At least `excess` pods of an Indexed or NonIndexed Job, in the order of deletion.
///
/// An Indexed Job also loses pods whose index is missing, repeated or out of range.
pub(super) fn choose(job: &Job, active: &[Arc<Pod>], excess: usize) -> Vec<Arc<Pod>> {
    let mut ordered: Vec<Arc<Pod>> = active.to_vec();
    ordered.sort_by(|left, right| compare(left, right));
    if !job.is_indexed() {
        ordered.truncate(excess);
        return ordered;
    }
    let mut last_of_index: HashMap<u32, usize> = HashMap::new();
    for (position, pod) in ordered.iter().enumerate() {
        if let Some(index) = pod.index {
            last_of_index.insert(index, position);
        }
    }
    let is_misplaced = |position: usize, pod: &Pod| {
        pod.index.is_none_or(|index| !job.has_index(index) || last_of_index[&index] != position)
    };
    let (mut victims, mut rest) = (Vec::new(), Vec::new());
    for (position, pod) in ordered.into_iter().enumerate() {
        if is_misplaced(position, &pod) { victims.push(pod) } else { rest.push(pod) }
    }
    let missing = excess.saturating_sub(victims.len());
    victims.extend(rest.into_iter().take(missing));
    victims
}

/// Less means deleted earlier.
fn compare(left: &Pod, right: &Pod) -> Ordering {
    left.node
        .is_some()
        .cmp(&right.node.is_some())
        .then_with(|| phase_rank(left.phase).cmp(&phase_rank(right.phase)))
        .then_with(|| left.is_ready().cmp(&right.is_ready()))
        .then_with(|| younger_first(ready_since(left), ready_since(right)))
        .then_with(|| Reverse(restarts(left)).cmp(&Reverse(restarts(right))))
        .then_with(|| younger_first(left.created, right.created))
}

fn phase_rank(phase: Phase) -> u8 {
    match phase {
        Phase::Running => 2,
        Phase::Unknown => 1,
        _ => 0,
    }
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    pod.ready.filter(|ready| ready.is_true).and_then(|ready| ready.since)
}

/// A missing time comes first, then the later time.
fn younger_first(left: Option<Timestamp>, right: Option<Timestamp>) -> Ordering {
    match (left, right) {
        (Some(left), Some(right)) => right.cmp(&left),
        _ => left.is_some().cmp(&right.is_some()),
    }
}

/// The highest restart count of regular containers, then of sidecars.
fn restarts(pod: &Pod) -> (u32, u32) {
    let highest = |kind: ContainerKind| {
        let counts = pod.containers.iter().filter(|each| each.kind == kind);
        counts.map(|each| each.restarts).max().unwrap_or(0)
    };
    (highest(ContainerKind::Regular), highest(ContainerKind::Sidecar))
}
