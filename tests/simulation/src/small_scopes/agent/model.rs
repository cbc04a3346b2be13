//! The model: a node with its pods, kubelet, runtime, logind and disk, the API, one agent, and what
//! may go wrong. Time stands still while anything is to be done, and then goes on to the next time
//! limit.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use agent_core::protocol::action::{Action, ActionId};
use agent_core::protocol::event::Event as Fact;
use agent_core::protocol::journal::Record;

use super::calls::writes_pod;
use super::node::{KubeletState, Logind, Pod, populate};
use super::process::{Flight, Process};
use super::scope::{DELAY, Faults, PodKind, STARTS_AT, Scope, wall};
use super::verdicts::{History, Judged};
use super::{digest, words};
use crate::agent::api::{Api, Change, Stored};
use crate::small_scopes::explorer::{Explored, Next, Outcome};

/// When the shutdown is announced, after the agent has come to rest.
const ANNOUNCED_AT: Duration = Duration::from_secs(160);

/// A state of the model.
#[derive(Clone)]
pub(in crate::small_scopes) struct State {
    pub(super) now: Duration,
    pub(super) api: Api,
    /// Changes of pods that the agent's watch has yet to show.
    pub(super) changes: VecDeque<Change>,
    pub(super) node_changed: bool,
    pub(super) kinds: &'static [PodKind],
    pub(super) pods: Vec<Pod>,
    pub(super) kubelet: KubeletState,
    /// Signals of logind that the kubelet has yet to hear.
    pub(super) kubelet_hears: VecDeque<bool>,
    pub(super) logind: Logind,
    pub(super) off: bool,
    pub(super) process: Option<Rc<Process>>,
    pub(super) disk: Vec<Record>,
    /// Writes of a process that died, which may still arrive before its successor reads or writes
    /// pods.
    pub(super) wire: Vec<Action>,
    pub(super) left: Faults,
    pub(super) history: History,
    /// The agent's actions in words, if somebody wants to read them.
    pub(super) said: Option<Vec<String>>,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::small_scopes) enum Fate {
    Answered,
    Refused,
    /// It arrives, and its reply does not.
    ReplyLost,
    /// It does not arrive.
    Lost,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::small_scopes) enum Event {
    /// The time goes on to the next limit.
    Advance,
    Announce,
    Cancel,
    /// No lock delays logind, or its time is over.
    Go,
    List,
    ReadLogind,
    ReadKubelet,
    Hear,
    Watch,
    /// The agent decides.
    Decide,
    Call(ActionId, Fate),
    Reply(ActionId),
    KubeletHears,
    KubeletActs(usize),
    KubeletIsDone,
    KubeletEnds,
    KubeletStarts,
    /// The container of a pod exits with 0 by itself.
    End(usize),
    /// The process dies; whether its write to the journal is on the disk.
    Crash(bool),
    Arrive(usize),
}

impl Explored for Scope {
    type State = State;
    type Action = Event;

    fn start(&self) -> State {
        let mut api = Api { clock: wall(STARTS_AT), ..Api::default() };
        let pods = populate(&mut api, self.pods);
        api.log.clear();
        let mut history = History::default();
        history.pods.resize_with(pods.len(), Default::default);
        let mut state = State {
            now: STARTS_AT,
            api,
            changes: VecDeque::new(),
            node_changed: false,
            kinds: self.pods,
            pods,
            kubelet: KubeletState::new(self.kubelet),
            kubelet_hears: VecDeque::new(),
            logind: Logind::new(self.kubelet, self.other_lock),
            off: false,
            process: Some(Rc::new(Process::start(0, &[], STARTS_AT))),
            disk: Vec::new(),
            wire: Vec::new(),
            left: self.faults,
            history,
            said: None,
        };
        state.come_to_rest(self);
        state
    }

    fn next(&self, state: &State) -> Vec<Next<Event, State>> {
        let mut all = Vec::new();
        for (event, optional) in state.events() {
            let mut after = state.clone();
            let outcome = match after.happen(event, self) {
                Ok(()) => Outcome::State(after),
                Err(problem) => Outcome::Violation(problem),
            };
            all.push(Next { action: event, optional, outcome });
        }
        all
    }

