//! Tracks how far the termination of one pod has come: marked, stopped, verified, failed,
//! acknowledged.
//!
//! Nothing here depends on the reason; a shutdown is one of several. Each write and each check is
//! an `Attempt`, so boot recovery only repeats the same call.

use std::time::Duration;

use jiff::Timestamp;

use super::attempt::Attempt;
use crate::pod::{PodView, RestartPolicy};
use crate::protocol::action::PodRef;
use crate::protocol::event::RuntimeState;
use crate::protocol::journal::{Intent, Record};

/// Who terminates a pod, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminator {
    /// The kubelet alone; the agent waits for its report.
    Kubelet,
    /// The agent deletes the pod; the kubelet kills and reports. ([API18])
    Delete,
    /// The agent sets the pod's deadline; the kubelet kills and reports. ([API17])
    Deadline,
    /// The agent stops the pod through the runtime and reports.
    Stop,
    /// No terminator before the machine stops; no report will come.
    None,
}

/// The right to mark a pod, and to write its phase.
pub const PATCH_STATUS: &str = "patch pods/status";

impl Terminator {
    /// The right that the API grants for it; `None` if it needs none.
    pub fn right(self) -> Option<&'static str> {
        match self {
            Self::Delete => Some("delete pods"),
            Self::Deadline => Some("patch pods"),
            Self::Kubelet | Self::Stop | Self::None => None,
        }
    }
}

/// Termination of one pod.
#[derive(Clone, Debug)]
pub struct PodTermination {
    /// The pod.
    pub pod: PodRef,
    /// Its `DisruptionTarget`.
    pub mark: Mark,
    /// Its end: the deletion, the deadline or the runtime's stop.
    pub end: End,
    /// Its terminal phase in the API.
    pub report: Report,
    /// Reads the object again after an attempt met a change.
    pub read: Attempt,
    /// The version that our last patch of the status has made, until the pod is read again.
    pub patched_version: Option<String>,
    /// Whether the agent has sent an event about the pod.
    pub event_sent: bool,
}

/// The `DisruptionTarget=True` of a pod.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Sets it.
    pub write: Attempt,
    /// Its `lastTransitionTime`, the same in all attempts.
    pub at: Timestamp,
    /// Whether a container of the pod had run, as far as the API shows.
    pub had_run: bool,
    /// Checks the runtime before the mark: whether all containers exited before the shutdown.
    pub exit_check: Attempt,
}

/// The end of a pod.
#[derive(Clone, Debug)]
pub struct End {
    /// Who terminates the pod.
    pub by: Terminator,
    /// Terminates it.
    pub call: Attempt,
    /// Time between SIGTERM and SIGKILL for this termination.
    pub grace_seconds: u32,
    /// Whether the API shows the pod as deleted, by whichever client.
    pub is_deleted: bool,
}

/// The terminal phase of a pod.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Sets `phase=Failed`, where the agent writes the phase.
    pub write: Attempt,
    /// Verifies in the runtime that nothing of the pod runs.
    pub inspect: Attempt,
    /// When the runtime last proved the termination, on CLOCK_MONOTONIC.
    pub proven_at: Option<Duration>,
    state: Reported,
}

/// Who has reported the termination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reported {
    /// No one yet.
    #[default]
    Open,
    /// No one: the kubelet would report success, so that its next start has to.
    LeftToKubelet,
    /// The API took our phase, or the object is gone.
    Acknowledged,
    /// The API shows a terminal phase.
    Shown {
        /// Whether the kubelet still unmounts persistent volumes.
        unmounts: bool,
    },
}

impl PodTermination {
    /// Starts the termination of a pod.
    pub fn new(pod: PodRef, terminator: Terminator, marked_at: Timestamp) -> Self {
        let mark = Mark {
            write: Attempt::default(),
            at: marked_at,
            had_run: true,
            exit_check: Attempt::default(),
        };
        let end =
            End { by: terminator, call: Attempt::default(), grace_seconds: 0, is_deleted: false };
        Self {
            pod,
            mark,
            end,
            report: Report::default(),
            read: Attempt::default(),
            patched_version: None,
            event_sent: false,
        }
    }

