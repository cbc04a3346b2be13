//! A pod as the simulated kubelets read it: the few fields they need, decoded from the watch
//! without managed fields, volumes, environments and the rest.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};

use super::script;

const INDEX_ANNOTATION: &str = "batch.kubernetes.io/job-completion-index";

/// A pod's uid, shared by all tables that name it.
pub(super) type Uid = Arc<str>;

/// The wire form that `kube` decodes.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PodObject {
    #[serde(deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WireSpec,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireSpec {
    node_name: Option<String>,
    restart_policy: Option<String>,
    termination_grace_period_seconds: Option<u64>,
    containers: Vec<WireContainer>,
    init_containers: Vec<WireContainer>,
    scheduling_gates: Vec<serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireContainer {
    name: String,
    image: String,
    restart_policy: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WireStatus {
    phase: Option<String>,
    conditions: Vec<WireCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct WireCondition {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeanMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

fn lean_metadata<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let lean = LeanMetadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: lean.name,
        namespace: lean.namespace,
        uid: lean.uid,
        resource_version: lean.resource_version,
        generation: lean.generation,
        creation_timestamp: lean.creation_timestamp,
        deletion_timestamp: lean.deletion_timestamp,
        deletion_grace_period_seconds: lean.deletion_grace_period_seconds,
        annotations: lean.annotations,
        owner_references: lean.owner_references,
        ..ObjectMeta::default()
    })
}

impl kube::Resource for PodObject {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The restart policy of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Main,
    Init,
    /// A restartable init container.
    Sidecar,
}

/// A container as its spec names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContainerSpec {
    pub name: String,
    pub image: String,
    pub role: Role,
}

/// The terminal phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TerminalPhase {
    Succeeded,
    Failed,
}

/// A pod as one watch event showed it.
#[derive(Clone, Debug)]
pub(super) struct PodView {
    pub uid: Uid,
    pub namespace: String,
    pub name: String,
    pub created: Timestamp,
    pub generation: i64,
    pub node: Option<String>,
    /// The uid of the controlling owner.
    pub owner: Option<Arc<str>>,
    pub index: Option<u32>,
    pub script: Option<String>,
    pub containers: Vec<ContainerSpec>,
    pub restart_policy: RestartPolicy,
    pub grace_seconds: u64,
    /// The grace of the deletion, in seconds, once it was requested.
    pub deletion_grace_seconds: Option<u64>,
    pub ended: Option<TerminalPhase>,
    pub scheduled_condition: bool,
    pub gated: bool,
}

impl PodView {
    /// `None` for an object without the metadata that every stored pod has.
    pub(super) fn from_object(pod: PodObject) -> Option<Self> {
        let PodObject { metadata, spec, status } = pod;
        let annotations = metadata.annotations.unwrap_or_default();
        let deletion_grace_seconds = metadata.deletion_timestamp.map(|_| {
            metadata.deletion_grace_period_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0)
        });
        let owners = metadata.owner_references.unwrap_or_default();
        let owner = owners.into_iter().find(|owner| owner.controller == Some(true));
        Some(Self {
            uid: metadata.uid?.into(),
            namespace: metadata.namespace?,
            name: metadata.name?,
            created: metadata.creation_timestamp?.0,
            generation: metadata.generation.unwrap_or_default(),
            node: spec.node_name.filter(|node| !node.is_empty()),
            owner: owner.map(|owner| owner.uid.into()),
            index: annotations.get(INDEX_ANNOTATION).and_then(|index| index.parse().ok()),
            script: annotations.get(script::ANNOTATION).cloned(),
            containers: container_specs(spec.init_containers, spec.containers),
            restart_policy: match spec.restart_policy.as_deref() {
                Some("Never") => RestartPolicy::Never,
                Some("OnFailure") => RestartPolicy::OnFailure,
                _ => RestartPolicy::Always,
            },
            grace_seconds: spec.termination_grace_period_seconds.unwrap_or(30),
            deletion_grace_seconds,
            ended: match status.phase.as_deref() {
                Some("Succeeded") => Some(TerminalPhase::Succeeded),
                Some("Failed") => Some(TerminalPhase::Failed),
                _ => None,
            },
            scheduled_condition: status.conditions.iter().any(|c| c.kind == "PodScheduled"),
            gated: !spec.scheduling_gates.is_empty(),
        })
    }
}

fn container_specs(init: Vec<WireContainer>, main: Vec<WireContainer>) -> Vec<ContainerSpec> {
    let init = init.into_iter().map(|container| {
        let restarts = container.restart_policy.as_deref() == Some("Always");
        (container, if restarts { Role::Sidecar } else { Role::Init })
    });
    init.chain(main.into_iter().map(|container| (container, Role::Main)))
        .map(|(container, role)| ContainerSpec {
            name: container.name,
            image: container.image,
            role,
        })
        .collect()
}
