//! Decides how long a change waits before its Job is synced. ([Q3])

use std::collections::VecDeque;
use std::time::Duration;

use crate::view::{Job, Phase, Pod};
use crate::workqueue::Moment;

/// The longest that a change waits; upstream calls it `SyncJobBatchPeriod`.
pub const BATCH_MAX: Duration = Duration::from_secs(1);

/// How long the status may lack new pods. It is as long as changes of pods wait anyway.
const COUNTS_MAX: Duration = BATCH_MAX;

/// The same while the process is busy: short Jobs then end before a write shows their pods.
const COUNTS_MAX_BUSY: Duration = Duration::from_secs(5);

/// The same while calls wait for `--kube-api-qps`: a write of a count takes the turn of a pod.
const COUNTS_MAX_LIMITED: Duration = Duration::from_mins(1);

/// From this many syncs a second on, the process counts as busy.
const BUSY_SYNCS_PER_SECOND: usize = 20;

/// An early sync waits for ten times the length of the last one. So a Job spends at most a tenth of
/// its time in early syncs.
const REST_FACTOR: u32 = 10;

/// With more active pods, more changes follow and each matters less. From 50 active pods on, a
/// change waits the whole second.
const WAIT_PER_ACTIVE_POD: Duration = Duration::from_millis(20);

/// How changes of pods and statuses are batched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batching {
    /// Each change waits this long (`--sync-job-batch-period`), as upstream.
    Fixed(Duration),
    /// DIVERGES(upstream): a change after which the Job may need a pod or may be finished does not
    /// wait when that costs no further writes. That holds when no pod of the Job is left that could
    /// end within the second, or when the process is not busy. Upstream makes each pod of a serial
    /// Job wait a second for the one before. ([Q3])
    #[default]
    Adaptive,
}

/// How much the process has to do, which decides how long counts of a status may wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pressure {
    /// Little.
    #[default]
    Quiet,
    /// Jobs wait for their sync, or many were synced of late.
    Busy,
    /// Calls wait for `--kube-api-qps`.
    Limited,
}

/// The kind of a change, which decides its urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// The Job's status changed, mostly by our own write.
    Status,
    /// Readiness, phase or node of a pod changed: only counters follow.
    Counters,
    /// A pod succeeded.
    Succeeded,
    /// A pod failed, began to terminate, or vanished.
    Ended,
}

/// The pods of a Job, counted by what they mean for its progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedPodCounts {
    /// Active pods. ([S12])
    pub active: u32,
    /// Terminating pods. ([S12])
    pub terminating: u32,
    /// Succeeded pods with the tracking finalizer, which the status does not count yet.
    pub tracked_succeeded: u32,
    /// Active pods that are ready.
    pub ready: u32,
    /// Active pods without an index.
    pub without_index: u32,
    /// Restarts of all containers of pods that are pending or run. ([C10])
    pub restarts: u64,
}

/// The time and length of a key's last sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastSync {
    /// When it ended.
    pub ended: Moment,
    /// How long it took.
    pub took: Duration,
}

/// The load of the process.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Ends of the newest syncs, as many as the decision needs.
    ends: VecDeque<Moment>,
}

/// The input that decides how long one change waits.
#[derive(Clone, Copy, Debug)]
pub struct BatchInput<'a> {
    /// The change.
    pub change: Change,
    /// Its Job.
    pub job: &'a Job,
    /// The Job's pods after the change.
    pub counts: CachedPodCounts,
    /// The Job's last sync.
    pub last: Option<LastSync>,
    /// Whether other Jobs wait for their sync, or the process synced many of late.
    pub busy: bool,
    /// The current time.
    pub now: Moment,
}

impl Load {
    /// Records the end of a sync.
    pub fn synced(&mut self, now: Moment) {
        self.ends.push_back(now);
        if self.ends.len() > BUSY_SYNCS_PER_SECOND {
            self.ends.pop_front();
        }
    }

