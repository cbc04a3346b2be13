//! Makes the first plan of a sync: adoption, creation, deletion, and every end of the Job that is
//! known before any call is answered.

use std::fmt;
use std::sync::Arc;

use epilogue_common::names::{MANAGED_BY, RESERVED_MANAGED_BY};
use jiff::SignedDuration;

use super::adoption::Claims;
use super::facts::Facts;
use super::group::{self, GroupPlan};
use super::input::SyncInput;
use super::node_fault::NodeFaults;
use super::options::Options;
use super::pods::{PodDecision, PodStage};
use super::report::WaitsFor;
use super::steps::{Action, Claim};
use super::verdict::{Evidence, Verdict};
use super::{IndexSet, adoption, census, ends, facts, node_fault, pods, verdict};
use crate::view::{CompletionMode, Job, Pod, Version};

/// When a stale sync is tried again if the awaited event does not come.
pub(super) const STALE_RETRY: SignedDuration = SignedDuration::from_secs(1);

/// What a sync does to pods, decided before any call is answered. [`super::plan_status`] decides
/// the rest from it and from the outcomes of the calls.
#[derive(Clone, Debug, PartialEq)]
pub struct PodPlan {
    /// What the sync knows of the Job.
    pub facts: Facts,
    /// Why the sync does nothing.
    pub skip: Option<SkipReason>,
    /// Pods to adopt, to disown, or to track again.
    pub claims: Vec<Claim>,
    /// The end of the Job, if decided; plain completion is found after the pod stage.
    pub verdict: Option<Verdict>,
    /// What becomes of the scheduling group of its pods, before any is created.
    pub group: GroupPlan,
    /// Pods to create or to delete.
    pub pods: PodStage,
    /// Failed pods whose nodes may soon show a boot; until then they count as running.
    pub awaits_boots: Vec<Arc<Pod>>,
    /// How far the watch of pods has come, if it must be as far as a live list before the sync goes
    /// on, because a creation had no reply.
    pub confirms: Option<Version>,
    /// Whether pods were managed, with whatever result. ([S19])
    pub manages_pods: bool,
    /// Whether problems of the options are still to be reported.
    pub unreported: bool,
    /// What the sync does to pods, for metrics.
    pub action: Action,
    /// When to sync again without any event.
    pub requeue_after: Option<SignedDuration>,
    /// What the Job waits for.
    pub waits_for: Vec<WaitsFor>,
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

/// Decides what one sync does to the pods of a Job. Every input has a plan.
pub fn plan_pods(input: &SyncInput<'_>) -> PodPlan {
    if let Some(reason) = skip_reason(input) {
        return PodPlan::skip(input, reason);
    }
    let options = Options::read(input.job, input.settings);
    let settings = options.apply(input.settings);
    let input = SyncInput { settings: &settings, ..*input };
    let Some((pods, left)) = facts::as_terminating(&input) else {
        return active(&input, options);
    };
    let plan = active(&SyncInput { pods: &pods, ..input }, options);
    PodPlan { requeue_after: earliest([plan.requeue_after, Some(left)]), ..plan }
}

/// Whether this controller runs the Job. ([S3])
pub fn is_ours(job: &Job, manage_all_jobs: bool) -> bool {
    is_run_by_us(job.spec.managed_by.as_deref(), manage_all_jobs)
}

/// Whether this controller runs Jobs with this `spec.managedBy`. ([S3])
pub fn is_run_by_us(managed_by: Option<&str>, manage_all_jobs: bool) -> bool {
    match managed_by {
        Some(MANAGED_BY) => true,
        None | Some(RESERVED_MANAGED_BY) => manage_all_jobs,
        Some(_) => false,
    }
}

/// Why a sync does nothing.
///
/// DIVERGES(upstream): `managedBy` and the end of the Job come before the question whether the
/// watches are behind. Neither can be taken back, so such a Job is not synced again for them.
/// ([S1])
///
/// DIVERGES(upstream): a Job that is being deleted releases its pods, whatever its completion mode.
/// Upstream leaves them, so that a foreground deletion waits for their finalizers for ever. ([S6])
fn skip_reason(input: &SyncInput<'_>) -> Option<SkipReason> {
    let SyncInput { job, memory, settings, .. } = input;
    if !is_ours(job, settings.manage_all_jobs) {
        Some(SkipReason::ManagedElsewhere)
    } else if job.is_finished() {
        Some(SkipReason::Finished)
    } else if memory.finished {
        Some(SkipReason::FinishedByUs)
    } else if !memory.is_caught_up(input.seen, input.now, settings.expectations_timeout) {
        Some(SkipReason::Stale)
    } else if matches!(job.spec.completion_mode, CompletionMode::Unknown(_)) && !job.deleting {
        Some(SkipReason::UnknownCompletionMode)
    } else {
        None
    }
}

/// Plans for a Job that is synced. ([S16], [S19])
fn active(input: &SyncInput<'_>, options: Options) -> PodPlan {
    let Claims { pods, patches, again_after } = adoption::decide(input);
    let tracked = adoption::untracked(input.job, &pods, input.memory);
    let pods = adoption::with_tracked(pods, &tracked);
    let pods = census::as_counted(input.job, pods, input.memory);
    let NodeFaults { unmarked, open } = node_fault::find(input, &pods);
    let pods = node_fault::as_running(pods, &open);
    let facts = Facts::read(input, pods, options);
    if !unmarked.is_empty() {
        let claims = [patches, tracked].concat();
        return marking(input, facts, PodStage::MarkFaults(unmarked), claims);
    }
    let verdict = decide_end(&facts);
    let group = group::decide(&facts, input.groups, verdict.as_ref());
    if let GroupPlan::Await(what, left) = &group {
        let (what, left) = (what.clone(), *left);
        return awaiting(input, facts, group, (what, left));
    }
    let PodDecision { mut stage, manages_pods, action, wake, waits_for } =
        pods::decide(&facts, verdict.as_ref(), &open, input.settings);
    let group = group.for_new_pods(&facts, &mut stage);
    // After its deadline a Job without a verdict only waits for the watches.
    let deadline = verdict::until_deadline(&facts.job, facts.now)
        .filter(|left| verdict.is_none() && *left > SignedDuration::ZERO);
    // DIVERGES(upstream): a sync that awaits pods is repeated when they have been awaited for too
    // long; upstream then needs some event. ([E1])
    let timeout = input.settings.expectations_timeout;
    let awaits =
        (!facts.expectations_satisfied).then(|| input.memory.expectations.left(input.now, timeout));
    let boots = (!open.is_empty()).then_some(STALE_RETRY);
    PodPlan {
        skip: None,
        claims: [patches, tracked].concat(),
        group,
        pods: stage,
        awaits_boots: open,
        confirms: input.memory.creation_in_doubt.then_some(input.seen.pods),
        manages_pods,
        unreported: facts.options.problems != input.memory.reported,
        action,
        // An unsuspended Job wakes up when its deadline is due. ([U5])
        requeue_after: earliest([wake, deadline, awaits, again_after, boots]),
        waits_for: waits(&facts, verdict.as_ref()).into_iter().chain(waits_for).collect(),
        verdict,
        facts,
    }
}

/// Sets DisruptionTarget on pods that failed by a fault of their node. They are counted by a later
/// sync, which sees it.
fn marking(input: &SyncInput<'_>, facts: Facts, stage: PodStage, claims: Vec<Claim>) -> PodPlan {
    PodPlan {
        skip: None,
        claims,
        verdict: None,
        waits_for: vec![WaitsFor::Watches],
        group: GroupPlan::Nothing,
        pods: stage,
        awaits_boots: Vec::new(),
        confirms: input.memory.creation_in_doubt.then_some(input.seen.pods),
        manages_pods: false,
        unreported: facts.options.problems != input.memory.reported,
        action: Action::Reconciling,
        requeue_after: Some(STALE_RETRY),
        facts,
    }
}

/// Waits for the Workload of a parent. A status would make the Job one that has started, which gets
/// no group any more.
fn awaiting(
    input: &SyncInput<'_>,
    facts: Facts,
    group: GroupPlan,
    (what, left): (String, SignedDuration),
) -> PodPlan {
    PodPlan {
        group,
        waits_for: vec![WaitsFor::SchedulingGroup(what)],
        requeue_after: Some(left),
        ..marking(input, facts, PodStage::None, Vec::new())
    }
}

fn decide_end(facts: &Facts) -> Option<Verdict> {
    let none = IndexSet::default();
    let evidence = Evidence {
        census: &facts.census,
        succeeded: facts.indexes.as_ref().map_or(&none, |indexes| &indexes.succeeded),
        successes: facts.succeeded,
        per_index: facts.per_index(),
        disruptions: facts.disruptions.as_ref().map_or(0, |it| it.ignored),
        disruption_limit: facts.options.disruption_limit,
        rule_names: facts.options.rule_names.as_ref(),
        now: facts.now,
    };
    verdict::decide(&facts.job, &evidence).map(|verdict| ends::explained(verdict, facts))
}

/// The shortest of these waits.
pub(super) fn earliest(
    waits: impl IntoIterator<Item = Option<SignedDuration>>,
) -> Option<SignedDuration> {
    waits.into_iter().flatten().map(|wait| wait.max(SignedDuration::ZERO)).min()
}

/// What the Job waits for, except for backoff.
fn waits(facts: &Facts, verdict: Option<&Verdict>) -> Vec<WaitsFor> {
    let mut waits = Vec::new();
    if let Some(verdict) = verdict {
        waits.push(WaitsFor::End(verdict.end));
    } else if facts.job.deleting {
        waits.push(WaitsFor::Deletion);
    } else if facts.job.spec.suspend {
        waits.push(WaitsFor::Resume);
    }
    if !facts.expectations_satisfied {
        waits.push(WaitsFor::Watches);
    }
    let (active, terminating) = (facts.census.active, facts.census.terminating.len());
    waits.extend((active > 0).then_some(WaitsFor::ActivePods(active)));
    waits.extend((terminating > 0).then_some(WaitsFor::TerminatingPods(terminating)));
    waits
}

impl PodPlan {
    /// Whether the sync does nothing, so that metrics do not count it either.
    pub fn is_skipped(&self) -> bool {
        self.skip.is_some()
    }

