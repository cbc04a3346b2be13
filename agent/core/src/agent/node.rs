//! Writes the agent's state to the Node object: the annotations with state and readiness, and the
//! taint.

use std::time::Duration;

use epilogue_common::announcement::Announcement;
use epilogue_common::outcome::Outcome;
use epilogue_common::readiness::{DelayLock as LockShown, Readiness};
use jiff::{SignedDuration, Timestamp};

use super::calls::Task;
use super::delay_lock::DelayLock;
use super::facts::Facts;
use super::out::Out;
use super::status::LockState;
use crate::protocol::action::Action;
use crate::protocol::event::NodeView;
use crate::termination::attempt::{Attempt, Pace, WAIT_MAX, WAIT_MAX_HASTE};

/// The verb that a refusal concerns.
const PATCH_NODES: &str = "patch nodes";

/// The longest wait before the node's announcement and taint are tried again outside of a shutdown:
/// until then a node that is back gets no pods.
const RESTORED_WITHIN: Duration = Duration::from_secs(10);

/// How long a kubelet that is gone may take to start before the readiness says so.
const KUBELET_STARTS: Duration = Duration::from_secs(30);

/// What is published of an end stays while its time differs by no more: it may be computed anew
/// each time.
const SAME_END: SignedDuration = SignedDuration::from_secs(2);

/// The wanted writes to the node, and their progress.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeWrites {
    announce: Write<String>,
    publish: Write<String>,
    taint: Write<bool>,
}

