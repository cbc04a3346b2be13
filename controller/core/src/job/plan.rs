//! Makes the plan of one sync: everything that can be decided before any call is answered.

use std::collections::HashSet;
use std::sync::Arc;

use epilogue_common::names::MANAGED_BY;
use jiff::{SignedDuration, Timestamp};

use super::adoption::{self, Claims};
use super::backoff_limit_per_index::PerIndex;
use super::census::Census;
use super::disruption_limit::Disruptions;
use super::memory::BackoffRecord;
use super::options::Options;
use super::pods::{self, PodStage};
use super::report::WaitsFor;
use super::steps::{Action, Claim};
use super::sync_input::SyncInput;
use super::verdict::{self, Evidence, Verdict};
use super::{IndexSet, backoff, still_running};
use crate::view::{CompletionMode, Job, Phase, Pod, Uid};

/// When a stale sync is tried again if the awaited event does not come.
const STALE_RETRY: SignedDuration = SignedDuration::from_secs(1);

/// What a sync will do. [`super::Progress`] carries it out.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The Job as it was read.
    pub job: Arc<Job>,
    /// Why the sync does nothing.
    pub skip: Option<SkipReason>,
    /// Pods to adopt, to disown, or to track again.
    pub claims: Vec<Claim>,
    /// The Job's pods by what they count as.
    pub census: Census,
    /// The indexes of an Indexed Job.
    pub indexes: Option<Indexes>,
    /// Succeeded pods or indexes, once all that is known is counted.
    pub succeeded: usize,
    /// The end of the Job, if decided; plain completion is found after the pod stage.
    pub verdict: Option<Verdict>,
    /// Pods to create or to delete.
    pub pods: PodStage,
    /// Whether pods were managed, with whatever result. ([S19])
    pub manages_pods: bool,
    /// Whether the watches showed all pods that we created or deleted.
    pub expectations_satisfied: bool,
    /// The failures that backoff waits for, including this sync's. ([S15])
    pub backoff: BackoffRecord,
    /// The Job's options, from its annotations.
    pub options: Options,
    /// Ignored failures, if they are limited.
    pub disruptions: Option<Disruptions>,
    /// Whether problems of the options are still to be reported.
    pub unreported: bool,
    /// What the sync does to pods, for metrics.
    pub action: Action,
    /// When to sync again without any event.
    pub requeue_after: Option<SignedDuration>,
    /// What the Job waits for.
    pub waits_for: Vec<WaitsFor>,
    /// The time of the decision.
    pub now: Timestamp,
}

/// Why a sync does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SkipReason {
    /// The watches have yet to show our own last writes. ([S1])
    Stale,
    /// `spec.managedBy` names another controller. ([S3])
    ManagedElsewhere,
    /// Complete or Failed. ([S4])
    Finished,
    /// We finished the Job; the watch has yet to show that. ([S5])
    FinishedByUs,
    /// The completion mode is unknown. ([S6])
    UnknownCompletionMode,
}

/// The succeeded and failed indexes of an Indexed Job.
#[derive(Clone, Debug)]
pub struct Indexes {
    /// `status.completedIndexes` as stored.
    pub stored: IndexSet,
    /// The stored indexes and the pods that succeeded since. ([I5])
    pub succeeded: IndexSet,
    /// The state of `backoffLimitPerIndex`, if set.
    pub per_index: Option<PerIndex>,
}

/// Decides what one sync of a Job does. Every input has a plan.
pub fn plan(input: &SyncInput<'_>) -> Plan {
    if let Some(skip) = skip(input) {
        return Plan::skip(input, skip);
    }
    let options = Options::read(input.job);
    let settings = options.apply(input.settings);
    let input = SyncInput { settings: &settings, ..*input };
    let Some((pods, left)) = still_running::as_terminating(&input) else {
        return Plan::active(&input, options);
    };
    let mut plan = Plan::active(&SyncInput { pods: &pods, ..input }, options);
    plan.wake_after(left);
    plan
}

