//! What a plan is made from: the Job, its pods, what the process remembers, the time and the
//! settings.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::view::{Job, Pod, Uid, Version};

/// Everything that one sync of a Job may depend on.
#[derive(Clone, Copy, Debug)]
pub struct SyncInput<'a> {
    /// The Job.
    pub job: &'a Arc<Job>,
    /// The pods that name the Job as their controller, and those of its namespace without any.
    pub pods: &'a [Arc<Pod>],
    /// What the process remembers of this Job.
    pub memory: &'a Memory,
    /// How far the watches have come.
    pub seen: Versions,
    /// The current time.
    pub now: Timestamp,
    /// The process's settings.
    pub settings: &'a Settings,
}

/// What the process remembers of one Job (by UID) between syncs. Losing it costs time, never
/// truth. (spec §4)
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Pods that we created or deleted and whose watch event has not come.
    pub expectations: Expectations,
    /// Pods whose finalizer we removed and whose watch event has not come. ([E2])
    pub releases: HashSet<Uid>,
    /// Whether the write that finished the Job succeeded. ([E3])
    pub finished: bool,
    /// Failures since the last success. ([E4])
    pub backoff: Option<BackoffRecord>,
    /// Problems of the annotations that an event has told.
    pub told: Vec<String>,
    /// The newest versions that our own writes were answered with. ([Z1])
    pub written: Versions,
    /// The newest version of the Job in which pods were counted, as the watch showed it, and when.
    pub counted: Option<(Version, Timestamp)>,
}

/// Pods that a watch has yet to show as we left them. ([E1])
///
/// DIVERGES(upstream): kept by UID, not as two counters, so that neither a repeated event nor a
/// foreign pod can settle what it has nothing to do with. (spec §29 items 3 and 10)
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expectations {
    /// Created by us, not seen yet.
    pub created: HashSet<Uid>,
    /// Deleted by us, not seen as terminating yet.
    pub deleted: HashSet<Uid>,
    /// When the last one was added.
    pub since: Option<Timestamp>,
}

/// Failures of a Job's pods since the last success, and when the last one was. ([E4])
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackoffRecord {
    /// How many pods failed since the last success.
    pub failures: u32,
    /// When the last of them finished.
    pub last_failure: Option<Timestamp>,
    /// Disruptions that cost no time.
    pub free_taken: u32,
    /// When the first of them was; after an hour they are counted anew.
    pub free_since: Option<Timestamp>,
}

/// Versions of the two kinds that the controller watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Of Jobs.
    pub jobs: Version,
    /// Of pods.
    pub pods: Version,
}

/// The controller's tunables, named as the flags are. (spec §1.1)
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

impl Expectations {
    /// Whether nothing is awaited, or has been for too long.
    pub fn satisfied(&self, now: Timestamp, timeout: SignedDuration) -> bool {
        self.left(now, timeout) <= SignedDuration::ZERO
    }

    /// How long they are still awaited, should no watch event come.
    pub(super) fn left(&self, now: Timestamp, timeout: SignedDuration) -> SignedDuration {
        let pending = !self.created.is_empty() || !self.deleted.is_empty();
        self.since
            .filter(|_| pending)
            .map_or(SignedDuration::ZERO, |since| timeout.saturating_sub(now.duration_since(since)))
    }
}

impl Versions {
    /// The newer of both, kind by kind.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { jobs: self.jobs.max(other.jobs), pods: self.pods.max(other.pods) }
    }
}
