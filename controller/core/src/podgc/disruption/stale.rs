//! Resets `DisruptionTarget` conditions that turned out to be wrong because their pod lives on.

use epilogue_common::names::disruption_reason::TERMINATION_BY_KUBELET;
use jiff::{SignedDuration, Timestamp};

use crate::podgc::case::{Case, Cause, Stale, Verdict, pod_write};
use crate::podgc::node::{NodeRecord, NodeView};
use crate::podgc::patches::cleared;
use crate::podgc::settings::StaleReset;
use crate::view::{Phase, Pod, Target};

/// After this time the control plane calls a node that was cut off unknown. So a node that is still
/// ready shows its current boot id.
const BOOT_SEEN_MAX: SignedDuration = SignedDuration::from_mins(1);

/// Resets only on a pod that is neither deleted nor terminal, once it is due. ([ST1], [ST2], [ST4])
pub(super) fn verdict(case: &Case<'_>) -> Verdict {
    let pod = case.pod;
    let target = pod.gc.target().filter(|target| target.stands);
    let Some(target) = target.filter(|_| pod.deletion.is_none()) else { return Verdict::Leave };
    let of_kubelet = &*target.reason == TERMINATION_BY_KUBELET;
    let (due, stale) = match case.settings.stale_reset {
        StaleReset::All if !of_kubelet => (after(case, target.since), Stale::NotDeleted),
        StaleReset::All | StaleReset::Epilogue if of_kubelet => match leftover(case, target) {
            Some(leftover) => leftover,
            None => return Verdict::Leave,
        },
        _ => return Verdict::Leave,
    };
    if due > case.now {
        return Verdict::CheckAgain(due);
    }
    Verdict::Do(pod_write(pod, Some(cleared(pod, case.now)), Cause::Cleared(stale)))
}

/// A kubelet writes its reason only together with the terminal phase. So on a live pod only an
/// agent or this controller can have left it. ([ST7])
///
/// DIVERGES(upstream): upstream does not reset those.
fn leftover(case: &Case<'_>, target: &Target) -> Option<(Timestamp, Stale)> {
    let (pod, node) = (case.pod, case.node?);
    if !node.view.is_up() || is_ending(pod, case.now) {
        return None;
    }
    if runs_again(pod, target) && booted_since(node, target) {
        return Some((case.now, Stale::Restarted));
    }
    // After a boot, a pod that cannot start again still has to be reported as failed, with this
    // very condition. The kubelet does so within seconds of being ready. But a node that was back
    // soon was ready all the time, as far as the API shows. An announcement of its new agent may
    // then come first.
    let ours = case.marked_at.is_some() && case.marked_at == target.since;
    if ours && !booted_since(node, target) {
        return Some((later(node.changed_at, BOOT_SEEN_MAX), Stale::Cancelled));
    }
    let since = target.since.max(node.view.ready_since).max(Some(node.changed_at));
    Some((after(case, since), Stale::NotShutDown))
}

/// The deadline fails the pod; the agent also uses it to fail a bare pod. ([API17])
fn is_ending(pod: &Pod, now: Timestamp) -> bool {
    pod.gc.deadline().is_some_and(|deadline| deadline <= now)
}

fn runs_again(pod: &Pod, target: &Target) -> bool {
    pod.phase == Phase::Running
        && pod.is_ready()
        && pod.gc.running_since().is_some_and(|since| Some(since) > target.since)
}

/// Shown by the boot that we saw, or by an announcement of another boot.
fn booted_since(node: &NodeRecord, target: &Target) -> bool {
    node.booted_by > target.since || announces_another_boot(&node.view)
}

fn announces_another_boot(node: &NodeView) -> bool {
    use epilogue_common::announcement::Announcement::{Drained, Idle, ShuttingDown};
    match &node.announcement {
        Some(ShuttingDown { boot_id, .. } | Drained { boot_id, .. }) => !node.runs_in(boot_id),
        Some(Idle) | None => false,
    }
}

/// A missing time counts as long ago. ([ST2])
fn after(case: &Case<'_>, since: Option<Timestamp>) -> Timestamp {
    let Some(since) = since else { return case.now };
    later(since, case.settings.stale_after)
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}
