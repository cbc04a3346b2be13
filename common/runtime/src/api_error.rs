//! Maps client errors to outcomes. Only this file interprets a `kube::Error`; callers decide what a
//! failure leads to.

use std::error::Error as StdError;
use std::iter::successors;

use epilogue_common::outcome::{Failure, FailureKind};
use hyper_util::client::legacy::Error as ClientError;
use jiff::SignedDuration;
use kube::core::Status;

/// Maximum length of a reply in a message if the reply is not a `Status`, such as a proxy's page.
const FOREIGN_TEXT_CHARS_MAX: usize = 200;

/// The reason by which the client marks a reply that is not a `Status`.
pub(crate) const FOREIGN: &str = "Failed to parse error data";

/// What an API server answers for a path that it does not serve.
pub const NOT_SERVED: &str = "404 page not found";

/// The cause by which admission reports a terminating namespace.
const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

/// Returns the kind, the API's own message and the `Retry-After` of a client's error.
pub fn classify(error: kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) => from_status(&status),
        // Nothing was sent.
        error @ (kube::Error::BuildRequest(_)
        | kube::Error::InferConfig(_)
        | kube::Error::InferKubeconfig(_)
        | kube::Error::ProxyProtocolUnsupported { .. }
        | kube::Error::ProxyProtocolDisabled { .. }
        | kube::Error::TlsRequired
        | kube::Error::RustlsTls(_)
        | kube::Error::Auth(_)
        | kube::Error::HttpError(_)
        | kube::Error::Discovery(_)) => Failure::new(FailureKind::Other, chain(&error)),
        kube::Error::Service(source) => Failure {
            unsent: has_no_connection(source.as_ref()),
            ..Failure::new(FailureKind::Unknown, chain(source.as_ref()))
        },
        kube::Error::HyperError(source) => Failure::new(FailureKind::Unknown, chain(&source)),
        // The other errors mean that the reply did not arrive completely: the call may have been
        // carried out.
        error => Failure::new(FailureKind::Unknown, chain(&error)),
    }
}

/// A refusal that is not in the API's form, so that something in between gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The HTTP status; 0 if the client has lost it.
    pub code: u16,
    /// The body, or what of it the client has kept. It may be of any length and content.
    pub text: String,
}

/// Returns the refusal if a proxy or a gateway gave it. An API server answers in plain text only
/// when it sheds load and for paths that it does not serve.
pub fn foreign(error: &kube::Error) -> Option<Foreign> {
    let kube::Error::Api(status) = error else { return None };
    let is_plain = status.reason == FOREIGN;
    let is_of_server = match status.code {
        404 => status.message == NOT_SERVED,
        code => code == 429,
    };
    let is_foreign = if is_plain { !is_of_server } else { status.status.is_none() };
    is_foreign.then(|| Foreign { code: status.code, text: status.message.clone() })
}

fn from_status(status: &Status) -> Failure {
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    Failure {
        kind: kind_of(status),
        message: message_of(status),
        retry_after: (seconds > 0).then(|| SignedDuration::from_secs(i64::from(seconds))),
        unsent: false,
    }
}

fn kind_of(status: &Status) -> FailureKind {
    match status.reason.as_str() {
        "NotFound" => FailureKind::NotFound,
        "AlreadyExists" => FailureKind::AlreadyExists,
        "Conflict" => FailureKind::Conflict,
        "Invalid" => FailureKind::Invalid,
        "Forbidden" => forbidden_kind(status),
        "TooManyRequests" => FailureKind::TooManyRequests,
        // The server stopped waiting for its own work, which may still be carried out.
        "Timeout" => FailureKind::Unknown,
        "ServerTimeout" | "ServiceUnavailable" | "InternalError" => FailureKind::ServerError,
        _ => kind_of_code(status),
    }
}

/// Classifies by status code, for replies without a known reason, such as a proxy's.
fn kind_of_code(status: &Status) -> FailureKind {
    match status.code {
        403 => forbidden_kind(status),
        404 => FailureKind::NotFound,
        408 | 504 => FailureKind::Unknown,
        409 => FailureKind::Conflict,
        422 => FailureKind::Invalid,
        429 => FailureKind::TooManyRequests,
        500..=599 => FailureKind::ServerError,
        _ => FailureKind::Other,
    }
}

fn forbidden_kind(status: &Status) -> FailureKind {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    if causes.into_iter().any(|cause| cause.reason == NAMESPACE_TERMINATING) {
        FailureKind::NamespaceTerminating
    } else {
        FailureKind::Forbidden
    }
}

fn message_of(status: &Status) -> String {
    if status.message.is_empty() {
        let reason = if status.reason.is_empty() { "no reason given" } else { &status.reason };
        return format!("HTTP {}: {reason}", status.code);
    }
    if status.reason == FOREIGN {
        let text: String = status.message.chars().take(FOREIGN_TEXT_CHARS_MAX).collect();
        return format!("HTTP {}: {text}", status.code);
    }
    status.message.clone()
}

