//! Models the workers of a process: they take keys, plan, and carry plans out call by call. Calls
//! run concurrently; each reaches the API, and is answered, in its own time.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use controller_core::job::{
    Answer, Call, PodPlan, PodStage, Progress, SideEffect, SkipReason, Step, SyncInput, plan_pods,
};
use controller_core::orphans::Orphans;
use controller_core::state::Snapshot;
use controller_core::view::{Job, JobKey};
use epilogue_common::outcome::{FailureKind, Outcome};

use super::Sabotage;
use super::agenda::Moment;
use super::calls::described;
use super::process::Life;
use super::situations::Met;
use super::world::{Event, World};

/// A piece of work in hand.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) task: Task,
    pub(super) slots: Vec<Slot>,
    began: Moment,
}

/// The purpose of the work.
#[derive(Debug)]
pub(super) enum Task {
    /// A sync: the Job as planned for, the progress, and whether the plan is to do nothing.
    Sync { key: JobKey, planned: Arc<Job>, progress: Box<Progress>, skipped: bool },
    /// Finalizers of pods that no Job will count.
    Orphans(Orphans),
}

/// One call and its reply. Slots are never used again, so that a late event finds its own.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) call: Call,
    reply: Option<Outcome<Answer>>,
    arrived: bool,
}

impl Slot {
    fn new(call: Call) -> Self {
        Self { call, reply: None, arrived: false }
    }
}

impl World {
    /// Gives keys to idle workers.
    pub(super) fn work(&mut self, number: usize) {
        self.awake(number);
        self.take_checks(number);
        while self.processes[number].is_ready() {
            let now = self.agenda.now();
            let process = &mut self.processes[number];
            let (syncs, orphans) = process.in_hand();
            if orphans == 0
                && let Some(taken) = process.orphan_queue.take(now)
            {
                self.begin_orphans(number, taken.key);
            } else if syncs < self.behaviour.workers
                && let Some(taken) = process.queue.take(now)
            {
                self.begin_sync(number, taken.key);
            } else {
                break;
            }
        }
        self.check_queues(number);
    }

    fn begin_sync(&mut self, number: usize, key: JobKey) {
        let now = self.agenda.now();
        let process = &mut self.processes[number];
        let moment = process.moment(self.api.now, now);
        let Some(snapshot) = process.state.take_input(&key, &moment) else {
            process.state.forget(&key);
            process.queue.forget(&key);
            process.queue.done(&key, now);
            return;
        };
        let plan = self.plan(number, &snapshot);
        if plan.skip == Some(SkipReason::Stale) {
            let written = snapshot.memory.awaited();
            let process = &mut self.processes[number];
            let entries = process.state.await_versions(key.clone(), written);
            process.enqueue(entries, now);
        }
        if !plan.is_skipped() {
            self.stats.syncs += 1;
            self.say(|_| format!("p{number} {}", plan_text(&plan)));
        }
        if self.sabotage == Some(Sabotage::ReleaseFirst) {
            self.release_early(&plan);
        }
        let (planned, skipped) = (Arc::clone(&plan.facts.job), plan.is_skipped());
        let progress = Box::new(Progress::new(plan, &self.behaviour.settings));
        let task = Task::Sync { key, planned, progress, skipped };
        self.begin(number, Work { task, slots: Vec::new(), began: now });
    }

    fn plan(&self, number: usize, snapshot: &Snapshot) -> PodPlan {
        let process = &self.processes[number];
        plan_pods(&SyncInput {
            job: &snapshot.job,
            pods: &snapshot.pods,
            memory: &snapshot.memory,
            groups: snapshot.groups.as_ref(),
            seen: snapshot.seen,
            now: process.time(self.api.now),
            settings: &self.behaviour.settings,
            counts_max: snapshot.counts_max,
        })
    }

    fn begin(&mut self, number: usize, work: Work) {
        self.stats.calls += 1;
        let id = self.stats.calls * 1_000 + self.stats.syncs;
        self.processes[number].works.insert(id, work);
        self.advance(number, id);
    }

