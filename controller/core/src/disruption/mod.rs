//! What is to be done about the condition `DisruptionTarget` of pods that nobody ends: mark those
//! of a node that shuts down, reset those that turned out to be wrong.

mod announced;
mod stale;
#[cfg(test)]
mod tests;

pub use stale::Stale;

use crate::podgc::Case;
use crate::podgc::Verdict;

/// The verdict on a pod that neither has ended nor is to be ended.
pub(crate) fn verdict(case: &Case<'_>) -> Verdict {
    let mark = announced::verdict(case);
    if mark == Verdict::Leave { stale::verdict(case) } else { mark }
}
