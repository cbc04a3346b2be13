//! Finds the Jobs that follow the Workload of a controller.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::groups::Controller;
use crate::view::{Job, JobKey, TypedReference};

/// Jobs by the controller whose Workload they follow: their parent, where that leaves the PodGroup
/// to them.
#[derive(Clone, Debug, Default)]
pub(super) struct Followers(HashMap<Controller, BTreeSet<JobKey>>);

impl Followers {
    /// The Jobs that follow the Workload of this controller.
    pub(super) fn of(&self, controller: &Controller) -> impl Iterator<Item = &JobKey> {
        self.0.get(controller).into_iter().flatten()
    }

    /// The Job is this now.
    pub(super) fn follow(&mut self, old: Option<&Job>, job: &Job) {
        let (before, now) = (old.and_then(followed), followed(job));
        if before == now {
            return;
        }
        self.drop_of(before, &job.key);
        if let Some(controller) = now {
            self.0.entry(controller).or_default().insert(job.key.clone());
        }
    }

    /// The Job is gone.
    pub(super) fn remove(&mut self, job: &Job) {
        self.drop_of(followed(job), &job.key);
    }

    fn drop_of(&mut self, controller: Option<Controller>, key: &JobKey) {
        let Some(controller) = controller else { return };
        if let Some(jobs) = self.0.get_mut(&controller) {
            jobs.remove(key);
            if jobs.is_empty() {
                self.0.remove(&controller);
            }
        }
    }

    /// Whether these Jobs are found, and no others.
    pub(super) fn is_sound<'a>(&self, jobs: impl Iterator<Item = &'a Arc<Job>>) -> bool {
        let all = jobs.filter_map(|job| Some((followed(job)?, &job.key)));
        let (mut count, mut sound) = (0, true);
        for (controller, key) in all {
            count += 1;
            sound &= self.0.get(&controller).is_some_and(|jobs| jobs.contains(key));
        }
        sound && count == self.0.values().map(BTreeSet::len).sum::<usize>()
    }
}

/// The controller whose Workload the Job follows.
fn followed(job: &Job) -> Option<Controller> {
    let scheduling = job.scheduling.as_ref().filter(|_| !job.is_finished())?;
    let controller: &TypedReference = scheduling.controller.as_ref()?;
    scheduling.group_template.as_ref()?;
    Some((Arc::clone(&job.key.namespace), controller.clone()))
}
