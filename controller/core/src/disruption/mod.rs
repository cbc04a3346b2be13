//! Sets `DisruptionTarget` on pods of a node that shuts down, and resets the conditions that turned
//! out to be wrong.

mod announced;
mod stale;
#[cfg(test)]
mod tests;

pub use stale::Stale;

use crate::podgc::Case;
use crate::podgc::Verdict;

/// The verdict on a pod that is not terminal and that pod GC leaves alone.
pub(crate) fn verdict(case: &Case<'_>) -> Verdict {
    let mark = announced::verdict(case);
    if mark == Verdict::Leave { stale::verdict(case) } else { mark }
}