    /// Whether so many syncs ended within the last second that each further one should wait.
    pub fn is_busy(&self, now: Moment) -> bool {
        self.ends.len() >= BUSY_SYNCS_PER_SECOND
            && self.ends.front().is_some_and(|end| now.saturating_sub(*end) < BATCH_MAX)
    }
}

impl CachedPodCounts {
    /// Adds a pod.
    pub fn add(&mut self, pod: &Pod) {
        self.active += u32::from(pod.is_active());
        self.terminating += u32::from(pod.is_terminating());
        self.tracked_succeeded += u32::from(is_uncounted_success(pod));
        self.ready += u32::from(pod.is_active() && pod.is_ready());
        self.without_index += u32::from(pod.is_active() && pod.index.is_none());
        self.restarts += restarts(pod);
    }

    /// Removes a pod, which must be as it was when it was added.
    pub fn remove(&mut self, pod: &Pod) {
        self.active -= u32::from(pod.is_active());
        self.terminating -= u32::from(pod.is_terminating());
        self.tracked_succeeded -= u32::from(is_uncounted_success(pod));
        self.ready -= u32::from(pod.is_active() && pod.is_ready());
        self.without_index -= u32::from(pod.is_active() && pod.index.is_none());
        self.restarts -= restarts(pod);
    }
}

fn restarts(pod: &Pod) -> u64 {
    match pod.phase {
        Phase::Running | Phase::Pending => {
            pod.containers.iter().map(|container| u64::from(container.restarts)).sum()
        }
        _ => 0,
    }
}

fn is_uncounted_success(pod: &Pod) -> bool {
    pod.tracked && pod.phase == Phase::Succeeded
}

impl Change {
    /// Classifies the change of a pod. `None` is a pod that does not exist.
    pub fn of_pod(old: Option<&Pod>, new: Option<&Pod>) -> Self {
        let succeeded = |pod: &Pod| pod.phase == Phase::Succeeded;
        match (old, new) {
            (old, Some(new)) if succeeded(new) && !old.is_some_and(succeeded) => Self::Succeeded,
            (Some(old), Some(new)) if old.is_active() && !new.is_active() => Self::Ended,
            (Some(old), Some(new)) if !old.is_terminal() && new.is_terminal() => Self::Ended,
            (None, Some(new)) if !new.is_active() => Self::Ended,
            (Some(old), None) if !old.is_terminal() => Self::Ended,
            _ => Self::Counters,
        }
    }
}

impl Batching {
    /// How long the change waits.
    pub fn delay(self, input: &BatchInput<'_>) -> Duration {
        match self {
            Self::Fixed(period) => period,
            Self::Adaptive => adaptive_delay(input),
        }
    }

    /// How long `status.active` may lack new pods, so that one write stores them together with
    /// what follows.
    pub fn counts_max(self, pressure: Pressure) -> Duration {
        match (self, pressure) {
            (Self::Fixed(_), _) => Duration::ZERO,
            (Self::Adaptive, Pressure::Quiet) => COUNTS_MAX,
            (Self::Adaptive, Pressure::Busy) => COUNTS_MAX_BUSY,
            (Self::Adaptive, Pressure::Limited) => COUNTS_MAX_LIMITED,
        }
    }

    /// Raises a wait that the plan asked for to its minimum. ([Q3])
    ///
    /// DIVERGES(upstream): a given period also holds for the wait for a deadline. ([Q4])
    pub fn floor(self, wait: Duration) -> Duration {
        match self {
            Self::Fixed(period) => wait.max(period),
            Self::Adaptive => wait,
        }
    }
}

