//! Breaks the agent to show that the verdicts notice it.

use agent_core::protocol::action::{Action, Purpose};

/// A mistake that an agent could make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Writes `Failed` where it should only set DisruptionTarget.
    FailFirst,
    /// Believes that it set DisruptionTarget, and does not.
    NeverMark,
    /// Believes that it took back its DisruptionTarget, and does not.
    NeverClear,
    /// Writes its own reason over another writer's.
    Overwrite,
    /// Releases the lock as soon as it has written its journal.
    ReleaseFirst,
    /// Believes that it terminated pods, and does not; nor does it say that they are left.
    NeverEnd,
    /// Never takes the lock again.
    NeverLock,
    /// Gives the same actions again when it is asked again.
    GiveTwice,
}

/// What becomes of an action.
pub(super) enum Changed {
    /// It is carried out.
    To(Action),
    /// The agent only believes that it is.
    Believed,
}

impl Sabotage {
    /// Changes an action of the agent.
    pub(super) fn change(self, action: Action) -> Changed {
        match (self, action) {
            (Self::NeverMark, Action::PatchStatus { purpose: Purpose::Mark, .. })
            | (Self::NeverClear, Action::PatchStatus { purpose: Purpose::Clear, .. })
            | (Self::NeverEnd, Action::DeletePod { .. } | Action::PatchPod { .. }) => {
                Changed::Believed
            }
            (Self::FailFirst, Action::PatchStatus { pod, purpose: Purpose::Mark, mut body }) => {
                body["status"]["phase"] = "Failed".into();
                Changed::To(Action::PatchStatus { pod, purpose: Purpose::Mark, body })
            }
            (Self::NeverEnd, Action::Log(mut line)) => {
                line.warning = false;
                Changed::To(Action::Log(line))
            }
            (_, action) => Changed::To(action),
        }
    }
}
