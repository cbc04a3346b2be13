//! Counts the pods that a shutdown leaves without a terminal phase in the API, by reason. So the
//! agent never claims success for them.

use super::super::disruptions::Disruptions;
use super::super::facts::Facts;
use super::super::status::LeftReason;
use super::run::scope;
use super::{Left, Shutdown};
use crate::pod::{PodSource, PodView};
use crate::shutdown::Mode;
use crate::shutdown::candidates::{Excluded, Scope, excluded};
use crate::termination::progress::{PodTermination, Terminator};

/// How many pods are left against the plan. DaemonSet pods do not count: they start again with the
/// machine.
pub(super) fn number(left: &Left) -> usize {
    left.iter().filter(|(why, _)| **why != LeftReason::DaemonSet).map(|(_, number)| number).sum()
}

/// `2 NoController, 1 NotTerminated`.
pub(super) fn words(left: &Left) -> String {
    let words = left.iter().map(|(why, number)| format!("{number} {}", why.name()));
    words.collect::<Vec<_>>().join(", ")
}

/// The pods without a terminal phase that the shutdown does not wait for, except static pods and
/// the agent's own.
pub(super) fn left_behind(shutdown: &Shutdown, facts: &Facts, disruptions: &Disruptions) -> Left {
    let scope = scope(shutdown.mode.found, facts);
    let mut left = Left::new();
    for pod in facts.pods.iter() {
        if facts.is_own(&pod.uid) || pod.is_terminal() || pod.source == PodSource::Static {
            continue;
        }
        let entry = disruptions.get(&pod.uid);
        let termination = entry.and_then(|entry| entry.shutdown.as_ref());
        let counted = termination.is_some_and(|termination| {
            termination.is_reported() || termination.is_awaited() || termination.is_unacknowledged()
        });
        if !counted {
            let exited = entry.is_some_and(|entry| entry.had_exited) && termination.is_some();
            let why = if exited {
                LeftReason::ExitedBefore
            } else {
                why(pod, termination, shutdown, &scope)
            };
            *left.entry(why).or_default() += 1;
        }
    }
    left
}

fn why(
    pod: &PodView,
    termination: Option<&PodTermination>,
    shutdown: &Shutdown,
    scope: &Scope,
) -> LeftReason {
    if let Some(termination) = termination {
        let tolerates = shutdown.came_late(&pod.uid) && pod.details.tolerates_shutdown;
        if tolerates && scope.mode == Mode::Replace && termination.end.by == Terminator::None {
            return LeftReason::ToleratesShutdown;
        }
        if termination.report.is_left() {
            return LeftReason::Succeeded;
        }
        if termination.end.by != Terminator::None {
            return LeftReason::NotTerminated;
        }
    }
    match excluded(pod, scope) {
        Some(Excluded::DaemonSet) => LeftReason::DaemonSet,
        Some(Excluded::AbovePriorityMax) => LeftReason::PriorityAboveMax,
        _ if scope.leaves_bare(pod) => LeftReason::NoController,
        _ => LeftReason::NoTerminator,
    }
}
