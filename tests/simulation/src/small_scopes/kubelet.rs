//! What happens to pods without the controller: they start, end, are deleted, evicted, or lost with
//! their node.

use std::collections::BTreeSet;

use controller_core::view::{Phase, Pod, Uid};
use epilogue_common::names::disruption_reason::DELETION_BY_POD_GC;
use epilogue_common::names::pod_condition::DISRUPTION_TARGET;
use serde_json::{Value, json};

use super::scope::Faults;
use crate::controller::api::{Api, GRACE_SECONDS};
use crate::controller::pod_object;

/// What a kubelet, a user or pod garbage collection does to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// It is bound, and its container runs.
    Start,
    /// Its container exits with 0.
    Succeed,
    /// Its container exits with 1.
    Fail,
    /// A user deletes it before it has a node.
    DeletePending,
    /// A user deletes it while it runs.
    Delete,
    /// A user deletes it without grace while it runs.
    DeleteAtOnce,
    /// An eviction sets DisruptionTarget and deletes it.
    Evict,
    /// The kubelet evicts it: DisruptionTarget and Failed, without a deletion.
    EvictByKubelet,
    /// Its node is lost: pod garbage collection fails and deletes it.
    LoseNode,
    /// A kubelet that shuts down reports Failed while the container still runs.
    FailWhileRunning,
    /// The container of a pod that is being deleted, or was called Failed, exits with 143.
    Obey,
    /// The container of such a pod exits with 0.
    ObeyWithSuccess,
    /// Pod garbage collection fails a deleted pod that never had a node.
    FailUnscheduled,
    /// A kubelet that restarts refuses to admit a pod that has succeeded, and calls it Failed.
    Refuse,
}

impl Ending {
    /// All ways in which a pod may end besides success.
    pub const BAD: [Self; 7] = [
        Self::Fail,
        Self::Delete,
        Self::DeleteAtOnce,
        Self::Evict,
        Self::EvictByKubelet,
        Self::LoseNode,
        Self::FailWhileRunning,
    ];

    /// What happens anyway, sooner or later.
    const CERTAIN: [Self; 5] =
        [Self::Start, Self::Succeed, Self::Obey, Self::ObeyWithSuccess, Self::FailUnscheduled];

    /// Whether it may never happen.
    pub(super) fn is_bad(self) -> bool {
        !Self::CERTAIN.contains(&self)
    }

    /// What can happen to this pod.
    pub(super) fn of(pod: &Pod, runs: bool, bad: &[Self], faults: Faults) -> Vec<Self> {
        let bad = if faults.endings > 0 { bad } else { &[] };
        let all = Self::CERTAIN.iter().chain(bad);
        all.copied().filter(|ending| ending.fits(pod, runs)).collect()
    }

    fn fits(self, pod: &Pod, runs: bool) -> bool {
        let pending = pod.phase == Phase::Pending && pod.node.is_none();
        let deleted = pod.deletion.is_some();
        match self {
            Self::Start | Self::DeletePending => pending && !deleted,
            Self::FailUnscheduled => pending && deleted,
            Self::Obey | Self::ObeyWithSuccess => runs && (deleted || pod.is_terminal()),
            Self::Refuse => pod.phase == Phase::Succeeded && pod.tracked && !deleted,
            _ => runs && !deleted && !pod.is_terminal(),
        }
    }

    /// Does it.
    pub(super) fn happen(self, api: &mut Api, running: &mut BTreeSet<Uid>, uid: &Uid) {
        let now = api.whole_second();
        let deleted = api.pods.get(uid).is_some_and(|pod| pod.deletion.is_some());
        match self {
            Self::Start => {
                running.insert(uid.clone());
                change(api, uid, |pod| {
                    pod_object::bind(pod, "node");
                    pod_object::start(pod, now);
                });
            }
            Self::Succeed | Self::ObeyWithSuccess => exit(api, running, uid, 0),
            Self::Fail => exit(api, running, uid, 1),
            Self::Obey => exit(api, running, uid, 143),
            Self::DeletePending | Self::Delete => delete(api, uid, GRACE_SECONDS),
            Self::DeleteAtOnce => delete(api, uid, 0),
            Self::Evict => {
                change(api, uid, |pod| pod_object::disrupt(pod, now));
                delete(api, uid, GRACE_SECONDS);
            }
            Self::EvictByKubelet => {
                change(api, uid, |pod| pod_object::disrupt(pod, now));
                exit(api, running, uid, 137);
            }
            Self::LoseNode => {
                running.remove(uid);
                change(api, uid, |pod| {
                    pod_object::fail(pod);
                    let target = json!({
                        "type": DISRUPTION_TARGET, "status": "True", "reason": DELETION_BY_POD_GC,
                    });
                    let patch = json!({"status": {"conditions": [target]}});
                    pod_object::merge_status(pod, &patch);
                });
                delete(api, uid, 0);
            }
            Self::FailWhileRunning => change(api, uid, |pod| {
                pod_object::fail(pod);
                pod_object::mark(pod, now);
            }),
            Self::FailUnscheduled => {
                change(api, uid, pod_object::fail);
                delete(api, uid, 0);
            }
            Self::Refuse => change(api, uid, pod_object::refuse),
        }
        // The kubelet removes what was deleted once nothing of it runs.
        if deleted && !running.contains(uid) {
            delete(api, uid, 0);
        }
    }
}

/// Whether it has a true DisruptionTarget.
pub(super) fn is_disrupted(pod: &Pod) -> bool {
    pod.has_condition(DISRUPTION_TARGET)
}

fn exit(api: &mut Api, running: &mut BTreeSet<Uid>, uid: &Uid, code: i32) {
    let now = api.whole_second();
    running.remove(uid);
    change(api, uid, |pod| pod_object::finish(pod, code, now));
}

fn change(api: &mut Api, uid: &Uid, how: impl FnOnce(&mut Value)) {
    // If the pod is gone, there is nothing to change.
    let _ = api.change_pod(uid, how);
}

fn delete(api: &mut Api, uid: &Uid, grace: i64) {
    let _ = api.delete_pod(uid, grace);
}
