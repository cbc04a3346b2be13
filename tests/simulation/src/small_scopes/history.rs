//! Judges every write by what the API stores and has stored, not by what a process believes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use controller_core::view::{Job, Phase, Pod, Uid, Version};
use epilogue_common::names::job_condition::{
    COMPLETE, FAILED, FAILURE_TARGET, SUCCESS_CRITERIA_MET,
};
use k8s_openapi::api::batch::v1::JobStatus;

use super::kubelet::is_disrupted;
use super::scope::{JobKind, Scope};
use crate::controller::api::Api;

/// What was ever true of the pods that still matter.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) pods: BTreeMap<Uid, Record>,
}

/// What was ever true of a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    pub(super) created: Version,
    /// The process that created it.
    pub(super) creator: Option<u8>,
    pub(super) succeeded: Option<Version>,
    /// Whether it failed, or was deleted.
    pub(super) failed: bool,
    /// Whether it is in a counter, from which version of the Job on.
    pub(super) counted: Option<Version>,
    /// Whether it was taken out of the count, to be deleted as excess.
    pub(super) stripped: bool,
    /// Whether it was deleted as excess, or because its Job succeeded, while it lived.
    pub(super) excess: bool,
    /// Whether it was called Failed after it had succeeded.
    pub(super) turned: bool,
    /// Whether it alone completed its index.
    pub(super) completed: bool,
    index: Option<u32>,
}

/// What the process that makes a call could know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knowledge {
    pub(super) process: u8,
    /// How far its watch of pods had come when it planned.
    pub(super) shown: Version,
}

impl Knowledge {
    pub(super) fn covers(&self, record: &Record) -> bool {
        record.created <= self.shown || record.creator == Some(self.process)
    }
}

type Judged = Result<(), String>;

impl History {
    /// The pods are as the API stores them.
    pub(super) fn saw(&mut self, api: &Api) {
        for pod in api.pods.values() {
            let record = self.pods.entry(pod.uid.clone()).or_insert_with(|| Record {
                created: pod.version,
                index: pod.index,
                ..Record::default()
            });
            if pod.phase == Phase::Succeeded {
                record.succeeded.get_or_insert(pod.version);
            }
            record.turned |= pod.phase == Phase::Failed && record.succeeded.is_some();
            record.failed |= pod.phase == Phase::Failed || pod.deletion.is_some();
        }
    }

    /// A call of a process that died has arrived. If a pod turned before the write that completes
    /// its index by it, no other process can know that the two belong together.
    pub(super) fn arrived_late(&mut self) {
        for record in self.pods.values_mut() {
            record.completed &= !record.turned;
        }
    }

    /// A pod is about to be released. It leaves none of its group behind that has to end with it,
    /// as far as its process could know.
    pub(super) fn leaves_no_mate(&self, api: &Api, job: &Job, pod: &Pod, by: Knowledge) -> Judged {
        let knows = |other: &Uid| self.pods.get(other).is_some_and(|it| by.covers(it));
        api.left_behind(job, pod, knows).map_or(Ok(()), Err)
    }

    /// A pod that is gone matters while the status lists it, or a process may still count it.
    pub(super) fn forget(&mut self, api: &Api, job: &Job, may_count: impl Fn(&Uid) -> bool) {
        let (succeeded, failed) = listed(&job.status);
        self.pods.retain(|uid, _| {
            let is_listed = succeeded.contains(uid) || failed.contains(uid);
            api.pods.contains_key(uid) || is_listed || may_count(uid)
        });
    }

