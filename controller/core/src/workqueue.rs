//! Implements the work queue as a state machine: which key is due, at most one worker per key,
//! delays, failures, namespaces in turn. The controller's shell waits and wakes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use epilogue_common::outcome::Failure;

pub use crate::turns::Key;
use crate::turns::Turns;

/// Time since the queue was made.
pub type Moment = Duration;

/// The longest wait of a key, with which no clock overflows. A key that waits longer comes early,
/// finds nothing to do, and waits again.
pub const WAIT_MAX: Duration = Duration::from_hours(365 * 24);
/// The longest wait that a server's `Retry-After` asks for.
const RETRY_AFTER_MAX: Duration = Duration::from_mins(1);
/// The longest delay after a failure without a connection, unless the base is longer.
const UNSENT_MAX: Duration = Duration::from_secs(5);
/// So few alarms are not worth a compaction.
const ALARMS_KEPT_MIN: usize = 64;

/// Delays after failures of a key: the base, doubled with each failure in a row, up to the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureDelay {
    /// The delay after the first failure.
    pub base: Duration,
    /// The longest delay.
    pub max: Duration,
}

/// The queue's state.
#[derive(Debug)]
pub struct QueueCore<K> {
    delay: FailureDelay,
    ready: Turns<K>,
    /// Keys that are ready or must run again, with the time since when.
    dirty: HashMap<K, Moment>,
    running: HashMap<K, Moment>,
    waiting: HashMap<K, Moment>,
    alarms: BinaryHeap<Reverse<Alarm<K>>>,
    alarm_count: u64,
    failures: HashMap<K, u32>,
    /// Whether the queue ignores keys for now.
    resting: bool,
    closed: bool,
    tally: QueueTally,
}

/// Counters since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTally {
    /// Keys that became ready, or must run again.
    pub adds: u64,
    /// Delayed adds and adds after failures.
    pub retries: u64,
}

/// A key handed to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken<K> {
    /// The key.
    pub key: K,
    /// How long it was ready.
    pub waited: Duration,
}

#[derive(Debug)]
struct Alarm<K> {
    at: Moment,
    order: u64,
    key: K,
}

impl<K: Key> QueueCore<K> {
    /// An empty queue that hands out any number of keys at once.
    pub fn new(delay: FailureDelay) -> Self {
        Self::sharing(delay, usize::MAX)
    }

    /// An empty queue. At most this many of its keys run at once, and no namespace has all of them.
    pub fn sharing(delay: FailureDelay, running_max: usize) -> Self {
        Self {
            delay,
            ready: Turns::new(running_max),
            dirty: HashMap::new(),
            running: HashMap::new(),
            waiting: HashMap::new(),
            alarms: BinaryHeap::new(),
            alarm_count: 0,
            failures: HashMap::new(),
            resting: false,
            closed: false,
            tally: QueueTally::default(),
        }
    }

    /// Ignores keys until the queue is opened. A replica that waits for the lease would fill it
    /// with work that the leader has long done.
    pub fn rest(&mut self) {
        self.resting = true;
    }

    /// Accepts keys from now on.
    pub fn open(&mut self) {
        self.resting = false;
    }

    /// Adds a key at once. Duplicates collapse; a key that is running runs once more. ([Q1])
    pub fn add(&mut self, key: K, now: Moment) {
        if self.closed || self.resting || self.dirty.contains_key(&key) {
            return;
        }
        self.tally.adds += 1;
        self.dirty.insert(key.clone(), now);
        if !self.running.contains_key(&key) {
            self.ready.push(key);
        }
    }

    /// Adds a key after a delay; the earliest time wins. A zero delay adds the key at once and
    /// keeps an entry that waits. ([Q2])
    pub fn add_after(&mut self, key: K, delay: Duration, now: Moment) {
        if self.closed || self.resting {
            return;
        }
        self.tally.retries += 1;
        if delay.is_zero() {
            self.add(key, now);
            return;
        }
        let at = now.saturating_add(delay.min(WAIT_MAX));
        if self.waiting.get(&key).is_some_and(|pending| *pending <= at) {
            return;
        }
        self.waiting.insert(key.clone(), at);
        self.alarm_count += 1;
        self.alarms.push(Reverse(Alarm { at, order: self.alarm_count, key }));
        self.compact();
    }

