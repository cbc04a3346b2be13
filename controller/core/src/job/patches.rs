//! Builds what goes to the API: the JSON of patches of pods, and the status write.

use epilogue_common::names::TRACKING_FINALIZER;
use k8s_openapi::api::batch::v1::JobStatus;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::body::Body;
use super::steps::{Claim, ClaimKind};
use crate::view::{Job, Json, Pod, Source, status_message};

/// The strategic-merge patch that removes the tracking finalizer.
///
/// DIVERGES(upstream): it names the pod's `uid`, so the API refuses it for another pod of the same
/// name. Upstream's patch frees that pod, whose failure is then never counted. ([L4])
pub fn remove_finalizer_patch(pod: &Pod) -> Value {
    json!({"metadata": {
        "uid": pod.uid.as_str(),
        "$deleteFromPrimitiveList/finalizers": [TRACKING_FINALIZER],
    }})
}

/// The options of a deletion.
///
/// DIVERGES(upstream): only of this pod; upstream deletes whatever pod has the name by then. ([L4])
pub fn delete_options(pod: &Pod) -> Value {
    json!({"preconditions": {"uid": pod.uid.as_str()}})
}

/// The strategic-merge patch of a claim. With its `uid` the API refuses it for another pod of the
/// same name.
///
/// DIVERGES(upstream): a patch that adds the finalizer also names the version that was read. When
/// upstream's patch comes late, it restores the finalizer of a pod that was counted and released
/// since. That pod then counts twice. ([L4])
pub fn claim_patch(job: &Job, claim: &Claim) -> Value {
    let uid = claim.pod.uid.as_str();
    let version = claim.pod.version.to_string();
    match claim.kind {
        ClaimKind::Adopt => json!({"metadata": {
            "uid": uid,
            "resourceVersion": version,
            "ownerReferences": [controller_reference(job)],
            "finalizers": [TRACKING_FINALIZER],
        }}),
        ClaimKind::Disown => json!({"metadata": {
            "uid": uid,
            "ownerReferences": [{"$patch": "delete", "uid": job.uid.as_str()}],
            "$deleteFromPrimitiveList/finalizers": [TRACKING_FINALIZER],
        }}),
        ClaimKind::Track => json!({"metadata": {
            "uid": uid,
            "resourceVersion": version,
            "finalizers": [TRACKING_FINALIZER],
        }}),
    }
}

/// The owner reference that names this Job as the controller. ([B3])
pub(super) fn controller_reference(job: &Job) -> Value {
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": &*job.key.name,
        "uid": job.uid.as_str(),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusBody<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: &'a Json,
    status: Map<String, Value>,
}

/// The body of a status write: metadata as read, the new status, and unknown status fields. The API
/// takes the spec from what it has stored.
pub fn status_body(job: &Job, status: &JobStatus) -> Result<Body, serde_json::Error> {
    let (metadata, unknown) = match &job.source {
        Source::Json { metadata, status_unknown, .. } => (metadata, status_unknown),
        Source::Protobuf { metadata, status_unknown, .. } => {
            let message = status_message(metadata, status_unknown, status);
            return Ok(Body::protobuf("batch/v1", "Job", message));
        }
    };
    let mut fields = unknown.clone();
    if let Value::Object(known) = serde_json::to_value(status)? {
        fields.extend(known);
    }
    let body = StatusBody { api_version: "batch/v1", kind: "Job", metadata, status: fields };
    serde_json::value::to_raw_value(&body).map(Body::Json)
}
