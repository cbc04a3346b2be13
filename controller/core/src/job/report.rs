//! Describes to people what a Job waits for.

use std::fmt;

use epilogue_common::finding_code::FindingCode as Code;
use jiff::SignedDuration;

use super::verdict::End;
use crate::managed_by;

/// One thing that a Job waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum WaitsFor {
    /// The other controller that manages the Job; the name may be misspelled.
    Manager(Option<String>),
    /// Nothing: it is finished.
    Nothing,
    /// The watches, to show our own writes.
    Watches,
    /// A controller that knows the completion mode.
    CompletionMode(String),
    /// Active pods.
    ActivePods(usize),
    /// Pods that are being deleted.
    TerminatingPods(usize),
    /// The end of the backoff.
    Backoff {
        /// Failures since the last success.
        failures: u32,
        /// How much time is left.
        left: SignedDuration,
    },
    /// The end of the backoff of single indexes.
    IndexBackoff {
        /// How many indexes wait.
        indexes: usize,
        /// How long until the first of them is over.
        left: SignedDuration,
    },
    /// The Workload of its parent, for the scheduling group of its pods.
    SchedulingGroup(String),
    /// A user who resumes it.
    Resume,
    /// Its own deletion.
    Deletion,
    /// The end of its last pods, so that this condition can be set.
    End(End),
}

impl WaitsFor {
    /// The code, which `docs/troubleshooting.md` explains.
    pub fn code(&self) -> Code {
        match self {
            Self::Manager(_) => Code::ManagedElsewhere,
            Self::Nothing => Code::JobFinished,
            Self::Watches => Code::WatchBehind,
            Self::CompletionMode(_) => Code::CompletionModeUnknown,
            Self::ActivePods(_) => Code::ActivePods,
            Self::TerminatingPods(_) => Code::TerminatingPods,
            Self::Backoff { .. } => Code::PodBackoff,
            Self::IndexBackoff { .. } => Code::IndexBackoff,
            Self::SchedulingGroup(_) => Code::SchedulingGroup,
            Self::Resume => Code::JobSuspended,
            Self::Deletion => Code::JobBeingDeleted,
            Self::End(_) => Code::LastPods,
        }
    }
}

/// A wait in whole seconds, rounded up, such as `2m 5s`.
pub(super) fn in_seconds(left: SignedDuration) -> String {
    let part = i64::from(left.subsec_nanos() > 0);
    format!("{:#}", SignedDuration::from_secs(left.as_secs().saturating_add(part)))
}

/// `1 pod`, `2 pods`.
pub(super) fn pods(count: usize) -> String {
    if count == 1 { "1 pod".to_owned() } else { format!("{count} pods") }
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manager(Some(by)) => {
                write!(formatter, "{by}, which spec.managedBy names")?;
                match managed_by::meant(by) {
                    Some(known) if known != by => write!(formatter, "; did you mean {known}?"),
                    _ => Ok(()),
                }
            }
            Self::Manager(None) => formatter.write_str("kube-controller-manager's Job controller"),
            Self::Nothing => formatter.write_str("nothing: the Job is finished"),
            Self::Watches => {
                formatter.write_str("its watches to show the controller's own last writes")
            }
            Self::CompletionMode(mode) => {
                write!(formatter, "a controller that knows completionMode {mode}")
            }
            Self::ActivePods(count) => write!(formatter, "{}, active", pods(*count)),
            Self::TerminatingPods(count) => write!(formatter, "{}, terminating", pods(*count)),
            Self::Backoff { failures, left } => {
                let failures = if *failures == 1 {
                    "1 failure".to_owned()
                } else {
                    format!("{failures} failures")
                };
                write!(formatter, "the backoff after {failures}, {} more", in_seconds(*left))
            }
            Self::IndexBackoff { indexes, left } => {
                let indexes =
                    if *indexes == 1 { "1 index".to_owned() } else { format!("{indexes} indexes") };
                let left = in_seconds(*left);
                write!(formatter, "the backoff of {indexes}, {left} more for the first")
            }
            Self::SchedulingGroup(what) => write!(formatter, "its scheduling group: {what}"),
            Self::Resume => formatter.write_str("spec.suspend to become false"),
            Self::Deletion => formatter.write_str("its own deletion"),
            Self::End(end) => write!(formatter, "its last pods, to become {}", end.terminal()),
        }
    }
}
