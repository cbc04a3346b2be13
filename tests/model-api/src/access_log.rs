//! Records every call and its answer, for verdicts.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::call::Verb;
use crate::kind::Kind;

/// One call.
#[derive(Clone, Debug)]
pub struct Access {
    /// When its work was done.
    pub at: Timestamp,
    /// The caller's user agent.
    pub agent: String,
    /// What it does.
    pub verb: Verb,
    /// The kind of its object.
    pub kind: Kind,
    /// Its namespace; empty for all.
    pub namespace: String,
    /// The name in its path; empty for a collection.
    pub name: String,
    /// Its subresource; empty for the object itself.
    pub subresource: String,
    /// Its parameters.
    pub query: Arc<BTreeMap<String, String>>,
    /// Its body; null without one.
    pub body: Arc<Value>,
    /// Whether its body or its answer is protobuf.
    pub is_protobuf: bool,
    /// The HTTP status code of its answer.
    pub code: u16,
    /// `reason` of a refusal.
    pub reason: String,
    /// The object or the Status of the answer; null for a watch.
    pub answer: Arc<Value>,
    /// The newest version after its work.
    pub version: u64,
    /// Whether the caller never got the answer.
    pub is_lost: bool,
}