    /// The journal's record of a mark that will be sent.
    pub fn mark_intent(&self) -> Record {
        let intent = if self.mark.had_run { Intent::Mark } else { Intent::MarkBeforeStart };
        Record::intent(&self.pod, intent, self.mark.at)
    }

    /// The version of the pod that may be ended: the one that carries the mark. A pod without a
    /// mark has the version that is known.
    pub fn version_to_end(&self, pod: &PodView) -> String {
        let marked = self.patched_version.as_ref().filter(|_| !pod.is_disrupted());
        marked.unwrap_or(&pod.resource_version).clone()
    }

    /// Whether a mark of ours stands, or may arrive at the API later, as may a termination.
    pub fn may_reach_api(&self) -> bool {
        let ends = self.end.by.right().is_some() && self.end.call.may_have_applied();
        ends || self.mark.write.may_have_applied()
    }

    /// Whether the API shows the termination, has taken our phase, or has the pod no more.
    pub fn is_reported(&self) -> bool {
        matches!(self.report.state, Reported::Acknowledged | Reported::Shown { .. })
    }

    /// Whether the API does not show the termination yet, but will.
    pub fn is_awaited(&self) -> bool {
        let comes = match self.end.by {
            Terminator::Kubelet => true,
            Terminator::Delete | Terminator::Deadline => !self.end.is_left(),
            Terminator::Stop => !self.report.is_left() && !self.report.write.is_given_up(),
            Terminator::None => false,
        };
        comes && !self.is_reported()
    }

    /// Whether a write of ours is not acknowledged yet. What the API refuses is not, even if it is
    /// retried.
    pub fn is_unacknowledged(&self) -> bool {
        !self.is_reported() && (self.mark.write.is_awaited() || self.report.write.is_awaited())
    }

    /// Requests what was acknowledged and the API, which has gone back, does not show any more.
    /// A kubelet that starts again may have run the pod anew, so the mark gets a new time.
    pub fn repeat_undone(&mut self, pod: &PodView, now: Timestamp) {
        self.patched_version = None;
        if pod.is_terminal() {
            return;
        }
        if self.mark.write.is_done() && !pod.is_disrupted() {
            (self.mark.write, self.mark.at) = (Attempt::default(), now);
        }
        let by_api = self.end.by.right().is_some();
        if self.end.call.is_done() && by_api && !pod.is_terminating() {
            self.end.call = Attempt::wanted();
        }
        if self.report.write.is_done() || self.is_reported() {
            self.report.state = Reported::Open;
            self.report.write = Attempt::default();
            // What the runtime has stopped, it proves to have ended once more.
            if self.end.by == Terminator::Stop {
                self.report.inspect.want_again();
            }
        }
    }

    /// Records that the API shows the termination, so that nothing is left to do.
    pub fn acknowledge(&mut self) {
        self.report.state = match self.report.state {
            Reported::Shown { .. } => Reported::Shown { unmounts: false },
            _ => Reported::Acknowledged,
        };
        for attempt in [
            &mut self.mark.write,
            &mut self.mark.exit_check,
            &mut self.read,
            &mut self.end.call,
            &mut self.report.inspect,
            &mut self.report.write,
        ] {
            attempt.drop_it();
        }
    }

    /// Records that the API shows a terminal phase; whether the kubelet still unmounts volumes.
    pub fn show(&mut self, unmounts: bool) {
        self.acknowledge();
        self.report.state = Reported::Shown { unmounts };
    }

    /// Another writer has reverted the phase that the API showed, or that it took from us.
    pub fn was_reverted(&mut self) {
        let shown = matches!(self.report.state, Reported::Shown { .. });
        if shown && self.report.write.is_done() {
            self.report.state = Reported::Open;
        }
    }
}

impl End {
    /// Whether the termination is given up, or refused and retried slowly. A pod whose termination
    /// the API refused ends all the same once another client deletes it.
    pub fn is_left(&self) -> bool {
        let refused = self.call.is_given_up() || self.call.is_retried_slowly();
        refused && !(self.is_deleted && self.by.right().is_some())
    }
}

