//! Proves that nothing of a pod runs, so that it is safe to fail it. Without such a proof a pod
//! stays as it is, however long that takes. ([GC12])

use std::fmt;
use std::sync::Arc;

use epilogue_common::announcement::Announcement;
use epilogue_common::names::job_option::FORCE_FAIL_AFTER;
use jiff::{SignedDuration, Timestamp};

use super::node::NodeRecord;
use crate::view::Pod;

/// The most by which the agent's clock, which follows the API's, may be ahead of ours.
const CLOCKS_DIFFER_MAX: SignedDuration = SignedDuration::from_secs(60);
/// A node that goes silent later than this after its agent's drained record did so for another
/// reason. The machine stayed up, so the record is void.
const DRAINED_MAX: SignedDuration = SignedDuration::from_mins(5);
/// How often a hanging pod is checked again: a changed annotation causes no event for it.
const CHECK_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// The proof that nothing of a pod runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The pod never had a node.
    NeverScheduled,
    /// The Node object is gone, also after a quarantine and by a live read.
    NodeGone,
    /// A taint, set by a person or a cloud, states that the machine is off.
    OutOfService,
    /// The machine has booted since the pod was deleted. A kubelet starts nothing of a pod that is
    /// being deleted.
    Rebooted {
        /// The boot in which the pod was deleted.
        from: Arc<str>,
        /// The current boot.
        to: Arc<str>,
    },
    /// The node's agent saw that nothing ran when it let the shutdown proceed.
    Drained {
        /// The boot that ended.
        boot_id: String,
        /// When the agent saw it.
        at: Timestamp,
    },
    /// No proof: the Job's owner accepts that the work may be done twice.
    ForceFail(ForceFailPolicy),
}

/// The consent of a Job's owner to a double run, by `force-fail-after`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForceFailPolicy {
    /// How long after the end of its grace a pod is failed.
    pub after: SignedDuration,
    /// The object that sets it: `Job NAME` or `namespace NAME`.
    pub by: String,
}

/// The state of the proof for a hanging pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// The pod can be failed.
    Found(Evidence),
    /// There is no proof yet; check again at this time.
    NotYet(Timestamp),
    /// No proof is needed.
    NotNeeded,
}

impl Evidence {
    /// The label value in metrics; the first three are upstream's. ([GC5])
    pub fn label(&self) -> &'static str {
        match self {
            Self::NeverScheduled => "unscheduled",
            Self::NodeGone => "orphaned",
            Self::OutOfService => "out-of-service",
            Self::Rebooted { .. } => "rebooted",
            Self::Drained { .. } => "drained",
            Self::ForceFail(_) => "force-fail",
        }
    }

    /// The `reason` of the condition that carries it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NeverScheduled => "NeverScheduled",
            Self::NodeGone => "NodeGone",
            Self::OutOfService => "OutOfService",
            Self::Rebooted { .. } => "NodeRebooted",
            Self::Drained { .. } => "NodeDrained",
            Self::ForceFail(_) => "ForceFail",
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverScheduled => formatter.write_str("the pod never had a node"),
            Self::NodeGone => formatter.write_str("node no longer exists"),
            Self::OutOfService => {
                formatter.write_str("node is out of service, as its taint says, and not ready")
            }
            Self::Rebooted { from, to } => write!(
                formatter,
                "node has booted since the pod was deleted (boot {from} then, {to} now)"
            ),
            Self::Drained { boot_id, at } => write!(
                formatter,
                "node's agent saw nothing of the pod running at {} when it let boot {boot_id} end",
                at.strftime("%Y-%m-%dT%H:%M:%SZ")
            ),
            Self::ForceFail(ForceFailPolicy { after, by }) => write!(
                formatter,
                "no proof that nothing runs, but {FORCE_FAIL_AFTER} of {by} accepts a double run \
                 {}s after the grace",
                after.as_secs()
            ),
        }
    }
}