    fn begin_orphans(&mut self, number: usize, item: Orphans) {
        let pods = self.processes[number].state.orphans(&item, false);
        if !pods.is_empty() {
            self.say(|_| format!("p{number} checks {} orphans", pods.len()));
        }
        let calls = pods.into_iter().map(Step::RemoveFinalizer).enumerate();
        let slots: Vec<_> = calls.map(|(slot, step)| Slot::new(Call { step, slot })).collect();
        let calls = slots.len();
        let began = self.agenda.now();
        self.stats.calls += 1;
        let id = self.stats.calls * 1_000 + self.stats.syncs;
        let task = Task::Orphans(item);
        self.processes[number].works.insert(id, Work { task, slots, began });
        self.send(number, id, 0..calls);
        self.conclude_orphans(number, id);
    }

    /// Makes the next calls of a sync, or ends it.
    fn advance(&mut self, number: usize, id: u64) {
        let process = &mut self.processes[number];
        let Some(work) = process.works.get_mut(&id) else { return };
        let Task::Sync { planned, progress, .. } = &mut work.task else { return };
        let (side_effects, planned) = (progress.take_side_effects(), Arc::clone(planned));
        let sent = work.slots.len();
        work.slots.extend(std::iter::from_fn(|| progress.next_call()).map(Slot::new));
        let calls = sent..work.slots.len();
        let is_over = work.slots.iter().all(|slot| slot.arrived);
        for side_effect in side_effects {
            self.side_effect(number, &planned, side_effect);
        }
        self.send(number, id, calls);
        if is_over {
            self.conclude(number, id);
        }
    }

    fn side_effect(&mut self, number: usize, job: &Job, side_effect: SideEffect) {
        match side_effect {
            SideEffect::Remember(change) => {
                let process = &mut self.processes[number];
                let now = process.time(self.api.now);
                if self.sabotage.is_none_or(|sabotage| sabotage.remembers(&change)) {
                    process.state.remember(job, change, now);
                }
            }
            SideEffect::Event(event) => {
                self.say(|_| format!("p{number} event {}: {}", event.reason, event.message));
            }
            SideEffect::Count(_) => {}
        }
    }

    /// Sends the calls in these slots.
    fn send(&mut self, number: usize, id: u64, calls: Range<usize>) {
        let deposed = self.processes[number].life == Life::Deposed;
        for call in calls {
            let delay = self.latency(deposed);
            self.agenda.after(delay, Event::Commit { process: number, work: id, call });
        }
    }

    /// A deposed process is mostly one that hung.
    pub(super) fn latency(&mut self, deposed: bool) -> Duration {
        if deposed && self.random.percent(30) {
            self.random.millis(500, 20_000)
        } else if !self.is_quiet() && self.random.per_mille(self.behaviour.slow_calls) {
            self.met(Met::SlowCall);
            self.random.millis(200, 10_000)
        } else {
            self.random.millis(1, 12)
        }
    }

    /// A call reaches the API, unless it is lost.
    pub(super) fn commit(&mut self, number: usize, id: u64, call: usize) {
        let life = self.processes[number].life;
        let Some((request, job, planned)) = self.request(number, id, call) else { return };
        if life == Life::Dead {
            self.met_crash_in(&request);
            if self.random.percent(50) {
                return;
            }
        }
        self.stats.calls += 1;
        let outcome = self.attempt(number, &request, job.as_ref(), planned.as_ref());
        if outcome.is_err() {
            self.stats.faults += 1;
        }
        self.say(|_| match &outcome {
            Ok(_) => format!("p{number} {}", described(&request)),
            Err(why) => format!("p{number} {} ✗ {:?}: {why}", described(&request), why.kind),
        });
        let Some(work) = self.processes[number].works.get_mut(&id) else { return };
        let slot = &mut work.slots[call];
        slot.reply = Some(outcome);
        let delay = self.latency(life == Life::Deposed);
        self.agenda.after(delay, Event::Reply { process: number, work: id, call });
    }

    #[expect(clippy::type_complexity, reason = "three parts of one request")]
    fn request(
        &self,
        number: usize,
        id: u64,
        call: usize,
    ) -> Option<(Step, Option<Arc<Job>>, Option<Arc<Job>>)> {
        let work = self.processes[number].works.get(&id)?;
        let slot = work.slots.get(call).filter(|slot| slot.reply.is_none())?;
        let jobs = match &work.task {
            Task::Sync { planned, progress, .. } => {
                (Some(Arc::clone(progress.job())), Some(Arc::clone(planned)))
            }
            Task::Orphans(_) => (None, None),
        };
        Some((slot.call.step.clone(), jobs.0, jobs.1))
    }