    /// Drops superseded alarms once they are the majority. A Job whose deadline each sync computes
    /// anew would leave one each time.
    fn compact(&mut self) {
        if self.alarms.len() <= 2 * self.waiting.len() + ALARMS_KEPT_MIN {
            return;
        }
        let waiting = &self.waiting;
        self.alarms.retain(|Reverse(alarm)| waiting.get(&alarm.key) == Some(&alarm.at));
    }

    /// Adds a key after a failure, and returns the delay. ([Q5])
    ///
    /// DIVERGES(upstream): without a connection, the delay stays short. No server has the request,
    /// and an outage is not the key's fault. A `Retry-After` is waited for here; upstream's client
    /// sleeps it while it holds a worker.
    pub fn add_failed(&mut self, key: K, failure: &Failure, now: Moment) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = self.delay.after(*failures);
        let delay = if failure.unsent { delay.min(UNSENT_MAX.max(self.delay.base)) } else { delay };
        let asked = failure.retry_after.and_then(|wait| Duration::try_from(wait).ok());
        let delay = delay.max(asked.unwrap_or_default().min(RETRY_AFTER_MAX));
        *failures = failures.saturating_add(1);
        self.add_after(key, delay, now);
        delay
    }

    /// Forgets the failures of a key. ([Q5])
    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// The next key to process. The worker must return it with [`Self::done`].
    pub fn take(&mut self, now: Moment) -> Option<Taken<K>> {
        self.take_by(Turns::pop, now)
    }

    /// The same, of a namespace none of whose keys is being processed.
    pub fn take_idle(&mut self, now: Moment) -> Option<Taken<K>> {
        self.take_by(Turns::pop_idle, now)
    }

    fn take_by(
        &mut self,
        pop: impl FnOnce(&mut Turns<K>) -> Option<K>,
        now: Moment,
    ) -> Option<Taken<K>> {
        self.ring(now);
        if self.closed {
            return None;
        }
        let key = pop(&mut self.ready)?;
        let since = self.dirty.remove(&key).unwrap_or(now);
        self.running.insert(key.clone(), now);
        Some(Taken { key, waited: now.saturating_sub(since) })
    }

    /// Records that a worker is done with a key; returns for how long it had the key.
    pub fn done(&mut self, key: &K, now: Moment) -> Duration {
        let since = self.running.remove(key).unwrap_or(now);
        self.ready.give_back(key.namespace());
        if self.dirty.contains_key(key) && !self.closed {
            self.ready.push(key.clone());
        }
        now.saturating_sub(since)
    }

    /// When the next delayed key is due.
    pub fn next_due(&self) -> Option<Moment> {
        self.alarms.peek().map(|Reverse(alarm)| alarm.at)
    }

    /// Whether a key could be taken now.
    pub fn has_ready(&self) -> bool {
        !self.closed && self.ready.has_next()
    }

    /// Whether a key could be taken now of a namespace none of whose keys is being processed.
    pub fn has_idle(&self) -> bool {
        !self.closed && self.ready.has_idle()
    }

    /// How many keys are ready.
    pub fn depth(&self) -> usize {
        self.ready.len()
    }

    /// Stops handing out keys. ([Q7])
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// Whether the queue was closed.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The counters so far.
    pub fn tally(&self) -> QueueTally {
        self.tally
    }

    /// How long each unfinished key has been processed.
    pub fn unfinished(&self, now: Moment) -> impl Iterator<Item = Duration> {
        self.running.values().map(move |since| now.saturating_sub(*since))
    }

    /// Moves due keys to the ready ones.
    fn ring(&mut self, now: Moment) {
        while let Some(Reverse(alarm)) = self.alarms.peek() {
            if alarm.at > now {
                return;
            }
            let Some(Reverse(alarm)) = self.alarms.pop() else { return };
            // An alarm that an earlier one superseded is not an entry.
            if self.waiting.get(&alarm.key) == Some(&alarm.at) {
                self.waiting.remove(&alarm.key);
                self.add(alarm.key, now);
            }
        }
    }
}

impl FailureDelay {
    fn after(self, failures: u32) -> Duration {
        let factor = 2_u32.checked_pow(failures).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }
}

impl<K> Ord for Alarm<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<K> PartialOrd for Alarm<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> PartialEq for Alarm<K> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<K> Eq for Alarm<K> {}

