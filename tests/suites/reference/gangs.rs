//! Draws what a Job says about its scheduling, and reads the Workloads and PodGroups that its
//! controller made for it.
//!
//! No Job that may lose a pod asks for a group that is disrupted as a whole: what a controller does
//! then is not compared.

use epilogue_common::names::MANAGED_BY;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::scenarios::{Scenario, Step};
use super::seen::Names;

/// Keeps these draws apart from those of the rest of a Job.
const SALT: u64 = 0x6a6e_6773;

/// What PodGroups have, each at least once.
pub(crate) const PARTS: [&str; 6] = [
    "/spec/schedulingPolicy/basic",
    "/spec/schedulingPolicy/gang",
    "/spec/schedulingConstraints/topology/0",
    "/spec/disruptionMode/single",
    "/spec/disruptionMode/all",
    "/spec/resourceClaims/0",
];

/// The objects of gang scheduling of a namespace.
pub(crate) struct Objects {
    workloads: Api<DynamicObject>,
    pod_groups: Api<DynamicObject>,
}

/// Gives the Job of a scenario a `spec.scheduling`, or none; and lets its user change the size of a
/// gang whose pods run on.
pub(crate) fn with_scheduling(seed: u64, mut scenario: Scenario) -> Scenario {
    let mut random = StdRng::seed_from_u64(seed ^ SALT);
    let job = scenario.job.clone().raw();
    let parallelism = job["spec"]["parallelism"].as_u64().unwrap_or(1);
    let sizes = scenario.steps.iter().filter_map(|step| match step {
        Step::Change(spec) => spec["parallelism"].as_u64(),
        _ => None,
    });
    // A gang is never larger than the pods that may run at once.
    let largest = sizes.chain([parallelism]).min().unwrap_or(1);
    let policy = match random.random_range(0..6) {
        0 => return scenario,
        1 => json!({"basic": {}}),
        2..4 if largest > 0 => json!({"gang": {"minCount": random.random_range(1..=largest)}}),
        _ => json!({"gang": {}}),
    };
    let is_gang = policy.get("gang").is_some();
    let has_size = policy["gang"].get("minCount").is_some();
    let mut scheduling = json!({"schedulingPolicy": policy});
    if random.random_bool(0.4) {
        let zone = json!({"key": "topology.kubernetes.io/zone"});
        scheduling["schedulingConstraints"] = json!({"topology": [zone]});
    }
    let loses_pods = !scenario.steps.is_empty() || job.to_string().contains("disrupt ");
    // The API takes `all` for gangs only.
    let may_be_all = is_gang && !loses_pods;
    let modes = if may_be_all { &["single", "all"] } else { &["single"][..] };
    if random.random_bool(0.5) {
        scheduling["disruptionMode"] = json!({modes[random.random_range(0..modes.len())]: {}});
    }
    if random.random_bool(0.3) {
        let claim = json!({"name": "gpu", "resourceClaimTemplateName": "gpus"});
        scheduling["resourceClaims"] = json!([claim]);
    }
    scenario.job = scenario.job.spec("scheduling", scheduling);
    if has_size
        && random.random_bool(0.5)
        && matches!(scenario.steps.last(), Some(Step::Settles { .. }))
    {
        let policy = json!({"gang": {"minCount": random.random_range(1..=largest)}});
        scenario.steps.push(Step::Change(json!({"scheduling": {"schedulingPolicy": policy}})));
    }
    scenario
}

/// The size that the Job's gang must have, if it asks for one.
fn size(job: &Value) -> Option<i64> {
    let gang = job["spec"]["scheduling"]["schedulingPolicy"].get("gang")?;
    let parallelism = job["spec"]["parallelism"].as_i64().unwrap_or(1);
    Some(gang["minCount"].as_i64().unwrap_or(parallelism.max(1)))
}

