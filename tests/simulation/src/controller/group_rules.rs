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

    /// A pod was created. Where the group is disrupted as a whole, no pod of an earlier attempt is
    /// active by then; if only failed pods are replaced, none is alive.
    pub(super) fn begun_anew(&mut self, api: &Api, job: &Job, pod: &Pod) {
        if pod.attempt == 0 || !is_of_whole(api, pod) {
            return;
        }
        let only_failed = job.replaces_failed_only();
        self.met(if only_failed { Met::GroupOfDead } else { Met::GroupAnew });
        let lives = |it: &&Arc<Pod>| it.is_active() || only_failed && it.is_terminating();
        let before = self.members(api, job, pod).filter(lives);
        let before = before.filter(|it| it.attempt < pod.attempt);
        let before: Vec<Uid> = before.map(|it| it.uid.clone()).collect();
        if !before.is_empty() && !self.two_leaders {
            let (key, attempt) = (&job.key, pod.attempt);
            let problem = format!("attempt {attempt} of {key} begins while {before:?} live");
            self.violations.push(problem);
        }
    }

    /// A disrupted pod of a Job that goes on is about to be released. Where its group is disrupted
    /// as a whole, no other pod of its attempt is active any more: once it is gone, nothing shows
    /// that they have to end.
    pub(super) fn lost_alone(&mut self, api: &Api, planned: &Job, job: &Job, seen: &Pod) {
        let is_lost = seen.has_condition(DISRUPTION_TARGET)
            && seen.node.is_some()
            && seen.phase != Phase::Succeeded;
        let ends = [job_condition::SUCCESS_CRITERIA_MET, job_condition::FAILURE_TARGET];
        let ends = ends.iter().any(|kind| job.true_condition(kind).is_some());
        let goes_on = !planned.deleting && !planned.spec.suspend && !ends;
        if !is_lost || !goes_on || !is_of_whole(api, seen) {
            return;
        }
        let left = self.members(api, planned, seen);
        let left = left.filter(|it| it.is_active() && it.attempt <= seen.attempt);
        let left: Vec<Uid> = left.map(|it| it.uid.clone()).collect();
        if left.is_empty() {
            self.met(Met::GroupLost);
        } else if !self.two_leaders {
            let problem = format!("{} of {} is counted while {left:?} run", seen.uid, job.key);
            self.violations.push(problem);
        }
    }

    /// The other pods of the Job in the group of this one that the process could know of.
    fn members<'a>(
        &'a self,
        api: &'a Api,
        job: &'a Job,
        pod: &'a Pod,
    ) -> impl Iterator<Item = &'a Arc<Pod>> {
        let of_group = api.pods_of(&job.uid).filter(|it| it.group == pod.group);
        of_group.filter(|it| it.uid != pod.uid && !self.is_exempt(&it.uid))
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
}
