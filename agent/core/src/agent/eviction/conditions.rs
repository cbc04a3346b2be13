//! Writes the agent's own node conditions: stalls of pods for memory and of the node for disks.

use std::time::Duration;

use epilogue_common::names::node_condition::{IO_STALL, MEMORY_STALL};
use epilogue_common::outcome::Outcome;

use super::super::calls::Task;
use super::super::{Agent, Enforcement};
use crate::protocol::action::Action;
use crate::termination::attempt::{Attempt, Follow, Pace, REPEATABLE, WAIT_MAX};

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
#[derive(Debug, Default)]
pub(super) struct NodeConditions {
    memory: Condition,
    io: Condition,
}

/// One condition: its wanted state and its progress.
#[derive(Debug, Default)]
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

impl Agent {
    /// Records the finding of a sample; `None` means no stall.
    pub(super) fn note_stall(&mut self, kind: Kind, found: Option<String>) {
        let now = self.clock.monotonic();
        let condition = self.evictions.conditions.of(kind);
        condition.stalls = found.is_some();
        if let Some(message) = found {
            condition.seen_at = Some(now);
            condition.message = message;
        }
    }

    /// Writes what the node does not show yet. A condition is removed only when its stall has been
    /// over for the transition period. Conditions that an earlier agent left are removed too.
    pub(super) fn show_conditions(&mut self) {
        let transition = self.settings.features.eviction.transition;
        let off = self.settings.features.pressure == Enforcement::Off;
        for kind in Kind::ALL {
            let condition = self.evictions.conditions.of(kind);
            let lasts = condition
                .seen_at
                .is_some_and(|at| !self.clock.reached(at.saturating_add(transition)));
            let stands = !off && (condition.stalls || lasts);
            let shown = &mut self.status.pressure.stalls;
            match kind {
                Kind::Memory => shown.memory = stands,
                Kind::Io => shown.io = stands,
            }
            self.show_condition(kind, stands);
        }
    }

    fn show_condition(&mut self, kind: Kind, stands: bool) {
        let Some(view) = self.node.view.as_ref().filter(|_| self.settings.enforce) else { return };
        let name = kind.name();
        let shown = view.conditions.iter().any(|(other, is)| other == name && *is);
        let now = self.clock.now();
        let condition = self.evictions.conditions.of(kind);
        if condition.write.is_in_flight() {
            return;
        }
        if shown == stands {
            condition.write = Attempt::default();
            return;
        }
        let again = condition.write.is_done()
            && self.clock.reached(condition.done_at.saturating_add(SHOWN_AFTER));
        if condition.sent != Some(stands) || again {
            condition.write = Attempt::wanted();
        }
        condition.write.want();
        let forbidden = self.refusals.forbids(PATCH_NODE_STATUS);
        if forbidden || !condition.write.is_due(&self.clock) || !self.calls.has_room() {
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
        self.calls.log(stands, None, text);
        let action =
            Action::SetNodeCondition { kind: name, stands, reason, message, since: now.wall };
        self.calls.send(Task::NodeCondition(name), action);
    }

    pub(in super::super) fn node_condition_set(
        &mut self,
        name: &'static str,
        result: &Outcome<()>,
    ) {
        let now = self.clock.monotonic();
        self.hear_of_node_right(PATCH_NODE_STATUS, result);
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.name() == name) else { return };
        let condition = self.evictions.conditions.of(kind);
        let pace = Pace { wait_max: WAIT_MAX, latest: None, salt: 4 };
        if condition.write.settle(result, now, pace, REPEATABLE) == Follow::Done {
            condition.done_at = now;
        }
    }
}
