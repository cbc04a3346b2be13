//! The pods that a shutdown leaves without a last phase in the API, and why: so that success is
//! never claimed for them.

use std::collections::BTreeMap;

use super::Agent;
use super::run::Run;
use super::status::LeftReason;
use crate::ending::progress::{Ending, Way};
use crate::pod::{PodSource, PodView};
use crate::shutdown::candidates::{Scope, Spared, spared};

/// Pods by the reason for which they are left.
pub(super) type Left = BTreeMap<LeftReason, usize>;

/// How many pods are left against the plan: DaemonSets' pods start again with the machine.
pub(super) fn number(left: &Left) -> usize {
    left.iter().filter(|(why, _)| **why != LeftReason::DaemonSet).map(|(_, number)| number).sum()
}

/// `2 NoController, 1 NotTerminated`.
pub(super) fn words(left: &Left) -> String {
    let words = left.iter().map(|(why, number)| format!("{number} {}", why.name()));
    words.collect::<Vec<_>>().join(", ")
}

impl Agent {
    /// The pods of the node, but static ones and the agent's own, that have no last phase and that
    /// the run does not wait for.
    pub(super) fn left_behind(&self, run: &Run) -> Left {
        let scope = self.scope(run.found);
        let mut left = Left::new();
        for pod in self.pods.iter() {
            let own = self.settings.own_pod.as_ref() == Some(&pod.uid);
            if own || pod.is_terminal() || pod.source == PodSource::Static {
                continue;
            }
            let ending = run.endings.get(&pod.uid);
            let counted = ending.is_some_and(|ending| {
                ending.reported || ending.is_awaited() || ending.is_unacknowledged()
            });
            if !counted {
                *left.entry(why(pod, ending, &scope)).or_default() += 1;
            }
        }
        left
    }
}

fn why(pod: &PodView, ending: Option<&Ending>, scope: &Scope) -> LeftReason {
    if let Some(ending) = ending {
        if ending.had_exited {
            return LeftReason::ExitedBefore;
        }
        if ending.comes_again {
            return LeftReason::ToleratesShutdown;
        }
        if ending.succeeds {
            return LeftReason::Succeeded;
        }
        if ending.way != Way::Nobody {
            return LeftReason::NotTerminated;
        }
    }
    match spared(pod, scope) {
        Some(Spared::DaemonSet) => LeftReason::DaemonSet,
        Some(Spared::AbovePriorityMax) => LeftReason::PriorityAboveMax,
        _ if scope.leaves_bare(pod) => LeftReason::NoController,
        _ => LeftReason::NoTerminator,
    }
}
