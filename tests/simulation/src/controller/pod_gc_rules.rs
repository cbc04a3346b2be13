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
    /// Whether pod GC may delete finished pods in excess.
    pub(super) tidies: bool,
}

/// What is wrong with a patch of pod GC that the API took.
pub(super) fn patched(before: &Pod, after: &Pod, patch: &Value, truth: Truth) -> Vec<String> {
    let (uid, mut problems) = (&before.uid, Vec::new());
    if before.is_terminal() && before.phase != after.phase {
        problems.push(format!("pod GC overwrites the end of {uid}: {:?}", before.phase));
    }
    if after.phase != Phase::Failed || before.is_terminal() {
        return problems;
    }
    // The owner of its Job accepts a double run.
    let accepted = reason(patch) == Some("ForceFail");
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
