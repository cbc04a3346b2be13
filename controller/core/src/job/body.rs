//! Builds the bodies of writes: what is created, patched and deleted, and the status. A body has
//! the format of the Job that it is made from.

use epilogue_common::names::TRACKING_FINALIZER;
use epilogue_common::names::media_type::{JSON, PROTOBUF, PROTOBUF_MAGIC};
use epilogue_common::names::pod_condition::{DISRUPTION_TARGET, PENDING_TIMEOUT};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::JobStatus;
use prost::Message;
use prost::bytes::Bytes;
use serde::Serialize;
use serde::ser::Error as _;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::node_fault::NodeFault;
use super::steps::{Claim, ClaimKind};
use crate::view::{
    Job, Json, Pod, RawSpec, Source, UnknownFields, Version, WholeJob, WirePod, status_message,
    with_spec,
};

/// The body of a create call or of a status write.
#[derive(Clone, Debug)]
pub enum Body {
    /// A JSON object.
    Json(Box<RawValue>),
    /// A protobuf message in its envelope.
    Protobuf(Vec<u8>),
}

/// `runtime.Unknown`.
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    kind: Option<TypeMeta>,
    #[prost(bytes = "bytes", tag = "2")]
    message: Bytes,
}

/// `runtime.TypeMeta`.
#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

impl Body {
    /// An object of this kind, from its message.
    pub(super) fn protobuf(api_version: &str, kind: &str, message: Vec<u8>) -> Self {
        let kind = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
        let envelope = Envelope { kind: Some(kind), message: message.into() };
        let mut body = PROTOBUF_MAGIC.to_vec();
        body.reserve_exact(envelope.encoded_len());
        envelope.encode(&mut body).expect("a vector grows");
        Self::Protobuf(body)
    }

    /// The value of the header `Content-Type`.
    pub fn content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => JSON,
            Self::Protobuf(_) => PROTOBUF,
        }
    }

    /// The bytes to send.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Json(text) => Box::<str>::from(text).into_string().into_bytes(),
            Self::Protobuf(bytes) => bytes,
        }
    }

    /// The pod that it creates; `None` if it creates none.
    pub fn pod(&self) -> Option<WirePod> {
        match self {
            Self::Json(text) => serde_json::from_str(text.get()).ok(),
            Self::Protobuf(bytes) => {
                let envelope = Envelope::decode(bytes.strip_prefix(PROTOBUF_MAGIC)?).ok()?;
                WirePod::decode(&envelope.message).ok()
            }
        }
    }

    /// The JSON text, if it is JSON.
    pub fn json(&self) -> Option<&str> {
        match self {
            Self::Json(text) => Some(text.get()),
            Self::Protobuf(_) => None,
        }
    }
}

// Builds what goes to the API: the JSON of patches of pods, and the status write.

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

/// The strategic-merge patch that removes the tracking finalizer from a pod that is deleted next,
/// or that has no Job to count it.
///
/// DIVERGES(upstream): only of the version that was read. When upstream's patch comes after the pod
/// has succeeded, or after another Job has adopted it, that success is never counted, and its work
/// runs once more. ([P14])
pub fn strip_patch(pod: &Pod) -> Value {
    let mut patch = remove_finalizer_patch(pod);
    // A version that could not be read would be refused for ever.
    if pod.version != Version::default() {
        patch["metadata"]["resourceVersion"] = pod.version.to_string().into();
    }
    patch
}

/// The options of a deletion.
///
/// DIVERGES(upstream): only of this pod, and of one without its finalizer only until it is written
/// again. Upstream deletes whatever pod has the name by then. ([L4])
pub fn delete_options(pod: &Pod, version: Option<Version>) -> Value {
    let mut preconditions = json!({"uid": pod.uid.as_str()});
    // A version that could not be read would be refused for ever.
    if let Some(version) = version.filter(|version| *version != Version::default()) {
        preconditions["resourceVersion"] = version.to_string().into();
    }
    json!({"preconditions": preconditions})
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
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<&'a Json>,
    status: Map<String, Value>,
}

