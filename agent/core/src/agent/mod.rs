//! The agent's state machine: facts come in, actions go out.
//!
//! An event only adds to what the agent knows (`facts.rs`), and the answer to a call
//! goes to the part that has asked (`answers.rs`). `decide` makes every decision: each part reads
//! the facts, keeps its own memory, and adds calls, records and events to the output (`out.rs`). A
//! part changes no other part but those that it is given.
//!
//! These rules hold in every order of events, after every crash and at every speed of the API:
//!
//! - The agent never writes `Failed` while a container of the pod may run. The runtime must first
//!   prove that nothing runs. Alongside a live kubelet it also waits until the end of the available
//!   time. A deleted pod that hangs does not wait for that, where the operator enables this.
//!   ([AP3], [PT13])
//! - The agent sends `DisruptionTarget` before it terminates the pod, or with the phase, never
//!   later.
//! - The agent keeps the lock while a report is awaited or one of its writes is unacknowledged. It
//!   never keeps the lock longer than the available time.
//! - The agent never touches a static pod.
//! - After a cancelled shutdown the agent reverts its writes on pods that live on. It starts at
//!   once and continues until the API shows the result.
//! - The agent writes `Failed` at most once per pod and run without a fresh read in between.
//! - Every write can be repeated: it carries the UID, and a mark carries the time from the journal.

mod abandoned;
mod answers;
mod calls;
mod delay_lock;
mod disruptions;
mod end_signals;
mod endings;
mod eviction;
mod facts;
mod kubelet;
mod mode;
mod node;
mod node_conditions;
mod notices;
mod oom;
mod out;
mod pod_steps;
mod pods;
mod policies;
mod refusals;
mod settings;
mod shutdown;
mod status;
mod stuck;
#[cfg(test)]
mod tests;
mod volumes;
mod writer;

use std::time::Duration;

pub use end_signals::EndSignalTally;
pub use mode::{ARMED_LASTS, Allowed, Detected, Kubelet, Silence, detect, kubelet};
pub use notices::REASONS;
pub use settings::{Enforcement, Features, Settings};
pub use status::{
    EvictionCount, LeftReason, LockState, OomStatus, OomTally, PressureStatus, ShutdownStatus,
    SignalStatus, StallStatus, Status, StuckStatus, Tries, VictimStatus, WouldHave,
};

use crate::pod::{PodUid, PodView};
use crate::protocol::action::{Action, ActionId};
use crate::protocol::ending::{Ending, Source};
use crate::protocol::event::{EndSign, Event, LogindState, Now};
use crate::protocol::journal::Record;
use crate::shutdown::Mode;
use crate::shutdown::budget::GRANTED_DEFAULT;

use delay_lock::DelayLock;
use disruptions::Disruptions;
use end_signals::EndSignals;
use eviction::Evictions;
use facts::{Facts, News};
use node::NodeWrites;
use node_conditions::NodeConditions;
use oom::Oom;
use out::Out;
use pods::Pods;
use policies::Policies;
use shutdown::{Others, Shutdowns};
use stuck::Stuck;

/// Time for unacknowledged writes after the lock is gone and the agent has to stop.
const LAST_TRIES: Duration = Duration::from_secs(5);

/// What one decision gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The actions to start, in their order of weight.
    pub actions: Vec<(ActionId, Action)>,
    /// When to decide again without an event, on CLOCK_MONOTONIC.
    pub wake: Option<Duration>,
}

/// The agent's state machine: what it knows, what each of its parts remembers, and what they give.
#[derive(Clone, Debug)]
pub struct Agent {
    facts: Facts,
    news: Vec<News>,
    /// How much of the news the shutdown and the marks have followed.
    followed: usize,
    out: Out,
    policies: Policies,
    lock: DelayLock,
    node: NodeWrites,
    node_conditions: NodeConditions,
    shutdowns: Shutdowns,
    end_signals: EndSignals,
    disruptions: Disruptions,
    oom: Oom,
    evictions: Evictions,
    stuck: Stuck,
}

impl Agent {
    /// Creates an agent that has just started and found this journal.
    pub fn new(settings: Settings, journal: &[Record], now: Now) -> Self {
        let out = Out::new(settings.in_flight_max, !journal.is_empty());
        let policies = Policies::new(&settings, now.monotonic);
        let evictions = Evictions::new(&settings.features);
        let facts = Facts::new(settings, now);
        let mut disruptions = Disruptions::default();
        let journaled = shutdown::recall(journal, &facts, &mut disruptions);
        let mut agent = Self {
            facts,
            news: Vec::new(),
            followed: 0,
            out,
            policies,
            lock: DelayLock::default(),
            node: NodeWrites::default(),
            node_conditions: NodeConditions::default(),
            shutdowns: Shutdowns::new(journaled, now.monotonic),
            end_signals: EndSignals::default(),
            disruptions,
            oom: Oom::default(),
            evictions,
            stuck: Stuck::default(),
        };
        agent.report();
        agent
    }

