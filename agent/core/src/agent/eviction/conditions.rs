//! Writes the agent's own node conditions: stalls of pods for memory and of the node for disks.

use std::time::Duration;

use epilogue_common::names::node_condition::{IO_STALL, MEMORY_STALL};
use epilogue_common::outcome::Outcome;

use super::super::facts::Facts;
use super::super::node_conditions::{ConditionWrite, Wanted};
use super::super::out::Out;
use super::super::settings::Enforcement;
use super::Evictions;

/// A node condition of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Pods wait for memory.
    Memory,
    /// The node waits for its disks.
    Io,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Memory, Self::Io];

    fn name(self) -> &'static str {
        match self {
            Self::Memory => MEMORY_STALL,
            Self::Io => IO_STALL,
        }
    }

    fn reason(self, stands: bool) -> &'static str {
        match (self, stands) {
            (_, false) => "NoStall",
            (Self::Memory, true) => "PodsWaitForMemory",
            (Self::Io, true) => "TasksWaitForDisks",
        }
    }
}

/// Both conditions.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeConditions {
    memory: Condition,
    io: Condition,
}

/// One condition: its wanted state and its progress.
#[derive(Clone, Debug, Default)]
struct Condition {
    stalls: bool,
    seen_at: Option<Duration>,
    message: String,
    write: ConditionWrite,
}

impl NodeConditions {
    fn of(&mut self, kind: Kind) -> &mut Condition {
        match kind {
            Kind::Memory => &mut self.memory,
            Kind::Io => &mut self.io,
        }
    }
}

impl Evictions {
    /// Records the finding of a sample; `None` means no stall.
    pub(super) fn note_stall(&mut self, kind: Kind, found: Option<String>, facts: &Facts) {
        let now = facts.clock.monotonic();
        let condition = self.conditions.of(kind);
        condition.stalls = found.is_some();
        if let Some(message) = found {
            condition.seen_at = Some(now);
            condition.message = message;
        }
    }

    /// Writes what the node does not show yet. A condition is removed only when its stall has been
    /// over for the transition period. Conditions that an earlier agent left are removed too.
    pub(super) fn show_conditions(&mut self, facts: &Facts, out: &mut Out) {
        let transition = facts.settings.features.eviction.transition;
        let off = facts.settings.features.pressure == Enforcement::Off;
        for kind in Kind::ALL {
            let condition = self.conditions.of(kind);
            let lasts = condition
                .seen_at
                .is_some_and(|at| !facts.clock.reached(at.saturating_add(transition)));
            let stands = !off && (condition.stalls || lasts);
            let shown = &mut out.status.pressure.stalls;
            match kind {
                Kind::Memory => shown.memory = stands,
                Kind::Io => shown.io = stands,
            }
            self.show_condition(kind, stands, facts, out);
        }
    }

    fn show_condition(&mut self, kind: Kind, stands: bool, facts: &Facts, out: &mut Out) {
        let Some(view) = facts.node.as_ref().filter(|_| facts.settings.enforce) else { return };
        let is_shown = view.shows(kind.name()) == stands;
        let condition = self.conditions.of(kind);
        let none = match kind {
            Kind::Memory => "Pods do not wait for memory.",
            Kind::Io => "Tasks do not wait for disks.",
        };
        let message = if stands { condition.message.clone() } else { none.to_owned() };
        let wanted = Wanted { stands, reason: kind.reason(stands), message };
        condition.write.show(kind.name(), is_shown, wanted, facts, out);
    }

    pub(in super::super) fn node_condition_set(
        &mut self,
        name: &'static str,
        result: &Outcome<()>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == name) else { return };
        self.conditions.of(kind).write.settle(result, facts, out);
    }
}