    fn digest(&self, state: &State) -> u64 {
        digest::of(state)
    }

    fn unsettled(&self, state: &State) -> Option<String> {
        if state.off {
            return None;
        }
        if state.logind.until.is_some() || state.history.announced_at.is_none() {
            return Some("a shutdown goes on".to_owned());
        }
        match state.certain().first() {
            Some(_) => Some("something is to be done".to_owned()),
            None => state.judge_rest(self),
        }
    }

    fn described(&self, state: &State, action: &Event) -> String {
        words::described(state, *action, self)
    }
}

impl State {
    /// The agent starts, and has its lock.
    fn come_to_rest(&mut self, scope: &Scope) {
        for now in [STARTS_AT, ANNOUNCED_AT] {
            self.now = now;
            self.decide(scope).expect("an agent at rest must break no rule");
            while let Some(event) = self.urgent().first().copied() {
                self.happen(event, scope).expect("an agent at rest must break no rule");
            }
        }
    }

    /// Everything that can happen now, and whether it may also never happen.
    fn events(&self) -> Vec<(Event, bool)> {
        let mut events: Vec<(Event, bool)> =
            self.certain().into_iter().map(|event| (event, false)).collect();
        if !self.off && events.first() != Some(&(Event::Go, false)) {
            self.faults(&mut events);
        }
        events
    }

    /// What happens sooner or later: whatever is to be done now, in any order, and then the time
    /// goes on.
    fn certain(&self) -> Vec<Event> {
        if self.history.announced_at.is_none() {
            return vec![Event::Announce];
        }
        let urgent = self.urgent();
        if !urgent.is_empty() || self.off {
            return urgent;
        }
        if self.next_limit().is_some() {
            return vec![Event::Advance];
        }
        // Somebody starts the kubelet of a node that lives on, once all else is done.
        let returns = !self.kubelet.lives && self.logind.until.is_none();
        if returns { vec![Event::KubeletStarts] } else { Vec::new() }
    }

    fn urgent(&self) -> Vec<Event> {
        if self.off {
            return Vec::new();
        }
        if self.logind.goes(self.now) {
            return vec![Event::Go];
        }
        let mut events = Vec::new();
        if let Some(process) = &self.process {
            self.urgent_of(process, &mut events);
        }
        if !self.kubelet_hears.is_empty() {
            events.push(Event::KubeletHears);
        }
        for (number, pod) in self.pods.iter().enumerate() {
            if self.kubelet.acts(pod, &self.api) {
                events.push(Event::KubeletActs(number));
            }
        }
        if self.kubelet.is_done(&self.pods, self.logind.kubelet_lock) {
            events.push(Event::KubeletIsDone);
        }
        events
    }

    fn urgent_of(&self, process: &Process, events: &mut Vec<Event>) {
        let sources = [
            (process.lists, Event::List),
            (process.reads_logind, Event::ReadLogind),
            (process.reads_kubelet, Event::ReadKubelet),
            (!process.signals.is_empty(), Event::Hear),
            (!process.lists && !self.changes.is_empty(), Event::Watch),
            (process.is_due(self.now), Event::Decide),
        ];
        events.extend(sources.into_iter().filter(|(due, _)| *due).map(|(_, event)| event));
        for (id, flight) in &process.in_flight {
            if let Flight::Sent(_) = flight {
                events.push(Event::Call(*id, Fate::Answered));
            } else if self.ends(flight) {
                events.push(Event::Reply(*id));
            }
        }
    }