/// One value to write to the node.
#[derive(Clone, Debug)]
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

    fn is_awaited(&self) -> bool {
        self.attempt.is_awaited()
    }

    fn settle(&mut self, result: &Outcome<()>, pace: Pace, facts: &Facts, out: &mut Out) {
        let changed = self.under_way.take() != self.wanted;
        out.settle_of_node(PATCH_NODES, &mut self.attempt, result, pace, facts);
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

    /// Drops a drained record that has not been sent by now: it holds only for the moment of its
    /// check.
    pub(super) fn drop_drained(&mut self) {
        let announce = &mut self.announce;
        if announce.is_open() && !announce.attempt.is_in_flight() && announce.is_drained() {
            *announce = Write::default();
        }
    }

    /// Whether the wanted values are acknowledged, or the API refuses them.
    pub(super) fn is_settled(&self) -> bool {
        !self.announce.is_awaited() && !self.taint.is_awaited()
    }

    /// Repeats the writes that another writer has undone.
    pub(super) fn compare(&mut self, view: &NodeView) {
        let other = |wanted: &String| view.announced.as_ref() != Some(wanted);
        // A drained record holds only for the moment of its proof; a container may have started
        // since.
        let repeats = !self.announce.is_open() && !self.announce.is_drained();
        if repeats && self.announce.wanted.as_ref().is_some_and(other) {
            self.announce.repeat();
        }
        let other = |wanted: &String| view.readiness.as_ref() != Some(wanted);
        if !self.publish.is_open() && self.publish.wanted.as_ref().is_some_and(other) {
            self.publish.repeat();
        }
        if !self.taint.is_open() && self.taint.wanted.is_some_and(|is| is != view.tainted) {
            self.taint.repeat();
        }
    }

    /// Keeps the node idle outside of shutdowns, as far as logind says that none goes on.
    pub(super) fn keep(&mut self, facts: &Facts, lock: &DelayLock) {
        let calm = facts.is_calm() || is_stale(facts);
        if facts.settings.enforce && !facts.situation.runs && !facts.situation.journaled && calm {
            self.tidy(facts);
            self.publish(facts, lock);
        }
    }

    /// Announces the node as idle and removes our taint outside of shutdowns, unless notice was
    /// given of an end that is near. Values of an earlier boot or a crash are stale. ([AP20])
    fn tidy(&mut self, facts: &Facts) {
        let Some(view) = &facts.node else { return };
        let keeps_pods_away = facts.keeps_pods_away();
        if view.announced.as_deref() != Some("idle") {
            self.announce(&Announcement::Idle);
        }
        if self.taint.wanted.unwrap_or(view.tainted) != keeps_pods_away {
            self.taint(keeps_pods_away);
        }
    }

    /// Announces the node as idle, so that it accepts pods again.
    pub(super) fn restore(&mut self, facts: &Facts) {
        self.announce(&Announcement::Idle);
        if facts.is_tainted() || self.taint.wanted == Some(true) {
            self.taint(false);
        }
    }

    /// Publishes how a shutdown would go, for readers of the node who cannot ask the agent.
    fn publish(&mut self, facts: &Facts, lock: &DelayLock) {
        let (Some(_), Some(view)) = (&facts.kubelet.facts, &facts.node) else { return };
        let lock_held = lock.state == LockState::Held;
        let in_vain = !facts.settings.logind || lock.is_refused();
        if self.publish.wanted.is_none() && !lock_held && !in_vain {
            return;
        }
        // At a boot the kubelet starts after the agent.
        let gone_since = facts.kubelet.gone_since;
        if gone_since.is_some_and(|at| !facts.clock.reached(at + KUBELET_STARTS)) {
            return;
        }
        let text = self.readiness(facts, lock_held).to_string();
        if self.publish.wanted.is_some() || view.readiness.as_ref() != Some(&text) {
            self.publish.want(text);
        }
    }

    fn readiness(&self, facts: &Facts, lock_held: bool) -> Readiness {
        let seconds = |time: Duration| time.as_secs();
        let lock = match (lock_held, facts.settings.logind) {
            (true, _) => LockShown::Held,
            (false, true) => LockShown::Missing,
            (false, false) => LockShown::NotUsed,
        };
        let ends_at = facts.endings.notice_ends_at(&facts.clock);
        Readiness {
            mode: facts.foreseen().mode.name().to_owned(),
            lock,
            granted_seconds: facts.endings.granted.map(seconds),
            wanted_seconds: seconds(facts.wanted_delay()),
            notice: facts.endings.notice().map(|source| source.name().to_owned()),
            ends_at: ends_at.map(|at| self.announced_end(at)),
        }
    }

    /// The end of the node as it was published already.
    fn announced_end(&self, at: Timestamp) -> Timestamp {
        let published: Option<Readiness> =
            self.publish.wanted.as_ref().and_then(|text| text.parse().ok());
        let before = published.and_then(|it| it.ends_at);
        before.filter(|before| before.duration_since(at).abs() <= SAME_END).unwrap_or(at)
    }

    /// Sends due writes. The annotation comes before everything else: it alone allows the
    /// controller to act for the node. ([AP21])
    pub(super) fn send(&mut self, facts: &Facts, out: &mut Out) {
        if self.announce.attempt.is_due(&facts.clock)
            && !out.calls.is_held_back()
            && let Some(text) = self.announce.begin()
        {
            out.calls.send(Task::Announce, Action::Announce(text));
        }
        if !facts.situation.runs
            && self.publish.attempt.is_due(&facts.clock)
            && out.calls.has_room()
            && let Some(text) = self.publish.begin()
        {
            out.calls.send(Task::Publish, Action::Publish(text));
        }
        if self.taint.attempt.is_due(&facts.clock)
            && out.calls.has_room()
            && let Some(present) = self.taint.begin()
        {
            out.calls.send(Task::Taint, Action::Taint { present });
        }
    }

    /// Takes the API's answer to a write of the annotations or the taint.
    pub(super) fn written(
        &mut self,
        task: &Task,
        result: &Outcome<()>,
        facts: &Facts,
        out: &mut Out,
    ) {
        let wait_max = match task {
            _ if facts.situation.is_urgent() => WAIT_MAX_HASTE,
            Task::Publish => WAIT_MAX,
            _ => RESTORED_WITHIN,
        };
        let pace = Pace { wait_max, latest: None, salt: 1 };
        match task {
            Task::Publish => self.publish.settle(result, pace, facts, out),
            Task::Taint => self.taint.settle(result, pace, facts, out),
            _ => self.announce.settle(result, pace, facts, out),
        }
    }
}

/// Whether the node's annotation belongs to an earlier boot.
pub(super) fn is_stale(facts: &Facts) -> bool {
    use Announcement::{Drained, ShuttingDown};
    let said = facts.node.as_ref().and_then(|view| view.announced.as_deref()?.parse().ok());
    matches!(
        said,
        Some(ShuttingDown { boot_id, .. } | Drained { boot_id, .. })
            if boot_id != facts.settings.boot_id
    )
}