    /// Takes in one event. It only adds to what the agent knows; `plan` decides what to do.
    pub fn handle(&mut self, event: Event, now: Now) {
        self.clock_to(now);
        self.learn(event);
        self.facts.note_volumes();
        self.follow();
    }

    /// Decides what to do from what is known now. Asked again with nothing new, it gives nothing.
    pub fn plan(&mut self, now: Now) -> Plan {
        self.clock_to(now);
        self.decide();
        let actions = self.out.calls.take();
        if !actions.is_empty() {
            // What has just begun has deadlines of its own.
            self.clock_to(now);
            self.decide();
        }
        Plan { actions, wake: self.facts.clock.wake() }
    }

    /// The state for metrics, `/readyz` and `doctor`.
    pub fn status(&self) -> &Status {
        &self.out.status
    }

    /// Sets the clock. Time that CLOCK_MONOTONIC did not count was a suspend. Facts about the
    /// kubelet are older than the suspend. ([AP22])
    fn clock_to(&mut self, now: Now) {
        let suspended = |now: Now| now.boot.saturating_sub(now.monotonic);
        let before = suspended(self.facts.clock.now());
        self.facts.clock.set(now);
        if suspended(now) > before + Duration::from_secs(1) {
            self.facts.kubelet.armed_at = None;
            self.out.calls.log(false, None, "the machine was suspended");
        }
    }

    /// Follows each event by itself: a shutdown covers the pods as they were when it was announced,
    /// and a phase may be there and be taken back before the next decision.
    fn follow(&mut self) {
        let Self { facts, out, lock, node, shutdowns, disruptions, .. } = self;
        let news = &self.news[self.followed..];
        disruptions.follow(news, facts, out);
        shutdowns.follow(news, facts, out, &mut Others { node, lock, disruptions });
        facts.situation = shutdowns.situation(disruptions, facts.clock.monotonic());
        self.followed = self.news.len();
    }

    /// Every decision, in the order of its weight.
    fn decide(&mut self) {
        self.follow();
        self.followed = 0;
        let Self { facts, news, out, policies, lock, node, shutdowns, disruptions, .. } = self;
        let Self { end_signals, oom, evictions, stuck, .. } = self;
        let now = facts.clock.monotonic();
        let news = std::mem::take(news);

        out.refusals.forget(facts.situation, &facts.clock);
        policies.apply(facts, out);

        if !out.calls.is_held_back() {
            node.keep(facts, lock);
        }
        lock.keep(facts, out);
        node.send(facts, out);
        end_signals.advance(shutdowns, disruptions, facts, out);

        if let Some(shutdown) = &mut shutdowns.current {
            shutdown.advance(facts, out, &mut Others { node, lock, disruptions });
        }
        facts.situation = shutdowns.situation(disruptions, now);
        oom.advance(&news, facts, out);
        evictions.advance(&news, facts, out, disruptions);
        stuck.advance(facts, out, disruptions);
        abandoned::advance(facts, out, disruptions);
        disruptions.audit(facts, out);

        node.send(facts, out);
        out.write_journal(&facts.clock);
        out.send_events(facts.situation.unacknowledged);
        self.report();
        let Self { facts, out, node_conditions, .. } = self;
        if !out.calls.is_held_back() {
            node_conditions.show(node::is_stale(facts), facts, out);
        }
    }

    /// Computes the report for metrics, `/readyz` and `doctor`.
    fn report(&mut self) {
        let may_exit = self.may_exit();
        let Self { facts, out, lock, shutdowns, disruptions, .. } = self;
        let now = facts.clock.monotonic();
        let status = &mut out.status;
        let found = shutdowns.mode().unwrap_or_else(|| facts.foreseen());
        let known = facts.kubelet.facts.is_some() || shutdowns.current.is_some();
        status.mode = known.then_some(found.mode);
        status.mode_reason = match status.unbounded {
            Some(_) if found.mode == Mode::Observe => "no admission policy bounds the agent",
            _ => found.why,
        };
        status.marks_only = found.marks_only;
        status.logind = facts.logind.connected;
        status.preparing = facts.is_preparing();
        status.lock = lock.state;
        status.granted = facts.endings.granted;
        status.wanted = facts.wanted_delay();
        status.pods_listed = facts.pods.is_listed();
        status.pods = facts.pods.len();
        status.journal_open = out.journal.is_open();
        status.boot_recovery_pending = disruptions.recoveries();
        status.mark_removals_pending = disruptions.removals();
        status.end_signals = self.end_signals.tally();
        status.oom = self.oom.status();
        status.stuck = self.stuck.status(disruptions);
        status.may_exit = may_exit;
        status.shutdown = shutdowns.status(disruptions, now).or(status.shutdown.take());
    }

