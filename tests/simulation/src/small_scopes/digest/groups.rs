//! Digests Workloads and PodGroups. Their names follow from the Job.

use controller_core::job::{GroupStep, JobGroups};
use controller_core::view::{PodGroup, Workload};

use super::Digest;

impl Digest<'_> {
    pub(super) fn workload(&mut self, workload: &Workload) {
        self.put(12_u64);
        for template in &workload.templates {
            self.min_count(template.min_count);
        }
    }

    pub(super) fn pod_group(&mut self, group: &PodGroup) {
        self.put(13_u64);
        self.min_count(group.min_count);
    }

    fn min_count(&mut self, count: Option<i32>) {
        self.put(count.map_or(0, |count| u64::from(count.unsigned_abs()) + 1));
    }

    /// What a process knows of the Job's group.
    pub(super) fn groups(&mut self, groups: Option<&JobGroups>) {
        let Some(JobGroups { workloads, of_parent: _, pod_groups }) = groups else { return };
        self.put((workloads.len() * 16 + pod_groups.len()) as u64);
        for workload in workloads {
            self.workload(workload);
        }
        for group in pod_groups {
            self.pod_group(group);
        }
    }

    /// The size of what a call creates.
    pub(super) fn drafted_size(&mut self, step: &GroupStep) {
        match step {
            GroupStep::CreateWorkload(draft) => self.min_count(draft.min_count),
            GroupStep::CreatePodGroup(draft) => self.min_count(draft.template.min_count),
            _ => {}
        }
    }
}
