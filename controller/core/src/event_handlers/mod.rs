//! Turns watch events into queue entries: what to sync, and how urgently.

mod job;
mod pod;
#[cfg(test)]
pub(crate) mod samples;

use std::sync::Arc;
use std::time::Duration;

pub use job::{JobChange, external_controller, job_changed};
pub use pod::{PodChange, is_relevant, pod_changed, shows_disruption, tracked_terminal_transition};

use crate::batching::Change;
use crate::orphans::Orphans;
use crate::view::{Job, JobKey, Pod, Uid};

/// Lookups that the handlers need.
pub trait Lookup {
    /// The Job of this key.
    fn job(&self, key: &JobKey) -> Option<&Arc<Job>>;
    /// The Jobs of a pod's namespace whose selector matches it.
    fn matching(&self, pod: &Pod) -> Vec<JobKey>;
}

/// What to do after one event, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enqueues {
    /// Jobs whose memory records the pod.
    pub observers: Vec<Uid>,
    /// What to queue.
    pub queue: Vec<Enqueue>,
}

/// One entry for a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueue {
    /// Sync a Job at once.
    Sync(JobKey),
    /// Sync a Job after a change, in a batch with those that follow. ([Q3])
    Batch(JobKey, Change),
    /// Sync a Job after this time, whatever else happens. ([Q4])
    SyncAfter(JobKey, Duration),
    /// Check whether finalizers are to be removed.
    Orphans(Orphans),
    /// Check whether finalizers are to be removed, after this time.
    OrphansAfter(Orphans, Duration),
}

/// The Job that controls a pod, if the cache has it. ([H0])
fn owner_of<'a>(pod: &Pod, lookup: &'a impl Lookup) -> Option<&'a Arc<Job>> {
    let reference = pod.owner.as_ref().filter(|owner| &*owner.kind == "Job")?;
    let key = JobKey::new(Arc::clone(&pod.namespace), Arc::clone(&reference.name));
    lookup.job(&key).filter(|job| job.uid == reference.uid)
}