/// Whether a pod that is being deleted, on an existing node, can be failed.
///
/// DIVERGES(upstream): upstream leaves a pod of a silent node Terminating for ever unless the node
/// goes or gets the out-of-service taint. Here a new boot, the agent's drained record and, on
/// request, `force-fail-after` fail it too. ([GC12])
pub(super) fn proof(
    pod: &Pod,
    deleted_in: Option<&Arc<str>>,
    node: &NodeRecord,
    policy: Option<&ForceFailPolicy>,
    now: Timestamp,
) -> Proof {
    // A kubelet that is alive terminates its own pods, and knows better.
    if pod.deletion.is_none() || pod.gc.is_static || !node.view.is_silent() {
        return Proof::NotNeeded;
    }
    let found = rebooted(pod, deleted_in, node, now).or_else(|| drained(pod, node, now));
    if let Some(evidence) = found {
        return Proof::Found(evidence);
    }
    let again = now.checked_add(CHECK_AGAIN).unwrap_or(now);
    match policy.and_then(|policy| Some((policy, due(pod, policy)?))) {
        Some((policy, due)) if due <= now => Proof::Found(Evidence::ForceFail(policy.clone())),
        Some((_, due)) => Proof::NotYet(due.min(again)),
        None => Proof::NotYet(again),
    }
}

/// Only for pods of Jobs. For others a second pod of the same name does harm for which the owner of
/// no Job can answer. ([API8])
fn due(pod: &Pod, policy: &ForceFailPolicy) -> Option<Timestamp> {
    if !pod.is_of_job() {
        return None;
    }
    pod.deletion?.at.checked_add(policy.after).ok()
}

/// A kubelet starts nothing of a pod that is being deleted when it first sees it. So a pod that was
/// deleted before the machine booted does not run.
fn rebooted(
    pod: &Pod,
    deleted_in: Option<&Arc<str>>,
    node: &NodeRecord,
    now: Timestamp,
) -> Option<Evidence> {
    let to = node.view.boot_id.as_ref()?;
    let requested = pod.deletion?.requested_at();
    // Such a pod would have to run in the new boot.
    if pod.gc.last_start().is_some_and(|start| start > requested) {
        return None;
    }
    let remembered = deleted_in.filter(|from| {
        let before_boot = |at: Timestamp| node.booted_after.is_some_and(|after| at <= after);
        *from != to && before_boot(requested) && pod.gc.last_start().is_none_or(before_boot)
    });
    let announced = || match &node.view.announcement {
        Some(
            Announcement::ShuttingDown { boot_id, since: at }
            | Announcement::Drained { boot_id, at },
        ) if **boot_id != **to && requested <= *at && is_past(*at, now) => {
            Some(Arc::from(boot_id.as_str()))
        }
        _ => None,
    };
    let from = remembered.cloned().or_else(announced)?;
    Some(Evidence::Rebooted { from, to: Arc::clone(to) })
}

/// The drained record holds for the pods that existed when it was written, except for static pods
/// and those of DaemonSets.
fn drained(pod: &Pod, node: &NodeRecord, now: Timestamp) -> Option<Evidence> {
    let Some(Announcement::Drained { boot_id, at }) = &node.view.announcement else {
        return None;
    };
    if !is_past(*at, now)
        || pod.is_of_daemon_set()
        || pod.created.is_none_or(|created| created > *at)
        || pod.gc.last_start().is_some_and(|start| start > *at)
    {
        return None;
    }
    // Deleted by then: no kubelet starts the pod again, in this boot or the next.
    let was_deleted = pod.deletion?.requested_at() <= *at;
    // Deleted later: the pod may have started again, unless the machine went down at once.
    let went_down = node.view.runs_in(boot_id)
        && node.view.ready_since.is_some_and(|since| since <= limit(*at));
    (was_deleted || went_down).then(|| Evidence::Drained { boot_id: boot_id.clone(), at: *at })
}

/// Whether an announcement can be true: one of the future would hold for every pod until then.
fn is_past(at: Timestamp, now: Timestamp) -> bool {
    at.duration_since(now) <= CLOCKS_DIFFER_MAX
}

fn limit(drained: Timestamp) -> Timestamp {
    drained.checked_add(DRAINED_MAX).unwrap_or(drained)
}