    fn faults(&self, events: &mut Vec<(Event, bool)>) {
        let mut may = |event| events.push((event, true));
        let (left, announced) = (self.left, self.history.announced_at.is_some());
        if !announced {
            return;
        }
        if left.cancels > 0 && self.logind.until.is_some() {
            may(Event::Cancel);
        }
        if left.again > 0 && self.logind.until.is_none() {
            may(Event::Announce);
        }
        for (number, pod) in self.pods.iter().enumerate() {
            if left.ends > 0 && pod.running && !self.kinds[number].restarts {
                may(Event::End(number));
            }
        }
        if left.kubelet_ends > 0 && self.kubelet.lives {
            may(Event::KubeletEnds);
        }
        (0..self.wire.len()).for_each(|number| may(Event::Arrive(number)));
        let Some(process) = &self.process else { return };
        let mut journals = false;
        for (id, flight) in &process.in_flight {
            let Flight::Sent(action) = flight else { continue };
            journals |= matches!(action, Action::Journal(_));
            if left.refusals > 0 && writes_pod(action) {
                may(Event::Call(*id, Fate::Refused));
            }
            if left.lost_replies > 0 && writes_pod(action) {
                may(Event::Call(*id, Fate::ReplyLost));
                may(Event::Call(*id, Fate::Lost));
            }
        }
        if left.restarts > 0 {
            may(Event::Crash(false));
            if journals {
                may(Event::Crash(true));
            }
        }
    }

    /// The next time limit of the agent, a container, a call or logind.
    pub(super) fn next_limit(&self) -> Option<Duration> {
        let pods = self.pods.iter().flat_map(|pod| {
            [pod.exits_at, pod.kubelet_kills_at, pod.agent_kills_at].into_iter().flatten()
        });
        let process = self.process.iter();
        let flights = process.clone().flat_map(|process| process.in_flight.values());
        let flights = flights.filter_map(|flight| match flight {
            Flight::Sent(_) => None,
            Flight::Unanswered(until) | Flight::Stops(_, _, until) => Some(*until),
        });
        let wakes = process.filter_map(|process| process.wake);
        let all = pods.chain(flights).chain(wakes).chain(self.logind.until);
        all.filter(|at| *at > self.now).min()
    }

    /// Carries out an event.
    pub(super) fn happen(&mut self, event: Event, scope: &Scope) -> Judged {
        self.api.clock = wall(self.now);
        match event {
            Event::Advance => self.advance()?,
            Event::Announce => self.announce(),
            Event::Cancel => self.cancel(),
            Event::Go => {
                self.off = true;
                self.judge_off()?;
            }
            Event::Decide => self.decide(scope)?,
            Event::Call(id, fate) => self.call(id, fate, scope)?,
            Event::Reply(id) => self.reply(id, scope)?,
            Event::KubeletHears => {
                if let Some(shuts_down) = self.kubelet_hears.pop_front() {
                    self.kubelet.hear(shuts_down, &mut self.api);
                }
            }
            Event::KubeletActs(number) => {
                let (pod, kind) = (&mut self.pods[number], self.kinds[number]);
                self.kubelet.act(pod, kind, &mut self.api, self.now);
            }
            Event::KubeletIsDone => {
                self.kubelet.finish(&mut self.logind, &mut self.api);
                self.kubelet_changed();
            }
            Event::KubeletEnds => self.end_kubelet(),
            Event::KubeletStarts => {
                // It takes longer to start than a call takes to arrive.
                self.wire.clear();
                self.kubelet.lives = true;
                self.kubelet_changed();
            }
            Event::End(number) => {
                self.left.ends -= 1;
                self.pods[number].exit(0, self.now);
            }
            Event::Crash(journaled) => self.crash(journaled),
            Event::Arrive(number) => {
                let action = self.wire.remove(number);
                let _ = self.write(&action, scope)?;
            }
            source => self.read(source, scope)?,
        }
        self.observe();
        self.show_node(scope)
    }

