//! Decides how many pods the Job should have, and which ones to create or delete.

use std::cmp::{Ordering, Reverse};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::early::Places;
use super::facts::{Facts, Indexes};
use super::group::recovery::Recovery;
use super::input::Settings;
use super::node_fault::NodeFault;
use super::pod_template::template_problem;
use super::report::WaitsFor;
use super::steps::{Action, PodDraft};
use super::verdict::{End, Verdict};
use super::{IndexSet, backoff};
use crate::job_pods::{JobPods, Kind};
use crate::view::{ContainerKind, Job, Phase, Pod, Uid};

/// The most nodes to avoid: each one costs the scheduler more work for the pod.
pub(crate) const NODES_AVOIDED_MAX: usize = 5;

/// What a sync does to pods.
#[derive(Clone, Debug, PartialEq)]
pub enum PodStage {
    /// Nothing.
    None,
    /// Delete these.
    Delete {
        /// The pods in the order of deletion.
        victims: Vec<Arc<Pod>>,
        /// The purpose of the deletion.
        purpose: Purpose,
    },
    /// Create these, in batches that grow.
    Create(Vec<PodDraft>),
    /// Fail these, which do not start.
    FailPending(Vec<Arc<Pod>>),
    /// Set DisruptionTarget on these, which failed by a fault of their node; the sync does nothing
    /// else.
    MarkFaults(Vec<NodeFault>),
    /// Create nothing, because the template does not allow it. ([B8])
    Refuse(&'static str),
}

/// Why pods are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The Job has come to its end. ([P13])
    End(End),
    /// The Job is suspended. ([P1])
    Suspend,
    /// There are more than wanted, or they have no place in the Job. ([P3])
    Excess,
    /// A member of their PodGroup is lost, and the group is disrupted as a whole.
    Group,
}

impl Purpose {
    /// Whether the pod must not be counted as failed, so that the finalizer goes first. ([P14])
    ///
    /// A member of a lost group that is a target of a disruption itself counts as disrupted.
    ///
    /// DIVERGES(upstream): also when the Job succeeds. Upstream keeps the finalizer, so after a
    /// crash the pods that it deleted count as failed.
    pub fn strips_finalizer(self, pod: &Pod) -> bool {
        match self {
            Self::End(end) => end != End::Failure,
            Self::Suspend | Self::Excess => true,
            Self::Group => !pod.is_target(),
        }
    }

    /// Whether nothing else may be done to pods until a watch shows the deletion. ([E1])
    pub fn is_awaited(self) -> bool {
        !matches!(self, Self::End(_))
    }
}

/// What [`decide`] finds: the pod stage, and what follows from it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodDecision {
    pub stage: PodStage,
    /// Whether pods were managed, with whatever result. ([S19])
    pub manages_pods: bool,
    pub action: Action,
    /// When the decision changes by time alone.
    pub wake: Option<SignedDuration>,
    /// The backoff that delays a creation.
    pub waits_for: Option<WaitsFor>,
}

/// Decides the pod stage of a sync. A Job that goes on deletes no pod that has failed and waits for
/// the boot of its node.
pub(super) fn decide(
    facts: &Facts,
    end: Option<&Verdict>,
    awaits_boots: &[Arc<Pod>],
    settings: &Settings,
) -> PodDecision {
    let pods = &facts.census.pods;
    let live = || -> Vec<Arc<Pod>> {
        let is_open = |pod: &Pod| awaits_boots.iter().any(|open| open.uid == pod.uid);
        pods.active().into_iter().filter(|pod| !is_open(pod)).collect()
    };
    if let Some(verdict) = end {
        let stage = PodStage::delete(pods.active(), Purpose::End(verdict.end));
        return PodDecision { stage, ..PodDecision::unmanaged() };
    }
    if !facts.expectations_satisfied || facts.job.deleting {
        return PodDecision::unmanaged();
    }
    if facts.job.spec.suspend {
        let stage = PodStage::delete(live(), Purpose::Suspend);
        return PodDecision::new(stage, Action::PodsDeleted);
    }
    if let Some(victims) = facts.recovery.as_ref().and_then(|it| it.victims(awaits_boots)) {
        let most = settings.max_pod_create_delete_per_sync;
        let victims = victims.into_iter().take(most).collect();
        let stage = PodStage::delete(victims, Purpose::Group);
        return PodDecision::new(stage, Action::PodsDeleted);
    }
    // DIVERGES(upstream): only on request. Upstream lets a pod that cannot start hold up its Job
    // for ever.
    let (overdue, wake) = match facts.options.pending_timeout {
        Some(timeout) => overdue(pods, timeout, facts.now),
        None => (Vec::new(), None),
    };
    let decision = if overdue.is_empty() {
        size(facts, live, awaits_boots.len(), settings)
    } else {
        PodDecision::new(PodStage::FailPending(overdue), Action::PodsDeleted)
    };
    decision.wake_after(wake).wake_after(facts.recovery.as_ref().and_then(Recovery::due_in))
}

