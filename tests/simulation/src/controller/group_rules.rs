//! Judges scheduling groups: a Job has at most one of each object, its pods are in it, and a group
//! that is disrupted as a whole starts anew as a whole.

use std::sync::Arc;

use controller_core::job::GroupStep;
use controller_core::view::{Job, Phase, Pod, PodGroup, Uid};
use epilogue_common::names::job_condition;
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;

use super::api::Api;
use super::ledger::Ledger;
use super::situations::Met;

impl Ledger {
    /// A call on a Workload or PodGroup of this Job has been carried out.
    pub(super) fn grouped(&mut self, api: &Api, job: &Job, step: &GroupStep, done: bool) {
        match step {
            GroupStep::CreatePodGroup(_) if done => self.met(Met::GroupMade),
            GroupStep::FindWorkload(_) | GroupStep::FindPodGroup(_) if done => {
                self.met(Met::GroupFound);
            }
            GroupStep::Resize(_) if done => self.met(Met::GroupResized),
            _ => {}
        }
        self.violations.extend(api.surplus_groups(job));
    }

    /// A pod of this Job was created. If the Job has a group, the pod is in it: without, it would
    /// never be scheduled together with the others.
    pub(super) fn joined(&mut self, api: &Api, job: &Job, pod: &Arc<Pod>) {
        if pod.group.is_some() {
            self.met(Met::GroupJoined);
        }
        // A Job that is gone has taken its group with it.
        if api.job(&job.uid).is_some() && !self.two_leaders {
            self.violations.extend(api.not_in_group(job, pod));
        }
    }

    /// A pod was created.
    pub(super) fn begun_anew(&mut self, api: &Api, job: &Job, pod: &Pod) {
        if pod.attempt > 0 {
            let only_failed = job.replaces_failed_only();
            self.met(if only_failed { Met::GroupOfDead } else { Met::GroupAnew });
        }
        if !self.two_leaders {
            let problem = api.begins_early(job, pod, |other| !self.is_exempt(other));
            self.violations.extend(problem);
        }
    }

    /// A pod is about to be released.
    pub(super) fn lost_alone(&mut self, api: &Api, planned: &Job, seen: &Pod) {
        if api.loses_group(planned, seen) {
            self.met(Met::GroupLost);
        }
        if !self.two_leaders {
            let problem = api.left_behind(planned, seen, |other| !self.is_exempt(other));
            self.violations.extend(problem);
        }
    }
}

/// Whether the pod's group is disrupted as a whole.
fn is_of_whole(api: &Api, pod: &Pod) -> bool {
    let group = pod.group.as_ref().and_then(|name| api.pod_groups.get(name));
    group.is_some_and(|group| group.is_disrupted_whole)
}

impl Api {
    /// The Workloads and PodGroups of a Job that has several of one kind.
    pub(crate) fn surplus_groups(&self, job: &Job) -> Option<String> {
        let is_its = |owner: &Option<Uid>| owner.as_ref() == Some(&job.uid);
        let workloads = self.workloads.values().filter(|it| is_its(&it.owner)).count();
        let groups = self.pod_groups.values().filter(|it| is_its(&it.owner)).count();
        let key = &job.key;
        let is_surplus = workloads > 1 || groups > 1;
        is_surplus.then(|| format!("{key} has {workloads} Workloads, {groups} PodGroups"))
    }

    /// A pod of a Job that is not in the group which the Job has, or in one although it has none.
    pub(crate) fn not_in_group(&self, job: &Job, pod: &Pod) -> Option<String> {
        let is_its = |group: &&Arc<PodGroup>| group.owner.as_ref() == Some(&job.uid);
        let group = self.pod_groups.values().find(is_its).map(|it| &it.key.1);
        let (joins, key) = (pod.group.as_ref(), &job.key);
        let name = group.map_or("none", |name| name);
        let fits = group == joins;
        (!fits).then(|| format!("a pod of {key} joins {joins:?}, its group is {name}"))
    }

    /// A new pod of a group that is disrupted as a whole, while pods of an earlier attempt that its
    /// process `knows` are active; where only failed pods are replaced, while they live.
    pub(crate) fn begins_early(
        &self,
        job: &Job,
        pod: &Pod,
        knows: impl Fn(&Uid) -> bool,
    ) -> Option<String> {
        let only_failed = job.replaces_failed_only();
        let lives = |it: &Pod| it.is_active() || only_failed && it.is_terminating();
        let is_old = |it: &Pod| lives(it) && it.attempt < pod.attempt && knows(&it.uid);
        let old = self.mates(job, pod, is_old).filter(|_| is_of_whole(self, pod))?;
        Some(format!("attempt {} of {} begins while {old:?} live", pod.attempt, job.key))
    }

    /// Whether a disrupted pod of a Job that goes on is of a group that is disrupted as a whole.
    pub(crate) fn loses_group(&self, planned: &Job, seen: &Pod) -> bool {
        let ends = [job_condition::SUCCESS_CRITERIA_MET, job_condition::FAILURE_TARGET];
        let is_over =
            |job: &Job| job.deleting || ends.iter().any(|kind| job.true_condition(kind).is_some());
        seen.has_condition(DISRUPTION_TARGET)
            && seen.node.is_some()
            && seen.phase != Phase::Succeeded
            && !planned.spec.suspend
            && !planned.deleting
            && !self.job(&planned.uid).is_some_and(|job| is_over(job))
            && is_of_whole(self, seen)
    }

    /// Such a pod that is released while pods of its attempt that its process `knows` are active.
    /// Once it is gone, nothing shows that they have to end.
    pub(crate) fn left_behind(
        &self,
        planned: &Job,
        seen: &Pod,
        knows: impl Fn(&Uid) -> bool,
    ) -> Option<String> {
        let is_left = |it: &Pod| it.is_active() && it.attempt <= seen.attempt && knows(&it.uid);
        let left =
            self.mates(planned, seen, is_left).filter(|_| self.loses_group(planned, seen))?;
        Some(format!("{} of {} is counted while {left:?} run", seen.uid, planned.key))
    }

    /// Such other pods of the Job in the group of this one, if any.
    fn mates(&self, job: &Job, pod: &Pod, holds: impl Fn(&Pod) -> bool) -> Option<Vec<Uid>> {
        let others = self.pods_of(&job.uid).filter(|it| it.uid != pod.uid);
        let mates = others.filter(|it| it.group == pod.group && holds(it));
        let mates: Vec<Uid> = mates.map(|it| it.uid.clone()).collect();
        (!mates.is_empty()).then_some(mates)
    }
}
