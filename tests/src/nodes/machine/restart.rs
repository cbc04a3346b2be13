//! Restarts containers that have ended, after a pause.

use jiff::Timestamp;

use super::super::pod::{PodView, RestartPolicy, Role};
use super::{BACKOFF_FACTOR_MAX, PodMachine, Stage};

impl PodMachine {
    pub(super) fn back_off(&mut self, init: bool, policy: RestartPolicy, now: Timestamp) {
        for container in self.status.of(if init { Role::Init } else { Role::Main }) {
            // An init container that exited 0 is done under every policy.
            let comes_back = |code: i32| restarts(policy, code) && !(init && code == 0);
            if container.termination().is_some_and(|end| comes_back(end.code)) {
                container.back_off();
            }
        }
        self.status.ready.set(false, now);
        let factor = 2u32.saturating_pow(self.restarts()).min(BACKOFF_FACTOR_MAX);
        let until = now + self.pace.restart_backoff.saturating_mul(factor);
        self.stage = Stage::BackingOff { until, init };
        self.unwritten = true;
    }

    pub(super) fn restart(&mut self, pod: &PodView, init: bool, now: Timestamp) {
        let attempt = self.earlier + self.restarts() + 1;
        self.act = self.script.choose(pod.index, attempt);
        if !init {
            return self.run(now);
        }
        let run = self.act.init;
        let Some(first) = self.status.of(Role::Init).next() else { return self.run(now) };
        first.start(now);
        let Some(run) = run else {
            first.exit(0, None, now);
            return self.run(now);
        };
        self.stage = Stage::Initializing { ends: now + run.after };
        self.unwritten = true;
    }

    pub(super) fn restarts(&self) -> u32 {
        self.status.containers.iter().map(|c| c.restarts).max().unwrap_or(0)
    }
}

pub(super) fn restarts(policy: RestartPolicy, code: i32) -> bool {
    match policy {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => code != 0,
        RestartPolicy::Never => false,
    }
}
