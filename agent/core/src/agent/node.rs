//! Writes the agent's state to the Node object: the annotations with state and readiness, and the
//! taint.

use std::time::Duration;

use epilogue_common::announcement::Announcement;
use epilogue_common::outcome::Outcome;
use epilogue_common::readiness::{DelayLock, Readiness};

use super::calls::Task;
use super::shutdown::Release;
use super::{Agent, LockState};
use crate::protocol::action::Action;
use crate::protocol::event::NodeView;
use crate::termination::attempt::{Attempt, Pace, REPEATABLE, Refusal, WAIT_MAX, WAIT_MAX_HASTE};

/// The verb that a refusal concerns.
const PATCH_NODES: &str = "patch nodes";

/// The wanted writes to the node, and their progress.
#[derive(Debug, Default)]
pub(super) struct NodeWrites {
    pub(super) view: Option<NodeView>,
    announce: Write<String>,
    publish: Write<String>,
    taint: Write<bool>,
}

/// One value to write to the node.
#[derive(Debug)]
struct Write<T> {
    wanted: Option<T>,
    under_way: Option<T>,
    attempt: Attempt,
}

impl<T> Default for Write<T> {
    fn default() -> Self {
        Self { wanted: None, under_way: None, attempt: Attempt::default() }
    }
}

impl<T: Clone + PartialEq> Write<T> {
    fn want(&mut self, value: T) {
        if self.wanted.as_ref() != Some(&value) {
            self.wanted = Some(value);
            self.repeat();
        }
    }

    /// Writes the value again; a write under way has to end first.
    fn repeat(&mut self) {
        if !self.attempt.is_in_flight() {
            self.attempt = Attempt::wanted();
        }
    }

    fn begin(&mut self) -> Option<T> {
        self.attempt.sent();
        self.under_way.clone_from(&self.wanted);
        self.wanted.clone()
    }

    fn is_open(&self) -> bool {
        self.attempt.is_open()
    }

    fn settle(&mut self, result: &Outcome<()>, now: Duration, pace: Pace, refusal: Refusal) {
        let changed = self.under_way.take() != self.wanted;
        self.attempt.settle(result, now, pace, REPEATABLE.refused(refusal));
        if changed {
            self.attempt = Attempt::wanted();
        }
    }
}

impl Write<String> {
    fn is_drained(&self) -> bool {
        let wanted = self.wanted.as_deref().and_then(|text| text.parse().ok());
        matches!(wanted, Some(Announcement::Drained { .. }))
    }
}

impl NodeWrites {
    /// Requests the annotation with this announcement.
    pub(super) fn announce(&mut self, announcement: &Announcement) {
        self.announce.want(announcement.to_string());
    }

    /// Requests that the taint is present, or absent.
    pub(super) fn taint(&mut self, present: bool) {
        self.taint.want(present);
    }

    /// Whether the last request was for the taint to be present.
    pub(super) fn wants_taint(&self) -> bool {
        self.taint.wanted == Some(true)
    }

    /// Drops a drained record that has not been sent by now: it holds only for the moment of its
    /// check.
    pub(super) fn drop_drained(&mut self) {
        let announce = &mut self.announce;
        if announce.is_open() && !announce.attempt.is_in_flight() && announce.is_drained() {
            *announce = Write::default();
        }
    }

    /// Whether the wanted values are acknowledged or cannot be written.
    pub(super) fn is_settled(&self) -> bool {
        !self.announce.is_open() && !self.taint.is_open()
    }
}

