//! Judges each write and the end of each shutdown by what the API, the runtime and logind hold, not
//! by what the agent believes.

use std::time::Duration;

use agent_core::pod::Phase;
use agent_core::protocol::action::Action;
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;

use super::model::State;
use super::node::FOREIGN;
use super::process::Flight;
use super::scope::{PERIOD, Scope};
use crate::agent::api::{Change, Stored};

/// Until then there is certainly time left for reports: the pods' period, and a half more.
const TIME_IS_LEFT: Duration = Duration::from_secs(6);
/// A scope that has not come to rest by then never does. A refused right is asked for again after
/// ten minutes.
const REST_WITHIN: Duration = Duration::from_mins(15);

/// What was ever true.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct History {
    pub(super) pods: Vec<Record>,
    pub(super) announced_at: Option<Duration>,
    /// Whether the agent's process died with its lock in this shutdown.
    pub(super) lock_lost: bool,
    /// Whether the agent has said that it leaves pods.
    pub(super) says_left: bool,
}

/// What was ever true of a pod.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Record {
    /// Whether it ran when the shutdown was announced.
    ran: bool,
    /// Whether the API refused a write to it.
    pub(super) refused: bool,
    /// Whether the agent terminated it.
    ended: bool,
    /// The last state in the API.
    last: Last,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Last {
    #[default]
    Live,
    Succeeded,
    Failed {
        disrupted: bool,
    },
}

pub(super) type Judged = Result<(), String>;

impl State {
    /// Notes what the API shows now, and queues it for the watch.
    pub(super) fn observe(&mut self) {
        for change in std::mem::take(&mut self.api.log) {
            if let Change::Pod(stored) | Change::Gone(stored) = &change {
                let number = self.pods.iter().position(|pod| pod.uid() == *stored.uid());
                if let Some(record) = number.and_then(|number| self.history.pods.get_mut(number)) {
                    record.last = match stored.phase() {
                        Phase::Succeeded => Last::Succeeded,
                        Phase::Failed => Last::Failed { disrupted: stored.is_disrupted() },
                        _ => Last::Live,
                    };
                }
            }
            match change {
                Change::Node => self.node_changed = true,
                change => self.changes.push_back(change),
            }
        }
    }

    /// A shutdown is announced.
    pub(super) fn note_announcement(&mut self) {
        self.history.announced_at = Some(self.now);
        self.history.lock_lost = false;
        self.history.says_left = false;
        for (record, pod) in self.history.pods.iter_mut().zip(&self.pods) {
            record.ran = pod.running;
            record.refused = false;
        }
    }

    /// The API has accepted a status patch of the agent.
    pub(super) fn judge_patch(&mut self, number: usize, before: &Stored, scope: &Scope) -> Judged {
        let pod = &self.pods[number];
        let Some(after) = self.api.pods.get(&pod.uid()) else { return Ok(()) };
        if after.is_terminal() && !before.is_terminal() {
            if pod.is_up() {
                return Err(format!("p{number} is Failed while its container runs"));
            }
            if pod.ended_well() && !scope.pods[number].restarts {
                return Err(format!("p{number} is Failed, and its container ended with 0"));
            }
            if !after.is_disrupted() {
                return Err(format!("p{number} is Failed without DisruptionTarget"));
            }
        }
        if is_foreign(before) && !is_foreign(after) {
            return Err(format!("p{number} loses the DisruptionTarget of somebody else"));
        }
        Ok(())
    }

    /// The agent terminates a pod: by the API, or by the runtime. The second comes before the mark
    /// of a pod that would be restarted if its report were lost.
    pub(super) fn judge_end(&mut self, number: usize, by_runtime: bool) -> Judged {
        let (pod, record) = (&self.pods[number], &mut self.history.pods[number]);
        let Some(stored) = self.api.pods.get(&pod.uid()) else { return Ok(()) };
        if !pod.running || stored.is_terminal() {
            return Ok(());
        }
        record.ended = true;
        let with_phase = by_runtime && self.kinds[number].restarts;
        if !stored.is_disrupted() && !record.refused && !with_phase {
            return Err(format!("p{number} is terminated before it has DisruptionTarget"));
        }
        Ok(())
    }

