//! Builds the bodies of Workloads and PodGroups, and the patches of their sizes.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{PodGroupDraft, Resize, Resized, WorkloadDraft};
use crate::job::body::controller_reference;
use crate::job::pod_template::priority_class;
use crate::view::{
    DisruptionMode, Fields, GangPolicy, Job, Nothing, ResourceClaim, SchedulingConstraints,
    SchedulingPolicy, SchedulingSpec, TypedReference, Workload, raw,
};

/// The version of the API that has both kinds.
const API_VERSION: &str = "scheduling.k8s.io/v1beta1";
/// The fields of a template that a PodGroup has, too.
const OF_TEMPLATE: [&str; 6] = [
    "schedulingPolicy",
    "schedulingConstraints",
    "disruptionMode",
    "resourceClaims",
    "priorityClassName",
    "priority",
];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Template {
    name: String,
    scheduling_policy: SchedulingPolicy,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduling_constraints: Option<SchedulingConstraints>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disruption_mode: Option<DisruptionMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_claims: Option<Vec<ResourceClaim>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority_class_name: Option<String>,
}

/// The body that creates a Workload. (W3)
pub fn workload_body(job: &Job, draft: &WorkloadDraft) -> Vec<u8> {
    let spec = job.scheduling.as_ref().and_then(|it| it.spec.clone()).unwrap_or_default();
    let SchedulingSpec { scheduling_constraints, disruption_mode, resource_claims, .. } = spec;
    let scheduling_policy = match draft.min_count {
        Some(min_count) => SchedulingPolicy {
            gang: Some(GangPolicy { min_count: Some(min_count) }),
            ..SchedulingPolicy::default()
        },
        None => SchedulingPolicy { basic: Some(Nothing {}), ..SchedulingPolicy::default() },
    };
    let template = Template {
        name: draft.template.clone(),
        scheduling_policy,
        scheduling_constraints: scheduling_constraints.filter(|it| !it.topology.is_empty()),
        disruption_mode,
        resource_claims: resource_claims.filter(|claims| !claims.is_empty()),
        priority_class_name: priority_class(&job.source),
    };
    let controller = TypedReference::of_job(&job.key.name);
    let body = json!({
        "apiVersion": API_VERSION,
        "kind": "Workload",
        "metadata": {
            "name": draft.name,
            "namespace": &*job.key.namespace,
            "ownerReferences": [controller_reference(job)],
        },
        "spec": {"controllerRef": controller, "podGroupTemplates": [template]},
    });
    body.to_string().into_bytes()
}

/// The body that creates a PodGroup: the template as it came, and where it is. (W7)
pub fn pod_group_body(job: &Job, draft: &PodGroupDraft) -> Vec<u8> {
    let PodGroupDraft { workload, template, .. } = draft;
    let of_workload = draft.is_own.then(|| workload_reference(workload));
    let owners: Vec<_> = [controller_reference(job)].into_iter().chain(of_workload).collect();
    let mut spec: Fields = template.source.read();
    spec.retain(|field, _| OF_TEMPLATE.contains(&field.as_str()));
    let template_of = json!({"workloadName": &*workload.key.1, "templateName": &*template.name});
    spec.insert("workloadRef".to_owned(), raw(&template_of));
    let metadata = json!({
        "name": draft.name,
        "namespace": &*job.key.namespace,
        "ownerReferences": owners,
    });
    body("PodGroup", &metadata, &spec).get().as_bytes().to_vec()
}

fn body(kind: &str, metadata: &Value, spec: &Fields) -> Box<RawValue> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Object<'a> {
        api_version: &'a str,
        kind: &'a str,
        metadata: &'a Value,
        spec: &'a Fields,
    }
    raw(&Object { api_version: API_VERSION, kind, metadata, spec })
}

/// The Workload as an owner that is not the controller, and whose deletion waits for nothing.
fn workload_reference(workload: &Workload) -> Value {
    let (name, uid) = (&*workload.key.1, workload.uid.as_str());
    json!({"apiVersion": API_VERSION, "kind": "Workload", "name": name, "uid": uid})
}

/// The JSON patch of a size. It names the object's UID and the size that was read, so the API
/// refuses it for another object, and after another change.
pub fn resize_patch(resize: &Resize) -> Value {
    let path = match resize.object {
        Resized::Workload => "/spec/podGroupTemplates/0/schedulingPolicy/gang/minCount",
        Resized::PodGroup => "/spec/schedulingPolicy/gang/minCount",
    };
    json!([
        {"op": "test", "path": "/metadata/uid", "value": resize.uid.as_str()},
        {"op": "test", "path": path, "value": resize.from},
        {"op": "replace", "path": path, "value": resize.to},
    ])
}
