//! Gathers what the rules of a sync count: pods, indexes, failures, waits.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::backoff::PerIndex;
use super::census::Census;
use super::ends::Ends;
use super::group::recovery::Recovery;
use super::input::{BackoffRecord, Memory, SyncInput};
use super::options::{Disruptions, Options};
use super::{IndexSet, backoff, census};
use crate::job_pods::{JobPods, Kind};
use crate::view::{Deletion, Job, Phase, Pod, Uid};

/// What a sync knows of its Job. Both plans refer to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The Job as it was read.
    pub job: Arc<Job>,
    /// The Job's pods by what they count as.
    pub census: Census,
    /// The indexes of an Indexed Job.
    pub indexes: Option<Indexes>,
    /// Succeeded pods or indexes, once all that is known is counted.
    pub succeeded: usize,
    /// The Job's options, from its annotations.
    pub options: Options,
    /// Ignored failures, if they are limited.
    pub disruptions: Option<Disruptions>,
    /// Pods that are about to end with their nodes, of a Job that has pods replaced early.
    pub noticed: HashSet<Uid>,
    /// The loss of a member of the PodGroup that concerns other members.
    pub recovery: Option<Recovery>,
    /// The failures that backoff waits for, including this sync's. ([S15])
    pub backoff: BackoffRecord,
    /// How its pods failed that are counted already; none without failures.
    pub ends: Option<Arc<Ends>>,
    /// Whether the watches showed all pods that we created or deleted.
    pub expectations_satisfied: bool,
    /// Whether admission takes a status only with the spec.
    pub status_needs_spec: bool,
    /// `--max-uncounted-pods`.
    pub pods_per_sync: usize,
    /// Since when the status lacks pods that we created.
    pub counts_wait_since: Option<Timestamp>,
    /// How long it may.
    pub counts_max: SignedDuration,
    /// The time of the decision.
    pub now: Timestamp,
}

/// The succeeded and failed indexes of an Indexed Job.
#[derive(Clone, Debug, PartialEq)]
pub struct Indexes {
    /// `status.completedIndexes` as stored.
    pub stored: IndexSet,
    /// The stored indexes and the pods that succeeded since. ([I5])
    pub succeeded: IndexSet,
    /// The state of `backoffLimitPerIndex`, if set.
    pub per_index: Option<PerIndex>,
}

/// What leaves failed pods to a later sync.
#[derive(Clone, Copy)]
struct Held<'a> {
    disruptions: Option<&'a Disruptions>,
    recovery: Option<&'a Recovery>,
}

impl Held<'_> {
    fn holds(self, pod: &Pod) -> bool {
        self.disruptions.is_some_and(|it| it.holds(&pod.uid))
            || self.recovery.is_some_and(|it| it.holds(pod))
    }
}

impl Facts {
    /// The facts of a sync that does nothing: it reads no pod.
    pub(super) fn unread(input: &SyncInput<'_>) -> Self {
        let timeout = input.settings.expectations_timeout;
        Self {
            job: Arc::clone(input.job),
            census: Census::take(input.job, JobPods::default(), input.memory),
            indexes: None,
            succeeded: 0,
            options: Options::default(),
            disruptions: None,
            noticed: HashSet::new(),
            recovery: None,
            backoff: BackoffRecord::default(),
            ends: None,
            expectations_satisfied: input.memory.expectations.satisfied(input.now, timeout),
            status_needs_spec: input.memory.status_needs_spec,
            pods_per_sync: input.settings.max_uncounted_pods,
            counts_wait_since: None,
            counts_max: SignedDuration::ZERO,
            now: input.now,
        }
    }

    /// The facts about a Job with these pods and options.
    pub(super) fn read(input: &SyncInput<'_>, pods: JobPods, options: Options) -> Self {
        let (job, pods_per_sync) = (input.job, input.settings.max_uncounted_pods);
        let census = Census::take(job, pods, input.memory);
        let indexes = Indexes::read(job, &census);
        let succeeded = match &indexes {
            Some(indexes) => indexes.succeeded.len() as usize,
            None => census.succeeded(job),
        };
        let limited = options.disruption_limit;
        let disruptions = limited.map(|_| Disruptions::read(job, &census, pods_per_sync));
        let recovery = Recovery::find(job, &census, input.groups, input.now);
        let held = Held { disruptions: disruptions.as_ref(), recovery: recovery.as_ref() };
        let timeout = input.settings.expectations_timeout;
        Self {
            job: Arc::clone(job),
            backoff: backoff_after(input, &census, held),
            ends: ends_before(input, &census),
            expectations_satisfied: input.memory.expectations.satisfied(input.now, timeout),
            census,
            indexes,
            succeeded,
            options,
            disruptions,
            noticed: input.memory.noticed.clone(),
            recovery,
            status_needs_spec: input.memory.status_needs_spec,
            pods_per_sync,
            counts_wait_since: input.memory.counts_wait_since,
            counts_max: input.counts_max,
            now: input.now,
        }
    }

    /// Whether a later sync counts this pod, so that it must keep its finalizer. A Job that ends
    /// replaces no pod.
    pub(super) fn holds(&self, pod: &Pod, ends: bool) -> bool {
        let recovery = self.recovery.as_ref().filter(|_| !ends);
        Held { disruptions: self.disruptions.as_ref(), recovery }.holds(pod)
    }

    /// The state of `backoffLimitPerIndex`.
    pub fn per_index(&self) -> Option<&PerIndex> {
        self.indexes.as_ref().and_then(|indexes| indexes.per_index.as_ref())
    }
}