/// Deletes excess pods, or creates missing ones. A pod that waits for a boot keeps its place, and
/// takes no place from a live one.
fn size(
    facts: &Facts,
    live: impl Fn() -> Vec<Arc<Pod>>,
    open: usize,
    settings: &Settings,
) -> PodDecision {
    let (census, places) = (&facts.census, Places::of(facts));
    let active = places.active();
    let wanted = wanted(facts, active);
    let excess = active.saturating_sub(open).saturating_sub(wanted);
    if excess > 0 || !have_places(&facts.job, &places.pods) || places.has_superfluous() {
        let most = settings.max_pod_create_delete_per_sync;
        let mut live = live();
        live.retain(|pod| places.pods.get(&pod.uid).is_some());
        let victims = choose_victims(&facts.job, &places.ended, &live, excess, most);
        let stage = PodStage::delete(victims, Purpose::Excess);
        return PodDecision::new(stage, Action::PodsDeleted);
    }
    let waited_for = if facts.job.replaces_failed_only() { census.terminating.len() } else { 0 };
    match wanted.saturating_sub(active + waited_for) {
        0 => PodDecision::new(PodStage::None, Action::Tracking),
        missing => create(facts, &places, settings, missing),
    }
}

/// The number of pods that should be active, of which so many are. ([P2])
fn wanted(facts: &Facts, active: usize) -> usize {
    let parallelism = usize::try_from(facts.job.spec.parallelism).unwrap_or(0);
    match facts.job.spec.completions {
        None if facts.succeeded > 0 => active,
        None => parallelism,
        Some(completions) => usize::try_from(completions)
            .unwrap_or(0)
            .saturating_sub(facts.succeeded)
            .min(parallelism),
    }
}

/// The number of pods that can still run at once; `None` while no place has ended for good.
pub(super) fn can_run(facts: &Facts) -> Option<usize> {
    let failed = facts.per_index().map_or(0, |per_index| per_index.failed.len() as usize);
    let ended = Some(facts.succeeded + failed).filter(|ended| *ended > 0)?;
    let completions = facts.job.spec.completions.map(|it| usize::try_from(it).unwrap_or(0));
    Some(
        completions
            .map_or(usize::MAX, |it| it.saturating_sub(ended))
            .min(wanted(facts, facts.census.active)),
    )
}

/// Whether a pod is missing, or has no node yet.
pub(super) fn awaits_placement(facts: &Facts) -> bool {
    let mut pending = facts.census.pods.of_kind(Kind::Pending);
    facts.census.active < wanted(facts, facts.census.active)
        || pending.any(|pod| pod.node.is_none())
}

/// Creates missing pods, unless backoff delays it. No pod joins a group that is still to be ended.
/// ([P5], [P6])
fn create(facts: &Facts, places: &Places, settings: &Settings, missing: usize) -> PodDecision {
    let missing = missing.min(settings.max_pod_create_delete_per_sync);
    let none = PodDecision::new(PodStage::None, Action::PodsCreated);
    if facts.recovery.is_some() {
        return PodDecision { action: Action::Tracking, ..none };
    }
    if facts.per_index().is_none() {
        let left = backoff::remaining(facts.backoff, facts.now, settings);
        if left > SignedDuration::ZERO {
            let failures = facts.backoff.failures;
            let waits_for = Some(WaitsFor::Backoff { failures, left });
            return PodDecision { waits_for, wake: Some(left), ..none };
        }
    }
    let (drafts, waits_for) = match &facts.indexes {
        None => {
            let avoid = nodes_to_avoid(facts, |_| None).remove(&None).unwrap_or_default();
            let draft = PodDraft { avoid, ..PodDraft::default() };
            (vec![draft; missing], None)
        }
        Some(indexes) => indexed_drafts(facts, indexes, places, settings, missing),
    };
    let wake = match &waits_for {
        Some(WaitsFor::IndexBackoff { left, .. }) => Some(*left),
        _ => None,
    };
    let stage = match template_problem(&facts.job) {
        _ if drafts.is_empty() => PodStage::None,
        Some(problem) => PodStage::Refuse(problem),
        None => PodStage::Create(drafts),
    };
    PodDecision { stage, wake, waits_for, ..none }
}

