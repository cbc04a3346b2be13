//! Reports to people by events in the API, after everything that matters more.

use std::collections::VecDeque;

use crate::pressure::message::REASON_EVICTED;
use crate::protocol::action::Notice;

/// The reasons of all events and their meaning; `agent/README.md` has the same table.
pub const REASONS: &[(&str, &str)] = &[
    (BEGUN, "A shutdown was announced: mode, reason and granted time of the agent."),
    (CANCELLED, "The shutdown was cancelled; lock, taint and conditions are restored."),
    (COMPLETE, "The lock was released; every pod but DaemonSets' is terminal in the API."),
    (
        UNREPORTED,
        "The lock was released; some pods are not terminal in the API: how many, and why.",
    ),
    (DELAY_TOO_SHORT, "logind grants less time than the priority groups and their reports need."),
    (
        NOT_READY,
        "A shutdown is scheduled within the minute, and the node is not ready for it; why.",
    ),
    (NOT_PERMITTED, "The API forbids the agent something that it needs."),
    (UNBOUNDED, "No admission policy bounds the agent's writes, so it does not act."),
    (
        RECOVERED,
        "After a boot: DisruptionTarget was set on pods that the last shutdown did not report.",
    ),
    (WOULD_DISRUPT, "The node shuts down, and the agent observes: what it would do with the pod."),
    (POD_MARKED, "DisruptionTarget was set on the pod: its node is shutting down."),
    (POD_STOPPED, "The agent terminated the pod: its node is shutting down."),
    (POD_LOST, "The pod went down with its node, without notice; DisruptionTarget was set."),
    (POD_STUCK, "The pod was deleted and does not terminate; why, and what can be done."),
    (
        POD_FAILED,
        "The pod was deleted, nothing of it runs, no kubelet reported it: it is Failed now.",
    ),
    (WOULD_FAIL, "The same under `--stuck-pods=observe`: it would be Failed now."),
    (OOM_KILLED, "The kernel killed a container for lack of memory; which limit was reached."),
    (
        CHILD_OOM_KILLED,
        "The kernel killed a child process in a container for lack of memory; the container runs \
         on.",
    ),
    (OOMD_KILLED, "systemd-oomd killed the pod's cgroup, or that of one of its containers; why."),
    (
        EVICTED,
        "The node was low on a resource, or the pod exceeded its limit; the agent evicts it.",
    ),
    (WOULD_EVICT, "The pod would be evicted if the agent were set to enforce; why."),
    (EVICTION_FAILED, "The pod was chosen for eviction, and could not be evicted; it runs on."),
    (LEFT_TO_KUBELET, "The pod is first in rank, and only the kubelet may terminate it."),
    (EVICTION_SLOW, "The pod was stopped to be evicted, and still runs; it is stopped again."),
    (AT_MEMORY_LIMIT, "The pod waits for memory at its own limit; the node has enough."),
    (PRESSURE_OVERLAP, "A threshold of the agent is not above the kubelet's: it only observes."),
];

pub(super) const BEGUN: &str = "NodeShutdownStarted";
pub(super) const CANCELLED: &str = "NodeShutdownCancelled";
pub(super) const COMPLETE: &str = "NodeShutdownComplete";
pub(super) const UNREPORTED: &str = "NodeShutdownIncomplete";
pub(super) const DELAY_TOO_SHORT: &str = "NodeShutdownDelayTooShort";
pub(super) const NOT_READY: &str = "NodeShutdownNotReady";
pub(super) const NOT_PERMITTED: &str = "AgentForbidden";
pub(super) const UNBOUNDED: &str = "AgentUnbounded";
pub(super) const RECOVERED: &str = "BootRecovery";
pub(super) const POD_MARKED: &str = "PodDisrupted";
pub(super) const WOULD_DISRUPT: &str = "PodWouldBeDisrupted";
pub(super) const POD_STOPPED: &str = "PodStopped";
pub(super) const POD_LOST: &str = "PodLost";
pub(super) const POD_STUCK: &str = "PodStuckTerminating";
pub(super) const POD_FAILED: &str = "PodFailedByAgent";
pub(super) const WOULD_FAIL: &str = "PodWouldFail";
pub(super) const OOM_KILLED: &str = "ContainerOOMKilled";
pub(super) const CHILD_OOM_KILLED: &str = "ChildProcessOOMKilled";
pub(super) const OOMD_KILLED: &str = "OomdKilled";
pub(super) const EVICTED: &str = REASON_EVICTED;
pub(super) const WOULD_EVICT: &str = "WouldEvict";
pub(super) const EVICTION_FAILED: &str = "EvictionFailed";
pub(super) const LEFT_TO_KUBELET: &str = "EvictionLeftToKubelet";
pub(super) const EVICTION_SLOW: &str = "EvictionSlow";
pub(super) const AT_MEMORY_LIMIT: &str = "MemoryLimitStall";
pub(super) const PRESSURE_OVERLAP: &str = "EvictionThresholdOverlap";

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
