//! Decides which pods lose the tracking finalizer because no controller will count them.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::job::is_ours;
use crate::view::{Job, JobKey, Pod, Selector, Uid};
use crate::workqueue::Key;

/// Work for the queue of orphans. ([Q6])
///
/// DIVERGES(upstream): a pod is named by its UID, so that a later pod of the same name is left
/// alone. ([O1])
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Orphans {
    /// One pod, and its namespace.
    Pod(Arc<str>, Uid),
    /// All pods of a Job that is finished or gone.
    OfJob(FormerJob),
}

/// The facts about a Job that are needed to find its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerJob {
    /// The Job's UID.
    pub uid: Uid,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its selector.
    pub selector: Selector,
}

impl Key for Orphans {
    fn namespace(&self) -> &str {
        match self {
            Self::Pod(namespace, _) => namespace,
            Self::OfJob(former) => &former.namespace,
        }
    }
}

impl FormerJob {
    /// The facts about this Job.
    pub fn of(job: &Job) -> Self {
        Self {
            uid: job.uid.clone(),
            namespace: Arc::clone(&job.key.namespace),
            selector: job.spec.selector.clone(),
        }
    }

    /// Whether a pod of its namespace needs a check.
    ///
    /// DIVERGES(upstream): pods that name the Job as their controller are checked even when the
    /// selector does not match them. Otherwise their finalizer would stay. ([O1])
    pub fn concerns(&self, pod: &Pod) -> bool {
        pod.is_owned_by(&self.uid) || pod.matches(&self.selector)
    }
}

impl Hash for FormerJob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.uid.hash(state);
    }
}

/// Whether to remove the tracking finalizer from a pod. That holds when it has no controller, or a
/// Job that is gone or is ours and finished. A plain owner reference does not protect it. ([O2],
/// [O3])
///
/// `owner` finds a Job.
pub fn may_remove_finalizer<'a>(
    pod: &Pod,
    manage_all_jobs: bool,
    owner: impl FnOnce(&JobKey) -> Option<&'a Arc<Job>>,
) -> bool {
    if !pod.tracked {
        return false;
    }
    let Some(reference) = &pod.owner else { return true };
    if &*reference.kind != "Job" || &*reference.api_version != "batch/v1" {
        return false;
    }
    let key = JobKey::new(Arc::clone(&pod.namespace), Arc::clone(&reference.name));
    match owner(&key).filter(|job| job.uid == reference.uid) {
        None => true,
        Some(job) => is_ours(job, manage_all_jobs) && job.is_finished(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_handlers::samples::{finished, job, owned, pod};
    use serde_json::json;

    fn freed(pod: &Pod, job: Option<Job>) -> bool {
        let job = job.map(Arc::new);
        may_remove_finalizer(pod, false, |key| job.as_ref().filter(|job| job.key == *key))
    }

    #[test]
    fn a_pod_without_controller_or_with_a_job_that_is_gone_loses_its_finalizer() {
        let stray = pod(json!({"metadata": {
            "finalizers": ["batch.kubernetes.io/job-tracking"],
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "u"}],
        }}));
        assert!(freed(&stray, None), "a plain owner reference does not protect");
        assert!(freed(&owned("a", "uid-a"), None));
        let namesake = job(json!({"metadata": {"name": "a", "uid": "other"}}));
        assert!(freed(&owned("a", "uid-a"), Some(namesake)));
    }

    #[test]
    fn the_pods_of_a_running_job_keep_it_and_those_of_a_finished_one_lose_it() {
        let running = job(json!({"metadata": {"name": "a", "uid": "uid-a"}}));
        assert!(!freed(&owned("a", "uid-a"), Some(running)));
        assert!(freed(&owned("a", "uid-a"), Some(finished("a", "uid-a"))));
    }

    #[test]
    fn the_pods_of_others_are_left_alone() {
        let mut foreign = finished("a", "uid-a");
        foreign.spec.managed_by = Some("example.com/other".to_owned());
        assert!(!freed(&owned("a", "uid-a"), Some(foreign)));
        let mut reference = finished("a", "uid-a");
        reference.spec.managed_by = None;
        assert!(!freed(&owned("a", "uid-a"), Some(reference.clone())));
        let reference = Arc::new(reference);
        assert!(may_remove_finalizer(&owned("a", "uid-a"), true, |_| Some(&reference)));
        for (version, kind) in [("batch/v1", "CronJob"), ("example/v1", "Job")] {
            let other = pod(json!({"metadata": {
                "finalizers": ["batch.kubernetes.io/job-tracking"],
                "ownerReferences": [{"apiVersion": version, "kind": kind, "name": "a", "uid": "u",
                                     "controller": true}],
            }}));
            assert!(!freed(&other, None), "{version} {kind}");
        }
    }

    #[test]
    fn a_pod_without_the_finalizer_needs_nothing() {
        assert!(!freed(&pod(json!({})), None));
    }

    #[test]
    fn a_former_job_concerns_its_own_pods_and_those_that_it_selects() {
        let former = FormerJob::of(&job(json!({"metadata": {"name": "a", "uid": "uid-a"},
            "spec": {"selector": {"matchLabels": {"job": "a"}}}})));
        assert!(former.concerns(&owned("a", "uid-a")));
        assert!(former.concerns(&pod(json!({"metadata": {"labels": {"job": "a"}}}))));
        assert!(!former.concerns(&owned("b", "uid-b")));
    }
}
