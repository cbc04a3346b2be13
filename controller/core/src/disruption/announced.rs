//! Pods of a node that shuts down, marked in the stead of an agent that had no time.
//! ([ST9])

use jiff::{SignedDuration, Timestamp};

use crate::podgc::patches::marked;
use crate::podgc::verdict::pod_write;
use crate::podgc::{Case, Cause, Verdict};
use crate::view::Phase;

/// The agent marks its pods itself, if it has the time; nobody else need write then.
const HEAD_START: SignedDuration = SignedDuration::from_secs(3);
/// A shutdown lasts no longer; what was announced before is the past.
const SHUTDOWN_MAX: SignedDuration = SignedDuration::from_mins(15);

/// Marks what cannot survive: pods that run, that were there when the shutdown began, and that
/// cannot start again in place. All others come back under the same UID after the boot.
/// ([AP5], [ST8])
///
/// DIVERGES(upstream): nobody marks such pods there. Where the node goes before its kubelet has
/// told of their end, they fail after the boot as if by their own fault. ([W5])
pub(super) fn verdict(case: &Case<'_>) -> Verdict {
    let pod = case.pod;
    if !case.settings.marks
        || pod.phase != Phase::Running
        || pod.deletion.is_some()
        || pod.is_static
        || pod.may_restart
        || pod.is_target()
    {
        return Verdict::Leave;
    }
    let since = case.node.and_then(|node| node.view.shuts_down_since());
    let (Some(since), Some(start)) = (since, pod.last_start) else { return Verdict::Leave };
    let age = case.now.duration_since(since);
    if start > since || age > SHUTDOWN_MAX {
        return Verdict::Leave;
    }
    if age < HEAD_START {
        return Verdict::CheckAgain(since.checked_add(HEAD_START).unwrap_or(case.now));
    }
    // The API keeps whole seconds, and so must who compares.
    let at = Timestamp::from_second(case.now.as_second()).unwrap_or(case.now);
    Verdict::Do(pod_write(pod, Some(marked(pod, at)), Cause::Marked(at)))
}