/// Whether no connection came about.
fn has_no_connection(error: &(dyn StdError + 'static)) -> bool {
    let mut causes = successors(Some(error), |&error| error.source());
    causes.any(|cause| cause.downcast_ref::<ClientError>().is_some_and(ClientError::is_connect))
}

/// Joins an error and its sources to one line, and leaves out texts that contain the next one.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let parts: Vec<String> =
        successors(Some(error), |&error| error.source()).map(ToString::to_string).collect();
    let repeats = |index: usize| {
        parts.get(index + 1).is_some_and(|next| parts[index].contains(next.as_str()))
    };
    let kept: Vec<&str> =
        (0..parts.len()).filter(|index| !repeats(*index)).map(|i| parts[i].as_str()).collect();
    kept.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(code: u16, reason: &str) -> Status {
        Status::failure("the words", reason).with_code(code)
    }

    fn with_details(code: u16, reason: &str, details: serde_json::Value) -> Status {
        status(code, reason).with_details(serde_json::from_value(details).expect("must be details"))
    }

    fn api(status: Status) -> Failure {
        classify(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn a_status_has_the_kind_of_its_reason_and_else_of_its_code() {
        let table = [
            (404, "NotFound", FailureKind::NotFound),
            (409, "AlreadyExists", FailureKind::AlreadyExists),
            (409, "Conflict", FailureKind::Conflict),
            (422, "Invalid", FailureKind::Invalid),
            (403, "Forbidden", FailureKind::Forbidden),
            (429, "TooManyRequests", FailureKind::TooManyRequests),
            (504, "Timeout", FailureKind::Unknown),
            (500, "ServerTimeout", FailureKind::ServerError),
            (500, "InternalError", FailureKind::ServerError),
            (503, "ServiceUnavailable", FailureKind::ServerError),
            (410, "Expired", FailureKind::Other),
            (400, "BadRequest", FailureKind::Other),
            (401, "Unauthorized", FailureKind::Other),
            (404, "", FailureKind::NotFound),
            (403, "", FailureKind::Forbidden),
            (409, "", FailureKind::Conflict),
            (422, "", FailureKind::Invalid),
            (429, "Failed to parse error data", FailureKind::TooManyRequests),
            (502, "Failed to parse error data", FailureKind::ServerError),
            (504, "Failed to parse error data", FailureKind::Unknown),
            (408, "", FailureKind::Unknown),
            (418, "", FailureKind::Other),
        ];
        for (code, reason, kind) in table {
            assert_eq!(api(status(code, reason)).kind, kind, "{code} {reason}");
        }
    }

    #[test]
    fn the_cause_distinguishes_a_terminating_namespace_from_other_refusals() {
        let terminating =
            with_details(403, "Forbidden", json!({"causes": [{"reason": "NamespaceTerminating"}]}));
        assert_eq!(api(terminating).kind, FailureKind::NamespaceTerminating);
        let quota = with_details(403, "Forbidden", json!({"causes": [{"reason": "X"}]}));
        assert_eq!(api(quota).kind, FailureKind::Forbidden);
    }

    #[test]
    fn a_retry_after_is_kept() {
        let details = json!({"retryAfterSeconds": 7});
        let failure = api(with_details(429, "TooManyRequests", details));
        assert_eq!(failure.retry_after, Some(SignedDuration::from_secs(7)));
        assert_eq!(api(status(429, "TooManyRequests")).retry_after, None);
    }

    #[test]
    fn the_message_is_the_api_s_own() {
        assert_eq!(api(status(404, "NotFound")).message, "the words");
        let silent = Status::failure("", "").with_code(500);
        assert_eq!(api(silent).message, "HTTP 500: no reason given");
        let page = Status::failure(&"x".repeat(5_000), "Failed to parse error data").with_code(502);
        assert_eq!(api(page).message.len(), "HTTP 502: ".len() + FOREIGN_TEXT_CHARS_MAX);
    }

    #[test]
    fn a_refusal_that_is_not_a_status_is_foreign_unless_servers_give_it() {
        let page = |code, text: &str| Status::failure(text, FOREIGN).with_code(code);
        let gateway: Status =
            serde_json::from_value(json!({"error": "denied"})).expect("each field may be missing");
        for (status, expected) in [
            (page(403, "<html>"), Some(403)),
            (page(404, "no such route"), Some(404)),
            (page(503, ""), Some(503)),
            (gateway, Some(0)),
            (page(404, NOT_SERVED), None),
            (page(429, "Too many requests, please try again later."), None),
            (status(403, "Forbidden"), None),
            (status(503, ""), None),
        ] {
            let found = foreign(&kube::Error::Api(status.clone().boxed()));
            assert_eq!(found.map(|it| it.code), expected, "{status:?}");
        }
        assert_eq!(foreign(&kube::Error::TlsRequired), None);
    }

    #[test]
    fn a_lost_reply_is_unknown_and_says_what_happened_on_the_wire() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let failure = classify(kube::Error::Service(Box::new(refused)));
        assert_eq!(failure.kind, FailureKind::Unknown);
        assert_eq!(failure.message, "connection refused");
        let cut = serde_json::from_str::<u8>("{").expect_err("must not parse");
        let failure = classify(kube::Error::SerdeError(cut));
        assert_eq!(failure.kind, FailureKind::Unknown);
        assert!(failure.is_in_doubt());
    }

    #[test]
    fn what_was_never_sent_is_not_unknown() {
        assert_eq!(classify(kube::Error::TlsRequired).kind, FailureKind::Other);
    }
}
