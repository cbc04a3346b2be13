//! Injects faults: processes crash or hang while another takes the lease, nodes vanish, pods are
//! disrupted, other controllers write to Jobs. Also ends all faults.

use std::sync::Arc;

use controller_core::view::Uid;
use jiff::SignedDuration;

use super::process::Life;
use super::situations::Met;
use super::world::{Event, World};

impl World {
    /// Breaks something, and schedules the next fault.
    pub(super) fn chaos(&mut self) {
        if self.is_quiet() {
            return;
        }
        if self.random.per_mille(self.behaviour.crashes) {
            self.crash();
        }
        if self.random.per_mille(self.behaviour.second_leaders) && self.leader().is_some() {
            self.stats.restarts += 1;
            self.met(Met::SecondLeader);
            self.start_process();
        }
        if self.random.per_mille(self.behaviour.node_losses) {
            self.lose_node();
        }
        if self.random.per_mille(self.behaviour.shutdowns) {
            self.shut_down_node();
        }
        if self.random.per_mille(self.behaviour.policy_changes) {
            let after = *self.random.pick(&[None, Some(0), Some(30), Some(60)]);
            self.met(Met::PolicyChanges);
            self.say(|_| format!("force-fail-after of the namespace becomes {after:?}"));
            self.api.set_force_fail_after(after.map(SignedDuration::from_secs));
        }
        if self.random.per_mille(self.behaviour.disruptions) {
            let live = self.api.pods.values().filter(|pod| pod.is_active());
            let live: Vec<Uid> = live.map(|pod| pod.uid.clone()).collect();
            if !live.is_empty() {
                self.met(Met::Disruption);
                let victim = self.random.pick(&live).clone();
                self.disrupt(&victim);
            }
        }
        if self.random.per_mille(self.behaviour.foreign_writes) {
            let key = self.random.pick(&self.names.clone()).clone();
            self.met(Met::ForeignWrite);
            self.annotate(&key);
        }
        let pause = self.random.millis(5, 8_000);
        self.agenda.after(pause, Event::Chaos);
    }

    /// The process loses all its knowledge; calls on the wire may still arrive.
    fn crash(&mut self) {
        let Some(number) = self.leader() else { return };
        self.stats.restarts += 1;
        self.met(Met::Crash);
        self.say(|_| format!("p{number} crashes"));
        let process = &mut self.processes[number];
        process.life = Life::Dead;
        // An unanswered call may have created a pod that no process expects.
        let pause = self.random.millis(20, 20_000);
        self.agenda.after(pause, Event::Start);
    }

    /// Faults and users end. No user is left to resume or scale up, so this function does it, for
    /// some Jobs.
    pub(super) fn calm_down(&mut self) {
        self.say(|_| "all is quiet from now on".to_owned());
        self.quiet_since = Some(self.agenda.now());
        self.end_stalls();
        self.met_leftovers();
        for key in self.names.clone() {
            let Some(job) = self.api.jobs.get(&key).map(|stored| Arc::clone(&stored.view)) else {
                continue;
            };
            if job.spec.suspend && self.random.percent(70) {
                self.api.edit_job(&key, |job| job.spec.suspend = false);
            }
            if job.spec.parallelism == 0 && self.random.percent(70) {
                self.api.edit_job(&key, |job| {
                    let resizes = job.is_indexed() && job.spec.completions == Some(0);
                    job.spec.parallelism = if resizes { 0 } else { 2 };
                });
            }
        }
    }
}
