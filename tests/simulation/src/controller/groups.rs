//! Models the API for Workloads and PodGroups: names are unique, sizes change by tested patches,
//! and the objects go with their Job.

use std::collections::BTreeMap;
use std::sync::Arc;

use controller_core::job::{Answer, GroupStep, Resized, pod_group_body, workload_body};
use controller_core::view::{Job, PodGroup, Uid, Workload};
use epilogue_common::outcome::{Failure, FailureKind, Outcome};

use super::api::{Api, Sighting};

impl Api {
    /// Carries out a call on a Workload or a PodGroup.
    pub(crate) fn group(&mut self, job: &Job, step: &GroupStep) -> Outcome<Answer> {
        match step {
            GroupStep::CreateWorkload(draft) => {
                free(&self.workloads, &draft.name)?;
                let read = Workload::read(&text(workload_body(job, draft))).map_err(invalid)?;
                let workload = self.store_workload(read);
                Ok(Answer::Workload(workload, true))
            }
            GroupStep::CreatePodGroup(draft) => {
                free(&self.pod_groups, &draft.name)?;
                let read = PodGroup::read(&text(pod_group_body(job, draft))).map_err(invalid)?;
                let group = self.store_pod_group(read);
                Ok(Answer::PodGroup(group, true))
            }
            GroupStep::FindWorkload(name) => {
                Ok(Answer::Workload(Arc::clone(found(&self.workloads, name)?), false))
            }
            GroupStep::FindPodGroup(name) => {
                Ok(Answer::PodGroup(Arc::clone(found(&self.pod_groups, name)?), false))
            }
            GroupStep::Resize(resize) if resize.object == Resized::Workload => {
                let mut workload = Workload::clone(found(&self.workloads, &resize.key.1)?);
                let template = workload.templates.first_mut().ok_or_else(|| invalid("no path"))?;
                test(&workload.uid, template.min_count, (&resize.uid, resize.from))?;
                template.min_count = Some(resize.to);
                Ok(Answer::Workload(self.store_workload(workload), false))
            }
            GroupStep::Resize(resize) => {
                let mut group = PodGroup::clone(found(&self.pod_groups, &resize.key.1)?);
                test(&group.uid, group.min_count, (&resize.uid, resize.from))?;
                group.min_count = Some(resize.to);
                Ok(Answer::PodGroup(self.store_pod_group(group), false))
            }
        }
    }

    fn store_workload(&mut self, mut workload: Workload) -> Arc<Workload> {
        workload.version = self.next_version();
        if workload.uid.as_str().is_empty() {
            workload.uid = format!("workload-{:05}", workload.version.0).into();
        }
        let workload = Arc::new(workload);
        self.workload_log.push(Sighting::Shown(Arc::clone(&workload)));
        self.workloads.insert(Arc::clone(&workload.key.1), Arc::clone(&workload));
        workload
    }

    fn store_pod_group(&mut self, mut group: PodGroup) -> Arc<PodGroup> {
        group.version = self.next_version();
        if group.uid.as_str().is_empty() {
            group.uid = format!("pod-group-{:05}", group.version.0).into();
        }
        let group = Arc::new(group);
        self.pod_group_log.push(Sighting::Shown(Arc::clone(&group)));
        self.pod_groups.insert(Arc::clone(&group.key.1), Arc::clone(&group));
        group
    }

    /// The garbage collector removes what this Job controlled.
    pub(super) fn remove_groups(&mut self, job: &Uid) {
        let of_job = |owner: &Option<Uid>| owner.as_ref() == Some(job);
        for workload in taken(&mut self.workloads, |it: &Workload| of_job(&it.owner)) {
            let version = self.next_version();
            self.workload_log.push(Sighting::Gone(workload, version));
        }
        for group in taken(&mut self.pod_groups, |it: &PodGroup| of_job(&it.owner)) {
            let version = self.next_version();
            self.pod_group_log.push(Sighting::Gone(group, version));
        }
    }
}

/// Takes these objects out.
fn taken<T>(stored: &mut BTreeMap<Arc<str>, Arc<T>>, goes: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
    let gone: Vec<Arc<T>> = stored.values().filter(|it| goes(it)).cloned().collect();
    stored.retain(|_, it| !goes(it));
    gone
}

fn text(body: Vec<u8>) -> String {
    String::from_utf8(body).expect("must be JSON")
}

fn free<T>(stored: &BTreeMap<Arc<str>, T>, name: &str) -> Outcome<()> {
    if stored.contains_key(name) {
        return Err(Failure::new(FailureKind::AlreadyExists, format!("{name} already exists")));
    }
    Ok(())
}

fn found<'a, T>(stored: &'a BTreeMap<Arc<str>, T>, name: &str) -> Outcome<&'a T> {
    let gone = || Failure::new(FailureKind::NotFound, format!("{name} not found"));
    stored.get(name).ok_or_else(gone)
}

/// The tests of a JSON patch.
fn test(uid: &Uid, has: Option<i32>, (of, from): (&Uid, i32)) -> Outcome<()> {
    if uid == of && has == Some(from) { Ok(()) } else { Err(invalid("a test failed")) }
}

fn invalid(problem: impl std::fmt::Display) -> Failure {
    Failure::new(FailureKind::Invalid, problem.to_string())
}