/// The lowest indexes that lack a pod and have no backoff left. ([I4])
///
/// DIVERGES(upstream): indexes in backoff are skipped before the lowest ones are picked. Upstream
/// picks first, so that waiting indexes block those behind them. ([I11])
fn indexed_drafts(
    facts: &Facts,
    indexes: &Indexes,
    places: &Places,
    settings: &Settings,
    missing: usize,
) -> (Vec<PodDraft>, Option<WaitsFor>) {
    let job = &facts.job;
    let waited_for: &[Arc<Pod>] =
        if job.replaces_failed_only() { &facts.census.terminating } else { &[] };
    let waited_for = IndexSet::collect(waited_for.iter().filter_map(|pod| pod.index));
    let per_index = indexes.per_index.as_ref();
    let backoff = |index| {
        per_index.map_or(SignedDuration::ZERO, |it| it.backoff(job, index, facts.now, settings))
    };
    let busy = places.pods.active_indexes().union(&waited_for);
    let succeeded_or_busy = indexes.succeeded.union(&busy);
    let taken = match per_index {
        Some(per_index) => succeeded_or_busy.union(&per_index.failed),
        None => succeeded_or_busy,
    };
    let chosen = taken
        .lowest_missing(job.index_bound(), missing, |index| backoff(index) > SignedDuration::ZERO);
    let waits: Vec<SignedDuration> = per_index
        .iter()
        .flat_map(|per_index| per_index.delayed.keys())
        .map(|index| backoff(*index))
        .filter(|left| *left > SignedDuration::ZERO)
        .collect();
    let mut avoided = nodes_to_avoid(facts, |pod| pod.index);
    let drafts = chosen
        .into_iter()
        .map(|index| PodDraft {
            index: Some(index),
            avoid: avoided.remove(&Some(index)).unwrap_or_default(),
            failures: per_index.map(|per_index| per_index.failures(job, index)),
            group: None,
        })
        .collect();
    let first = waits.iter().min().copied();
    (drafts, first.map(|left| WaitsFor::IndexBackoff { indexes: waits.len(), left }))
}

/// For each slot, the nodes on which its pods were disrupted; the latest first.
fn nodes_to_avoid(
    facts: &Facts,
    slot: impl Fn(&Pod) -> Option<u32>,
) -> HashMap<Option<u32>, Vec<Arc<str>>> {
    if !facts.options.avoid_failed_nodes {
        return HashMap::new();
    }
    let mut disrupted: Vec<&Arc<Pod>> = facts.census.pods.of_kind(Kind::Disrupted).collect();
    disrupted.sort_by_key(|pod| Reverse(pod.finished_at()));
    let mut nodes: HashMap<Option<u32>, Vec<Arc<str>>> = HashMap::new();
    for pod in disrupted {
        let Some(node) = &pod.node else { continue };
        let nodes = nodes.entry(slot(pod)).or_default();
        if nodes.len() < NODES_AVOIDED_MAX && !nodes.contains(node) {
            nodes.push(Arc::clone(node));
        }
    }
    nodes
}

impl PodStage {
    fn delete(victims: Vec<Arc<Pod>>, purpose: Purpose) -> Self {
        if victims.is_empty() { Self::None } else { Self::Delete { victims, purpose } }
    }
}

impl PodDecision {
    fn new(stage: PodStage, action: Action) -> Self {
        Self { stage, manages_pods: true, action, wake: None, waits_for: None }
    }

    fn unmanaged() -> Self {
        Self { manages_pods: false, ..Self::new(PodStage::None, Action::Reconciling) }
    }

    fn wake_after(self, wake: Option<SignedDuration>) -> Self {
        Self { wake: [self.wake, wake].into_iter().flatten().min(), ..self }
    }
}

impl fmt::Display for PodStage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => formatter.write_str("no change of pods"),
            Self::Delete { victims, purpose } => {
                write!(formatter, "delete {} for {purpose:?}", victims.len())
            }
            Self::Create(drafts) => write!(formatter, "create {}", drafts.len()),
            Self::FailPending(pods) => write!(formatter, "fail {} pending", pods.len()),
            Self::MarkFaults(faults) => {
                write!(formatter, "mark {} that their nodes failed", faults.len())
            }
            Self::Refuse(problem) => formatter.write_str(problem),
        }
    }
}