    /// Whether the agent has to stop and has no open work.
    fn may_exit(&self) -> bool {
        let Some(stop_at) = self.facts.stop_at else { return false };
        let tried = self.facts.clock.reached(stop_at + LAST_TRIES);
        if let Some(shutdown) = &self.shutdowns.current {
            return shutdown.is_released()
                && (!shutdown::is_unacknowledged(&self.disruptions) || tried);
        }
        let evicts = self.disruptions.victims().next().is_some();
        let settled = self.disruptions.removals() == 0 && !evicts;
        !self.lock.may_hold() && (settled && self.node.is_settled() || tried)
    }
}

/// What comes in.
impl Agent {
    /// Adds the content of an event to what the agent knows. Decides nothing.
    fn learn(&mut self, event: Event) {
        let Self { facts, out, .. } = self;
        // Lists and watches are answers of the API, too.
        out.status.api_reachable |= matches!(
            event,
            Event::PodsListed(_)
                | Event::PodsRestored(_)
                | Event::PodObserved(_)
                | Event::PodGone(_)
                | Event::NodeObserved(_)
        );
        let now = facts.clock.monotonic();
        match event {
            Event::PodsListed(pods) => self.see_pods(|known| known.list(pods)),
            Event::PodsRestored(pods) => {
                self.news.push(News::Restored);
                self.see_pods(|known| known.list_restored(pods));
            }
            Event::PodObserved(pod) => self.see_pod(*pod),
            Event::PodGone(uid) => self.see_pod_gone(uid),
            Event::NodeObserved(view) => {
                self.node.compare(&view);
                let ending = view.end_sign.as_ref().map(EndSign::ending);
                facts.node = Some(view);
                self.see_notice(Source::Node, ending);
            }
            Event::LogindSeen(state) => self.see_logind(state),
            Event::LogindLost(why) => {
                facts.logind.connected = false;
                let text = format!("logind is lost: {why}; a lock that is held is kept");
                out.calls.log(true, None, text);
            }
            Event::EndingSeen(source, ending) => {
                if ending.is_none() && source == Source::Logind {
                    self.lock.take_again();
                }
                if let Some(news) = facts.endings.say(source, ending, now) {
                    endings::report(&news, facts, out);
                }
            }
            Event::LogindConfChanged => self.lock.conf_changed(),
            Event::KubeletSeen(seen) => {
                let granted = facts.endings.granted.unwrap_or(GRANTED_DEFAULT);
                facts.kubelet.see(seen, facts.is_preparing().then_some(granted), now);
            }
            Event::PressureRose(_) => self.evictions.pressure_rose(now),
            Event::OomKilled(kill) => self.oom.killed(*kill, facts, out),
            Event::OomdKilled(kill) => self.oom.oomd_killed(*kill, facts, out),
            Event::PoliciesTried(missing) => {
                facts.policy_missing = missing;
                self.policies.tried();
            }
            Event::StopRequested => self.stop_requested(),
            Event::Finished { id, result } => self.finished(id, result),
        }
    }

    fn see_pods(&mut self, list: impl FnOnce(&mut Pods) -> Vec<PodUid>) {
        if !self.facts.pods.is_listed() {
            self.news.push(News::FirstList);
        }
        let gone = list(&mut self.facts.pods);
        self.news.extend(gone.into_iter().map(News::PodGone));
        self.news.extend(self.facts.pods.iter().map(|pod| News::Pod(pod.uid.clone())));
    }

    fn see_pod(&mut self, pod: PodView) {
        let uid = pod.uid.clone();
        if self.facts.pods.observe(pod) {
            self.news.push(News::Pod(uid));
        }
    }

    fn see_pod_gone(&mut self, uid: PodUid) {
        self.facts.pods.gone(&uid);
        self.news.push(News::PodGone(uid));
    }

    fn see_logind(&mut self, seen: LogindState) {
        let Self { facts, out, .. } = self;
        let owner = facts.logind.state.as_ref().map(|state| &state.owner);
        let restarted = owner.is_some_and(|owner| *owner != seen.owner);
        let listed = seen.lock_listed;
        let now = facts.clock.monotonic();
        facts.endings.read_logind(seen.preparing, seen.delay, restarted, now);
        let scheduled = seen.scheduled_ending(facts.clock.now().wall);
        let logind = &mut facts.logind;
        logind.connected = true;
        logind.state = Some(seen);
        self.lock.was_listed(listed, facts, out);
        self.see_notice(Source::Scheduled, scheduled);
    }

    /// Takes what was read of a source that the agent itself does not ask.
    fn see_notice(&mut self, source: Source, ending: Option<Ending>) {
        let Self { facts, out, .. } = self;
        let now = facts.clock.monotonic();
        if facts.settings.notices.contains(&source)
            && let Some(news) = facts.endings.say(source, ending, now)
        {
            endings::report(&news, facts, out);
        }
    }

    fn stop_requested(&mut self) {
        let Self { facts, out, .. } = self;
        facts.stop_at.get_or_insert(facts.clock.monotonic());
        let situation = facts.situation;
        let text = if situation.is_urgent() {
            "asked to stop in a shutdown: continues until the lock is released"
        } else {
            "asked to stop"
        };
        out.calls.log(false, None, text);
    }
}
