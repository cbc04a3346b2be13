//! Judges scheduling groups: a Job has at most one of each object, and its pods are in it.

use std::sync::Arc;

use controller_core::job::GroupStep;
use controller_core::view::{Job, Pod};

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
        let workloads = api.workloads.values().filter(|it| it.owner.as_ref() == Some(&job.uid));
        let groups = api.pod_groups.values().filter(|it| it.owner.as_ref() == Some(&job.uid));
        let (workloads, groups) = (workloads.count(), groups.count());
        if workloads > 1 || groups > 1 {
            let key = &job.key;
            self.violations.push(format!("{key} has {workloads} Workloads, {groups} PodGroups"));
        }
    }

    /// A pod of this Job was created. If the Job has a group, the pod is in it: without, it would
    /// never be scheduled together with the others.
    pub(super) fn joined(&mut self, api: &Api, job: &Job, pod: &Arc<Pod>) {
        let group = api.pod_groups.values().find(|it| it.owner.as_ref() == Some(&job.uid));
        let joins = pod.group.as_ref();
        let fits = group.map(|it| &it.key.1) == joins;
        if joins.is_some() {
            self.met(Met::GroupJoined);
        }
        // A Job that is gone has taken its group with it.
        if !fits && api.job(&job.uid).is_some() && !self.two_leaders {
            let (key, name) = (&job.key, group.map_or("none", |it| &it.key.1));
            self.violations.push(format!("a pod of {key} joins {joins:?}, its group is {name}"));
        }
    }
}
