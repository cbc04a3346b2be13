//! Defines the pod that takes too much, and its well-behaved neighbours. Pure.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::kind::{Kind, Setting};
use crate::vm::kit::CONTAINER_IMAGE;

/// A container's own limit of memory, if it has one.
const OWN_LIMIT: &str = "64Mi";
/// Enough for every watcher to see it before it begins.
const WAIT_SECONDS: &str = "4";
/// Four times what the node has left.
const HOG_MEGABYTES: &str = "8000";
/// The rest stays free: a file system without a byte, or a node without a process, ends the test
/// and not the pod.
const FILL_MEGABYTES: &str = "850";
const FORK_PROCESSES: &str = "1000";

/// Within its request.
const GUARANTEED_MEGABYTES: &str = "800";

/// The well-behaved pods: name, megabytes that each holds, and its requests. The first one holds
/// more if memory runs short, so that the shortage comes soon.
pub(super) const BYSTANDERS: [(&str, &str, &str); 4] = [
    ("guaranteed", "100", "900Mi"),
    ("burstable", "100", "200Mi"),
    ("besteffort", "30", ""),
    ("worker", "60", "100Mi"),
];

/// The one of them that belongs to a Job.
pub(super) const WORKER: &str = "worker";

/// A well-behaved pod, or the Job of one.
pub(super) enum Bystander {
    /// Without an owner.
    Bare(Box<Pod>),
    /// Of a Job.
    Job(Box<Job>),
}

/// The bystander of a role under a name of its own.
pub(super) fn bystander(role: &str, name: &str, node: &str, kind: Kind) -> Bystander {
    let known = BYSTANDERS.iter().find(|(known, ..)| *known == role);
    let (_, megabytes, request) = known.expect("a role must be one of the bystanders'");
    let holds_more = role == "guaranteed" && kind == Kind::Memory;
    let megabytes = if holds_more { GUARANTEED_MEGABYTES } else { megabytes };
    let mut spec = spec(&["hog", megabytes]);
    spec["nodeName"] = json!(node);
    let resources = match role {
        // It may not be late because it cannot be late.
        "guaranteed" => json!({"limits": {"memory": request, "cpu": "100m"}}),
        "besteffort" => json!({}),
        _ => json!({"requests": {"memory": request}}),
    };
    spec["containers"][0]["resources"] = resources;
    if role == WORKER {
        Bystander::Job(Box::new(job(name, &spec, &json!([]), 0)))
    } else {
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        Bystander::Bare(Box::new(parse(pod)))
    }
}

/// The Job of the pod that takes too much. It is not bound, so its replacement waits for a
/// scheduler that does not exist. The Job ignores disruptions; if the container has a limit of its
/// own, its policy knows that cause.
pub(super) fn culprit(name: &str, setting: &Setting) -> Job {
    let rate = setting.rate.to_string();
    let command: &[&str] = match setting.kind {
        Kind::Memory | Kind::OwnLimit => &["hog", HOG_MEGABYTES, &rate, WAIT_SECONDS],
        Kind::Disk => &["fill", "/data", FILL_MEGABYTES, &rate, WAIT_SECONDS],
        Kind::DiskLayer => &["fill", "/", FILL_MEGABYTES, &rate, WAIT_SECONDS],
        Kind::Pids => &["fork", FORK_PROCESSES, &rate, WAIT_SECONDS],
    };
    let mut spec = spec(command);
    let ignored = json!({"action": "Ignore", "onPodConditions": [
        {"type": "DisruptionTarget", "status": "True"},
    ]});
    match setting.kind {
        Kind::Disk => {
            spec["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
            spec["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
        }
        Kind::OwnLimit => {
            spec["containers"][0]["resources"] = json!({"limits": {"memory": OWN_LIMIT}});
            let known = json!({"action": "FailJob", "onPodConditions": [
                {"type": "epilogue.dev/OOMKilled", "status": "True"},
            ]});
            return job(name, &spec, &json!([ignored, known]), 3);
        }
        Kind::Memory | Kind::DiskLayer | Kind::Pids => {}
    }
    job(name, &spec, &json!([ignored]), 0)
}

/// The Job of a pod whose image is not on the node; not bound either.
pub(super) fn waiting(name: &str, image: &str) -> Job {
    let mut spec = spec(&["obedient", "0", "1"]);
    spec["terminationGracePeriodSeconds"] = json!(3);
    spec["containers"][0]["image"] = json!(image);
    spec["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
    job(name, &spec, &json!([]), 6)
}

fn job(name: &str, spec: &Value, rules: &Value, backoff_limit: u32) -> Job {
    parse(json!({
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": backoff_limit,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": rules},
            "template": {"spec": spec},
        },
    }))
}

fn spec(command: &[&str]) -> Value {
    json!({
        "restartPolicy": "Never",
        "hostNetwork": true,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 30,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{
            "name": "main", "image": CONTAINER_IMAGE, "imagePullPolicy": "Never", "args": command,
        }],
    })
}

fn parse<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object of ours must be one of the API's")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bystander_and_every_culprit_is_an_object_of_the_api() {
        for (role, ..) in BYSTANDERS {
            let is_job = matches!(bystander(role, "a", "n", Kind::Memory), Bystander::Job(_));
            assert_eq!(is_job, role == WORKER);
        }
        for kind in Kind::ALL {
            let job = culprit("c", &Setting::of(kind, None, 1));
            let spec = job.spec.and_then(|spec| spec.template.spec).expect("a pod's spec");
            assert!(spec.node_name.is_none(), "{kind:?}: its replacement would run");
        }
    }
}
