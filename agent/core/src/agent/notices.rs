//! Reports to people by events in the API, after everything that matters more.

use std::collections::VecDeque;

use crate::pressure::message::REASON_EVICTED;
use crate::protocol::action::Notice;

/// Defines the reasons of events, and the table of their meanings.
macro_rules! reasons {
    ($($name:ident = $reason:expr, $meaning:expr;)*) => {
        $(pub(super) const $name: &str = $reason;)*

        /// The reasons of all events and their meaning; `agent/README.md` has the same table.
        pub const REASONS: &[(&str, &str)] = &[$(($name, $meaning)),*];
    };
}

reasons! {
    BEGUN = "NodeShutdownStarted",
        "A shutdown was announced: mode, reason and granted time of the agent.";
    CANCELLED = "NodeShutdownCancelled",
        "The shutdown was cancelled; lock, taint and conditions are restored.";
    COMPLETE = "NodeShutdownComplete",
        "The lock was released; every pod but DaemonSets' is terminal in the API.";
    UNREPORTED = "NodeShutdownIncomplete",
        "The lock was released; some pods are not terminal in the API, nothing proves that none \
         runs, or volumes of ended pods are in use: how many, and why.";
    END_ANNOUNCED = "NodeEndAnnounced",
        "A source gives notice that the machine ends, or may end: which, and when.";
    END_WITHDRAWN = "NodeEndWithdrawn", "A source announces no end of the machine any more.";
    END_SIGNAL_SENT = "EndSignalSent",
        "The agent sent the pod the signal that it asks for ahead of its end.";
    END_SIGNAL_FAILED = "EndSignalFailed",
        "The pod gets no signal ahead of its end, though it asks for one; why.";
    DELAY_TOO_SHORT = "NodeShutdownDelayTooShort",
        "logind grants less time than the priority groups and their reports need.";
    NOT_READY = "NodeShutdownNotReady",
        "A shutdown is scheduled within the minute, and the node is not ready for it; why.";
    NOT_PERMITTED = "AgentForbidden", "The API forbids the agent something that it needs.";
    UNBOUNDED = "AgentUnbounded",
        "No admission policy bounds the agent's writes, so it does not act.";
    RECOVERED = "BootRecovery",
        "After a boot: DisruptionTarget was set on pods that the last shutdown did not report.";
    WOULD_DISRUPT = "PodWouldBeDisrupted",
        "The node shuts down, and the agent observes: what it would do with the pod.";
    POD_MARKED = "PodDisrupted", "DisruptionTarget was set on the pod: its node is shutting down.";
    POD_STOPPED = "PodStopped", "The agent terminated the pod: its node is shutting down.";
    POD_LOST = "PodLost",
        "The pod went down with its node, without notice; DisruptionTarget was set.";
    POD_STUCK = "PodStuckTerminating",
        "The pod was deleted and does not terminate; why, and what can be done.";
    POD_FAILED = "PodFailedByAgent",
        "Nothing of the pod runs, and no kubelet reports its end: it is Failed now; why.";
    WOULD_FAIL = "PodWouldFail", "The same under `--stuck-pods=observe`: it would be Failed now.";
    OOM_KILLED = "ContainerOOMKilled",
        "The kernel killed a container for lack of memory; which limit was reached.";
    CHILD_OOM_KILLED = "ChildProcessOOMKilled",
        "The kernel killed a child process in a container for lack of memory; the container runs \
         on, or exited with 0.";
    OOMD_KILLED = "OomdKilled",
        "systemd-oomd killed the pod's cgroup, or that of one of its containers; why.";
    EVICTED = REASON_EVICTED,
        "The node was low on a resource, or the pod exceeded its limit; the agent evicts it.";
    WOULD_EVICT = "WouldEvict", "The pod would be evicted if the agent were set to enforce; why.";
    EVICTION_FAILED = "EvictionFailed",
        "The pod was chosen for eviction, and could not be evicted; it runs on.";
    LEFT_TO_KUBELET = "EvictionLeftToKubelet",
        "The pod is first in rank, and only the kubelet may terminate it.";
    EVICTION_SLOW = "EvictionSlow",
        "The pod was stopped to be evicted, and still runs; it is stopped again.";
    AT_MEMORY_LIMIT = "MemoryLimitStall",
        "The pod waits for memory at its own limit; the node has enough.";
    PRESSURE_OVERLAP = "EvictionThresholdOverlap",
        "A threshold of the agent is not above the kubelet's: it only observes.";
}

/// Further events are not sent: nothing depends on them.
const WAITING_MAX: usize = 512;

/// Events to send.
#[derive(Clone, Debug, Default)]
pub(super) struct Notices {
    waiting: VecDeque<Notice>,
}

impl Notices {
    pub(super) fn push(&mut self, notice: Notice) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(notice);
        }
    }

    /// The next event to send. Those about pods wait until the API has acknowledged all marks and
    /// reports of a shutdown.
    pub(super) fn next(&mut self, unacknowledged: bool) -> Option<Notice> {
        let next = self.waiting.front()?;
        if unacknowledged && next.pod.is_some() {
            return None;
        }
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_stands_in_the_readme_with_its_meaning() {
        let readme = include_str!("../../../README.md");
        for (reason, meaning) in REASONS {
            let row = readme.lines().find(|line| line.starts_with(&format!("| `{reason}` |")));
            assert!(row.is_some_and(|row| row.contains(meaning)), "{reason}: {row:?}");
        }
    }
}