impl Objects {
    pub(crate) fn of(client: &kube::Client, namespace: &str) -> Self {
        let of = |kind| {
            let kind = GroupVersionKind::gvk("scheduling.k8s.io", "v1beta1", kind);
            Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&kind))
        };
        Self { workloads: of("Workload"), pod_groups: of("PodGroup") }
    }

    async fn controlled(of: &Api<DynamicObject>, job: &str) -> Vec<Value> {
        let all = of.list(&ListParams::default()).await.expect("the objects").items;
        let all = all.into_iter().map(|object| serde_json::to_value(object).expect("an object"));
        let is_its = |object: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            owners.into_iter().any(|it| it["controller"] == true && it["uid"] == job)
        };
        all.filter(is_its).collect()
    }

    /// What was made for the Job with this UID: Workloads, and PodGroups.
    pub(crate) async fn made_for(&self, job: &str) -> [Vec<Value>; 2] {
        [
            Self::controlled(&self.workloads, job).await,
            Self::controlled(&self.pod_groups, job).await,
        ]
    }
}

/// Gives a PodGroup of ours the size for which the Job asks. While pods have ended for good and
/// others are still to be placed, it has fewer: a divergence.
pub(crate) fn as_asked(job: &Value, made: &mut [Vec<Value>; 2]) {
    let status = &job["status"];
    let ended = status["succeeded"].as_i64() > Some(0) || status["failedIndexes"].is_string();
    let is_ours = job["spec"]["managedBy"] == MANAGED_BY;
    let Some(asked) = size(job).filter(|_| ended && is_ours) else { return };
    for group in &mut made[1] {
        let size = &mut group["spec"]["schedulingPolicy"]["gang"]["minCount"];
        if size.as_i64().is_some_and(|size| size < asked) {
            *size = asked.into();
        }
    }
}

/// Whether all gangs have the size for which the Job asks; it is written some time after a change.
pub(crate) fn are_sized(job: &Value, made: &[Vec<Value>; 2]) -> bool {
    let Some(size) = size(job) else { return true };
    let templates = made[0].iter().map(|it| &it["spec"]["podGroupTemplates"][0]);
    let mut all = templates.chain(made[1].iter().map(|it| &it["spec"]));
    all.all(|it| it["schedulingPolicy"]["gang"]["minCount"] == size)
}

/// Gives the names that contain a hash of the Job's UID a meaning, if they are made as upstream
/// makes them; and the UIDs.
pub(crate) fn name(job: &str, made: &[Vec<Value>; 2], names: &mut Names) {
    let [workloads, pod_groups] = made;
    let of = |object: &Value, field: &str| text(&object["metadata"][field]);
    for workload in workloads {
        let name = of(workload, "name");
        let template = text(&workload["spec"]["podGroupTemplates"][0]["name"]);
        let is_of_workload =
            |group: &&Value| is_hashed(&of(group, "name"), &format!("{name}-{template}"));
        for group in pod_groups.iter().filter(is_of_workload) {
            names.add(&of(group, "name"), &format!("PODGROUP OF {job}"));
            names.add(&of(group, "uid"), "PODGROUP-UID");
        }
        if is_hashed(&name, job) {
            names.add(&name, &format!("WORKLOAD OF {job}"));
        }
        names.add(&of(workload, "uid"), "WORKLOAD-UID");
    }
}

/// Whether a name is this and a hash: decimal digits as other letters.
fn is_hashed(name: &str, stem: &str) -> bool {
    let hash = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix('-'));
    hash.is_some_and(|hash| {
        (1..=10).contains(&hash.len()) && hash.bytes().all(|it| b"456789bcdf".contains(&it))
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// What is compared of an object: its kind, name, owners and spec.
pub(crate) fn as_made(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let mut owners = metadata["ownerReferences"].clone();
    if let Some(owners) = owners.as_array_mut() {
        owners.sort_by_key(|owner| owner["kind"].to_string());
    }
    json!({"kind": object["kind"], "name": metadata["name"], "owners": owners,
           "finalizers": metadata["finalizers"], "spec": object["spec"]})
}

#[test]
fn names_with_a_hash_of_the_uid_have_a_meaning_and_others_have_none() {
    let hashed = [("j-795ddf89fd", "j"), ("w-t-67bd6bbcc4", "w-t")];
    assert!(hashed.iter().all(|(name, stem)| is_hashed(name, stem)));
    for (name, stem) in [("j", "j"), ("j-", "j"), ("k-795ddf89fd", "j"), ("j-other", "j")] {
        assert!(!is_hashed(name, stem), "{name}");
    }
}
