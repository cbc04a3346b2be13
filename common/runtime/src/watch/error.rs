//! Defines why a watch fails, and which refusals mean what.

use epilogue_common::outcome::Failure;
use http::Response;
use kube::client::Body;
use thiserror::Error;

use super::IDLE_MAX;
use super::frames::PAGE_BYTES_MAX;
use super::wire::{self, Format};
use crate::api_error::classify;

/// The reason of a failure because the API has gone back.
pub(super) const RESTORED: &str = "restored";

/// The status code for an expired version.
const GONE: u16 = 410;

#[derive(Debug, Error)]
pub(super) enum WatchError {
    /// The server no longer has our version.
    #[error("the version is too old")]
    Expired,
    /// The server has not reached our version.
    #[error("the API has gone back to version {now}, from {from} or later")]
    Restored {
        /// The version that we had come to.
        from: u64,
        /// The server's version.
        now: u64,
    },
    /// The server does not stream lists.
    #[error("the server does not stream lists")]
    NoStreaming,
    /// The request or the stream failed.
    #[error("{0}")]
    Failed(Failure),
    /// The server reported an error in the stream.
    #[error("the server says: {0}")]
    Reported(String),
    /// The connection is dead.
    #[error("no byte for {} s, the connection is replaced", IDLE_MAX.as_secs())]
    Idle,
    /// The stream broke off.
    #[error("the stream broke off: {0}")]
    Broken(String),
    /// The server sent something that is neither an event nor a list.
    #[error("the server sent {0}")]
    Garbled(String),
    /// A page has more bytes than are read at once.
    #[error("a page with more than {} MiB", PAGE_BYTES_MAX >> 20)]
    LargePage,
    /// A list has no version.
    #[error("a list came without version")]
    NoVersion,
    /// A list has too many objects.
    #[error("more than {0} objects")]
    TooMany(usize),
}

impl WatchError {
    /// An error that the server sent in the stream.
    pub(super) fn reported(code: u16, message: String) -> Self {
        if code == GONE { Self::Expired } else { Self::Reported(message) }
    }

    /// Whether there was no connection.
    pub(super) fn is_unsent(&self) -> bool {
        matches!(self, Self::Failed(failure) if failure.unsent)
    }

    /// The value of the metric's label `reason`.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Restored { .. } => RESTORED,
            Self::NoStreaming => "no_streaming",
            Self::Failed(_) => "request",
            Self::Reported(_) => "reported",
            Self::Idle => "idle",
            Self::Broken(_) => "broken",
            Self::Garbled(_) => "garbled",
            Self::LargePage => "large_page",
            Self::NoVersion => "no_version",
            Self::TooMany(_) => "too_many",
        }
    }
}

/// Turns a refusal into an error. Its body has the format that the request accepts.
pub(super) async fn accepted(response: Response<Body>) -> Result<Response<Body>, kube::Error> {
    let code = response.status();
    if !code.is_client_error() && !code.is_server_error() {
        return Ok(response);
    }
    let format = Format::of(response.headers());
    let body = response.into_body().collect_bytes().await?;
    Err(kube::Error::Api(Box::new(wire::refusal(format, &body, code.as_u16()))))
}

pub(super) fn failed(error: kube::Error) -> WatchError {
    match error {
        kube::Error::Api(status) if status.code == GONE => WatchError::Expired,
        error => WatchError::Failed(classify(error)),
    }
}

/// A server that cannot stream lists answers that the request is invalid.
pub(super) fn refused(error: kube::Error, listing: bool) -> WatchError {
    match &error {
        kube::Error::Api(status) if listing && matches!(status.code, 400 | 422) => {
            WatchError::NoStreaming
        }
        _ => failed(error),
    }
}
