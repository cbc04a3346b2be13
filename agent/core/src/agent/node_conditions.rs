//! Shows on the node, by conditions, that it shuts down, that notice was given of its end, and
//! whether the agent is ready. Others may write the first two, too, which have the types of
//! KEP-5683: one that another writer has set stays as it is.

use std::time::Duration;

use epilogue_common::names::node_condition::{
    AGENT_READY, GRACEFUL_NODE_SHUTDOWN_IN_PROGRESS, MAINTENANCE_PLANNED, MESSAGE_START,
};
use epilogue_common::outcome::Outcome;

use super::calls::Task;
use super::facts::Facts;
use super::out::Out;
use crate::finding::{Finding, readiness};
use crate::protocol::action::Action;
use crate::termination::attempt::{Attempt, Follow, Pace, WAIT_MAX};

/// The verb that a refusal concerns.
const PATCH_NODE_STATUS: &str = "patch nodes/status";
/// By this time the watch shows a write of ours.
const SHOWN_AFTER: Duration = Duration::from_secs(10);
/// A fault that is over within this time is not shown: at its start the agent is not ready yet.
const FAULT_LASTS: Duration = Duration::from_secs(30);

/// What a condition of the node is to say.
pub(super) struct Wanted {
    pub(super) stands: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The progress of the writes of one condition.
#[derive(Clone, Debug, Default)]
pub(super) struct ConditionWrite {
    write: Attempt,
    /// What was sent last, and when it was acknowledged.
    sent: Option<bool>,
    done_at: Duration,
}

impl ConditionWrite {
    /// Writes the condition, unless the node shows it.
    pub(super) fn show(
        &mut self,
        name: &'static str,
        is_shown: bool,
        wanted: Wanted,
        facts: &Facts,
        out: &mut Out,
    ) {
        let Wanted { stands, reason, message } = wanted;
        if self.write.is_in_flight() {
            return;
        }
        if is_shown {
            self.write = Attempt::default();
            return;
        }
        let again =
            self.write.is_done() && facts.clock.reached(self.done_at.saturating_add(SHOWN_AFTER));
        if self.sent != Some(stands) || again {
            self.write = Attempt::wanted();
        }
        self.write.want();
        let forbidden = out.refusals.forbids(PATCH_NODE_STATUS);
        if forbidden || !self.write.is_due(&facts.clock) || !out.calls.has_room() {
            return;
        }
        self.write.sent();
        if self.sent.replace(stands) != Some(stands) {
            let is_fault = stands != (name == AGENT_READY);
            let text = format!("the node's condition {name} becomes {stands}: {message}");
            out.calls.log(is_fault, None, text);
        }
        let since = facts.clock.now().wall;
        let action = Action::SetNodeCondition { kind: name, stands, reason, message, since };
        out.calls.send(Task::NodeCondition(name), action);
    }

    /// Takes the API's answer.
    pub(super) fn settle(&mut self, result: &Outcome<()>, facts: &Facts, out: &mut Out) {
        let pace = Pace { wait_max: WAIT_MAX, latest: None, salt: 4 };
        let follow = out.settle_of_node(PATCH_NODE_STATUS, &mut self.write, result, pace, facts);
        if follow == Follow::Done {
            self.done_at = facts.clock.monotonic();
        }
    }
}

/// The conditions that do not concern pressure.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeConditions {
    shutdown: ConditionWrite,
    planned: ConditionWrite,
    ready: ConditionWrite,
    /// Since when the agent has a fault.
    fault_since: Option<Duration>,
}

impl NodeConditions {
    /// Writes what the node does not show yet, after everything that matters more. Where it is not
    /// known whether a shutdown goes on, nothing changes.
    pub(super) fn show(&mut self, is_stale: bool, facts: &Facts, out: &mut Out) {
        let runs = facts.situation.runs;
        let is_known = runs || is_stale || facts.is_calm();
        if !facts.settings.enforce || facts.node.is_none() || out.status.unbounded.is_some() {
            return;
        }
        if is_known && !facts.situation.journaled && !facts.situation.marks {
            let wanted = shutdown_in_progress(facts);
            show(&mut self.shutdown, GRACEFUL_NODE_SHUTDOWN_IN_PROGRESS, wanted, facts, out);
        }
        if is_known && !runs && !facts.situation.journaled {
            show(&mut self.planned, MAINTENANCE_PLANNED, planned(facts), facts, out);
        }
        if !runs {
            self.show_ready(facts, out);
        }
    }

    /// A fault counts once it has lasted; until then the condition stays as it is.
    fn show_ready(&mut self, facts: &Facts, out: &mut Out) {
        let settings = &facts.settings;
        let mut checks = readiness(settings.enforce, settings.logind);
        let fault = checks.find_map(|(_, find)| find(&out.status)).map(Finding::text);
        let wanted = if let Some(message) = fault {
            let since = *self.fault_since.get_or_insert(facts.clock.monotonic());
            if !facts.clock.reached(since.saturating_add(FAULT_LASTS)) {
                return;
            }
            Wanted { stands: false, reason: "AgentNotReady", message }
        } else {
            self.fault_since = None;
            let message = "The agent would see a shutdown now, delay it, and knows the pods.";
            Wanted { stands: true, reason: "AgentReady", message: message.to_owned() }
        };
        let is_shown = shown(AGENT_READY, facts).is_some_and(|it| it.is_true == wanted.stands);
        self.ready.show(AGENT_READY, is_shown, wanted, facts, out);
    }

    /// Takes the API's answer; whether the condition is one of these.
    pub(super) fn settle(
        &mut self,
        name: &str,
        result: &Outcome<()>,
        facts: &Facts,
        out: &mut Out,
    ) -> bool {
        let write = match name {
            GRACEFUL_NODE_SHUTDOWN_IN_PROGRESS => &mut self.shutdown,
            MAINTENANCE_PLANNED => &mut self.planned,
            AGENT_READY => &mut self.ready,
            _ => return false,
        };
        write.settle(result, facts, out);
        true
    }
}

fn shutdown_in_progress(facts: &Facts) -> Wanted {
    let source = facts.endings.earliest_due(facts.clock.monotonic()).map(|it| it.source);
    if !facts.situation.runs {
        let message = format!("{MESSAGE_START}the node is not shutting down.");
        return Wanted { stands: false, reason: "NoShutdown", message };
    }
    let who = source.map_or(String::new(), |source| format!(", as {source} says"));
    let message = format!("{MESSAGE_START}the node is shutting down{who}.");
    Wanted { stands: true, reason: "NodeShutdown", message }
}

fn planned(facts: &Facts) -> Wanted {
    let Some(source) = facts.endings.notice() else {
        let message = format!("{MESSAGE_START}no source has given notice of an end.");
        return Wanted { stands: false, reason: "NoNotice", message };
    };
    let message = format!("{MESSAGE_START}{source} has given notice of the node's end.");
    Wanted { stands: true, reason: "NodeEndAnnounced", message }
}

fn show(
    write: &mut ConditionWrite,
    name: &'static str,
    wanted: Wanted,
    facts: &Facts,
    out: &mut Out,
) {
    let is_shown = match shown(name, facts) {
        None => !wanted.stands,
        Some(found) => !found.is_ours || found.is_true == wanted.stands,
    };
    write.show(name, is_shown, wanted, facts, out);
}

fn shown<'a>(name: &str, facts: &'a Facts) -> Option<&'a crate::protocol::event::NodeCondition> {
    facts.node.as_ref()?.condition(name)
}