    /// A source of the agent tells what it has read.
    fn read(&mut self, source: Event, scope: &Scope) -> Judged {
        let Some(process) = &mut self.process else { return Ok(()) };
        let process = Rc::make_mut(process);
        match source {
            Event::List => {
                process.lists = false;
                self.changes.clear();
                let pods = self.api.pods.values().map(Stored::view).collect();
                self.handle(Fact::PodsListed(pods), scope)?;
                self.handle(Fact::NodeObserved(self.api.node.clone()), scope)
            }
            Event::ReadLogind => {
                process.reads_logind = false;
                let state = self.logind.state(process.number);
                self.handle(Fact::LogindSeen(state), scope)
            }
            Event::ReadKubelet => {
                process.reads_kubelet = false;
                self.handle(Fact::KubeletSeen(self.kubelet.facts(&self.logind)), scope)
            }
            Event::Watch => {
                for change in std::mem::take(&mut self.changes) {
                    let fact = match change {
                        Change::Pod(stored) => Fact::PodObserved(Box::new(stored.view())),
                        Change::Gone(stored) => Fact::PodGone(stored.uid().clone()),
                        Change::Node => continue,
                    };
                    self.handle(fact, scope)?;
                }
                Ok(())
            }
            _ => self.hear(scope),
        }
    }

    /// The watch shows changes of the node's object at once: they matter to no pod.
    fn show_node(&mut self, scope: &Scope) -> Judged {
        while self.node_changed && !self.off {
            self.node_changed = false;
            if self.process.as_ref().is_some_and(|process| !process.lists) {
                self.handle(Fact::NodeObserved(self.api.node.clone()), scope)?;
            }
            self.observe();
        }
        Ok(())
    }

    /// The time goes on; containers exit, or are killed. What was on the wire is lost.
    fn advance(&mut self) -> Judged {
        self.wire.clear();
        self.now = self.next_limit().unwrap_or(self.now);
        let now = self.now;
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        for pod in &mut self.pods {
            if due(pod.exits_at) {
                pod.exit(143, now);
            } else if due(pod.kubelet_kills_at) || due(pod.agent_kills_at) {
                pod.exit(137, now);
            }
        }
        self.judge_time()
    }

    fn announce(&mut self) {
        if self.history.announced_at.is_some() {
            self.left.again -= 1;
        }
        self.note_announcement();
        self.logind.until = Some(self.now + DELAY);
        self.signal(true);
        self.kubelet_changed();
    }

    fn cancel(&mut self) {
        self.left.cancels -= 1;
        self.logind.until = None;
        self.signal(false);
    }

    /// Whoever has subscribed hears it.
    fn signal(&mut self, shuts_down: bool) {
        if self.kubelet.lives {
            self.kubelet_hears.push_back(shuts_down);
        }
        if let Some(process) = &mut self.process
            && !process.reads_logind
        {
            Rc::make_mut(process).signals.push_back(shuts_down);
        }
    }

    /// The agent's source sees that something about the kubelet has changed.
    fn kubelet_changed(&mut self) {
        if let Some(process) = &mut self.process {
            Rc::make_mut(process).reads_kubelet = true;
        }
    }

    /// The kubelet dies, and nothing kills what it was about to kill.
    fn end_kubelet(&mut self) {
        self.left.kubelet_ends -= 1;
        self.kubelet.lives = false;
        self.kubelet_hears.clear();
        self.logind.kubelet_lock = false;
        for pod in &mut self.pods {
            pod.kubelet_kills_at = None;
        }
        self.kubelet_changed();
    }

    /// The agent's process dies, and another starts with the journal.
    fn crash(&mut self, journaled: bool) {
        self.left.restarts -= 1;
        let Some(dead) = self.process.take() else { return };
        for flight in dead.in_flight.values() {
            match flight {
                Flight::Sent(Action::Journal(records)) if journaled => {
                    self.disk.extend(records.iter().cloned());
                }
                Flight::Sent(action) if writes_pod(action) => self.wire.push(action.clone()),
                _ => {}
            }
        }
        for pod in &mut self.pods {
            pod.agent_kills_at = None;
        }
        if self.logind.agent_lock.take().is_some() && self.logind.until.is_some() {
            self.history.lock_lost = true;
        }
        self.changes.clear();
        self.process = Some(Rc::new(Process::start(dead.number + 1, &self.disk, self.now)));
    }
}
