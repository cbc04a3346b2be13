//! Views Workloads and PodGroups: what of them decides the scheduling group of a Job's pods.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

use super::json::{Json, read};
use super::lenient::lean_metadata;
use super::{DisruptionMode, SchedulingPolicy, TypedReference, Uid, Version};

/// Namespace and name of a Workload or a PodGroup.
pub type GroupKey = (Arc<str>, Arc<str>);

/// The view of a Workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Namespace and name.
    pub key: GroupKey,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`.
    pub version: Version,
    /// The UID of its controller.
    pub owner: Option<Uid>,
    /// `spec.controllerRef`.
    pub controller: Option<TypedReference>,
    /// `spec.podGroupTemplates`.
    pub templates: Vec<GroupTemplate>,
}

/// An entry of `spec.podGroupTemplates`.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupTemplate {
    /// `name`.
    pub name: Arc<str>,
    /// `schedulingPolicy.gang.minCount`; `None` without a gang.
    pub min_count: Option<i32>,
    /// The whole entry, which a PodGroup repeats.
    pub source: Json,
}

/// The view of a PodGroup.
#[derive(Clone, Debug, PartialEq)]
pub struct PodGroup {
    /// Namespace and name.
    pub key: GroupKey,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`.
    pub version: Version,
    /// The UID of its controller.
    pub owner: Option<Uid>,
    /// `spec.workloadRef.workloadName`.
    pub workload: Option<Arc<str>>,
    /// `spec.schedulingPolicy.gang.minCount`; `None` without a gang.
    pub min_count: Option<i32>,
    /// Whether `spec.disruptionMode` is `all`.
    pub is_disrupted_whole: bool,
}

#[derive(Deserialize)]
struct WireWorkload {
    #[serde(default, deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WireWorkloadSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireWorkloadSpec {
    controller_ref: Option<TypedReference>,
    pod_group_templates: Option<Vec<Json>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WireTemplate {
    name: String,
    scheduling_policy: SchedulingPolicy,
}

#[derive(Deserialize)]
struct WirePodGroup {
    #[serde(default, deserialize_with = "lean_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WirePodGroupSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WirePodGroupSpec {
    workload_ref: Option<WorkloadReference>,
    scheduling_policy: SchedulingPolicy,
    disruption_mode: DisruptionMode,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WorkloadReference {
    workload_name: String,
}

impl Workload {
    /// Reads a Workload from its JSON; the error names the field.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        let WireWorkload { metadata, spec } = read(text)?;
        let templates = spec.pod_group_templates.unwrap_or_default().into_iter();
        Ok(Self {
            key: key(&metadata),
            owner: owner(&metadata),
            uid: metadata.uid.unwrap_or_default().into(),
            version: Version::parse(&metadata.resource_version.unwrap_or_default()),
            controller: spec.controller_ref,
            templates: templates.map(GroupTemplate::of).collect(),
        })
    }

    /// Whether it is the Workload of a single Job.
    pub(crate) fn is_of_job(&self) -> bool {
        self.controller.as_ref().is_some_and(|it| it.kind == "Job" && it.api_group == "batch")
    }

    /// The template of this name.
    pub fn template(&self, name: &str) -> Option<&GroupTemplate> {
        self.templates.iter().find(|template| &*template.name == name)
    }
}

impl GroupTemplate {
    fn of(source: Json) -> Self {
        let template: WireTemplate = source.read();
        Self {
            name: template.name.into(),
            min_count: min_count(&template.scheduling_policy),
            source,
        }
    }
}

impl PodGroup {
    /// Reads a PodGroup from its JSON; the error names the field.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        let WirePodGroup { metadata, spec } = read(text)?;
        Ok(Self {
            key: key(&metadata),
            owner: owner(&metadata),
            uid: metadata.uid.unwrap_or_default().into(),
            version: Version::parse(&metadata.resource_version.unwrap_or_default()),
            workload: spec.workload_ref.map(|it| it.workload_name.into()),
            min_count: min_count(&spec.scheduling_policy),
            is_disrupted_whole: spec.disruption_mode.all.is_some(),
        })
    }
}

fn key(metadata: &ObjectMeta) -> GroupKey {
    let text = |part: &Option<String>| Arc::from(part.as_deref().unwrap_or_default());
    (text(&metadata.namespace), text(&metadata.name))
}

fn owner(metadata: &ObjectMeta) -> Option<Uid> {
    let owners = metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    controllers.next().map(|owner| owner.uid.as_str().into())
}

fn min_count(policy: &SchedulingPolicy) -> Option<i32> {
    Some(policy.gang.as_ref()?.min_count.unwrap_or(1))
}
