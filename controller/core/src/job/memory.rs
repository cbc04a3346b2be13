//! Holds what the process remembers of a Job, and updates it by syncs and by watch events.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::JobStatus;

use super::steps::MemoryUpdate;
use super::sync_input::Versions;
use crate::view::{Job, Pod, Uid, Version};

/// What the process remembers of one Job (by UID) between syncs. Losing it costs time, not
/// correctness.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// Pods that we created or deleted, while their watch event is pending.
    pub expectations: Expectations,
    /// Pods whose finalizer we removed, while their watch event is pending. ([E2])
    pub removed_finalizers: HashSet<Uid>,
    /// Whether the write that finished the Job succeeded. ([E3])
    pub finished: bool,
    /// Failures since the last success. ([E4])
    pub backoff: Option<BackoffRecord>,
    /// Annotation problems that an event has reported.
    pub reported: Vec<String>,
    /// The newest versions that the API returned for our own writes. ([Z1])
    pub written: Versions,
    /// The newest version of the Job in which pods were counted, as the watch showed it, and when.
    pub counted: Option<(Version, Timestamp)>,
}

/// Pods that a watch has yet to show as we left them. ([E1])
///
/// DIVERGES(upstream): kept by UID, not as two counters. So neither a repeated event nor an event
/// of a foreign pod can satisfy an expectation. ([E1], [H11])
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expectations {
    /// Pods that we created and no watch has shown.
    pub created: HashSet<Uid>,
    /// Pods that we deleted and no watch has shown as terminating.
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
    /// When the first of them was; after an hour the count starts again.
    pub free_since: Option<Timestamp>,
}

impl Memory {
    /// Applies what a sync did.
    ///
    /// `seen` is how far the pod watch has come. A pod whose event came before the reply to its own
    /// creation is not awaited.
    pub fn apply(&mut self, change: MemoryUpdate, seen: Versions, now: Timestamp) {
        match change {
            MemoryUpdate::Created(pod) => {
                self.written.pods = self.written.pods.max(pod.version);
                if pod.version > seen.pods {
                    self.expectations.created.insert(pod.uid);
                    self.expectations.since = Some(now);
                }
            }
            MemoryUpdate::Deleting(pods) => {
                self.expectations.deleted.extend(pods);
                self.expectations.since = Some(now);
            }
            MemoryUpdate::NotDeleted(pods) => {
                for pod in &pods {
                    self.expectations.deleted.remove(pod);
                }
            }
            MemoryUpdate::RemovingFinalizer(pods) => self.removed_finalizers.extend(pods),
            MemoryUpdate::FinalizerKept(pods) => {
                for pod in &pods {
                    self.removed_finalizers.remove(pod);
                }
            }
            MemoryUpdate::PodWritten(version) => {
                self.written.pods = self.written.pods.max(version);
            }
            MemoryUpdate::JobWritten(version) => {
                self.written.jobs = self.written.jobs.max(version);
            }
            MemoryUpdate::Backoff(record) => self.backoff = Some(record),
            MemoryUpdate::Finished => self.finished = true,
            MemoryUpdate::Reported(problems) => self.reported = problems,
        }
    }

    /// Records that a watch showed this pod of the Job.
    pub fn saw_pod(&mut self, pod: &Pod) {
        self.expectations.created.remove(&pod.uid);
        if pod.deletion.is_some() {
            self.expectations.deleted.remove(&pod.uid);
        }
        if !pod.tracked {
            self.removed_finalizers.remove(&pod.uid);
        }
    }

    /// Records that this pod of the Job is gone from the watch.
    pub fn saw_pod_gone(&mut self, pod: &Uid) {
        self.expectations.created.remove(pod);
        self.expectations.deleted.remove(pod);
        self.removed_finalizers.remove(pod);
    }

    /// Records that a watch showed the Job.
    ///
    /// DIVERGES(upstream): counters that moved in another writer's status come from another process
    /// that leads, or led a moment ago. Until the watch of pods has come as far, it may show the
    /// finalizers of pods that are already counted. A sync would count those twice; upstream takes
    /// that risk. ([Z2])
    pub fn saw_job(&mut self, old: Option<&Job>, new: &Job, now: Timestamp) {
        let counted = |job: &Job| {
            let JobStatus { succeeded, failed, completed_indexes, .. } = &job.status;
            let listed = job.status.uncounted_terminated_pods.clone().unwrap_or_default();
            (*succeeded, *failed, completed_indexes.clone(), listed)
        };
        if old.map_or_else(Default::default, counted) != counted(new) {
            self.counted = Some((new.version, now));
        }
    }

    /// What the watches must show before the Job is synced: all that we wrote ourselves, and the
    /// pods as another process counted them. ([Z2])
    pub fn awaited(&self) -> Versions {
        let elsewhere = self.counted.filter(|(version, _)| *version > self.written.jobs);
        let counted = elsewhere.map_or(Version::default(), |(version, _)| version);
        Versions { jobs: self.written.jobs, pods: self.written.pods.max(counted) }
    }

    /// Whether the watches have shown it. Versions of Jobs and of pods need not be comparable, so
    /// the wait for another process's write has a timeout.
    pub(super) fn is_caught_up(
        &self,
        seen: Versions,
        now: Timestamp,
        timeout: SignedDuration,
    ) -> bool {
        let long_ago = self.counted.is_none_or(|(_, at)| now.duration_since(at) > timeout);
        let awaited = if long_ago { self.written } else { self.awaited() };
        awaited.jobs <= seen.jobs && awaited.pods <= seen.pods
    }
}

impl Expectations {
    /// Whether no pod is awaited, or one has been awaited for too long.
    pub fn satisfied(&self, now: Timestamp, timeout: SignedDuration) -> bool {
        self.left(now, timeout) <= SignedDuration::ZERO
    }

    /// How long pods are still awaited if no watch event comes.
    pub(super) fn left(&self, now: Timestamp, timeout: SignedDuration) -> SignedDuration {
        let pending = !self.created.is_empty() || !self.deleted.is_empty();
        self.since
            .filter(|_| pending)
            .map_or(SignedDuration::ZERO, |since| timeout.saturating_sub(now.duration_since(since)))
    }
}