    /// A pod was created. With it, there are no more pods than the Job wants, as far as its creator
    /// could know.
    pub(super) fn created(
        &mut self,
        world: (&Api, &BTreeSet<Uid>),
        planned: &Job,
        pod: &Pod,
        by: Knowledge,
        scope: &Scope,
    ) -> Judged {
        let (api, running) = world;
        self.saw(api);
        if scope.is_gang() {
            in_group(api, planned, pod)?;
            let knows = |other: &Uid| self.pods.get(other).is_some_and(|it| by.covers(it));
            api.begins_early(planned, pod, knows).map_or(Ok(()), Err)?;
        }
        if let Some(record) = self.pods.get_mut(&pod.uid) {
            record.creator = Some(by.process);
        }
        let lives = |each: &&Arc<Pod>| {
            let record = &self.pods[&each.uid];
            let runs = scope.replaces_failed_only()
                && (!each.is_terminal() || running.contains(&each.uid));
            each.uid != pod.uid && by.covers(record) && (each.is_active() || runs)
        };
        let live: Vec<&Arc<Pod>> = api.pods.values().filter(lives).collect();
        if live.len() >= usize::try_from(scope.at_once).unwrap_or(0) {
            return Err(format!("{} live pods of {} at once", live.len() + 1, scope.at_once));
        }
        if scope.indexed && live.iter().any(|each| each.index == pod.index) {
            return Err(format!("two live pods of index {:?}", pod.index));
        }
        for kind in [SUCCESS_CRITERIA_MET, FAILURE_TARGET] {
            if planned.true_condition(kind).is_some() {
                return Err(format!("{} is created although the Job has {kind}", pod.uid));
            }
        }
        let (known, refused) = listed(&planned.status);
        let fresh = self.pods.iter().filter(|(uid, record)| {
            let shown = record.succeeded.is_some_and(|at| at <= by.shown);
            let counted = record.counted.is_some_and(|at| at <= planned.version);
            // One that was taken out of the count may have come back since its creator looked.
            let tracked = api
                .pods
                .get(*uid)
                .is_some_and(|pod| pod.tracked && (pod.version <= by.shown || !record.stripped));
            let stands = shown && !record.turned;
            stands && tracked && !counted && !known.contains(*uid) && !refused.contains(*uid)
        });
        if scope.indexed {
            let again = fresh.into_iter().any(|(_, record)| record.index == pod.index);
            let done = IndexText::read(planned.status.completed_indexes.as_deref());
            if again || pod.index.is_some_and(|index| done.0.contains(&index)) {
                return Err(format!("index {:?} has succeeded and gets a pod", pod.index));
            }
            return Ok(());
        }
        let done = count(planned.status.succeeded) + known.len() + fresh.count();
        if live.len() + done >= usize::try_from(scope.pods).unwrap_or(0) {
            return Err(format!("a pod too many: {done} successes, {} live pods", live.len()));
        }
        Ok(())
    }

    /// A process takes a pod out of the count, to delete it as excess.
    pub(super) fn stripped(&mut self, seen: &Pod) -> Judged {
        if !seen.is_active() {
            return Err(format!("{} has ended, and is taken out of the count", seen.uid));
        }
        if let Some(record) = self.pods.get_mut(&seen.uid) {
            record.stripped = true;
        }
        Ok(())
    }

    /// A live pod is deleted, and not because it or its Job failed.
    pub(super) fn taken_out(&mut self, uid: &Uid) {
        if let Some(record) = self.pods.get_mut(uid) {
            record.excess = true;
        }
    }

    /// The finalizer of a pod is about to be removed, because it is counted.
    pub(super) fn may_release(&self, api: &Api, job: &Job, seen: &Pod, scope: &Scope) -> Judged {
        let tracked = api.pods.get(&seen.uid).is_some_and(|pod| pod.tracked);
        let succeeds = job.true_condition(SUCCESS_CRITERIA_MET).is_some();
        if !tracked || job.is_finished() || succeeds {
            return Ok(());
        }
        let (succeeded, failed) = listed(&job.status);
        let listed = succeeded.contains(&seen.uid) || failed.contains(&seen.uid);
        let counted = self.pods.get(&seen.uid).is_some_and(|record| record.counted.is_some());
        let by_index = scope.indexed && seen.phase == Phase::Succeeded && {
            let lists = [&job.status.completed_indexes, &job.status.failed_indexes];
            let ended = |text: &Option<String>| {
                seen.index.is_some_and(|it| IndexText::read(text.as_deref()).0.contains(&it))
            };
            lists.into_iter().any(ended)
        };
        let ignored = scope.kind == JobKind::IgnoresDisruptions
            && seen.phase == Phase::Failed
            && is_disrupted(seen);
        if listed || counted || by_index || ignored {
            return Ok(());
        }
        Err(format!("{} loses its finalizer and is not counted", seen.uid))
    }

    /// The status was written.
    pub(super) fn wrote(
        &mut self,
        world: (&Api, &BTreeSet<Uid>),
        before: &Job,
        after: &Job,
        by: Knowledge,
        scope: &Scope,
    ) -> Judged {
        let ((old_good, old_bad), (new_good, new_bad)) =
            (listed(&before.status), listed(&after.status));
        let fails = after.true_condition(FAILURE_TARGET).is_some();
        for uid in new_good.difference(&old_good) {
            let record = self.pods.get(uid).filter(|it| it.succeeded.is_some());
            is_new(uid, record)?;
        }
        for uid in new_bad.difference(&old_bad) {
            let record = self.pods.get(uid).filter(|it| it.failed || fails);
            is_new(uid, record)?;
            if record.is_some_and(|record| record.excess) {
                return Err(format!("{uid} was deleted as excess and counts as failed"));
            }
            if record.is_some_and(|record| record.completed) {
                return Err(format!("{uid} completed its index and counts as failed"));
            }
        }
        let moved_bad: Vec<&Uid> = old_bad.difference(&new_bad).collect();
        let moved_good: Vec<&Uid> = old_good.difference(&new_good).collect();
        let more = |of: fn(&JobStatus) -> Option<i32>| {
            count(of(&after.status)).checked_sub(count(of(&before.status)))
        };
        if more(|status| status.failed) != Some(moved_bad.len()) {
            return Err("failed does not follow the UIDs that leave its list".to_owned());
        }
        if scope.indexed {
            self.indexes(before, after)?;
        } else if more(|status| status.succeeded) != Some(moved_good.len()) {
            return Err("succeeded does not follow the UIDs that leave its list".to_owned());
        }
        for uid in moved_bad.iter().chain(&moved_good) {
            if world.0.pods.get(*uid).is_some_and(|pod| pod.tracked) {
                return Err(format!("{uid} is counted and has its finalizer"));
            }
            if let Some(record) = self.pods.get_mut(*uid) {
                record.counted = Some(after.version);
            }
        }
        self.finishes(world, before, after, by, scope)
    }

