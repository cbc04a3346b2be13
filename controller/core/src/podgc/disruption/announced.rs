//! Marks pods of a node that shuts down when the agent had no time to mark them. ([ST9])

use jiff::{SignedDuration, Timestamp};

use crate::podgc::case::{Case, Cause, Verdict, pod_write};
use crate::podgc::patches::marked;
use crate::view::Phase;

/// The agent marks its pods itself within this time, which saves a second write.
const HEAD_START: SignedDuration = SignedDuration::from_secs(3);
/// A shutdown lasts no longer; an older announcement is stale.
const SHUTDOWN_MAX: SignedDuration = SignedDuration::from_mins(15);

/// Sets DisruptionTarget on pods that cannot survive: running pods that started before the shutdown
/// and that no kubelet starts again without their sandbox. All others come back under the same UID
/// after the boot. ([AP5], [ST8])
///
/// DIVERGES(upstream): upstream does not mark such pods. Where the node goes before its kubelet
/// reports their end, they fail after the boot as if by their own fault. ([W5])
pub(super) fn verdict(case: &Case<'_>) -> Verdict {
    let pod = case.pod;
    if !case.settings.marks
        || pod.phase != Phase::Running
        || pod.deletion.is_some()
        || pod.gc.is_static
        || pod.gc.survives_sandbox
        || pod.is_target()
    {
        return Verdict::Leave;
    }
    let since = case.node.and_then(|node| node.view.shuts_down_since());
    let (Some(since), Some(start)) = (since, pod.gc.last_start()) else { return Verdict::Leave };
    let age = case.now.duration_since(since);
    if start > since || age > SHUTDOWN_MAX {
        return Verdict::Leave;
    }
    if age < HEAD_START {
        return Verdict::CheckAgain(since.checked_add(HEAD_START).unwrap_or(case.now));
    }
    // The API keeps whole seconds, so a later comparison needs whole seconds too.
    let at = Timestamp::from_second(case.now.as_second()).unwrap_or(case.now);
    Verdict::Do(pod_write(pod, Some(marked(pod, at)), Cause::Marked(at)))
}
