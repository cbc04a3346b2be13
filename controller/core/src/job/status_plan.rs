//! Decides the status that a sync writes, from the plan of pods and the outcomes of its calls.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use epilogue_common::names::job_condition;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::end_events::PodEnded;
use super::ends::Ends;
use super::facts::Facts;
use super::plan::PodPlan;
use super::pods::PodStage;
use super::steps::{EventDraft, MetricEvent};
use super::tracking::Accounting;
use super::verdict::{End, Verdict};
use super::{IndexSet, census, tracking, verdict};
use crate::view::{Job, Phase, Pod, Uid};

/// While the count of new pods waits, how often it is decided anew whether it may.
const COUNTS_CHECK: SignedDuration = SignedDuration::from_secs(5);

/// Pods after the pod stage: the census, updated with the outcome of each call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOutcomes {
    /// Pods that are neither terminal nor being deleted.
    pub active: usize,
    /// Active pods that are ready.
    pub ready: usize,
    /// Pods that are being deleted.
    pub terminating: usize,
    /// Whether every deletion succeeded.
    pub all_deleted: bool,
}

impl PodOutcomes {
    /// The pods before any call.
    pub(super) fn before(facts: &Facts) -> Self {
        let census = &facts.census;
        Self {
            active: census.active,
            ready: census.ready,
            terminating: census.terminating.len(),
            all_deleted: true,
        }
    }

    /// The pods once these active ones are deleted.
    pub(super) fn without(self, gone: &[Arc<Pod>]) -> Self {
        Self {
            active: self.active - gone.len(),
            ready: self.ready - gone.iter().filter(|pod| pod.is_ready()).count(),
            terminating: self.terminating + gone.len(),
            ..self
        }
    }
}

/// Sets the counts of pods that run; `ready` and `terminating` also when zero. ([S21])
pub(super) fn count_pods(status: &mut JobStatus, outcomes: &PodOutcomes) {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    status.active = Some(number(outcomes.active)).filter(|active| *active > 0);
    status.ready = Some(number(outcomes.ready));
    status.terminating = Some(number(outcomes.terminating));
}

/// Sets the start time of a Job that is not suspended. ([S14])
pub(super) fn start(status: &mut JobStatus, facts: &Facts) {
    if status.start_time.is_none() && !facts.job.spec.suspend {
        status.start_time = Some(whole_seconds(facts.counts_wait_since.unwrap_or(facts.now)));
    }
}

/// Sets or lifts `Suspended`; returns the event if that changed something. ([U1])
///
/// A Job may have pods before the first write of its status.
///
/// DIVERGES(upstream): only lifting it sets the start time anew. Upstream also does so when the
/// condition is False with another reason or message than its own, which the API refuses for ever.
/// ([X2])
///
/// DIVERGES(upstream): the start time goes once no pod is active. Upstream clears it with the
/// condition, though pods could not be deleted. Without it, an API server up to 1.35 lets a user
/// change where the pods of the Job run, and those that are left run on elsewhere. ([U2])
pub(super) fn suspend(status: &mut JobStatus, facts: &Facts, active: usize) -> Option<EventDraft> {
    let suspended = job_condition::SUSPENDED;
    if facts.job.spec.suspend {
        let changed = upsert(status, facts.now, suspended, "True", "JobSuspended", "Job suspended");
        if active == 0 {
            status.start_time = None;
        } else if status.start_time.is_none() {
            status.start_time = Some(whole_seconds(facts.counts_wait_since.unwrap_or(facts.now)));
        }
        changed.then(|| EventDraft::normal("Suspended", "Job suspended"))
    } else {
        let resumes = facts.job.true_condition(suspended).is_some();
        upsert(status, facts.now, suspended, "False", "JobResumed", "Job resumed");
        if resumes {
            status.start_time = Some(whole_seconds(facts.now));
        }
        resumes.then(|| EventDraft::normal("Resumed", "Job resumed"))
    }
}

/// Stores how many failures were ignored, if there are new ones.
pub(super) fn count_disruptions(status: &mut JobStatus, facts: &Facts) {
    if let Some(disruptions) = facts.disruptions.as_ref().filter(|it| it.is_new) {
        let kind = job_condition::DISRUPTIONS_IGNORED;
        let message = disruptions.message();
        upsert(status, facts.now, kind, "True", "PodFailurePolicy", &message);
    }
}

