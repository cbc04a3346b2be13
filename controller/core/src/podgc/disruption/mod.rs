//! Sets `DisruptionTarget` on pods of a node that shuts down, and resets the conditions that turned
//! out to be wrong.

mod announced;
mod stale;
#[cfg(test)]
mod tests;

use super::case::{Case, Verdict};

/// The verdict on a pod that is not terminal and that pod GC leaves alone.
pub(super) fn verdict(case: &Case<'_>) -> Verdict {
    let mark = announced::verdict(case);
    if mark == Verdict::Leave { stale::verdict(case) } else { mark }
}
