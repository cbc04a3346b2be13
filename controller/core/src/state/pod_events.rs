//! Takes the events of the watch of pods.

use std::sync::Arc;

use epilogue_common::watch_event::WatchEvent;

use super::ClusterState;
use super::event::{Entry, Now, Reaction};
use super::pods::OwnerJob;
use crate::disruption_times::Sight;
use crate::event_handlers::{PodChange, is_relevant, shows_disruption};
use crate::view::{Job, JobKey, Pod, Uid, Version};

impl ClusterState {
    /// Returns the version up to which the event proves the watch of pods.
    pub(super) fn pod_event(
        &mut self,
        event: WatchEvent<Arc<Pod>>,
        now: &Now,
        reaction: &mut Reaction,
    ) -> Version {
        match event {
            WatchEvent::ListBegins => {
                self.pod_list.begin();
                self.jobs.pods_begin();
                Version::default()
            }
            WatchEvent::ListEnds(version) => {
                self.pods_end(now, reaction);
                Version::parse(&version)
            }
            WatchEvent::Shown(pod) => {
                self.show_pod(&pod, now, reaction);
                pod.version
            }
            WatchEvent::Gone(pod) => {
                self.lose_pod(&pod.uid, now, reaction);
                pod.version
            }
            WatchEvent::Unreadable(pod) => {
                let uid = Uid::from(pod.uid.as_str());
                if pod.gone {
                    self.lose_pod(&uid, now, reaction);
                } else {
                    let owner = pod.owner.as_ref().map(|owner| {
                        let key = JobKey::new(pod.namespace.as_str(), owner.name.as_str());
                        (key, Uid::from(owner.uid.as_str()))
                    });
                    reaction.rests = self.pod_unreadable(uid, owner);
                }
                Version::parse(&pod.version)
            }
            WatchEvent::UpTo(version) => Version::parse(&version),
            WatchEvent::Restored => Version::default(),
        }
    }

    /// The list of all pods is complete; a pod that it lacks is gone. ([H12])
    fn pods_end(&mut self, now: &Now, reaction: &mut Reaction) {
        let listed = self.pod_list.end();
        for uid in listed.lost(self.pods.unreadable()) {
            self.readable(&uid, reaction);
        }
        for uid in listed.lost(self.pods.uids()) {
            self.lose_pod(&uid, now, reaction);
        }
        if let Some(gc) = &mut self.gc {
            gc.pods_end(&self.pods);
        }
    }

    fn show_pod(&mut self, pod: &Arc<Pod>, now: &Now, reaction: &mut Reaction) {
        self.pod_list.saw(&pod.uid);
        self.readable(&pod.uid, reaction);
        let is_kept = self.gc.is_some() || is_relevant(pod);
        let old = if is_kept {
            let job = || self.jobs.of_pod(pod).map(AsRef::as_ref);
            self.pods.insert(Arc::clone(pod), job)
        } else {
            self.pods.remove(&pod.uid)
        };
        let change = match old.as_deref().filter(|old| is_relevant(old)) {
            Some(old) => Some(PodChange::Updated(old, pod)),
            None => is_relevant(pod).then_some(PodChange::Added(pod)),
        };
        if let Some(change) = change {
            let is_listed = self.pod_list.is_open();
            self.jobs.pod_changed(change, is_listed, &self.pods, now, reaction);
        }
        if shows_disruption(old.as_deref(), Some(pod)) {
            self.jobs.disrupted(pod, reaction);
        }
        self.time_disruption(old.as_deref(), Some(pod), now, reaction);
        let checks =
            self.with_gc(|gc, pods, jobs| gc.pod_shown(pod, old.as_deref(), pods, jobs, now.time));
        reaction.entries.extend(checks);
    }

    /// A pod could not be read. It is not treated as deleted. Its Job, which is returned, is not
    /// synced until the pod is readable or gone, and pod GC leaves the pod alone.
    fn pod_unreadable(&mut self, uid: Uid, owner: Option<OwnerJob>) -> Option<Arc<Job>> {
        self.pod_list.saw(&uid);
        let known = self.pods.get(&uid);
        if let (Some(gc), Some(pod)) = (&mut self.gc, known) {
            gc.pod_unreadable(pod);
        }
        let known = known.and_then(|pod| {
            let owner = pod.owner.as_ref()?;
            let key = JobKey::new(Arc::clone(&pod.namespace), Arc::clone(&owner.name));
            Some((key, owner.uid.clone()))
        });
        let owner = owner.or(known);
        self.pods.set_unreadable(uid, owner.clone());
        self.jobs.of_owner(&owner?).cloned()
    }

    /// A pod is readable again, or gone: its Job is synced again.
    fn readable(&mut self, pod: &Uid, reaction: &mut Reaction) {
        if let Some(owner) = self.pods.set_readable(pod)
            && let Some(job) = self.jobs.of_owner(&owner)
        {
            reaction.entries.push(Entry::Job(job.key.clone(), None));
        }
    }

    fn lose_pod(&mut self, uid: &Uid, now: &Now, reaction: &mut Reaction) {
        self.readable(uid, reaction);
        let Some(pod) = self.pods.remove(uid) else { return };
        if let Some(gc) = &mut self.gc {
            gc.pod_gone(&pod);
        }
        if is_relevant(&pod) {
            self.jobs.pod_changed(PodChange::Deleted(&pod), false, &self.pods, now, reaction);
        }
        if shows_disruption(Some(&pod), None) {
            self.jobs.disrupted(&pod, reaction);
        }
        self.time_disruption(Some(&pod), None, now, reaction);
    }

    /// A Job that rests or is gone replaces no pods.
    pub(super) fn time_job(&mut self, event: &WatchEvent<Arc<Job>>) {
        let rests = |job: &Job| job.is_finished() || job.deleting || job.spec.suspend;
        match event {
            WatchEvent::Gone(job) => self.disruption_times.job_rests(job),
            WatchEvent::Shown(job) if rests(job) => self.disruption_times.job_rests(job),
            _ => {}
        }
    }

    /// Follows the disruptions of the pods of our Jobs.
    fn time_disruption(
        &mut self,
        before: Option<&Pod>,
        after: Option<&Pod>,
        now: &Now,
        reaction: &mut Reaction,
    ) {
        let Some(pod) = after.or(before) else { return };
        if !self.disruption_times.concerns(pod) {
            return;
        }
        let Some(job) = self.jobs.of_pod(pod).filter(|job| self.jobs.is_ours(job)) else { return };
        let nodes = self.gc.as_ref().map(|gc| &gc.nodes);
        let node = nodes.and_then(|nodes| nodes.get(pod.node.as_ref()?));
        let node_sign = node.and_then(|node| node.shutdown_seen);
        let is_listed = self.pod_list.is_open();
        let sight = Sight { before, after, job, node_sign, is_listed };
        reaction.disruption_times.and(self.disruption_times.see(&sight, now.time));
    }
}
