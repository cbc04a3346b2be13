//! The model: the API, processes that all believe they lead, kubelets, and what may go wrong. Every
//! action is one call, one event, or one decision.

use std::collections::BTreeSet;
use std::sync::Arc;

use controller_core::job::{Call, GroupStep, NodeFault, PodPlan, Step};
use controller_core::view::{Job, Pod, Uid};
use jiff::Timestamp;

use super::explorer::{Explored, Next, Outcome};
use super::history::{History, Knowledge};
use super::kubelet::Ending;
use super::process::{Process, Work, lists, succeeds, writes_status};
use super::sabotage::Sabotage;
use super::scope::{Faults, Scope};
use super::watches::{self, Kind};
use super::{digest, words};
use crate::controller::api::Api;

/// A state of the model.
#[derive(Clone)]
pub(super) struct State {
    pub(super) api: Api,
    pub(super) processes: Vec<Arc<Process>>,
    /// Calls of processes that died, which may still arrive.
    pub(super) wire: Vec<Sent>,
    /// Pods whose container runs.
    pub(super) running: BTreeSet<Uid>,
    pub(super) left: Faults,
    pub(super) history: History,
    /// Numbers given to processes.
    pub(super) started: u8,
}

/// A call on the wire without a process that waits for it.
#[derive(Clone)]
pub(super) struct Sent {
    pub(super) call: Call,
    /// The Job that it is based on.
    pub(super) job: Arc<Job>,
    plan: Arc<PodPlan>,
    pub(super) by: Knowledge,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// It arrives, and its reply does not.
    ReplyLost,
    /// It does not arrive.
    Lost,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Pod(usize, Ending),
    Sync(usize),
    Wait(usize),
    Call(usize, usize, Fate),
    Orphans(usize, usize),
    CatchUp(usize, Kind),
    Relist(usize, Kind),
    Crash(usize),
    Arrive(usize),
}

/// An event, and the watch that holds back what follows from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Action {
    event: Event,
    late: Option<(usize, Kind)>,
}

impl Explored for Scope {
    type State = State;
    type Action = Action;

    fn start(&self) -> State {
        let mut api = Api::new(Timestamp::UNIX_EPOCH, None);
        api.create_job(self.job());
        let mut processes = vec![Arc::new(Process::start(0, &api, self))];
        if self.second_leader > 0 {
            let second = Process::start(1, &api, self);
            let syncs_left = Some(self.second_leader);
            processes.push(Arc::new(Process { syncs_left, ..second }));
        }
        State {
            api,
            processes,
            wire: Vec::new(),
            running: BTreeSet::new(),
            left: self.faults,
            history: History::default(),
            started: 2,
        }
    }

    fn next(&self, state: &State) -> Vec<Next<Action, State>> {
        let mut all = Vec::new();
        for event in state.events(self) {
            let optional = state.is_optional(event);
            let mut after = state.clone();
            if let Err(problem) = after.happen(event, self) {
                let action = Action { event, late: None };
                all.push(Next { action, optional, outcome: Outcome::Violation(problem) });
                continue;
            }
            for (kind, number) in after.may_be_late(self) {
                let mut held = after.clone();
                held.left.late_watches -= 1;
                Arc::make_mut(&mut held.processes[number]).watch_mut(kind).late = true;
                let action = Action { event, late: Some((number, kind)) };
                let outcome = held.shown(self);
                all.push(Next { action, optional: true, outcome });
            }
            let outcome = after.shown(self);
            all.push(Next { action: Action { event, late: None }, optional, outcome });
        }
        all
    }

    fn digest(&self, state: &State) -> u64 {
        digest::of(state, self)
    }

    fn unsettled(&self, state: &State) -> Option<String> {
        let job = state.job();
        if !job.is_finished() {
            return Some("the Job is not finished".to_owned());
        }
        let mut pods = state.api.pods.values();
        let held = pods.find(|pod| pod.tracked || !pod.is_terminal())?;
        let what = if held.is_terminal() { "keeps its finalizer" } else { "still lives" };
        Some(format!("{} {what} after the end of its Job", held.uid))
    }