impl Indexes {
    /// DIVERGES(upstream): an index ends once. One pod of it may succeed while another fails it for
    /// good. The end that came first stands, and of two at once the success. Upstream puts the
    /// index into both lists, which the API refuses for ever. ([X3])
    fn read(job: &Job, census: &Census) -> Option<Self> {
        if !job.is_indexed() {
            return None;
        }
        let text = job.status.completed_indexes.as_deref().unwrap_or_default();
        let stored = IndexSet::parse(text, job.index_bound());
        let failed = PerIndex::stored(job);
        // Of a pod that is released, and that a late watch still shows with its finalizer, all is
        // counted: it may have counted as failed when it terminated.
        let new = census
            .ended
            .iter()
            .filter(|pod| pod.phase == Phase::Succeeded)
            .filter(|pod| !census.uncounted.failed.contains(&pod.uid))
            .filter_map(|pod| pod.index.filter(|index| job.has_index(*index)))
            .filter(|index| !failed.contains(*index));
        let succeeded = stored.union(&IndexSet::collect(new));
        let per_index = PerIndex::read(job, census, &succeeded, &failed);
        Some(Self { stored, succeeded, per_index })
    }
}

/// Adds this sync's failures. After a start, the pods in the API show the earlier ones, and so they
/// do where the write that listed some had no reply. ([S15])
///
/// DIVERGES(upstream): upstream starts with an empty record. A restart of the controller then lets
/// a failing Job create its next pod at once. ([E4])
fn backoff_after(input: &SyncInput<'_>, census: &Census, held: Held<'_>) -> BackoffRecord {
    let settings = input.settings;
    let slots = |pods: usize| backoff::slots(input.job, pods);
    let shown = || {
        let new: HashSet<&Uid> =
            census.newly_failed.iter().chain(&census.newly_succeeded).map(|pod| &pod.uid).collect();
        let old: Vec<&Arc<Pod>> =
            census.pods.iter().filter(|pod| pod.is_terminal() && !new.contains(&pod.uid)).collect();
        let ended = |phase| old.iter().filter(move |pod| pod.phase == phase);
        backoff::after(
            input.job,
            BackoffRecord::default(),
            &backoff::Terms { slots: slots(census.pods.len()), now: input.now, settings },
            ended(Phase::Succeeded).map(AsRef::as_ref),
            ended(Phase::Failed).map(AsRef::as_ref),
        )
    };
    let record = match input.memory.backoff {
        Some(record) if input.memory.backoff_in_doubt => record.max(shown()),
        Some(record) => record,
        None => shown(),
    };
    let new = census.newly_succeeded.iter().chain(&census.newly_failed);
    let alive =
        census.active + census.terminating.len() + new.filter(|pod| pod.is_terminal()).count();
    backoff::after(
        input.job,
        record,
        &backoff::Terms { slots: slots(alive), now: input.now, settings },
        census.newly_succeeded.iter().map(Arc::as_ref),
        census.newly_failed.iter().filter(|pod| !held.holds(pod)).map(Arc::as_ref),
    )
}

/// How pods failed before this sync. After a start, the pods in the API show that, and so they do
/// where the write that listed some had no reply.
fn ends_before(input: &SyncInput<'_>, census: &Census) -> Option<Arc<Ends>> {
    let Memory { ends, backoff, backoff_in_doubt, .. } = input.memory;
    if backoff.is_some() && !backoff_in_doubt {
        return ends.clone();
    }
    let new: HashSet<&Uid> = census.newly_failed.iter().map(|pod| &pod.uid).collect();
    let is_old = |pod: &&Arc<Pod>| {
        pod.phase == Phase::Failed
            && !new.contains(&pod.uid)
            && census::has_valid_index(input.job, pod)
    };
    let shown = Ends::default().with(input.job, census.pods.iter().filter(is_old));
    let known = ends.as_deref().cloned().unwrap_or_default().max(shown);
    (!known.is_empty()).then(|| Arc::new(known))
}

// Treats pods as terminating that are Failed while their status shows a running container.

/// The kubelet's last status of a pod comes within 10 s of its first; the margin is for a busy one.
const LAST_WORD_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// The Job's pods, with those as terminating whose containers still run, and how long until the
/// first of these counts as Failed. `None` if no container runs on.
///
/// DIVERGES(upstream): a kubelet that shuts down reports Failed for a pod whose container runs on
/// for up to 10 s. It may report Succeeded after that (seen on a real one). Where only terminal
/// pods are replaced, the pod is terminating until no container is shown running, for 30 s at most.
/// Upstream counts it as failed and replaces it while it still runs.
pub(super) fn as_terminating(input: &SyncInput<'_>) -> Option<(JobPods, SignedDuration)> {
    if !input.job.replaces_failed_only() {
        return None;
    }
    let (mut pods, mut first) = (input.pods.clone(), None::<SignedDuration>);
    for pod in input.pods.of_kind(Kind::RunsOn).chain(input.pods.strays()) {
        let Some(since) = pod.shown_running_since else { continue };
        let Some(left) = left(since, input.now) else { continue };
        first = Some(first.map_or(left, |first| first.min(left)));
        pods.alter(Arc::new(Pod {
            phase: Phase::Running,
            deletion: pod.deletion.or(Some(Deletion { at: since, grace_seconds: 0 })),
            ..Pod::clone(pod)
        }));
    }
    first.map(|left| (pods, left))
}

/// A clock that is further ahead than this proves nothing and delays nothing.
fn left(since: Timestamp, now: Timestamp) -> Option<SignedDuration> {
    let passed = now.duration_since(since);
    let holds = passed > -LAST_WORD_WITHIN && passed < LAST_WORD_WITHIN;
    holds.then(|| LAST_WORD_WITHIN.saturating_sub(passed))
}