/// The body of a status write: metadata as read, the new status, and unknown status fields. The API
/// takes the spec from what it has stored.
pub fn status_body(job: &Job, status: &JobStatus) -> Result<Body, serde_json::Error> {
    body_of(job, None, status)
}

/// The same with the spec as it came, for admission that reads it.
pub fn whole_status_body(whole: &WholeJob, status: &JobStatus) -> Result<Body, serde_json::Error> {
    body_of(&whole.job, Some(&whole.spec), status)
}

fn body_of(
    job: &Job,
    spec: Option<&RawSpec>,
    status: &JobStatus,
) -> Result<Body, serde_json::Error> {
    let (metadata, unknown) = match &job.source {
        Source::Json { metadata, status_unknown, .. } => (metadata, status_unknown),
        Source::Protobuf { metadata, status_unknown, .. } => {
            let mut message = status_message(metadata, status_unknown, status);
            if let Some(RawSpec::Protobuf(spec)) = spec {
                message = with_spec(message, spec);
            }
            return Ok(Body::protobuf("batch/v1", "Job", message));
        }
        Source::Unkept { .. } => {
            return Err(serde_json::Error::custom("the Job is not read as it is stored"));
        }
    };
    let spec = spec.and_then(|spec| match spec {
        RawSpec::Json(spec) => Some(spec),
        RawSpec::Protobuf(_) => None,
    });
    let status = status_fields(unknown, status)?;
    let body = StatusBody { api_version: "batch/v1", kind: "Job", metadata, spec, status };
    serde_json::value::to_raw_value(&body).map(Body::Json)
}

/// The new status, with the unknown fields that the old one had.
fn status_fields(
    unknown: &UnknownFields<Map<String, Value>>,
    status: &JobStatus,
) -> Result<Map<String, Value>, serde_json::Error> {
    let mut fields = unknown.status.clone();
    let Value::Object(known) = serde_json::to_value(status)? else { return Ok(fields) };
    fields.extend(known);
    let conditions = fields.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        let text = |field: &str| condition.get(field).and_then(Value::as_str).unwrap_or_default();
        if let Some(unknown) = unknown.of_condition(text("type"), text("status")) {
            condition.extend(unknown.clone());
        }
    }
    if let Some(Value::Object(uncounted)) = fields.get_mut("uncountedTerminatedPods") {
        uncounted.extend(unknown.uncounted.clone());
    }
    Ok(fields)
}

/// Why the pod does not start, as its containers report it.
pub(super) fn pending_reason(pod: &Pod) -> &str {
    let waiting = pod.containers.iter().find_map(|container| container.waiting.as_deref());
    match (waiting, &pod.node) {
        (Some(reason), _) => reason,
        (None, None) => "Unschedulable",
        (None, Some(_)) => "NotStarted",
    }
}

/// The strategic-merge patch of `pods/status`. With its resourceVersion the API refuses it when the
/// pod has changed meanwhile, for example because it was bound to a node.
pub fn fail_pending_patch(pod: &Pod, now: Timestamp) -> Value {
    let reason = pending_reason(pod);
    let message = format!("the pod did not start within its Job's pending-timeout: {reason}");
    let condition = json!({
        "type": PENDING_TIMEOUT, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    });
    let mut status = json!({"conditions": [condition]});
    if pod.node.is_none() {
        status["phase"] = "Failed".into();
        status["reason"] = "PendingTimeout".into();
        status["message"] = message.into();
    }
    json!({
        "metadata": {"uid": pod.uid.as_str(), "resourceVersion": pod.version.to_string()},
        "status": status,
    })
}

/// The strategic-merge patch of `pods/status` for a pod that failed by a fault of its node. It
/// names the version that was read.
pub fn mark_fault_patch(fault: &NodeFault, now: Timestamp) -> Value {
    let pod = &fault.pod;
    json!({
        "metadata": {"uid": pod.uid.as_str(), "resourceVersion": pod.version.to_string()},
        "status": {"conditions": [{
            "type": DISRUPTION_TARGET, "status": "True", "reason": fault.kind.reason(),
            "message": fault.to_string(),
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }]},
    })
}
