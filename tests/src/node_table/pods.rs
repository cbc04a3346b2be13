//! Defines the pods on the node that ends, one of each relevant kind. Pure.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use super::case::JobController;
use crate::nodes::{SCRIPT_ANNOTATION, SIMULATED_LABEL};
use crate::vm::TestPod;
use crate::vm::kit::CONTAINER_IMAGE;

/// Every pod by its part in the story, in the order of the table. A Job or DaemonSet has the name
/// of its one pod.
pub const ROLES: [(&str, &str); 12] = [
    ("job-obeys", "Job, Never, leaves with 143"),
    ("job-retries", "Job, OnFailure, leaves with 143, replaced once it terminates"),
    ("job-leaves", "Job, Never, leaves with 0"),
    ("job-stubborn", "Job, Never, ignores SIGTERM"),
    ("job-mesh", "Job, Never, with a native sidecar, leaves with 0"),
    ("job-own", "Job, Never, its container restarts OnFailure, leaves with 143"),
    ("never", "bare, Never"),
    ("always", "bare, Always"),
    ("critical", "bare, Never, system-node-critical"),
    ("done", "bare, ended by itself before"),
    ("pull", "bare, its image cannot be pulled"),
    ("daemon", "of a DaemonSet"),
];

/// Pods that never come to run.
pub(super) const NEVER_RUN: [&str; 2] = ["done", "pull"];

/// After SIGTERM. Long enough to see a pod while it terminates.
const LEAVES_AFTER_SECONDS: &str = "2";

/// What a replacement does on a simulated node; a real kubelet ignores it.
const ELSEWHERE: &str = "succeed after=1s";

/// The Jobs. Those with `Never` ignore disruptions, fail for good by one failure that counts, and
/// replace a pod once it is terminal. The one with `OnFailure`, which allows no such policy,
/// replaces a pod once it terminates.
pub(super) fn jobs(controller: JobController) -> Vec<Job> {
    let cases = [
        ("job-obeys", "Never", &["obedient", "143", LEAVES_AFTER_SECONDS][..], 30),
        ("job-retries", "OnFailure", &["obedient", "143", LEAVES_AFTER_SECONDS], 30),
        ("job-leaves", "Never", &["obedient", "0", LEAVES_AFTER_SECONDS], 30),
        ("job-stubborn", "Never", &["stubborn"], 60),
        ("job-mesh", "Never", &["obedient", "0", LEAVES_AFTER_SECONDS], 30),
        ("job-own", "Never", &["obedient", "143", LEAVES_AFTER_SECONDS], 30),
    ];
    let built = cases.map(|(name, policy, command, grace)| {
        let mut template = spec(policy, command, grace);
        match name {
            "job-mesh" => template["initContainers"] = sidecar(),
            "job-own" => template["containers"][0]["restartPolicy"] = json!("OnFailure"),
            _ => {}
        }
        // Without both, a replacement could run on a node that is back, where it would never end.
        template["affinity"] = elsewhere();
        template["tolerations"] = tolerated();
        let mut job = json!({
            "metadata": {"name": name},
            "spec": {
                "template": {
                    "metadata": {"annotations": {SCRIPT_ANNOTATION: ELSEWHERE}},
                    "spec": template,
                },
            },
        });
        if policy == "Never" {
            job["spec"]["backoffLimit"] = json!(0);
            job["spec"]["podReplacementPolicy"] = json!("Failed");
            job["spec"]["podFailurePolicy"] = json!({"rules": [
                {"action": "Ignore",
                 "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]});
        } else {
            job["spec"]["podReplacementPolicy"] = json!("TerminatingOrFailed");
        }
        if controller == JobController::Ours {
            job["spec"]["managedBy"] = json!("epilogue.dev/job-controller");
        }
        serde_json::from_value(job).expect("a Job of ours must be one of the API's")
    });
    built.into()
}

/// A native sidecar: it starts first, restarts for as long as its pod lives, and stops last.
fn sidecar() -> Value {
    json!([{
        "name": "sidecar", "image": CONTAINER_IMAGE, "imagePullPolicy": "Never",
        "args": ["obedient", "143", "1"], "restartPolicy": "Always",
    }])
}

/// The simulated node may be reserved. A busy machine starves its heartbeat, and then it counts as
/// lost for a moment.
fn tolerated() -> Value {
    let of =
        |state: &str| json!({"key": format!("node.kubernetes.io/{state}"), "operator": "Exists"});
    let simulated = json!({"key": SIMULATED_LABEL, "operator": "Exists"});
    json!([of("not-ready"), of("unreachable"), simulated])
}

/// Prefers a simulated node. There is none yet when the first pods are scheduled.
fn elsewhere() -> Value {
    json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 100,
        "preference": {"matchExpressions": [{"key": SIMULATED_LABEL, "operator": "Exists"}]},
    }]}})
}

/// The DaemonSet.
pub(super) fn daemon_set() -> DaemonSet {
    let labels = json!({"lab.local/role": "daemon"});
    let set = json!({
        "metadata": {"name": "daemon"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": spec("Always", &["obedient", "143", "1"], 30),
            },
        },
    });
    serde_json::from_value(set).expect("a DaemonSet of ours must be one of the API's")
}

/// Pods without an owner, bound to `node`.
pub(super) fn bare(node: &str) -> Vec<TestPod> {
    let obedient = ["obedient", "143", LEAVES_AFTER_SECONDS];
    vec![
        TestPod::new("never", node, &obedient).host_network(),
        TestPod::new("always", node, &obedient).restart_policy("Always").host_network(),
        TestPod::new("critical", node, &obedient)
            .spec("priorityClassName", json!("system-node-critical"))
            .host_network(),
        TestPod::new("done", node, &["exits", "0", "2"]).host_network(),
        // No process listens there.
        TestPod::new("pull", node, &obedient).image("127.0.0.1:9/none:1").host_network(),
    ]
}

fn spec(policy: &str, command: &[&str], grace_seconds: u32) -> Value {
    json!({
        "restartPolicy": policy,
        "hostNetwork": true,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": grace_seconds,
        "containers": [{
            "name": "main", "image": CONTAINER_IMAGE, "imagePullPolicy": "Never", "args": command,
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_its_object() {
        let jobs = jobs(JobController::Ours).into_iter();
        let mut names: Vec<String> = jobs.filter_map(|job| job.metadata.name).collect();
        let bare = bare("n");
        names.extend(bare.iter().filter_map(|pod| pod.build().metadata.name));
        names.extend(daemon_set().metadata.name);
        assert_eq!(names, ROLES.map(|(name, _)| name));
    }

    #[test]
    fn only_jobs_of_our_controller_name_it() {
        let managers = |controller| {
            let jobs = jobs(controller).into_iter();
            jobs.filter_map(|job| job.spec?.managed_by).collect::<Vec<_>>()
        };
        assert_eq!(managers(JobController::Ours), ["epilogue.dev/job-controller"; 6]);
        assert_eq!(managers(JobController::Upstream), [""; 0]);
    }
}
