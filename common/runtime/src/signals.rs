//! SIGTERM and SIGINT: the first asks for an orderly end, the second ends the process at once.

use std::pin::pin;

use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Why signals cannot be heard.
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

/// The process's ears for the two signals, from installation on.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers; do it before anything else, so that no signal meets the default.
    pub fn install() -> Result<Self, SignalsError> {
        let listen =
            |kind, name| signal(kind).map_err(|source| SignalsError::Install { name, source });
        Ok(Self {
            terminate: listen(SignalKind::terminate(), "SIGTERM")?,
            interrupt: listen(SignalKind::interrupt(), "SIGINT")?,
        })
    }

    /// Runs `work` to its end. The first signal cancels `token`, which must make the work end;
    /// the second ends the process with the status a shell expects.
    pub async fn guard<T>(mut self, token: &CancellationToken, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let name = tokio::select! {
            done = &mut work => return done,
            (name, _) = self.next() => name,
        };
        tracing::info!(signal = name, "signal received, ending; a second one ends at once");
        token.cancel();
        let (name, status) = tokio::select! {
            done = &mut work => return done,
            second = self.next() => second,
        };
        tracing::warn!(signal = name, "second signal received, ending at once");
        std::process::exit(status)
    }

    /// The next signal's name and the exit status that stands for it.
    async fn next(&mut self) -> (&'static str, i32) {
        // A stream of signals has no end: `recv` gives `None` only without a runtime.
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 128 + 15),
            _ = self.interrupt.recv() => ("SIGINT", 128 + 2),
        }
    }
}