    fn described(&self, state: &State, action: &Action) -> String {
        words::described(state, action.event, action.late, self)
    }
}

impl State {
    pub(super) fn job(&self) -> &Arc<Job> {
        let stored = self.api.jobs.values().next();
        &stored.expect("the Job of a scope is never deleted").view
    }

    /// Whether a write that is based on this Job is refused, whatever it says.
    pub(super) fn will_conflict(&self, job: &Job, scope: &Scope) -> bool {
        job.version != self.job().version && scope.sabotage != Some(Sabotage::OverwriteStatus)
    }

    /// What a process would plan now, in one line.
    pub(super) fn planned(&self, number: usize, scope: &Scope) -> String {
        let mut process = Process::clone(&self.processes[number]);
        process.sync(&self.api, scope);
        process.work.map_or_else(String::new, |work| work.plan.to_string())
    }

    /// Everything that can happen now.
    fn events(&self, scope: &Scope) -> Vec<Event> {
        let mut events = Vec::new();
        for (number, pod) in self.api.pods.values().enumerate() {
            let runs = self.running.contains(&pod.uid);
            let endings = Ending::of(pod, runs, scope.endings, self.left);
            events.extend(endings.into_iter().map(|ending| Event::Pod(number, ending)));
        }
        for (number, process) in self.processes.iter().enumerate() {
            self.events_of(number, process, scope, &mut events);
        }
        events.extend((0..self.wire.len()).map(Event::Arrive));
        events
    }

    fn events_of(&self, number: usize, process: &Process, scope: &Scope, events: &mut Vec<Event>) {
        if let Some(work) = &process.work {
            for (call, sent) in work.calls.iter().enumerate() {
                // Creations of equal pods are one and the same.
                if work.calls[..call].iter().any(|earlier| earlier.step == sent.step) {
                    continue;
                }
                events.push(Event::Call(number, call, Fate::Answered));
                if self.left.lost_replies > 0 {
                    events.push(Event::Call(number, call, Fate::ReplyLost));
                    events.push(Event::Call(number, call, Fate::Lost));
                }
            }
        } else if process.queued && process.syncs_left != Some(0) {
            events.push(Event::Sync(number));
        } else if process.wake.is_some() && process.syncs_left.is_none() && !self.reports_late() {
            events.push(Event::Wait(number));
        }
        events.extend((0..process.orphans.len()).map(|item| Event::Orphans(number, item)));
        for kind in Kind::of(scope).iter().filter(|kind| process.watch(**kind).late) {
            events.push(Event::CatchUp(number, *kind));
            events.push(Event::Relist(number, *kind));
        }
        if self.left.crashes > 0 && process.syncs_left.is_none() {
            events.push(Event::Crash(number));
        }
    }

    /// Whether a kubelet has called a pod Failed that still runs. It corrects that within 10 s,
    /// before any wait for it is over.
    fn reports_late(&self) -> bool {
        self.api.pods.values().any(|pod| pod.is_terminal() && self.running.contains(&pod.uid))
    }

    /// Whether it may never happen: faults, and whatever the second leader does.
    fn is_optional(&self, event: Event) -> bool {
        let second = |number: usize| self.processes[number].syncs_left.is_some();
        match event {
            Event::Pod(_, ending) => ending.is_bad(),
            Event::Call(number, _, fate) => fate != Fate::Answered || second(number),
            Event::Relist(..) | Event::Crash(_) | Event::Arrive(_) => true,
            Event::Wait(_) => false,
            Event::Sync(number) | Event::Orphans(number, _) | Event::CatchUp(number, _) => {
                second(number)
            }
        }
    }