/// Pods that have been pending for this long, and how long until the next one has.
///
/// For `epilogue.dev/pending-timeout`: a pod without a node fails at once, because nothing of it
/// can run. A pod on a node is marked and deleted: the kubelet makes it Failed when nothing of it
/// runs. ([API18])
fn overdue(
    pods: &JobPods,
    timeout: SignedDuration,
    now: Timestamp,
) -> (Vec<Arc<Pod>>, Option<SignedDuration>) {
    let (mut overdue, mut next) = (Vec::new(), None::<SignedDuration>);
    for pod in pods.of_kind(Kind::Pending) {
        let Some(created) = pod.created else { continue };
        let left = timeout.saturating_sub(now.duration_since(created));
        if left <= SignedDuration::ZERO {
            overdue.push(Arc::clone(pod));
        } else {
            next = Some(next.map_or(left, |earlier| earlier.min(left)));
        }
    }
    (overdue, next)
}

// Decides which active pods go first when there are too many. ([P11], [P12])

/// Whether no pod of an Indexed Job has a missing, repeated or too high index.
fn have_places(job: &Job, pods: &JobPods) -> bool {
    !job.is_indexed() || pods.have_places(job.index_bound())
}

/// As many pods as are in excess, and at most as many as one sync deletes, in the order of
/// deletion.
///
/// An Indexed Job also loses pods whose index is missing, repeated or out of range, or has ended.
fn choose_victims(
    job: &Job,
    ended: &IndexSet,
    active: &[Arc<Pod>],
    excess: usize,
    most: usize,
) -> Vec<Arc<Pod>> {
    let mut victims = if job.is_indexed() { misplaced(job, ended, active) } else { Vec::new() };
    let missing = excess.min(most).saturating_sub(victims.len());
    if missing > 0 {
        let misplaced: HashSet<&Uid> = victims.iter().map(|pod| &pod.uid).collect();
        let mut rest: Vec<&Arc<Pod>> =
            active.iter().filter(|pod| !misplaced.contains(&pod.uid)).collect();
        // Of many pods, few go with one sync.
        if missing < rest.len() {
            rest.select_nth_unstable_by(missing, |left, right| compare(left, right));
            rest.truncate(missing);
        }
        rest.sort_unstable_by(|left, right| compare(left, right));
        let rest: Vec<Arc<Pod>> = rest.into_iter().cloned().collect();
        victims.extend(rest);
    }
    victims.truncate(most);
    victims
}

/// The active pods of an Indexed Job that have no place in it, in the order of deletion. Of an
/// index, the last one stays.
fn misplaced(job: &Job, ended: &IndexSet, active: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let index =
        |pod: &Pod| pod.index.filter(|index| job.has_index(*index) && !ended.contains(*index));
    let mut stays: HashMap<u32, &Arc<Pod>> = HashMap::new();
    for pod in active {
        if let Some(index) = index(pod) {
            let last = stays.entry(index).or_insert(pod);
            if compare(last, pod).is_le() {
                *last = pod;
            }
        }
    }
    let has_place = |pod: &Pod| index(pod).is_some_and(|index| stays[&index].uid == pod.uid);
    let mut misplaced: Vec<Arc<Pod>> =
        active.iter().filter(|pod| !has_place(pod)).cloned().collect();
    misplaced.sort_by(|left, right| compare(left, right));
    misplaced
}

/// Less means deleted earlier. A pod of an earlier attempt of its gang works with none of the later
/// ones.
fn compare(left: &Pod, right: &Pod) -> Ordering {
    left.attempt
        .cmp(&right.attempt)
        .then_with(|| left.node.is_some().cmp(&right.node.is_some()))
        .then_with(|| phase_rank(left.phase).cmp(&phase_rank(right.phase)))
        .then_with(|| left.is_ready().cmp(&right.is_ready()))
        .then_with(|| younger_first(ready_since(left), ready_since(right)))
        .then_with(|| Reverse(restarts(left)).cmp(&Reverse(restarts(right))))
        .then_with(|| younger_first(left.created, right.created))
        // The same ones each time.
        .then_with(|| left.uid.cmp(&right.uid))
}

fn phase_rank(phase: Phase) -> u8 {
    match phase {
        Phase::Running => 2,
        Phase::Unknown => 1,
        _ => 0,
    }
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    pod.ready.filter(|ready| ready.is_true).and_then(|ready| ready.since)
}

/// A missing time comes first, then the later time.
fn younger_first(left: Option<Timestamp>, right: Option<Timestamp>) -> Ordering {
    match (left, right) {
        (Some(left), Some(right)) => right.cmp(&left),
        _ => left.is_some().cmp(&right.is_some()),
    }
}

/// The highest restart count of regular containers, then of sidecars.
fn restarts(pod: &Pod) -> (u32, u32) {
    let highest = |kind: ContainerKind| {
        let counts = pod.containers.iter().filter(|each| each.kind == kind);
        counts.map(|each| each.restarts).max().unwrap_or(0)
    };
    (highest(ContainerKind::Regular), highest(ContainerKind::Sidecar))
}
