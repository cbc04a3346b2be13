//! The stages of a sync that see to the scheduling group of its Job's pods.

use std::sync::Arc;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::{Next, Progress, Stage, stop};
use crate::job::group::stage::{self, Created};
use crate::job::group::{
    GroupPlan, GroupStep, PodGroupDraft, Resize, SchedulingGroup, WorkloadPlan,
};
use crate::job::pods::PodStage;
use crate::job::steps::{Answer, MetricEvent, PodDraft, SideEffect, Step};

impl Progress {
    /// The scheduling group comes before the pods that join it.
    pub(super) fn begin_group(&mut self) -> Next {
        let creates = matches!(self.plan.pods, PodStage::Create(_));
        let event = stage::not_grouped(&self.plan.group, &self.job, creates);
        self.side_effects.extend(event.map(SideEffect::Event));
        match self.plan.group.clone() {
            GroupPlan::Nothing | GroupPlan::Alone(_) => self.begin_pods(),
            GroupPlan::Create(WorkloadPlan::Create(draft)) => {
                (Stage::Workload, vec![Step::Group(GroupStep::CreateWorkload(draft))])
            }
            GroupPlan::Create(WorkloadPlan::Of(draft)) => pod_group(draft),
            GroupPlan::Join(group, resizes) => {
                self.group = Some(group);
                let steps = resizes.iter().cloned().map(GroupStep::Resize);
                let steps = steps.map(Step::Group).collect();
                (Stage::Resize(resizes), steps)
            }
            GroupPlan::Await(..) => (Stage::Done(None), Vec::new()),
            GroupPlan::Refuse(problem) => {
                self.count(MetricEvent::SchedulingObjectsSynced { ok: false });
                stop(Failure::new(FailureKind::Invalid, problem))
            }
        }
    }

    pub(super) fn workload_created(&mut self, outcomes: Vec<Outcome<Answer>>) -> Next {
        match stage::workload(&self.job, answered(outcomes)) {
            Ok((side_effects, draft)) => {
                self.side_effects.extend(side_effects);
                pod_group(draft)
            }
            Err(failure) => self.not_grouped("Workload", failure),
        }
    }

    pub(super) fn pod_group_created(
        &mut self,
        draft: &PodGroupDraft,
        outcomes: Vec<Outcome<Answer>>,
    ) -> Next {
        match stage::created_group(&self.job, draft, answered(outcomes)) {
            Ok((side_effects, Created::Group(group))) => {
                self.side_effects.extend(side_effects);
                self.group = Some(Arc::new(SchedulingGroup::of(&group)));
                self.count(MetricEvent::SchedulingObjectsSynced { ok: true });
                self.begin_pods()
            }
            Ok((_, Created::Taken(draft))) => pod_group(draft),
            Err(failure) => self.not_grouped("PodGroup", failure),
        }
    }

    /// The pod as it joins the group.
    pub(super) fn grouped(&self, draft: &PodDraft) -> PodDraft {
        PodDraft { group: self.group.clone(), ..draft.clone() }
    }

    /// A pod that starts before its group would never be in it, so the sync ends here.
    ///
    /// DIVERGES(upstream): a Job that says nothing about its scheduling goes on without a group if
    /// the API refuses one. A quota or a webhook for Workloads would otherwise stop each Job of the
    /// namespace, for a group that changes nothing. (W4)
    fn not_grouped(&mut self, kind: &str, failure: Failure) -> Next {
        let event = stage::not_created(kind, &self.job, &failure);
        self.side_effects.extend(event.map(SideEffect::Event));
        self.count(MetricEvent::SchedulingObjectsSynced { ok: false });
        let asks = self.job.scheduling.as_ref().is_some_and(|it| it.asks_for_group());
        if asks || !stage::is_refused(&failure) { stop(failure) } else { self.begin_pods() }
    }

    pub(super) fn resized(&mut self, resizes: &[Resize], outcomes: Vec<Outcome<Answer>>) -> Next {
        let (side_effects, failure) = stage::resized(&self.job, resizes, outcomes);
        self.side_effects.extend(side_effects);
        self.count(MetricEvent::SchedulingObjectsSynced { ok: failure.is_none() });
        self.pod_failure = failure;
        self.begin_pods()
    }
}

/// The outcome of the only call of a stage.
fn answered(outcomes: Vec<Outcome<Answer>>) -> Outcome<Answer> {
    let none = || Err(Failure::new(FailureKind::Other, "no call was made"));
    outcomes.into_iter().next().unwrap_or_else(none)
}

fn pod_group(draft: PodGroupDraft) -> Next {
    let step = GroupStep::CreatePodGroup(draft.clone());
    (Stage::PodGroup(draft), vec![Step::Group(step)])
}
