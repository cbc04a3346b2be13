//! Reads `spec.scheduling` of a Job from the API's protobuf.

use prost::Message;

use super::{Text, text};
use crate::view::scheduling::{
    DisruptionMode, GangPolicy, Nothing, ResourceClaim, SchedulingConstraints, SchedulingPolicy,
    SchedulingSpec, TopologyConstraint,
};

#[derive(Clone, PartialEq, Message)]
pub(super) struct SchedulingMessage {
    #[prost(message, optional, tag = "1")]
    policy: Option<PolicyMessage>,
    #[prost(message, optional, tag = "2")]
    constraints: Option<ConstraintsMessage>,
    #[prost(message, optional, tag = "3")]
    disruption_mode: Option<DisruptionModeMessage>,
    #[prost(message, repeated, tag = "4")]
    resource_claims: Vec<ResourceClaimMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct PolicyMessage {
    #[prost(message, optional, tag = "1")]
    basic: Option<()>,
    #[prost(message, optional, tag = "2")]
    gang: Option<GangMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct GangMessage {
    #[prost(int32, optional, tag = "1")]
    min_count: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ConstraintsMessage {
    #[prost(message, repeated, tag = "1")]
    topology: Vec<TopologyMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct TopologyMessage {
    #[prost(bytes = "vec", tag = "1")]
    key: Text,
}

#[derive(Clone, PartialEq, Message)]
struct DisruptionModeMessage {
    #[prost(message, optional, tag = "1")]
    single: Option<()>,
    #[prost(message, optional, tag = "2")]
    all: Option<()>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceClaimMessage {
    #[prost(bytes = "vec", tag = "1")]
    name: Text,
    #[prost(bytes = "vec", optional, tag = "2")]
    claim: Option<Text>,
    #[prost(bytes = "vec", optional, tag = "3")]
    template: Option<Text>,
}

impl SchedulingMessage {
    pub(super) fn read(self) -> SchedulingSpec {
        let policy = |it: PolicyMessage| SchedulingPolicy {
            basic: it.basic.map(|()| Nothing {}),
            gang: it.gang.map(|gang| GangPolicy { min_count: gang.min_count }),
        };
        let constraints = |it: ConstraintsMessage| {
            let keys = it.topology.into_iter();
            let topology = keys.map(|it| TopologyConstraint { key: text(it.key) }).collect();
            SchedulingConstraints { topology }
        };
        let mode = |it: DisruptionModeMessage| DisruptionMode {
            single: it.single.map(|()| Nothing {}),
            all: it.all.map(|()| Nothing {}),
        };
        let claim = |it: ResourceClaimMessage| ResourceClaim {
            name: text(it.name),
            resource_claim_name: it.claim.map(text),
            resource_claim_template_name: it.template.map(text),
        };
        let claims: Vec<_> = self.resource_claims.into_iter().map(claim).collect();
        SchedulingSpec {
            scheduling_policy: self.policy.map(policy),
            scheduling_constraints: self.constraints.map(constraints),
            disruption_mode: self.disruption_mode.map(mode),
            resource_claims: Some(claims).filter(|claims| !claims.is_empty()),
        }
    }
}

#[cfg(test)]
pub(super) fn sample() -> SchedulingMessage {
    SchedulingMessage {
        policy: Some(PolicyMessage { basic: None, gang: Some(GangMessage { min_count: Some(2) }) }),
        constraints: Some(ConstraintsMessage {
            topology: vec![TopologyMessage { key: "zone".into() }],
        }),
        disruption_mode: Some(DisruptionModeMessage { single: None, all: Some(()) }),
        resource_claims: vec![ResourceClaimMessage {
            name: "gpu".into(),
            claim: None,
            template: Some("gpus".into()),
        }],
    }
}
