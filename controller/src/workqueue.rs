//! Provides the work queue, and the loop that works on its keys. The core decides which key is due
//! when.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use controller_core::workqueue::{FailureDelay, Key, Moment, QueueCore, QueueTally};
use epilogue_common::outcome::{Failure, FailureKind};
use futures::FutureExt as _;
use futures::stream::{FuturesUnordered, StreamExt as _};
use prometheus::Histogram;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Maximum length of a panic's message in an event.
const PANIC_CHARS_MAX: usize = 500;

/// A key whose work waits for this long without an answer needs no worker: the next key gets it.
const PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of keys in progress, with those that wait for an answer. Each holds a snapshot of
/// its Job.
const IN_PROGRESS_MAX: usize = 512;

/// A work queue with delays, backoff and metrics.
pub(crate) struct Queue<K> {
    core: Mutex<QueueCore<K>>,
    /// Notified when the next key is due sooner than the loop expects.
    changed: Notify,
    /// Keys that hold a worker.
    working: AtomicUsize,
    /// Notified when a key in progress gives its worker to the next one.
    freed: Notify,
    started: Instant,
    waited: Histogram,
    worked: Histogram,
}

/// Which keys may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Any,
    /// Those of namespaces none of whose keys is in progress.
    Idle,
}

/// A key in progress counts as one that holds a worker until this is dropped.
struct Worker<'a, K>(&'a Queue<K>);

/// Work on the keys of a queue.
pub(crate) trait Process<K> {
    /// Works on one key of this queue, and decides whether the key comes again.
    fn process(&self, queue: &Queue<K>, key: &K) -> impl Future<Output = ()> + Send;

    /// Work on this key panicked: reports it, and adds the key as one that failed.
    fn panicked(
        &self,
        queue: &Queue<K>,
        key: &K,
        failure: Failure,
    ) -> impl Future<Output = ()> + Send;
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
        let mut core = QueueCore::sharing(delay, IN_PROGRESS_MAX);
        core.rest();
        Self {
            core: Mutex::new(core),
            changed: Notify::new(),
            working: AtomicUsize::new(0),
            freed: Notify::new(),
            started: Instant::now(),
            waited,
            worked,
        }
    }

    /// Accepts keys from now on.
    pub(crate) fn open(&self) {
        self.core().open();
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
        self.core().forget(key);
    }

    /// Works on keys until `token` is cancelled; work in progress is completed. As many keys are in
    /// progress as there are workers, and as many more but one of namespaces that have no other. A
    /// key whose work waits is no longer counted: many may wait at once, of each namespace a part.
    pub(crate) async fn work(
        &self,
        process: &impl Process<K>,
        workers: usize,
        token: CancellationToken,
    ) {
        let mut in_progress = FuturesUnordered::new();
        loop {
            let room = self.room(workers);
            tokio::select! {
                biased;
                Some(()) = in_progress.next() => {}
                () = self.freed.notified(), if room != Some(Room::Any) => {}
                () = token.cancelled(), if room.is_none() => break,
                key = self.take_of(room.unwrap_or(Room::Idle), &token), if room.is_some() => {
                    let Some(key) = key else { break };
                    in_progress.push(self.work_on(key, process, Worker::begin(self)));
                }
            }
        }
        self.core().close();
        while in_progress.next().await.is_some() {}
    }

    /// Which keys may be taken with this many workers; one alone works on one key at a time. Where
    /// the API answers slowly, a namespace would otherwise hold all workers for seconds.
    fn room(&self, workers: usize) -> Option<Room> {
        match self.working.load(Ordering::Relaxed) {
            working if working < workers => Some(Room::Any),
            working if working + 1 < workers.saturating_mul(2) => Some(Room::Idle),
            _ => None,
        }
    }

    /// Works on one key. A panic costs this key alone.
    async fn work_on(&self, key: K, process: &impl Process<K>, worker: Worker<'_, K>) {
        let work = AssertUnwindSafe(process.process(self, &key)).catch_unwind();
        if let Err(payload) = with_worker(worker, work).await {
            process.panicked(self, &key, panicked(&*payload)).await;
        }
        self.done(&key);
    }

    /// The core. A panic in it poisons it, and the next use ends the process.
    fn core(&self) -> MutexGuard<'_, QueueCore<K>> {
        self.core.lock().expect("the queue must be whole: a panic has left it half changed")
    }

    /// Waits for the next key; `None` once `token` is cancelled.
    #[cfg(test)]
    pub(crate) async fn take(&self, token: &CancellationToken) -> Option<K> {
        self.take_of(Room::Any, token).await
    }

    /// Waits for the next key of these; `None` once `token` is cancelled. ([Q7])
    async fn take_of(&self, room: Room, token: &CancellationToken) -> Option<K> {
        loop {
            let due = {
                let mut core = self.core();
                if token.is_cancelled() {
                    core.close();
                    return None;
                }
                let taken = match room {
                    Room::Any => core.take(self.now()),
                    Room::Idle => core.take_idle(self.now()),
                };
                if let Some(taken) = taken {
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

    /// Changes the core, and wakes the loop if it now has to look sooner.
    fn change<R>(&self, change: impl FnOnce(&mut QueueCore<K>, Moment) -> R) -> R {
        let mut core = self.core();
        let (was_ready, was_idle, was_due) = (core.has_ready(), core.has_idle(), core.next_due());
        let result = change(&mut core, self.now());
        let is_sooner = core.next_due().is_some_and(|due| was_due.is_none_or(|was| due < was));
        let is_new = core.has_ready() && !was_ready || core.has_idle() && !was_idle;
        let wakes = is_sooner || is_new;
        drop(core);
        if wakes {
            self.changed.notify_one();
        }
        result
    }

    pub(crate) fn has_ready(&self) -> bool {
        self.core().has_ready()
    }

    pub(crate) fn figures(&self) -> Figures {
        let core = self.core();
        let now = self.now();
        Figures {
            depth: core.depth(),
            tally: core.tally(),
            unfinished: core.unfinished(now).sum(),
            longest: core.unfinished(now).max().unwrap_or_default(),
        }
    }
}

impl<'a, K> Worker<'a, K> {
    fn begin(queue: &'a Queue<K>) -> Self {
        queue.working.fetch_add(1, Ordering::Relaxed);
        Self(queue)
    }
}

impl<K> Drop for Worker<'_, K> {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
        self.0.freed.notify_one();
    }
}

/// Completes this work. It holds its worker until it has waited for long.
async fn with_worker<K, T>(worker: Worker<'_, K>, work: impl Future<Output = T>) -> T {
    let (mut work, mut alarm) = (pin!(work), pin!(tokio::time::sleep(PATIENCE)));
    let (mut worker, mut heard) = (Some(worker), Instant::now());
    std::future::poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(done);
        }
        while worker.is_some() {
            if alarm.as_mut().poll(context).is_pending() {
                heard = Instant::now();
                break;
            }
            // The alarm is set anew only when it rings: answers come far more often.
            match heard + PATIENCE {
                due if due > Instant::now() => alarm.as_mut().reset(due),
                _ => worker = None,
            }
        }
        Poll::Pending
    })
    .await
}