#[cfg(test)]
mod tests {
    use epilogue_common::outcome::FailureKind;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn queue() -> QueueCore<&'static str> {
        QueueCore::new(FailureDelay { base: SECOND, max: 60 * SECOND })
    }

    fn at(millis: u64) -> Moment {
        Duration::from_millis(millis)
    }

    fn take(queue: &mut QueueCore<&'static str>, millis: u64) -> Option<&'static str> {
        queue.take(at(millis)).map(|taken| taken.key)
    }

    impl Key for &'static str {
        fn namespace(&self) -> &str {
            self.split_once('/').map_or("", |(namespace, _)| namespace)
        }
    }

    #[test]
    fn a_namespace_that_floods_the_queue_waits_behind_itself() {
        let mut queue = queue();
        for key in ["many/1", "many/2", "many/3", "few/1"] {
            queue.add(key, at(0));
        }
        let order: Vec<_> = (0..4).filter_map(|_| take(&mut queue, 0)).collect();
        assert_eq!(order, ["many/1", "few/1", "many/2", "many/3"]);
    }

    #[test]
    fn a_queue_that_rests_takes_nothing_in_until_it_is_opened() {
        let mut queue = queue();
        queue.rest();
        queue.add("a", at(0));
        queue.add_after("b", SECOND, at(0));
        assert_eq!((queue.depth(), queue.waiting.len()), (0, 0));
        queue.open();
        queue.add("a", at(0));
        assert_eq!(take(&mut queue, 0), Some("a"));
    }

    #[test]
    fn times_that_come_ever_earlier_leave_one_alarm_for_a_key() {
        let mut queue = queue();
        for earlier in 0..10_000 {
            queue.add_after("a", at(3_600_000 - earlier), at(0));
        }
        assert!(queue.alarms.len() <= ALARMS_KEPT_MIN + 2, "{}", queue.alarms.len());
        assert_eq!(queue.next_due(), Some(at(3_590_001)));
        assert_eq!(take(&mut queue, 3_600_000), Some("a"));
        assert_eq!(take(&mut queue, 3_600_000), None);
    }

    #[test]
    fn duplicates_collapse_and_order_is_kept() {
        let mut queue = queue();
        for key in ["a", "b", "a"] {
            queue.add(key, at(0));
        }
        assert_eq!((queue.depth(), queue.tally().adds), (2, 2));
        assert_eq!(queue.take(at(5)), Some(Taken { key: "a", waited: at(5) }));
        assert_eq!(take(&mut queue, 5), Some("b"));
        assert_eq!(take(&mut queue, 5), None);
    }

    #[test]
    fn a_key_added_while_it_runs_runs_once_more_afterwards() {
        let mut queue = queue();
        queue.add("a", at(0));
        assert_eq!(take(&mut queue, 0), Some("a"));
        queue.add("a", at(1));
        queue.add("a", at(2));
        assert_eq!(take(&mut queue, 3), None, "one worker at most has a key");
        assert_eq!(queue.done(&"a", at(4)), at(4));
        assert_eq!(queue.take(at(6)), Some(Taken { key: "a", waited: at(5) }));
        queue.done(&"a", at(7));
        assert_eq!(take(&mut queue, 8), None);
    }

    #[test]
    fn a_window_begins_with_the_first_event_and_is_no_debounce() {
        let mut queue = queue();
        queue.add_after("a", SECOND, at(0));
        queue.add_after("a", SECOND, at(900));
        assert_eq!(queue.next_due(), Some(SECOND));
        assert_eq!(take(&mut queue, 999), None);
        assert_eq!(take(&mut queue, 1000), Some("a"));
        queue.done(&"a", at(1001));
        assert_eq!(take(&mut queue, 5000), None, "the later add was absorbed");
    }

    #[test]
    fn no_wait_is_longer_than_a_year() {
        let mut queue = queue();
        queue.add_after("a", Duration::MAX, at(0));
        assert_eq!(queue.next_due(), Some(WAIT_MAX));
        assert_eq!(queue.take(WAIT_MAX).map(|taken| taken.key), Some("a"));
    }

    #[test]
    fn an_earlier_time_replaces_a_later_one() {
        let mut queue = queue();
        queue.add_after("a", 10 * SECOND, at(0));
        queue.add_after("a", SECOND, at(0));
        assert_eq!(take(&mut queue, 1000), Some("a"));
        queue.done(&"a", at(1000));
        assert_eq!(take(&mut queue, 20_000), None, "the later time is gone");
    }

    #[test]
    fn no_delay_adds_at_once_and_does_not_cancel_the_entry_that_waits() {
        let mut queue = queue();
        queue.add_after("a", SECOND, at(0));
        queue.add_after("a", Duration::ZERO, at(10));
        assert_eq!(take(&mut queue, 10), Some("a"));
        queue.done(&"a", at(20));
        assert_eq!(take(&mut queue, 20), None);
        assert_eq!(take(&mut queue, 1000), Some("a"));
    }

    #[test]
    fn a_delayed_key_that_comes_due_while_it_runs_waits_for_the_worker() {
        let mut queue = queue();
        queue.add("a", at(0));
        queue.add_after("a", SECOND, at(0));
        assert_eq!(take(&mut queue, 0), Some("a"));
        assert_eq!(take(&mut queue, 1500), None);
        queue.done(&"a", at(2000));
        assert_eq!(take(&mut queue, 2000), Some("a"));
    }

    #[test]
    fn failures_double_the_delay_up_to_the_max_and_success_forgets_them() {
        let mut queue = queue();
        let mut fail = |key| queue.add_failed(key, &conflict(), at(0)).as_secs();
        let delays: Vec<u64> = (0..8).map(|_| fail("a")).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(fail("b"), 1, "keys fail apart from each other");
        queue.forget(&"a");
        assert_eq!(queue.add_failed("a", &conflict(), at(0)), SECOND);
    }

    #[test]
    fn an_outage_delays_no_key_for_long() {
        let unsent = Failure { unsent: true, ..Failure::new(FailureKind::Unknown, "refused") };
        let mut queue = queue();
        let mut fail = |failure: &Failure| queue.add_failed("a", failure, at(0)).as_secs();
        let delays: Vec<u64> = (0..5).map(|_| fail(&unsent)).collect();
        assert_eq!(delays, [1, 2, 4, 5, 5]);
        assert_eq!(fail(&conflict()), 32, "a refusal that follows is a failure as any other");
        let mut slow = QueueCore::new(FailureDelay { base: 9 * SECOND, max: 60 * SECOND });
        for _ in 0..3 {
            assert_eq!(slow.add_failed("a", &unsent, at(0)), 9 * SECOND);
        }
    }

    #[test]
    fn a_server_s_wait_is_kept_within_a_minute_and_never_shortens_the_backoff() {
        let mut queue = queue();
        let mut fail = |seconds| {
            let retry_after = Some(jiff::SignedDuration::from_secs(seconds));
            let failure = Failure { retry_after, ..conflict() };
            queue.add_failed("a", &failure, at(0)).as_secs()
        };
        assert_eq!([30, 1, 3_600, -1, 0].map(&mut fail), [30, 2, 60, 8, 16]);
    }

    #[test]
    fn a_namespace_that_is_stuck_holds_a_part_of_the_workers_only() {
        let mut queue = QueueCore::sharing(FailureDelay { base: SECOND, max: SECOND }, 9);
        for key in ["slow/1", "slow/2", "slow/3", "slow/4", "slow/5", "slow/6", "slow/7"] {
            queue.add(key, at(0));
        }
        assert_eq!((0..9).filter_map(|_| take(&mut queue, 0)).count(), 6);
        assert!(!queue.has_ready() && queue.depth() == 1);
        queue.add("quick/1", at(1));
        assert!(queue.has_ready());
        assert_eq!(take(&mut queue, 1), Some("quick/1"));
        queue.done(&"slow/1", at(2));
        queue.done(&"quick/1", at(2));
        assert_eq!(take(&mut queue, 2), Some("slow/7"));
    }

    fn conflict() -> Failure {
        Failure::new(FailureKind::Conflict, "conflict")
    }

    #[test]
    fn many_failures_do_not_overflow() {
        let delay = FailureDelay { base: SECOND, max: 60 * SECOND };
        assert_eq!(delay.after(u32::MAX), 60 * SECOND);
    }

    #[test]
    fn a_closed_queue_hands_out_nothing_and_takes_nothing() {
        let mut queue = queue();
        queue.add("a", at(0));
        queue.close();
        queue.add("b", at(0));
        assert_eq!(take(&mut queue, 0), None);
        assert!(queue.is_closed() && !queue.has_ready());
    }

    #[test]
    fn unfinished_work_has_an_age() {
        let mut queue = queue();
        queue.add("a", at(0));
        queue.add("b", at(0));
        assert_eq!([take(&mut queue, 10), take(&mut queue, 10)], [Some("a"), Some("b")]);
        assert_eq!(queue.unfinished(at(15)).sum::<Duration>(), at(10));
    }
}
