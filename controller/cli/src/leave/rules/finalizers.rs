//! Decides which pods may lose the tracking finalizer without the controller: those that no
//! controller will ever count.

use epilogue_common::finding_code::FindingCode as Code;
use serde_json::Value;

use super::{Jobs, LeaveError, Left, of_kind, unreadable};
use controller_core::job::remove_finalizer_patch;
use controller_core::view::{Interner, Job, Owner, Pod, WirePod};
use serde::Deserialize as _;

/// A pod with the tracking finalizer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeldPod {
    pod: Pod,
    owner: Owner,
    /// Whether the finalizer may go.
    may_go: bool,
}

/// A finalizer to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    /// `metadata.namespace` of the pod.
    pub(crate) namespace: String,
    /// `metadata.name` of the pod.
    pub(crate) name: String,
    /// The strategic-merge patch, which names the pod's UID.
    pub(crate) patch: Value,
    /// `metadata.name` of the Job.
    pub(crate) job: String,
    /// `metadata.uid` of the Job.
    pub(crate) job_uid: String,
}

impl HeldPod {
    fn subject(&self) -> String {
        format!("pod/{}/{}", self.pod.namespace, self.pod.name)
    }

    /// How to release it, if it may be released.
    pub(crate) fn release(self) -> Option<Release> {
        self.may_go.then(|| Release {
            namespace: self.pod.namespace.to_string(),
            name: self.pod.name.to_string(),
            patch: remove_finalizer_patch(&self.pod),
            job: self.owner.name.to_string(),
            job_uid: self.owner.uid.as_str().to_owned(),
        })
    }
}

impl Release {
    /// Whether the Job, read again, still allows it. `None` if there is no Job of that name.
    pub(crate) fn holds(&self, job: Option<&Job>) -> bool {
        let Some(job) = job.filter(|job| job.uid.as_str() == self.job_uid) else { return true };
        let uid = self.patch["metadata"]["uid"].as_str().unwrap_or_default();
        job.is_finished() && !is_uncounted(job, uid)
    }
}

/// The pods with the finalizer whose Job the controller runs, or whose Job is gone. Pods of other
/// controllers' Jobs are not ours. Neither are pods without a controller, and pods of unfinished
/// Jobs that kube-controller-manager takes over: it releases them.
pub(super) fn held_pods(objects: &[Value], jobs: &Jobs) -> Result<Vec<HeldPod>, LeaveError> {
    let mut interner = Interner::default();
    let mut held = Vec::new();
    for object in of_kind(objects, "Pod") {
        let wire =
            WirePod::deserialize(object).map_err(|error| unreadable("Pod", object, error))?;
        let pod = wire.view(&mut interner);
        let is_of_job = |owner: &&Owner| &*owner.kind == "Job" && &*owner.api_version == "batch/v1";
        let owner = pod.owner.as_deref().filter(is_of_job).cloned();
        let Some(owner) = owner.filter(|_| pod.tracked) else { continue };
        let may_go = match jobs.get(&owner.uid) {
            None => true,
            Some(job) if !jobs.runs(job) || jobs.goes_over(job) => continue,
            Some(job) => job.is_finished() && !is_uncounted(job, pod.uid.as_str()),
        };
        held.push(HeldPod { pod, owner, may_go });
    }
    Ok(held)
}

/// Whether the status lists the pod, but its counters do not contain it yet.
fn is_uncounted(job: &Job, uid: &str) -> bool {
    let uncounted = job.status.uncounted_terminated_pods.as_ref();
    let lists = uncounted.map(|lists| [&lists.succeeded, &lists.failed]);
    lists.into_iter().flatten().flatten().flatten().any(|listed| listed == uid)
}

pub(super) fn left(held: &[HeldPod]) -> Vec<Left> {
    let of = |may_go: bool| {
        let pods = held.iter().filter(|each| each.may_go == may_go);
        pods.map(HeldPod::subject).collect()
    };
    let parts = [
        Left::some(Code::FinalizerLeft, "pods to release", of(true)),
        Left::some(Code::FinalizerKept, "pods that are not counted yet", of(false)),
    ];
    parts.into_iter().flatten().collect()
}
