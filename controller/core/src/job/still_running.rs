//! Pods that are shown as Failed while a container of theirs is shown running.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::sync_input::SyncInput;
use crate::view::{Deletion, Phase, Pod};

/// The kubelet's last word of a pod comes within 10 s of its first; this is for a busy one.
const LAST_WORD_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// The Job's pods, those of them as terminating whose containers still run, and how long until the
/// first of these is taken at its word; nothing if there is none.
///
/// DIVERGES(upstream): a kubelet that shuts down says Failed of a pod whose container runs on for
/// up to 10 s, and may say Succeeded after that (seen on a real one). Where only ended pods are
/// replaced, the pod is terminating until no container is shown running, for 30 s at most; the
/// reference counts it as failed and replaces it beside itself.
pub(super) fn as_terminating(input: &SyncInput<'_>) -> Option<(Vec<Arc<Pod>>, SignedDuration)> {
    if !input.job.replaces_failed_only() {
        return None;
    }
    let left = input.pods.iter().filter_map(|pod| left(pod, input.now)).min()?;
    let shown = |pod: &Arc<Pod>| match pod.shown_running_since {
        Some(since) if left_since(since, input.now).is_some() => Arc::new(Pod {
            phase: Phase::Running,
            deletion: pod.deletion.or(Some(Deletion { at: since, grace_seconds: 0 })),
            ..Pod::clone(pod)
        }),
        _ => Arc::clone(pod),
    };
    Some((input.pods.iter().map(shown).collect(), left))
}

fn left(pod: &Pod, now: Timestamp) -> Option<SignedDuration> {
    left_since(pod.shown_running_since?, now)
}

/// A clock that runs further ahead than that proves nothing, and holds nothing up.
fn left_since(since: Timestamp, now: Timestamp) -> Option<SignedDuration> {
    let passed = now.duration_since(since);
    let holds = passed > -LAST_WORD_WITHIN && passed < LAST_WORD_WITHIN;
    holds.then(|| LAST_WORD_WITHIN.saturating_sub(passed))
}