fn adaptive_delay(input: &BatchInput<'_>) -> Duration {
    let prompt = match input.change {
        Change::Status | Change::Counters => false,
        Change::Ended => true,
        Change::Succeeded => may_need_pod(input.job, input.counts) || nothing_runs(input.counts),
    };
    if !prompt {
        return BATCH_MAX;
    }
    if nothing_runs(input.counts) {
        return Duration::ZERO;
    }
    if input.busy {
        return BATCH_MAX;
    }
    let rest = input.last.map_or(Duration::ZERO, |last| {
        let due = last.ended.saturating_add(last.took.saturating_mul(REST_FACTOR));
        due.saturating_sub(input.now)
    });
    rest.max(WAIT_PER_ACTIVE_POD.saturating_mul(input.counts.active)).min(BATCH_MAX)
}

fn nothing_runs(counts: CachedPodCounts) -> bool {
    counts.active == 0 && counts.terminating == 0
}

/// Whether the Job may have fewer pods than it wants, as far as counters can show. ([P2])
fn may_need_pod(job: &Job, counts: CachedPodCounts) -> bool {
    if job.spec.suspend || job.deleting {
        return false;
    }
    let active = i64::from(counts.active);
    let counted = i64::from(job.status.succeeded.unwrap_or(0));
    let succeeded = counted + i64::from(counts.tracked_succeeded);
    let wanted = match job.spec.completions {
        Some(completions) => i64::from(completions) - succeeded > active,
        None => succeeded == 0,
    };
    wanted && active < i64::from(job.spec.parallelism)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_handlers::samples::{job, pod};
    use serde_json::json;

    const NOW: Moment = Duration::from_mins(1);

    fn serial(succeeded: i32) -> Job {
        job(json!({"metadata": {"name": "serial"}, "spec": {"completions": 3, "parallelism": 1},
                   "status": {"succeeded": succeeded}}))
    }

    fn wide() -> Job {
        job(json!({"metadata": {"name": "wide"}, "spec": {"completions": 50, "parallelism": 10}}))
    }

    fn active(active: u32) -> CachedPodCounts {
        CachedPodCounts { active, ..CachedPodCounts::default() }
    }

    fn input(change: Change, job: &Job, counts: CachedPodCounts) -> BatchInput<'_> {
        BatchInput { change, job, counts, last: None, busy: false, now: NOW }
    }

    #[test]
    fn with_a_given_period_every_change_waits_for_it() {
        let period = Duration::from_millis(300);
        for change in [Change::Status, Change::Counters, Change::Succeeded, Change::Ended] {
            let serial = serial(0);
            let input = input(change, &serial, active(0));
            assert_eq!(Batching::Fixed(period).delay(&input), period, "{change:?}");
        }
        assert_eq!(Batching::Fixed(period).floor(Duration::from_millis(1)), period);
        assert_eq!(Batching::Adaptive.floor(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn changes_of_counters_wait_the_whole_second() {
        for change in [Change::Status, Change::Counters] {
            let serial = serial(0);
            assert_eq!(Batching::Adaptive.delay(&input(change, &serial, active(1))), BATCH_MAX);
            assert_eq!(Batching::Adaptive.delay(&input(change, &serial, active(0))), BATCH_MAX);
        }
    }

    #[test]
    fn the_end_of_the_last_pod_does_not_wait_however_busy_the_process_is() {
        for change in [Change::Succeeded, Change::Ended] {
            let job = serial(1);
            let last = Some(LastSync { ended: NOW, took: BATCH_MAX });
            let input = BatchInput { busy: true, last, ..input(change, &job, active(0)) };
            assert_eq!(Batching::Adaptive.delay(&input), Duration::ZERO, "{change:?}");
        }
    }

    #[test]
    fn while_pods_terminate_the_end_of_the_last_active_one_counts_as_one_of_many() {
        let counts = CachedPodCounts { terminating: 3, ..CachedPodCounts::default() };
        let job = wide();
        let input = BatchInput { busy: true, ..input(Change::Ended, &job, counts) };
        assert_eq!(Batching::Adaptive.delay(&input), BATCH_MAX);
    }

    #[test]
    fn a_success_that_makes_room_is_prompt_when_there_is_little_else_to_do() {
        let wide = wide();
        let delay = |input: BatchInput<'_>| Batching::Adaptive.delay(&input).as_millis();
        let free = input(Change::Succeeded, &wide, active(4));
        assert_eq!(delay(free), 80);
        assert_eq!(delay(BatchInput { busy: true, ..free }), 1000);
        let tired = LastSync { ended: NOW, took: Duration::from_millis(30) };
        assert_eq!(delay(BatchInput { last: Some(tired), ..free }), 300);
        let slow = LastSync { ended: NOW, took: Duration::from_secs(3) };
        assert_eq!(delay(BatchInput { last: Some(slow), ..free }), 1000);
    }

    #[test]
    fn a_success_after_which_nothing_is_wanted_waits() {
        let wide = wide();
        let full = input(Change::Succeeded, &wide, active(10));
        assert_eq!(Batching::Adaptive.delay(&full), BATCH_MAX);
        let queue = job(json!({"metadata": {"name": "queue"}, "spec": {"parallelism": 3}}));
        let counts =
            CachedPodCounts { active: 2, tracked_succeeded: 1, ..CachedPodCounts::default() };
        assert_eq!(Batching::Adaptive.delay(&input(Change::Succeeded, &queue, counts)), BATCH_MAX);
    }

    #[test]
    fn a_suspended_or_deleted_job_needs_no_pod() {
        let mut suspended = wide();
        suspended.spec.suspend = true;
        assert!(!may_need_pod(&suspended, active(1)));
        let deleting = Job { deleting: true, ..wide() };
        assert!(!may_need_pod(&deleting, active(1)));
        assert!(may_need_pod(&wide(), active(1)));
    }

    #[test]
    fn changes_differ_by_what_they_end() {
        let running = pod(json!({"status": {"phase": "Running"}}));
        let ready = pod(json!({"status": {"phase": "Running", "conditions":
            [{"type": "Ready", "status": "True"}]}}));
        let succeeded = pod(json!({"status": {"phase": "Succeeded"}}));
        let failed = pod(json!({"status": {"phase": "Failed"}}));
        let terminating = pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        let table = [
            (None, Some(&running), Change::Counters),
            (Some(&running), Some(&ready), Change::Counters),
            (Some(&running), Some(&succeeded), Change::Succeeded),
            (None, Some(&succeeded), Change::Succeeded),
            (Some(&succeeded), Some(&succeeded), Change::Counters),
            (Some(&running), Some(&failed), Change::Ended),
            (Some(&running), Some(&terminating), Change::Ended),
            (Some(&terminating), Some(&failed), Change::Ended),
            (Some(&terminating), None, Change::Ended),
            (Some(&running), None, Change::Ended),
            (Some(&failed), None, Change::Counters),
            (None, Some(&failed), Change::Ended),
        ];
        for (old, new, change) in table {
            assert_eq!(Change::of_pod(old, new), change, "{old:?} -> {new:?}");
        }
    }

    #[test]
    fn a_process_is_busy_after_many_syncs_within_a_second() {
        let mut load = Load::default();
        for index in 0..BUSY_SYNCS_PER_SECOND as u64 {
            assert!(!load.is_busy(Duration::from_millis(index)));
            load.synced(Duration::from_millis(index));
        }
        assert!(load.is_busy(Duration::from_millis(500)));
        assert!(!load.is_busy(Duration::from_secs(1)));
    }

    #[test]
    fn counts_follow_each_pod() {
        let mut counts = CachedPodCounts::default();
        let running = pod(json!({"status": {"phase": "Running"}}));
        let succeeded =
            pod(json!({"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]},
                                   "status": {"phase": "Succeeded"}}));
        counts.add(&running);
        counts.add(&succeeded);
        let both = CachedPodCounts {
            active: 1,
            tracked_succeeded: 1,
            without_index: 1,
            ..CachedPodCounts::default()
        };
        assert_eq!(counts, both);
        counts.remove(&running);
        counts.remove(&succeeded);
        assert_eq!(counts, CachedPodCounts::default());
    }
}