/// Whether this controller runs the Job. ([S3])
pub fn is_ours(job: &Job, manage_all_jobs: bool) -> bool {
    job.spec.managed_by.as_deref() == Some(MANAGED_BY)
        || (manage_all_jobs && job.is_managed_by_upstream())
}

/// Why a sync does nothing.
///
/// DIVERGES(upstream): `managedBy` and the end of the Job come before the question whether the
/// watches are behind. Neither can be taken back, so such a Job is not synced again for them.
/// ([S1])
fn skip(input: &SyncInput<'_>) -> Option<SkipReason> {
    let SyncInput { job, memory, settings, .. } = input;
    if !is_ours(job, settings.manage_all_jobs) {
        Some(SkipReason::ManagedElsewhere)
    } else if job.is_finished() {
        Some(SkipReason::Finished)
    } else if memory.finished {
        Some(SkipReason::FinishedByUs)
    } else if !memory.is_caught_up(input.seen, input.now, settings.expectations_timeout) {
        Some(SkipReason::Stale)
    } else if matches!(job.spec.completion_mode, CompletionMode::Unknown(_)) {
        Some(SkipReason::UnknownCompletionMode)
    } else {
        None
    }
}

impl Plan {
    /// Whether the sync does nothing, so that metrics do not count it either.
    pub fn is_skipped(&self) -> bool {
        self.skip.is_some()
    }

    fn skip(input: &SyncInput<'_>, skip: SkipReason) -> Self {
        Self {
            skip: Some(skip),
            requeue_after: (skip == SkipReason::Stale).then_some(STALE_RETRY),
            waits_for: WaitsFor::of_skip(skip, input.job).into_iter().collect(),
            ..Self::new(input, Vec::new(), Vec::new())
        }
    }

    /// Decides everything that does not depend on the outcomes of the pod stage. ([S16], [S19])
    fn active(input: &SyncInput<'_>, options: Options) -> Self {
        let Claims { pods, patches } = adoption::decide(input);
        let job = input.job;
        let tracked = adoption::untracked(job, &pods, input.memory);
        let pods = adoption::with_tracked(pods, &tracked);
        let mut plan = Self::new(input, [patches, tracked].concat(), pods);
        plan.indexes = Indexes::read(input, &plan.census);
        plan.succeeded = match &plan.indexes {
            Some(indexes) => indexes.succeeded.len() as usize,
            None => plan.census.succeeded(job),
        };
        plan.options = options;
        let pods_per_sync = input.settings.max_uncounted_pods;
        let limited = plan.options.disruption_limit;
        plan.disruptions = limited.map(|_| Disruptions::read(job, &plan.census, pods_per_sync));
        plan.unreported = plan.options.problems != input.memory.reported;
        plan.backoff = plan.backoff_after(input);
        plan.verdict = plan.decide(input);
        pods::decide(&mut plan, input);
        plan.arm_deadline();
        plan.arm_expectations(input);
        plan.waits_for.splice(0..0, WaitsFor::of_plan(&plan));
        plan
    }

    fn new(input: &SyncInput<'_>, claims: Vec<Claim>, pods: Vec<Arc<Pod>>) -> Self {
        let timeout = input.settings.expectations_timeout;
        Self {
            job: Arc::clone(input.job),
            skip: None,
            claims,
            census: Census::take(input.job, pods, input.memory),
            indexes: None,
            succeeded: 0,
            verdict: None,
            pods: PodStage::None,
            manages_pods: false,
            expectations_satisfied: input.memory.expectations.satisfied(input.now, timeout),
            backoff: BackoffRecord::default(),
            options: Options::default(),
            disruptions: None,
            unreported: false,
            action: Action::Reconciling,
            requeue_after: None,
            waits_for: Vec::new(),
            now: input.now,
        }
    }

    fn decide(&self, input: &SyncInput<'_>) -> Option<Verdict> {
        let none = IndexSet::default();
        let evidence = Evidence {
            census: &self.census,
            succeeded: self.indexes.as_ref().map_or(&none, |indexes| &indexes.succeeded),
            per_index: self.per_index(),
            disruptions: self.disruptions.as_ref().map_or(0, |it| it.ignored),
            disruption_limit: self.options.disruption_limit,
            now: input.now,
        };
        verdict::decide(input.job, &evidence)
    }

