//! Mistakes that an agent could make, to check the checks.

use agent_core::protocol::action::{Action, Purpose, Reach};

use super::promises;
use super::world::World;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Does not receive the acknowledgements of its calls.
    DropAcks,
    /// Releases its lock at the first action of a shutdown.
    ReleaseAtOnce,
    /// Never releases its lock.
    NeverRelease,
    /// Writes `Failed` where it should only set DisruptionTarget.
    FailFirst,
    /// Believes that it took back its marks, and does not.
    NeverRevoke,
    /// Believes that it set DisruptionTarget, and does not.
    NeverMark,
    /// Reports that nothing runs any more as soon as it shuts down.
    DrainedFirst,
    /// Leaves its taint.
    KeepTaint,
    /// Stops containers under a live kubelet instead of deleting the pod.
    StopForDelete,
    /// Keeps no journal.
    NoJournal,
    /// Believes that it marked a victim of pressure, and does not.
    NeverMarkVictims,
    /// Writes `Failed` on a victim where it should only set DisruptionTarget.
    FailVictimFirst,
    /// Marks victims of their own limits.
    MarkOwnLimits,
    /// Terminates a critical pod instead of its victim.
    EvictCritical,
    /// Acts where it should only log.
    ActInObservation,
    /// Terminates another pod in addition to each victim.
    EvictTwo,
    /// Does not receive the kubelet's pressure conditions.
    IgnorePressure,
    /// Stops a victim that may run again.
    StopVictims,
    /// Never sees a shortage.
    BlindToPressure,
    /// Sees shortages that do not exist.
    SeePressure,
    /// Believes that it terminated its victims, and does not.
    KeepVictims,
    /// Leaves a stall's condition on the node.
    KeepStall,
    /// Reports the kill of a child as that of the container.
    MournChildren,
    /// Confuses kills at limits with kills for the node.
    BlameWrongly,
    /// Reports no kills.
    KeepSilent,
    /// Believes that nothing runs of pods that hang.
    FailBlindly,
    /// Writes `Failed` on a hanging pod repeatedly.
    FailOften,
    /// Believes that it failed hanging pods, and does not.
    NeverUnstick,
    /// Treats one refusal as a refusal of everything.
    StopAtRefusal,
    /// Believes that a pod with a sidecar, or with a container's own restart policy, starts again.
    TrustRestarts,
    /// Believes that it failed pods without a sandbox, and does not.
    LeaveAbandoned,
    /// Does not receive which volumes are in use.
    LeaveVolumes,
    /// Does not receive notices.
    IgnoreNotices,
}

impl Sabotage {
    /// All mistakes.
    pub const ALL: [Self; 33] = [
        Self::DropAcks,
        Self::ReleaseAtOnce,
        Self::NeverRelease,
        Self::FailFirst,
        Self::NeverRevoke,
        Self::NeverMark,
        Self::DrainedFirst,
        Self::KeepTaint,
        Self::StopForDelete,
        Self::NoJournal,
        Self::NeverMarkVictims,
        Self::FailVictimFirst,
        Self::MarkOwnLimits,
        Self::EvictCritical,
        Self::ActInObservation,
        Self::EvictTwo,
        Self::IgnorePressure,
        Self::StopVictims,
        Self::BlindToPressure,
        Self::SeePressure,
        Self::KeepVictims,
        Self::KeepStall,
        Self::MournChildren,
        Self::BlameWrongly,
        Self::KeepSilent,
        Self::FailBlindly,
        Self::FailOften,
        Self::NeverUnstick,
        Self::StopAtRefusal,
        Self::TrustRestarts,
        Self::LeaveAbandoned,
        Self::LeaveVolumes,
        Self::IgnoreNotices,
    ];
}

impl World {
    /// The action that replaces this one; `None` if the agent only believes that it acts.
    pub(super) fn sabotaged(&mut self, action: Action) -> Option<Action> {
        let Some(sabotage) = self.options.sabotage else { return Some(action) };
        let action = self.sabotaged_under_strain(sabotage, action)?;
        match (sabotage, action) {
            (Sabotage::NeverRelease, Action::ReleaseLock)
            | (Sabotage::NoJournal, Action::Journal(_))
            | (Sabotage::KeepTaint, Action::Taint { present: false })
            | (Sabotage::NeverRevoke, Action::PatchStatus { purpose: Purpose::Clear, .. })
            | (Sabotage::NeverMark, Action::PatchStatus { purpose: Purpose::Mark, .. }) => None,
            (
                Sabotage::LeaveAbandoned,
                Action::PatchStatus { purpose: Purpose::Fail, body, .. },
            ) if body["status"]["message"] == promises::ABANDONED_MESSAGE => None,
            (Sabotage::ReleaseAtOnce, Action::Journal(records)) => {
                if self.ledger.shutdown.is_some() && self.logind.agent_lock.is_some() {
                    self.forge(Action::ReleaseLock);
                }
                Some(Action::Journal(records))
            }
            (
                Sabotage::FailFirst,
                Action::PatchStatus { pod, purpose: Purpose::Mark, mut body },
            ) => {
                body["status"]["phase"] = "Failed".into();
                Some(Action::PatchStatus { pod, purpose: Purpose::Mark, body })
            }
            (Sabotage::DrainedFirst, Action::Announce(text)) => {
                let boot = self.boot_id();
                let at = self.wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                let shutting = text.starts_with("shutting-down");
                let lie = format!("drained;boot={boot};at={at}");
                Some(Action::Announce(if shutting { lie } else { text }))
            }
            (Sabotage::StopForDelete, Action::DeletePod { pod, grace_seconds, .. }) => {
                Some(Action::StopPod {
                    pod,
                    grace_seconds,
                    sidecars: Vec::new(),
                    reach: Reach::Pod,
                    stop_timeout: std::time::Duration::ZERO,
                })
            }
            (_, action) => Some(action),
        }
    }
}
