//! Something that stands still.

use jiff::Timestamp;
use serde::Serialize;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule that found it.
    pub rule: Rule,
    /// What it is about: `pod/NAMESPACE/NAME`, `job/NAMESPACE/NAME`, `node/NAME`, ….
    pub subject: String,
    /// What is wrong.
    pub problem: String,
    /// Since when, as far as anyone can say.
    pub since: Option<Timestamp>,
    /// What can be done: each one helps alone, from the mildest on.
    pub remedies: Vec<String>,
}

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// A pod that should have ended.
    StuckPod,
    /// A pod that has ended, and that a finalizer holds.
    LeftoverFinalizer,
    /// A Job that no controller serves.
    UnservedJob,
    /// A pod that is said to be disrupted, and lives on.
    StaleDisruptionTarget,
    /// What an agent left on its node.
    StaleNodeMark,
}

impl Finding {
    pub(super) fn new(rule: Rule, subject: String, problem: impl Into<String>) -> Self {
        Self { rule, subject, problem: problem.into(), since: None, remedies: Vec::new() }
    }

    pub(super) fn since(self, since: Option<Timestamp>) -> Self {
        Self { since, ..self }
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedies.push(remedy.into());
        self
    }
}