    /// A reply comes back.
    pub(super) fn reply(&mut self, number: usize, id: u64, call: usize) {
        let process = &mut self.processes[number];
        if process.life == Life::Dead {
            return;
        }
        let Some(work) = process.works.get_mut(&id) else { return };
        let Some(slot) = work.slots.get_mut(call) else { return };
        slot.arrived = true;
        match (&mut work.task, &slot.reply) {
            (Task::Sync { progress, .. }, Some(reply)) => {
                progress.done(&slot.call, reply.clone());
                self.advance(number, id);
            }
            _ => self.conclude_orphans(number, id),
        }
    }

    /// When all calls for orphans are answered, their work is done.
    fn conclude_orphans(&mut self, number: usize, id: u64) {
        let now = self.agenda.now();
        let process = &mut self.processes[number];
        let open = |work: &Work| work.slots.iter().any(|slot| !slot.arrived);
        if process.works.get(&id).is_none_or(open) {
            return;
        }
        let Some(Work { task: Task::Orphans(item), slots, .. }) = process.works.remove(&id) else {
            return;
        };
        let replies: Vec<_> = slots.into_iter().filter_map(|slot| slot.reply).collect();
        process.orphan_queue.done(&item, now);
        let mut failures = replies.iter().filter_map(|reply| reply.as_ref().err());
        let failure = failures.find(|failure| failure.kind != FailureKind::NotFound);
        if let Some(failure) = failure {
            process.orphan_queue.add_failed(item, failure, now);
        } else {
            process.orphan_queue.forget(&item);
        }
        self.check_queues(number);
    }

    /// A sync ends.
    fn conclude(&mut self, number: usize, id: u64) {
        let now = self.agenda.now();
        let process = &mut self.processes[number];
        let Some(work) = process.works.remove(&id) else { return };
        let Task::Sync { key, progress, skipped, .. } = work.task else { return };
        let sync_result = progress.into_result();
        process.queue.done(&key, now);
        // As in the program: only a sync that did something counts as the Job's last one.
        if !skipped {
            process.state.synced(&key, now.saturating_sub(work.began), now);
        }
        match sync_result.result {
            Ok(()) if sync_result.complete => process.queue.forget(&key),
            Ok(()) => {}
            Err(failure) => {
                process.queue.add_failed(key.clone(), &failure, now);
            }
        }
        if let Some(after) = sync_result.requeue_after {
            let after = Duration::try_from(after).unwrap_or(Duration::ZERO);
            let entry = process.state.requeue(&key, after);
            process.enqueue(vec![entry], now);
        }
        self.check_queues(number);
    }
}

/// Describes a plan in one line.
fn plan_text(plan: &PodPlan) -> String {
    let census = &plan.facts.census;
    let pods = match &plan.pods {
        PodStage::None => "no change of pods".to_owned(),
        PodStage::Delete { victims, purpose } => {
            format!("delete {} for {purpose:?}", victims.len())
        }
        PodStage::Create(drafts) => {
            let indexes: Vec<u32> = drafts.iter().filter_map(|draft| draft.index).collect();
            format!("create {} {indexes:?}", drafts.len())
        }
        PodStage::Refuse(why) => format!("refuse: {why}"),
        PodStage::FailPending(pods) => format!("fail {} pending", pods.len()),
        PodStage::MarkFaults(faults) => format!("mark {} that their nodes failed", faults.len()),
    };
    format!(
        "plans {} at {}: {pods}; active {} terminating {} tracked {} claims {} verdict {:?} \
         expectations {} wake {:?}",
        plan.facts.job.key,
        plan.facts.job.version,
        census.active,
        census.terminating.len(),
        census.tracked().count(),
        plan.claims.len(),
        plan.verdict.as_ref().map(|verdict| &verdict.reason),
        if plan.facts.expectations_satisfied { "met" } else { "open" },
        plan.requeue_after,
    )
}
