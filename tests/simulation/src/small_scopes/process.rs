//! One process that believes it leads: the shipped state and plans, its watches, and the sync in
//! hand. A process is cloned with each state of the model.

use std::sync::Arc;
use std::time::Duration;

use controller_core::batching::Batching;
use controller_core::job::{
    Answer, Call, MemoryUpdate, PodPlan, Progress, SideEffect, SkipReason, SyncInput, plan_pods,
};
use controller_core::orphans::Orphans;
use controller_core::state::{ClusterState, Entry, Event, Now};
use controller_core::view::{Job, Phase, Pod, Version};
use epilogue_common::outcome::Outcome;
use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::JobStatus;

use super::scope::{Scope, key, settings};
use super::watches::{Kind, Watch};
use crate::controller::api::Api;

/// Waits up to this long end by time, longer ones never: they are a last resort.
const SHORT: SignedDuration = SignedDuration::from_secs(30);

/// A sync in hand.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) plan: Arc<PodPlan>,
    pub(super) progress: Progress,
    /// Calls on their way to the API.
    pub(super) calls: Vec<Call>,
    /// Calls that were answered, and whether they succeeded.
    pub(super) answered: Vec<(Call, bool)>,
    /// How far the watch of pods had come when the sync began.
    pub(super) shown: Version,
}

impl Work {
    /// Whether its status lists this pod or completes its index, or its finalizer is removed.
    pub(super) fn counts(&self, pod: &Pod) -> bool {
        let released = self.progress.status_plan().map_or(&[][..], |plan| &plan.release);
        released.iter().any(|each| each.uid == pod.uid)
            || self.calls.iter().any(|call| lists(call, pod))
            || status_lists(&self.progress.job().status, pod)
            || succeeds(&self.plan, pod)
    }

    /// Whether the calls on pods are answered.
    pub(super) fn is_in_status(&self) -> bool {
        self.progress.status_plan().is_some() || self.calls.iter().all(writes_status)
    }
}

/// Whether it writes a status that lists this pod.
pub(super) fn lists(call: &Call, pod: &Pod) -> bool {
    call.step.status().is_some_and(|status| status_lists(status, pod))
}

fn status_lists(status: &JobStatus, pod: &Pod) -> bool {
    let lists = status.uncounted_terminated_pods.iter();
    let lists = lists.flat_map(|lists| [&lists.succeeded, &lists.failed]);
    lists.flatten().flatten().any(|uid| uid == pod.uid.as_str())
}

/// Whether the status of a plan may count the index of this pod, which needs no finalizer.
pub(super) fn succeeds(plan: &PodPlan, pod: &Pod) -> bool {
    plan.facts.indexes.is_some() && pod.phase == Phase::Succeeded
}

/// Whether it writes the status of the Job.
pub(super) fn writes_status(call: &Call) -> bool {
    call.step.status().is_some()
}

/// A process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    /// Its number, which no later process gets.
    pub(super) number: u8,
    /// How often it still syncs; without a limit, it leads.
    pub(super) syncs_left: Option<u8>,
    pub(super) state: ClusterState,
    /// Whether its Job waits for a sync that has something to do.
    pub(super) queued: bool,
    /// The short wait that its last sync asked for, unless it ended meanwhile.
    pub(super) wake: Option<SignedDuration>,
    pub(super) orphans: Vec<Orphans>,
    pub(super) watches: [Watch; 4],
    pub(super) work: Option<Work>,
}

impl Process {
    /// A new process lists everything, and enqueues it.
    pub(super) fn start(number: u8, api: &Api, scope: &Scope) -> Self {
        let mut process = Self {
            number,
            syncs_left: None,
            state: ClusterState::new(Batching::default(), None),
            queued: false,
            wake: None,
            orphans: Vec::new(),
            watches: <[Watch; 4]>::default(),
            work: None,
        };
        // No object is known yet, so nothing is enqueued.
        let _ = process.state.serve_groups(scope.is_gang(), &now(api, scope));
        for &kind in Kind::of(scope) {
            process.list(kind, api, scope);
        }
        let entries = process.state.everything(&now(api, scope));
        (process.queued, process.orphans) = (false, Vec::new());
        process.enqueue(entries);
        process.skip_idle_sync(api, scope);
        process
    }

    /// Whether it no longer believes that it leads, and has nothing in hand.
    pub(super) fn is_over(&self) -> bool {
        self.syncs_left == Some(0) && self.work.is_none()
    }

