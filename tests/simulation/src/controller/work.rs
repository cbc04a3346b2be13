//! Models the workers of a process: they take keys, plan, and carry plans out step by step. The
//! calls of a step run concurrently; each reaches the API, and is answered, in its own time.

use std::sync::Arc;
use std::time::Duration;

use controller_core::job::{
    Claim, LiveJob, Plan, PodDraft, PodStage, Progress, SideEffect, SkipReason, Step, StepOutcome,
    SyncInput, WrittenPod, plan,
};
use controller_core::orphans::Orphans;
use controller_core::state::Snapshot;
use controller_core::view::{Job, JobKey, Pod};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};
use k8s_openapi::api::batch::v1::JobStatus;

use super::Sabotage;
use super::agenda::Moment;
use super::process::Life;
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
    /// A sync: the Job as last read or written, the Job as planned for, the progress, and whether
    /// the plan is to do nothing.
    Sync {
        key: JobKey,
        job: Arc<Job>,
        planned: Arc<Job>,
        progress: Box<Progress>,
        step: Step,
        skipped: bool,
    },
    /// Finalizers of pods that no Job will count.
    Orphans(Orphans),
}

/// One call and its reply.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) call: Call,
    pub(super) reply: Option<Outcome<Answer>>,
    arrived: bool,
}

/// One call to the API.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Confirm,
    Claim(Claim),
    Create(PodDraft),
    /// Remove the finalizer, then delete.
    StripAndDelete(Arc<Pod>),
    Delete(Arc<Pod>),
    Write(Box<JobStatus>),
    RemoveFinalizer(Arc<Pod>),
    FailPending(Arc<Pod>),
}