    /// Each completed index has a pod that succeeded, and is not taken back.
    fn indexes(&mut self, before: &Job, after: &Job) -> Judged {
        let old = IndexText::read(before.status.completed_indexes.as_deref());
        let new = IndexText::read(after.status.completed_indexes.as_deref());
        let failed = listed(&after.status).1;
        let by = |index: &u32| {
            self.pods.iter().any(|(uid, record)| {
                let counts = record.succeeded.is_some() && !failed.contains(uid);
                counts && record.counted.is_none() && record.index == Some(*index)
            })
        };
        if let Some(index) = new.0.difference(&old.0).find(|index| !by(index)) {
            return Err(format!("index {index} completes by no pod"));
        }
        for index in new.0.difference(&old.0) {
            let of_index = self.pods.values_mut().filter(|record| record.index == Some(*index));
            let mut able: Vec<_> = of_index.filter(|it| it.succeeded.is_some()).collect();
            if let [only] = able.as_mut_slice() {
                only.completed = true;
            }
        }
        if old.0.difference(&new.0).next().is_some() {
            return Err("a completed index is taken back".to_owned());
        }
        if count(after.status.succeeded) != new.0.len() {
            return Err("succeeded is not the number of indexes".to_owned());
        }
        Ok(())
    }

    /// A terminal condition comes when all that its writer could know of is counted and gone.
    fn finishes(
        &self,
        world: (&Api, &BTreeSet<Uid>),
        before: &Job,
        after: &Job,
        by: Knowledge,
        scope: &Scope,
    ) -> Judged {
        let ends = |job: &Job| [COMPLETE, FAILED].iter().any(|it| job.true_condition(it).is_some());
        if ends(before) || !ends(after) {
            return Ok(());
        }
        let (api, running) = world;
        for pod in api.pods.values().filter(|pod| by.covers(&self.pods[&pod.uid])) {
            let runs = scope.replaces_failed_only() && running.contains(&pod.uid);
            if runs || !pod.is_terminal() {
                return Err(format!("the Job is finished while {} lives", pod.uid));
            }
            if pod.tracked && !self.pods[&pod.uid].stripped {
                return Err(format!("the Job is finished before {} is counted", pod.uid));
            }
        }
        Ok(())
    }
}

/// A pod joins the PodGroup of its Job, which exists.
fn in_group(api: &Api, job: &Job, pod: &Pod) -> Judged {
    if pod.group.is_none() {
        return Err(format!("{} is created outside of any group", pod.uid));
    }
    api.not_in_group(job, pod).map_or(Ok(()), Err)
}

/// A UID is listed: `record` is there if the pod ended as the list says.
fn is_new(uid: &Uid, record: Option<&Record>) -> Judged {
    match record {
        None => Err(format!("{uid} is counted and did not end so, or was counted before")),
        Some(record) if record.counted.is_some() => Err(format!("{uid} is counted twice")),
        Some(_) => Ok(()),
    }
}

/// A set of indexes, read without the code under test.
pub(super) struct IndexText(pub(super) BTreeSet<u32>);

impl IndexText {
    /// Reads `0,2-4`.
    pub(super) fn read(text: Option<&str>) -> Self {
        let ranges = text.unwrap_or_default().split(',').filter(|range| !range.is_empty());
        let number = |text: &str| text.parse::<u32>().unwrap_or(u32::MAX);
        let indexes = ranges.flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            number(first)..=number(last)
        });
        Self(indexes.collect())
    }
}

/// `uncountedTerminatedPods`: succeeded, failed.
pub(super) fn listed(status: &JobStatus) -> (BTreeSet<Uid>, BTreeSet<Uid>) {
    let lists = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let set = |list: Option<Vec<String>>| list.into_iter().flatten().map(Uid::from).collect();
    (set(lists.succeeded), set(lists.failed))
}

fn count(number: Option<i32>) -> usize {
    usize::try_from(number.unwrap_or(0)).unwrap_or(0)
}
