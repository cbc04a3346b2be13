//! Views what a Job says about how its pods are scheduled together.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::{Deserialize, Serialize};

/// What a Job says about the scheduling of its pods as a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobScheduling {
    /// `spec.scheduling`.
    pub spec: Option<SchedulingSpec>,
    /// Whether `spec.template.spec.schedulingGroup` names a PodGroup.
    pub has_own_group: bool,
    /// The controller among `metadata.ownerReferences`.
    pub controller: Option<TypedReference>,
    /// The annotation `scheduling.k8s.io/group-template-name`.
    pub group_template: Option<String>,
}

/// An object of the same namespace, without its UID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TypedReference {
    /// `apiGroup`, empty for the core group.
    pub api_group: String,
    /// `kind`.
    pub kind: String,
    /// `name`.
    pub name: String,
}

/// `spec.scheduling` of a Job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingSpec {
    /// `schedulingPolicy`.
    pub scheduling_policy: Option<SchedulingPolicy>,
    /// `schedulingConstraints`.
    pub scheduling_constraints: Option<SchedulingConstraints>,
    /// `disruptionMode`.
    pub disruption_mode: Option<DisruptionMode>,
    /// `resourceClaims`.
    pub resource_claims: Option<Vec<ResourceClaim>>,
}

/// `schedulingPolicy`. One with neither member is of a later API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingPolicy {
    /// `basic`: each pod alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basic: Option<Nothing>,
    /// `gang`: so many pods at once, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangPolicy>,
}

/// `schedulingPolicy.gang`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GangPolicy {
    /// `minCount`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_count: Option<i32>,
}

/// `schedulingConstraints`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SchedulingConstraints {
    /// `topology`.
    pub topology: Vec<TopologyConstraint>,
}

/// A domain of nodes that all pods of the group share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopologyConstraint {
    /// `key`: the label of nodes.
    pub key: String,
}

/// `disruptionMode`. One with neither member is of a later API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DisruptionMode {
    /// `single`: each pod alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub single: Option<Nothing>,
    /// `all`: all pods of the group together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all: Option<Nothing>,
}

/// An entry of `resourceClaims`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceClaim {
    /// `name`.
    pub name: String,
    /// `resourceClaimName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim_name: Option<String>,
    /// `resourceClaimTemplateName`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim_template_name: Option<String>,
}

/// An object without fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nothing {}

impl JobScheduling {
    /// Whether its owner asks for a group that this controller is to make.
    pub fn asks_for_group(&self) -> bool {
        !self.has_own_group && (self.spec.is_some() || self.group_template.is_some())
    }

    /// Whether the Job says anything.
    pub(super) fn says_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl SchedulingSpec {
    /// The gang, if `schedulingPolicy` asks for one.
    pub fn gang(&self) -> Option<&GangPolicy> {
        self.scheduling_policy.as_ref()?.gang.as_ref()
    }
}

impl TypedReference {
    /// The Job of this name.
    pub(crate) fn of_job(name: &str) -> Self {
        Self { api_group: "batch".to_owned(), kind: "Job".to_owned(), name: name.to_owned() }
    }

    /// The controller among these owners.
    pub(super) fn of_controller(owners: &[OwnerReference]) -> Option<Self> {
        let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
        Some(Self {
            api_group: group(&owner.api_version).to_owned(),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
        })
    }
}

/// The group in an `apiVersion`; empty for the core group.
fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}
