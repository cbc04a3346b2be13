//! Models the agent's process: the real state machine in its driver's loop, its crashes, its
//! freezes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use agent_core::agent::{Agent, Plan, Settings};
use agent_core::protocol::action::ActionId;
use agent_core::protocol::event::{ActionResult, Event, Now};

use super::logind::Stage;
use super::sabotage::Sabotage;
use super::situations::{KilledAfter, is_check};
use super::world::{Life, World};
use crate::controller::agenda::Moment;

/// One process.
pub(super) struct Process {
    pub(super) run: u64,
    pub(super) agent: Agent,
    /// Whether it has subscribed to the signals of logind.
    pub(super) subscribed: bool,
    pub(super) stop_requested: bool,
    /// The actions under way; whether each is a call to the API.
    pub(super) in_flight: BTreeMap<ActionId, bool>,
    inbox: VecDeque<Event>,
    frozen: bool,
    wake_at: Option<Moment>,
    /// Messages on the bus keep their order.
    bus_due: Moment,
}

impl World {
    /// Starts the agent with its journal.
    pub(super) fn start_process(&mut self) {
        if self.process.is_some() || !self.on || self.stopping.is_some() {
            return;
        }
        self.runs += 1;
        let run = self.runs;
        self.log(|w| format!("agent     starts, run {run}, {} records", w.disk.records.len()));
        let settings = Settings {
            boot_id: self.boot_id(),
            booted_at: self.boot_wall,
            ..self.behaviour.settings.clone()
        };
        let agent = Agent::new(settings, &self.disk.records, self.clocks());
        self.process = Some(Process {
            run,
            agent,
            subscribed: false,
            stop_requested: false,
            in_flight: BTreeMap::new(),
            inbox: VecDeque::new(),
            frozen: false,
            wake_at: None,
            bus_due: self.now(),
        });
        self.ledger.process_ends();
        self.begin_watch();
        let life = Life::Agent(run);
        let pause = self.random.millis(5, 400);
        self.after(pause, life, World::watch_logind);
        let pause = self.random.millis(20, 400);
        self.after(pause, life, World::watch_kubelet);
        self.watch_notices();
        self.pump();
    }

    /// The process ends with everything it held; `again` restarts it.
    pub(super) fn crash(&mut self, again: Option<Duration>) {
        self.met_crash();
        let Some(process) = self.process.take() else { return };
        self.log(|_| format!("agent     run {} ends", process.run));
        self.stats.crashes += 1;
        self.ledger.process_ends();
        self.lose_unsynced();
        if let Some(pause) = again {
            self.after(pause, Life::Boot(self.boot), World::start_process);
        }
        if self.logind.agent_lock == Some(process.run) {
            self.logind.agent_lock = None;
            self.ledger.lock_lost();
            self.locks_changed();
        }
    }

    /// Its own pod, or its service, is being stopped.
    pub(super) fn request_stop(&mut self) {
        let Some(process) = &mut self.process else { return };
        process.stop_requested = true;
        self.log(|_| "agent     is asked to stop".into());
        self.agent_handles(Event::StopRequested);
    }

    /// The process stands still for a while, without knowing it.
    pub(super) fn freeze(&mut self, length: Duration) {
        let Some(process) = &mut self.process else { return };
        process.frozen = true;
        let run = process.run;
        self.ledger.frozen_at = Some(self.now());
        self.log(|_| format!("agent     is frozen for {length:?}"));
        self.after(length, Life::Agent(run), |w| {
            w.log(|_| "agent     is thawed".into());
            w.ledger.frozen_at = None;
            w.ledger.thawed_at = Some(w.now());
            if let Some(process) = &mut w.process {
                process.frozen = false;
            }
            w.pump();
        });
    }

    /// The agent handles an event now.
    pub(super) fn agent_handles(&mut self, event: Event) {
        let Some(process) = &mut self.process else { return };
        process.inbox.push_back(event);
        if !process.frozen {
            self.pump();
        }
    }

    /// The agent receives an event over the bus.
    pub(super) fn handle_soon(&mut self, event: Event) {
        let pause = self.random.millis(1, 20);
        let now = self.now();
        let Some(process) = &mut self.process else { return };
        process.bus_due = process.bus_due.max(now + pause);
        let (run, pause) = (process.run, process.bus_due.saturating_sub(now));
        self.after(pause, Life::Agent(run), move |w| w.agent_handles(event));
    }

