//! What became of one call to the API, in the terms that decisions are made in. Reading it out
//! of a client's error is the runtime's job.

use std::fmt;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// The result of one call to the API.
pub type Outcome<T> = Result<T, Failure>;

/// Why a call to the API did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The class that decisions depend on.
    pub kind: FailureKind,
    /// The API's own words, for people.
    pub message: String,
    /// How long the server asked to be left alone (`Retry-After`).
    pub retry_after: Option<SignedDuration>,
}

/// The classes of failure that some decision tells apart.
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
    /// 403: RBAC, quota or admission said no.
    Forbidden,
    /// 403 whose cause is that the namespace is being deleted.
    NamespaceTerminating,
    /// 429: the server sheds load.
    TooManyRequests,
    /// Another 5xx.
    ServerError,
    /// No reply: the call may have been carried out.
    Unknown,
    /// Anything else.
    Other,
}

impl Failure {
    /// A failure without a `Retry-After`.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
