//! A JobSet's child Jobs under our controller. A double of the JobSet controller makes the children
//! of the manifest, and restarts all of them after one failed.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, ListParams, PostParams};
use lab::bed::{Bed, JobState, SOON};
use lab::eventually;
use serde_json::{Value, json};

use super::{bed, ending, evict, name, only};

/// The double: `restart_attempt` as in the status of a JobSet.
struct JobSet<'a> {
    bed: &'a Bed,
    manifest: Value,
    restart_attempt: u32,
}

impl JobSet<'_> {
    fn failures_max(&self) -> u64 {
        self.manifest["spec"]["failurePolicy"]["maxRestarts"].as_u64().expect("a number")
    }

    /// The children: the template, with the labels and names that JobSet gives.
    fn children(&self, script: &str) -> Vec<Job> {
        let set = self.manifest["metadata"]["name"].as_str().expect("a name");
        let replicated = &self.manifest["spec"]["replicatedJobs"][0];
        let group = replicated["name"].as_str().expect("a name");
        let replicas = replicated["replicas"].as_u64().expect("a number");
        let child = |index: u64| {
            let prefix = "jobset.sigs.k8s.io";
            let labels: BTreeMap<String, String> = [
                ("jobset-name", set.to_owned()),
                ("replicatedjob-name", group.to_owned()),
                ("job-index", index.to_string()),
                ("restart-attempt", self.restart_attempt.to_string()),
            ]
            .map(|(key, value)| (format!("{prefix}/{key}"), value))
            .into();
            let mut spec = replicated["template"]["spec"].clone();
            spec["suspend"] = false.into();
            let annotations = json!({lab::nodes::SCRIPT_ANNOTATION: script});
            spec["template"]["metadata"] = json!({"labels": labels, "annotations": annotations});
            let metadata = json!({"name": format!("{set}-{group}-{index}"), "labels": labels});
            let job = json!({"metadata": metadata, "spec": spec});
            serde_json::from_value(job).expect("a Job")
        };
        (0..replicas).map(child).collect()
    }

    async fn create(&self, script: &str) {
        for child in self.children(script) {
            let jobs = self.bed.api::<Job>();
            jobs.create(&PostParams::default(), &child).await.expect("a child is created");
        }
    }

    /// Deletes all children in the foreground, and creates them again once they are gone.
    async fn restart(&mut self, script: &str) {
        let jobs = self.bed.api::<Job>();
        for child in self.children(script) {
            let child = child.metadata.name.expect("a name");
            jobs.delete(&child, &DeleteParams::foreground()).await.expect("a child is deleted");
        }
        let all = ListParams::default();
        let left = async || jobs.list(&all).await.expect("the Jobs").items.len();
        eventually("the children are gone", SOON, left, |left| *left == 0).await;
        self.restart_attempt += 1;
        self.create(script).await;
    }
}

const CHILDREN: [&str; 2] = ["training-workers-0", "training-workers-1"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disruption_restarts_a_pod_and_a_failure_the_whole_set() {
    let bed = bed().await;
    let mut set = JobSet { bed: &bed, manifest: only("job-set"), restart_attempt: 0 };
    set.create("hang").await;
    let runs = |state: &JobState| state.ready == Some(2);
    for child in CHILDREN {
        bed.reaches(child, SOON, runs).await;
    }

    let first = bed.pods(CHILDREN[0]).await;
    evict(&bed, name(&first[0])).await;
    // The evicted pod goes soon after it has ended.
    let successors = async || {
        let pods = bed.pods(CHILDREN[0]).await;
        pods.iter().filter(|pod| first.iter().all(|it| name(it) != name(pod))).count()
    };
    eventually("the pod has a successor", SOON, successors, |count| *count == 1).await;
    let state = bed.reaches(CHILDREN[0], SOON, runs).await;
    assert_eq!((state.failed, state.conditions.len()), (0, 0), "no child failed");
    assert_eq!(bed.indexes(CHILDREN[0]).await, ["0", "1"]);

    let killed = bed.pods(CHILDREN[1]).await.remove(0);
    bed.delete_pod(name(&killed)).await;
    let state = bed.finished(CHILDREN[1], SOON).await;
    let (last, _, failed) = ending(&state);
    assert_eq!((last, failed > 0), (Some("Failed"), true));
    set.restart("succeed").await;
    for child in CHILDREN {
        let state = bed.finished(child, SOON).await;
        assert_eq!(ending(&state), (Some("Complete"), 2, 0));
    }
    assert!(u64::from(set.restart_attempt) <= set.failures_max());
    bed.stop().await;
}
