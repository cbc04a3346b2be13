//! Answers that refuse a request, as the API writes them.

use serde_json::{Value, json};

use crate::kind::Kind;

/// Why a request is refused: a `v1` Status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status code.
    pub code: u16,
    /// `reason`, such as `Conflict`; empty where the API gives none.
    pub reason: String,
    /// `message`.
    pub message: String,
    /// `reason` of the causes in `details`.
    pub causes: Vec<String>,
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
    /// The token with which an expired list can go on.
    pub token: Option<String>,
}

impl Refusal {
    /// Any refusal.
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
            message: message.into(),
            causes: Vec::new(),
            retry_after: None,
            token: None,
        }
    }

    /// 403.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(403, "Forbidden", message)
    }

    /// 403, as the admission of a quota gives it.
    pub fn exceeded_quota(kind: Kind) -> Self {
        let plural = kind.facts().plural;
        Self::forbidden(format!("{plural} is forbidden: exceeded quota: model, requested: 1"))
    }

    /// As a webhook of this name denies: the code, reason and message are what it answers. Without
    /// a code the API gives 400.
    pub fn denied_by_webhook(webhook: &str, code: u16, reason: &str, message: &str) -> Self {
        let message = format!("admission webhook {webhook:?} denied the request: {message}");
        Self::new(code, reason, message)
    }

    /// 500, as for a webhook of this name that does not answer, and whose policy is to fail.
    pub fn unreachable_webhook(webhook: &str, error: &str) -> Self {
        Self::internal(format!(
            "Internal error occurred: failed calling webhook {webhook:?}: failed to call webhook: \
             {error}"
        ))
    }

    /// 422, as a `ValidatingAdmissionPolicy` without a reason denies. Its binding has its name.
    pub fn denied_by_policy(kind: Kind, name: &str, policy: &str, message: &str) -> Self {
        let resource = resource(kind);
        let message = format!(
            "{resource} {name:?} is forbidden: ValidatingAdmissionPolicy '{policy}' with binding \
             '{policy}' denied request: {message}"
        );
        Self::new(422, "Invalid", message)
    }

    /// 403, as the admission of namespaces that are being deleted gives it.
    pub fn terminating(namespace: &str) -> Self {
        let message = format!(
            "unable to create new content in namespace {namespace} because it \
                               is being terminated"
        );
        let mut refusal = Self::forbidden(message);
        refusal.causes.push("NamespaceTerminating".to_owned());
        refusal
    }

    /// 429, with a `Retry-After` in seconds.
    pub fn too_many_requests(retry_after: u32) -> Self {
        let message = "the server has received too many requests and has asked us to try again \
                       later";
        let refusal = Self::new(429, "TooManyRequests", message);
        Self { retry_after: Some(retry_after), ..refusal }
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message)
    }

    /// 404 for an object.
    pub fn not_found(kind: Kind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", resource(kind)))
    }

    /// 404 for a path.
    pub(crate) fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    /// 409 for a name that is taken.
    pub(crate) fn already_exists(kind: Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.facts().plural);
        Self::new(409, "AlreadyExists", message)
    }

    /// 409.
    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(409, "Conflict", message)
    }

    /// 409 for a write at an old version.
    pub(crate) fn modified(kind: Kind, name: &str) -> Self {
        Self::conflict(format!(
            "Operation cannot be fulfilled on {} {name:?}: the object has been modified; please \
             apply your changes to the latest version and try again",
            kind.facts().plural
        ))
    }

    /// 422; the reason of its cause is one such as `FieldValueInvalid`.
    pub(crate) fn invalid(field: &str, cause: &str, problem: &str) -> Self {
        let mut refusal = Self::new(422, "Invalid", format!("{field}: {problem}"));
        refusal.causes.push(cause.to_owned());
        refusal
    }

    /// 422 for a value that may not change.
    pub(crate) fn immutable(field: &str) -> Self {
        Self::invalid(field, "FieldValueInvalid", "field is immutable")
    }

    /// 400.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 405.
    pub(crate) fn not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    /// 415.
    pub(crate) fn unsupported(content: &str) -> Self {
        Self::new(415, "UnsupportedMediaType", format!("the model does not read {content}"))
    }

    /// 410.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 504 for a version that does not exist yet.
    pub(crate) fn too_large_version(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut refusal = Self::new(504, "Timeout", message);
        refusal.causes.push("ResourceVersionTooLarge".to_owned());
        Self { retry_after: Some(1), ..refusal }
    }

    /// The Status.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.as_str().into();
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(|reason| json!({"reason": reason}));
            status["details"]["causes"] = causes.collect();
        }
        if let Some(seconds) = self.retry_after {
            status["details"]["retryAfterSeconds"] = seconds.into();
        }
        if let Some(token) = &self.token {
            status["metadata"]["continue"] = token.as_str().into();
        }
        status
    }
}

/// A resource with its group, as messages name it.
fn resource(kind: Kind) -> String {
    let facts = kind.facts();
    match facts.group {
        "" => facts.plural.to_owned(),
        group => format!("{}.{group}", facts.plural),
    }
}
