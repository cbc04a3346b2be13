//! Builds Jobs and pods for tests from the JSON of the API, with the rest filled in.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Lookup;
use crate::view::{Interner, Job, JobKey, Pod, WireJob, WirePod};

/// A Job of ours in the namespace `default`.
pub(crate) fn job(mut fields: Value) -> Job {
    fields["metadata"]["namespace"] = "default".into();
    fields["spec"]["managedBy"] = "epilogue.dev/job-controller".into();
    WireJob::parse(fields).and_then(WireJob::view).expect("must be a Job")
}

/// A Job of ours that is Complete.
pub(crate) fn finished(name: &str, uid: &str) -> Job {
    job(json!({"metadata": {"name": name, "uid": uid},
               "status": {"conditions": [{"type": "Complete", "status": "True"}]}}))
}

/// A pod in the namespace `default`.
pub(crate) fn pod(mut fields: Value) -> Pod {
    fields["metadata"]["namespace"] = "default".into();
    let wire: WirePod = serde_json::from_value(fields).expect("must be a pod");
    wire.view(&mut Interner::default())
}

/// A tracked pod that a Job controls.
pub(crate) fn owned(job: &str, uid: &str) -> Pod {
    pod(json!({"metadata": {
        "name": format!("{job}-pod"),
        "uid": format!("pod-of-{uid}"),
        "resourceVersion": "1",
        "finalizers": ["batch.kubernetes.io/job-tracking"],
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid,
                             "controller": true}],
    }}))
}

/// Jobs to look up.
#[derive(Debug)]
pub(crate) struct Jobs(Vec<Arc<Job>>);

impl Jobs {
    /// These Jobs.
    pub(crate) fn new(jobs: impl IntoIterator<Item = Job>) -> Self {
        Self(jobs.into_iter().map(Arc::new).collect())
    }
}

impl Lookup for Jobs {
    fn job(&self, key: &JobKey) -> Option<&Arc<Job>> {
        self.0.iter().find(|job| job.key == *key)
    }

    fn matching(&self, pod: &Pod) -> Vec<JobKey> {
        let matching = self.0.iter().filter(|job| pod.matches(&job.spec.selector));
        matching.map(|job| job.key.clone()).collect()
    }
}
