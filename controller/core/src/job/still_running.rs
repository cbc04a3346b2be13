//! Treats pods as terminating that are Failed while their status shows a running container.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::sync_input::SyncInput;
use crate::view::{Deletion, Phase, Pod};

/// The kubelet's last status of a pod comes within 10 s of its first; the margin is for a busy one.
const LAST_WORD_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// The Job's pods, with those as terminating whose containers still run, and how long until the
/// first of these counts as Failed. `None` if no container runs on.
///
/// DIVERGES(upstream): a kubelet that shuts down reports Failed for a pod whose container runs on
/// for up to 10 s. It may report Succeeded after that (seen on a real one). Where only terminal
/// pods are replaced, the pod is terminating until no container is shown running, for 30 s at most.
/// Upstream counts it as failed and replaces it while it still runs.
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

/// A clock that is further ahead than this proves nothing and delays nothing.
fn left_since(since: Timestamp, now: Timestamp) -> Option<SignedDuration> {
    let passed = now.duration_since(since);
    let holds = passed > -LAST_WORD_WITHIN && passed < LAST_WORD_WITHIN;
    holds.then(|| LAST_WORD_WITHIN.saturating_sub(passed))
}