    /// Carries out an event. No watch shows yet what follows from it.
    fn happen(&mut self, event: Event, scope: &Scope) -> Result<(), String> {
        match event {
            Event::Pod(number, ending) => {
                let uid = self.api.pods.keys().nth(number).cloned();
                let uid = uid.expect("an event names a pod that exists");
                self.left.endings -= u8::from(ending.is_bad());
                ending.happen(&mut self.api, &mut self.running, &uid);
            }
            Event::Sync(number) => {
                let process = Arc::make_mut(&mut self.processes[number]);
                process.syncs_left = process.syncs_left.map(|left| left - 1);
                process.sync(&self.api, scope);
                if scope.sabotage == Some(Sabotage::ReleaseFirst) {
                    self.release_first(number, scope)?;
                }
            }
            Event::Wait(number) => {
                let process = Arc::make_mut(&mut self.processes[number]);
                process.queued = true;
                let wait = process.wake.take().unwrap_or_default();
                self.api.now = self.api.now.checked_add(wait).unwrap_or(self.api.now);
            }
            Event::Call(number, call, fate) => self.call(number, call, fate, scope)?,
            Event::Orphans(number, item) => self.release_orphans(number, item)?,
            Event::CatchUp(number, kind) => {
                Arc::make_mut(&mut self.processes[number]).catch_up(kind, &self.api, scope);
            }
            Event::Relist(number, kind) => {
                Arc::make_mut(&mut self.processes[number]).list(kind, &self.api, scope);
            }
            Event::Crash(number) => self.crash(number, scope),
            Event::Arrive(call) => {
                let Sent { call, job, plan, by } = self.wire.remove(call);
                let _ = self.carry_out(&call.step, &job, &plan, by, scope)?;
                self.history.arrived_late();
            }
        }
        self.history.saw(&self.api);
        Ok(())
    }

    /// A process dies with all that it remembers. Its calls may still arrive.
    fn crash(&mut self, number: usize, scope: &Scope) {
        self.left.crashes -= 1;
        let process = Process::start(self.started, &self.api, scope);
        self.started += 1;
        let dead = std::mem::replace(&mut self.processes[number], Arc::new(process));
        if let Some(work) = &dead.work {
            self.wire.extend(work.calls.iter().map(|call| Sent {
                call: call.clone(),
                job: Arc::clone(work.progress.job()),
                plan: Arc::clone(&work.plan),
                by: Knowledge { process: dead.number, shown: work.shown },
            }));
        }
    }

    /// The watches that could hold back what has just happened.
    fn may_be_late(&self, scope: &Scope) -> Vec<(Kind, usize)> {
        let all = Kind::of(scope).iter().copied();
        let all = all.flat_map(|kind| (0..self.processes.len()).map(move |it| (kind, it)));
        let may = |(kind, number): &(Kind, usize)| {
            let process = &self.processes[*number];
            !process.watch(*kind).late && process.behind(*kind, &self.api) > 0
        };
        if self.left.late_watches > 0 { all.filter(may).collect() } else { Vec::new() }
    }

    /// The watches on time show what has happened.
    fn shown(mut self, scope: &Scope) -> Outcome<Self> {
        if self.api.pods.len() > usize::from(scope.pods_max) {
            return Outcome::Beyond;
        }
        self.processes.retain(|process| !process.is_over());
        for process in &mut self.processes {
            let on_time = |kind: &Kind| !process.watch(*kind).late;
            let due: Vec<Kind> = Kind::of(scope).iter().copied().filter(on_time).collect();
            let stale = |kind: &Kind| process.watch(*kind).version < self.api.version();
            if due.iter().any(stale) || process.queued && process.work.is_none() {
                let process = Arc::make_mut(process);
                for kind in due {
                    process.catch_up(kind, &self.api, scope);
                }
                process.skip_idle_sync(&self.api, scope);
            }
        }
        self.forget(scope);
        Outcome::State(self)
    }

