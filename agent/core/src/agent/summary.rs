//! Fills in the public status.

use std::time::Duration;

use super::Agent;
use super::mode::detect;
use super::shutdown::Shutdown;
use super::status::{ShutdownStatus, Status};
use crate::shutdown::Mode;
use crate::termination::progress::PodTermination;

/// Time for unacknowledged writes after the lock is gone and the agent has to stop.
const LAST_TRIES: Duration = Duration::from_secs(5);

impl Status {
    /// Keeps the last shutdown's state, as cancelled.
    pub(super) fn cancelled(&mut self) {
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.cancelled = true;
        }
    }
}

impl Agent {
    pub(super) fn summarize(&mut self) {
        let found = detect(self.kubelet.facts.as_ref(), None, self.allowed());
        let found = self.shutdown.as_ref().map_or(found, |shutdown| shutdown.found);
        let known = self.kubelet.facts.is_some() || self.shutdown.is_some();
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
        status.boot_recovery_pending = self.boot_recovery.len();
        status.mark_removals_pending = self.revoked_marks.len();
        status.oom = self.oom.status();
        status.may_exit = may_exit;
        status.stuck = self.stuck.summary();
        if let Some(shutdown) = &self.shutdown {
            status.shutdown = Some(summary(shutdown, self.clock.monotonic()));
        }
    }

    /// Whether the agent has to stop and has no open work.
    fn may_exit(&self) -> bool {
        let Some(stop_at) = self.stop_at else { return false };
        let tried = self.clock.reached(stop_at + LAST_TRIES);
        if let Some(shutdown) = &self.shutdown {
            let open = shutdown.terminations.values().any(PodTermination::is_unacknowledged);
            return shutdown.is_released() && (!open || tried);
        }
        let unlocked = !self.logind.may_hold();
        let settled = self.revoked_marks.len() == 0 && !self.evictions.is_terminating_pods();
        unlocked && (settled && self.node.is_settled() || tried)
    }
}

fn summary(shutdown: &Shutdown, now: Duration) -> ShutdownStatus {
    let count = |which: &dyn Fn(&PodTermination) -> bool| {
        shutdown.terminations.values().filter(|e| which(e)).count()
    };
    ShutdownStatus {
        t0: now.saturating_sub(shutdown.elapsed(now)),
        since: shutdown.since,
        kind: shutdown.kind.clone(),
        granted: shutdown.granted,
        mode: shutdown.found.mode,
        step: shutdown.step,
        cancelled: false,
        candidates: shutdown.terminations.len(),
        marked: count(&|termination| termination.mark.is_done()),
        terminal: count(&|termination| termination.reported),
        unreported: count(&PodTermination::is_awaited),
        unacknowledged: count(&PodTermination::is_unacknowledged),
        marked_after: shutdown.marked_after,
        reported_after: shutdown.reported_after,
        released_after: shutdown.released_after,
        unreported_at_release: shutdown.unreported_at_release,
        left_at_release: shutdown.left_at_release.clone(),
    }
}
