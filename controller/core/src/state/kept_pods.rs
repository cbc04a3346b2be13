//! Follows how many finished pods each Job keeps by `epilogue.dev/finished-pods-kept`.

use std::sync::Arc;

use epilogue_common::watch_event::WatchEvent;

use super::ClusterState;
use super::event::Entry;
use super::gc::{Gc, excess_wake};
use super::jobs::Jobs;
use super::pods::Pods;
use crate::podgc::kept::Rule;
use crate::podgc::{Excess, Mode, Wake};
use crate::view::{Job, JobKey, Pod};

/// A Job that an event shows, and the Job of that name until then.
pub(super) type Shown = (JobKey, Option<Arc<Job>>);

impl ClusterState {
    /// What to compare an event with, once it is taken. It is not needed without pod GC.
    pub(super) fn job_before(&self, event: &WatchEvent<Arc<Job>>) -> Option<Shown> {
        match event {
            WatchEvent::Shown(job) if self.gc.is_some() => {
                Some((job.key.clone(), self.jobs.get(&job.key).cloned()))
            }
            _ => None,
        }
    }

    /// A Job was shown, and it may keep another number of pods than before.
    pub(super) fn job_shown(&mut self, (key, old): &Shown) -> Option<Entry> {
        let (gc, job) = (self.gc.as_mut()?, self.jobs.get(key)?);
        gc.job_shown(job, old.as_deref(), &self.jobs).map(Entry::Check)
    }
}

impl Gc {
    /// A Job was shown. `old` is the Job that it replaces.
    fn job_shown(&mut self, job: &Job, old: Option<&Job>, jobs: &Jobs) -> Option<Wake> {
        let of = |job: &Job| Rule::of(job).filter(|_| jobs.is_ours(job));
        let rule = of(job);
        if rule == old.filter(|old| old.uid == job.uid).and_then(of) {
            return None;
        }
        if self.settings.mode == Mode::Off {
            return None;
        }
        self.kept.change(job);
        Some(excess_wake())
    }

    /// Finds anew the finished pods of Jobs whose rule has changed, as many as one search reads.
    pub(super) fn read_changed(&mut self, pods: &Pods, jobs: &Jobs) {
        let mut read = 0;
        while let Some((uid, key)) = self.kept.take_changed(read) {
            for pod in self.kept.forget(&uid) {
                if matches!(self.excess.get(&pod), Some(Excess::Kept(_))) {
                    self.excess.remove(&pod);
                }
            }
            let is_running =
                jobs.get(&key).is_some_and(|job| job.uid == uid && Rule::of(job).is_some());
            for pod in pods.of_owner(&key.namespace, &uid).filter(|_| is_running) {
                self.kept.show(pod, kept_rule(pod, jobs));
                read += 1;
            }
        }
    }
}

/// The rule of a pod's Job, if the pod is the Job's own, has finished and is counted: its finalizer
/// is gone, and not before it was counted.
pub(super) fn kept_rule(pod: &Pod, jobs: &Jobs) -> Option<Rule> {
    if !pod.is_terminal() || pod.tracked || !pod.is_of_job() {
        return None;
    }
    let job = jobs.of_pod(pod)?;
    let is_counted = || !jobs.is_uncounted(&job.uid, &pod.uid);
    let rule = Rule::of(job).filter(|_| jobs.is_ours(job) && is_counted())?;
    pod.matches(&job.spec.selector).then_some(rule)
}

/// Whether the excess of a pod is still one: its Job may have changed its mind since.
pub(super) fn is_left(excess: &Excess, pod: &Pod, jobs: &Jobs) -> bool {
    match excess {
        Excess::Kept(max) => kept_rule(pod, jobs).is_some_and(|rule| rule.max == *max),
        Excess::Cluster(_) | Excess::Owner(_) | Excess::Age(_) => true,
    }
}
