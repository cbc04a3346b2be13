//! Defines the result of an API call in the terms that decisions need. The runtime crate derives it
//! from a client's error.

use std::fmt;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// How the API's messages begin if admission itself failed, before anything was stored.
const FAILED_ADMISSION: [&str; 2] = [
    "Internal error occurred: failed calling webhook ",
    "Internal error occurred: resource quota evaluation timed out",
];
/// What the API's message says of an object that a webhook denies.
const DENIED_BY_WEBHOOK: (&str, &str) = ("admission webhook ", " denied the request");
/// What the API's message says of an object that a `ResourceQuota` has no room for.
const OVER_QUOTA: &str = "exceeded quota: ";

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

    /// Whether the call may have been carried out. A server that asks to repeat it later has not,
    /// and admission comes before the storage.
    pub fn is_in_doubt(&self) -> bool {
        match self.kind {
            FailureKind::Unknown => !self.unsent,
            FailureKind::ServerError => {
                let in_admission =
                    FAILED_ADMISSION.iter().any(|text| self.message.starts_with(text));
                !self.unsent && self.retry_after.is_none() && !in_admission
            }
            _ => false,
        }
    }

    /// Whether validation or admission finds the object invalid. The denial of a webhook that names
    /// no code is a 400.
    pub fn is_invalid(&self) -> bool {
        let (webhook, denied) = DENIED_BY_WEBHOOK;
        let is_denied = || self.message.contains(webhook) && self.message.contains(denied);
        self.kind == FailureKind::Invalid || self.kind == FailureKind::Other && is_denied()
    }

    /// Whether the quota of the namespace refused the object.
    pub fn is_over_quota(&self) -> bool {
        self.kind == FailureKind::Forbidden && self.message.contains(OVER_QUOTA)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_in_doubt_unless_the_server_says_that_it_was_not_carried_out() {
        let of = |kind, message: &str| Failure::new(kind, message);
        let error = |message| of(FailureKind::ServerError, message);
        let webhook = "Internal error occurred: failed calling webhook \"a.example.com\": failed \
                       to call webhook: Post \"https://a.example.com/\": context deadline exceeded";
        let second = Some(SignedDuration::from_secs(1));
        let later = Failure { retry_after: second, ..error("try again") };
        let unsent = Failure { unsent: true, ..of(FailureKind::Unknown, "refused") };
        let lost = Failure { retry_after: second, ..of(FailureKind::Unknown, "no reply in time") };
        for (failure, doubt) in [
            (error("Internal error occurred: etcdserver: request timed out"), true),
            (error("HTTP 502: failed calling webhook by a proxy"), true),
            (lost, true),
            (error(webhook), false),
            (later, false),
            (unsent, false),
            (of(FailureKind::Forbidden, "no"), false),
        ] {
            assert_eq!(failure.is_in_doubt(), doubt, "{failure:?}");
        }
    }

    #[test]
    fn a_denial_by_a_webhook_without_a_code_is_one_of_admission() {
        let denied = "admission webhook \"pods.example.com\" denied the request: not now";
        for (kind, message, invalid) in [
            (FailureKind::Invalid, "spec.x: Forbidden", true),
            (FailureKind::Other, denied, true),
            (FailureKind::Other, "the body could not be decoded", false),
            // Its own code decides.
            (FailureKind::Forbidden, denied, false),
            (FailureKind::TooManyRequests, denied, false),
        ] {
            assert_eq!(Failure::new(kind, message).is_invalid(), invalid, "{kind:?} {message}");
        }
    }

    #[test]
    fn only_the_quota_s_own_refusal_is_one_of_quota() {
        let quota = "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, \
                     limited: pods=4";
        assert!(Failure::new(FailureKind::Forbidden, quota).is_over_quota());
        assert!(!Failure::new(FailureKind::Forbidden, "no ServiceAccount").is_over_quota());
        assert!(!Failure::new(FailureKind::Invalid, quota).is_over_quota());
    }
}