    /// An action has ended.
    pub(super) fn finish(&mut self, id: ActionId, result: ActionResult) {
        let Some(process) = &mut self.process else { return };
        let was_call = process.in_flight.remove(&id);
        let acknowledged =
            matches!(result, ActionResult::Done(Ok(())) | ActionResult::Patched(Ok(_)));
        if self.options.sabotage == Some(Sabotage::DropAcks)
            && was_call == Some(true)
            && acknowledged
        {
            return;
        }
        self.ledger_hears_result(id, &result);
        if self.is_forged(id) {
            return;
        }
        let result = self.misanswered(result);
        self.agent_handles(Event::Finished { id, result });
    }

    pub(super) fn finish_after(&mut self, pause: Duration, id: ActionId, result: ActionResult) {
        let Some(run) = self.agent_run() else { return };
        self.after(pause, Life::Agent(run), move |w| w.finish(id, result));
    }

    fn pump(&mut self) {
        let now = self.clocks();
        while let Some(event) = self.process.as_mut().and_then(|p| p.inbox.pop_front()) {
            self.ledger_hears(&event);
            self.log(|_| format!("  event   {}", super::print::event(&event)));
            let event = self.misheard(event);
            if let Some(process) = &mut self.process {
                process.agent.handle(event, now);
            }
        }
        let Some(process) = &mut self.process else { return };
        let plan = process.agent.plan(now);
        self.log_plan(&plan);
        for (id, action) in plan.actions {
            let killed_after = KilledAfter::of(&action);
            let acts = !is_check(&action);
            self.stats.actions += u64::from(acts);
            self.dispatch(id, action);
            if acts && self.options.crash_after == Some(self.stats.actions) {
                self.met_kill(killed_after);
                let pause = self.random.millis(200, 5_000);
                return self.crash(Some(pause));
            }
        }
        let due = self.options.crash_in.is_some_and(|stage| self.is_in(stage));
        if due && self.stats.crashes_in_stage == 0 {
            self.stats.crashes_in_stage += 1;
            let pause = self.random.millis(200, 5_000);
            return self.crash(Some(pause));
        }
        self.ask_again(now);
        self.sleep_until(plan.wake, now.monotonic);
        self.exit_if_done();
    }

    /// Shows a decision that gives something.
    fn log_plan(&mut self, plan: &Plan) {
        if self.options.plan && !plan.actions.is_empty() {
            self.log(|w| {
                let report = w.process.as_ref().map(|process| process.agent.status());
                super::print::plan(plan, report)
            });
        }
    }

    /// Asked again with nothing new, the agent gives nothing.
    fn ask_again(&mut self, now: Now) {
        let Some(process) = &mut self.process else { return };
        let report = process.agent.status().clone();
        let again = process.agent.plan(now);
        let changed = *process.agent.status() != report;
        if !again.actions.is_empty() || changed {
            let given = super::print::plan(&again, None);
            self.violate(&format!("asked again with nothing new, it gives something new: {given}"));
        }
    }

    fn sleep_until(&mut self, wake: Option<Duration>, monotonic: Duration) {
        let Some(deadline) = wake else { return };
        if deadline <= monotonic {
            let words = format!("spins: deadline {deadline:?} at {monotonic:?}");
            return self.violate(&words);
        }
        let at = self.moment_of(deadline);
        let Some(process) = &mut self.process else { return };
        if process.wake_at == Some(at) {
            return;
        }
        process.wake_at = Some(at);
        let run = process.run;
        let pause = at.saturating_sub(self.now());
        self.after(pause, Life::Agent(run), move |w| {
            let process = w.process.as_mut().filter(|p| p.wake_at == Some(at));
            let Some(process) = process else { return };
            process.wake_at = None;
            if !process.frozen {
                w.pump();
            }
        });
    }

    /// The program ends when the core reports that nothing is left to do.
    fn exit_if_done(&mut self) {
        let Some(process) = &self.process else { return };
        if process.stop_requested && process.agent.status().may_exit {
            let again = self.logind.stage == Stage::Idle && !self.own_pod_is_terminating();
            let pause = again.then(|| self.random.millis(500, 4_000));
            self.crash(pause);
        }
    }
}
