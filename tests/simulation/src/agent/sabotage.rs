//! Mistakes that an agent could make, so that the checks can be checked.

use agent_core::protocol::action::{Action, Purpose, Reach};

use super::world::World;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Does not hear that its calls were acknowledged.
    DropAcks,
    /// Gives its lock back at the first thing it does in a shutdown.
    ReleaseAtOnce,
    /// Never gives it back.
    NeverRelease,
    /// Says `Failed` where it should only mark.
    FailFirst,
    /// Believes that it took back its marks, and does not.
    NeverRevoke,
    /// Believes that it marked, and does not.
    NeverMark,
    /// Says that nothing runs any more as soon as it shuts down.
    DrainedFirst,
    /// Leaves its taint.
    KeepTaint,
    /// Stops containers under a live kubelet in place of deleting the pod.
    StopForDelete,
    /// Does not keep a journal.
    NoJournal,
    /// Believes that it marked a victim of pressure, and does not.
    NeverMarkVictims,
    /// Says `Failed` of a victim where it should only mark.
    FailVictimFirst,
    /// Marks victims of their own limits.
    MarkOwnLimits,
    /// Ends a critical pod in place of its victim.
    EvictCritical,
    /// Does what it should only say.
    ActInObservation,
    /// Ends another pod beside each victim.
    EvictTwo,
    /// Does not hear what the kubelet says of pressure.
    DeafToPressure,
    /// Stops a victim that may run again.
    StopVictims,
    /// Never sees that something is short.
    BlindToPressure,
    /// Sees shortages where there are none.
    SeePressure,
    /// Believes that it ended its victims, and does not.
    SpareVictims,
    /// Leaves a stall's condition on the node.
    KeepStall,
    /// Takes the kill of a child for the container's.
    MournChildren,
    /// Mistakes limits for the node, and the node for limits.
    BlameWrongly,
    /// Says nothing of kills.
    KeepSilent,
    /// Believes of pods that hang that nothing of them runs.
    FailBlindly,
    /// Says `Failed` of a pod that hung again and again.
    FailOften,
    /// Believes that it failed pods that hang, and does not.
    NeverUnstick,
    /// Takes one refusal for all.
    StopAtRefusal,
}

impl Sabotage {
    /// All of them.
    pub const ALL: [Self; 29] = [
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
        Self::DeafToPressure,
        Self::StopVictims,
        Self::BlindToPressure,
        Self::SeePressure,
        Self::SpareVictims,
        Self::KeepStall,
        Self::MournChildren,
        Self::BlameWrongly,
        Self::KeepSilent,
        Self::FailBlindly,
        Self::FailOften,
        Self::NeverUnstick,
        Self::StopAtRefusal,
    ];
}

impl World {
    /// What the agent does in place of this; none where it only believes to do it.
    pub(super) fn sabotaged(&mut self, action: Action) -> Option<Action> {
        let Some(sabotage) = self.options.sabotage else { return Some(action) };
        let action = self.sabotaged_under_strain(sabotage, action)?;
        match (sabotage, action) {
            (Sabotage::NeverRelease, Action::ReleaseLock)
            | (Sabotage::NoJournal, Action::Journal(_))
            | (Sabotage::KeepTaint, Action::Taint { present: false })
            | (Sabotage::NeverRevoke, Action::PatchStatus { purpose: Purpose::Clear, .. })
            | (Sabotage::NeverMark, Action::PatchStatus { purpose: Purpose::Mark, .. }) => None,
            (Sabotage::ReleaseAtOnce, Action::Journal(records)) => {
                if self.ledger.shutdown.is_some() && self.logind.agent_lock.is_some() {
                    self.judge_release();
                    self.logind.agent_lock = None;
                    self.after(std::time::Duration::ZERO, super::world::Life::World, |w| {
                        w.locks_changed();
                    });
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
            (Sabotage::StopForDelete, Action::DeletePod { pod, grace_seconds }) => {
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