/// Stores the interim condition of an end, unless it is stored. ([C1], [C2])
///
/// DIVERGES(upstream): a condition with status False is replaced. Upstream appends a second one,
/// which its next sync does not find. ([C4])
pub(super) fn announce(status: &mut JobStatus, verdict: &Verdict, now: Timestamp) {
    if !verdict.stored {
        let Verdict { end, reason, message, .. } = verdict;
        upsert(status, now, end.interim(), "True", reason, message);
    }
}

/// Adds the terminal condition, and the completion time of a success. ([C3], [C6])
///
/// DIVERGES(upstream): a Job that fails while it is suspended gets a start time. Without one the
/// API refuses the end, and upstream tries for ever. ([X1])
pub(super) fn finish(status: &mut JobStatus, job: &Job, verdict: &Verdict, now: Timestamp) {
    let Verdict { end, reason, message, .. } = verdict;
    let exempt = job.spec.suspend && job.spec.completions == Some(0);
    if status.start_time.is_none() && !exempt {
        status.start_time = Some(whole_seconds(now));
    }
    upsert(status, now, end.terminal(), "True", reason, message);
    if *end == End::Success && status.completion_time.is_none() {
        // The API refuses a completion before the start. A clock that was set back, or a new leader
        // whose clock is behind, would otherwise produce one.
        let start = status.start_time.clone();
        status.completion_time = Some(whole_seconds(now)).max(start);
    }
}

/// Brings a draft into the form in which the API returns it, without the zeros that the API leaves
/// out.
pub(super) fn normalize(status: &mut JobStatus) {
    for counter in [&mut status.active, &mut status.succeeded, &mut status.failed] {
        *counter = counter.filter(|count| *count != 0);
    }
    if status.completed_indexes.as_deref() == Some("") {
        status.completed_indexes = None;
    }
}

/// Whether a draft is worth a write. ([S20])
///
/// DIVERGES(upstream): a start time alone is worth a write, so that a deadline always has a stored
/// start. Upstream stores it only together with other changes.
pub(super) fn differs(draft: &JobStatus, stored: &JobStatus) -> bool {
    let mut stored = stored.clone();
    normalize(&mut stored);
    *draft != stored
}

/// Replaces the condition in place if something differs, or adds it if missing. Returns whether
/// anything changed. ([C4], [C5])
fn upsert(
    status: &mut JobStatus,
    now: Timestamp,
    kind: &str,
    value: &str,
    reason: &str,
    message: &str,
) -> bool {
    let fresh = JobCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_probe_time: Some(whole_seconds(now)),
        last_transition_time: Some(whole_seconds(now)),
    };
    let conditions = status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|each| each.type_ == kind) {
        None if value == "False" => {
            if conditions.is_empty() {
                status.conditions = None;
            }
            false
        }
        None => {
            conditions.push(fresh);
            true
        }
        Some(old) => {
            let same = old.status == fresh.status
                && old.reason == fresh.reason
                && old.message == fresh.message;
            if !same {
                *old = fresh;
            }
            !same
        }
    }
}

/// The API stores whole seconds; a fraction kept here would appear as a change on every read.
fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

// Makes the second plan of a sync: the status, the finalizers, and the end of the Job. The order
// of its stages makes the counting exact: flush → release → settle.

/// What a sync writes once the calls on pods are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusPlan {
    /// The first write of the status; `None` if it would change nothing, or waits.
    pub flush: Option<Box<JobStatus>>,
    /// How long the first write waits, because it would only show new pods.
    pub waits: Option<SignedDuration>,
    /// Pods that lose their finalizer once the first write is stored.
    pub release: Vec<Arc<Pod>>,
    /// The second write of the status.
    pub settle: Settle,
    /// The event of a Job that is suspended or resumed.
    pub event: Option<EventDraft>,
    /// Rules of the failure policy that matched, by action.
    pub handled: BTreeMap<&'static str, u32>,
    /// How the pods failed that are counted once the first write is stored; none without failures.
    pub ends: Option<Arc<Ends>>,
    /// The ends to tell: of counted pods once the first write is stored, of ignored ones once their
    /// finalizer is removed.
    pub ended: Vec<PodEnded>,
}

/// The second write of the status. It depends on which pods lost their finalizer.
#[derive(Clone, Debug, PartialEq)]
pub struct Settle {
    /// The end of the Job, unless pods are left to count or to wait for.
    pub end: Option<Verdict>,
    job: Arc<Job>,
    tracked: HashSet<Uid>,
    now: Timestamp,
}