impl Report {
    /// Whether only the kubelet's next start reports the pod, which succeeded.
    pub fn is_left(&self) -> bool {
        self.state == Reported::LeftToKubelet
    }

    /// The kubelet would report success: its next start has to.
    pub fn leave(&mut self) {
        if self.state == Reported::Open {
            self.state = Reported::LeftToKubelet;
        }
        self.write.drop_it();
    }

    /// Whether the API shows the phase while the kubelet still unmounts persistent volumes.
    pub fn unmounts(&self) -> bool {
        self.state == Reported::Shown { unmounts: true }
    }
}

/// Whether the kubelet would let the pod succeed, now that all its containers have exited. The
/// kubelet then reports the result. The exit codes of the regular containers decide, whatever
/// sidecars do. For a pod that is being deleted, so they do whatever the restart policies. ([AP4],
/// [SD18])
pub fn would_succeed(pod: &PodView, runtime: &RuntimeState) -> bool {
    let restarts = pod.restarts_in_place == RestartPolicy::Always;
    (pod.is_terminating() || !restarts)
        && !pod.containers.is_empty()
        && pod.containers.iter().all(|name| exited_with_0(name, runtime))
}

/// Whether the runtime proves that nothing of the pod runs, and that each regular container has
/// exited.
pub fn all_known_exited(pod: &PodView, runtime: &RuntimeState) -> bool {
    runtime.nothing_runs() && regular_exited(pod, runtime)
}

/// Whether the runtime has each regular container, and none of them runs.
pub fn regular_exited(pod: &PodView, runtime: &RuntimeState) -> bool {
    let exited = |name: &String| {
        let mut of_name = runtime.containers.iter().filter(|each| each.name == *name).peekable();
        of_name.peek().is_some() && of_name.all(|each| each.exited)
    };
    pod.containers.iter().all(exited)
}

/// Of several containers with one name the last one counts, because the others were restarted.
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
        let own = |policy| never().with(|pod| pod.restarts_in_place = policy);
        let two = || never().with(|pod| pod.containers.push("second".into()));
        let table = [
            (never(), vec![exited("main", 0, 1)], true),
            (never(), vec![exited("main", 143, 1)], false),
            (never(), vec![exited("main", 1, 1), exited("main", 0, 2)], true),
            (never(), vec![exited("main", 0, 1), exited("main", 1, 2)], false),
            // The exit code of a sidecar or an init container does not determine the phase.
            (never(), vec![exited("main", 0, 1), exited("sidecar", 137, 2)], true),
            (two(), vec![exited("main", 0, 1)], false),
            (two(), vec![exited("main", 0, 1), exited("second", 0, 1)], true),
            (pod("a"), vec![exited("main", 0, 1)], false),
            (pod("a").deleting(5), vec![exited("main", 0, 1)], true),
            // A native sidecar is no reason to start them again, nor is a policy of their own that
            // is only for failures.
            (never().sidecar(), vec![exited("main", 0, 1), exited("sidecar", 137, 2)], true),
            (own(RestartPolicy::OnFailure), vec![exited("main", 0, 1)], true),
            (own(RestartPolicy::OnFailure), vec![exited("main", 1, 1)], false),
            (own(RestartPolicy::Always), vec![exited("main", 0, 1)], false),
            (own(RestartPolicy::Always).deleting(5), vec![exited("main", 0, 1)], true),
            // The container's own policy overrides that of the pod.
            (
                pod("a").with(|pod| pod.restarts_in_place = RestartPolicy::Never),
                vec![exited("main", 0, 1)],
                true,
            ),
            (never(), vec![], false),
        ];
        for (row, (pod, containers, expected)) in table.into_iter().enumerate() {
            let runtime = RuntimeState { containers, ..RuntimeState::default() };
            assert_eq!(would_succeed(&pod, &runtime), expected, "row {row}");
        }
    }
}
