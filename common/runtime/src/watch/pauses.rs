//! Waits between the attempts of a watch.

use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::Instant;

use super::WatchError;

/// How long a watch waits after failures.
#[derive(Clone, Debug)]
pub struct Pauses {
    /// The first pause; doubled with each further failure.
    pub first: Duration,
    /// The maximum pause.
    pub max: Duration,
    /// The maximum pause after a failure without a connection, which no server notices.
    pub unconnected_max: Duration,
    /// The maximum pause while `hurry` is true.
    pub hurried_max: Duration,
    /// Whether the watch is urgent; without a channel it never is.
    pub hurry: Option<Receiver<bool>>,
}

/// What earlier failures lead to.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    /// The last pause.
    pause: Duration,
    /// Whether the version expired since the last reset.
    expired: bool,
}

/// A round that failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// How long it lasted.
    pub(super) lasted: Duration,
    /// Whether it was an open watch; otherwise it was a list, or a request.
    pub(super) watched: bool,
}

impl Backoff {
    /// How many failures count.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// The pause after a round that failed. It doubles with each failure, until a watch was open
    /// for as long as the last pause, or a list took as long as the longest one.
    ///
    /// An expired version means that the server is well, so the list comes after the first pause;
    /// if it expires again and again, that is a failure.
    pub(super) fn next(&mut self, pauses: &Pauses, round: Round, error: &WatchError) -> Duration {
        let is_long = if round.watched { self.pause.min(pauses.max) } else { pauses.max };
        if round.lasted >= is_long {
            *self = Self::default();
        }
        if matches!(error, WatchError::Expired) && !self.expired {
            self.expired = true;
            return pauses.first;
        }
        let max = if error.is_unsent() { pauses.unconnected_max } else { pauses.max };
        self.pause = pauses.first.saturating_mul(2_u32.saturating_pow(self.failures)).min(max);
        self.failures = self.failures.saturating_add(1);
        self.pause
    }
}

impl Pauses {
    /// Waits for the pause, but at most for `hurried_max` once the watch is urgent.
    pub(super) async fn pause(&mut self, pause: Duration) {
        let begun = Instant::now();
        let hurried = async {
            match &mut self.hurry {
                Some(hurry) => drop(hurry.wait_for(|hurry| *hurry).await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = tokio::time::sleep(pause) => return,
            () = hurried => {}
        }
        tokio::time::sleep_until(begun + pause.min(self.hurried_max)).await;
    }
}
