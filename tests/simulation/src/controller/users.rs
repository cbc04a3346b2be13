//! Models users: they suspend, resize, delete, recreate, and meddle with pods.

use std::sync::Arc;

use controller_core::view::{Job, JobKey, Pod};

use super::api::{GRACE_SECONDS, Propagation};
use super::pod_object;
use super::situations::Met;
use super::world::{Event, World};

impl World {
    /// A user acts, and comes back later.
    pub(super) fn user(&mut self) {
        if self.is_quiet() {
            return;
        }
        let key = self.random.pick(&self.names.clone()).clone();
        match self.api.jobs.get(&key).map(|stored| Arc::clone(&stored.view)) {
            None => self.submit(&key),
            Some(job) if self.random.percent(60) => self.edit(&key, &job),
            Some(job) => self.meddle(&job),
        }
        let pause = self.random.millis(1, self.behaviour.users);
        self.agenda.after(pause, Event::User);
    }

    fn edit(&mut self, key: &JobKey, job: &Job) {
        match self.random.below(16) {
            0..4 => {
                let suspend = !job.spec.suspend;
                self.met(Met::UserSuspends);
                self.say(|_| format!("user sets suspend={suspend} of {key}"));
                self.api.edit_job(key, |job| job.spec.suspend = suspend);
            }
            4..8 => {
                let parallelism = self.random.between(0, 7);
                self.met(Met::UserScales);
                self.say(|_| format!("user scales {key} to {parallelism}"));
                self.api.edit_job(key, |job| job.spec.parallelism = parallelism);
            }
            8..10 if job.is_indexed() && job.spec.success_policy.is_none() => {
                let size = self.random.between(0, 7);
                self.met(Met::UserResizes);
                self.say(|_| format!("user resizes {key} to {size}"));
                self.ledger.resized(&job.uid);
                self.api.edit_job(key, |job| {
                    job.spec.parallelism = size;
                    job.spec.completions = Some(size);
                });
            }
            10 => {
                let deadline = self.random.between(1, 120);
                self.met(Met::UserSetsDeadline);
                self.say(|_| format!("user sets a deadline of {deadline} s for {key}"));
                self.api.edit_job(key, |job| {
                    job.spec.active_deadline_seconds = Some(i64::from(deadline));
                });
            }
            11 => {
                let limit = self.random.between(0, 6);
                self.say(|_| format!("user sets backoffLimit={limit} of {key}"));
                self.api.edit_job(key, |job| job.spec.backoff_limit = limit);
            }
            12..15 => self.delete(key),
            _ => self.annotate(key),
        }
    }

    fn delete(&mut self, key: &JobKey) {
        let how = *self.random.pick(&[
            Propagation::Background,
            Propagation::Foreground,
            Propagation::Orphan,
        ]);
        self.met(Met::UserDeletesJob);
        self.say(|_| format!("user deletes {key}: {how:?}"));
        self.api.delete_job(key, how);
        if self.random.percent(30) {
            self.submit(key);
        }
    }

    /// Another writer changes the Job, so that writes from older reads conflict.
    pub(super) fn annotate(&mut self, key: &JobKey) {
        let value = self.agenda.now().as_millis().to_string();
        self.api.edit_job(key, |job| {
            job.annotations.insert("touched".to_owned(), value);
        });
    }

    fn meddle(&mut self, job: &Job) {
        let pods: Vec<Arc<Pod>> = self.api.pods.values().cloned().collect();
        if pods.is_empty() {
            return;
        }
        let pod = Arc::clone(self.random.pick(&pods));
        let uid = &pod.uid;
        match self.random.below(10) {
            0..4 => {
                self.met(Met::UserDeletesPod);
                self.say(|_| format!("user deletes {uid}"));
                let _ = self.api.delete_pod(uid, GRACE_SECONDS);
            }
            4 => {
                self.met(Met::UserForces);
                self.say(|_| format!("user deletes {uid} by force"));
                let _ = self.api.delete_pod(uid, 0);
            }
            5 => {
                self.say(|_| format!("user strips {uid}"));
                self.ledger.estranged(&pod);
                self.change(uid, |pod| pod_object::track(pod, false));
            }
            6 | 7 => self.relabel(&pod),
            8 => {
                self.say(|_| format!("user takes the owner from {uid}"));
                self.ledger.estranged(&pod);
                self.change(uid, |pod| pod_object::set_owner(pod, None));
            }
            _ => self.give_away(job, &pod),
        }
    }

    /// A pod leaves the selector of its Job, or comes back.
    fn relabel(&mut self, pod: &Arc<Pod>) {
        let label = *self.random.pick(&["alpha", "beta", "gamma", "none"]);
        self.say(|_| format!("user labels {} with {label}", pod.uid));
        self.ledger.estranged(pod);
        self.change(&pod.uid, |pod| pod_object::relabel(pod, label));
    }

    /// A user gives an owner to a pod without one.
    fn give_away(&mut self, job: &Job, pod: &Arc<Pod>) {
        if pod.owner.is_some() {
            return;
        }
        self.say(|_| format!("user gives {} to {}", pod.uid, job.key));
        self.ledger.estranged(pod);
        self.change(&pod.uid, |pod| pod_object::set_owner(pod, Some(job)));
    }
}
