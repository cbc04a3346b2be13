//! Waits between the attempts of a watch.

use std::time::Duration;

use tokio::sync::watch::Receiver;
use tokio::time::Instant;

/// How long a watch waits after failures.
#[derive(Clone, Debug)]
pub struct Pauses {
    /// The first pause; doubled with each further failure.
    pub first: Duration,
    /// The maximum pause.
    pub max: Duration,
    /// The maximum pause while `hurry` is true.
    pub hurried_max: Duration,
    /// Whether the watch is urgent; without a channel it never is.
    pub hurry: Option<Receiver<bool>>,
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