/// Decides what is written with these outcomes. All facts about the pods are known now. ([S18],
/// [T8])
pub fn plan_status(plan: &PodPlan, outcomes: &PodOutcomes) -> StatusPlan {
    let facts = &plan.facts;
    let (end, announced) = decide_end(plan, outcomes);
    let mut status = facts.job.status.clone();
    status.uncounted_terminated_pods.get_or_insert_default();
    start(&mut status, facts);
    let ends = plan.verdict.is_some() || end.is_some();
    let event = if plan.manages_pods && !ends {
        suspend(&mut status, facts, outcomes.active)
    } else {
        None
    };
    count_pods(&mut status, outcomes);
    count_disruptions(&mut status, facts);
    let Accounting { release, handled, failed, cut_off, tracked } =
        Accounting::enter(plan, end.as_ref(), &mut status);
    for verdict in end.iter().chain(&announced) {
        announce(&mut status, verdict, facts.now);
    }
    normalize(&mut status);
    let waits = counts_wait(plan, &status).filter(|_| event.is_none() && release.is_empty());
    let is_written = waits.is_none() && differs(&status, &facts.job.status);
    StatusPlan {
        flush: is_written.then(|| Box::new(status)),
        waits,
        release,
        settle: Settle {
            end: end.filter(|_| !cut_off && outcomes.terminating == 0),
            job: Arc::clone(&facts.job),
            tracked,
            now: facts.now,
        },
        event,
        handled,
        ends: Ends::after(facts, &failed),
        ended: PodEnded::read(plan, &failed),
    }
}

/// How much longer the write of this status may wait. ([S20])
///
/// DIVERGES(upstream): the count of new pods waits for what the Job does next, for a second at
/// most; for 5 s where the controller is busy, and for a minute where calls wait for
/// `--kube-api-qps`. Upstream writes it at once. The pods themselves, `ready`, every end and every
/// condition wait for nothing. Neither does the start of a Job with a deadline.
fn counts_wait(plan: &PodPlan, status: &JobStatus) -> Option<SignedDuration> {
    let facts = &plan.facts;
    let since = match (facts.counts_wait_since, &plan.pods) {
        (None, PodStage::Create(_)) => facts.now,
        (since, _) => since?,
    };
    let waited = facts.now.duration_since(since);
    let left = facts.counts_max.saturating_sub(waited);
    // A clock that was set back measures nothing.
    let is_over = left <= SignedDuration::ZERO || waited.is_negative();
    if is_over || !shows_only_new_pods(status, facts) {
        return None;
    }
    Some(left.min(COUNTS_CHECK))
}

/// Whether a status differs from the stored one by the start of the Job and more active pods alone.
fn shows_only_new_pods(status: &JobStatus, facts: &Facts) -> bool {
    let stored = &facts.job.status;
    let starts = status.start_time != stored.start_time;
    if status.active <= stored.active || starts && facts.job.spec.active_deadline_seconds.is_some()
    {
        return false;
    }
    let counts = |of: &JobStatus| (census::counter(of.ready), census::counter(of.terminating));
    let lists_none = tracking::is_settled(status) && tracking::is_settled(stored);
    let others = JobStatus {
        active: stored.active,
        start_time: stored.start_time.clone(),
        ready: stored.ready,
        terminating: stored.terminating,
        uncounted_terminated_pods: stored.uncounted_terminated_pods.clone(),
        ..status.clone()
    };
    counts(status) == counts(stored) && lists_none && !differs(&others, stored)
}

/// The end that takes effect with these outcomes, or else a failure that is certain but still has
/// pods to delete. ([S18], [S19])
///
/// DIVERGES(upstream): a failure whose pods are not all deleted yet is stored as FailureTarget at
/// once. Upstream forgets it until they are. By then the pod that proved it may be gone. ([S18])
///
/// DIVERGES(upstream): a Job is not complete while the watch still has to show pods that it
/// created. Upstream counts only the pods that it sees. ([S19])
fn decide_end(plan: &PodPlan, outcomes: &PodOutcomes) -> (Option<Verdict>, Option<Verdict>) {
    let facts = &plan.facts;
    match &plan.verdict {
        Some(verdict) if outcomes.all_deleted && facts.expectations_satisfied => {
            (Some(verdict.clone()), None)
        }
        Some(verdict) => {
            let certain = verdict.end == End::Failure && !verdict.stored;
            (None, certain.then(|| verdict.clone()))
        }
        None => {
            let completion = verdict::completion(&facts.job, facts.succeeded, outcomes.active);
            (completion.filter(|_| facts.expectations_satisfied), None)
        }
    }
}

