//! Adds up the work that each Job has lost with its disrupted pods.

use std::collections::BTreeMap;

use serde::Serialize;

use super::answer::DisruptedPod;

/// The work that one Job has lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct JobLostWork {
    /// `metadata.namespace`.
    pub(crate) namespace: String,
    /// `metadata.name`.
    pub(crate) name: String,
    /// With how many of its pods.
    pub(crate) pods: u64,
    /// How long those had run.
    pub(crate) seconds: u64,
}

/// The Jobs that have lost work, the most first.
pub(super) fn by_job(pods: &[DisruptedPod]) -> Vec<JobLostWork> {
    let mut all: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for pod in pods {
        let work = pod.work_seconds.filter(|work| *work > 0);
        let Some((job, work)) = pod.job.as_deref().zip(work) else { continue };
        let sum = all.entry((&pod.namespace, job)).or_default();
        *sum = (sum.0.saturating_add(1), sum.1.saturating_add(work));
    }
    let job = |((namespace, name), (pods, seconds)): ((&str, &str), (u64, u64))| JobLostWork {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        pods,
        seconds,
    };
    let mut jobs: Vec<JobLostWork> = all.into_iter().map(job).collect();
    jobs.sort_by_key(|job| std::cmp::Reverse(job.seconds));
    jobs
}
