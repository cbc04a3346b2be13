//! How memory changes: by what a sync did, and by what the watches then show. (spec §4)

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::JobStatus;

use super::input::{Memory, Versions};
use super::steps::Recollection;
use crate::view::{Job, Pod, Uid, Version};

impl Memory {
    /// Takes in what a sync did.
    ///
    /// `seen` is how far the pod watch has come: a pod whose event came before the reply of its
    /// own creation needs no waiting for.
    pub fn apply(&mut self, change: Recollection, seen: Versions, now: Timestamp) {
        match change {
            Recollection::Created(pod) => {
                self.written.pods = self.written.pods.max(pod.version);
                if pod.version > seen.pods {
                    self.expectations.created.insert(pod.uid);
                    self.expectations.since = Some(now);
                }
            }
            Recollection::Deleting(pods) => {
                self.expectations.deleted.extend(pods);
                self.expectations.since = Some(now);
            }
            Recollection::NotDeleted(pods) => {
                for pod in &pods {
                    self.expectations.deleted.remove(pod);
                }
            }
            Recollection::Releasing(pods) => self.releases.extend(pods),
            Recollection::NotReleased(pods) => {
                for pod in &pods {
                    self.releases.remove(pod);
                }
            }
            Recollection::PodWritten(version) => {
                self.written.pods = self.written.pods.max(version);
            }
            Recollection::JobWritten(version) => {
                self.written.jobs = self.written.jobs.max(version);
            }
            Recollection::Backoff(record) => self.backoff = Some(record),
            Recollection::Finished => self.finished = true,
            Recollection::Told(problems) => self.told = problems,
        }
    }

    /// A watch showed this pod of the Job.
    pub fn saw_pod(&mut self, pod: &Pod) {
        self.expectations.created.remove(&pod.uid);
        if pod.deletion.is_some() {
            self.expectations.deleted.remove(&pod.uid);
        }
        if !pod.tracked {
            self.releases.remove(&pod.uid);
        }
    }

    /// A watch showed that this pod of the Job is gone.
    pub fn saw_pod_gone(&mut self, pod: &Uid) {
        self.expectations.created.remove(pod);
        self.expectations.deleted.remove(pod);
        self.releases.remove(pod);
    }

    /// A watch showed the Job.
    ///
    /// DIVERGES(upstream): counters that moved in a write of somebody else are those of another
    /// process that leads, or led a moment ago. Until the watch of pods has come as far, it may
    /// show the finalizers of pods that are counted, and they would be counted twice; the
    /// reference takes that risk. (spec §10)
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

    /// What the watches must have shown before the Job is synced: all that we wrote ourselves, and
    /// the pods as they were when somebody else counted them. ([Z2])
    pub fn awaited(&self) -> Versions {
        let elsewhere = self.counted.filter(|(version, _)| *version > self.written.jobs);
        let counted = elsewhere.map_or(Version::default(), |(version, _)| version);
        Versions { jobs: self.written.jobs, pods: self.written.pods.max(counted) }
    }

    /// Whether they have. Versions of Jobs and of pods need not be comparable, so that we do not
    /// wait for ever for what somebody else did.
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