impl Agent {
    pub(super) fn see_node(&mut self, view: NodeView) {
        let writes = &mut self.node;
        let other = |wanted: &String| view.announced.as_ref() != Some(wanted);
        // A drained record holds only for the moment of its proof; a container may have started
        // since.
        let repeats = !writes.announce.is_open() && !writes.announce.is_drained();
        if repeats && writes.announce.wanted.as_ref().is_some_and(other) {
            writes.announce.repeat();
        }
        let other = |wanted: &String| view.readiness.as_ref() != Some(wanted);
        if !writes.publish.is_open() && writes.publish.wanted.as_ref().is_some_and(other) {
            writes.publish.repeat();
        }
        if !writes.taint.is_open() && writes.taint.wanted.is_some_and(|is| is != view.tainted) {
            writes.taint.repeat();
        }
        writes.view = Some(view);
    }

    /// Announces the node as idle and removes our taint outside of shutdowns. Values of an earlier
    /// boot or a crash are stale. ([AP20])
    pub(super) fn tidy_node(&mut self) {
        let Some(view) = &self.node.view else { return };
        let (idle, tainted) = (view.announced.as_deref() == Some("idle"), view.tainted);
        if !idle {
            self.node.announce(&Announcement::Idle);
        }
        if tainted {
            self.node.taint(false);
        }
    }

    /// Publishes how a shutdown would go, for readers of the node who cannot ask the agent.
    pub(super) fn publish(&mut self) {
        let (Some(mode), Some(view)) = (self.status.mode, &self.node.view) else { return };
        let lock_held = self.logind.lock == LockState::Held;
        let in_vain = !self.settings.logind || self.logind.is_refused_lock();
        if self.node.publish.wanted.is_none() && !lock_held && !in_vain {
            return;
        }
        let seconds = |time: Duration| time.as_secs();
        let lock = match (lock_held, self.settings.logind) {
            (true, _) => DelayLock::Held,
            (false, true) => DelayLock::Missing,
            (false, false) => DelayLock::NotUsed,
        };
        let readiness = Readiness {
            mode: mode.name().to_owned(),
            lock,
            granted_seconds: self.logind.granted.map(seconds),
            wanted_seconds: seconds(self.wanted_delay()),
        };
        let text = readiness.to_string();
        if self.node.publish.wanted.is_some() || view.readiness.as_ref() != Some(&text) {
            self.node.publish.want(text);
        }
    }

    /// Sends due writes. The annotation comes before everything else: it alone allows the
    /// controller to act for the node. ([AP21])
    pub(super) fn write_node(&mut self) {
        if self.node.announce.attempt.is_due(&self.clock)
            && let Some(text) = self.node.announce.begin()
        {
            self.calls.send(Task::Announce, Action::Announce(text));
        }
        if self.shutdown.is_none()
            && self.node.publish.attempt.is_due(&self.clock)
            && self.calls.has_room()
            && let Some(text) = self.node.publish.begin()
        {
            self.calls.send(Task::Publish, Action::Publish(text));
        }
        if self.node.taint.attempt.is_due(&self.clock)
            && self.calls.has_room()
            && let Some(present) = self.node.taint.begin()
        {
            self.calls.send(Task::Taint, Action::Taint { present });
        }
    }

    /// Takes the API's answer to a write of the annotations or the taint.
    pub(super) fn node_written(&mut self, task: &Task, result: &Outcome<()>) {
        let (now, pace) = (self.clock.monotonic(), self.node_pace());
        let refusal = self.hear_of_node_right(PATCH_NODES, result);
        match task {
            Task::Publish => self.node.publish.settle(result, now, pace, refusal),
            Task::Taint => self.node.taint.settle(result, now, pace, refusal),
            _ => {
                self.node.announce.settle(result, now, pace, refusal);
                let release = self.shutdown.as_ref().map(|shutdown| &shutdown.release);
                if !matches!(release, Some(Release::Drained(_))) {
                    self.node.drop_drained();
                }
            }
        }
    }

    fn node_pace(&self) -> Pace {
        let hurry = self.shutdown.as_ref().is_some_and(|shutdown| !shutdown.is_released());
        Pace { wait_max: if hurry { WAIT_MAX_HASTE } else { WAIT_MAX }, latest: None, salt: 1 }
    }
}
