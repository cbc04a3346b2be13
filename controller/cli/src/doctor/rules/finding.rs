//! Defines a finding: one thing in the cluster that makes no progress.

use epilogue_common::finding_code::FindingCode;
use jiff::Timestamp;
use serde::Serialize;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The rule that found it.
    pub(crate) rule: Rule,
    /// The code, which `docs/troubleshooting.md` explains.
    pub(crate) code: FindingCode,
    /// What it is about: `pod/NAMESPACE/NAME`, `job/NAMESPACE/NAME`, `node/NAME`, ….
    pub(crate) subject: String,
    /// The problem.
    pub(crate) problem: String,
    /// Since when, where it is known.
    pub(crate) since: Option<Timestamp>,
    /// Remedies, from the mildest on; each one helps alone.
    pub(crate) remedies: Vec<String>,
}

/// A kind of objects that was not read, and what its absence leaves open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Omission {
    /// The code, which `docs/troubleshooting.md` explains.
    pub(crate) code: FindingCode,
    /// What was not read and what it would show.
    pub(crate) text: String,
}

/// What a rule searches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rule {
    /// A pod that should have ended.
    StuckPod,
    /// A terminal pod that a finalizer holds.
    LeftoverFinalizer,
    /// A Job that no controller serves.
    UnservedJob,
    /// A Job that waits for what only people can change.
    WaitingJob,
    /// Jobs that ask for a gang where the controller makes none.
    GangSchedulingOff,
    /// A label of a namespace that changes nothing.
    LabelWithoutEffect,
    /// A live pod with a `DisruptionTarget` condition that is wrong.
    StaleDisruptionTarget,
    /// An annotation or a taint that an agent left on its node.
    StaleNodeState,
    /// A node that is ready and has the out-of-service taint.
    OutOfServiceOnReadyNode,
    /// Nodes whose agent would not see a shutdown through.
    NodeUnprepared,
}

impl Finding {
    pub(super) fn new(
        (rule, code): (Rule, FindingCode),
        subject: String,
        problem: impl Into<String>,
    ) -> Self {
        Self { rule, code, subject, problem: problem.into(), since: None, remedies: Vec::new() }
    }

    pub(super) fn since(self, since: Option<Timestamp>) -> Self {
        Self { since, ..self }
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedies.push(remedy.into());
        self
    }
}
