//! Judges the writes of pod GC by what really runs, which the API may not show.

use controller_core::view::{Phase, Pod};
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use serde_json::Value;

use super::checks::reason;

/// What is true of a pod, whatever the API shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Truth {
    /// Whether a container of it runs.
    pub(super) runs: bool,
    /// Whether its node has a kubelet that reaches the API.
    pub(super) is_well: bool,
    /// Whether its node shuts down, or did shortly before.
    pub(super) shuts_down: bool,
    /// Whether its Job or namespace has ever accepted a double run.
    pub(super) accepts: bool,
    /// Whether pod GC may delete finished pods in excess.
    pub(super) tidies: bool,
}

/// What is wrong with a patch of pod GC that the API took.
pub(super) fn patched(before: &Pod, after: &Pod, patch: &Value, truth: Truth) -> Vec<String> {
    let (uid, mut problems) = (&before.uid, Vec::new());
    if before.is_terminal() && before.phase != after.phase {
        problems.push(format!("pod GC overwrites the end of {uid}: {:?}", before.phase));
    }
    let marks = !before.has_condition(DISRUPTION_TARGET) && after.has_condition(DISRUPTION_TARGET);
    if marks && after.phase != Phase::Failed && !truth.shuts_down {
        problems.push(format!("pod GC marks {uid}, whose node does not shut down: {patch}"));
    }
    if after.phase != Phase::Failed || before.is_terminal() {
        return problems;
    }
    let accepted = reason(patch) == Some("ForceFail");
    if accepted && !truth.accepts {
        problems.push(format!("pod GC fails {uid}, and no owner accepts a double run: {patch}"));
    }
    if truth.runs && !accepted {
        problems.push(format!("pod GC fails {uid}, which runs: {patch}"));
    }
    if truth.is_well {
        problems.push(format!("pod GC fails {uid}, whose kubelet is alive: {patch}"));
    }
    let disrupts = before.node.is_some();
    if disrupts && !after.has_condition(DISRUPTION_TARGET) {
        problems.push(format!("pod GC fails {uid} without DisruptionTarget: {patch}"));
    }
    problems
}

/// What is wrong with a deletion without grace by pod GC.
pub(super) fn deleted(pod: &Pod, truth: Truth) -> Vec<String> {
    let mut problems = Vec::new();
    if truth.runs {
        problems.push(format!("pod GC deletes {}, which runs", pod.uid));
    }
    if !pod.is_terminal() {
        problems.push(format!("pod GC deletes {}, which has no terminal phase", pod.uid));
    }
    if truth.is_well && !truth.tidies {
        problems.push(format!("pod GC deletes {}, whose kubelet is alive", pod.uid));
    }
    problems
}
