//! Decides what to queue after an event of a Job.

use std::time::Duration;

use epilogue_common::names::{MANAGED_BY, RESERVED_MANAGED_BY};
use jiff::{SignedDuration, Timestamp};

use super::{Enqueue, Enqueues};
use crate::batching::Change;
use crate::orphans::{FormerJob, Orphans};
use crate::view::Job;

/// How long the pods of a Job that has just finished are left alone.
///
/// DIVERGES(upstream): upstream checks them at once. Its cache does not show yet which finalizers
/// the sync that finished the Job has removed, so it removes many of them twice. ([Q6])
const AFTER_FINISH: Duration = Duration::from_secs(1);

/// A Job before and after an event.
#[derive(Clone, Copy, Debug)]
pub enum JobChange<'a> {
    /// The Job is new.
    Added(&'a Job),
    /// The Job before and after.
    Updated(&'a Job, &'a Job),
    /// The Job is gone; this is its last known state.
    Deleted(&'a Job),
}

/// The other controller that `managedBy` names. ([H1], [M6])
pub fn external_controller(job: &Job) -> Option<&str> {
    let by = job.spec.managed_by.as_deref()?;
    (by != MANAGED_BY && by != RESERVED_MANAGED_BY).then_some(by)
}

/// What to queue after a Job's event.
pub fn job_changed(change: JobChange<'_>, now: Timestamp) -> Enqueues {
    let queue = match change {
        // A new Job is synced at once. ([H1])
        JobChange::Added(job) => vec![Enqueue::Sync(job.key.clone())],
        JobChange::Updated(old, new) => updated(old, new, now),
        // The cache drops the memory of the Job. ([H4])
        JobChange::Deleted(job) => {
            vec![Enqueue::Sync(job.key.clone()), Enqueue::Orphans(former(job))]
        }
    };
    Enqueues { observers: Vec::new(), queue }
}

fn updated(old: &Job, new: &Job, now: Timestamp) -> Vec<Enqueue> {
    // A finished Job is not synced; only its pods are checked. ([H2])
    if new.is_finished() {
        return vec![Enqueue::OrphansAfter(former(new), AFTER_FINISH)];
    }
    let key = new.key.clone();
    let mut queue = vec![if old.generation == new.generation {
        Enqueue::Batch(key, Change::Status)
    } else {
        Enqueue::Sync(key)
    }];
    queue.extend(deadline(old, new, now));
    queue
}

/// A deadline that is new or has moved wakes the Job up when it is due. ([H3])
fn deadline(old: &Job, new: &Job, now: Timestamp) -> Option<Enqueue> {
    let start = new.start_time()?;
    let deadline = new.spec.active_deadline_seconds?;
    if old.spec.active_deadline_seconds == Some(deadline) {
        return None;
    }
    let left = SignedDuration::from_secs(deadline).saturating_sub(now.duration_since(start));
    let wait = Duration::try_from(left).unwrap_or(Duration::ZERO);
    Some(Enqueue::SyncAfter(new.key.clone(), wait))
}

fn former(job: &Job) -> Orphans {
    Orphans::OfJob(FormerJob::of(job))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_handlers::samples::{finished, job};
    use crate::workqueue::WAIT_MAX;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    fn now() -> Timestamp {
        "2026-01-01T00:01:00Z".parse().expect("must be a time")
    }

    fn sample(generation: i64) -> Job {
        job(json!({"metadata": {"name": "a", "uid": "uid-a", "generation": generation}}))
    }

    #[test]
    fn a_new_job_is_synced_at_once() {
        let job = sample(1);
        let enqueues = job_changed(JobChange::Added(&job), now());
        assert_eq!(enqueues.queue, [Enqueue::Sync(job.key.clone())]);
    }

    #[test]
    fn a_status_update_is_batched_and_a_new_generation_is_not() {
        let (old, new) = (sample(1), sample(2));
        let status = job_changed(JobChange::Updated(&old, &old), now());
        assert_eq!(status.queue, [Enqueue::Batch(old.key.clone(), Change::Status)]);
        let spec = job_changed(JobChange::Updated(&old, &new), now());
        assert_eq!(spec.queue, [Enqueue::Sync(new.key.clone())]);
    }

    #[test]
    fn a_finished_job_only_has_its_pods_checked() {
        let (old, new) = (sample(1), finished("a", "uid-a"));
        let enqueues = job_changed(JobChange::Updated(&old, &new), now());
        assert_eq!(enqueues.queue, [Enqueue::OrphansAfter(former(&new), AFTER_FINISH)]);
    }

    #[test]
    fn a_deleted_job_is_synced_and_its_pods_checked() {
        let job = sample(1);
        let enqueues = job_changed(JobChange::Deleted(&job), now());
        let expected = [Enqueue::Sync(job.key.clone()), Enqueue::Orphans(former(&job))];
        assert_eq!(enqueues.queue, expected);
    }

    #[test]
    fn a_deadline_that_moved_wakes_the_job_up_when_it_is_due() {
        let with = |seconds: Option<i64>| {
            let mut job = job(json!({"metadata": {"name": "a", "generation": 1},
                "status": {"startTime": "2026-01-01T00:00:00Z"}}));
            job.spec.active_deadline_seconds = seconds;
            job
        };
        let wake = |old: Option<i64>, new: Option<i64>| deadline(&with(old), &with(new), now());
        let after = |seconds| {
            let key = with(None).key;
            Some(Enqueue::SyncAfter(key, Duration::from_secs(seconds)))
        };
        assert_eq!(wake(None, Some(90)), after(30));
        assert_eq!(wake(Some(80), Some(90)), after(30));
        assert_eq!(wake(Some(90), Some(10)), after(0));
        assert_eq!(wake(Some(90), Some(90)), None);
        assert_eq!(wake(None, Some(i64::MIN)), after(0));
        let mut ahead = with(Some(i64::MAX));
        ahead.status.start_time = Some(Time(Timestamp::MAX));
        let longest = deadline(&with(None), &ahead, now());
        assert!(matches!(longest, Some(Enqueue::SyncAfter(_, wait)) if wait > WAIT_MAX));
        assert_eq!(wake(Some(90), None), None);
        let mut unstarted = with(Some(90));
        unstarted.status.start_time = None;
        assert_eq!(deadline(&with(None), &unstarted, now()), None);
    }
}
