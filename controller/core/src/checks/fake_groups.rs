//! The Workloads and PodGroups of the simulated API.

use std::sync::Arc;

use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::fake_api::FakeApi;
use crate::job::{Answer, GroupStep, Resized, pod_group_body, workload_body};
use crate::view::{PodGroup, Uid, Workload};

impl FakeApi {
    /// Carries out a step on a Workload or a PodGroup. Only the Job's own have its name.
    pub(super) fn group(&mut self, step: &GroupStep) -> Outcome<Answer> {
        let version = self.next_version();
        let uid = Uid::from(&*format!("uid-{version}"));
        let job = Arc::clone(&self.job);
        let Some(groups) = &mut self.groups else {
            return Err(Failure::new(FailureKind::NotFound, "the API serves no Workloads"));
        };
        match step {
            GroupStep::CreateWorkload(draft) => {
                if groups.workloads.iter().any(|it| *it.key.1 == *draft.name) {
                    return Err(exists(&draft.name));
                }
                let body = String::from_utf8(workload_body(&job, draft)).map_err(odd)?;
                let created = Workload { uid, version, ..Workload::read(&body).map_err(odd)? };
                let created = Arc::new(Workload { owner: Some(job.uid.clone()), ..created });
                groups.workloads.push(Arc::clone(&created));
                Ok(Answer::Workload(created, true))
            }
            GroupStep::FindWorkload(name) => {
                let found = groups.workloads.iter().find(|it| *it.key.1 == **name);
                found.map(|it| Answer::Workload(Arc::clone(it), false)).ok_or_else(|| gone(name))
            }
            GroupStep::CreatePodGroup(draft) => {
                if groups.pod_groups.iter().any(|it| *it.key.1 == *draft.name) {
                    return Err(exists(&draft.name));
                }
                let body = String::from_utf8(pod_group_body(&job, draft)).map_err(odd)?;
                let created = PodGroup { uid, version, ..PodGroup::read(&body).map_err(odd)? };
                let created = Arc::new(PodGroup { owner: Some(job.uid.clone()), ..created });
                groups.pod_groups.push(Arc::clone(&created));
                Ok(Answer::PodGroup(created, true))
            }
            GroupStep::FindPodGroup(name) => {
                let found = groups.pod_groups.iter().find(|it| *it.key.1 == **name);
                found.map(|it| Answer::PodGroup(Arc::clone(it), false)).ok_or_else(|| gone(name))
            }
            GroupStep::Resize(resize) if resize.object == Resized::Workload => {
                let found = groups.workloads.iter_mut().find(|it| it.uid == resize.uid);
                let workload = found.ok_or_else(|| gone(&resize.key.1))?;
                let changed = Arc::make_mut(workload);
                changed.version = version;
                for template in &mut changed.templates {
                    test(template.min_count, resize.from)?;
                    template.min_count = Some(resize.to);
                }
                Ok(Answer::Workload(Arc::clone(workload), false))
            }
            GroupStep::Resize(resize) => {
                let found = groups.pod_groups.iter_mut().find(|it| it.uid == resize.uid);
                let group = found.ok_or_else(|| gone(&resize.key.1))?;
                test(group.min_count, resize.from)?;
                let changed = Arc::make_mut(group);
                (changed.version, changed.min_count) = (version, Some(resize.to));
                Ok(Answer::PodGroup(Arc::clone(group), false))
            }
        }
    }

    /// The Job's scheduling objects in short: what a crash must not multiply. The size of a
    /// PodGroup may be any between the pods that are left and what the Job asks for, by what
    /// awaited its node when.
    pub(super) fn groups_text(&self) -> String {
        let Some(groups) = &self.groups else { return String::new() };
        let workloads = groups.workloads.iter().map(|it| {
            let sizes: Vec<Option<i32>> = it.templates.iter().map(|it| it.min_count).collect();
            format!(" Workload {} {sizes:?}", it.key.1)
        });
        let pod_groups = groups.pod_groups.iter();
        let pod_groups =
            pod_groups.map(|it| format!(" PodGroup {} gang: {}", it.key.1, it.min_count.is_some()));
        workloads.chain(pod_groups).collect()
    }
}

fn test(has: Option<i32>, from: i32) -> Outcome<()> {
    if has == Some(from) {
        return Ok(());
    }
    Err(Failure::new(FailureKind::Invalid, "the test of minCount failed"))
}

fn exists(name: &str) -> Failure {
    Failure::new(FailureKind::AlreadyExists, format!("{name} already exists"))
}

fn gone(name: &str) -> Failure {
    Failure::new(FailureKind::NotFound, format!("{name} not found"))
}

fn odd(error: impl std::fmt::Display) -> Failure {
    Failure::new(FailureKind::Invalid, format!("the API would refuse the body: {error}"))
}
