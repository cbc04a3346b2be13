//! Decides what to queue after an event of a pod.

use super::{Enqueue, Enqueues, Lookup, owner_of};
use crate::batching::Change;
use crate::job::Cause;
use crate::orphans::Orphans;
use crate::view::{Job, Phase, Pod};

/// A pod before and after an event.
#[derive(Clone, Copy, Debug)]
pub enum PodChange<'a> {
    /// The pod is new.
    Added(&'a Pod),
    /// The pod before and after.
    Updated(&'a Pod, &'a Pod),
    /// The pod is gone; this is its last known state.
    Deleted(&'a Pod),
}

impl<'a> PodChange<'a> {
    fn before(self) -> Option<&'a Pod> {
        match self {
            Self::Added(_) => None,
            Self::Updated(old, _) | Self::Deleted(old) => Some(old),
        }
    }

    fn after(self) -> Option<&'a Pod> {
        match self {
            Self::Added(new) | Self::Updated(_, new) => Some(new),
            Self::Deleted(_) => None,
        }
    }
}

/// Whether a pod can ever matter to a Job. The cache leaves out all others.
pub fn is_relevant(pod: &Pod) -> bool {
    pod.tracked || pod.owner.as_ref().is_none_or(|owner| &*owner.kind == "Job")
}