    /// The pods that the rest of a sync in hand, or a call on the wire, may still count.
    pub(super) fn in_hand<'a>(&'a self, scope: &'a Scope) -> impl Iterator<Item = &'a Arc<Pod>> {
        let work = self.processes.iter().filter_map(|process| process.work.as_ref());
        let work = work.filter(|work| !self.is_in_vain(work, scope)).flat_map(|work| {
            let pods = work.plan.facts.census.pods.iter();
            // The status that the last write has lists what the stored one lists.
            let listed = work.progress.status_plan().is_some();
            pods.filter(move |pod| !work.is_in_status() || listed && work.counts(pod))
        });
        let wire = self.wire.iter().filter(|sent| writes_status(&sent.call)).flat_map(|sent| {
            let pods = sent.plan.facts.census.pods.iter();
            pods.filter(|pod| lists(&sent.call, pod) || succeeds(&sent.plan, pod))
        });
        work.chain(wire)
    }

    /// Whether all that is left of a sync is a write that will be refused.
    pub(super) fn is_in_vain(&self, work: &Work, scope: &Scope) -> bool {
        work.calls.iter().all(writes_status) && self.will_conflict(work.progress.job(), scope)
    }

    /// Whether a call on the wire can still change something.
    fn has_effect(&self, sent: &Sent, scope: &Scope) -> bool {
        match &sent.call.step {
            Step::WriteStatus(_) | Step::WriteWholeStatus(_) => {
                !self.will_conflict(&sent.job, scope)
            }
            Step::Strip(pod) => {
                let blind = scope.sabotage == Some(Sabotage::StripBlindly);
                let stored = self.api.pods.get(&pod.uid);
                stored.is_some_and(|stored| blind || stored.version == pod.version)
            }
            Step::RemoveFinalizer(pod) => self.api.pods.contains_key(&pod.uid),
            Step::Delete(pod, version) => {
                let blind = scope.sabotage == Some(Sabotage::DeleteBlindly);
                self.api.pods.get(&pod.uid).is_some_and(|stored| {
                    blind || version.is_none_or(|version| version == stored.version)
                })
            }
            Step::FailPending(pod) | Step::MarkFault(NodeFault { pod, .. }) => {
                self.api.pods.get(&pod.uid).is_some_and(|stored| stored.version == pod.version)
            }
            Step::ConfirmJob | Step::ConfirmPods => false,
            Step::Group(GroupStep::CreateWorkload(draft)) => {
                !self.api.workloads.contains_key(&*draft.name)
            }
            Step::Group(GroupStep::CreatePodGroup(draft)) => {
                !self.api.pod_groups.contains_key(&*draft.name)
            }
            Step::Group(step) => !step.reads(),
            Step::Create(_) | Step::Claim(_) => true,
        }
    }

    /// Forgets what no process can come back to.
    fn forget(&mut self, scope: &Scope) {
        let mut wire = std::mem::take(&mut self.wire);
        wire.retain(|sent| self.has_effect(sent, scope));
        self.wire = wire;
        for &kind in Kind::of(scope) {
            self.forget_events(kind);
        }
        self.running.retain(|uid| self.api.pods.contains_key(uid));
        let job = Arc::clone(self.job());
        let in_hand: BTreeSet<Uid> = self.in_hand(scope).map(|pod| pod.uid.clone()).collect();
        let processes = &self.processes;
        self.history.forget(&self.api, &job, |uid| {
            in_hand.contains(uid) || processes.iter().any(|it| it.state.pod(uid).is_some())
        });
    }

    /// Forgets the events that all watches of this kind have shown.
    fn forget_events(&mut self, kind: Kind) {
        let positions = self.processes.iter().map(|process| process.watch(kind).position);
        let count = positions.min().unwrap_or(0);
        if count > 0 {
            watches::forget(kind, count, &mut self.api);
            for process in &mut self.processes {
                Arc::make_mut(process).watch_mut(kind).position -= count;
            }
        }
    }
}
