//! Defines the slim views of API objects that decisions read.

mod failure_policy;
pub mod fields;
mod gc_facts;
mod groups;
mod interner;
mod job;
mod json;
mod labels;
pub mod lenient;
mod pod;
mod pod_view;
mod protobuf;
mod reply;
mod scheduling;
mod selector;
mod source;
mod uid;
mod whole_job;
pub(crate) mod wire;

pub use failure_policy::{FailurePolicy, FailureRule};
pub use gc_facts::{GcFacts, Said, Target};
pub use groups::{GroupKey, GroupTemplate, PodGroup, Workload};
pub use interner::Interner;
pub use job::{CompletionMode, Job, JobKey, JobSpec, RestartPolicy};
pub(crate) use json::{Fields, raw};
pub use json::{Json, read};
pub use labels::Labels;
#[cfg(test)]
pub(crate) use pod::MATCHES;
pub use pod::{
    Condition, Container, ContainerKind, Deletion, EndedBy, FailureCounts, Owner, Phase, Pod,
    ReadyCondition, Terminated, Tristate,
};
pub(crate) use protobuf::{EntryMessage, retain, status_message, with_spec};
pub use reply::Reply;
pub use scheduling::{
    DisruptionMode, GangPolicy, JobScheduling, Nothing, ResourceClaim, SchedulingConstraints,
    SchedulingPolicy, SchedulingSpec, TopologyConstraint, TypedReference,
};
pub(crate) use selector::Needed;
pub use selector::Selector;
pub use source::{Source, UnknownFields};
pub use uid::{Uid, Version};
pub(crate) use whole_job::RawSpec;
pub use whole_job::WholeJob;
pub use wire::{WireJob, WirePod};
