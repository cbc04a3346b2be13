//! Defines why the container runtime did not answer, and converts that into the core's failures.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use epilogue_common::outcome::{Failure, FailureKind};
use thiserror::Error;
use tonic::{Code, Status};

use super::endpoint::FLAG;

/// Why a call to the runtime failed.
#[derive(Debug, Error)]
pub enum CriError {
    /// There is no socket.
    #[error(
        "no container runtime's socket at {}; name it by {FLAG} unix:///path, and in a pod mount \
         its directory from the host",
        list(.searched)
    )]
    NoSocket {
        /// The paths that were checked.
        searched: Vec<PathBuf>,
    },
    /// There is more than one socket, and no way to know which one the kubelet uses. A wrong choice
    /// would read as "nothing runs".
    #[error(
        "more than one container runtime: {}; name the kubelet's by {FLAG} unix:///path",
        list(.sockets)
    )]
    Ambiguous {
        /// The sockets that exist.
        sockets: Vec<PathBuf>,
    },
    /// The kubelet names a socket, and it is not there. Another runtime's would read as "nothing
    /// runs".
    #[error(
        "no container runtime's socket at {}, which the kubelet's containerRuntimeEndpoint names; \
         in a pod mount its directory from the host, or name it by {FLAG} unix:///path",
        .named.display()
    )]
    NotThere {
        /// The path below the host's files.
        named: PathBuf,
    },
    /// The runtime has no call that sends a signal.
    #[error("the container runtime sends no signals to containers; containerd does")]
    NoSignals,
    /// No answer came in time: the call may or may not be carried out.
    #[error("the container runtime did not answer {call} within {within:?}")]
    NoAnswer {
        /// The call.
        call: &'static str,
        /// How long the agent waited.
        within: Duration,
    },
    /// The runtime, or the connection to it, returned an error.
    #[error("the container runtime failed {call}: {}", words(.status))]
    Refused {
        /// The call.
        call: &'static str,
        /// The error.
        status: Box<Status>,
    },
}

impl CriError {
    /// Whether the object does not exist (any more).
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code() == Code::NotFound)
    }

    /// Whether the listener does not speak CRI v1.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code() == Code::Unimplemented)
    }

    /// Whether no answer came.
    pub fn is_no_answer(&self) -> bool {
        matches!(self, Self::NoAnswer { .. })
    }

    /// The failure in the core's terms.
    pub fn failure(&self) -> Failure {
        let kind = match self {
            Self::NoSocket { .. }
            | Self::Ambiguous { .. }
            | Self::NotThere { .. }
            | Self::NoSignals => FailureKind::Other,
            Self::NoAnswer { .. } => FailureKind::Unknown,
            Self::Refused { status, .. } => kind(status.code()),
        };
        Failure::new(kind, self.to_string())
    }
}

fn kind(code: Code) -> FailureKind {
    match code {
        Code::NotFound => FailureKind::NotFound,
        Code::PermissionDenied | Code::Unauthenticated => FailureKind::Forbidden,
        Code::ResourceExhausted => FailureKind::TooManyRequests,
        Code::Unimplemented | Code::InvalidArgument | Code::OutOfRange => FailureKind::Other,
        // A broken connection shows as Unavailable, Cancelled or Unknown.
        Code::Unavailable | Code::Cancelled | Code::Unknown | Code::DeadlineExceeded => {
            FailureKind::Unknown
        }
        _ => FailureKind::ServerError,
    }
}

/// The error's message, down to that of the operating system.
fn words(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        let word = error.to_string();
        if !text.contains(&word) {
            text = if text.is_empty() { word } else { format!("{text}: {word}") };
        }
        source = error.source();
    }
    if text.is_empty() { status.code().description().to_owned() } else { text }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
