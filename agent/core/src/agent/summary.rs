//! Fills in what others may see.

use std::time::Duration;

use super::Agent;
use super::mode::detect;
use super::run::Run;
use super::status::{RunStatus, Status};
use crate::ending::progress::Ending;
use crate::shutdown::Mode;

/// After the lock is gone and the agent is told to stop, unacknowledged writes get this long.
const LAST_TRIES: Duration = Duration::from_secs(5);

impl Status {
    /// Keeps the last run's state, as cancelled.
    pub(super) fn cancelled(&mut self) {
        if let Some(run) = &mut self.run {
            run.cancelled = true;
        }
    }
}

impl Agent {
    pub(super) fn summarize(&mut self) {
        let found = detect(self.kubelet.facts.as_ref(), None, self.allowed());
        let found = self.run.as_ref().map_or(found, |run| run.found);
        let known = self.kubelet.facts.is_some() || self.run.is_some();
        let may_exit = self.may_exit();
        let wanted = self.wanted_delay();
        let status = &mut self.status;
        status.mode = known.then_some(found.mode);
        status.mode_reason = match status.unbounded {
            Some(_) if found.mode == Mode::Observe => "no admission policy bounds the agent",
            _ => found.why,
        };
        status.marks_only = found.marks_only;
        status.logind = self.logind.connected;
        status.preparing = self.logind.is_preparing();
        status.lock = self.logind.lock;
        status.granted = self.logind.granted;
        status.wanted = wanted;
        status.pods_listed = self.pods.is_listed();
        status.pods = self.pods.len();
        status.journal_open = self.writer.is_open();
        status.boot_recovery_pending = self.replays.len();
        status.mark_removals_pending = self.clears.len();
        status.causes = self.causes.status();
        status.may_exit = may_exit;
        status.stuck = self.stuck.summary();
        if let Some(run) = &self.run {
            status.run = Some(summary(run, self.clock.monotonic()));
        }
    }

    /// Whether, told to stop, the agent has nothing left to live for.
    fn may_exit(&self) -> bool {
        let Some(stop_at) = self.stop_at else { return false };
        let tried = self.clock.reached(stop_at + LAST_TRIES);
        if let Some(run) = &self.run {
            let open = run.endings.values().any(Ending::is_unacknowledged);
            return run.is_released() && (!open || tried);
        }
        let unlocked = !self.logind.may_hold();
        let settled = self.clears.len() == 0 && !self.evictions.is_ending_pods();
        unlocked && (settled && self.node.is_settled() || tried)
    }
}

fn summary(run: &Run, now: Duration) -> RunStatus {
    let count = |which: &dyn Fn(&Ending) -> bool| run.endings.values().filter(|e| which(e)).count();
    RunStatus {
        t0: now.saturating_sub(run.elapsed(now)),
        since: run.since,
        kind: run.kind.clone(),
        granted: run.granted,
        mode: run.found.mode,
        step: run.step,
        cancelled: false,
        candidates: run.endings.len(),
        condemned: count(&|ending| ending.mark.is_done()),
        terminal: count(&|ending| ending.reported),
        unreported: count(&Ending::is_awaited),
        unacknowledged: count(&Ending::is_unacknowledged),
        condemned_after: run.condemned_after,
        reported_after: run.reported_after,
        released_after: run.released_after,
        unreported_at_release: run.unreported_at_release,
        left_at_release: run.left_at_release.clone(),
    }
}
