//! Defines the input of a plan: the Job, its pods, the process's memory, the time and the settings.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::memory::Memory;
use crate::view::{Job, Pod, Version};

/// Everything that one sync of a Job may depend on.
#[derive(Clone, Copy, Debug)]
pub struct SyncInput<'a> {
    /// The Job.
    pub job: &'a Arc<Job>,
    /// The pods that name the Job as their controller, and those of its namespace without a
    /// controller.
    pub pods: &'a [Arc<Pod>],
    /// The process's memory of this Job.
    pub memory: &'a Memory,
    /// How far the watches have come.
    pub seen: Versions,
    /// The current time.
    pub now: Timestamp,
    /// The process's settings.
    pub settings: &'a Settings,
}

/// Versions of the two kinds that the controller watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// The version of Jobs.
    pub jobs: Version,
    /// The version of pods.
    pub pods: Version,
}

/// The controller's settings, named like the flags.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `--manage-all-jobs`: also Jobs that kube-controller-manager would run.
    pub manage_all_jobs: bool,
    /// `--default-job-pod-failure-backoff`.
    pub default_job_pod_failure_backoff: SignedDuration,
    /// `--max-job-pod-failure-backoff`.
    pub max_job_pod_failure_backoff: SignedDuration,
    /// `--max-uncounted-pods`: pods accounted per sync.
    pub max_uncounted_pods: usize,
    /// `--max-pod-create-delete-per-sync`.
    pub max_pod_create_delete_per_sync: usize,
    /// `--expectations-timeout`.
    pub expectations_timeout: SignedDuration,
    /// Pods in the first batch of a slow start.
    pub slow_start_initial_batch: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            manage_all_jobs: false,
            default_job_pod_failure_backoff: SignedDuration::from_secs(10),
            max_job_pod_failure_backoff: SignedDuration::from_secs(600),
            max_uncounted_pods: 500,
            max_pod_create_delete_per_sync: 500,
            expectations_timeout: SignedDuration::from_mins(5),
            slow_start_initial_batch: 1,
        }
    }
}

impl Settings {
    /// The longest wait after a failure.
    pub(super) fn max_delay(&self) -> SignedDuration {
        self.max_job_pod_failure_backoff.max(self.default_job_pod_failure_backoff)
    }
}

impl Versions {
    /// The newer version of each kind.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { jobs: self.jobs.max(other.jobs), pods: self.pods.max(other.pods) }
    }
}
