//! Provides the work queue that workers wait on, and their loop. The core decides which key is due
//! when.

use std::fmt;
use std::time::Duration;

use controller_core::workqueue::{FailureDelay, Key, Moment, QueueCore, QueueTally};
use epilogue_common::outcome::Failure;
use parking_lot::Mutex;
use prometheus::Histogram;
use tokio::sync::{Mutex as Turn, Notify};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A work queue with delays, backoff and metrics.
pub(crate) struct Queue<K> {
    core: Mutex<QueueCore<K>>,
    /// Held by the worker that waits for the next key, so that a key wakes no other one.
    turn: Turn<()>,
    /// Notified when that worker would otherwise sleep for too long.
    changed: Notify,
    started: Instant,
    waited: Histogram,
    worked: Histogram,
}

/// Work on the keys of a queue.
pub(crate) trait Process<K> {
    /// Works on one key of this queue, and decides whether the key comes again.
    fn process(&self, queue: &Queue<K>, key: &K) -> impl Future<Output = ()> + Send;
}

/// The figures behind a queue's metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) depth: usize,
    pub(crate) tally: QueueTally,
    pub(crate) unfinished: Duration,
    pub(crate) longest: Duration,
}

impl<K: Key> Queue<K> {
    /// Creates a closed queue, which drops keys until it is opened. The histograms observe how long
    /// keys wait and how long work on them takes.
    pub(crate) fn new(delay: FailureDelay, waited: Histogram, worked: Histogram) -> Self {
        let mut core = QueueCore::new(delay);
        core.rest();
        Self {
            core: Mutex::new(core),
            turn: Turn::default(),
            changed: Notify::new(),
            started: Instant::now(),
            waited,
            worked,
        }
    }

    /// Accepts keys from now on.
    pub(crate) fn open(&self) {
        self.core.lock().open();
    }

    /// The time on this queue's clock.
    pub(crate) fn now(&self) -> Moment {
        self.started.elapsed()
    }

    pub(crate) fn add(&self, key: K) {
        self.change(|core, now| core.add(key, now));
    }

    pub(crate) fn add_after(&self, key: K, delay: Duration) {
        self.change(|core, now| core.add_after(key, delay, now));
    }

    /// Adds a key after its backoff, and returns the delay.
    pub(crate) fn add_failed(&self, key: K, failure: &Failure) -> Duration {
        self.change(|core, now| core.add_failed(key, failure, now))
    }

    pub(crate) fn forget(&self, key: &K) {
        self.core.lock().forget(key);
    }

    /// Works on one key after the other until `token` is cancelled; work in progress is completed.
    pub(crate) async fn work(&self, process: &impl Process<K>, token: CancellationToken) {
        while let Some(key) = self.take(&token).await {
            process.process(self, &key).await;
            self.done(&key);
        }
    }

    /// Waits for the next key; `None` once `token` is cancelled. ([Q7])
    pub(crate) async fn take(&self, token: &CancellationToken) -> Option<K> {
        let turn = tokio::select! {
            biased;
            () = token.cancelled() => None,
            turn = self.turn.lock() => Some(turn),
        };
        loop {
            let due = {
                let mut core = self.core.lock();
                if turn.is_none() || token.is_cancelled() {
                    core.close();
                    return None;
                }
                if let Some(taken) = core.take(self.now()) {
                    self.waited.observe(taken.waited.as_secs_f64());
                    return Some(taken.key);
                }
                core.next_due()
            };
            tokio::select! {
                biased;
                () = token.cancelled() => {}
                () = self.changed.notified() => {}
                () = sleep_until(due.and_then(|due| self.started.checked_add(due))) => {}
            }
        }
    }

    /// Marks work on a key as done.
    pub(crate) fn done(&self, key: &K) {
        let worked = self.change(|core, now| core.done(key, now));
        self.worked.observe(worked.as_secs_f64());
    }

    /// Changes the core, and wakes the worker that waits if it now has to look sooner.
    fn change<R>(&self, change: impl FnOnce(&mut QueueCore<K>, Moment) -> R) -> R {
        let mut core = self.core.lock();
        let (was_ready, was_due) = (core.has_ready(), core.next_due());
        let result = change(&mut core, self.now());
        let is_sooner = core.next_due().is_some_and(|due| was_due.is_none_or(|was| due < was));
        let wakes = is_sooner || core.has_ready() && !was_ready;
        drop(core);
        if wakes {
            self.changed.notify_one();
        }
        result
    }

    pub(crate) fn has_ready(&self) -> bool {
        self.core.lock().has_ready()
    }

    pub(crate) fn figures(&self) -> Figures {
        let core = self.core.lock();
        let now = self.now();
        Figures {
            depth: core.depth(),
            tally: core.tally(),
            unfinished: core.unfinished(now).sum(),
            longest: core.unfinished(now).max().unwrap_or_default(),
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl<K> fmt::Debug for Queue<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Queue").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::HistogramOpts;

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Name(&'static str);

    impl Key for Name {
        fn namespace(&self) -> &str {
            self.0.split_once('/').map_or("", |(namespace, _)| namespace)
        }
    }

    fn queue() -> Queue<Name> {
        let second = Duration::from_secs(1);
        let histogram =
            || Histogram::with_opts(HistogramOpts::new("h", "h")).expect("must be valid");
        let delay = FailureDelay { base: second, max: 60 * second };
        let queue = Queue::new(delay, histogram(), histogram());
        queue.open();
        queue
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_wakes_when_a_delayed_key_is_due() {
        let (queue, token) = (queue(), CancellationToken::new());
        queue.add_after(Name("later"), Duration::from_secs(5));
        queue.add_after(Name("sooner"), Duration::from_secs(2));
        assert_eq!(queue.take(&token).await, Some(Name("sooner")));
        assert_eq!(queue.now().as_secs(), 2);
        assert_eq!(queue.take(&token).await, Some(Name("later")));
        assert_eq!(queue.now().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_beyond_the_clock_neither_panics_nor_blocks() {
        let (queue, token) = (queue(), CancellationToken::new());
        queue.add_after(Name("far"), Duration::MAX);
        queue.add_after(Name("near"), Duration::from_secs(1));
        assert_eq!(queue.take(&token).await, Some(Name("near")));
        let next = tokio::time::timeout(Duration::from_hours(1), queue.take(&token)).await;
        assert!(next.is_err(), "{next:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_added_wakes_a_waiting_worker() {
        let (queue, token) = (queue(), CancellationToken::new());
        let (taken, ()) = tokio::join!(queue.take(&token), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            queue.add(Name("a"));
        });
        assert_eq!(taken, Some(Name("a")));
        assert_eq!(queue.now().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_wakes_every_worker() {
        let (queue, token) = (queue(), CancellationToken::new());
        queue.add_after(Name("never"), Duration::from_hours(1));
        let end = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            token.cancel();
        };
        let (one, two, ()) = tokio::join!(queue.take(&token), queue.take(&token), end);
        assert_eq!((one, two), (None, None));
        assert_eq!(queue.now().as_secs(), 1);
    }
}