/// Whether "terminal and tracked" began (`add`) or ended (`delete`) for a pod. ([M7])
pub fn tracked_terminal_transition(change: PodChange<'_>) -> Option<&'static str> {
    let holds = |pod: Option<&Pod>| pod.is_some_and(|pod| pod.tracked && pod.is_terminal());
    match (holds(change.before()), holds(change.after())) {
        (false, true) => Some("add"),
        (true, false) => Some("delete"),
        _ => None,
    }
}

/// Whether this change shows the end of a pod, and a disruption was its cause. What was over when
/// it was seen first is no news.
pub fn shows_disruption(before: Option<&Pod>, after: Option<&Pod>) -> bool {
    let Some(before) = before.filter(|pod| !pod.is_terminal()) else { return false };
    match after {
        Some(pod) => pod.phase == Phase::Failed && Cause::of(pod).is_disruption(),
        // The watch never showed it terminal.
        None => Cause::of(before).is_disruption(),
    }
}

/// What to queue after a pod's event.
pub fn pod_changed(change: PodChange<'_>, lookup: &impl Lookup) -> Enqueues {
    match change {
        // A relist shows a state that is known already. ([H8])
        PodChange::Updated(old, new) if old.version == new.version => Enqueues::default(),
        // A deletion timestamp makes any event one of a terminating pod. ([H5], [H8])
        PodChange::Added(pod) if pod.deletion.is_some() => {
            ended(pod, Change::of_pod(None, Some(pod)), lookup)
        }
        PodChange::Updated(old, new) if new.deletion.is_some() => {
            let mut enqueues = Enqueues::default();
            enqueues.part(old, new, lookup);
            enqueues.and(ended(new, Change::of_pod(Some(old), Some(new)), lookup))
        }
        PodChange::Added(pod) => added(pod, lookup),
        PodChange::Updated(old, new) => updated(old, new, lookup),
        PodChange::Deleted(pod) => ended(pod, Change::of_pod(Some(pod), None), lookup),
    }
}

fn added(pod: &Pod, lookup: &impl Lookup) -> Enqueues {
    let mut enqueues = Enqueues::default();
    if pod.owner.is_some() {
        // The Job that owns the pod is synced in a batch. ([H6])
        enqueues.notify_owner(pod, Change::of_pod(None, Some(pod)), lookup);
    } else {
        // A Job that selects the pod may adopt it. ([H7])
        enqueues.check_finalizer(pod);
        enqueues.offer(pod, lookup);
    }
    enqueues
}

fn updated(old: &Pod, new: &Pod, lookup: &impl Lookup) -> Enqueues {
    let mut enqueues = Enqueues::default();
    enqueues.part(old, new, lookup);
    // The Job that owns the pod now is synced. ([H9])
    if new.owner.is_some() {
        enqueues.notify_owner(new, Change::of_pod(Some(old), Some(new)), lookup);
        return enqueues;
    }
    // A pod without an owner may be adopted when its labels or its owner changed. ([H10])
    enqueues.check_finalizer(new);
    let labels_changed = old.labels != new.labels || old.index_label != new.index_label;
    if labels_changed || old.owner != new.owner {
        enqueues.offer(new, lookup);
    }
    enqueues
}

/// A pod that terminates or is gone. ([H11])
fn ended(pod: &Pod, change: Change, lookup: &impl Lookup) -> Enqueues {
    let mut enqueues = Enqueues::default();
    match owner_of(pod, lookup).filter(|job| !job.is_finished()) {
        Some(job) => enqueues.notify(job, change),
        None => enqueues.check_finalizer(pod),
    }
    enqueues
}

impl Enqueues {
    /// Notifies the Job that controlled the pod before. ([H9])
    ///
    /// DIVERGES(upstream): also when the pod is being deleted. Upstream does not notify the Job
    /// then, so a Job that waits for the end of that pod waits for nothing. ([H8])
    fn part(&mut self, old: &Pod, new: &Pod, lookup: &impl Lookup) {
        if old.owner != new.owner
            && let Some(job) = owner_of(old, lookup)
        {
            self.notify(job, Change::Ended);
        }
    }

    /// Notifies the Job that controls the pod.
    ///
    /// DIVERGES(upstream): a pod may appear after its Job has finished, because the reply to its
    /// creation was lost. It loses its finalizer here; upstream keeps the finalizer until the pod
    /// is deleted. ([H6], [S4])
    fn notify_owner(&mut self, pod: &Pod, change: Change, lookup: &impl Lookup) {
        match owner_of(pod, lookup) {
            Some(job) if job.is_finished() => self.check_finalizer(pod),
            Some(job) => self.notify(job, change),
            None => {}
        }
    }

    fn and(mut self, more: Self) -> Self {
        self.observers.extend(more.observers);
        self.queue.extend(more.queue);
        self
    }

    fn notify(&mut self, job: &Job, change: Change) {
        self.observers.push(job.uid.clone());
        self.queue.push(Enqueue::Batch(job.key.clone(), change));
    }

    fn check_finalizer(&mut self, pod: &Pod) {
        if pod.tracked {
            self.queue.push(Enqueue::Orphans(Orphans::Pod(pod.namespace.clone(), pod.uid.clone())));
        }
    }

    /// Notifies the Jobs that might adopt the pod; a pod without labels matches none.
    fn offer(&mut self, pod: &Pod, lookup: &impl Lookup) {
        if pod.labels.is_empty() && pod.index_label.is_none() {
            return;
        }
        let jobs = lookup.matching(pod).into_iter();
        self.queue.extend(jobs.map(|key| Enqueue::Batch(key, Change::Counters)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_handlers::samples::{Jobs, finished, job, owned, pod};
    use crate::view::{Uid, Version};
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn running(name: &str) -> Job {
        job(json!({"metadata": {"name": name, "uid": format!("uid-{name}")},
                   "spec": {"selector": {"matchLabels": {"job": name}}}}))
    }

    fn jobs() -> Jobs {
        Jobs::new([running("a"), running("b"), finished("done", "uid-done")])
    }

    fn stray(tracked: bool) -> Pod {
        let pod = pod(json!({"metadata": {"uid": "pod", "labels": {"job": "a"}}}));
        Pod { tracked, ..pod }
    }

    fn newer(pod: &Pod) -> Pod {
        Pod { version: Version(pod.version.0 + 10), ..pod.clone() }
    }

    fn batch(name: &str, change: Change) -> Enqueue {
        Enqueue::Batch(running(name).key, change)
    }

    fn check(uid: &str) -> Enqueue {
        Enqueue::Orphans(Orphans::Pod("default".into(), uid.into()))
    }

    fn run(change: PodChange<'_>) -> Enqueues {
        pod_changed(change, &jobs())
    }

    #[test]
    fn a_new_pod_of_a_job_notifies_it() {
        let enqueues = run(PodChange::Added(&owned("a", "uid-a")));
        assert_eq!(enqueues.observers, [Uid::from("uid-a")]);
        assert_eq!(enqueues.queue, [batch("a", Change::Counters)]);
    }

    #[test]
    fn a_new_pod_without_a_known_owner_leads_to_nothing() {
        for stranger in [owned("a", "other"), owned("gone", "uid-gone")] {
            assert_eq!(run(PodChange::Added(&stranger)), Enqueues::default());
        }
    }

    #[test]
    fn a_new_pod_without_owner_is_offered_to_the_jobs_that_select_it() {
        let enqueues = run(PodChange::Added(&stray(true)));
        assert_eq!(enqueues.queue, [check("pod"), batch("a", Change::Counters)]);
        assert!(enqueues.observers.is_empty());
        let unlabelled = pod(json!({"metadata": {"uid": "pod"}}));
        assert_eq!(run(PodChange::Added(&unlabelled)), Enqueues::default());
    }

    #[test]
    fn the_same_version_again_leads_to_nothing() {
        let pod = owned("a", "uid-a");
        assert_eq!(run(PodChange::Updated(&pod, &pod)), Enqueues::default());
    }

    #[test]
    fn a_pod_that_changes_hands_notifies_both_owners() {
        let (old, new) = (owned("a", "uid-a"), newer(&owned("b", "uid-b")));
        let enqueues = run(PodChange::Updated(&old, &new));
        assert_eq!(enqueues.observers, [Uid::from("uid-a"), Uid::from("uid-b")]);
        let expected = [batch("a", Change::Ended), batch("b", Change::Counters)];
        assert_eq!(enqueues.queue, expected);
    }

    #[test]
    fn a_pod_that_lost_its_owner_is_checked_and_offered() {
        let old = owned("b", "uid-b");
        let new = newer(&stray(true));
        let enqueues = run(PodChange::Updated(&old, &new));
        let expected = [batch("b", Change::Ended), check("pod"), batch("a", Change::Counters)];
        assert_eq!(enqueues.queue, expected);
    }

    #[test]
    fn a_pod_without_owner_is_offered_again_only_when_its_labels_change() {
        let old = stray(false);
        assert_eq!(run(PodChange::Updated(&old, &newer(&old))), Enqueues::default());
        let labels = BTreeMap::from([("job".to_owned(), "b".to_owned())]);
        let labels = Arc::new(labels.into());
        let new = Pod { labels, ..newer(&old) };
        assert_eq!(run(PodChange::Updated(&old, &new)).queue, [batch("b", Change::Counters)]);
    }

    #[test]
    fn a_terminating_pod_notifies_its_job_as_an_end() {
        let old = owned("a", "uid-a");
        let mut new = newer(&old);
        new.deletion =
            pod(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})).deletion;
        let enqueues = run(PodChange::Updated(&old, &new));
        assert_eq!(enqueues.observers, [Uid::from("uid-a")]);
        assert_eq!(enqueues.queue, [batch("a", Change::Ended)]);
        let added = run(PodChange::Added(&new));
        assert_eq!(added.queue, [batch("a", Change::Ended)]);
    }

    #[test]
    fn a_pod_that_ends_without_a_running_job_is_only_checked() {
        for pod in [owned("gone", "uid-gone"), owned("done", "uid-done")] {
            let enqueues = run(PodChange::Deleted(&pod));
            assert_eq!(enqueues.queue, [check(pod.uid.as_str())]);
            assert!(enqueues.observers.is_empty());
            let untracked = Pod { tracked: false, ..pod };
            assert_eq!(run(PodChange::Deleted(&untracked)), Enqueues::default());
        }
    }

    #[test]
    fn a_tracked_pod_that_ends_is_counted_as_a_transition_once() {
        let running = owned("a", "uid-a");
        let ended = pod(json!({"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]},
                               "status": {"phase": "Failed"}}));
        let untracked = Pod { tracked: false, ..ended.clone() };
        let table = [
            (PodChange::Added(&running), None),
            (PodChange::Added(&ended), Some("add")),
            (PodChange::Updated(&running, &ended), Some("add")),
            (PodChange::Updated(&ended, &ended), None),
            (PodChange::Updated(&ended, &untracked), Some("delete")),
            (PodChange::Deleted(&ended), Some("delete")),
            (PodChange::Deleted(&untracked), None),
        ];
        for (change, event) in table {
            assert_eq!(tracked_terminal_transition(change), event, "{change:?}");
        }
    }

    #[test]
    fn the_end_by_a_disruption_shows_once() {
        let phase = |phase: &str, target: &str| {
            pod(json!({"status": {"phase": phase, "conditions": [
                {"type": "DisruptionTarget", "status": target, "reason": "EvictionByEvictionAPI"}]}}))
        };
        let (running, hit) = (phase("Running", "False"), phase("Running", "True"));
        let (ended, failed) = (phase("Failed", "True"), phase("Failed", "False"));
        let succeeded = phase("Succeeded", "True");
        let table = [
            (Some(&running), Some(&hit), false),
            (Some(&hit), Some(&ended), true),
            (Some(&running), Some(&ended), true),
            (Some(&ended), Some(&ended), false),
            (Some(&ended), None, false),
            (Some(&hit), None, true),
            (Some(&running), None, false),
            (Some(&hit), Some(&succeeded), false),
            (Some(&running), Some(&failed), false),
            (None, Some(&ended), false),
        ];
        for (before, after, shows) in table {
            assert_eq!(shows_disruption(before, after), shows, "{before:?} {after:?}");
        }
    }

    #[test]
    fn pods_of_other_controllers_do_not_matter() {
        let foreign = |tracked: bool| {
            let mut pod = pod(json!({"metadata": {"ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u",
                "controller": true}]}}));
            pod.tracked = tracked;
            pod
        };
        assert!(!is_relevant(&foreign(false)));
        assert!(is_relevant(&foreign(true)));
        assert!(is_relevant(&owned("a", "uid-a")));
        assert!(is_relevant(&stray(false)));
    }
}
