//! How memory changes: by what a sync did, and by what the watches then show. (spec §4)

use jiff::Timestamp;

use super::input::{Memory, Versions};
use super::steps::Recollection;
use crate::view::{Pod, Uid};

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

    /// Whether the watches show all that we wrote ourselves. ([Z2])
    pub(super) fn is_caught_up(&self, seen: Versions) -> bool {
        self.written.jobs <= seen.jobs && self.written.pods <= seen.pods
    }
}