    pub(super) fn handle(&mut self, mut event: Event, api: &Api, scope: &Scope) {
        let now = now(api, scope);
        let reaction = self.state.handle(event.clone(), &now);
        let entries = match scope.sabotage {
            Some(sabotage) => sabotage.heard(&mut event, reaction.entries),
            None => reaction.entries,
        };
        self.enqueue(entries);
    }

    /// Delays do not count: a change that waits is one whose worker is slow.
    fn enqueue(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            match entry {
                Entry::Job(..) => self.queued = true,
                Entry::Orphans(item, _) if !self.orphans.contains(&item) => self.orphans.push(item),
                Entry::Orphans(..) | Entry::Check(_) => {}
            }
        }
    }

    /// Syncs that have nothing to do happen at once: they commute with everything.
    pub(super) fn skip_idle_sync(&mut self, api: &Api, scope: &Scope) {
        while self.queued && self.work.is_none() {
            let mut after = self.clone();
            after.sync(api, scope);
            if after.work.is_some() {
                break;
            }
            *self = after;
        }
        self.orphans.retain(|item| !self.state.orphans(item, false).is_empty());
    }

    /// A worker takes the Job.
    pub(super) fn sync(&mut self, api: &Api, scope: &Scope) {
        (self.queued, self.wake) = (false, None);
        let now = now(api, scope);
        let Some(mut snapshot) = self.state.input(&key(), &now) else { return };
        if let Some(sabotage) = scope.sabotage {
            sabotage.distort(&mut snapshot);
        }
        let plan = Arc::new(plan_pods(&SyncInput {
            job: &snapshot.job,
            pods: &snapshot.pods,
            memory: &snapshot.memory,
            groups: snapshot.groups.as_ref(),
            seen: snapshot.seen,
            now: now.time,
            settings: &settings(),
            counts_max: snapshot.counts_max,
        }));
        if plan.skip == Some(SkipReason::Stale) {
            let entries = self.state.await_versions(key(), snapshot.memory.awaited());
            self.enqueue(entries);
        }
        let progress = Progress::new(PodPlan::clone(&plan), &settings());
        let (calls, answered, shown) = (Vec::new(), Vec::new(), self.watch(Kind::Pods).version);
        self.work = Some(Work { plan, progress, calls, answered, shown });
        self.advance(api, scope);
    }

    /// A call is answered.
    pub(super) fn answer(
        &mut self,
        call: usize,
        outcome: Outcome<Answer>,
        api: &Api,
        scope: &Scope,
    ) {
        let Some(work) = &mut self.work else { return };
        let call = work.calls.remove(call);
        let outcome = match scope.sabotage {
            Some(sabotage) => sabotage.believed(&call, outcome),
            None => outcome,
        };
        work.progress.done(&call, outcome.clone());
        work.answered.push((call, outcome.is_ok()));
        self.advance(api, scope);
    }

    /// Makes the next calls, or ends the sync. One that failed is repeated.
    fn advance(&mut self, api: &Api, scope: &Scope) {
        let Some(work) = &mut self.work else { return };
        let job = Arc::clone(&work.plan.facts.job);
        let updates = work.progress.take_side_effects();
        let next = std::iter::from_fn(|| work.progress.next_call());
        work.calls.extend(next.map(|mut call| {
            if let Some(sabotage) = scope.sabotage {
                sabotage.sent(&mut call, (self.number, api.version()));
            }
            call
        }));
        let is_over = work.calls.is_empty();
        for update in updates {
            if let SideEffect::Remember(update) = update {
                self.remember(&job, update, api, scope);
            }
        }
        if is_over && let Some(work) = self.work.take() {
            let result = work.progress.into_result();
            self.queued |= result.result.is_err();
            let waits = result.result.is_ok() && work.plan.skip.is_none();
            self.wake = short(result.requeue_after).filter(|_| waits);
        }
    }

    fn remember(&mut self, job: &Job, update: MemoryUpdate, api: &Api, scope: &Scope) {
        let time = now(api, scope).time;
        if scope.sabotage.is_none_or(|sabotage| sabotage.remembers(&update)) {
            self.state.remember(job, update, time);
        }
    }
}

/// The short wait that a plan asks for.
pub(super) fn wait_of(plan: &PodPlan) -> Option<SignedDuration> {
    short(plan.requeue_after).filter(|_| plan.skip.is_none())
}

fn short(wait: Option<SignedDuration>) -> Option<SignedDuration> {
    wait.filter(|wait| *wait <= SHORT)
}

pub(super) fn now(api: &Api, scope: &Scope) -> Now {
    let time = api.now.checked_add(scope.clock_ahead()).unwrap_or(api.now);
    Now { time, elapsed: Duration::ZERO, has_backlog: false, is_limited: false }
}
