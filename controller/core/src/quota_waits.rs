//! Wakes Jobs whose pods a `ResourceQuota` refused, once pods of their namespace end. Few ask at
//! once: thousands may wait for one quota. As with slow start, each success lets one more ask.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::view::JobKey;
use crate::workqueue::Moment;

/// From the end of a pod to the next creation: the quota's controller counts anew meanwhile.
const AFTER_END: Duration = Duration::from_millis(500);
/// How long after the end of a pod the quota may still be counted anew.
const COUNTED_WITHIN: Duration = Duration::from_secs(6);
/// The time between two creations of a Job meanwhile.
const ASK_AGAIN: Duration = Duration::from_millis(1_500);
/// Maximum number of Jobs of a namespace that ask at once.
const ASKING_MAX: usize = 16;

/// Jobs that wait for quota.
#[derive(Clone, Debug, Default)]
pub struct QuotaWaits {
    namespaces: HashMap<Arc<str>, Waits>,
}

/// The Jobs of a namespace.
#[derive(Clone, Debug)]
struct Waits {
    /// Those that do not ask, in turn.
    waiting: VecDeque<JobKey>,
    /// Those that have been woken.
    asking: HashSet<JobKey>,
    /// All of them.
    all: HashSet<JobKey>,
    asking_max: usize,
    /// When a pod of the namespace has ended.
    ended: Option<Moment>,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            asking: HashSet::new(),
            all: HashSet::new(),
            asking_max: 1,
            ended: None,
        }
    }
}

impl QuotaWaits {
    /// Quota refused a pod of this Job. Returns when it asks again, if sooner than by its backoff.
    pub fn refused(&mut self, job: &JobKey, now: Moment) -> Option<Duration> {
        let waits = self.namespaces.entry(Arc::clone(&job.namespace)).or_default();
        if waits.all.insert(job.clone()) {
            waits.waiting.push_back(job.clone());
            return None;
        }
        if !waits.asking.contains(job) {
            return None;
        }
        waits.asking_max = (waits.asking_max / 2).max(1);
        let is_soon = waits.ended.is_some_and(|at| now.saturating_sub(at) < COUNTED_WITHIN);
        if is_soon && waits.asking.len() <= waits.asking_max {
            return Some(ASK_AGAIN);
        }
        waits.asking.remove(job);
        waits.waiting.push_back(job.clone());
        None
    }

    /// A sync of this Job was refused nothing. Returns the Jobs that ask next.
    pub fn passed(&mut self, job: &JobKey) -> Vec<JobKey> {
        let Some(waits) = self.namespaces.get_mut(&job.namespace) else { return Vec::new() };
        if !waits.all.remove(job) {
            return Vec::new();
        }
        let next = if waits.asking.remove(job) {
            waits.asking_max = (waits.asking_max + 1).min(ASKING_MAX);
            waits.wake()
        } else {
            waits.waiting.retain(|it| it != job);
            Vec::new()
        };
        if waits.all.is_empty() {
            self.namespaces.remove(&job.namespace);
        }
        next
    }

    /// A pod of this namespace has ended or is gone. Returns the Jobs that ask, and after how long.
    pub fn pod_ended(&mut self, namespace: &str, now: Moment) -> (Vec<JobKey>, Duration) {
        let Some(waits) = self.namespaces.get_mut(namespace) else {
            return (Vec::new(), AFTER_END);
        };
        waits.ended = Some(now);
        (waits.wake(), AFTER_END)
    }
}

impl Waits {
    /// Lets as many ask as may at once.
    fn wake(&mut self) -> Vec<JobKey> {
        let mut woken = Vec::new();
        while self.asking.len() < self.asking_max {
            let Some(job) = self.waiting.pop_front() else { break };
            self.asking.insert(job.clone());
            woken.push(job);
        }
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> JobKey {
        JobKey::new("a", format!("job-{number}"))
    }

    fn at(millis: u64) -> Moment {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_job_asks_soon_after_a_pod_has_ended_and_for_as_long_as_the_quota_is_counted() {
        let mut waits = QuotaWaits::default();
        assert_eq!(waits.refused(&key(0), at(0)), None, "its backoff holds");
        assert_eq!(waits.refused(&key(0), at(9_000)), None);
        assert_eq!(waits.pod_ended("b", at(10_000)).0, []);
        assert_eq!(waits.pod_ended("a", at(10_000)), (vec![key(0)], AFTER_END));
        assert_eq!(waits.pod_ended("a", at(10_100)).0, [], "it asks already");
        assert_eq!(waits.refused(&key(0), at(10_500)), Some(ASK_AGAIN));
        assert_eq!(waits.refused(&key(0), at(16_200)), None, "somebody else had the place");
        assert_eq!(waits.pod_ended("a", at(20_000)).0, [key(0)]);
        assert_eq!(waits.passed(&key(0)), []);
        assert!(waits.namespaces.is_empty(), "nothing is kept");
    }

    #[test]
    fn thousands_of_jobs_ask_one_after_the_other_and_faster_while_there_is_room() {
        let mut waits = QuotaWaits::default();
        for number in 0..5_000 {
            assert_eq!(waits.refused(&key(number), at(0)), None);
        }
        let (first, _) = waits.pod_ended("a", at(1_000));
        assert_eq!(first, [key(0)]);
        for millis in 1_001..1_400 {
            assert_eq!(waits.pod_ended("a", at(millis)).0, [], "one asks at a time");
        }
        let (mut asking, mut sizes) = (first, Vec::new());
        for _ in 0..6 {
            asking = asking.iter().flat_map(|job| waits.passed(job)).collect();
            sizes.push(asking.len());
        }
        assert_eq!(sizes, [2, 4, 8, 16, 16, 16]);
        // The room is used up: all but one give up at once.
        let again: Vec<_> = asking.iter().filter_map(|it| waits.refused(it, at(2_000))).collect();
        assert_eq!(again, [ASK_AGAIN]);
        assert_eq!(waits.pod_ended("a", at(3_000)).0, [], "that one asks");
    }

    #[test]
    fn a_job_that_got_its_pods_by_itself_is_left_out() {
        let mut waits = QuotaWaits::default();
        for number in [0, 1, 0] {
            waits.refused(&key(number), at(0));
        }
        assert_eq!(waits.passed(&key(0)), []);
        assert_eq!(waits.passed(&key(7)), []);
        assert_eq!(waits.pod_ended("a", at(0)).0, [key(1)]);
        assert_eq!(waits.passed(&key(1)), []);
        assert!(waits.namespaces.is_empty());
    }
}