/// Result of a successful call.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Live(LiveJob),
    Pod(WrittenPod),
    Job(Arc<Job>),
    Done,
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
        let Some(mut snapshot) = process.state.input(&key) else {
            process.state.forget(&key);
            process.queue.forget(&key);
            process.queue.done(&key, now);
            return;
        };
        self.random.shuffle(&mut snapshot.pods);
        let plan = self.plan(number, &snapshot);
        if plan.skip == Some(SkipReason::Stale) {
            let written = snapshot.memory.awaited();
            let process = &mut self.processes[number];
            let entries = process.state.await_versions(key.clone(), written);
            process.enqueue(entries, now);
        }
        if !plan.is_skipped() {
            self.stats.syncs += 1;
            self.say(|_| format!("p{number} {}", described(&plan)));
        }
        if self.sabotage == Some(Sabotage::ReleaseFirst) {
            self.release_early(&plan);
        }
        let (planned, skipped) = (Arc::clone(&plan.job), plan.is_skipped());
        let progress = Box::new(Progress::new(plan, &self.behaviour.settings));
        let job = Arc::clone(&planned);
        let task = Task::Sync { key, job, planned, progress, step: Step::ConfirmJob, skipped };
        self.begin(number, Work { task, slots: Vec::new(), began: now });
    }

    fn plan(&self, number: usize, snapshot: &Snapshot) -> Plan {
        let process = &self.processes[number];
        plan(&SyncInput {
            job: &snapshot.job,
            pods: &snapshot.pods,
            memory: &snapshot.memory,
            seen: snapshot.seen,
            now: process.time(self.api.now),
            settings: &self.behaviour.settings,
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
        let slots = pods.into_iter().map(|pod| Slot::new(Call::RemoveFinalizer(pod))).collect();
        let began = self.agenda.now();
        self.stats.calls += 1;
        let id = self.stats.calls * 1_000 + self.stats.syncs;
        let task = Task::Orphans(item);
        self.processes[number].works.insert(id, Work { task, slots, began });
        self.send(number, id);
        self.collect_replies(number, id);
    }

    /// Starts the next step of a sync, or ends it.
    fn advance(&mut self, number: usize, id: u64) {
        let process = &mut self.processes[number];
        let Some(work) = process.works.get_mut(&id) else { return };
        let Task::Sync { planned, progress, step, .. } = &mut work.task else { return };
        let next = progress.next_step();
        let (side_effects, planned) = (progress.take_side_effects(), Arc::clone(planned));
        let more = if let Some(next) = next {
            work.slots = calls(&next).into_iter().map(Slot::new).collect();
            *step = next;
            true
        } else {
            false
        };
        for side_effect in side_effects {
            self.side_effect(number, &planned, side_effect);
        }
        if more {
            self.send(number, id);
            self.collect_replies(number, id);
        } else {
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

    /// Sends the calls of a step.
    fn send(&mut self, number: usize, id: u64) {
        let deposed = self.processes[number].life == Life::Deposed;
        let calls = self.processes[number].works.get(&id).map_or(0, |work| work.slots.len());
        for call in 0..calls {
            let delay = self.latency(deposed);
            self.agenda.after(delay, Event::Commit { process: number, work: id, call });
        }
    }

    /// A deposed process is mostly one that hung.
    pub(super) fn latency(&mut self, deposed: bool) -> Duration {
        if deposed && self.random.percent(30) {
            self.random.millis(500, 20_000)
        } else if !self.is_quiet() && self.random.per_mille(self.behaviour.slow_calls) {
            self.random.millis(200, 10_000)
        } else {
            self.random.millis(1, 12)
        }
    }

    /// A call reaches the API, unless it is lost.
    pub(super) fn commit(&mut self, number: usize, id: u64, call: usize) {
        let life = self.processes[number].life;
        if life == Life::Dead && self.random.percent(50) {
            return;
        }
        let Some((request, job, planned)) = self.request(number, id, call) else { return };
        self.stats.calls += 1;
        let outcome = self.attempt(number, &request, job.as_ref(), planned.as_ref());
        if outcome.is_err() {
            self.stats.faults += 1;
        }
        self.say(|_| match &outcome {
            Ok(_) => format!("p{number} {}", request.described()),
            Err(why) => format!("p{number} {} ✗ {:?}: {why}", request.described(), why.kind),
        });
        let Some(work) = self.processes[number].works.get_mut(&id) else { return };
        let slot = &mut work.slots[call];
        if let (Call::StripAndDelete(pod), Ok(_)) = (&slot.call, &outcome) {
            slot.call = Call::Delete(Arc::clone(pod));
            let delay = self.latency(life == Life::Deposed);
            self.agenda.after(delay, Event::Commit { process: number, work: id, call });
            return;
        }
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
    ) -> Option<(Call, Option<Arc<Job>>, Option<Arc<Job>>)> {
        let work = self.processes[number].works.get(&id)?;
        let slot = work.slots.get(call).filter(|slot| slot.reply.is_none())?;
        let jobs = match &work.task {
            Task::Sync { job, planned, .. } => (Some(Arc::clone(job)), Some(Arc::clone(planned))),
            Task::Orphans(_) => (None, None),
        };
        Some((slot.call.clone(), jobs.0, jobs.1))
    }

    /// A reply comes back.
    pub(super) fn reply(&mut self, number: usize, id: u64, call: usize) {
        let process = &mut self.processes[number];
        if process.life == Life::Dead {
            return;
        }
        if let Some(slot) = process.works.get_mut(&id).and_then(|work| work.slots.get_mut(call)) {
            slot.arrived = true;
        }
        self.collect_replies(number, id);
    }

    /// When all calls are answered, the step is done.
    fn collect_replies(&mut self, number: usize, id: u64) {
        let Some(work) = self.processes[number].works.get_mut(&id) else { return };
        if !work.slots.iter().all(|slot| slot.arrived) {
            return;
        }
        let replies: Vec<Outcome<Answer>> =
            std::mem::take(&mut work.slots).into_iter().filter_map(|slot| slot.reply).collect();
        match &mut work.task {
            Task::Sync { job, progress, step, .. } => {
                if let (Step::WriteStatus(_), Some(Ok(Answer::Job(written)))) =
                    (&*step, replies.first())
                {
                    *job = Arc::clone(written);
                }
                progress.done(outcome(step, replies));
                self.advance(number, id);
            }
            Task::Orphans(_) => self.conclude_orphans(number, id, &replies),
        }
    }

    fn conclude_orphans(&mut self, number: usize, id: u64, replies: &[Outcome<Answer>]) {
        let now = self.agenda.now();
        let process = &mut self.processes[number];
        let Some(Work { task: Task::Orphans(item), .. }) = process.works.remove(&id) else {
            return;
        };
        process.orphan_queue.done(&item, now);
        let failed = |reply: &Outcome<Answer>| {
            reply.as_ref().is_err_and(|failure| failure.kind != FailureKind::NotFound)
        };
        if replies.iter().any(failed) {
            process.orphan_queue.add_failed(item, now);
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
            Ok(()) => process.queue.forget(&key),
            Err(_) => {
                process.queue.add_failed(key.clone(), now);
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

/// The calls of a step.
fn calls(step: &Step) -> Vec<Call> {
    match step {
        Step::ConfirmJob => vec![Call::Confirm],
        Step::Claim(claims) => claims.iter().cloned().map(Call::Claim).collect(),
        Step::Create(drafts) => drafts.iter().cloned().map(Call::Create).collect(),
        Step::WriteStatus(status) => vec![Call::Write(status.clone())],
        Step::RemoveFinalizer(pods) => pods.iter().cloned().map(Call::RemoveFinalizer).collect(),
        Step::FailPending(pods) => pods.iter().cloned().map(Call::FailPending).collect(),
        Step::Delete(deletions) => deletions
            .iter()
            .map(|it| (Arc::clone(&it.pod), it.strip))
            .map(|(pod, strip)| if strip { Call::StripAndDelete(pod) } else { Call::Delete(pod) })
            .collect(),
    }
}

/// Converts the replies into the form that the plan takes.
fn outcome(step: &Step, replies: Vec<Outcome<Answer>>) -> StepOutcome {
    let strange = || Failure::new(FailureKind::Other, "a reply of another call");
    let pod = |reply: Outcome<Answer>| match reply {
        Ok(Answer::Pod(pod)) => Ok(pod),
        Ok(_) => Err(strange()),
        Err(failure) => Err(failure),
    };
    let only = |mut replies: Vec<Outcome<Answer>>| replies.pop().unwrap_or_else(|| Err(strange()));
    match step {
        Step::ConfirmJob => StepOutcome::Confirmed(match only(replies) {
            Ok(Answer::Live(live)) => Ok(live),
            Ok(_) => Err(strange()),
            Err(failure) => Err(failure),
        }),
        Step::WriteStatus(_) => StepOutcome::Status(Box::new(match only(replies) {
            Ok(Answer::Job(job)) => Ok(job),
            Ok(_) => Err(strange()),
            Err(failure) => Err(failure),
        })),
        Step::Delete(_) => {
            StepOutcome::Deleted(replies.into_iter().map(|reply| reply.map(|_| ())).collect())
        }
        Step::Claim(_) | Step::Create(_) | Step::RemoveFinalizer(_) | Step::FailPending(_) => {
            StepOutcome::Written(replies.into_iter().map(pod).collect())
        }
    }
}

/// Describes a plan in one line.
fn described(plan: &Plan) -> String {
    let census = &plan.census;
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
    };
    format!(
        "plans {} at {}: {pods}; active {} terminating {} tracked {} claims {} verdict {:?} \
         expectations {} wake {:?}",
        plan.job.key,
        plan.job.version,
        census.active.len(),
        census.terminating.len(),
        census.tracked.len(),
        plan.claims.len(),
        plan.verdict.as_ref().map(|verdict| &verdict.reason),
        if plan.expectations_satisfied { "met" } else { "open" },
        plan.requeue_after,
    )
}
