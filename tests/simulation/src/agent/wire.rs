//! Models the wire between the agent and the API: latency, loss, refusals, and the watch.

use std::time::Duration;

use agent_core::pod::PodUid;
use agent_core::protocol::action::ActionId;
use agent_core::protocol::event::{ActionResult, Event};
use epilogue_common::outcome::{Failure, FailureKind};
use jiff::SignedDuration;

use super::api::Change;
use super::situations::Met;
use super::world::{Life, World};
use crate::controller::agenda::Moment;

/// When a sink gives up waiting for an answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The wire's own state.
#[derive(Debug, Default)]
pub(super) struct Wire {
    dark_until: Moment,
    dark_for_kubelet: bool,
    /// Calls in the current second, for the throttle.
    second: u64,
    calls: u32,
    /// The watch delivers in order.
    watch_due: Moment,
    /// The watch is broken; a list will follow.
    broken: bool,
    /// The API refuses everything until then.
    pub(super) refused_until: Moment,
    /// The API refused a call about a pod.
    pub(super) has_refused: bool,
}

/// A verb that can be forbidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    PatchStatus,
    PatchPod,
    DeletePod,
    ReadPod,
    PatchNode,
    CreateEvent,
}

/// Fate of a call.
enum Fate {
    Answered,
    RequestLost,
    ReplyLost,
    Refused(Failure),
}

impl World {
    /// From now on nothing reaches the API, for this long.
    pub(super) fn darken(&mut self, length: Duration, for_kubelet: bool) {
        self.log(|_| format!("wire      the API is out of reach for {length:?}"));
        self.wire.dark_until = self.now() + length;
        self.wire.dark_for_kubelet = for_kubelet;
        self.break_watch();
    }

    pub(super) fn is_dark(&self) -> bool {
        self.now() < self.wire.dark_until
    }

    /// How long the kubelet has to wait for the API.
    pub(super) fn kubelet_dark(&self) -> Option<Duration> {
        let dark = self.wire.dark_for_kubelet && self.is_dark();
        dark.then(|| self.wire.dark_until.saturating_sub(self.now()) + Duration::from_millis(50))
    }

    fn fate(&mut self, verb: Verb, about: Option<&PodUid>) -> Fate {
        let refused = |kind| Fate::Refused(Failure::new(kind, format!("{kind:?}")));
        if self.is_dark() {
            return Fate::RequestLost;
        }
        self.met_refusal(verb, about);
        if self.behaviour.forbidden == Some(verb) || self.is_refused(verb, about) {
            self.wire.has_refused |= about.is_some();
            return refused(self.refused_as());
        }
        if let Some(limit) = self.behaviour.throttle {
            let second = self.now().as_secs();
            if self.wire.second != second {
                (self.wire.second, self.wire.calls) = (second, 0);
            }
            self.wire.calls += 1;
            if self.wire.calls > limit {
                self.met(Met::Throttled);
                let retry_after = Some(SignedDuration::from_secs(1));
                let failure = Failure::new(FailureKind::TooManyRequests, "slow down");
                return Fate::Refused(Failure { retry_after, ..failure });
            }
        }
        if self.ledger.settling {
            return Fate::Answered;
        }
        if self.random.per_mille(self.behaviour.lost_requests) {
            self.met(Met::RequestLost);
            return Fate::RequestLost;
        }
        if self.random.per_mille(self.behaviour.lost_replies) {
            self.met(Met::ReplyLost);
            return Fate::ReplyLost;
        }
        if self.random.per_mille(self.behaviour.refusals) {
            self.met(Met::ServerError);
            let kinds = [FailureKind::ServerError, FailureKind::TooManyRequests];
            return refused(*self.random.pick(&kinds));
        }
        Fate::Answered
    }

    /// One call: `commit` applies it to the API, `fail` makes the answer of a failure.
    pub(super) fn call(
        &mut self,
        id: ActionId,
        (verb, about): (Verb, Option<&PodUid>),
        fail: fn(Failure) -> ActionResult,
        commit: impl FnOnce(&mut Self) -> ActionResult + 'static,
    ) {
        let Some(run) = self.agent_run() else { return };
        let (low, high) = self.behaviour.rtt_ms;
        let there = self.random.millis(low, high) + self.cross(verb, about);
        let back = self.random.millis(low, high);
        let lost = || fail(Failure::new(FailureKind::Unknown, "no answer"));
        let fate = self.fate(verb, about);
        match fate {
            Fate::Refused(failure) => return self.finish_after(there + back, id, fail(failure)),
            Fate::RequestLost => return self.finish_after(TIMEOUT, id, lost()),
            Fate::ReplyLost | Fate::Answered => {}
        }
        let answered = matches!(fate, Fate::Answered) && there + back < TIMEOUT;
        if !answered {
            self.finish_after(TIMEOUT, id, lost());
        }
        // A call on the wire arrives even if the process ends, but not from a machine that is off.
        self.after(there, Life::Boot(self.boot), move |w| {
            // An API server without its rights refuses what was on the wire as it came, too.
            let refused = w.now() < w.wire.refused_until;
            let forbidden = || fail(Failure::new(FailureKind::Forbidden, "Forbidden"));
            let result = if refused { forbidden() } else { commit(w) };
            if answered {
                w.after(back, Life::Agent(run), move |w| w.finish(id, result));
            }
        });
    }

    /// The agent's watch has lost its place: a list follows.
    fn break_watch(&mut self) {
        let Some(run) = self.agent_run() else { return };
        if !self.wire.broken {
            self.wire.broken = true;
            let pause = self.random.millis(100, 3_000);
            self.after(pause, Life::Agent(run), World::list);
        }
    }

    /// A new process knows nothing.
    pub(super) fn begin_watch(&mut self) {
        self.wire.broken = false;
        self.wire.watch_due = self.now();
        self.break_watch();
    }

    fn list(&mut self) {
        let Some(run) = self.agent_run() else { return };
        if self.is_dark() {
            let pause = self.wire.dark_until.saturating_sub(self.now());
            let pause = pause + self.random.millis(10, 1_500);
            return self.after(pause, Life::Agent(run), World::list);
        }
        self.wire.broken = false;
        let pods = self.api.pods.values().map(super::api::Stored::view).collect();
        self.deliver(Event::PodsListed(pods));
        self.deliver(Event::NodeObserved(self.api.node.clone()));
    }

    /// The agent's watch.
    pub(super) fn watch_sees(&mut self, change: &Change) {
        if self.process.is_none() || self.wire.broken {
            return;
        }
        if !self.ledger.settling && self.random.per_mille(self.behaviour.watch_breaks) {
            self.met(Met::WatchBreaks);
            return self.break_watch();
        }
        self.deliver(match change {
            Change::Pod(stored) => Event::PodObserved(Box::new(stored.view())),
            Change::Gone(stored) => Event::PodGone(stored.uid().clone()),
            Change::Node => Event::NodeObserved(self.api.node.clone()),
        });
    }

    fn deliver(&mut self, event: Event) {
        let Some(run) = self.agent_run() else { return };
        let (low, high) = self.behaviour.watch_ms;
        let due = self.now() + self.random.millis(low, high);
        self.wire.watch_due = self.wire.watch_due.max(due);
        let pause = self.wire.watch_due.saturating_sub(self.now());
        self.after(pause, Life::Agent(run), move |w| w.agent_handles(event));
    }
}