    /// Adds this sync's failures. After a start, the pods in the API show the earlier ones. ([S15])
    ///
    /// DIVERGES(upstream): upstream starts with an empty record. A restart of the controller then
    /// lets a failing Job create its next pod at once. ([E4])
    fn backoff_after(&self, input: &SyncInput<'_>) -> BackoffRecord {
        let census = &self.census;
        let record = input.memory.backoff.unwrap_or_else(|| {
            let new: HashSet<&Uid> = census
                .newly_failed
                .iter()
                .chain(&census.newly_succeeded)
                .map(|pod| &pod.uid)
                .collect();
            let old: Vec<&Arc<Pod>> = census
                .pods
                .iter()
                .filter(|pod| pod.is_terminal() && !new.contains(&pod.uid))
                .collect();
            let ended = |phase| old.iter().filter(move |pod| pod.phase == phase);
            backoff::after(
                input.job,
                BackoffRecord::default(),
                ended(Phase::Succeeded).map(AsRef::as_ref),
                ended(Phase::Failed).map(AsRef::as_ref),
                input.now,
            )
        });
        backoff::after(
            input.job,
            record,
            census.newly_succeeded.iter().map(Arc::as_ref),
            census
                .newly_failed
                .iter()
                .filter(|pod| !self.disruptions.as_ref().is_some_and(|it| it.holds(&pod.uid)))
                .map(Arc::as_ref),
            input.now,
        )
    }

    /// Wakes up an unsuspended Job when its deadline is due. ([U5])
    fn arm_deadline(&mut self) {
        if self.verdict.is_some() {
            return;
        }
        if let Some(left) = verdict::until_deadline(&self.job, self.now) {
            self.wake_after(left);
        }
    }

    /// DIVERGES(upstream): a sync that awaits pods is repeated when they have been awaited for too
    /// long; upstream then needs some event. ([E1])
    fn arm_expectations(&mut self, input: &SyncInput<'_>) {
        if !self.expectations_satisfied {
            let timeout = input.settings.expectations_timeout;
            self.wake_after(input.memory.expectations.left(input.now, timeout));
        }
    }

    /// Syncs again after this time at the latest.
    pub(super) fn wake_after(&mut self, delay: SignedDuration) {
        let delay = delay.max(SignedDuration::ZERO);
        self.requeue_after = Some(self.requeue_after.map_or(delay, |earlier| earlier.min(delay)));
    }

    /// The state of `backoffLimitPerIndex`.
    pub(super) fn per_index(&self) -> Option<&PerIndex> {
        self.indexes.as_ref().and_then(|indexes| indexes.per_index.as_ref())
    }
}

impl Indexes {
    /// DIVERGES(upstream): an index ends once. One pod of it may succeed while another fails it for
    /// good. The end that came first stands, and of two at once the success. Upstream puts the
    /// index into both lists, which the API refuses for ever. ([X3])
    fn read(input: &SyncInput<'_>, census: &Census) -> Option<Self> {
        let job = input.job;
        if !job.is_indexed() {
            return None;
        }
        let text = job.status.completed_indexes.as_deref().unwrap_or_default();
        let stored = IndexSet::parse(text, job.index_bound());
        let failed = PerIndex::stored(job);
        let new = census
            .pods
            .iter()
            .filter(|pod| pod.phase == Phase::Succeeded && pod.tracked)
            .filter(|pod| !census.uncounted.failed.contains(&pod.uid))
            .filter_map(|pod| pod.index.filter(|index| job.has_index(*index)))
            .filter(|index| !failed.contains(*index));
        let succeeded = stored.union(&IndexSet::collect(new));
        let per_index = PerIndex::read(job, census, &succeeded, &failed);
        Some(Self { stored, succeeded, per_index })
    }
}
