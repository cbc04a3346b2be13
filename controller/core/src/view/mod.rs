//! Defines the slim views of API objects that decisions read.

mod gc_facts;
mod job;
mod json;
pub(crate) mod lenient;
mod pod;
mod protobuf;
mod selector;
mod uid;
pub(crate) mod wire;

pub use gc_facts::{GcFacts, Target};
pub use job::{CompletionMode, Job, JobKey, JobSpec, RestartPolicy};
pub(crate) use json::{Fields, raw};
pub use json::{Json, read};
pub use pod::{
    Condition, Container, ContainerKind, Deletion, FailureCounts, Owner, Phase, Pod,
    ReadyCondition, Terminated, Tristate,
};
pub use selector::Selector;
pub use uid::{Uid, Version};
pub use wire::{Interner, WireJob, WirePod};
