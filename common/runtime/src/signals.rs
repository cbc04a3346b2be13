//! Handles SIGTERM and SIGINT: the first starts an orderly shutdown, the second exits at once.

use std::pin::pin;

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::telemetry;

/// Why signals cannot be received.
#[derive(Debug, Error)]
pub enum SignalsError {
    /// The handler could not be installed.
    #[error("cannot listen for {name}")]
    Install {
        /// The signal.
        name: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

/// The handlers of both signals.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers. Call it first, so that no signal meets its default action.
    pub fn install() -> Result<Self, SignalsError> {
        let listen =
            |kind, name| signal(kind).map_err(|source| SignalsError::Install { name, source });
        Ok(Self {
            terminate: listen(SignalKind::terminate(), "SIGTERM")?,
            interrupt: listen(SignalKind::interrupt(), "SIGINT")?,
        })
    }

    /// Runs `work` to its end. The first signal cancels `token`, which must make the work end; the
    /// second exits with the status that a shell expects.
    pub async fn guard<T>(mut self, token: &CancellationToken, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let name = tokio::select! {
            done = &mut work => return done,
            (name, _) = self.next() => name,
        };
        tracing::info!(signal = name, "signal received, shutting down; a second one exits at once");
        token.cancel();
        let (name, status) = tokio::select! {
            done = &mut work => return done,
            second = self.next() => second,
        };
        tracing::warn!(signal = name, "second signal received, exiting at once");
        telemetry::flush();
        std::process::exit(status)
    }

    /// Returns the next signal's name, and its exit status.
    async fn next(&mut self) -> (&'static str, i32) {
        // A stream of signals does not end: `recv` returns `None` only without a runtime.
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 128 + 15),
            _ = self.interrupt.recv() => ("SIGINT", 128 + 2),
        }
    }
}
