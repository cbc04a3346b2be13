//! How far the end of one pod has come: condemned, stopped, verified, failed, acknowledged.
//!
//! Nothing here knows why a pod ends; a shutdown is one reason. Each of the five is an `Attempt`,
//! so a replay of any of them is the same call once more.

use std::time::Duration;

use jiff::Timestamp;

use super::attempt::Attempt;
use crate::pod::{PodView, RestartPolicy};
use crate::protocol::action::PodRef;
use crate::protocol::event::RuntimeState;

/// Who ends a pod, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminator {
    /// The kubelet, without us: its report is awaited.
    Kubelet,
    /// We delete it, the kubelet kills and reports. ([API18])
    Delete,
    /// We set its deadline, the kubelet kills and reports. ([API17])
    Deadline,
    /// We stop it through the runtime and report it.
    Stop,
    /// Nobody before the machine goes: no report will come.
    None,
}

/// One pod's end.
#[derive(Clone, Debug)]
pub struct PodTermination {
    /// The pod.
    pub pod: PodRef,
    /// Who ends it.
    pub terminator: Terminator,
    /// Condemned: `DisruptionTarget=True`.
    pub mark: Attempt,
    /// Whether a container of it had run, as far as the API has shown.
    pub had_run: bool,
    /// A look into the runtime before the mark: whether all has exited long before.
    pub exit_check: Attempt,
    /// Whether it has: its result is the kubelet's to report, and no work of the shutdown.
    pub had_exited: bool,
    /// Whether it came after the notice and tolerates the node's taint: it is not ended.
    pub comes_again: bool,
    /// The `lastTransitionTime` that all attempts of the mark carry.
    pub marked_at: Timestamp,
    /// A fresh look at the object, where an attempt met a change.
    pub read: Attempt,
    /// Stopped: the deletion, the deadline or the runtime's stop.
    pub end: Attempt,
    /// The time between SIGTERM and SIGKILL that the end gives.
    pub grace_seconds: u32,
    /// Verified: a look into the runtime.
    pub inspect: Attempt,
    /// When the runtime was last asked with an answer that proves it, on CLOCK_MONOTONIC.
    pub proven_at: Option<Duration>,
    /// What the runtime said last.
    pub runtime: Option<RuntimeState>,
    /// Failed: the phase, where we write it.
    pub fail: Attempt,
    /// Acknowledged: the API shows the end, or the object is gone.
    pub reported: bool,
    /// Its end is in the API, and the kubelet still unmounts its persistent volumes.
    pub unmounts: bool,
    /// The API has shown a terminal phase.
    pub seen_terminal: bool,
    /// The kubelet would let it succeed, so its result is left to the kubelet's next start.
    pub succeeds: bool,
    /// An event about it was sent.
    pub event_sent: bool,
}

impl PodTermination {
    /// A pod whose end begins.
    pub fn new(pod: PodRef, terminator: Terminator, marked_at: Timestamp) -> Self {
        Self {
            pod,
            terminator,
            mark: Attempt::default(),
            had_run: true,
            exit_check: Attempt::default(),
            had_exited: false,
            comes_again: false,
            marked_at,
            read: Attempt::default(),
            end: Attempt::default(),
            grace_seconds: 0,
            inspect: Attempt::default(),
            proven_at: None,
            runtime: None,
            fail: Attempt::default(),
            reported: false,
            unmounts: false,
            seen_terminal: false,
            succeeds: false,
            event_sent: false,
        }
    }

    /// Whether the API will show the end, and does not yet.
    pub fn is_awaited(&self) -> bool {
        let comes = match self.terminator {
            Terminator::Kubelet => true,
            Terminator::Delete | Terminator::Deadline => !self.end.is_given_up(),
            Terminator::Stop => !self.succeeds && !self.fail.is_given_up(),
            Terminator::None => false,
        };
        comes && !self.reported
    }

    /// Whether a write of ours is not acknowledged yet.
    pub fn is_unacknowledged(&self) -> bool {
        !self.reported && (self.mark.is_open() || self.fail.is_open())
    }

    /// The API shows the end: nothing more is to be done.
    pub fn acknowledge(&mut self) {
        self.reported = true;
        self.unmounts = false;
        for attempt in [
            &mut self.mark,
            &mut self.exit_check,
            &mut self.read,
            &mut self.end,
            &mut self.inspect,
            &mut self.fail,
        ] {
            attempt.drop_it();
        }
    }
}

/// Whether the kubelet would let the pod succeed, now that all its containers have exited: then
/// its result is its own. A pod that is being deleted ends by its exit codes whatever its policy.
/// ([AP4], [SD18])
pub fn would_succeed(pod: &PodView, runtime: &RuntimeState) -> bool {
    let restarts = pod.restart_policy == RestartPolicy::Always || pod.container_restarts;
    (pod.is_terminating() || !restarts)
        && !pod.containers.is_empty()
        && pod.containers.iter().all(|name| exited_with_0(name, runtime))
}

/// Whether the runtime proves of each regular container that it has exited.
pub fn all_known_exited(pod: &PodView, runtime: &RuntimeState) -> bool {
    let known = |name: &String| runtime.containers.iter().any(|container| container.name == *name);
    runtime.nothing_runs() && pod.containers.iter().all(known)
}

/// Of several containers of a name, the last one counts: the others were restarted.
fn exited_with_0(name: &str, runtime: &RuntimeState) -> bool {
    let of_name = runtime.containers.iter().filter(|container| container.name == name);
    let last = of_name.max_by_key(|container| container.finished_at);
    last.is_some_and(|container| container.exited && container.exit_code == Some(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;
    use crate::protocol::event::RuntimeContainer;

    fn exited(name: &str, code: i32, second: i64) -> RuntimeContainer {
        RuntimeContainer {
            id: format!("{name}-{second}"),
            name: name.into(),
            exited: true,
            exit_code: Some(code),
            finished_at: Timestamp::from_second(second).ok(),
            reason: String::new(),
        }
    }

    #[test]
    fn a_pod_succeeds_when_the_last_of_each_regular_container_exited_with_0() {
        let never = || pod("a").never();
        let two = || never().with(|pod| pod.containers.push("second".into()));
        let table = [
            (never(), vec![exited("main", 0, 1)], true),
            (never(), vec![exited("main", 143, 1)], false),
            (never(), vec![exited("main", 1, 1), exited("main", 0, 2)], true),
            (never(), vec![exited("main", 0, 1), exited("main", 1, 2)], false),
            // A sidecar's or an init container's code makes no phase.
            (never(), vec![exited("main", 0, 1), exited("sidecar", 137, 2)], true),
            (two(), vec![exited("main", 0, 1)], false),
            (two(), vec![exited("main", 0, 1), exited("second", 0, 1)], true),
            (pod("a"), vec![exited("main", 0, 1)], false),
            (pod("a").deleting(5), vec![exited("main", 0, 1)], true),
            (never().with(|pod| pod.container_restarts = true), vec![exited("main", 0, 1)], false),
            (never(), vec![], false),
        ];
        for (row, (pod, containers, expected)) in table.into_iter().enumerate() {
            let runtime = RuntimeState { containers, ..RuntimeState::default() };
            assert_eq!(would_succeed(&pod, &runtime), expected, "row {row}");
        }
    }
}
