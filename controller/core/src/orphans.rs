//! Which pods lose the tracking finalizer because nobody will count them any more. (spec §3)

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use epilogue_common::names::MANAGED_BY;

use crate::view::{Job, JobKey, Pod, Selector, Uid};

/// Work for the queue of orphans. ([Q6])
///
/// DIVERGES(upstream): a pod is named by its UID, so that a namesake that came later is left
/// alone. ([O1])
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Orphans {
    /// One pod.
    Pod(Uid),
    /// All pods of a Job that has finished or gone.
    OfJob(FormerJob),
}

/// What is left to know of a Job when its pods are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerJob {
    /// The Job's UID.
    pub uid: Uid,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its selector.
    pub selector: Selector,
}

impl FormerJob {
    /// What is to be known of this Job.
    pub fn of(job: &Job) -> Self {
        Self {
            uid: job.uid.clone(),
            namespace: Arc::clone(&job.key.namespace),
            selector: job.spec.selector.clone(),
        }
    }

    /// Whether a pod of its namespace is to be looked at.
    ///
    /// DIVERGES(upstream): pods that name the Job as their controller are looked at even when
    /// the selector does not match them, for else their finalizer would stay. ([O1])
    pub fn concerns(&self, pod: &Pod) -> bool {
        pod.is_owned_by(&self.uid) || pod.matches(&self.selector)
    }
}

impl Hash for FormerJob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.uid.hash(state);
    }
}

/// Whether a Job is run by somebody else. (spec §22)
pub fn is_managed_externally(job: &Job, manage_all_jobs: bool) -> bool {
    let ours = job.spec.managed_by.as_deref() == Some(MANAGED_BY)
        || (manage_all_jobs && job.is_managed_by_reference());
    !ours
}

/// Whether to remove the tracking finalizer from a pod. ([O2])
///
/// `owner` looks up the Job that a controller reference names.
///
/// DIVERGES(upstream): the reference takes the finalizer from any pod without a controller, or
/// whose owner is gone. Where another controller runs the Jobs that are not ours, its pods are
/// told from ours by nothing, and it cleans up behind its own; we do so for all only as the one
/// Job controller of the cluster. (spec §22 b, [O3])
pub fn may_release<'a>(pod: &Pod, owner: impl FnOnce(&JobKey) -> Option<&'a Arc<Job>>) -> bool {
    if !pod.tracked {
        return false;
    }
    let Some(reference) = &pod.owner else { return true };
    if &*reference.kind != "Job" || &*reference.api_version != "batch/v1" {
        return false;
    }
    let key = JobKey::new(Arc::clone(&pod.namespace), &*reference.name);
    owner(&key).filter(|job| job.uid == reference.uid).is_none_or(|job| job.is_finished())
}
