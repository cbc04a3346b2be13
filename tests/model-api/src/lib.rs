//! A model of kube-apiserver: a `tower` service that stands beneath a real `kube::Client`.
//!
//! It keeps its objects in memory, has no threads, and waits only in tokio's time, so that programs
//! run on it in paused time. The same requests give the same answers. The suite `model_api` holds
//! it against the real API; what it leaves out is listed there.
//!
//! It speaks JSON for pods, Jobs, nodes, namespaces, events, Leases and PriorityClasses. Where a
//! test switches gang scheduling on, it has Workloads and PodGroups, too. It knows no users:
//! whether a program has its rights is a question for the real API.

mod access_log;
mod call;
mod deletion;
mod documents;
mod faults;
mod gangs;
mod jobs;
mod kind;
mod list;
mod metadata;
mod patch;
mod pods;
mod protobuf;
mod refusal;
mod rules;
mod selector;
mod service;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod watch;

pub use access_log::Access;
pub use call::Verb;
pub use faults::{Effect, Fault, FaultId, Flaw, Matcher, Webhook};
pub use kind::Kind;
pub use protobuf::{PROTOBUF, object as protobuf};
pub use refusal::Refusal;
pub use service::{ModelApi, ReplyBody};
pub use store::Snapshot;