    fn skip(input: &SyncInput<'_>, reason: SkipReason) -> Self {
        Self {
            facts: Facts::unread(input),
            skip: Some(reason),
            claims: Vec::new(),
            verdict: None,
            group: GroupPlan::Nothing,
            pods: PodStage::None,
            awaits_boots: Vec::new(),
            confirms: None,
            manages_pods: false,
            unreported: false,
            action: Action::Reconciling,
            requeue_after: (reason == SkipReason::Stale).then_some(STALE_RETRY),
            waits_for: reason.waits_for(input.job).into_iter().collect(),
        }
    }
}

impl SkipReason {
    fn waits_for(self, job: &Job) -> Option<WaitsFor> {
        match (self, &job.spec.completion_mode) {
            (Self::Stale | Self::FinishedByUs, _) => Some(WaitsFor::Watches),
            (Self::ManagedElsewhere, _) if job.is_finished() => Some(WaitsFor::Nothing),
            (Self::ManagedElsewhere, _) => Some(WaitsFor::Manager(job.spec.managed_by.clone())),
            (Self::Finished, _) => Some(WaitsFor::Nothing),
            (Self::UnknownCompletionMode, CompletionMode::Unknown(mode)) => {
                Some(WaitsFor::CompletionMode(mode.clone()))
            }
            (Self::UnknownCompletionMode, _) => None,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Stale => "the watches do not show our last writes yet",
            Self::ManagedElsewhere => "spec.managedBy names another controller",
            Self::Finished => "it is finished",
            Self::FinishedByUs => "it is finished, which the watch does not show yet",
            Self::UnknownCompletionMode => "its completionMode is unknown",
        }
    }
}

/// One line, for logs and tests.
impl fmt::Display for PodPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Facts { job, census, .. } = &self.facts;
        if let Some(skip) = self.skip {
            return write!(formatter, "{}: nothing to do: {}", job.key, skip.text());
        }
        write!(
            formatter,
            "{}: {}; active {} ready {} terminating {}; newly succeeded {} failed {} ignored {}",
            job.key,
            self.pods,
            census.active,
            census.ready,
            census.terminating.len(),
            census.newly_succeeded.len(),
            census.newly_failed_counted.len(),
            census.newly_failed.len() - census.newly_failed_counted.len(),
        )?;
        if !self.claims.is_empty() {
            write!(formatter, "; claims {}", self.claims.len())?;
        }
        if !self.awaits_boots.is_empty() {
            write!(formatter, "; awaits a boot for {}", self.awaits_boots.len())?;
        }
        if self.confirms.is_some() {
            write!(formatter, "; lists its pods first, as a creation had no reply")?;
        }
        if self.group != GroupPlan::Nothing {
            write!(formatter, "; {}", self.group)?;
        }
        if let Some(verdict) = &self.verdict {
            write!(formatter, "; ends: {} {}", verdict.end.terminal(), verdict.reason)?;
        }
        for wait in &self.waits_for {
            write!(formatter, "; waits for {wait}")?;
        }
        if let Some(after) = self.requeue_after {
            write!(formatter, "; again in {after:#}")?;
        }
        Ok(())
    }
}
