//! Defines the result of an API call in the terms that decisions need. The runtime crate derives it
//! from a client's error.

use std::fmt;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// The result of one call to the API.
pub type Outcome<T> = Result<T, Failure>;

/// Why a call to the API failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind that decisions depend on.
    pub kind: FailureKind,
    /// The API's own message, for people.
    pub message: String,
    /// The `Retry-After` that the server sent.
    pub retry_after: Option<SignedDuration>,
    /// Whether there was no connection, so that the server never had the request.
    #[serde(default)]
    pub unsent: bool,
}

/// The kinds of failure that decisions distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FailureKind {
    /// 404: the object is gone.
    NotFound,
    /// 409 with reason `AlreadyExists`.
    AlreadyExists,
    /// 409: the object has changed since it was read.
    Conflict,
    /// 422: the API's validation refused the object.
    Invalid,
    /// 403: RBAC, quota or admission refused the call.
    Forbidden,
    /// 403 because the namespace is being deleted.
    NamespaceTerminating,
    /// 429: the server sheds load.
    TooManyRequests,
    /// Any other 5xx.
    ServerError,
    /// No reply: the call may have been carried out.
    Unknown,
    /// Any other failure.
    Other,
}

impl Failure {
    /// A failure without a `Retry-After`.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None, unsent: false }
    }

    /// Whether the call may have been carried out.
    pub fn is_in_doubt(&self) -> bool {
        matches!(self.kind, FailureKind::Unknown | FailureKind::ServerError) && !self.unsent
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
