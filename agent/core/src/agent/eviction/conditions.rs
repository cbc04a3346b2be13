//! Writes the agent's own node conditions: stalls of pods for memory and of the node for disks.

use std::time::Duration;

use epilogue_common::names::node_condition::{IO_STALL, MEMORY_STALL};
use epilogue_common::outcome::Outcome;

use super::super::calls::Task;
use super::super::facts::Facts;
use super::super::out::Out;
use super::super::settings::Enforcement;
use super::Evictions;
use crate::protocol::action::Action;
use crate::termination::attempt::{Attempt, Follow, Pace, WAIT_MAX};

/// The verb that a refusal concerns.
const PATCH_NODE_STATUS: &str = "patch nodes/status";
/// By this time the watch shows a write of ours.
const SHOWN_AFTER: Duration = Duration::from_secs(10);

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
    write: Attempt,
    /// What was sent last, and when it was acknowledged.
    sent: Option<bool>,
    done_at: Duration,
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
        let name = kind.name();
        let shown = view.conditions.iter().any(|(other, is)| other == name && *is);
        let now = facts.clock.now();
        let condition = self.conditions.of(kind);
        if condition.write.is_in_flight() {
            return;
        }
        if shown == stands {
            condition.write = Attempt::default();
            return;
        }
        let again = condition.write.is_done()
            && facts.clock.reached(condition.done_at.saturating_add(SHOWN_AFTER));
        if condition.sent != Some(stands) || again {
            condition.write = Attempt::wanted();
        }
        condition.write.want();
        let forbidden = out.refusals.forbids(PATCH_NODE_STATUS);
        if forbidden || !condition.write.is_due(&facts.clock) || !out.calls.has_room() {
            return;
        }
        condition.write.sent();
        condition.sent = Some(stands);
        let none = match kind {
            Kind::Memory => "Pods do not wait for memory.",
            Kind::Io => "Tasks do not wait for disks.",
        };
        let message = if stands { condition.message.clone() } else { none.to_owned() };
        let reason = kind.reason(stands);
        let text = format!("the node's condition {name} becomes {stands}: {message}");
        out.calls.log(stands, None, text);
        let action =
            Action::SetNodeCondition { kind: name, stands, reason, message, since: now.wall };
        out.calls.send(Task::NodeCondition(name), action);
    }

    pub(in super::super) fn node_condition_set(
        &mut self,
        name: &'static str,
        result: &Outcome<()>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == name) else { return };
        let condition = self.conditions.of(kind);
        let pace = Pace { wait_max: WAIT_MAX, latest: None, salt: 4 };
        let write = &mut condition.write;
        if out.settle_of_node(PATCH_NODE_STATUS, write, result, pace, facts) == Follow::Done {
            condition.done_at = facts.clock.monotonic();
        }
    }
}