    /// The agent releases its lock.
    pub(super) fn judge_release(&self) -> Judged {
        let Some(since) = self.history.announced_at.filter(|_| self.logind.until.is_some()) else {
            return Ok(());
        };
        if self.now >= since + TIME_IS_LEFT {
            return Ok(());
        }
        for (number, record) in self.history.pods.iter().enumerate() {
            let open = record.last == Last::Live && !self.is_left_to_succeed(number);
            if record.ran && !record.refused && open {
                return Err(format!("the lock is released, and the end of p{number} unreported"));
            }
        }
        let process = self.process.iter();
        let unacknowledged = process.flat_map(|process| process.in_flight.values()).any(|flight| {
            matches!(flight, Flight::Sent(Action::PatchStatus { .. } | Action::DeletePod { .. }))
        });
        if unacknowledged {
            return Err("the lock is released before a write is acknowledged".to_owned());
        }
        Ok(())
    }

    /// Whether it succeeded, and only its dead kubelet may say so. ([AP4])
    fn is_left_to_succeed(&self, number: usize) -> bool {
        !self.kubelet.lives && self.pods[number].ended_well() && !self.kinds[number].restarts
    }

    /// The machine goes off. Whatever ran when the shutdown came has ended by it.
    pub(super) fn judge_off(&self) -> Judged {
        if self.history.lock_lost || self.history.says_left {
            return Ok(());
        }
        for (number, record) in self.history.pods.iter().enumerate() {
            let reported = match record.last {
                Last::Live => self.is_left_to_succeed(number),
                Last::Succeeded => true,
                Last::Failed { disrupted } => disrupted,
            };
            if record.ran && !record.refused && !reported {
                return Err(format!(
                    "the machine is off, p{number} unreported, and the agent did not say so"
                ));
            }
        }
        Ok(())
    }

    /// What must not be true once nothing more happens on a machine that lives on.
    pub(super) fn judge_rest(&self, scope: &Scope) -> Option<String> {
        let process = self.process.as_ref()?;
        if self.logind.agent_lock != Some(process.number) {
            return Some("the agent holds no lock".to_owned());
        }
        let says = self.api.node.announced.as_deref().unwrap_or_default();
        if self.api.node.tainted || says.starts_with("shutting-down") {
            return Some("the node still says that it shuts down".to_owned());
        }
        for (number, (pod, record)) in self.pods.iter().zip(&self.history.pods).enumerate() {
            if record.ended && record.last == (Last::Failed { disrupted: false }) {
                return Some(format!("p{number} was terminated, and does not say so"));
            }
            let Some(stored) = self.api.pods.get(&pod.uid()) else { continue };
            let lives_on = pod.running && stored.deletion().is_none();
            if lives_on && is_by_kubelet(stored) {
                return Some(format!("p{number} lives on with DisruptionTarget"));
            }
            if scope.pods[number].disrupted && !is_foreign(stored) {
                return Some(format!("p{number} has lost the DisruptionTarget of somebody else"));
            }
        }
        None
    }

    /// Nothing goes on for ever.
    pub(super) fn judge_time(&self) -> Judged {
        let since = self.history.announced_at.unwrap_or(self.now);
        if self.now > since + REST_WITHIN {
            return Err(format!("it does not come to rest within {REST_WITHIN:?}"));
        }
        Ok(())
    }
}

fn has_reason(stored: &Stored, reason: &str) -> bool {
    let condition = stored.condition(DISRUPTION_TARGET);
    condition.is_some_and(|it| it["status"] == "True" && it["reason"] == reason)
}

fn is_foreign(stored: &Stored) -> bool {
    has_reason(stored, FOREIGN)
}

fn is_by_kubelet(stored: &Stored) -> bool {
    has_reason(stored, "TerminationByKubelet")
}

/// The period of the pods is within the time that is certainly left.
const _: () = assert!(PERIOD.as_secs() < TIME_IS_LEFT.as_secs());
