//! Holds the settings of pod GC and of disruption, which come from the flags.

use jiff::SignedDuration;

/// Whether pod GC runs, and whether upstream's does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Pod GC is off.
    Off,
    /// Nothing is written: pod GC and disruption report what they would do.
    Observe,
    /// The pod GC of kube-controller-manager runs too. Finished pods are left to it unless a flag
    /// asks for more.
    #[default]
    Alongside,
    /// The pod GC of kube-controller-manager does not run.
    Instead,
}

/// Which leftover `DisruptionTarget` conditions are reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaleReset {
    /// No conditions.
    Off,
    /// Conditions that no other controller resets: with the kubelet's reason, on live pods. ([ST7])
    #[default]
    Epilogue,
    /// Also those that kube-controller-manager's disruption controller resets.
    All,
}

/// How long finished pods are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptFor(Vec<(String, SignedDuration)>);

/// Everything that the rules depend on except the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether pod GC runs.
    pub mode: Mode,
    /// How long a node must be gone before its pods are failed. ([GC7])
    pub quarantine: SignedDuration,
    /// Whether a pod becomes a disruption target when it is failed because its node is out of
    /// service.
    pub out_of_service_target: bool,
    /// Whether a pod that was deleted before it had a node becomes a disruption target.
    pub unscheduled_target: bool,
    /// Finished pods of the cluster beyond this many are deleted.
    pub finished_max: Option<usize>,
    /// How long finished pods are kept, by reason or phase.
    pub kept_for: KeptFor,
    /// Failed pods of one owner beyond this many are deleted.
    pub failed_per_owner_max: Option<usize>,
    /// Which leftover conditions are reset.
    pub stale_reset: StaleReset,
    /// How old such a condition must be.
    pub stale_after: SignedDuration,
    /// Whether the controller sets DisruptionTarget on pods of a node that shuts down if its agent
    /// did not.
    pub marks: bool,
}

impl Default for Settings {
    /// The times are upstream's. ([GC7], [ST2])
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            quarantine: SignedDuration::from_secs(40),
            out_of_service_target: true,
            unscheduled_target: false,
            finished_max: None,
            kept_for: KeptFor::default(),
            failed_per_owner_max: None,
            stale_reset: StaleReset::default(),
            stale_after: SignedDuration::from_mins(2),
            marks: true,
        }
    }
}

impl Settings {
    /// Whether no rule can ever apply.
    pub fn is_idle(&self) -> bool {
        self.mode == Mode::Off && self.stale_reset == StaleReset::Off && !self.marks
    }
}

impl KeptFor {
    /// Keeps pods of each reason, or of each phase, for this long.
    pub fn new(rules: impl IntoIterator<Item = (String, SignedDuration)>) -> Self {
        Self(rules.into_iter().collect())
    }

    /// How long to keep a pod of this reason and phase. The reason takes precedence.
    pub fn of(&self, reason: Option<&str>, phase: &str) -> Option<SignedDuration> {
        let by = |name: &str| self.0.iter().find(|(each, _)| each == name).map(|(_, kept)| *kept);
        reason.and_then(by).or_else(|| by(phase))
    }
}