impl Settle {
    /// Counts the released pods, and finishes the Job if it may. `None` if nothing changes. ([C3],
    /// [T12], [T13], [T14])
    pub(super) fn after(
        &self,
        stored: &JobStatus,
        released: &HashSet<Uid>,
        all_released: bool,
    ) -> Option<Box<JobStatus>> {
        let mut status = stored.clone();
        tracking::settle(&mut status, &self.tracked, released, self.job.is_indexed());
        if let Some(verdict) = &self.end
            && all_released
            && tracking::is_settled(&status)
        {
            finish(&mut status, &self.job, verdict, self.now);
        }
        normalize(&mut status);
        differs(&status, stored).then(|| Box::new(status))
    }
}

impl StatusPlan {
    /// Pods that complete the index of an Indexed Job. No list in the status names them.
    pub(super) fn completing(&self) -> Vec<Uid> {
        let completes = |pod: &&Arc<Pod>| {
            self.settle.job.is_indexed() && pod.index.is_some() && pod.phase == Phase::Succeeded
        };
        self.release.iter().filter(completes).map(|pod| pod.uid.clone()).collect()
    }

    /// The second write if every call succeeds.
    pub fn expected_settle(&self) -> Option<Box<JobStatus>> {
        let stored = self.flush.as_deref().unwrap_or(&self.settle.job.status);
        let released = self.release.iter().map(|pod| pod.uid.clone()).collect();
        self.settle.after(stored, &released, true)
    }
}

impl PodOutcomes {
    /// The outcomes if every call succeeds.
    pub fn expected(plan: &PodPlan) -> Self {
        let outcomes = Self::before(&plan.facts);
        match &plan.pods {
            PodStage::Create(drafts) => Self { active: outcomes.active + drafts.len(), ..outcomes },
            PodStage::Delete { victims, .. } => outcomes.without(victims),
            PodStage::None
            | PodStage::FailPending(_)
            | PodStage::MarkFaults(_)
            | PodStage::Refuse(_) => outcomes,
        }
    }
}

/// One line, for logs and tests.
impl fmt::Display for StatusPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.flush, self.waits) {
            (Some(status), _) => write!(formatter, "write {}", status_text(status))?,
            (None, Some(wait)) => write!(formatter, "count new pods in {wait:#}")?,
            (None, None) => formatter.write_str("nothing to write")?,
        }
        if !self.release.is_empty() {
            write!(formatter, "; release {}", self.release.len())?;
        }
        match self.expected_settle() {
            Some(status) => write!(formatter, "; then write {}", status_text(&status)),
            None => Ok(()),
        }
    }
}

/// A status in one line.
pub fn status_text(status: &JobStatus) -> String {
    let conditions: Vec<&str> = status
        .conditions
        .iter()
        .flatten()
        .filter(|each| each.status == "True")
        .map(|each| each.type_.as_str())
        .collect();
    format!(
        "active {}, ready {}, terminating {}, succeeded {}, failed {}, conditions [{}]",
        status.active.unwrap_or(0),
        status.ready.unwrap_or(0),
        status.terminating.unwrap_or(0),
        status.succeeded.unwrap_or(0),
        status.failed.unwrap_or(0),
        conditions.join(", "),
    )
}

/// The growth of the status counters. ([M4], [M8])
pub(super) fn finished(job: &Job, old: &JobStatus, new: &JobStatus) -> Option<MetricEvent> {
    let gain = |of: &dyn Fn(&JobStatus) -> u32| of(new).saturating_sub(of(old));
    let indexes = |text: Option<&String>| {
        IndexSet::parse(text.map_or("", String::as_str), job.index_bound()).len()
    };
    let number = |value: Option<i32>| u32::try_from(census::counter(value)).unwrap_or(u32::MAX);
    let succeeded = if job.is_indexed() {
        gain(&|status| indexes(status.completed_indexes.as_ref()))
    } else {
        gain(&|status| number(status.succeeded))
    };
    let failed = gain(&|status| number(status.failed));
    let failed_indexes = job
        .spec
        .backoff_limit_per_index
        .map(|_| gain(&|status| indexes(status.failed_indexes.as_ref())));
    let any = succeeded > 0 || failed > 0 || failed_indexes.is_some_and(|indexes| indexes > 0);
    any.then_some(MetricEvent::PodsFinished { succeeded, failed, failed_indexes })
}
