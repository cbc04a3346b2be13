//! Waits: observes until a predicate holds or time is up. This is the only wait of the test suites.

use std::fmt::Debug;
use std::panic::Location;
use std::time::Duration;

use tokio::time::Instant;

/// Interval between two observations. It is short compared to everything that a test waits for, and
/// long compared to what an observation costs the API server.
const INTERVAL: Duration = Duration::from_millis(20);

/// Interval between two costly observations. A program inside an emulated machine takes a third of
/// a second of its processors; a dozen requests take a tenth of the API server's.
const COSTLY_INTERVAL: Duration = Duration::from_millis(500);

/// Observes until `holds`, and returns that observation; after `within`, the last one as the error.
pub async fn observe_until<S>(
    within: Duration,
    observe: impl AsyncFnMut() -> S,
    holds: impl Fn(&S) -> bool,
) -> Result<S, S> {
    observe_every(INTERVAL, within, observe, holds).await
}

/// [`observe_until`] for observations inside an emulated machine, or of many requests next to one.
pub async fn observe_costly_until<S>(
    within: Duration,
    observe: impl AsyncFnMut() -> S,
    holds: impl Fn(&S) -> bool,
) -> Result<S, S> {
    observe_every(COSTLY_INTERVAL, within, observe, holds).await
}

async fn observe_every<S>(
    interval: Duration,
    within: Duration,
    mut observe: impl AsyncFnMut() -> S,
    holds: impl Fn(&S) -> bool,
) -> Result<S, S> {
    let deadline = Instant::now() + within;
    loop {
        let seen = observe().await;
        if holds(&seen) {
            return Ok(seen);
        }
        if Instant::now() >= deadline {
            return Err(seen);
        }
        tokio::time::sleep(interval).await;
    }
}

/// [`observe_until`] for tests: on time-out it panics with `what`, the caller's place and the last
/// state.
#[track_caller]
pub fn eventually<S: Debug>(
    what: &str,
    within: Duration,
    observe: impl AsyncFnMut() -> S,
    holds: impl Fn(&S) -> bool,
) -> impl Future<Output = S> {
    let caller = Location::caller();
    async move {
        match observe_until(within, observe, holds).await {
            Ok(seen) => seen,
            Err(last) => {
                panic!("{caller}: not within {within:?}: {what}; last seen: {last:#?}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn the_observation_that_holds_is_given_back() {
        let count = Cell::new(0);
        let observe = || async {
            count.set(count.get() + 1);
            count.get()
        };
        assert_eq!(observe_until(Duration::from_secs(9), observe, |seen| *seen == 3).await, Ok(3));
    }

    #[tokio::test]
    #[should_panic(expected = "not within 1ms: the sun rises; last seen: \"night\"")]
    async fn a_time_out_prints_the_last_state() {
        eventually("the sun rises", Duration::from_millis(1), || async { "night" }, |_| false)
            .await;
    }
}
