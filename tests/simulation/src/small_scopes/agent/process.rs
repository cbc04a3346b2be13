//! One process of the agent: the shipped state machine, what it has yet to hear, and its actions
//! under way.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use agent_core::agent::{Agent, Plan};
use agent_core::protocol::action::{Action, ActionId, Reach};
use agent_core::protocol::ending::{Ending, ShutdownKind, Source};
use agent_core::protocol::event::{ActionResult, Event, Now};
use agent_core::protocol::journal::Record;

use super::model::State;
use super::sabotage::Sabotage;
use super::scope::{DELAY, Scope, settings, wall};
use super::verdicts::Judged;

/// More decisions than this at one moment have no end.
const DECISIONS_AT_ONCE_MAX: usize = 50;
/// A process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    /// Its number, which no later process gets.
    pub(super) number: u8,
    pub(super) agent: Agent,
    /// What its sources have yet to read.
    pub(super) lists: bool,
    pub(super) reads_logind: bool,
    pub(super) reads_kubelet: bool,
    /// Signals of logind that it has yet to hear: whether the machine shuts down.
    pub(super) signals: VecDeque<bool>,
    pub(super) in_flight: BTreeMap<ActionId, Flight>,
    /// When it decides again without an event.
    pub(super) wake: Option<Duration>,
    /// Whether it has heard something since its last decision.
    pub(super) undecided: bool,
}

/// An action under way.
#[derive(Clone, Debug)]
pub(super) enum Flight {
    /// It is not carried out yet.
    Sent(Action),
    /// No answer comes; the caller gives up at that time.
    Unanswered(Duration),
    /// The runtime stops a pod, until then at most.
    Stops(usize, Reach, Duration),
}

impl Process {
    /// A new process with its journal.
    pub(super) fn start(number: u8, journal: &[Record], now: Duration) -> Self {
        Self {
            number,
            agent: Agent::new(settings(), journal, clocks(now)),
            lists: true,
            reads_logind: true,
            reads_kubelet: true,
            signals: VecDeque::new(),
            in_flight: BTreeMap::new(),
            wake: None,
            undecided: true,
        }
    }

    /// Whether it has to decide now.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.undecided || self.wake.is_some_and(|at| at <= now)
    }
}

/// The machine's clocks.
fn clocks(now: Duration) -> Now {
    Now { monotonic: now, boot: now, wall: wall(now) }
}

impl State {
    /// The agent handles an event, and decides at once unless the scope lets it wait.
    pub(super) fn handle(&mut self, event: Event, scope: &Scope) -> Judged {
        self.learn(event);
        if scope.decides_later { Ok(()) } else { self.decide(scope) }
    }

    /// The agent handles an event, and does not decide yet.
    pub(super) fn learn(&mut self, event: Event) {
        let now = clocks(self.now);
        if let Some(process) = &mut self.process {
            let process = Rc::make_mut(process);
            process.agent.handle(event, now);
            process.undecided = true;
        }
    }

    /// An action has ended.
    pub(super) fn finish(&mut self, id: ActionId, result: ActionResult, scope: &Scope) -> Judged {
        self.handle(Event::Finished { id, result }, scope)
    }

    /// The agent decides, until it has nothing more to do at this moment.
    pub(super) fn decide(&mut self, scope: &Scope) -> Judged {
        let now = clocks(self.now);
        let shutdown = self.history.announced_at.is_some();
        let twice = shutdown && scope.sabotage == Some(Sabotage::GiveTwice);
        for _ in 0..DECISIONS_AT_ONCE_MAX {
            let Some(process) = &mut self.process else { return Ok(()) };
            let process = Rc::make_mut(process);
            let Plan { actions, wake } = process.agent.plan(now);
            (process.wake, process.undecided) = (wake, false);
            if wake.is_some_and(|at| at <= now.monotonic) {
                return Err("the agent wants to be woken at once, and does nothing".to_owned());
            }
            let report = process.agent.status().clone();
            let mut again = process.agent.plan(now);
            if twice {
                again.actions.clone_from(&actions);
            }
            if !again.actions.is_empty() || *process.agent.status() != report {
                let given = crate::agent::print::plan(&again, None);
                return Err(format!("asked again with nothing new, it gives {given}"));
            }
            for (id, action) in actions {
                if let Some(said) = &mut self.said {
                    said.push(crate::agent::print::action(id, &action));
                }
                self.dispatch(id, action, scope)?;
            }
            if self.process.as_ref().is_none_or(|process| !process.undecided) {
                return Ok(());
            }
        }
        Err("the agent acts without end".to_owned())
    }

    /// The agent hears the next signal of logind.
    pub(super) fn hear(&mut self, scope: &Scope) -> Judged {
        let Some(process) = &mut self.process else { return Ok(()) };
        let event = match Rc::make_mut(process).signals.pop_front() {
            None => return Ok(()),
            Some(true) => {
                let (granted, kind) = (Some(DELAY), Some(ShutdownKind::Poweroff));
                Event::EndingSeen(Source::Logind, Some(Ending::certain(granted, kind)))
            }
            Some(false) => Event::EndingSeen(Source::Logind, None),
        };
        self.handle(event, scope)
    }
}