/// The failure of work that panicked.
fn panicked(payload: &(dyn Any + Send)) -> Failure {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
    let text: String = text.chars().take(PANIC_CHARS_MAX).collect();
    Failure::new(FailureKind::Other, format!("internal error: {text}"))
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
    async fn the_end_wakes_the_loop() {
        let (queue, token) = (queue(), CancellationToken::new());
        queue.add_after(Name("never"), Duration::from_hours(1));
        let end = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            token.cancel();
        };
        let (taken, ()) = tokio::join!(queue.take(&token), end);
        assert_eq!(taken, None);
        assert_eq!(queue.now().as_secs(), 1);
    }

    /// Work that takes 30 s in namespace `slow`, with an answer each 300 ms in `busy`; for each
    /// key, when its work began.
    #[derive(Default)]
    struct Works(Mutex<Vec<(&'static str, u128)>>);

    impl Process<Name> for Works {
        async fn process(&self, queue: &Queue<Name>, key: &Name) {
            self.0.lock().expect("whole").push((key.0, queue.now().as_millis()));
            match key.namespace() {
                "slow" => tokio::time::sleep(Duration::from_secs(30)).await,
                "busy" => {
                    for _ in 0..10 {
                        tokio::time::sleep(Duration::from_millis(300)).await;
                    }
                }
                "odd" => panic!("odd work"),
                _ => {}
            }
        }

        async fn panicked(&self, queue: &Queue<Name>, key: &Name, failure: Failure) {
            assert_eq!(failure.message, "internal error: odd work");
            queue.add_failed(key.clone(), &failure);
        }
    }

    /// When work on each key began, in milliseconds, with two workers in the first minute.
    async fn begun(keys: &[&'static str]) -> Vec<(&'static str, u128)> {
        let (queue, works, token) = (queue(), Works::default(), CancellationToken::new());
        for key in keys {
            queue.add(Name(key));
        }
        let end = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            token.cancel();
        };
        tokio::join!(queue.work(&works, 2, token.clone()), end);
        works.0.into_inner().expect("whole")
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_waits_holds_no_worker_and_work_that_goes_on_does() {
        let keys = ["slow/1", "slow/2", "slow/3", "slow/4", "quick/1"];
        let expected =
            [("slow/1", 0), ("quick/1", 0), ("slow/2", 0), ("slow/3", 500), ("slow/4", 500)];
        assert_eq!(begun(&keys).await, expected);
        let expected = [("busy/1", 0), ("busy/2", 0), ("busy/3", 3_000)];
        assert_eq!(begun(&["busy/1", "busy/2", "busy/3"]).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_at_work_keeps_no_other_from_a_worker() {
        let (queue, works, token) = (queue(), Works::default(), CancellationToken::new());
        for key in ["busy/1", "busy/2", "busy/3"] {
            queue.add(Name(key));
        }
        let others = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            queue.add_after(Name("quick/1"), Duration::from_millis(100));
            tokio::time::sleep(Duration::from_millis(300)).await;
            // No more than one more.
            for key in ["slow/1", "slow/2", "other/1"] {
                queue.add(Name(key));
            }
            tokio::time::sleep(Duration::from_secs(20)).await;
            token.cancel();
        };
        tokio::join!(queue.work(&works, 2, token.clone()), others);
        let expected = [
            ("busy/1", 0),
            ("busy/2", 0),
            ("quick/1", 200),
            ("slow/1", 400),
            ("other/1", 900),
            ("busy/3", 3_000),
            ("slow/2", 3_000),
        ];
        assert_eq!(works.0.into_inner().expect("whole"), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_costs_its_key_a_backoff_and_the_others_nothing() {
        let begun = begun(&["odd/1", "quick/1", "quick/2"]).await;
        let of = |name| begun.iter().filter(move |(key, _)| *key == name).map(|(_, at)| *at);
        assert_eq!(of("odd/1").collect::<Vec<_>>(), [0, 1_000, 3_000, 7_000, 15_000]);
        assert_eq!(of("quick/1").chain(of("quick/2")).collect::<Vec<_>>(), [0, 0]);
    }
}
