//! Makes the second plan of a sync: the status, the finalizers, and the end of the Job. The order
//! of its stages makes the counting exact: flush → release → settle.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::JobStatus;

use super::plan::PodPlan;
use super::pods::PodStage;
use super::status::{self, PodOutcomes};
use super::steps::EventDraft;
use super::tracking::{self, Accounting};
use super::verdict::{self, End, Verdict};
use crate::view::{Job, Pod, Uid};

/// What a sync writes once the calls on pods are answered.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusPlan {
    /// The first write of the status; `None` if it would change nothing.
    pub flush: Option<Box<JobStatus>>,
    /// Pods that lose their finalizer once the first write is stored.
    pub release: Vec<Arc<Pod>>,
    /// The second write of the status.
    pub settle: Settle,
    /// The event of a Job that is suspended or resumed.
    pub event: Option<EventDraft>,
    /// Rules of the failure policy that matched, by action.
    pub handled: BTreeMap<&'static str, u32>,
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
    status::start(&mut status, facts);
    let ends = plan.verdict.is_some() || end.is_some();
    let event = if plan.manages_pods && !ends { status::suspend(&mut status, facts) } else { None };
    status::count_pods(&mut status, outcomes);
    status::count_disruptions(&mut status, facts);
    let Accounting { release, handled, cut_off, tracked } =
        Accounting::enter(plan, end.as_ref(), &mut status);
    for verdict in end.iter().chain(&announced) {
        status::announce(&mut status, verdict, facts.now);
    }
    status::normalize(&mut status);
    StatusPlan {
        flush: status::differs(&status, &facts.job.status).then(|| Box::new(status)),
        release,
        settle: Settle {
            end: end.filter(|_| !cut_off && outcomes.terminating == 0),
            job: Arc::clone(&facts.job),
            tracked,
            now: facts.now,
        },
        event,
        handled,
    }
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
            status::finish(&mut status, &self.job, verdict, self.now);
        }
        status::normalize(&mut status);
        status::differs(&status, stored).then(|| Box::new(status))
    }
}

impl StatusPlan {
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
            PodStage::None | PodStage::FailPending(_) | PodStage::Refuse(_) => outcomes,
        }
    }
}

/// One line, for logs and tests.
impl fmt::Display for StatusPlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.flush {
            Some(status) => write!(formatter, "write {}", text(status))?,
            None => formatter.write_str("nothing to write")?,
        }
        if !self.release.is_empty() {
            write!(formatter, "; release {}", self.release.len())?;
        }
        match self.expected_settle() {
            Some(status) => write!(formatter, "; then write {}", text(&status)),
            None => Ok(()),
        }
    }
}

/// A status in one line.
pub(super) fn text(status: &JobStatus) -> String {
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
